"""Ships under the lock of leasehold serve: URL FILE ROUNDS."""
import sys

from leasehold import Client

from ship import ship

url, path, rounds = sys.argv[1:]
client = Client(url)


def with_leasehold(ship):
    with client.lock("orders/42", ttl=10, wait=60):  # renewed for as long as it takes
        ship()  # a loss ends it by Lost: roll back


for _ in range(int(rounds)):
    with_leasehold(lambda: ship(path))
