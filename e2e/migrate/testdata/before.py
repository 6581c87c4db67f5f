"""Ships under redis-py's Lock: HOST PORT FILE ROUNDS."""
import sys

import redis

from ship import ship

host, port, path, rounds = sys.argv[1:]
client = redis.Redis(host=host, port=int(port))


def with_redis_py(ship):
    with client.lock("orders/42", timeout=8, blocking_timeout=60):
        ship()  # for 8 s at most: after that another may be let in


for _ in range(int(rounds)):
    with_redis_py(lambda: ship(path))
