"""A running `waymark serve` for `serve_check.py`: its process, and a client that keeps to a deadline."""

import collections
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time

# Seconds that a request may take, and that one may still take when the server's time is over.
REQUEST_SECONDS = 60
LAST_SECONDS = 20
# Seconds until a server is ready: at its first start, a GPU compiles kernels and measures algorithms.
READY_SECONDS = 120
# Seconds that running requests get after SIGTERM, and the process afterwards.
DRAIN_SECONDS = 30
GRACE = 5
# Bytes kept of the end of a log.
TAIL = 8 << 10


class Failure(Exception):
    """A check that failed, with the reason."""


class Server:
    """A server in a process group of its own. `until` is the end of its time, by the monotonic clock."""

    def __init__(self, name, command, environment, log, until):
        self.name, self.log, self.until = name, log, until
        self.began, self.ready_seconds, self.port = time.monotonic(), None, None
        line = [*command, "--port", "0", "--drain-seconds", str(DRAIN_SECONDS)]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )

    def wait(self):
        """Waits until the server is ready."""
        until = min(self.until, self.began + READY_SECONDS)
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Failure(f"the server ended with exit code {self.process.returncode}: {self.tail(1000)}")
            self.port = self.port or port(self.text())
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.port and self.call("GET", "/ready", seconds=1)[0] == 200:
                    self.ready_seconds = time.monotonic() - self.began
                    return
            time.sleep(0.05)
        raise Failure(f"the server was not ready after {time.monotonic() - self.began:.0f} s: {self.tail(1000)}")

    def text(self):
        return self.log.read_text(errors="replace")

    def tail(self, size=TAIL):
        return self.text()[-size:].strip()

    def connect(self, seconds=REQUEST_SECONDS):
        left = max(self.until - time.monotonic(), LAST_SECONDS)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=min(seconds, left))

    def call(self, method, path, body=None, seconds=REQUEST_SECONDS):
        """Sends a request. Returns the status and the bytes of the answer."""
        connection = self.connect(seconds)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path, body):
        """Returns the JSON of an answer; any other status than 200 is a failure."""
        return json.loads(self.asked("POST", path, body))

    def get(self, path):
        return self.asked("GET", path)

    def asked(self, method, path, body=None):
        status, data = self.call(method, path, body)
        if status != 200:
            raise Failure(f"{method} {path}: {status} {data[:300].decode(errors='replace')}")
        return data

    def stream(self, body):
        """Returns the text of a streamed chat completion."""
        return streamed(self.asked("POST", "/v1/chat/completions", dict(body, stream=True)).decode())

    def leave(self, body):
        """Begins a stream of an episode and closes the connection after its first bytes."""
        connection = self.connect()
        try:
            connection.request("POST", "/v1/agent", json.dumps(dict(body, stream=True)), {"content-type": "application/json"})
            connection.getresponse().read(16)
        finally:
            connection.close()

    def metrics(self):
        return metrics(self.get("/metrics").decode())

    def alive(self):
        return self.process.poll() is None

    def stop(self, seconds=GRACE):
        """Sends SIGTERM, and SIGKILL to the whole group if that did not end it in time. Returns the exit code."""
        if self.alive():
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        return self.process.poll()


def port(log):
    """The port in the line that a server prints when it listens, or None."""
    found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", log)
    return int(found[1]) if found else None


def streamed(text):
    """The text in the server-sent events of a chat completion, which end with `[DONE]`."""
    # `splitlines` would also cut at U+2028 and others, which text may contain.
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    data = [line[6:] for line in lines if line.startswith("data: ")]
    if not data or data[-1] != "[DONE]":
        raise Failure(f"the stream ended without [DONE] after {len(data)} events: {text[-300:]}")
    choices = [choice for line in data[:-1] for choice in json.loads(line).get("choices") or []]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def metrics(text):
    """Sums of all series of each metric over their labels. Series of episodes are also summed by their outcome."""
    found = collections.Counter()
    for line in text.splitlines():
        if not line or line.startswith("#") or "_bucket" in line:
            continue
        series, value = line.rsplit(" ", 1)
        name = series.split("{")[0]
        found[name] += float(value)
        outcome = re.search(r'outcome="(\w+)"', series)
        if outcome:
            found[f"{name} {outcome[1]}"] += float(value)
    return found


def at_once(work, items, clients, until):
    """Does the work on the items by so many clients in the order of the items; none begins after `until`. Returns the
    results of the items that were begun, and the seconds until the last one ended."""
    queue, done, lock = collections.deque(items), [], threading.Lock()

    def client():
        while time.monotonic() < until:
            with lock:
                if not queue:
                    return
                item = queue.popleft()
            result = work(item)
            with lock:
                done.append(result)

    began = time.monotonic()
    threads = [threading.Thread(target=client, daemon=True) for _ in range(min(clients, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Each request keeps to its own timeout.
        thread.join(2 * REQUEST_SECONDS)
    return done, time.monotonic() - began
