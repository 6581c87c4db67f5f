"""Tests of the client against the real command.

    LEASEHOLD_COMMAND=leasehold LEASEHOLD_STORE=redis://127.0.0.1/0 python3 -m unittest -v

The store must be one that several processes share.
"""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request
import uuid

import leasehold
from leasehold import Busy, Client, Lost, Refused, Unknown

LONG = 20.0  # what is waited for comes long before, even on a busy machine


class Instance:
    """A process that serves the store."""

    def __init__(self, test, listen="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [os.environ["LEASEHOLD_COMMAND"], "--store", os.environ["LEASEHOLD_STORE"], "serve", "--listen", listen],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.kill)
        self.said = []
        ready = threading.Event()

        def read():
            with self.process.stderr as lines:
                for line in lines:
                    self.said.append(line)
                    if "http://" in line:
                        ready.set()
        threading.Thread(target=read, daemon=True).start()
        if not ready.wait(LONG):
            raise AssertionError("the server does not start: %s" % self.said)
        line = next(line for line in self.said if "http://" in line)
        self.url = "http://" + line.split("http://")[1].split()[0].strip('",')
        self.address = self.url[len("http://"):]

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Front(http.server.ThreadingHTTPServer):
    """Stands before an instance, and answers in its place what says has for a path."""

    def __init__(self, test, url):
        self.target, self.says = url, {}
        super().__init__(("127.0.0.1", 0), FrontHandler)
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()
        test.addCleanup(self.server_close)
        test.addCleanup(self.shutdown)


class FrontHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        status, said = 200, self.server.says.get(self.path.split("?")[0])
        if said is None:
            request = urllib.request.Request(self.server.target + self.path, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    said = answer.read()
            except urllib.error.HTTPError as e:
                with e:
                    status, said = e.code, e.read()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, *args):
        pass


def until(condition):
    end = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it never comes")
        time.sleep(0.01)


class TestClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cleanups = []
        cls.server = Instance(type("T", (), {"addCleanup": staticmethod(cls.cleanups.append)}))

    @classmethod
    def tearDownClass(cls):
        for clean in cls.cleanups:
            clean()

    def setUp(self):
        self.name = "python/" + uuid.uuid4().hex
        self.client = Client(self.server.url)

    def test_only_one_holds_and_tokens_grow(self):
        with self.client.acquire(self.name, ttl=LONG, note="first") as first:
            with self.assertRaises(Busy) as refused:
                self.client.acquire(self.name, wait=0)
            self.assertEqual(refused.exception.holder["note"], "first")
            holder = self.client.show(self.name)["holders"][0]
            self.assertEqual(int(holder["token"]), first.token)
            self.assertGreater(first.left(), LONG / 2)
            self.assertNotIn(first._claim._same["owner"], repr(first) + json.dumps(holder))
        with self.client.acquire(self.name, wait=0) as second:
            self.assertGreater(second.token, first.token)
        self.assertGreater(first.token, 2 ** 53)
        self.assertEqual(list(self.client.locks(self.name)), [])
        with self.assertRaises(Lost):
            first.check()

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
            first = lease._deadline
            until(lambda: lease._deadline > first + 2)
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

    def test_hung_server_ends_the_section_before_another_holds(self):
        hung = Instance(self)
        ended, granted = [], []

        def other():
            with self.client.acquire(self.name, wait=LONG):
                granted.append(time.monotonic())

        waiter = threading.Thread(target=other)
        with self.assertRaises(Lost):
            with Client(hung.url).acquire(self.name, ttl=3) as lease:
                waiter.start()
                until(lambda: self.client.show(self.name)["waiters"])
                hung.stop()
                try:
                    until(lambda: False)
                finally:
                    ended.append(time.monotonic())
        waiter.join()
        self.assertTrue(lease.lost.is_set())
        self.assertLess(ended[0], granted[0])

    def sleep(self, seconds):
        """What leases see when the machine sleeps: time goes on without time.monotonic()."""
        now = leasehold._now
        patch = unittest.mock.patch.object(leasehold, "_now", lambda: now() + seconds)
        patch.start()
        self.addCleanup(patch.stop)

    @unittest.skipUnless(hasattr(time, "CLOCK_BOOTTIME"), "this system does not tell of sleep")
    def test_clock_counts_sleep(self):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = leasehold._now()
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
            first = lease._deadline
            self.sleep(5 * LONG)
            until(lambda: lease._deadline > first)
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
            renewed = lease._deadline
            first.kill()
            Instance(self, first.address)
            until(lambda: lease._deadline > renewed)
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

    def test_readme_recipe_for_curl(self):
        # What a program without this client sends.
        body = json.dumps({"name": self.name, "ttl_ms": 5000}).encode()
        request = urllib.request.Request(self.server.url + "/v1/acquire", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            self.assertEqual(json.load(answer)["outcome"], "granted")


if __name__ == "__main__":
    unittest.main()
