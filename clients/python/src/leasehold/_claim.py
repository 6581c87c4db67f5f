"""The protocol, without input and output: what to send, what an answer means, when to repeat a call.

A procedure is a generator. It yields a Request, and gets its answer or an Error; or it yields a
pause in seconds. Client and AsyncClient carry them out in their own ways.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import socket
import sys
import threading
import time
import urllib.parse
from datetime import datetime, timezone
from typing import Any, Dict, Generator, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union, cast

from ._errors import Busy, Error, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown
from ._types import Details, Holder, Mode

# What is kept back of each TTL, because clocks run at different rates: a hundredth and 2 ms.
DRIFT = 0.01
DRIFT_LEAST = 0.002

# The longest wait of one call, in seconds. The server has a bound of its own.
LONGEST_WAIT = 10.0

# The pause after a call without an answer. The server keeps a place in the queue for two seconds.
PAUSE = 0.2

# The pause of a waiter whom the server refuses because of too many calls, in seconds: its Retry-After.
LIMITED = 1.0

# The longest pause until the clock is read again: timers stand still while the machine sleeps.
LOOK_EVERY = 1.0


# How long an address of the server is tried alone before the next one is tried beside it, in seconds.
HEAD_START = 0.25

# The stream of events says something every 5 s. After so many seconds without a word it is given up.
SILENT = 15.0

# The longest pause before the stream is asked for again.
LONGEST_PAUSE = 5.0

# The longest note and details that are filled up with those of this process, in bytes. Stores keep 4096.
LONGEST_FILLED = 3000


def now() -> float:
    """The clock of leases. On Linux, time.monotonic() stands still while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


Answer = Dict[str, Any]


class Request(NamedTuple):
    """One call. Its answer is a yes only if it has all that is in yes."""

    method: str
    path: str
    body: Optional[bytes] = None
    timeout: float = 0.0
    yes: Mapping[str, object] = {}


T = TypeVar("T")
Steps = Generator[Union[Request, float], Answer, T]


class Server(NamedTuple):
    """Where the server is, and how to speak to it."""

    host: str
    port: int
    path: str
    tls: bool
    token: str
    timeout: float

    @classmethod
    def at(cls, url: str, token: Optional[str], timeout: float) -> Server:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # its text may show a token
            raise ValueError("the url must be http://host:port or https://host:port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the url must be http://host:port or https://host:port")
        if parts.username or parts.password:
            raise ValueError("the url must not contain a password: pass token")
        if any(not "!" <= c <= "~" for c in parts.hostname + parts.path):
            raise ValueError("the url's host and path must be printable ASCII")  # else an error of the call may show the token
        if not 0 < timeout < math.inf:
            raise ValueError("timeout must be above 0 seconds")
        token = (token or "").strip()  # a file ends with a newline
        if any(not " " <= c <= "~" for c in token):
            raise ValueError("the token must be printable ASCII")  # else an error of the call would show it
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls, token, timeout)

    def headers(self, request: Request) -> Dict[str, str]:
        host = "[%s]" % self.host if ":" in self.host else self.host
        headers = {"Host": "%s:%d" % (host, self.port), "Accept": "application/json", "Connection": "close"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(request.body))
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        return headers

    def show(self, name: str) -> Request:
        return Request("GET", "/v1/lock?" + urllib.parse.urlencode({"name": name}), None, self.timeout, {"name": name})

    def page(self, prefix: str, after: str, limit: int) -> Request:
        query: Dict[str, Union[str, int]] = {"prefix": prefix, "limit": limit}
        if after:
            query["after"] = after
        return Request("GET", "/v1/locks?" + urllib.parse.urlencode(query), None, self.timeout)

    def features(self) -> Request:
        return Request("GET", "/v1/features", None, self.timeout)

    def wanted(self, name: str) -> Request:
        query = urllib.parse.urlencode({"prefix": name, "kind": "wanted"})
        return Request("GET", "/v1/events?" + query, None, self.timeout)

    def evict(self, name: str, handle: str, reason: str) -> Request:
        body = json.dumps({"name": name, "owner": handle, "reason": reason}).encode()
        return Request("POST", "/v1/evict", body, self.timeout, {"outcome": "done"})


def read_page(answer: Answer) -> Tuple[List[Any], str]:
    locks, following = answer.get("locks"), answer.get("next", "")
    if not isinstance(locks, list) or not isinstance(following, str):
        raise Unknown("an answer that is not a list of locks")
    return locks, following


def judge(status: int, text: bytes, yes: Mapping[str, object]) -> Answer:
    """The answer of a yes, or an Error."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):  # of what stands between
        raise Unknown("HTTP %d without an answer of the service" % status)
    error, code = str(answer.get("error") or "HTTP %d" % status), str(answer.get("code", ""))
    if status == 200:
        if any(answer.get(k) != v for k, v in yes.items()):
            raise Unknown("an answer to another call")
        return answer
    if status == 409:
        holder = cast(Holder, answer["holder"]) if isinstance(answer.get("holder"), dict) else None
        note = holder.get("note") if holder is not None else None
        raise Busy("%s: %s" % (error, note) if note else error, code, holder)
    if status == 410:
        raise Lost(error, code)
    if answer.get("outcome") == "refused":
        kind = Unauthorized if status in (401, 403) else TooHeavy if code == "too_heavy" else Refused
        raise kind(error, code, status)
    raise Unknown(error)


class Grant(NamedTuple):
    since: float  # by now(): its TTL counts from here
    ttl: float
    asked: float  # the TTL of the call, of which the store may grant less
    token: int
    wanted: bool  # whether others wait


class Ears:
    """Finds, among the lines of a stream of events, that others wait for a lease."""

    heard = False

    def __init__(self, owner: str) -> None:
        digest = hashlib.sha256(b"leasehold owner\n" + owner.encode()).digest()
        self._handle = base64.urlsafe_b64encode(digest[:15]).decode()

    def hear(self, line: bytes) -> bool:
        if not line.startswith(b"data:"):
            return False
        try:
            event = json.loads(line[5:])
        except ValueError:
            return False
        self.heard = isinstance(event, dict) and str(event.get("handle", "")).endswith("~" + self._handle)
        return self.heard


def listens_again(status: int) -> bool:
    """Whether a stream that was refused so may be had later. Else renewals alone tell."""
    return status == 429 or status >= 500 and status != 501


class Claim:
    """One owner's calls for one name. They are numbered, so that the server refuses late ones."""

    def __init__(self, server: Server, name: str, mode: Mode, limit: int, weight: int, note: str, at_least: float,
                 details: Optional[Details], yields: bool) -> None:
        if not 0 <= at_least < math.inf:
            raise ValueError("at_least must not be below 0 seconds")
        if weight < 1:
            raise ValueError("weight must not be below 1")
        self.server, self.name = server, name
        self.owner = base64.b32encode(os.urandom(20)).decode()
        self._at_least, self.yields = at_least, yields
        self.unused = True  # until the caller has the lease
        self._details, note = _described(details or {}, note)
        self._same: Dict[str, object] = {"name": name, "owner": self.owner, "mode": mode, "limit": limit, "note": note,
                                        "weight": weight if weight > 1 else 0}
        self._mutex = threading.Lock()  # guards what follows
        self._count = 0
        self._released = False  # whether a release has been sent: it must not be overtaken
        self._silent = 0  # the first acquire without an answer: it may be served late
        self._shortest = math.inf  # the shortest TTL of a call without an answer

    def _call(self, what: str, timeout: float, **fields: object) -> Steps[Answer]:
        with self._mutex:
            if what == "renew" and self._released:
                raise released()
            self._released = self._released or what == "release"
            self._count += 1
            number = self._count
            # Up to this number, no acquire is without an answer.
            answered = (self._silent or number) - 1
        body: Dict[str, object] = {**self._same, **fields, "call": number, "answered": answered}
        yes: Dict[str, object] = {"outcome": "done"}
        if what != "release":
            yes = {"outcome": "granted", "name": self.name, "owner": self.owner}
        answers = False
        try:
            text = json.dumps({k: v for k, v in body.items() if v}).encode()
            answer = yield Request("POST", "/v1/" + what, text, timeout, yes)
            answers = True
            return answer
        except (Busy, Lost, Refused) as e:
            answers = not maybe_applied(e)
            raise
        finally:
            if not answers:
                with self._mutex:
                    if what == "acquire":
                        self._silent = self._silent or number
                    ttl = fields.get("ttl_ms")
                    if isinstance(ttl, int):
                        self._shortest = min(self._shortest, ttl / 1000)

    def _granted(self, sent: float, asked: float, answer: Answer) -> Grant:
        """The grant, with no more of its TTL than is sure.

        A call that had no answer may be served late, and restart the lease with its own TTL.
        """
        try:
            ttl, waited = int(answer["ttl_ms"]) / 1000, int(answer.get("waited_ms", 0)) / 1000
            token = int(answer["token"])
        except (KeyError, TypeError, ValueError):
            raise Unknown("an answer that is not a grant") from None
        with self._mutex:
            return Grant(sent + waited, min(ttl, self._shortest), asked, token, answer.get("wanted") is True)

    def acquire(self, ttl: float, wait: Optional[float]) -> Steps[Grant]:
        if not 0 < ttl < math.inf or (wait is not None and not 0 <= wait < math.inf):
            raise ValueError("ttl must be above 0 seconds, and wait None or not below 0")
        end = math.inf if wait is None else now() + wait
        silent: Optional[float] = None  # since when no instance has answered
        patience = ttl if wait is None else min(ttl, max(wait, self.server.timeout))
        placed = False  # whether there may be a place in the queue
        limited = False  # whether too many calls wait: one that does not keeps the place
        while True:
            sent = now()
            left = 0.0 if limited else min(max(end - sent, 0.0), LONGEST_WAIT)
            limited = False
            try:
                answer = yield from self._call("acquire", self.server.timeout + left, ttl_ms=_ms(ttl),
                                               wait_ms=_ms(left), queue=wait != 0, at_least_ms=_ms(self._at_least),
                                               details=self._details, wanted=self.yields)
                return self._granted(sent, ttl, answer)
            except Busy as e:
                silent, placed = None, True
                if now() >= end:
                    raise
                if e.code in ("not_yet", "draining") or left == 0:
                    yield PAUSE
            except (Unknown, Refused) as e:
                if isinstance(e, Refused) and e.status == 429 and placed and now() < end:
                    silent, limited = None, True
                    yield min(LIMITED, end - now())
                    continue
                if not unsettled(e):
                    raise
                placed = True
                if silent is None:  # an instance that had the call wait was there until now
                    silent = now() if now() < sent + left else sent
                if now() - silent >= patience or now() >= end:
                    raise
                yield PAUSE

    def renew(self, ttl: float, timeout: float) -> Steps[Grant]:
        sent = now()
        answer = yield from self._call("renew", timeout, ttl_ms=_ms(ttl), wanted=self.yields)
        return self._granted(sent, ttl, answer)

    def release(self, until: float) -> Steps[None]:
        """Release, repeated until that time while its outcome is unknown. Only the first answer can tell a loss."""
        asked = False
        while True:
            try:
                yield from self._call("release", min(self.server.timeout, max(until - now(), PAUSE)),
                                      at_least_ms=_ms(self._at_least), unused=self.unused and self._at_least > 0)
                return
            except Lost as e:
                if asked:  # either call may have ended it
                    raise Unknown("released or lost: %s" % e) from e
                raise
            except (Unknown, Refused) as e:
                if not unsettled(e):
                    raise
                asked = True
                if now() >= until:
                    raise
                yield PAUSE

    def leave(self, seconds: float) -> Steps[None]:
        """Leave the queue, or release what may have been granted."""
        try:
            yield from self.release(now() + seconds)
        except Error:
            pass  # the place ends by itself in seconds, the grant with its TTL


def nothing_left(error: BaseException, wait: Optional[float]) -> bool:
    """Whether an attempt to acquire that ended so cannot have left a place or a grant."""
    return isinstance(error, ValueError) or wait == 0 and isinstance(error, (Busy, Refused)) and not maybe_applied(error)


def released() -> Released:
    return Released("the lease was released")


def maybe_applied(error: BaseException) -> bool:
    """Whether a call, or an earlier attempt of it, may have been applied although it was refused."""
    return isinstance(error, Refused) and error.code in ("read_only", "full")


def unsettled(error: Error) -> bool:
    """Whether to repeat a call that ended so: it may have been applied."""
    return isinstance(error, Unknown) or maybe_applied(error)


_STARTED = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _mine() -> Details:
    """What people are told of this process. No name service is asked, which may hang."""
    mine: Details = {"host": _text(socket.gethostname()), "pid": os.getpid(),
                     "program": _text(os.path.basename(sys.argv[0])) or "python", "started": _STARTED}
    user = next((os.environ[name] for name in ("USER", "LOGNAME", "USERNAME") if os.environ.get(name)), None)
    if user is None and hasattr(os, "getuid"):
        user = "root" if os.getuid() == 0 else str(os.getuid())
    if user:
        mine["user"] = _text(user)
    return mine


def _text(raw: str) -> str:
    """raw without the surrogates that stand for bytes that are no text: the server refuses them."""
    return raw.encode("utf-8", "replace").decode()


def _described(details: Details, note: str) -> Tuple[Details, str]:
    """The details that are sent, filled up with those of this process if there is room, and the note."""
    text = details.get("text", "")
    if note and text and note != text:
        raise ValueError("note and the text of details must be the same")
    filled = _mine()
    filled.update(details)
    if len((json.dumps(details) + (note or text)).encode()) > LONGEST_FILLED:
        filled = details
    who = "%s %s" % (filled.get("host", ""), filled.get("program", ""))
    if filled.get("pid"):
        who += "[%d]" % filled["pid"]
    return filled, note or text or who.strip()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


class Term:
    """How long a lease lasts, by this machine's clock. It does no locking."""

    def __init__(self, grant: Grant) -> None:
        self.ttl = grant.asked  # of the next renewal
        self.deadline = -math.inf
        self.cause: Optional[Lost] = None
        self.failure: Optional[Error] = None  # of the latest renewal
        self.released = False
        self.prolong(grant)

    def prolong(self, grant: Grant) -> None:
        self.failure = None
        self.ttl = max(self.ttl, grant.asked, grant.ttl)
        self.third = grant.ttl / 3  # when the next renewal is due
        self.deadline = max(self.deadline, grant.since + grant.ttl * (1 - DRIFT) - DRIFT_LEAST)

    def over(self) -> bool:
        return self.released or self.cause is not None

    def left(self) -> float:
        return 0.0 if self.over() else max(self.deadline - now(), 0.0)

    def patience(self, timeout: float) -> float:
        """How long a renewal waits for its answer, so that others may follow before the deadline."""
        return min(timeout, self.third, max(self.left(), 0.001))

    def late(self) -> bool:
        """Whether the deadline has passed unnoticed."""
        return not self.over() and now() >= self.deadline

    def error(self) -> Optional[Error]:
        """Why it is over."""
        if self.released:
            return released()
        if self.cause is not None:
            return Lost(str(self.cause), self.cause.code)
        return None

    def deadline_passed(self) -> Lost:
        """The loss of a lease that is late, with the reason why it was not renewed."""
        text = "the deadline passed without a renewal"
        lost = Lost(text if self.failure is None else "%s: %s" % (text, self.failure), "deadline")
        lost.__cause__ = self.failure
        return lost
