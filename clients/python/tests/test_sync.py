"""Tests of Client against the real command: see harness.py."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import itertools
import json
import multiprocessing.pool
import operator
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import unittest
import unittest.mock
import urllib.request

import leasehold
from leasehold import AsyncClient, Busy, Client, Lost, Refused, Released, TooHeavy, Unauthorized, Unknown
from leasehold import _claim, _sync

from harness import DROP, HANG, LONG, READ_ONLY, SHORT, STOPPING, Front, Instance, Program, Served, dead, guarded, silent, telling, until


def json_event(owner):
    """A stream that says that others wait for the lease."""
    handle = "x~" + _claim.Ears(owner)._handle
    return b"event: wanted\ndata: " + json.dumps({"handle": handle}).encode() + b"\n\n"


class TestClient(Served, unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.client = Client(self.server.url)

    def test_only_one_holds_and_tokens_grow(self):
        with self.client.acquire(self.name, ttl=LONG, note="first") as first:
            with self.assertRaises(Busy) as refused:
                self.client.acquire(self.name, wait=0)
            self.assertEqual(refused.exception.holder["note"], "first")
            holder = self.client.show(self.name)["holders"][0]
            self.assertEqual(int(holder["token"]), first.token)
            self.assertGreater(first.left(), LONG / 2)
            self.assertNotIn(first.owner, repr(first) + json.dumps(holder))
        with self.client.acquire(self.name, wait=0) as second:
            self.assertGreater(second.token, first.token)
        self.assertGreater(first.token, 2 ** 53)
        self.assertEqual(list(self.client.locks(self.name)), [])
        with self.assertRaises(Released):
            first.check()

    def test_a_refusal_tells_who_holds(self):
        with self.client.lock(self.name):
            with self.assertRaises(Busy) as refused:
                self.client.acquire(self.name, wait=0)
        self.assertIn("[%d]" % os.getpid(), refused.exception.holder["note"])
        self.assertIn(refused.exception.holder["note"], str(refused.exception))

    def test_a_list_has_pages(self):
        names = [f"{self.name}/{i}" for i in range(5)]
        with contextlib.ExitStack() as held:
            for name in names:
                held.enter_context(self.client.acquire(name, ttl=LONG))
            self.assertEqual(sorted({l["name"] for l in self.client.locks(self.name)}), names)
            seen, after = set(), ""
            while True:
                locks, after = self.client.page(self.name, after, limit=2)
                self.assertLessEqual(len(locks), 2)
                seen.update(l["name"] for l in locks)
                if not after:
                    break
            self.assertEqual(sorted(seen), names)

    def test_shared_up_to_a_limit(self):
        shared = {"mode": "shared", "limit": 2, "wait": 0}
        with self.client.acquire(self.name, **shared), self.client.acquire(self.name, **shared):
            with self.assertRaises(Busy):
                self.client.acquire(self.name, **shared)

    def limited(self, limit):
        """Sets an operator's limit, 0 for none."""
        body = json.dumps({"name": self.name, "limit": limit}).encode()
        call = urllib.request.Request(self.server.url + "/v1/limit", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(call, timeout=LONG).close()

    def test_weights_count_up_to_the_limit(self):
        shared = {"mode": "shared", "limit": 5, "wait": 0}
        with self.client.acquire(self.name, weight=3, **shared), self.client.acquire(self.name, **shared):
            with self.assertRaises(Busy):
                self.client.acquire(self.name, weight=2, **shared)
            with self.client.lock(self.name, **shared):
                lock = self.client.show(self.name)
                self.assertEqual(lock["used"], 5)
                self.assertEqual([holder.get("weight", 1) for holder in lock["holders"]], [3, 1, 1])

    def test_too_heavy_for_its_own_limit_or_the_operators(self):
        with self.assertRaises(TooHeavy) as refused:
            self.client.acquire(self.name, mode="shared", limit=2, weight=3)
        self.assertEqual(refused.exception.code, "too_heavy")
        with self.assertRaises(ValueError):
            self.client.acquire(self.name, mode="shared", weight=0)
        self.addCleanup(self.limited, 0)
        with self.client.acquire(self.name, mode="shared", limit=5, weight=3):
            failed = []

            def wait():
                try:
                    self.client.acquire(self.name, mode="shared", limit=5, weight=3, wait=LONG)
                except TooHeavy as e:
                    failed.append(e)
            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: self.client.show(self.name)["waiters"])
            self.assertEqual(self.client.show(self.name)["waiters"][0]["weight"], 3)
            self.limited(2)  # the waiter is too heavy for it, although it queued before
            thread.join()
            self.assertEqual(len(failed), 1)
            until(lambda: not self.client.show(self.name)["waiters"])
            self.assertEqual(self.client.show(self.name)["limit"], 2)

    def test_waiters_are_served_in_order(self):
        lease, served, threads = self.client.acquire(self.name), [], []
        for i in range(3):
            def wait(i=i):
                with self.client.acquire(self.name, wait=LONG):
                    served.append(i)
            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            until(lambda: len(self.client.show(self.name)["waiters"]) == i + 1)
        lease.release()
        for thread in threads:
            thread.join()
        self.assertEqual(served, [0, 1, 2])

    def test_wait_is_bounded_and_leaves_no_place(self):
        with self.client.acquire(self.name):
            start = time.monotonic()
            with self.assertRaises(Busy):
                self.client.acquire(self.name, wait=1)
            self.assertGreaterEqual(time.monotonic() - start, 1)
            until(lambda: not self.client.show(self.name)["waiters"])

    def test_lease_is_renewed(self):
        with self.client.acquire(self.name, ttl=2) as lease:
            first = lease._term.deadline
            until(lambda: lease._term.deadline > first + 2)
            lease.check()
            with self.assertRaises(Busy):
                self.client.acquire(self.name, wait=0)

    def test_exception_of_the_section_releases(self):
        with self.assertRaises(ZeroDivisionError):
            with self.client.acquire(self.name):
                1 / 0
        self.client.acquire(self.name, wait=0).release()

    def test_eviction_ends_the_section(self):
        with self.assertRaises(Lost) as lost:
            with self.client.acquire(self.name, ttl=3) as lease:
                self.client.evict(self.name, self.client.show(self.name)["holders"][0]["handle"], "maintenance")
                until(lambda: False)
        self.assertTrue(lease.lost.is_set())
        self.assertTrue(lost.exception.args)

    def evict(self):
        self.client.evict(self.name, self.client.show(self.name)["holders"][0]["handle"], "maintenance")

    def test_a_loss_spares_a_thread_that_has_left_the_section(self):
        @contextlib.contextmanager
        def dependency():
            with self.client.lock(self.name, ttl=10 * LONG) as lease:
                yield lease

        def helped(stack):
            return stack.enter_context(dependency())

        for enter in (lambda stack: stack.enter_context(self.client.lock(self.name, ttl=10 * LONG)), helped,
                      lambda stack: stack.enter_context(self.client.acquire(self.name, ttl=10 * LONG))):
            stack = contextlib.ExitStack()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                lease = pool.submit(enter, stack).result()
                self.evict()
                with contextlib.suppress(Lost):
                    lease.extend()
                self.assertTrue(lease.lost.is_set())
                self.assertEqual(pool.submit(sum, [1, 2]).result(), 3)
                with self.assertRaises(Lost):
                    stack.close()
                self.assertEqual(pool.submit(sum, [1, 2]).result(), 3)

    def test_a_loss_spares_the_thread_of_a_pool_that_entered_for_another(self):
        # The pool's own frame calls __enter__, and outlives the job.
        with multiprocessing.pool.ThreadPool(1) as pool:
            lease = pool.apply(self.client.acquire(self.name, ttl=10 * LONG).__enter__)
            self.evict()
            with contextlib.suppress(Lost):
                lease.extend()
            self.assertTrue(lease.lost.is_set())
            self.assertEqual(pool.apply(sum, ([1, 2],)), 3)

    def lose(self, lease):
        """Has it lost, as a renewal finds."""
        self.client.evict(lease.name, self.client.show(lease.name)["holders"][0]["handle"], "maintenance")
        with contextlib.suppress(Lost):
            lease.extend()
        self.assertTrue(lease.lost.is_set())

    def test_a_loss_spares_the_thread_of_trio_that_has_left_the_section(self):
        own = {"__name__": "trio._core._thread_cache"}
        exec("def run(job):\n    return job()", own)
        lease = own["run"](self.client.acquire(self.name, ttl=10 * LONG).__enter__)
        thread = threading.Thread(target=self.lose, args=(lease,))
        thread.start()
        thread.join()
        with self.assertRaises(Lost):
            lease.release()

    def test_the_end_of_a_section_takes_back_no_loss_of_another(self):
        stack, entered, go = contextlib.ExitStack(), [], queue.SimpleQueue()

        def work():
            with self.client.lock(self.name + "/other", ttl=10 * LONG) as lease:
                entered.append(lease)
                go.get()  # a call in C: nothing is raised before it ends
                until(lambda: False)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            try:
                self.lose(pool.submit(stack.enter_context, self.client.lock(self.name, ttl=10 * LONG)).result())
                job = pool.submit(work)
                until(lambda: entered)
                self.lose(entered[0])
                with self.assertRaises(Lost):
                    stack.close()
            finally:
                go.put(None)
            with self.assertRaises(Lost):
                job.result()

    def test_a_loss_is_raised_once_its_section_runs_again(self):
        # At the first look, the thread runs something else, as with greenlets.
        looks, runs = [], _sync._runs

        def look(*args):
            looks.append(args)
            return len(looks) > 1 and runs(*args)

        with unittest.mock.patch.object(_sync, "_runs", look):
            with self.assertRaises(Lost) as lost:
                with self.client.lock(self.name, ttl=10 * LONG) as lease:
                    threading.Thread(target=self.lose, args=(lease,)).start()
                    until(lambda: False)
        self.assertIn("maintenance", str(lost.exception))

    def test_a_loss_comes_up_once(self):
        with self.assertRaises(KeyError):
            with self.client.lock(self.name, ttl=10 * LONG) as lease:
                threading.Thread(target=self.lose, args=(lease,)).start()
                try:
                    until(lambda: False)
                except Lost as e:
                    until(lambda: "leasehold-" + self.name not in [thread.name for thread in threading.enumerate()])
                    raise KeyError from e

    def test_a_loss_that_has_just_come_up_is_neither_raised_again_nor_taken_back(self):
        # It comes up while another thread is about to raise it again: as that one looks at the section, or after the look.
        section, coming = threading.get_ident(), _sync._Raised.__init__.__code__
        runs, raise_in = _sync._runs, _sync._raise_in
        for where in ("look", "raise"):
            with self.subTest(where):
                go, calls, kinds = queue.SimpleQueue(), [], []

                def come(here):
                    calls.extend([here] if here == where else [])
                    if here == where and len(calls) == 2:
                        go.put(None)
                        until(lambda: lease._loss is None or sys._current_frames()[section].f_code is coming)

                def look(thread, *job):
                    if thread == section:  # leases of other tests may be lost in threads that spare it
                        come("look")
                    return runs(thread, *job)

                def raises(thread, kind):
                    if thread == section != threading.get_ident():
                        come("raise")
                        kinds.append(kind)
                    raise_in(thread, kind)

                with unittest.mock.patch.object(_sync, "_runs", look), unittest.mock.patch.object(_sync, "_raise_in", raises):
                    with self.assertRaises(KeyError):
                        with self.client.lock(self.name + where, ttl=10 * LONG) as lease:
                            threading.Thread(target=self.lose, args=(lease,)).start()
                            try:
                                go.get()  # a call in C: nothing is raised before it ends
                                until(lambda: False)
                            except Lost as e:
                                until(lambda: "leasehold-" + lease.name not in [thread.name for thread in threading.enumerate()])
                                raise KeyError from e
                self.assertGreater(len(calls), 1)
                self.assertNotIn(None, kinds)

    def test_a_loss_that_comes_up_holds_up_no_other(self):
        # Meanwhile the interpreter may run the handler of a signal, which asks for another lease that is lost.
        with self.assertRaises(Lost):
            with self.client.acquire(self.name, ttl=10 * LONG) as lease:
                with _sync._raising:
                    thread = threading.Thread(target=self.lose, args=(lease,))
                    thread.start()
                    until(lambda: lease.lost.is_set())
                    self.assertEqual(lease.left(), 0)
                thread.join()
                until(lambda: False)

    def test_a_forked_process_raises_losses_itself(self):
        raising = threading.Event()

        def holds():
            with _sync._raising:
                raising.set()
                time.sleep(1)

        thread = threading.Thread(target=holds)
        thread.start()
        raising.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if _sync._raising.acquire(timeout=LONG) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        thread.join()

    def test_a_loss_is_raised_again_ever_more_seldom(self):
        looks, section = [], threading.get_ident()

        def look(thread, _):
            looks.extend([time.monotonic()] if thread == section else [])  # leases of other tests may be looked at
            return False

        with unittest.mock.patch.object(_sync, "_runs", look):
            with contextlib.suppress(Lost):
                with self.client.lock(self.name, ttl=10 * LONG) as lease:
                    thread = threading.Thread(target=self.lose, args=(lease,))
                    thread.start()
                    until(lambda: len(looks) > 5)
            thread.join()
        self.assertGreater(looks[5] - looks[0], 2)

    def test_a_loss_ends_a_section_that_a_helper_entered(self):
        @contextlib.contextmanager
        def wrapped():
            with self.client.lock(self.name, ttl=3) as lease:
                yield lease

        def helped(stack):
            stack.enter_context(wrapped())

        def work():
            with contextlib.ExitStack() as stack:
                helped(stack)
                self.evict()
                until(lambda: False)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for run in (work, pool.submit(work).result):
                with self.assertRaises(Lost):
                    run()

    def test_hung_server_ends_the_section_before_another_holds(self):
        hung, left = Instance(self), []

        def other():
            with self.client.acquire(self.name, wait=LONG):
                left.append(lease.left())  # by the clock: a busy machine may run the section's thread late

        waiter = threading.Thread(target=other)
        with self.assertRaises(Lost):
            with Client(hung.url).acquire(self.name, ttl=3) as lease:
                waiter.start()
                until(lambda: self.client.show(self.name)["waiters"])
                hung.stop()
                until(lambda: False)
        waiter.join()
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(left, [0])

    def test_a_passed_deadline_tells_why(self):
        front = Front(self, self.server.url)
        lease = Client(front.url).acquire(self.name, ttl=3)
        front.says = {"/v1/renew": b'{"error": "it rests"}'}
        self.assertTrue(lease.lost.wait(LONG))
        with self.assertRaises(Lost) as lost:
            lease.release()
        for error in (lease.cause, lost.exception):
            self.assertEqual((error.code, str(error)), ("deadline", "the deadline passed without a renewal: an answer to another call"))
        self.assertIsInstance(lease.cause.__cause__, Unknown)

    def sleep(self, seconds):
        """What leases see when the machine sleeps: time goes on without time.monotonic()."""
        now = _claim.now
        for module in (_claim, _sync):
            patch = unittest.mock.patch.object(module, "now", lambda: now() + seconds)
            patch.start()
            self.addCleanup(patch.stop)

    @unittest.skipUnless(hasattr(time, "CLOCK_BOOTTIME"), "this system does not tell of sleep")
    def test_clock_counts_sleep(self):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = _claim.now()
        self.assertTrue(before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME))

    def test_lease_ends_in_a_sleep(self):
        lease = self.client.acquire(self.name, ttl=10 * LONG, interrupt=False)
        self.sleep(10 * LONG)
        self.assertEqual(lease.left(), 0)
        with self.assertRaises(Lost):
            lease.check()
        other = self.client.acquire(self.name + "/other", ttl=10 * LONG, interrupt=False)
        self.sleep(10 * LONG)
        self.assertTrue(other.lost.wait(LONG))  # nobody looks

    def test_lease_is_renewed_after_a_sleep(self):
        with self.client.acquire(self.name, ttl=10 * LONG) as lease:
            first = lease._term.deadline
            self.sleep(5 * LONG)
            until(lambda: lease._term.deadline > first)
            lease.check()

    def test_section_that_is_not_interrupted_can_ask(self):
        hung = Instance(self)
        lease = Client(hung.url).acquire(self.name, ttl=2, interrupt=False)
        with self.assertRaises(Lost):
            with lease:
                hung.stop()
                self.assertTrue(lease.lost.wait(LONG))
                with self.assertRaises(Lost):
                    lease.check()
                self.assertEqual(lease.left(), 0)

    def test_killed_server_that_comes_back_costs_no_lease(self):
        first = Instance(self)
        with Client(first.url).acquire(self.name, ttl=LONG) as lease:
            renewed = lease._term.deadline
            first.kill()
            Instance(self, first.address)
            until(lambda: lease._term.deadline > renewed)
            lease.check()

    def test_waiter_survives_its_server(self):
        first, got = Instance(self), []
        lease = self.client.acquire(self.name, ttl=LONG)

        def wait():
            with Client(first.url).acquire(self.name, wait=LONG) as mine:
                got.append(mine.token)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: self.client.show(self.name)["waiters"])
        first.kill()
        Instance(self, first.address)
        lease.release()
        waiter.join()
        self.assertGreater(got[0], lease.token)

    def test_a_waiter_of_a_short_ttl_survives_its_server(self):
        front, calls = Front(self, self.server.url), []
        client = Client(front.url)
        answers = client._ask

        def ask(request):
            if request.path != "/v1/acquire" or calls:
                return answers(request)
            calls.append(request)
            self.sleep(5)  # the server waited for so long when it was killed
            raise Unknown("no answer: the connection was reset")

        client._ask = ask
        client.acquire(self.name, ttl=3).release()

    def test_no_server_is_unknown(self):
        gone = Instance(self)
        gone.kill()
        with self.assertRaises(Unknown):
            Client(gone.url).acquire(self.name, wait=0)
        with self.assertRaises(Unknown):
            Client(gone.url, timeout=0.5).acquire(self.name, wait=1)

    def test_nothing_but_a_yes_is_a_yes(self):
        with self.assertRaises(Refused) as refused:
            self.client.acquire("", wait=0)
        self.assertEqual(refused.exception.code, "invalid_name")
        for url in ("ftp://127.0.0.1", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1?x=1"):
            with self.assertRaises(ValueError):
                Client(url)
        with self.assertRaises(ValueError):
            self.client.acquire(self.name, ttl=0)

    def test_a_yes_of_something_else_is_unknown(self):
        front = Front(self, self.server.url)
        client = Client(front.url, timeout=0.5)
        lease = client.acquire(self.name, ttl=3, interrupt=False)
        alien = json.dumps({"outcome": "granted", "name": self.name, "owner": "another", "token": "1", "ttl_ms": 10 ** 9, "waited_ms": 0})
        front.says = {"/v1/release": b"{}", "/v1/renew": alien.encode(), "/v1/acquire": alien.encode(), "/v1/lock": b"{}", "/v1/locks": b"{}"}
        for call in (lambda: client.show(self.name), client.page, lambda: list(client.locks()), lambda: client.acquire(self.name + "x", wait=0)):
            with self.assertRaises(Unknown):
                call()
        self.assertTrue(lease.lost.wait(LONG))  # no renewal came through
        front.says = {}
        second = client.acquire(self.name, ttl=3, wait=LONG)
        front.says = {"/v1/release": b"{}"}
        with self.assertRaises(Unknown):
            second.release()

    def test_a_forked_process_does_not_release(self):
        with self.client.acquire(self.name, ttl=LONG) as lease:
            child = os.fork()
            if child == 0:
                try:
                    lease.__exit__(None, None, None)
                    lease.release()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            with self.assertRaises(Busy):
                self.client.acquire(self.name, wait=0)

    def test_lock_takes_a_lease_for_each_section(self):
        lock = self.client.lock(self.name, wait=0)
        with lock as first:
            self.assertEqual(self.client.show(self.name)["holders"][0]["token"], str(first.token))
        self.assertEqual(self.client.show(self.name)["holders"], [])
        calls = []

        @self.client.lock(self.name, wait=0)
        def work():
            calls.append(self.client.show(self.name)["holders"][0]["token"])

        work()
        work()
        self.assertLess(int(calls[0]), int(calls[1]))
        with self.assertRaises(RuntimeError):
            with lock:
                pass

    def test_the_lease_counts_from_before_the_call(self):
        front = Front(self, self.server.url)
        front.late = 1
        client = Client(front.url, timeout=LONG)
        lease = client.acquire(self.name, ttl=LONG)
        self.assertLess(lease.left(), LONG - 1)
        self.assertLess(lease.extend(), LONG - 1)
        with self.assertRaises(Lost):  # it was over when the answer came
            client.acquire(self.name + "/short", ttl=0.5)

    def test_extend_renews_at_once_and_for_longer(self):
        with self.client.lock(self.name, ttl=LONG) as lease:
            before = lease._term.deadline
            self.assertGreater(lease.extend(), LONG / 2)
            self.assertGreater(lease._term.deadline, before)
            self.assertGreater(lease.extend(10 * LONG), 8 * LONG)
            self.assertGreater(self.client.show(self.name)["holders"][0]["left_ms"], 8000 * LONG)
            self.assertGreater(lease.extend(1), 8 * LONG)  # never shorter
            self.assertGreater(self.client.show(self.name)["holders"][0]["left_ms"], 8000 * LONG)
        with self.assertRaises(Released):
            lease.extend()

    def test_extend_counts_on_no_more_than_a_late_call_leaves(self):
        front = Front(self, self.server.url)
        with Client(front.url, timeout=2).lock(self.name, ttl=LONG) as lease:
            front.says = {"/v1/renew": HANG}
            with self.assertRaises(Unknown):
                lease.extend()
            front.says = {}
            self.assertLessEqual(lease.extend(10 * LONG), LONG)

    def test_a_renewal_waits_for_its_answer_no_longer_than_timeout_or_a_third(self):
        client, asked = Client(self.server.url, timeout=0.5), []
        answers = client._ask

        def ask(request):
            if request.path == "/v1/renew":
                asked.append(request.timeout)
            return answers(request)

        client._ask = ask
        with client.lock(self.name, ttl=3) as lease:
            until(lambda: asked)
            self.assertLessEqual(asked[0], 0.5)
        client._server = client._server._replace(timeout=LONG)
        with client.lock(self.name, ttl=6) as lease:
            del asked[:]
            lease.extend()
            self.assertLessEqual(asked[0], 2)

    def test_extend_shortens_none_that_is_under_way(self):
        front = Front(self, self.server.url)
        with Client(front.url, timeout=LONG).lock(self.name, ttl=LONG) as lease:
            front.late = 1
            longer = threading.Thread(target=lease.extend, args=(10 * LONG,))
            longer.start()
            until(lambda: len(front.calls) > 1)
            lease.extend()
            longer.join()
            asked = [call["ttl_ms"] for call in front.calls]
            self.assertEqual(asked, sorted(asked))

    def test_a_section_that_begins_too_late_gives_its_lease_back(self):
        lease = self.client.acquire(self.name, ttl=10 * LONG)
        self.sleep(10 * LONG)
        with self.assertRaises(Lost):
            with lease:
                self.fail("it begins")
        until(lambda: not self.client.show(self.name)["holders"])

    def test_extend_tells_a_loss(self):
        lease = self.client.acquire(self.name, ttl=LONG)
        self.client.evict(self.name, self.client.show(self.name)["holders"][0]["handle"], "maintenance")
        with self.assertRaises(Lost):
            lease.extend()
        self.assertTrue(lease.lost.is_set())
        with self.assertRaises(Lost):
            lease.release()

    def test_extend_and_renewals_do_not_overtake_each_other(self):
        with self.client.lock(self.name, ttl=LONG) as lease:
            threads = [threading.Thread(target=lease.extend) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            lease.check()  # a call that was overtaken would have lost it

    def test_no_renewal_follows_the_release(self):
        front, errors, checked = Front(self, self.server.url), [], threading.Event()
        lease = Client(front.url).acquire(self.name, ttl=10 * LONG)
        check = lease.check

        def checks():
            check()
            checked.set()

        def extend():
            try:
                lease.extend()
            except Released as e:
                errors.append(e)

        thread = threading.Thread(target=extend)
        with lease._calling, unittest.mock.patch.object(lease, "check", checks):
            thread.start()
            self.assertTrue(checked.wait(LONG))
            lease.release()
        thread.join()
        self.assertEqual([type(e) for e in errors], [Released])
        self.assertEqual([call.get("ttl_ms", 0) for call in front.calls], [10000 * LONG, 0])

    def test_owner_releases_from_elsewhere(self):
        lease = self.client.acquire(self.name, ttl=LONG, interrupt=False)
        body = json.dumps({"name": self.name, "owner": lease.owner}).encode()
        request = urllib.request.Request(self.server.url + "/v1/release", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            self.assertEqual(json.load(answer)["outcome"], "done")
        self.client.acquire(self.name, wait=0).release()

    def test_a_shorter_grant_is_renewed_in_time_for_the_whole_ttl(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": SHORT}
        with Client(front.url).lock(self.name, ttl=LONG) as lease:
            self.assertLessEqual(lease.left(), 5)
            until(lambda: lease.left() > 5)
        self.assertEqual([call.get("ttl_ms") for call in front.calls], [LONG * 1000, LONG * 1000, None])

    def test_lost_answers_cost_nothing(self):
        front = Front(self, self.server.url)
        client = Client(front.url)
        front.says = {"/v1/acquire": DROP}
        with client.lock(self.name, ttl=3, wait=LONG) as lease:
            self.assertEqual(self.client.show(self.name)["holders"][0]["token"], str(lease.token))
            front.says = {"/v1/renew": DROP}
            until(lambda: len(front.dropped) == 2)
            renewed = lease._term.deadline
            until(lambda: lease._term.deadline > renewed)
            lease.check()
        self.assertEqual(front.dropped, [("/v1/acquire", 200), ("/v1/renew", 200)])
        # The server learns that the first acquire may still come.
        self.assertEqual({call.get("answered", 0) for call in front.calls}, {0})
        self.assertEqual([call["call"] for call in front.calls], list(range(1, len(front.calls) + 1)))
        with client.lock(self.name, wait=0) as lease:
            lease.extend()
        self.assertEqual([call.get("answered", 0) for call in front.calls[-3:]], [0, 1, 2])
        self.client.acquire(self.name, wait=0).release()

    def test_a_waiter_pauses_at_an_instance_that_stops(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": STOPPING}
        began = time.monotonic()
        threading.Timer(5 * _claim.PAUSE, front.says.clear).start()
        with Client(front.url).acquire(self.name, ttl=10 * LONG, wait=LONG):
            self.assertLessEqual(len(front.calls), (time.monotonic() - began) / _claim.PAUSE + 2)

    def test_a_grant_without_an_answer_is_given_back(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": DROP}
        with self.assertRaises(Unknown):
            Client(front.url, timeout=LONG).acquire(self.name, ttl=10 * LONG, wait=0, at_least=10 * LONG)
        self.client.acquire(self.name, wait=LONG, at_least=10 * LONG).release()
        with self.assertRaises(Busy):
            self.client.acquire(self.name, wait=0)

    def test_a_grant_before_the_store_was_read_only_is_given_back(self):
        front = Front(self, self.server.url)
        front.says = {"/v1/acquire": READ_ONLY}
        with self.assertRaises(Refused) as refused:
            Client(front.url).acquire(self.name, ttl=10 * LONG, wait=0)
        self.assertEqual(refused.exception.code, "read_only")
        self.client.acquire(self.name, wait=LONG).release()
        self.assertEqual([call.get("answered", 0) for call in front.calls], [0, 0])

    def test_a_waiter_outlasts_a_store_that_is_read_only_for_a_while(self):
        front, got = Front(self, self.server.url), []
        front.says = {"/v1/acquire": READ_ONLY}

        def wait():
            with Client(front.url).acquire(self.name, wait=LONG) as mine:
                got.append(mine.token)
        with self.client.acquire(self.name, ttl=10 * LONG) as lease:
            waiter = threading.Thread(target=wait)
            waiter.start()
            until(lambda: self.client.show(self.name)["waiters"])
        waiter.join()
        self.assertGreater(got[0], lease.token)

    def test_a_waiter_outlasts_too_many_calls_but_a_first_call_does_not(self):
        client, says = Client(self.server.url), []
        answers = client._ask

        def ask(request):
            if says:
                raise says.pop(0)
            return answers(request)

        client._ask = ask
        limited = Refused("too many calls", "limit", 429)
        for first in (Busy("another holds it"), Unknown("no answer"), Refused("the store is full", "full", 503)):
            with self.subTest(first):
                says += [first, limited]
                client.acquire(self.name, wait=LONG).release()
        says += [limited]
        with self.assertRaises(Refused):
            client.acquire(self.name, wait=LONG)

    def test_a_waiter_keeps_its_place_while_no_more_calls_may_wait(self):
        server = Instance(self, options=["--max-waiting", "1"])
        client, calls, refused, got = Client(server.url), [], [], []
        answers, other = client._ask, self.name + "/other"

        def fill():
            body = {"name": other, "owner": self.name, "ttl_ms": 1000, "wait_ms": 30000}
            answers(_claim.Request("POST", "/v1/acquire", json.dumps(body).encode(), 2 * LONG))

        def ask(request):
            if request.path == "/v1/acquire":
                calls.append(request)
                if len(calls) == 2:  # the first has waited
                    filler.start()
                    until(lambda: self.client.show(other)["waiters"])
            try:
                return answers(request)
            except Refused as e:
                refused.append(e.status)
                raise

        def wait():
            with client.acquire(self.name, ttl=10 * LONG, wait=10 * LONG) as lease:
                got.append(lease.token)

        client._ask = ask
        filler, waiter = threading.Thread(target=fill), threading.Thread(target=wait)
        with self.client.acquire(other, ttl=10 * LONG), self.client.acquire(self.name, ttl=10 * LONG):
            with unittest.mock.patch.object(_claim, "LONGEST_WAIT", 0.5):
                waiter.start()
                until(lambda: len(calls) > 1)
            until(lambda: len(refused) > 3)  # in 3 s, and a place is kept for 2
            self.assertEqual(refused, [429] * len(refused))
            self.assertEqual(len(self.client.show(self.name)["waiters"]), 1)
        waiter.join()
        filler.join()
        self.assertTrue(got)

    def test_a_release_is_repeated_until_the_store_is_writable(self):
        client = Client(self.server.url)
        lease, refusals = client.acquire(self.name, ttl=10 * LONG), ["read_only", "full"]
        answers = client._ask

        def ask(request):
            if refusals:
                raise Refused("the store changes nothing", refusals.pop(), 503)
            return answers(request)

        client._ask = ask
        lease.release()
        self.client.acquire(self.name, wait=0).release()

    def test_a_lease_that_nobody_got_is_not_renewed(self):
        with unittest.mock.patch.object(_sync.Lease, "check", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.client.acquire(self.name, ttl=10 * LONG)
        until(lambda: "leasehold-" + self.name not in [thread.name for thread in threading.enumerate()])
        self.client.acquire(self.name, wait=LONG).release()

    def test_a_release_without_an_answer_is_repeated(self):
        front = Front(self, self.server.url)
        lease = Client(front.url).acquire(self.name, ttl=LONG)
        front.says = {"/v1/release": DROP}
        try:
            lease.release()
        except Unknown as e:  # where the store does not tell a repetition from a loss
            self.assertIn("released or lost", str(e))
        self.assertEqual(front.dropped, [("/v1/release", 200)])
        self.client.acquire(self.name, wait=0).release()

    def test_a_server_that_never_answers_is_unknown(self):
        client = Client(silent(self), timeout=0.5)
        for call in (lambda: client.acquire(self.name, wait=0), lambda: client.acquire(self.name, wait=1), lambda: client.show(self.name)):
            with self.assertRaises(Unknown):
                call()

    def test_tls(self):
        front = Front(self, self.server.url)
        context = front.over_tls(self)
        with Client(front.url, context=context).lock(self.name, ttl=LONG) as lease:
            lease.extend()
        with self.assertRaises(Refused) as refused:
            Client(front.url).acquire(self.name)
        self.assertEqual(refused.exception.code, "certificate")

    def test_a_wrong_token_is_unauthorized(self):
        server = guarded(self, "secret")
        for token, code in ((None, "unauthenticated"), ("wrong", "wrong_token")):
            with self.assertRaises(Unauthorized) as refused:
                Client(server.url, token).acquire(self.name, wait=None)
            self.assertEqual((refused.exception.status, refused.exception.code), (401, code))
        client = Client(server.url, "secret")
        with client.lock(self.name):
            with self.assertRaises(Unauthorized) as refused:
                client.evict(self.name, client.show(self.name)["holders"][0]["handle"], "no")
            self.assertEqual((refused.exception.status, refused.exception.code), (403, "denied"))

    def test_a_token_of_a_file_has_a_line_end_and_shows_in_no_error(self):
        server = guarded(self, "secret")
        for client in (Client(server.url, " secret\r\n"), Client(server.url, "secret\n")):
            client.acquire(self.name).release()
        for kind in (Client, AsyncClient):
            for token in ("secret\r\nX: y", "secret\0", "\ufeffsecret", "secret\u20ac", "s\xe9cret"):
                with self.assertRaises(ValueError) as refused:
                    kind(server.url, token)
                self.assertNotRegex(repr(refused.exception), "s.cret")

    def test_a_url_that_no_request_can_have_is_refused_without_the_token(self):
        urls = [self.server.url + path for path in ("/\u20ac", "/\xe9", "/a b")] + ["http://\u20ac:1", "http://:secret\u2100@localhost"]
        for kind, url in itertools.product((Client, AsyncClient), urls):
            with self.subTest(kind=kind, url=url):
                with self.assertRaises(ValueError) as refused:
                    answer = kind(url, "secret").features()
                    if kind is AsyncClient:
                        asyncio.run(answer)
                self.assertNotIn("secret", repr(refused.exception))

    def test_a_stopped_process_does_not_believe_that_it_holds(self):
        for mode in ("check", "sync"):
            with self.subTest(mode):
                program = Program(self, mode, self.server.url, self.name, "2")
                token = program.line()["token"]
                program.process.send_signal(signal.SIGSTOP)
                with self.client.lock(self.name, wait=LONG) as lease:
                    granted = time.monotonic()
                    self.assertGreater(lease.token, token)
                    program.process.send_signal(signal.SIGCONT)
                    end = program.line()
                    self.assertEqual(end["ended"], "Lost")
                    self.assertLess(end["believed"], granted)
                    lease.check()

    def test_an_interrupted_wait_leaves_no_place(self):
        with self.client.lock(self.name, ttl=LONG):
            program = Program(self, "sync", self.server.url, self.name, "2")
            until(lambda: self.client.show(self.name)["waiters"])
            program.process.send_signal(signal.SIGINT)
            self.assertEqual(program.line()["ended"], "KeyboardInterrupt")
            program.process.wait()
            self.assertEqual(self.client.show(self.name)["waiters"], [])

    def test_the_loss_of_an_outer_section_ends_the_inner_one(self):
        hung, front = Instance(self), Front(self, self.server.url)
        with self.assertRaises(Lost) as lost:
            with Client(hung.url).lock(self.name, ttl=2) as outer:
                with Client(front.url).lock(self.name + "/inner", ttl=3):
                    front.says = {"/v1/release": HANG}  # so that the end of the inner one is unknown
                    hung.stop()
                    until(lambda: False)
        self.assertTrue(lost.exception.args)
        self.assertTrue(outer.lost.is_set())

    def test_a_call_in_an_inner_section_passes_the_loss_of_an_outer_one_on(self):
        for what in ("acquire", "renew", "release"):
            with self.subTest(what):
                client, calls, inner = Client(self.server.url), [], None
                answers = client._ask

                def ask(request):
                    calls.append(json.loads(request.body))
                    if request.path != "/v1/" + what or outer.lost.is_set():
                        return answers(request)
                    with outer._mutex:
                        outer._lose(Lost("of the outer one"))
                    raise _sync._loss_of(outer)  # as it comes up while the call waits for its answer

                client._ask = ask
                with self.assertRaises(Lost) as lost:
                    with self.client.lock(self.name, ttl=LONG) as outer:
                        with contextlib.suppress(KeyError):
                            with client.acquire(self.name + what, ttl=LONG, interrupt=False) as inner:
                                if what == "renew":
                                    inner.extend()
                                raise KeyError
                        self.fail("the outer section goes on")
                self.assertEqual(str(lost.exception), "of the outer one")
                if what == "renew":
                    self.assertIsNone(inner.cause)
                elif what == "acquire":
                    until(lambda: len(calls) == 2)
                    self.assertNotIn("answered", calls[1])  # the acquire may be served late
                else:
                    until(lambda: self.client.show(inner.name)["holders"] == [])

    def test_the_loss_of_an_outer_section_leaves_no_inner_one(self):
        # A call in C in which the loss comes, and that ends by raising: no line of Python runs until the inner section's end.
        call = ctypes.PyDLL(None)["PyThreadState_SetAsyncExc"]
        call.errcheck = len
        for error, take in itertools.product((Lost, ZeroDivisionError), (self.client.acquire, self.client.lock)):
            with self.subTest(error, take=take):
                ended = None
                try:
                    with self.client.acquire(self.name, ttl=LONG) as outer:
                        try:
                            with take(self.name + error.__name__, ttl=10 * LONG) as inner:
                                with outer._mutex:
                                    outer._lose(Lost("of the outer one"))
                                call(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_sync._loss_of(outer)))
                        except Lost:
                            if error is ZeroDivisionError:
                                1 / 0
                            raise
                except error as e:
                    ended = e  # with all that it refers to
                self.assertIsInstance(ended, error)
                until(lambda: self.client.show(inner.name)["holders"] == [])
                with self.assertRaises(Released):
                    inner.check()

    def test_a_loss_at_the_end_of_its_section_tells_why(self):
        call = ctypes.PyDLL(None)["PyThreadState_SetAsyncExc"]
        call.errcheck = len
        with self.assertRaises(Lost) as lost:
            with self.client.acquire(self.name, ttl=10 * LONG) as lease:
                with lease._mutex:
                    lease._lose(Lost("maintenance", "evicted"))
                call(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_sync._loss_of(lease)))
        self.assertEqual((lost.exception.code, str(lost.exception)), ("evicted", "maintenance"))
        again = pickle.loads(pickle.dumps(lost.exception))
        self.assertEqual((type(again), again.code, str(again)), (Lost, "evicted", "maintenance"))

    def test_a_loss_at_the_end_of_its_section_leaves_no_lease(self):
        call = ctypes.PyDLL(None)["PyThreadState_SetAsyncExc"]
        call.errcheck = len
        for take in (self.client.acquire, self.client.lock):
            with self.subTest(take=take):
                with contextlib.suppress(Lost):
                    with take(self.name + take.__name__, ttl=10 * LONG) as lease:
                        with lease._mutex:
                            lease._lose(Lost("no answer", "deadline"))
                            lease._loss = _sync._loss_of(lease)
                        call(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(lease._loss))
                until(lambda: self.client.show(lease.name)["holders"] == [])

    def test_an_interrupted_release_goes_on_behind(self):
        client = Client(self.server.url)
        answers = client._ask
        outer = client.acquire(self.name + "/outer", interrupt=False)
        self.lose(outer)
        for error in (KeyboardInterrupt, SystemExit, _sync._loss_of(outer)):
            with self.subTest(error):
                lease, errors = client.acquire(self.name, ttl=10 * LONG), [error]

                def ask(request):
                    if errors:
                        raise errors.pop()
                    return answers(request)

                client._ask = ask
                with self.assertRaises(error):
                    lease.release()
                until(lambda: self.client.show(self.name)["holders"] == [])

    def test_the_loss_of_an_outer_section_leaves_no_lease_that_is_about_to_be_entered(self):
        # Between the call that has the loss come and the first line of __enter__, no line of Python runs.
        call = ctypes.PyDLL(None)["PyThreadState_SetAsyncExc"]
        with self.assertRaises(Lost) as lost:
            with self.client.acquire(self.name, ttl=10 * LONG) as outer:
                come = functools.partial(call, ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_sync._loss_of(outer)))
                inner = self.client.acquire(self.name + "/inner", ttl=10 * LONG)
                with outer._mutex:
                    outer._lose(Lost("of the outer one"))
                all(map(operator.methodcaller("__call__"), (come, inner.__enter__)))
        self.assertEqual(str(lost.exception), "of the outer one")
        until(lambda: self.client.show(inner.name)["holders"] == [])

    def waiter(self, client):
        """Waits for the lock in a thread, and returns what it is granted."""
        got = []

        def wait():
            with client.acquire(self.name, wait=LONG) as lease:
                got.append(lease.token)
        thread = threading.Thread(target=wait)
        thread.start()
        self.addCleanup(thread.join)
        return got

    def test_a_holder_hears_that_others_wait(self):
        client, calls = Client(telling(self, self.server).url), []
        with client.lock(self.name, ttl=10 * LONG, on_wanted=calls.append) as lease:
            with self.assertRaises(Busy):
                client.acquire(self.name, wait=0)
            lease.extend()
            self.assertFalse(lease.wanted.is_set())  # by one that passed by
            got = self.waiter(client)
            self.assertTrue(lease.wanted.wait(LONG))
            until(lambda: calls == [lease])
            lease.extend()
            self.assertEqual(got, [])
        until(lambda: got)
        self.assertGreater(got[0], lease.token)
        self.assertEqual(calls, [lease])
        until(lambda: "leasehold-" + self.name not in [thread.name for thread in threading.enumerate()])

    def test_a_thread_that_cannot_start_costs_no_renewal(self):
        server, calls, failures = telling(self, self.server), [], []
        start = threading.Thread.start

        def fails(thread):
            if thread.name != "leasehold-wanted" or failures:
                return start(thread)
            failures.append(thread)
            raise RuntimeError("can't start new thread")

        front = Front(self, server.url)
        front.says = {"/v1/events": HANG}  # renewals alone tell
        with unittest.mock.patch.object(threading.Thread, "start", fails):
            with Client(front.url).lock(self.name, ttl=6, on_wanted=calls.append) as lease:
                got = self.waiter(Client(server.url))
                until(lambda: calls)
        self.assertEqual((len(failures), calls), (1, [lease]))
        until(lambda: got)

    def test_who_does_not_ask_is_not_told(self):
        server = telling(self, self.server)
        front = Front(self, server.url)
        with Client(front.url).lock(self.name, ttl=LONG) as lease:
            got = self.waiter(Client(server.url))
            until(lambda: Client(server.url).show(self.name)["waiters"])
            lease.extend()
            self.assertFalse(lease.wanted.is_set())
        until(lambda: got)
        self.assertNotIn({}, front.calls)  # a call without a body: a stream
        self.assertFalse([call for call in front.calls if "wanted" in call])

    def test_one_that_waits_already(self):
        client = Client(telling(self, self.server).url)
        with client.lock(self.name, ttl=LONG):
            def second():
                with client.lock(self.name, ttl=10 * LONG, yields=True) as lease:
                    told.append(lease.wanted.wait(LONG))
            told = []
            thread = threading.Thread(target=second)
            thread.start()
            until(lambda: len(client.show(self.name)["waiters"]) == 1)
            got = self.waiter(client)
            until(lambda: len(client.show(self.name)["waiters"]) == 2)
        thread.join()
        self.assertEqual(told, [True])
        until(lambda: got)

    def test_a_notice_that_is_lost_comes_with_a_renewal(self):
        server = telling(self, self.server)
        for says in (HANG, b"event: open\ndata: {}\n\n"):  # a proxy that keeps the stream back, and one that cuts it
            front = Front(self, server.url)
            front.says = {"/v1/events": says}
            with Client(front.url).lock(self.name, ttl=6, yields=True) as lease:
                got = self.waiter(Client(server.url))
                self.assertTrue(lease.wanted.wait(LONG))
            until(lambda: got)
            self.assertTrue(all(call.get("wanted") for call in front.calls if "ttl_ms" in call))  # renewals too

    def test_a_stream_that_ends_is_opened_again(self):
        server = telling(self, self.server)
        front = Front(self, server.url)
        front.says = {"/v1/events": b"event: open\ndata: {}\n\n"}
        heard = []
        with Client(front.url).lock(self.name, ttl=100 * LONG, on_wanted=lambda lease: heard.append(lease.left())) as lease:
            until(lambda: front.calls.count({}) > 1)
            got = self.waiter(Client(server.url))
            until(lambda: Client(server.url).show(self.name)["waiters"])
            front.says = {"/v1/events": json_event(lease.owner)}
            self.assertTrue(lease.wanted.wait(LONG))
        until(lambda: got and heard)

    def test_a_wanted_holder_that_is_killed(self):
        server = telling(self, self.server)
        client = Client(server.url)
        program = Program(self, "yields", server.url, self.name, "2")
        token = program.line()["token"]
        got = self.waiter(client)
        self.assertEqual(program.line(), {"wanted": True})
        program.process.kill()
        until(lambda: got)
        self.assertGreater(got[0], token)

    def test_details_say_who_holds(self):
        details = {"host": "web-7", "link": "https://ci.example/7", "labels": {"team": "payments"}, "text": "nightly"}
        with self.client.lock(self.name, details=details):
            holder = self.client.show(self.name)["holders"][0]
        self.assertEqual(holder["note"], "nightly")
        self.assertEqual({**holder["details"], **details}, holder["details"])
        self.assertEqual(holder["details"]["pid"], os.getpid())
        with self.client.lock(self.name, note="a note"):
            holder = self.client.show(self.name)["holders"][0]
        self.assertEqual((holder["note"], holder["details"]["text"], holder["details"]["host"]), ("a note", "a note", socket.gethostname()))
        with self.client.lock(self.name, note="n" * 4000):
            self.assertEqual(self.client.show(self.name)["holders"][0]["note"], "n" * 4000)
        with self.assertRaises(ValueError):
            self.client.acquire(self.name, note="one", details={"text": "another"})
        with self.assertRaises(Refused):
            self.client.acquire(self.name, wait=0, details={"link": "javascript:alert(1)"})

    def test_a_program_and_user_that_are_no_text(self):
        raw = os.fsdecode(b"report-\xff")
        with unittest.mock.patch.object(sys, "argv", ["/tmp/" + raw]), unittest.mock.patch.dict(os.environ, {"USER": raw}):
            with self.client.lock(self.name, wait=0):
                details = self.client.show(self.name)["holders"][0]["details"]
        self.assertEqual((details["program"], details["user"]), ("report-?", "report-?"))

    def test_addresses_that_do_not_answer_share_one_timeout(self):
        live = self.server.url.rsplit(":", 1)[1]
        address = lambda at: (socket.AF_INET, socket.SOCK_STREAM, 6, "", at)
        silent_ones = [address(dead(self)) for _ in range(4)]
        with unittest.mock.patch.object(socket, "getaddrinfo", return_value=silent_ones):
            start = time.monotonic()
            with self.assertRaises(Unknown):
                Client(self.server.url, timeout=2).show(self.name)
            self.assertLess(time.monotonic() - start, 5)  # and not 8
        with unittest.mock.patch.object(socket, "getaddrinfo", return_value=[*silent_ones, address(("127.0.0.1", int(live)))]):
            self.assertEqual(Client(self.server.url, timeout=LONG).show(self.name)["holders"], [])
        gone = [address(("127.0.0.1", 1))]
        with unittest.mock.patch.object(socket, "getaddrinfo", return_value=gone):
            with self.assertRaises(Unknown):
                Client(self.server.url, timeout=LONG).show(self.name)

    def test_an_answer_by_single_bytes_ends_with_the_call(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def trickle():
            conn, _ = listener.accept()
            with conn, contextlib.suppress(OSError):
                for _ in range(1000):
                    conn.sendall(b"H")
                    time.sleep(0.05)
        threading.Thread(target=trickle, daemon=True).start()
        start = time.monotonic()
        with self.assertRaises(Unknown):
            Client("http://127.0.0.1:%d" % listener.getsockname()[1], timeout=1).show(self.name)
        self.assertLess(time.monotonic() - start, LONG)

    def test_readme_recipe_for_curl(self):
        # What a program without this client sends.
        body = json.dumps({"name": self.name, "ttl_ms": 5000}).encode()
        request = urllib.request.Request(self.server.url + "/v1/acquire", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            self.assertEqual(json.load(answer)["outcome"], "granted")


if __name__ == "__main__":
    unittest.main()
