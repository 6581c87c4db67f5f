import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Ships under Curator's mutex: ENSEMBLE FILE ROUNDS. */
public class Before {
    static void withCurator(CuratorFramework client, Runnable ship) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, "/shop/order-42");
        if (!mutex.acquire(60, TimeUnit.SECONDS)) {
            throw new Exception("somebody else ships it");
        }
        try {
            ship.run(); // a session that ends has lost the lock, and this goes on
        } finally {
            mutex.release();
        }
    }

    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[1]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], new ExponentialBackoffRetry(100, 5));
        client.start();
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            withCurator(client, () -> add(file));
        }
        client.close();
    }

    static void add(Path file) {
        try {
            int number = Integer.parseInt(Files.readString(file).trim());
            Thread.sleep(2);
            Files.writeString(file, Integer.toString(number + 1));
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }
}
