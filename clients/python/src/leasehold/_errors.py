from __future__ import annotations

from typing import Optional

from ._types import Holder


class Error(Exception):
    """The base of all errors of this package. code is the server's word for it, or ""."""

    code: str = ""


class Busy(Error):
    """Someone else holds the lock, or is ahead in the queue. Nothing was granted.

    holder is one of those who hold it, as far as the server tells.
    """

    holder: Optional[Holder]

    def __init__(self, text: str, code: str = "busy", holder: Optional[Holder] = None) -> None:
        super().__init__(text)
        self.code, self.holder = code, holder


class Lost(Error):
    """The lease ended before it was released. code is "evicted" where someone ended it by force."""

    def __init__(self, text: str = "", code: str = "lost") -> None:
        super().__init__(*([text] if text else []))
        self.code = code


class Released(Error):
    """This program has released the lease."""


class Unknown(Error):
    """No answer: the call may have been served, or not."""


class Refused(Error):
    """The server refused the call, which changed nothing. status is HTTP's, or 0.

    If code is "read_only" or "full", the call may have been applied. acquire then releases what may
    have been granted.
    """

    def __init__(self, text: str, code: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class TooHeavy(Refused):
    """The weight exceeds the limit of the call, or the operator's. No release makes room for it."""


class Unauthorized(Refused):
    """The server does not know the token, or the client may not do this."""
