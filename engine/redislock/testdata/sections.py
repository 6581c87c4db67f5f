"""Takes redis-py's Lock ROUNDS times, each time adding 1 to the number in FILE."""
import sys
import time

import redis

host, port, key, path, rounds = sys.argv[1:]
client = redis.Redis(host=host, port=int(port))
for _ in range(int(rounds)):
    with client.lock(key, timeout=10, sleep=0.001):
        with open(path) as f:
            number = int(f.read())
        time.sleep(0.001)
        with open(path, "w") as f:
            f.write(str(number + 1))
