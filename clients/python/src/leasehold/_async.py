"""The client for asyncio. It speaks HTTP over asyncio's streams: calls can be cancelled, and waits need no threads."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import socket
import ssl
from types import TracebackType
from typing import Any, AsyncIterator, Callable, List, Optional, Set, Tuple, Type, TypeVar, cast

from ._claim import (HEAD_START, LONGEST_PAUSE, LOOK_EVERY, PAUSE, SILENT, Answer, Claim, Ears, Grant, Request, Server,
                     Steps, Term, judge, listens_again, nothing_left, now, read_page)
from ._errors import Error, Lost, Refused, Unknown
from ._types import Details, Features, Lock, Mode

T = TypeVar("T")

# How long a task that was cancelled tries to give up its place or its lease, in seconds.
LONGEST_FAREWELL = 1.0


class AsyncClient:
    """A client of the server at url, for asyncio. It keeps no connection open. Its arguments are Client's.

    Leases are renewed by tasks: code that blocks the event loop for longer than the TTL loses them.
    """

    def __init__(self, url: str, token: Optional[str] = None, *, timeout: float = 5.0,
                 context: Optional[ssl.SSLContext] = None) -> None:
        self._server = Server.at(url, token, timeout)
        self._context = (context or ssl.create_default_context()) if self._server.tls else None

    async def acquire(self, name: str, *, ttl: float = 30.0, wait: Optional[float] = None, mode: Mode = "exclusive",
                      limit: int = 0, weight: int = 1, note: str = "", details: Optional[Details] = None,
                      at_least: float = 0.0, interrupt: bool = True, yields: bool = False,
                      on_wanted: Optional[Callable[[AsyncLease], object]] = None) -> AsyncLease:
        """Take the lock, and return its AsyncLease, which is renewed until it is released.

        Arguments and errors are Client.acquire's. To stop waiting, cancel the task: its place in the
        queue is given up, and so is what may have been granted. An async with statement ends when the
        lease is lost: its task is cancelled, and the statement raises Lost. With interrupt=False it is
        not: see AsyncLease.lost and AsyncLease.check. on_wanted is called by the event loop.
        """
        claim = Claim(self._server, name, mode, limit, weight, note, at_least, details, yields or on_wanted is not None)
        try:
            lease = AsyncLease(self, claim, await self._run(claim.acquire(ttl, wait)), interrupt, on_wanted)
            lease.check()  # the process may have stood still
            claim.unused = False
            return lease
        except BaseException as e:
            if not nothing_left(e, wait) and not isinstance(e, GeneratorExit):
                await self._leave(claim)
            raise

    @contextlib.asynccontextmanager
    async def lock(self, name: str, *, ttl: float = 30.0, wait: Optional[float] = None, mode: Mode = "exclusive",
                   limit: int = 0, weight: int = 1, note: str = "", details: Optional[Details] = None,
                   at_least: float = 0.0, interrupt: bool = True, yields: bool = False,
                   on_wanted: Optional[Callable[[AsyncLease], object]] = None) -> AsyncIterator[AsyncLease]:
        """The lock for an async with statement: it is taken as by acquire, and released at the end."""
        async with await self.acquire(name, ttl=ttl, wait=wait, mode=mode, limit=limit, weight=weight, note=note, details=details,
                                      at_least=at_least, interrupt=interrupt, yields=yields,
                                      on_wanted=on_wanted) as lease:
            yield lease

    async def show(self, name: str) -> Lock:
        """What is known of the lock: token, holders and waiters."""
        return cast(Lock, await self._ask(self._server.show(name)))

    async def page(self, prefix: str = "", after: str = "", limit: int = 100) -> Tuple[List[Lock], str]:
        """A page of the locks that someone holds or waits for: see Client.page."""
        return read_page(await self._ask(self._server.page(prefix, after, limit)))

    async def locks(self, prefix: str = "") -> AsyncIterator[Lock]:
        """The locks of all pages."""
        after = ""
        while True:
            locks, after = await self.page(prefix, after, 500)
            for lock in locks:
                yield lock
            if not after:
                return

    async def features(self) -> Features:
        """What the server's store promises."""
        return cast(Features, await self._ask(self._server.features()))

    async def evict(self, name: str, handle: str, reason: str = "") -> None:
        """End the lease of the holder with that handle, which show has."""
        await self._ask(self._server.evict(name, handle, reason))

    async def _ask(self, request: Request) -> Answer:
        """One call, on a connection of its own. asyncio.wait_for may swallow a cancellation: it is not used."""
        exchange = asyncio.ensure_future(self._exchange(request))
        exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait({exchange}, timeout=max(request.timeout, 0.001))
            if not exchange.done():
                raise Unknown("no answer in %.1f seconds" % request.timeout)
            status, text = exchange.result()
        except ssl.SSLCertVerificationError as e:
            raise Refused(str(e), "certificate") from e
        except (OSError, EOFError, asyncio.LimitOverrunError, http.client.HTTPException) as e:
            raise Unknown("no answer: %s" % (e or type(e).__name__)) from e
        finally:
            exchange.cancel()
        return judge(status, text, request.yes)

    async def _exchange(self, request: Request) -> Tuple[int, bytes]:
        async with self._opened(request) as (status, fields, reader):
            if fields.get("Transfer-Encoding", "").lower() == "chunked":
                return status, b"".join([chunk async for chunk in _chunks(reader)])
            length = fields.get("Content-Length")
            if length is None:
                return status, await reader.read()
            if not length.isdigit():
                raise http.client.HTTPException("a length of %r" % length)
            return status, await reader.readexactly(int(length))

    @contextlib.asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[Tuple[int, http.client.HTTPMessage, asyncio.StreamReader]]:
        """The head of the answer to one call, and what its body is read from."""
        server = self._server
        reader, writer = await asyncio.open_connection(sock=await _dial(server.host, server.port), ssl=self._context,
                                                       server_hostname=server.host if server.tls else None)
        try:
            lines = ["%s %s HTTP/1.1" % (request.method, server.path + request.path)]
            lines += ["%s: %s" % header for header in server.headers(request).items()]
            writer.write("\r\n".join(lines + ["", ""]).encode("latin-1") + (request.body or b""))
            await writer.drain()
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, _, rest = head.partition(b"\r\n")
                status = _status(first)
                if status >= 200:
                    break
            yield status, http.client.parse_headers(io.BytesIO(rest)), reader
        finally:
            writer.transport.abort()  # it must not wait for the other end

    async def _hear(self, request: Request, ears: Ears, deaf: Callable[[], bool]) -> Optional[bool]:
        """Hear one stream until others wait. Return None then, and if there will be no stream; else whether it was open.

        deaf ends it too, because asyncio.wait_for may swallow a cancellation before Python 3.12.
        """
        opening = self._opened(request)
        status, _, reader = await asyncio.wait_for(opening.__aenter__(), request.timeout)
        try:
            if status != 200:
                return False if listens_again(status) else None
            lines = _lines(_chunks(reader))
            while not deaf():
                try:
                    line = await asyncio.wait_for(lines.__anext__(), SILENT)
                except StopAsyncIteration:
                    return True
                if ears.hear(line):
                    break
            return None
        finally:
            await opening.__aexit__(None, None, None)

    async def _run(self, steps: Steps[T]) -> T:
        """Carry out a procedure."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Request):
                    await asyncio.sleep(step)
                    step = steps.send({})
                    continue
                try:
                    answer = await self._ask(step)
                except BaseException as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            steps.close()

    async def _leave(self, claim: Claim) -> None:
        """Leave the queue, or release what may have been granted.

        No task of its own does it: when the event loop ends, it waits for no new task.
        """
        try:
            await self._run(claim.leave(LONGEST_FAREWELL))
        except asyncio.CancelledError:  # as by the end of the loop
            await self._run(claim.leave(LONGEST_FAREWELL))
            raise


async def _dial(host: str, port: int) -> socket.socket:
    """The first connection that comes up to an address of host. Each is tried alone for HEAD_START seconds.

    Not every event loop can do so by itself: uvloop's takes no happy_eyeballs_delay.
    """
    try:  # an address needs no thread
        left = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        left = list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    failure = OSError("no address of %s" % host)
    trying: Set[asyncio.Future[socket.socket]] = set()
    try:
        while left or trying:
            if left:
                trying.add(asyncio.ensure_future(_connect(*left.pop(0))))
            done, _ = await asyncio.wait(trying, timeout=HEAD_START if left else None,
                                         return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                trying.remove(attempt)
                try:
                    return attempt.result()
                except OSError as e:
                    failure = e
        raise failure
    finally:
        for attempt in trying:
            attempt.add_done_callback(_close)
            attempt.cancel()


async def _connect(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        return sock
    except BaseException:
        sock.close()
        raise


def _close(attempt: asyncio.Future[socket.socket]) -> None:
    """Close a connection that came up too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise http.client.BadStatusLine(repr(line))
    return int(code)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise http.client.HTTPException("a chunk of %r bytes" % size) from None
        if length < 0:
            raise http.client.HTTPException("a chunk of %r bytes" % size)
        if length == 0:
            return  # trailers tell nothing of interest
        yield await reader.readexactly(length)
        await reader.readexactly(2)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


class AsyncLease:
    """A lock that is held until it is released, or lost. Use it in an async with statement, or call release."""

    name: str
    """The lock."""
    token: int
    """The fencing token: greater than that of every earlier lease of the lock."""
    lost: asyncio.Event
    """Set when the lease is lost."""
    wanted: asyncio.Event
    """With yields: set when others wait for the lock. They may be gone by then."""

    def __init__(self, client: AsyncClient, claim: Claim, grant: Grant, interrupt: bool,
                 on_wanted: Optional[Callable[[AsyncLease], object]]) -> None:
        self._client, self._claim, self._interrupt, self._on_wanted = client, claim, interrupt, on_wanted
        self.name, self.token, self.lost, self.wanted = claim.name, grant.token, asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._calling = asyncio.Lock()  # held during a renewal: the server refuses one that another has overtaken
        self._term = Term(grant)
        self._section: Optional[asyncio.Task[object]] = None  # the task to cancel
        self._cancelled: Optional[asyncio.Task[object]] = None  # the task that a loss has cancelled
        self._cancelling = 0  # as the section began
        if grant.wanted:
            self._want()
        self._work = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(self._renew())]
        if claim.yields:
            self._work.append(asyncio.ensure_future(self._listen()))

    @property
    def owner(self) -> str:
        """The secret that renews and releases the lease. Keep it out of logs."""
        return self._claim.owner

    @property
    def cause(self) -> Optional[Lost]:
        """Why the lease was lost; None while it is not."""
        return self._term.cause

    def __repr__(self) -> str:
        return "<leasehold.AsyncLease %r token=%d left=%.1f>" % (self.name, self.token, self.left())

    def left(self) -> float:
        """How many seconds the lease lasts at least, without another renewal; 0 when it is over."""
        return self._term.left()

    def check(self) -> None:
        """Raise Lost or Released if the lease is over. Call it before each step that only the holder may do.

        Threads may call it.
        """
        if self._on_loop():
            self._expire()
        elif self._term.late():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._expire)
            lost = self._term.deadline_passed()
            raise Lost(str(lost), lost.code) from lost
        error = self._term.error()
        if error is not None:
            raise error from self.cause

    async def extend(self, ttl: Optional[float] = None) -> float:
        """Renew now, for ttl seconds if that is longer than before, which later renewals keep. Return left().

        Its errors are Lease.extend's.
        """
        self.check()
        async with self._calling:
            await self._renewed(ttl or 0.0)
        self.check()
        return self.left()

    async def release(self) -> None:
        """Give the lock up. To release a lease again does nothing.

        Raise Lost if the lease had ended before, and Unknown if no server answered until its deadline.
        A call that is cancelled tries once more to release.
        """
        if self._term.released:
            return
        self._expire()
        self._term.released, self._section = True, None
        self._stop()
        cause = self.cause
        if cause is not None:
            await self._client._leave(self._claim)  # the store may keep it for longer than its holder may count on
            raise Lost(str(cause), cause.code) from cause
        try:
            await self._client._run(self._claim.release(self._term.deadline))
        except asyncio.CancelledError:
            await self._client._leave(self._claim)
            raise

    async def __aenter__(self) -> AsyncLease:
        self._expire()
        if self.cause is not None:
            await self.release()  # no __aexit__ follows
        self.check()
        if self._interrupt:
            self._section = asyncio.current_task()
            self._cancelling = _cancelling(self._section)
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        self._section = None
        ours = False  # whether the section ended by a cancellation that is nobody's but the lease's
        if self._cancelled is not None:
            rest = _uncancel(self._cancelled)
            ours = kind is asyncio.CancelledError and rest <= self._cancelling
        try:
            await self.release()
        except Error:
            if kind is None or ours:
                raise
        if ours and self.cause is not None:  # the section has released it
            raise Lost(str(self.cause), self.cause.code) from self.cause

    def _on_loop(self) -> bool:
        """Whether the lease's event loop is the caller."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # there is none
            return False

    def _expire(self) -> None:
        if self._term.late():
            self._lose(self._term.deadline_passed())

    def _lose(self, cause: Lost) -> None:
        if self._term.over():
            return
        self._term.cause = cause
        self.lost.set()
        self._stop()
        if self._section is not None and self._section is not asyncio.current_task():  # else the caller raises it
            self._cancelled = self._section
            self._section.cancel()

    def _stop(self) -> None:
        for task in self._work:
            if task is not asyncio.current_task():
                task.cancel()

    async def _watch(self) -> None:
        """End the lease at its deadline, whatever hangs."""
        while not self._term.over():
            await asyncio.sleep(min(self._term.left(), LOOK_EVERY))
            self._expire()

    async def _renew(self) -> None:
        """Renew every third of the TTL, and after an attempt without an answer every twelfth."""
        pause = self._term.third
        while await self._rest(pause):
            async with self._calling:
                try:
                    await self._renewed()
                    pause = self._term.third
                except Error:
                    pause = self._term.third / 4

    async def _rest(self, seconds: float) -> bool:
        """Wait so long. False: the lease is over."""
        due = now() + seconds
        while not self._term.over():
            rest = due - now()
            if rest <= 0:
                return True
            await asyncio.sleep(min(rest, LOOK_EVERY))
        return False

    async def _renewed(self, ttl: float = 0.0) -> None:
        """One renewal, for ttl seconds if that is longer than before. calling is held."""
        ttl, timeout = max(ttl, self._term.ttl), self._term.patience(self._client._server.timeout)
        try:
            grant = await self._client._run(self._claim.renew(ttl, timeout))
        except Error as e:
            self._term.failure = e
            if isinstance(e, Lost):
                self._lose(e)
            raise
        self._expire()  # an answer that comes late brings nothing back
        if not self._term.over():
            self._term.prolong(grant)
            if grant.wanted:
                self._want()

    def _want(self) -> None:
        """Others wait."""
        if self._term.over() or self.wanted.is_set():
            return
        self.wanted.set()
        if self._on_wanted is not None:
            asyncio.get_running_loop().call_soon(self._on_wanted, self)

    def _deaf(self) -> bool:
        return self._term.over() or self.wanted.is_set()

    async def _listen(self) -> None:
        """Listen until others wait. What is not heard, the next renewal tells."""
        ears, pause = Ears(self.owner), PAUSE
        while not self._deaf():
            opened: Optional[bool] = False
            try:
                opened = await self._client._hear(self._client._server.wanted(self.name), ears, self._deaf)
            except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError, http.client.HTTPException):
                pass
            if opened is None:
                if ears.heard:
                    self._want()
                return
            pause = PAUSE if opened else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)


def _cancelling(task: Optional[asyncio.Task[object]]) -> int:
    """How many requests to cancel task are open; 0 before Python 3.11, which does not count them."""
    count = getattr(task, "cancelling", None)
    return cast(int, count()) if count is not None else 0


def _uncancel(task: Optional[asyncio.Task[object]]) -> int:
    """Take back one request to cancel task. Return how many are left."""
    uncancel = getattr(task, "uncancel", None)
    return cast(int, uncancel()) if uncancel is not None else 0
