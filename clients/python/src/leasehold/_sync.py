"""The client for programs with threads."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import io
import os
import selectors
import socket
import ssl
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType
from typing import Any, Callable, Iterator, List, Optional, Tuple, Type, TypeVar, cast

from ._claim import (HEAD_START, LONGEST_PAUSE, LOOK_EVERY, PAUSE, SILENT, Answer, Claim, Ears, Grant, Request, Server,
                     Steps, Term, judge, listens_again, nothing_left, now, read_page)
from ._errors import Error, Lost, Refused, Unknown
from ._types import Details, Features, Lock, Mode

T = TypeVar("T")

# Packages whose threads run one job after another.
POOLS = ("anyio", "concurrent", "multiprocessing", "threading", "trio")

# The pause until a loss that has not come up in the thread of its section is raised there again, in seconds. It
# doubles up to LOOK_EVERY: a look at that thread costs as much as there are threads, and all may have lost leases.
RAISE_AGAIN = 0.1

# Held while a loss is raised, and while one comes up. All leases share it: with one each, two threads in which each
# other's loss comes up could wait for each other.
_raising = threading.RLock()


def _forked() -> None:
    global _raising
    _raising = threading.RLock()  # the thread that held it may be none of this process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Client:
    """A client of the server at url. Threads may share it. It keeps no connection open.

    token is a bearer token, and context an ssl.SSLContext, for a server that asks for them. timeout
    is how many seconds a call may take, beside the time it waits for other holders.
    """

    def __init__(self, url: str, token: Optional[str] = None, *, timeout: float = 5.0,
                 context: Optional[ssl.SSLContext] = None) -> None:
        self._server = Server.at(url, token, timeout)
        self._context = (context or ssl.create_default_context()) if self._server.tls else None

    def acquire(self, name: str, *, ttl: float = 30.0, wait: Optional[float] = None, mode: Mode = "exclusive",
                limit: int = 0, weight: int = 1, note: str = "", details: Optional[Details] = None,
                at_least: float = 0.0, interrupt: bool = True, yields: bool = False,
                on_wanted: Optional[Callable[[Lease], object]] = None) -> Lease:
        """Take the lock, and return its Lease, which is renewed until it is released.

        ttl is how many seconds the lease lasts without a renewal. wait is how many seconds to wait
        for other holders: None waits as long as it takes, 0 tries once. mode is "exclusive" or
        "shared": the weights of all holders are at most limit together (0: no limit). weight is 1 by
        default; a larger one needs a store with weights, see features. note tells people who holds it,
        and what for. details say it in fields, and the note is their text; what they leave out is filled
        with the host, user, program and process id. at_least keeps the name taken for so many seconds,
        even if the lease is released earlier.

        A with statement ends when the lease is lost: Lost is raised in its thread, as soon as that
        thread runs Python code. With interrupt=False it is not: see Lease.lost and Lease.check. A Lost
        may be an outer statement's: catch it around the outermost one.

        With yields, Lease.wanted is set once others wait for the lock, so that a long job can release it
        at its next safe point. on_wanted, which implies yields, is then called once, with the lease, in
        a thread of its own. Both need a store with tells, see features: else the call is Refused.

        It raises Busy if the wait was not long enough, TooHeavy if weight exceeds limit, or the limit
        that an operator has set, and Unknown if no server answers within ttl, or within wait if that is
        shorter. Nothing stays taken then.
        """
        claim = Claim(self._server, name, mode, limit, weight, note, at_least, details, yields or on_wanted is not None)
        term: Optional[Term] = None
        try:
            grant = self._run(claim.acquire(ttl, wait))
            term = Term(grant)
            lease = Lease(self, claim, grant, term, interrupt, on_wanted)
            lease.check()  # the process may have stood still
            claim.unused = False
            return lease
        except BaseException as e:
            if term is not None:
                term.released = True  # no thread renews a lease that nobody got
            if not nothing_left(e, wait):
                self._leave(claim)
            raise

    def lock(self, name: str, *, ttl: float = 30.0, wait: Optional[float] = None, mode: Mode = "exclusive",
             limit: int = 0, weight: int = 1, note: str = "", details: Optional[Details] = None,
             at_least: float = 0.0, interrupt: bool = True, yields: bool = False,
             on_wanted: Optional[Callable[[Lease], object]] = None) -> _Section:
        """The lock for a with statement, or as a decorator: taken as by acquire, and released at the end."""
        def acquire() -> Lease:
            return self.acquire(name, ttl=ttl, wait=wait, mode=mode, limit=limit, weight=weight, note=note, details=details,
                                at_least=at_least, interrupt=interrupt, yields=yields, on_wanted=on_wanted)
        return _Section(acquire)

    def show(self, name: str) -> Lock:
        """What is known of the lock: token, holders and waiters."""
        return cast(Lock, self._ask(self._server.show(name)))

    def page(self, prefix: str = "", after: str = "", limit: int = 100) -> Tuple[List[Lock], str]:
        """A page of the locks that someone holds or waits for, with names that begin with prefix.

        The second value is what after is for the next page, or "" after the last one. A page may
        have fewer than limit locks although more follow. Locks of a page are sorted by name; where the
        store cannot sort, a lock may be on several pages.
        """
        return read_page(self._ask(self._server.page(prefix, after, limit)))

    def locks(self, prefix: str = "") -> Iterator[Lock]:
        """The locks of all pages."""
        after = ""
        while True:
            locks, after = self.page(prefix, after, 500)
            yield from locks
            if not after:
                return

    def features(self) -> Features:
        """What the server's store promises."""
        return cast(Features, self._ask(self._server.features()))

    def evict(self, name: str, handle: str, reason: str = "") -> None:
        """End the lease of the holder with that handle, which show has."""
        self._ask(self._server.evict(name, handle, reason))

    def _ask(self, request: Request) -> Answer:
        """One call, on a connection of its own. All of it ends within its timeout, but for looking up the host."""
        conn = self._connection(now() + max(request.timeout, 0.001))
        try:
            self._send(conn, request)
            response = conn.getresponse()
            status, text = response.status, response.read()
        except ssl.SSLCertVerificationError as e:
            raise Refused(str(e), "certificate") from e
        except (OSError, http.client.HTTPException) as e:
            raise Unknown("no answer: %s" % (e or type(e).__name__)) from e
        finally:
            conn.end()
        return judge(status, text, request.yes)

    def _connection(self, until: float) -> _Connection:
        return _Connection(self._server.host, self._server.port, self._context, until)

    def _send(self, conn: _Connection, request: Request) -> None:
        conn.request(request.method, self._server.path + request.path, request.body, self._server.headers(request))

    def _run(self, steps: Steps[T]) -> T:
        """Carry out a procedure."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Request):
                    time.sleep(step)
                    step = steps.send({})
                    continue
                try:
                    answer = self._ask(step)
                except BaseException as e:
                    if _interrupts(e):  # the loss is no answer to the call
                        raise
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            steps.close()

    def _leave(self, claim: Claim) -> None:
        """Leave the queue, or release what may have been granted, without holding up the caller."""
        steps = claim.leave(self._server.timeout)
        try:
            threading.Thread(target=self._run, args=(steps,), name="leasehold-leave").start()
        except RuntimeError:  # as when the interpreter ends
            self._run(steps)


class Lease:
    """A lock that is held until it is released, or lost. Use it in a with statement, or call release.

    Threads may share it. A process that is forked off does not own it: there, release does nothing.
    """

    name: str
    """The lock."""
    token: int
    """The fencing token: greater than that of every earlier lease of the lock."""
    lost: threading.Event
    """Set when the lease is lost."""
    wanted: threading.Event
    """With yields: set when others wait for the lock. They may be gone by then."""

    def __init__(self, client: Client, claim: Claim, grant: Grant, term: Term, interrupt: bool,
                 on_wanted: Optional[Callable[[Lease], object]]) -> None:
        self._client, self._claim, self._interrupt, self._on_wanted = client, claim, interrupt, on_wanted
        self.name, self.token, self.lost, self.wanted = claim.name, grant.token, threading.Event(), threading.Event()
        self._process = os.getpid()
        self._calling = threading.Lock()  # held during a renewal: the server refuses one that another has overtaken
        # What follows is guarded by mutex. The thread of a section takes it by itself, and not by Condition, whose
        # methods are in Python: a Lost that is raised there would leave it locked.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._term = term
        self._section: Optional[int] = None  # the thread to end by Lost
        self._job: Optional[FrameType] = None  # what that thread ran when it entered the section
        self._loss: Optional[Type[_Raised]] = None  # what has yet to come up there
        self._raised: Optional[_Raised] = None  # what has come up there
        self._stream: Optional[socket.socket] = None  # of events
        if grant.wanted:
            self._want()
        for work in (self._watch, self._renew) + ((self._listen,) if claim.yields else ()):
            threading.Thread(target=work, name="leasehold-" + self.name, daemon=True).start()

    @property
    def owner(self) -> str:
        """The secret that renews and releases the lease. Keep it out of logs."""
        return self._claim.owner

    @property
    def cause(self) -> Optional[Lost]:
        """Why the lease was lost; None while it is not."""
        return self._term.cause

    def __repr__(self) -> str:
        return "<leasehold.Lease %r token=%d left=%.1f>" % (self.name, self.token, self.left())

    def left(self) -> float:
        """How many seconds the lease lasts at least, without another renewal; 0 when it is over.

        Pass it as the timeout of calls that block.
        """
        with self._mutex:
            return self._term.left()

    def check(self) -> None:
        """Raise Lost or Released if the lease is over. Call it before each step that only the holder may do."""
        with self._mutex:
            self._expire()
            error = self._term.error()
        if error is not None:
            raise error from self.cause

    def extend(self, ttl: Optional[float] = None) -> float:
        """Renew now, for ttl seconds if that is longer than before, which later renewals keep. Return left().

        That is less than ttl if an earlier call had no answer: the server may still serve it. Raise
        Lost or Released if the lease is over, and Unknown if there was no answer: the earlier deadline
        stands then.
        """
        self.check()
        with self._calling:
            self._renewed(ttl or 0.0)
        self.check()
        return self.left()

    def release(self) -> None:
        """Give the lock up. To release a lease again does nothing.

        Raise Lost if the lease had ended before, and Unknown if no server answered until its deadline.
        A call that is interrupted, as by a signal, goes on in a thread of its own.
        """
        if os.getpid() != self._process:
            return
        try:
            self._release()
        except BaseException as e:
            if _interrupts(e) or not isinstance(e, Error):
                self._abandon()
            raise

    def _release(self) -> None:
        with self._mutex:
            if self._term.released:
                return
            self._expire()
            self._end()
            cause, until = self.cause, self._term.deadline
        if cause is not None:
            self._client._leave(self._claim)  # the store may keep it for longer than its holder may count on
            raise Lost(str(cause), cause.code) from cause
        self._client._run(self._claim.release(until))

    def __enter__(self) -> Lease:
        try:
            with self._mutex:  # no loss comes in between
                self.check()
                if self._interrupt:
                    self._section, self._job = threading.get_ident(), _job()
        except Lost:
            self._abandon()  # no __exit__ follows
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if os.getpid() != self._process:
            return
        with self._mutex:  # if the loss comes up before the section is None, _watch gives the lease back
            if self._section is not None and self._loss is not None and _runs(self._section, self._job):
                # It may not have come yet, and must not come later. If it was another lease's, that one raises it again.
                _raise_in(self._section, None)
            self._section = self._job = None
        for inner in _unended(value):
            inner._abandon()
        try:
            self.release()
        except Error as e:
            if kind is None or _interrupts(e) or _interrupts(value) and isinstance(e, Lost):
                raise  # with the reason

    def _abandon(self) -> None:
        """Release it without holding up the caller."""
        if os.getpid() != self._process:
            return
        with self._mutex:
            self._end()
        self._client._leave(self._claim)

    def _end(self) -> None:
        """Renew it no more. The mutex is held."""
        self._term.released = True
        self._section = self._job = None
        self._changed.notify_all()
        self._hush()

    def _expire(self) -> None:
        """Lose the lease if its deadline has passed. The mutex is held."""
        if self._term.late():
            self._lose(self._term.deadline_passed())

    def _lose(self, cause: Lost) -> None:
        """The mutex is held."""
        if self._term.over():
            return
        self._term.cause = cause
        self.lost.set()
        self._changed.notify_all()
        self._hush()
        if self._section != threading.get_ident():  # else the caller raises it
            self._loss = _loss_of(self)
            self._end_section()

    def _end_section(self) -> None:
        """Raise Lost in the thread of the section, unless it runs another job now. The mutex is held."""
        if self._section is not None and self._loss is not None and _runs(self._section, self._job):
            # Whoever holds it may wait for this lease, in a handler of a signal for example. It is tried again.
            if _raising.acquire(blocking=False):
                try:
                    if self._loss is not None:  # else it has come up meanwhile
                        _raise_in(self._section, self._loss)
                finally:
                    _raising.release()

    def _watch(self) -> None:
        """End the lease at its deadline, whatever hangs, and its section with it."""
        with self._changed:
            while not self._term.over():
                self._changed.wait(min(self._term.left(), LOOK_EVERY))
                self._expire()
            pause = RAISE_AGAIN
            while self._section is not None and self._loss is not None:
                self._changed.wait(pause)
                pause = min(2 * pause, LOOK_EVERY)
                self._end_section()
            if self._section is not None and self._raised is not None:
                self._changed.wait(LOOK_EVERY)  # the section ends, or the loss has left the frame in which it came up
        if self in _unended(self._raised):  # that was the section's own __exit__, which gave nothing back
            self._abandon()
        self._raised = None

    def _renew(self) -> None:
        """Renew every third of the TTL, and after an attempt without an answer every twelfth."""
        pause = self._term.third
        while self._rest(pause):
            with self._calling:
                try:
                    self._renewed()
                    pause = self._term.third
                except Error:
                    pause = self._term.third / 4

    def _rest(self, seconds: float) -> bool:
        """Wait so long. False: the lease is over."""
        due = now() + seconds
        with self._changed:
            while not self._term.over():
                rest = due - now()
                if rest <= 0:
                    return True
                self._changed.wait(min(rest, LOOK_EVERY))
        return False

    def _renewed(self, ttl: float = 0.0) -> None:
        """One renewal, for ttl seconds if that is longer than before. calling is held."""
        with self._mutex:
            ttl, timeout = max(ttl, self._term.ttl), self._term.patience(self._client._server.timeout)
        try:
            grant = self._client._run(self._claim.renew(ttl, timeout))
        except Error as e:
            if _interrupts(e):
                raise
            with self._mutex:
                self._term.failure = e
                if isinstance(e, Lost):
                    self._lose(e)
            raise
        with self._mutex:
            self._expire()  # an answer that comes late brings nothing back
            if not self._term.over():
                self._term.prolong(grant)
                self._changed.notify_all()
        if grant.wanted:
            self._want()

    def _want(self) -> None:
        """Others wait."""
        with self._mutex:
            if self._term.over():
                return
            self.wanted.set()
            self._changed.notify_all()
            self._hush()
            work, self._on_wanted = self._on_wanted, None
        if work is not None:
            try:
                threading.Thread(target=work, args=(self,), name="leasehold-wanted", daemon=True).start()
            except RuntimeError:  # there are too many: the next renewal tries again
                self._on_wanted = work

    def _deaf(self) -> bool:
        return self._term.over() or self.wanted.is_set()

    def _hush(self) -> None:
        """End the stream. The mutex is held."""
        if self._stream is not None:
            with contextlib.suppress(OSError):  # it has ended
                socket.socket.shutdown(self._stream, socket.SHUT_RDWR)  # TLS is left as it is: a thread reads

    def _listen(self) -> None:
        """Listen until others wait. What is not heard, the next renewal tells."""
        pause = PAUSE
        while not self._deaf():
            opened: Optional[bool] = False
            conn = self._client._connection(now() + self._client._server.timeout)
            try:
                opened = self._hear(conn)
            except (OSError, http.client.HTTPException):
                pass
            finally:
                with self._mutex:
                    self._stream = None
                conn.end()
            if opened is None:
                return
            pause = PAUSE if opened else min(2 * pause, LONGEST_PAUSE)
            with self._changed:
                if not self._deaf():
                    self._changed.wait(pause)

    def _hear(self, conn: _Connection) -> Optional[bool]:
        """Hear one stream to its end. Return whether it was open; None: there will be none."""
        ears = Ears(self.owner)
        self._client._send(conn, self._client._server.wanted(self.name))
        with self._mutex:
            if self._deaf():
                return None
            self._stream = conn.raw
        response = conn.getresponse()
        if response.status != 200:
            return False if listens_again(response.status) else None
        while True:
            conn.until = now() + SILENT
            line = response.readline()
            if not line:
                return True
            if ears.hear(line):
                self._want()
                return None


class _Section(contextlib.ContextDecorator):
    """What lock returns: a with statement, or one for each call of a function.

    Were it contextlib's, the loss of an outer section could leave its lease to the garbage collector: see _unended.
    """

    _lease: Optional[Lease] = None
    _entered = False

    def __init__(self, acquire: Callable[[], Lease]) -> None:
        self._acquire = acquire

    def _recreate_cm(self) -> _Section:
        return _Section(self._acquire)

    def __enter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("each with statement needs a lock() of its own")
        self._entered = True
        self._lease = self._acquire()
        return self._lease.__enter__()

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        cast(Lease, self._lease).__exit__(kind, value, trace)


class _Connection(http.client.HTTPConnection):
    """A connection that gives up at a time, by now(), whatever each byte takes."""

    raw: Optional[socket.socket] = None

    def __init__(self, host: str, port: int, context: Optional[ssl.SSLContext], until: float) -> None:
        super().__init__(host, port)
        self._context, self.until = context, until

    def connect(self) -> None:
        self.raw = _dial(self.host, self.port, self.until)
        self.raw.settimeout(self.rest())
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.raw = self._context.wrap_socket(self.raw, server_hostname=self.host)
        self.sock = cast(socket.socket, _Timed(self))

    def end(self) -> None:
        """Close it for its answer too, which close leaves open."""
        self.close()
        if self.raw is not None:
            self.raw.close()

    def rest(self) -> float:
        rest = self.until - now()
        if rest <= 0:
            raise socket.timeout("timed out")
        return rest


class _Timed(io.RawIOBase):
    """What http.client needs of a connection's socket."""

    def __init__(self, conn: _Connection) -> None:
        self._conn = conn

    def sendall(self, data: bytes) -> None:
        raw = cast(socket.socket, self._conn.raw)
        raw.settimeout(self._conn.rest())  # of all of it
        raw.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._conn))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = cast(socket.socket, self._conn.raw)
        raw.settimeout(self._conn.rest())
        return raw.recv_into(buffer)


def _dial(host: str, port: int, until: float) -> socket.socket:
    """The first connection that comes up to an address of host. Each is tried alone for HEAD_START seconds."""
    left = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError("no address of %s" % host)
    with selectors.DefaultSelector() as trying:
        try:
            while left or trying.get_map():
                if left:
                    family, kind, protocol, _, address = left.pop(0)
                    try:
                        sock = socket.socket(family, kind, protocol)
                        trying.register(sock, selectors.EVENT_WRITE)
                        sock.setblocking(False)
                        code = sock.connect_ex(address)
                    except OSError as e:
                        failure = e
                        continue
                    if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                        failure = OSError(code, os.strerror(code))
                        trying.unregister(sock)
                        sock.close()
                        continue
                rest = until - now()
                if rest <= 0:
                    raise socket.timeout("timed out")
                for key, _ in trying.select(min(rest, HEAD_START) if left else rest):
                    sock = cast(socket.socket, key.fileobj)
                    trying.unregister(sock)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        return sock
                    failure = OSError(code, os.strerror(code))
                    sock.close()
            raise failure
        finally:
            for key in list(trying.get_map().values()):
                cast(socket.socket, key.fileobj).close()


class _Raised(Lost):
    """A loss that was raised in the thread of a section. Its class, which no one else's is, tells whose and why."""

    lease: Lease

    def __init__(self) -> None:
        cause = cast(Lost, self.lease.cause)
        super().__init__(str(cause), cause.code)
        with _raising:
            self.lease._loss, self.lease._raised = None, self
        # If it was raised again before that, the second comes up at the end of the with, in the place of this one.

    def __reduce__(self) -> Tuple[Any, ...]:
        return Lost, (str(self), self.code)


def _loss_of(lease: Lease) -> Type[_Raised]:
    return cast(Type[_Raised], type("Lost", (_Raised,), {"__module__": Lost.__module__, "lease": lease}))


def _interrupts(error: Optional[BaseException]) -> bool:
    """Whether it is a loss that was raised in a thread: of this section, or of an outer one."""
    return isinstance(error, _Raised)


def _unended(error: Optional[BaseException]) -> Iterator[Lease]:
    """The leases whose __enter__ or __exit__ a loss has ended, perhaps before its first line."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__ if _interrupts(error) else None):
            if frame.f_code in (Lease.__enter__.__code__, Lease.__exit__.__code__,
                                _Section.__enter__.__code__, _Section.__exit__.__code__):
                ended = frame.f_locals.get("self")  # a frame that was cleared has none
                lease = ended._lease if isinstance(ended, _Section) else ended
                if lease is not None:
                    yield lease
        error = error.__context__


def _job() -> FrameType:
    """The frame that lasts as long as what the calling thread does now: above a pool's, if there is one."""
    job = sys._getframe()
    while job.f_back is not None and job.f_back.f_globals.get("__name__", "").partition(".")[0] not in POOLS:
        job = job.f_back
    return job


def _runs(thread: int, job: Optional[FrameType]) -> bool:
    """Whether the thread is still in that frame."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame is not job:
        frame = frame.f_back
    return frame is not None


def _raise_in(thread: int, kind: Optional[Type[BaseException]]) -> None:
    """Raise kind in a thread when it next runs Python code; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
