"""Tests of AsyncClient against the real command: see harness.py."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
import unittest
import unittest.mock

from leasehold import AsyncClient, Busy, Client, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown

from harness import DROP, HANG, LONG, SHORT, Front, Instance, Program, Served, guarded, silent, telling


async def until(condition):
    end = time.monotonic() + LONG
    while True:
        now = condition()
        if asyncio.iscoroutine(now):
            now = await now
        if now:
            return
        if time.monotonic() > end:
            raise AssertionError("it never comes")
        await asyncio.sleep(0.01)


class TestAsyncClient(Served, unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        super().setUp()
        self.client = AsyncClient(self.server.url)

    async def holders(self):
        return (await self.client.show(self.name))["holders"]

    async def waiters(self):
        return (await self.client.show(self.name))["waiters"]

    async def test_only_one_holds_and_tokens_grow(self):
        async with self.client.lock(self.name, note="first") as first:
            with self.assertRaises(Busy) as refused:
                await self.client.acquire(self.name, wait=0)
            self.assertEqual(refused.exception.holder["note"], "first")
            self.assertEqual((await self.holders())[0]["token"], str(first.token))
            self.assertNotIn(first.owner, repr(first))
        async with self.client.lock(self.name, wait=0) as second:
            self.assertGreater(second.token, first.token)
        self.assertEqual([lock async for lock in self.client.locks(self.name)], [])
        with self.assertRaises(Released):
            first.check()
        self.assertTrue((await self.client.features())["fencing"])

    async def test_a_long_list_is_read(self):
        async with contextlib.AsyncExitStack() as stack:
            names = ["%s/%s%d" % (self.name, "n" * 400, i) for i in range(20)]  # an answer in chunks
            for name in names:
                await stack.enter_async_context(self.client.lock(name, wait=0))
            self.assertEqual(sorted({lock["name"] async for lock in self.client.locks(self.name)}), sorted(names))
            locks, following = await self.client.page(self.name, limit=2)
            self.assertLessEqual(len(locks), 2)
            self.assertTrue(following)

    async def test_weights_count_up_to_the_limit(self):
        shared = {"mode": "shared", "limit": 5, "wait": 0}
        async with self.client.lock(self.name, weight=3, **shared):
            with self.assertRaises(Busy):
                await self.client.acquire(self.name, weight=3, **shared)
            async with await self.client.acquire(self.name, weight=2, **shared):
                self.assertEqual((await self.client.show(self.name))["used"], 5)
        with self.assertRaises(TooHeavy):
            await self.client.acquire(self.name, mode="shared", limit=2, weight=3)

    async def test_waiters_are_served_in_order(self):
        lease, served, tasks = await self.client.acquire(self.name), [], []

        async def wait(i):
            async with self.client.lock(self.name, wait=LONG):
                served.append(i)
        for i in range(3):
            tasks.append(asyncio.create_task(wait(i)))

            async def queued():
                return len(await self.waiters()) == i + 1
            await until(queued)
        await lease.release()
        await asyncio.gather(*tasks)
        self.assertEqual(served, [0, 1, 2])

    async def test_lease_is_renewed(self):
        async with self.client.lock(self.name, ttl=2) as lease:
            first = lease._term.deadline
            await until(lambda: lease._term.deadline > first + 2)
            with self.assertRaises(Busy):
                await self.client.acquire(self.name, wait=0.1)

    async def test_a_holder_hears_that_others_wait(self):
        client, calls = AsyncClient(telling(self, self.server).url), []
        async with client.lock(self.name, ttl=10 * LONG, on_wanted=calls.append) as lease:
            with self.assertRaises(Busy):
                await client.acquire(self.name, wait=0)
            await lease.extend()
            self.assertFalse(lease.wanted.is_set())  # by one that passed by
            waiter = asyncio.create_task(client.acquire(self.name, wait=LONG))
            await asyncio.wait_for(lease.wanted.wait(), LONG)
            await until(lambda: calls == [lease])
            await lease.extend()
        async with await waiter as second:
            self.assertGreater(second.token, lease.token)
        self.assertEqual(calls, [lease])
        await until(lambda: len(asyncio.all_tasks()) == 1)

    async def test_a_notice_that_is_lost_comes_with_a_renewal(self):
        server = telling(self, self.server)
        for says in (HANG, b"event: open\ndata: {}\n\n"):  # a proxy that keeps the stream back, and one that cuts it
            front = Front(self, server.url)
            front.says = {"/v1/events": says}
            async with AsyncClient(front.url).lock(self.name, ttl=6, yields=True) as lease:
                waiter = asyncio.create_task(AsyncClient(server.url).acquire(self.name, wait=LONG))
                await asyncio.wait_for(lease.wanted.wait(), LONG)
            await (await waiter).release()

    async def test_a_lease_that_ends_as_an_event_comes_listens_no_more(self):
        client, reader = AsyncClient(telling(self, self.server).url), asyncio.StreamReader()
        answers = client._opened

        @contextlib.asynccontextmanager
        async def opened(request):
            if request.path.startswith("/v1/events"):
                yield 200, {}, reader
            else:
                async with answers(request) as answer:
                    yield answer
        client._opened = opened
        lease = await client.acquire(self.name, ttl=10 * LONG, yields=True)
        listening = lease._work[-1]
        await until(lambda: reader._waiter)
        reader.feed_data(b"1\r\n\n\r\n")
        await asyncio.sleep(0)  # the line is read, and asyncio.wait_for has not returned it
        await lease.release()
        self.assertTrue((await asyncio.wait({listening}, timeout=LONG / 4))[0])

    async def test_details_say_who_holds(self):
        async with self.client.lock(self.name, details={"text": "nightly", "labels": {"team": "payments"}}):
            holder = (await self.holders())[0]
        self.assertEqual((holder["note"], holder["details"]["labels"]), ("nightly", {"team": "payments"}))
        self.assertEqual(holder["details"]["host"], socket.gethostname())

    async def test_a_cancelled_wait_leaves_no_place(self):
        async with self.client.lock(self.name):
            task = asyncio.create_task(self.client.acquire(self.name))
            await until(self.waiters)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(await self.waiters(), [])

    async def test_the_end_of_the_loop_leaves_no_grant(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": DROP}

        async def main():
            task = asyncio.ensure_future(AsyncClient(front.url, timeout=LONG).acquire(self.name, ttl=10 * LONG, at_least=10 * LONG))
            await until(lambda: front.dropped)
            task.cancel()  # asyncio.run ends before the release is answered
        await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(main()))
        self.assertEqual(await self.holders(), [])
        await (await self.client.acquire(self.name, at_least=10 * LONG)).release()
        self.assertEqual(len(await self.holders()), 1)

    async def test_a_cancelled_section_releases(self):
        async def hold():
            async with self.client.lock(self.name, ttl=LONG):
                await asyncio.sleep(LONG)
        task = asyncio.create_task(hold())
        await until(self.holders)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(await self.holders(), [])

    async def test_an_exception_of_the_section_releases(self):
        with self.assertRaises(ZeroDivisionError):
            async with self.client.lock(self.name):
                1 / 0
        await (await self.client.acquire(self.name, wait=0)).release()

    async def test_eviction_ends_the_section(self):
        with self.assertRaises(Lost) as lost:
            async with self.client.lock(self.name, ttl=3) as lease:
                await self.client.evict(self.name, (await self.holders())[0]["handle"], "maintenance")
                await asyncio.sleep(LONG)
                self.fail("it goes on")
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(lost.exception.code, "evicted")
        self.assertIn("maintenance", str(lost.exception))
        if hasattr(asyncio.Task, "cancelling"):
            self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_a_hung_server_ends_the_section_before_another_holds(self):
        hung, left = Instance(self), []

        async def other():
            async with self.client.lock(self.name, wait=LONG):
                left.append(lease.left())  # by the clock: a busy loop may run the section's task late
        with self.assertRaises(Lost):
            async with AsyncClient(hung.url).lock(self.name, ttl=3) as lease:
                waiter = asyncio.create_task(other())
                await until(self.waiters)
                hung.stop()
                await asyncio.sleep(LONG)
                self.fail("it goes on")
        await waiter
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(left, [0])

    async def test_a_passed_deadline_tells_why(self):
        front = Front(self, self.server.url)
        lease = await AsyncClient(front.url).acquire(self.name, ttl=3)
        front.says = {"/v1/renew": b'{"error": "it rests"}'}
        await asyncio.wait_for(lease.lost.wait(), LONG)
        with self.assertRaises(Lost) as lost:
            await lease.release()
        for error in (lease.cause, lost.exception):
            self.assertEqual(error.code, "deadline")
            # The last attempt may begin when no time is left for an answer.
            self.assertRegex(str(error), "^the deadline passed without a renewal: (an answer to another call|no answer in)")
        self.assertIsInstance(lease.cause.__cause__, Unknown)

    async def test_losses_of_two_sections_end_both(self):
        hung = Instance(self)
        client = AsyncClient(hung.url)
        with self.assertRaises(Lost):
            async with client.lock(self.name, ttl=2), client.lock(self.name + "/inner", ttl=2):
                hung.stop()
                await asyncio.sleep(LONG)
                self.fail("it goes on")
        if hasattr(asyncio.Task, "cancelling"):
            self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_a_section_that_is_not_interrupted_can_ask(self):
        hung = Instance(self)
        lease = await AsyncClient(hung.url).acquire(self.name, ttl=2, interrupt=False)
        with self.assertRaises(Lost):
            async with lease:
                hung.stop()
                await asyncio.wait_for(lease.lost.wait(), LONG)
                with self.assertRaises(Lost):
                    lease.check()
                self.assertEqual(lease.left(), 0)

    async def test_a_busy_loop_that_missed_its_deadline_can_ask(self):
        hung = Instance(self)
        lease = await AsyncClient(hung.url).acquire(self.name, ttl=1)
        hung.stop()
        time.sleep(1)
        self.assertEqual(lease.left(), 0)
        with self.assertRaises(Lost):
            lease.check()

    async def test_a_thread_can_ask(self):
        asked = []

        def ask():
            try:
                lease.check()
            except Exception as e:
                asked.append(e)

        async def section():
            async with lease:
                await asyncio.sleep(LONG)

        lease = await self.client.acquire(self.name, ttl=10 * LONG)
        task = asyncio.create_task(section())
        await asyncio.to_thread(lease.check)
        lease._term.deadline = 0.0
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()  # the loop stands still: it does not look by itself
        self.assertEqual([type(e) for e in asked], [Lost])
        with self.assertRaises(Lost):
            await asyncio.wait_for(task, LONG / 2)

    async def test_a_killed_server_that_comes_back_costs_no_lease_and_no_wait(self):
        first = Instance(self)
        client = AsyncClient(first.url)
        async with client.lock(self.name, ttl=LONG) as lease:
            waiter = asyncio.create_task(client.acquire(self.name, wait=LONG))
            await until(self.waiters)
            renewed = lease._term.deadline
            first.kill()
            Instance(self, first.address)
            await until(lambda: lease._term.deadline > renewed)
            lease.check()
        await (await waiter).release()

    async def test_the_lease_counts_from_before_the_call(self):
        front = Front(self, self.server.url)
        front.late = 1
        client = AsyncClient(front.url, timeout=LONG)
        lease = await client.acquire(self.name, ttl=LONG)
        self.assertLess(lease.left(), LONG - 1)
        self.assertLess(await lease.extend(), LONG - 1)
        with self.assertRaises(Lost):  # it was over when the answer came
            await client.acquire(self.name + "/short", ttl=0.5)

    @unittest.skipUnless(hasattr(asyncio.Task, "cancelling"), "this Python does not count cancellations")
    async def test_a_cancellation_beside_the_loss_stays_one(self):
        leases = []

        async def hold():
            async with self.client.lock(self.name, ttl=LONG) as lease:
                leases.append(lease)
                await asyncio.sleep(LONG)
        task = asyncio.create_task(hold())
        await until(lambda: leases)
        leases[0]._lose(Lost("maintenance"))
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task

    @unittest.skipUnless(hasattr(asyncio.Task, "cancelling"), "this Python does not count cancellations")
    async def test_a_release_inside_takes_the_cancellation_back(self):
        for swallow in ((), (Lost,)):
            with self.assertRaises(Lost):
                async with self.client.lock(self.name, ttl=LONG) as lease:
                    asyncio.get_running_loop().call_soon(lease._lose, Lost("maintenance"))
                    try:
                        await asyncio.sleep(LONG)
                    finally:
                        with contextlib.suppress(*swallow):
                            await lease.release()
            self.assertEqual(asyncio.current_task().cancelling(), 0)
        with self.assertRaises(asyncio.TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(LONG)

    async def test_extend_renews_at_once_and_for_longer(self):
        async with self.client.lock(self.name, ttl=LONG) as lease:
            before = lease._term.deadline
            await lease.extend()
            self.assertGreater(lease._term.deadline, before)
            self.assertGreater(await lease.extend(10 * LONG), 8 * LONG)
            self.assertGreater(await lease.extend(1), 8 * LONG)  # never shorter
            self.assertGreater((await self.holders())[0]["left_ms"], 8000 * LONG)
            await asyncio.gather(*(lease.extend() for _ in range(20)))
        with self.assertRaises(Released):
            await lease.extend()

    async def test_a_renewal_waits_for_its_answer_no_longer_than_timeout_or_a_third(self):
        client, asked = AsyncClient(self.server.url, timeout=0.5), []
        answers = client._ask

        async def ask(request):
            if request.path == "/v1/renew":
                asked.append(request.timeout)
            return await answers(request)

        client._ask = ask
        async with client.lock(self.name, ttl=3) as lease:
            await until(lambda: asked)
            self.assertLessEqual(asked[0], 0.5)
        client._server = client._server._replace(timeout=LONG)
        async with client.lock(self.name, ttl=6) as lease:
            del asked[:]
            await lease.extend()
            self.assertLessEqual(asked[0], 2)

    async def test_no_renewal_follows_the_release(self):
        front = Front(self, self.server.url)
        lease = await AsyncClient(front.url).acquire(self.name, ttl=10 * LONG)
        async with lease._calling:
            extends = asyncio.create_task(lease.extend())
            await asyncio.sleep(0)  # it waits for its turn
            await lease.release()
        with self.assertRaises(Released):
            await extends
        self.assertEqual([call.get("ttl_ms", 0) for call in front.calls], [10000 * LONG, 0])

    async def test_a_section_that_begins_too_late_gives_its_lease_back(self):
        lease = await self.client.acquire(self.name, ttl=10 * LONG)
        lease._term.deadline = 0.0
        with self.assertRaises(Lost):
            async with lease:
                self.fail("it begins")
        self.assertEqual(await self.holders(), [])

    async def test_extend_tells_a_loss_and_no_answer(self):
        front = Front(self, self.server.url)
        lease = await AsyncClient(front.url, timeout=2).acquire(self.name, ttl=LONG)
        front.says = {"/v1/renew": HANG}
        with self.assertRaises(Unknown):
            await lease.extend()
        front.says = {}
        await self.client.evict(self.name, (await self.holders())[0]["handle"], "maintenance")
        with self.assertRaises(Lost):
            await lease.extend()
        self.assertTrue(lease.lost.is_set())

    async def test_lost_answers_cost_nothing(self):
        front = Front(self, self.server.url)
        client = AsyncClient(front.url)
        front.says = {"/v1/acquire": DROP}
        async with client.lock(self.name, ttl=3, wait=LONG) as lease:
            self.assertEqual((await self.holders())[0]["token"], str(lease.token))
            front.says = {"/v1/renew": DROP}
            await until(lambda: len(front.dropped) == 2)
            renewed = lease._term.deadline
            await until(lambda: lease._term.deadline > renewed)
        self.assertEqual(front.dropped, [("/v1/acquire", 200), ("/v1/renew", 200)])

    async def test_no_answer_is_unknown(self):
        gone = Instance(self)
        gone.kill()
        for url in (gone.url, silent(self)):
            with self.assertRaises(Unknown):
                await AsyncClient(url, timeout=0.5).acquire(self.name, wait=0)
        hanging = asyncio.create_task(AsyncClient(silent(self), timeout=10 * LONG).acquire(self.name))
        await asyncio.sleep(0)
        hanging.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await asyncio.wait_for(hanging, LONG)

    async def test_a_shorter_grant_is_renewed_in_time_for_the_whole_ttl(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": SHORT}
        async with AsyncClient(front.url).lock(self.name, ttl=LONG) as lease:
            self.assertLessEqual(lease.left(), 5)
            await until(lambda: lease.left() > 5)
        self.assertEqual([call.get("ttl_ms") for call in front.calls], [LONG * 1000, LONG * 1000, None])

    async def test_nothing_but_a_yes_is_a_yes(self):
        with self.assertRaises(Refused) as refused:
            await self.client.acquire("", wait=0)
        self.assertEqual(refused.exception.code, "invalid_name")
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": b'{"outcome":"granted","name":"a","owner":"another","token":"1","ttl_ms":1000000000,"waited_ms":0}',
                      "/v1/lock": b"{}", "/v1/locks": b"<html>"}
        client = AsyncClient(front.url, timeout=0.5)
        for call in (client.acquire(self.name, wait=0), client.show(self.name), client.page()):
            with self.assertRaises(Unknown):
                await call
        with self.assertRaises(Unknown):
            await AsyncClient(front.url.replace("http:", "https:")).show(self.name)

    async def test_answers_are_read_however_they_are_framed(self):
        answers = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\n{\"fai\r\n9\r\nr\": true}\r\n0\r\nX: y\r\n\r\n",
                   b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"fair\": true} and more",
                   b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{\"fair\": true}"]
        for answer in answers:
            async def serve(reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                writer.close()
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                client = AsyncClient("http://127.0.0.1:%d" % server.sockets[0].getsockname()[1])
                self.assertEqual(await client.features(), {"fair": True})

    async def test_answers_of_something_else_are_unknown(self):
        answers = [b"", b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n{}",
                   b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
                   b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n[]",
                   b"HTTP/1.1 200 OK\r\nX: " + 10 ** 5 * b"x"]
        for answer in answers:
            async def serve(reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                writer.close()
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                client = AsyncClient("http://127.0.0.1:%d" % server.sockets[0].getsockname()[1])
                with self.assertRaises(Unknown, msg=answer):
                    await client.features()

    async def test_an_address_that_takes_no_packets_costs_no_call(self):
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(full.close)
        for _ in range(4):  # more than it queues: what comes after them waits
            one = socket.socket()
            self.addCleanup(one.close)
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        addresses = [full.getsockname(), ("127.0.0.1", int(self.server.address.rpartition(":")[2]))]
        infos = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]

        async def resolve(*args, **options):
            return infos
        with unittest.mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", resolve):
            lease = await AsyncClient("http://localhost").acquire(self.name, wait=0)
            await lease.release()

    async def test_tls(self):
        front = Front(self, self.server.url)
        context = front.over_tls(self)
        async with AsyncClient(front.url, context=context).lock(self.name, ttl=LONG) as lease:
            await lease.extend()
        with self.assertRaises(Refused) as refused:
            await AsyncClient(front.url).acquire(self.name)
        self.assertEqual(refused.exception.code, "certificate")

    async def test_a_wrong_token_is_unauthorized(self):
        server = guarded(self, "secret")
        for token in (None, "wrong"):
            with self.assertRaises(Unauthorized):
                await AsyncClient(server.url, token).acquire(self.name)
        async with AsyncClient(server.url, "secret").lock(self.name):
            pass

    async def test_a_stopped_process_does_not_believe_that_it_holds(self):
        program = Program(self, "async", self.server.url, self.name, "2")
        token = program.line()["token"]
        program.process.send_signal(signal.SIGSTOP)
        async with self.client.lock(self.name, wait=LONG) as lease:
            granted = time.monotonic()
            self.assertGreater(lease.token, token)
            program.process.send_signal(signal.SIGCONT)
            end = program.line()
            self.assertEqual(end["ended"], "Lost")
            self.assertLess(end["believed"], granted)


class StrictLoop(asyncio.SelectorEventLoop):
    """Takes only the arguments that every event loop takes: uvloop's takes no more."""

    async def create_connection(self, protocol_factory, host=None, port=None, *, ssl=None, family=0, proto=0, flags=0, sock=None,
                                local_addr=None, server_hostname=None):
        return await super().create_connection(protocol_factory, host, port, ssl=ssl, family=family, proto=proto, flags=flags, sock=sock,
                                               local_addr=local_addr, server_hostname=server_hostname)


class TestOtherLoops(Served, unittest.TestCase):
    def test_a_loop_without_happy_eyeballs(self):
        front = Front(self, self.server.url)
        context = front.over_tls(self)

        async def hold():
            async with AsyncClient(self.server.url).lock(self.name):
                async with AsyncClient(front.url, context=context).lock(self.name + "/tls") as lease:
                    await lease.extend()
        loop = StrictLoop()
        self.addCleanup(loop.close)
        loop.run_until_complete(hold())


class TestBoth(Served, unittest.TestCase):
    def test_the_clients_exclude_each_other(self):
        async def refused():
            with self.assertRaises(Busy):
                await AsyncClient(self.server.url).acquire(self.name, wait=0)
        with Client(self.server.url).lock(self.name):
            asyncio.run(refused())
