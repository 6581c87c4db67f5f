"""Distributed locks: the client of `leasehold serve`.

    from leasehold import Client

    client = Client("http://127.0.0.1:7400")
    with client.lock("nightly-report", ttl=30, wait=60) as lease:
        write_report(token=lease.token)

A lock is a lease. It is renewed every third of its TTL until it is released. It is lost at its
deadline by this machine's clock, whatever the server does, and so before anyone else can hold it.
AsyncClient does the same for asyncio.

Errors: Busy (someone else holds it), Lost (the lease ended early), Released (this program gave it
up), Unknown (no answer: the call may have been served), Refused (the call changed nothing), and
TooHeavy and Unauthorized, which are Refused. All are Errors.
"""

from ._async import AsyncClient, AsyncLease
from ._errors import Busy, Error, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown
from ._sync import Client, Lease
from ._types import Details, Features, Holder, Lock, Mode, Waiter
from ._version import __version__

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "Busy",
    "Client",
    "Details",
    "Error",
    "Features",
    "Holder",
    "Lease",
    "Lock",
    "Lost",
    "Mode",
    "Refused",
    "Released",
    "TooHeavy",
    "Unauthorized",
    "Unknown",
    "Waiter",
    "__version__",
]
