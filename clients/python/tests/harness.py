"""What the tests share: instances of the real command, and what stands between.

    LEASEHOLD_COMMAND=leasehold LEASEHOLD_STORE=redis://127.0.0.1/0 PYTHONPATH=src python3 -m unittest discover tests

The store must be one that several processes share.
"""

import contextlib
import hashlib
import http.server
import json
import os
import signal
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import uuid

LONG = 20.0  # what is waited for comes long before, even on a busy machine


class Instance:
    """A process that serves the store."""

    def __init__(self, test, listen="127.0.0.1:0", options=(), store=None):
        self.process = subprocess.Popen(
            [os.environ["LEASEHOLD_COMMAND"], "--store", store or os.environ["LEASEHOLD_STORE"], "serve", "--listen", listen, *options],
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


def telling(test, server):
    """An instance whose store notifies holders that others wait."""
    with urllib.request.urlopen(server.url + "/v1/features") as answer:
        return server if json.load(answer)["recalls"] else Instance(test, store="memory:")


def dead(test):
    """An address that answers no attempt to connect: its backlog is full."""
    listener = socket.socket()
    test.addCleanup(listener.close)
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(4):
        filler = socket.socket()
        test.addCleanup(filler.close)
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    return listener.getsockname()


def guarded(test, token):
    """An instance that asks for the token, of which it lets nobody evict."""
    file = tempfile.NamedTemporaryFile("w", suffix=".json")
    test.addCleanup(file.close)
    json.dump({"clients": [{"name": "ci", "tokens": [hashlib.sha256(token.encode()).hexdigest()],
                            "rules": [{"prefix": "", "rights": ["view", "lock"]}]}]}, file)
    file.flush()
    return Instance(test, options=["--access", file.name])


DROP, HANG, READ_ONLY, SHORT, STOPPING = object(), object(), object(), object(), object()


class Front(http.server.ThreadingHTTPServer):
    """Stands before an instance. In its place it answers what says has for a path; of DROP, the instance serves the
    call, and its answer is lost, once; of READ_ONLY, it serves the call, and the answer is that of a store that has become
    read-only, once; of SHORT, it serves the call, and grants 5 s by its answer; of HANG, nothing is answered; of STOPPING, the answer is
    that of an instance that stops. Answers of the instance come late by so many seconds."""

    late = 0

    def __init__(self, test, url):
        self.target, self.says, self.dropped, self.calls, self.ends = url, {}, [], [], threading.Event()
        super().__init__(("127.0.0.1", 0), FrontHandler)
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()
        test.addCleanup(self.server_close)
        test.addCleanup(self.shutdown)
        test.addCleanup(self.ends.set)

    def over_tls(self, test):
        """Has it speak TLS. Return the context of a client that trusts it."""
        if shutil.which("openssl") is None:
            test.skipTest("no openssl")
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        key, cert = os.path.join(folder.name, "key"), os.path.join(folder.name, "cert")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")
        return ssl.create_default_context(cafile=cert)

    def handle_error(self, request, client_address):
        pass  # its client has gone


class FrontHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        path = self.path.split("?")[0]
        self.server.calls.append(json.loads(body or b"{}"))
        status, says = 200, self.server.says.get(path)
        if says is HANG:
            self.server.ends.wait()
            return
        said = says
        if says is STOPPING:
            status, said = 409, b'{"outcome": "busy", "code": "draining", "error": "this instance is stopping"}'
        if says in (None, DROP, READ_ONLY, SHORT):
            request = urllib.request.Request(self.server.target + self.path, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    said = answer.read()
            except urllib.error.HTTPError as e:
                with e:
                    status, said = e.code, e.read()
            time.sleep(self.server.late)
        if says is SHORT:
            said = json.dumps({**json.loads(said), "ttl_ms": 5000}).encode()
        if says is READ_ONLY:
            del self.server.says[path]
            status, said = 503, b'{"outcome": "refused", "code": "read_only", "error": "the store is read-only"}'
        if says is DROP:
            del self.server.says[path]
            self.server.dropped.append((path, status))
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, *args):
        pass


def silent(test):
    """The url of what takes connections, and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    test.addCleanup(listener.close)
    return "http://127.0.0.1:%d" % listener.getsockname()[1]


class Program:
    """A process of holder.py. It prints a line of JSON for each thing that happens."""

    def __init__(self, test, *args):
        # What it believes is asked of the package that the test has, which may be an installed one.
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen([sys.executable, "-B", os.path.join(here, "holder.py"), *args], stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("it ended with %s" % self.process.wait())
        return json.loads(line)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def until(condition):
    end = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it never comes")
        time.sleep(0.01)


class Served:
    """For test cases: an instance for all of them, and a name for each."""

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addCleanup = cls.stack.callback
        try:
            cls.server = Instance(cls)
        finally:
            del cls.addCleanup

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def setUp(self):
        self.name = "python/" + uuid.uuid4().hex
