"""Holds NAME at URL for TTL seconds: holder.py sync|async|check|yields URL NAME TTL.

It prints {"token"} when it holds; and at the end {"ended", "believed"}: the name of the error, and the last time, by
CLOCK_MONOTONIC, at which lease.check() said that it held. Of sync, an exception ends the section and nothing asks. Of yields,
it prints {"wanted"} when others wait, and goes on."""

import asyncio
import json
import sys
import time

from leasehold import AsyncClient, Client, Error

mode, url, name, ttl = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
believed = 0.0


def say(**what):
    print(json.dumps(what), flush=True)


def section():
    global believed
    with Client(url).lock(name, ttl=ttl, interrupt=mode == "sync", yields=mode == "yields") as lease:
        say(token=lease.token)
        if mode == "yields":
            lease.wanted.wait()
            say(wanted=True)
        while True:
            before = time.monotonic()
            if mode == "check":
                lease.check()
                believed = before
            time.sleep(0.001)


async def task():
    global believed
    async with AsyncClient(url).lock(name, ttl=ttl) as lease:
        say(token=lease.token)
        while True:
            before = time.monotonic()
            lease.check()
            believed = before
            await asyncio.sleep(0.001)


try:
    asyncio.run(task()) if mode == "async" else section()
except (Error, KeyboardInterrupt) as e:
    say(ended=type(e).__name__, believed=believed)
