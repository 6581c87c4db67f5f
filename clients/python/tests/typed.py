"""Uses every name of the package, for mypy."""

import asyncio
import ssl
from typing import List, Optional, Tuple

import leasehold
from leasehold import (AsyncClient, AsyncLease, Busy, Client, Details, Error, Features, Holder, Lease, Lock, Lost, Mode, Refused, Released,
                       TooHeavy, Unauthorized, Unknown, Waiter)

version: str = leasehold.__version__
mode: Mode = "shared"


def sync(context: ssl.SSLContext) -> int:
    client = Client("https://localhost", "token", timeout=1.0, context=context)
    with client.lock("a", ttl=30, wait=5, mode=mode, limit=2, weight=2, note="ci", at_least=1.5, interrupt=False) as lease:
        took: Lease = lease
        details: Details = {"host": "a", "user": "b", "pid": 1, "program": "c", "link": "https://d.example", "labels": {"e": "f"}, "text": "g"}
        with client.acquire("b", details=details, yields=True, on_wanted=lambda wanted: print(wanted.name)) as other:
            print(other.wanted.is_set())
        left: float = lease.extend(60) + lease.extend() + lease.left()
        took.check()
        if lease.lost.wait(left):
            cause: Optional[Lost] = lease.cause
            print(cause, lease.name, lease.owner)
    with client.acquire("a", wait=0):
        pass
    client.acquire("a", wait=None).release()

    @client.lock("decorated")
    def work(n: int) -> str:
        return str(n)

    text: str = work(1)
    page: Tuple[List[Lock], str] = client.page("a", limit=10, after="")
    for lock in client.locks("a"):
        holders: List[Holder] = lock["holders"]
        waiters: List[Waiter] = client.show(lock["name"])["waiters"]
        for holder in holders:
            unseen: Optional[int] = holder.get("unrenewed_ms")
            client.evict(lock["name"], holder["handle"], "because of " + holder.get("note", text))
        here: List[bool] = [waiter.get("here", False) for waiter in waiters]
        print(unseen, here, page, lock.get("used"), lock.get("limit"), holders[0].get("weight"))
    features: Features = client.features()
    print(features.get("fair"))
    return lease.token


async def over_asyncio() -> int:
    client = AsyncClient("http://localhost", None, timeout=1.0)
    async with client.lock("a", ttl=30, wait=5, mode="exclusive", limit=0, weight=1, note="", at_least=0, interrupt=True) as lease:
        took: AsyncLease = lease
        async with client.lock("b", details={"text": "g"}, yields=True, on_wanted=lambda wanted: print(wanted.name)) as other:
            await other.wanted.wait()
        await lease.extend(60)
        took.check()
        await lease.lost.wait()
        print(lease.cause, lease.name, lease.owner, lease.left())
    async with await client.acquire("a"):
        pass
    await lease.release()
    locks, following = await client.page()
    async for lock in client.locks():
        locks.append(lock)
    await client.evict("a", (await client.show("a"))["holders"][0]["handle"])
    print((await client.features()).get("max_wait_ms"), following)
    return lease.token


def errors(e: Error) -> str:
    if isinstance(e, Busy) and e.holder is not None:
        return e.holder["handle"]
    if isinstance(e, (Refused, TooHeavy, Unauthorized)):
        return "%d %s" % (e.status, e.code)
    assert isinstance(e, (Lost, Released, Unknown))
    return e.code


if __name__ == "__main__":
    print(sync(ssl.create_default_context()), asyncio.run(over_asyncio()), errors)
