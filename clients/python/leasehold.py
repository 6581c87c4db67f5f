"""Leases of `leasehold serve`, with nothing but the standard library.

    from leasehold import Client

    client = Client("http://127.0.0.1:7400")
    with client.acquire("nightly-report", ttl=30, wait=60) as lease:
        write_report(token=lease.token)

A lease is renewed by a thread of its own, every third of its TTL. It is lost at its deadline by
this machine's clock, whatever the server says or does not say: then the section is ended
by a Lost that is raised in its thread, once that thread runs Python code again. A call that blocks
is not interrupted: give it lease.left() as its timeout.

On Linux the time that the machine sleeps counts. After it wakes up, lease.check() and lease.left()
are right at once, and within a second the lease is renewed, or its section ended.

What may happen, as exceptions: Busy (no: somebody else holds it), Lost (the lease is over), Unknown
(no answer: it may have been done), Refused (it cannot be served so). All are Errors.
"""

import base64
import ctypes
import http.client
import json
import os
import ssl
import threading
import time
import urllib.parse

__all__ = ["Client", "Lease", "Error", "Busy", "Lost", "Unknown", "Refused"]

# What is kept back of each TTL, because clocks run at different rates: a hundredth and 2 ms.
DRIFT = 0.01
DRIFT_LEAST = 0.002

# The longest wait of one call, in seconds; the server has a bound of its own. And the pause
# after a call that had no answer: a place in the queue is kept for two seconds.
LONGEST_WAIT = 10.0
PAUSE = 0.2

# The longest wait until the clock is looked at again: timers stand still while the machine sleeps.
LOOK_EVERY = 1.0


def _now():
    """The clock of leases. On Linux, time.monotonic() stands still while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Error(Exception):
    """What went wrong with a lease."""


class Busy(Error):
    """No: somebody else holds it, or is ahead. holder is one who does, as far as it is known."""

    def __init__(self, text, holder=None):
        super().__init__(text)
        self.holder = holder


class Lost(Error):
    """The lease ended before it was released, or there is none."""


class Unknown(Error):
    """No answer: the call may have been served, or not."""


class Refused(Error):
    """It cannot be served so, and has changed nothing. code is the server's word for it."""

    def __init__(self, status, code, text):
        super().__init__(text)
        self.status, self.code = status, code


class Client:
    """Client speaks to the instances at url. It is safe for use by many threads.

    token is a bearer token, and context an ssl.SSLContext, for a server that asks for them.
    timeout is how many seconds a call may take beside what it waits for other holders.
    """

    def __init__(self, url, token=None, timeout=5.0, context=None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the url is http://host:port or https://host:port")
        if parts.username or parts.password:
            raise ValueError("the url has no user and password: give token")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = None
        if parts.scheme == "https":
            self._tls = context or ssl.create_default_context()
        self._token, self._timeout = token, timeout

    def acquire(self, name, ttl=30.0, wait=None, mode="exclusive", limit=0, note="", at_least=0.0, interrupt=True):
        """Take name for ttl seconds, renewed until it is released, and return the Lease.

        wait is how many seconds to wait for other holders: None is for ever, 0 is one attempt.
        Then Busy is raised. Unknown is raised if no instance answers within ttl, or wait if that is
        shorter. mode is "exclusive" or "shared", with at most limit holders (0: any number). at_least keeps the
        name taken for so many seconds after the grant, also when it is released earlier. interrupt=False
        raises no Lost in the section's thread: lease.check() and lease.lost tell.
        """
        if not 0 < ttl < float("inf") or (wait is not None and not 0 <= wait < float("inf")):
            raise ValueError("ttl is above 0, wait is None or at least 0 seconds")
        claim = _Claim(self, name, mode, limit, note, at_least)
        try:
            t0, grant = claim.acquire(ttl, wait)
            return Lease(claim, t0, grant, interrupt)
        except BaseException as e:
            if wait != 0 or not isinstance(e, (Busy, Refused)):  # else nothing is left
                claim.give_up()
            raise

    def show(self, name):
        """What is known of name: a dict with token, holders and waiters."""
        return self._ask("GET", "/v1/lock?" + urllib.parse.urlencode({"name": name}), yes={"name": name})

    def page(self, prefix="", after="", limit=100):
        """A page of what is held or waited for, of the names that begin with prefix: (locks, next).

        next is what after is for the next page, and "" behind the last one. A page has at most limit
        locks, and may have fewer although there are more. Locks of one page are by name; where the store
        cannot sort, one may come on several pages.
        """
        query = {"prefix": prefix, "limit": limit}
        if after:
            query["after"] = after
        answer = self._ask("GET", "/v1/locks?" + urllib.parse.urlencode(query))
        locks, following = answer.get("locks"), answer.get("next", "")
        if not isinstance(locks, list) or not isinstance(following, str):
            raise Unknown("a yes that does not say what is held")
        return locks, following

    def locks(self, prefix=""):
        """What is held or waited for, of the names that begin with prefix: page after page, as it is read."""
        after = ""
        while True:
            locks, after = self.page(prefix, after, 500)
            yield from locks
            if not after:
                return

    def features(self):
        """What the store behind the server promises."""
        return self._ask("GET", "/v1/features")

    def evict(self, name, handle, reason=""):
        """End the lease of the holder with that handle, which show tells."""
        self._ask("POST", "/v1/evict", {"name": name, "owner": handle, "reason": reason}, yes={"outcome": "done"})

    def _ask(self, method, path, body=None, timeout=None, yes=()):
        """One call: the answer of a yes, which has all that is in yes, or an exception."""
        timeout = self._timeout if timeout is None else max(timeout, 0.001)
        make = http.client.HTTPConnection if self._tls is None else http.client.HTTPSConnection
        kwargs = {} if self._tls is None else {"context": self._tls}
        conn = make(self._host, self._port, timeout=timeout, **kwargs)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps({k: v for k, v in body.items() if v not in (None, "", 0)}).encode()
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        try:
            conn.request(method, self._path + path, body, headers)
            response = conn.getresponse()
            answer = json.loads(response.read())
            status = response.status
        except ssl.SSLCertVerificationError as e:
            raise Refused(0, "certificate", str(e)) from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise Unknown("no answer: %s" % (e or type(e).__name__)) from e
        finally:
            conn.close()
        return _judge(status, answer, dict(yes))


def _judge(status, answer, yes):
    if not isinstance(answer, dict):
        raise Unknown("HTTP %d without an object" % status)
    text, code = answer.get("error", "HTTP %d" % status), answer.get("code", "")
    if status == 200:
        if any(answer.get(k) != v for k, v in yes.items()):
            raise Unknown("a yes to something else")  # of what stands between, or to another call
        return answer
    if status == 409:
        busy = Busy(text, answer.get("holder"))
        busy.code = code
        raise busy
    if status == 410:
        raise Lost(text)
    if answer.get("outcome") == "refused":
        raise Refused(status, code, text)
    raise Unknown(text)  # of this service or of what stands before it


class _Claim:
    """One owner's calls for one name. They are numbered, so that one that comes late is refused."""

    def __init__(self, client, name, mode, limit, note, at_least):
        self._client = client
        self.name = name
        self._at_least = at_least
        owner = base64.b32encode(os.urandom(20)).decode()
        self._same = {"name": name, "owner": owner, "mode": mode, "limit": limit, "note": note}
        self._count, self._silent, self._mutex = 0, 0, threading.Lock()

    def call(self, what, timeout=None, **fields):
        with self._mutex:
            self._count += 1
            number = fields["call"] = self._count
            # Up to this number, no acquire is without an answer: others may be served late.
            fields["answered"] = (self._silent or number) - 1
        yes = {"outcome": "done"}
        if what != "release":
            yes = {"outcome": "granted", "name": self.name, "owner": self._same["owner"]}
        answered = what != "acquire"
        try:
            answer = self._client._ask("POST", "/v1/" + what, {**self._same, **fields}, timeout, yes)
            answered = True
            return answer
        except (Busy, Lost, Refused):
            answered = True
            raise
        finally:
            if not answered:
                with self._mutex:
                    self._silent = self._silent or number

    def acquire(self, ttl, wait):
        """The time by _now from which the grant's waited_ms and ttl_ms count, and the grant."""
        end = None if wait is None else _now() + wait
        silent = _now()  # since when no instance has answered
        patience = ttl if wait is None else min(ttl, max(wait, self._client._timeout))
        while True:
            t0 = _now()
            left = LONGEST_WAIT if end is None else min(max(end - t0, 0), LONGEST_WAIT)
            try:
                grant = self.call("acquire", self._client._timeout + left, ttl_ms=_ms(ttl), wait_ms=_ms(left),
                                  queue=wait != 0, at_least_ms=_ms(self._at_least))
                return t0, grant
            except Busy as e:
                silent = _now()
                if end is not None and silent >= end:
                    raise
                if e.code == "not_yet" or left == 0:
                    time.sleep(PAUSE)
            except Unknown:
                if _now() - silent >= patience or (end is not None and _now() >= end):
                    raise
                time.sleep(PAUSE)

    def renew(self, ttl, timeout):
        return self.call("renew", timeout, ttl_ms=ttl)

    def release(self, until):
        """Release, asked again after no answer until that time. Lost is only raised by the first answer."""
        asked = False
        while True:
            try:
                return self.call("release", min(self._client._timeout, max(until - _now(), PAUSE)),
                                 at_least_ms=_ms(self._at_least))
            except Lost as e:
                if asked:  # either call may have been the one that ended it
                    raise Unknown("released or lost: %s" % e) from e
                raise
            except Unknown:
                asked = True
                if _now() >= until:
                    raise
                time.sleep(PAUSE)

    def give_up(self):
        """Leave the queue, or release what may have been granted, without holding up the caller."""
        def leave():
            try:
                self.release(_now() + self._client._timeout)
            except Error:
                pass  # the place ends by itself in seconds, the grant with its TTL
        threading.Thread(target=leave, name="leasehold-leave").start()


def _ms(seconds):
    return int(seconds * 1000)


class Lease:
    """A Lease is held until it is released, or lost. Use it in a with statement, or call release.

    name    what is held
    token   the fencing token: greater than that of every earlier lease of the name
    lost    a threading.Event, set when the lease is lost
    cause   the Lost that tells why, or None
    """

    def __init__(self, claim, t0, grant, interrupt):
        self._claim, self.name = claim, claim.name
        self.token = int(grant["token"])
        self._ttl = grant["ttl_ms"]
        self.lost, self.cause = threading.Event(), None
        self._changed = threading.Condition()  # guards what follows
        self._deadline = self._until(t0 + grant.get("waited_ms", 0) / 1000, self._ttl)
        self._released = False
        self._process = os.getpid()
        self._interrupt, self._section = interrupt, None  # the thread to end by Lost
        for work in (self._watch, self._renew):
            threading.Thread(target=work, name="leasehold-" + self.name, daemon=True).start()

    @staticmethod
    def _until(since, ttl_ms):
        ttl = ttl_ms / 1000
        return since + ttl - ttl * DRIFT - DRIFT_LEAST

    def __repr__(self):
        return "<Lease %r token %d, %.1f s left>" % (self.name, self.token, self.left())

    def left(self):
        """How many seconds the lease lasts at least, without another renewal; 0 when it is over."""
        with self._changed:
            if self._released or self.cause is not None:
                return 0.0
            return max(self._deadline - _now(), 0.0)

    def check(self):
        """Raise Lost when the lease is over. Call it before each step that only the holder may do."""
        with self._changed:
            if self._released:
                raise Lost("it was released")
            self._expire()
            if self.cause is not None:
                raise Lost(str(self.cause)) from self.cause

    def release(self):
        """Give the lease up. Lost: it had ended before. Unknown: no instance answered until its deadline.
        In a process that was forked off the lease's it does nothing: the lease is not its own."""
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._released:
                return
            self._expire()
            self._released, self._section = True, None
            self._changed.notify_all()
            cause, until = self.cause, self._deadline
        if cause is not None:
            self._claim.give_up()  # the engine may keep it for longer than its holder may count on
            raise Lost(str(cause)) from cause
        self._claim.release(until)

    def __enter__(self):
        self.check()
        with self._changed:
            if self._interrupt:
                self._section = threading.get_ident()
        return self

    def __exit__(self, kind, value, trace):
        if os.getpid() != self._process:
            return False
        with self._changed:  # from here on nothing is raised in this thread
            if self._section is not None and self.cause is not None:
                _raise_in(self._section, None)  # it has not come yet, and is not to come later
            self._section = None
        try:
            self.release()
        except Error:
            if kind is None or isinstance(value, Lost) and value.__cause__ is None and not value.args:
                raise  # with its reason, in place of the bare one that ended the section
        return False

    def _expire(self):
        """The deadline has passed: the lease is lost. _changed is held."""
        if _now() >= self._deadline:
            self._lose(Lost("deadline passed without a renewal"))

    def _lose(self, cause):
        if self.cause is not None or self._released:
            return
        self.cause = cause
        self.lost.set()
        self._changed.notify_all()
        if self._section is not None:
            _raise_in(self._section, Lost)

    def _watch(self):
        """Ends the lease at its deadline, whatever hangs."""
        with self._changed:
            while self.cause is None and not self._released:
                self._changed.wait(min(max(self._deadline - _now(), 0), LOOK_EVERY))
                if not self._released:
                    self._expire()

    def _renew(self):
        pause = third = self._ttl / 3000
        while True:
            due = _now() + pause
            with self._changed:
                while (rest := due - _now()) > 0:
                    if self._changed.wait_for(lambda: self.cause is not None or self._released, min(rest, LOOK_EVERY)):
                        return
                left = self._deadline - _now()
            t0 = _now()
            try:
                grant = self._claim.renew(self._ttl, min(third, left))
            except Lost as e:
                with self._changed:
                    self._lose(e)
                return
            except Error:
                pause = third / 4  # the earlier deadline stands
                continue
            pause = third
            with self._changed:
                if self.cause is None:  # an answer that comes late brings nothing back
                    self._deadline = max(self._deadline, self._until(t0, grant["ttl_ms"]))
                    self._changed.notify_all()


def _raise_in(thread, kind):
    """Raise kind in a thread when it next runs Python code; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
