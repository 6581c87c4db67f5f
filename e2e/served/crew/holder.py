"""Takes the lease NAME at URL again and again, until its standard input ends, and prints a line of JSON
for each time that it believed to hold it: from and until, by the kernel's monotonic clock in nanoseconds.
It holds for 20 ms, and for as long as the file LONGER is there."""

import json
import os
import sys
import threading
import time

from leasehold import Busy, Client, Error

url, name, ttl, longer = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
client, stopping = Client(url), threading.Event()


def stop():
    sys.stdin.read()
    stopping.set()


threading.Thread(target=stop, daemon=True).start()
while not stopping.is_set():
    try:
        with client.acquire(name, ttl=ttl, wait=10, note="python", interrupt=False) as lease:
            start = time.monotonic_ns()
            until = start
            while True:
                now = time.monotonic_ns()
                if lease.left() == 0:
                    break
                until = now  # it was held still
                if until > start + 20_000_000 and not os.path.exists(longer):
                    break
                time.sleep(0.01)
            print(json.dumps({"token": str(lease.token), "from": start, "until": until}), flush=True)
    except Busy:
        if not stopping.is_set():
            print(json.dumps({"busy": True}), flush=True)
    except Error:
        pass  # unknown or lost: the next call tells
