"""Adds to a number in a file, so often, under kazoo's Lock: ADDR PATH FILE ROUNDS."""
import sys
import time

from kazoo.client import KazooClient

addr, path, number, rounds = sys.argv[1:]
client = KazooClient(hosts=addr)
client.start()
lock = client.Lock(path, extra_lock_patterns=["-lock-"])
for _ in range(int(rounds)):
    with lock:
        with open(number) as f:
            n = int(f.read())
        time.sleep(0.001)
        with open(number, "w") as f:
            f.write(str(n + 1))
client.stop()
