#!/usr/bin/env python3
"""Replicas behind a proxy, one of which is killed: scripts/bench/replicas.py [WAYMARK] > report.md

Starts one writer with `index push --follow`, three servers over what it publishes, which share a PostgreSQL database, and
nginx in front of them, which takes them in turn. Clients stream episodes, chats and stored responses all the time. A
quarter into the run one server is killed (SIGKILL), later a new one is added, and at last one is taken out of the proxy
and stopped (SIGTERM). The exit status is 0 if

* no stream was lost except those of the killed server, and each of them was answered when the client asked again;
* every continuation of a stored response was answered, some of those of the killed server by another one;
* every document that was committed at the writer was found at every running server within 30 s.

Without a model: the mock writes the tokens. Needs nginx and the programs of PostgreSQL. All of it shares this machine.
"""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from local_services import Postgres, Proxy, Server, call

WORDS = "river museum painter bridge harbor engine garden mountain poem signal".split()
FORMS = ("agent", "chat", "response")


@dataclass
class Stream:
    """Outcome of one streamed request."""

    form: str
    upstream: str = ""
    began: float = 0.0
    ended: float = 0.0
    # "whole", "cut" (the connection ended first), "refused STATUS" or "error".
    outcome: str = "cut"
    id: str = ""
    last_event: str = ""
    input_tokens: int = 0


@dataclass
class Load:
    """Clients that stream until they are told to stop, with what became of their streams."""

    port: int
    streams: list[Stream] = field(default_factory=list)
    resumed: Counter = field(default_factory=Counter)
    asked_again: list[float] = field(default_factory=list)
    continued: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    open: dict[int, Stream] = field(default_factory=dict)
    stopping: bool = False

    def stream(self, form: str, previous: Stream | None) -> Stream:
        """Sends a streamed request through the proxy and reads it to its end."""
        stream = Stream(form, began=time.monotonic())
        question = f"Where is the {random.choice(WORDS)}?"
        path, body = {
            "agent": ("/v1/agent", {"question": question, "resumable": True}),
            "chat": ("/v1/chat/completions", {"model": "plain", "messages": [{"role": "user", "content": question}]}),
            "response": ("/v1/responses", {"model": "plain", "input": question, "store": True}),
        }[form]
        if previous:
            body["previous_response_id"] = previous.id
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
            response = connection.getresponse()
            stream.upstream = response.headers.get("x-upstream", "").split(", ")[-1]
            if response.status != 200:
                stream.outcome = f"refused {response.status}"
                response.read()
                return stream
            stream.id = response.headers.get("content-location", "").rpartition("/")[2]
            self.open[id(stream)] = stream
            self.read(response, stream)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self.open.pop(id(stream), None)
            connection.close()
            stream.ended = time.monotonic()
            self.streams.append(stream)
        return stream

    @staticmethod
    def read(response, stream: Stream) -> None:
        """Reads events until one ends the stream."""
        while line := response.readline():
            if line.startswith(b"id: "):
                stream.last_event = line[4:].decode().strip()
            if line.startswith(b"data: [DONE]"):
                stream.outcome = "whole"
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            kind = event.get("type")
            if "error" in event and event["error"] or kind in ("failed", "response.failed"):
                stream.outcome = "error"
            if kind == "finished" or kind == "response.completed":
                stream.outcome = "whole"
            if kind == "response.completed":
                stream.id = event["response"]["id"]
                stream.input_tokens = event["response"]["usage"]["input_tokens"]

    def client(self) -> None:
        """Streams one request after the other; each stored response continues the one before."""
        forms = list(FORMS)
        random.shuffle(forms)
        previous = None
        while not self.stopping:
            for form in forms:
                if self.stopping:
                    return
                stream = self.stream(form, previous if form == "response" else None)
                if stream.outcome != "whole":
                    stream = self.recover(stream, previous)
                if form == "response" and stream.outcome == "whole":
                    self.check_history(stream, previous)
                    previous = stream

    def recover(self, lost: Stream, previous: Stream | None) -> Stream:
        """Does what a client does after a cut: resumes the episode if a server knows it, and otherwise asks again."""
        if lost.form == "agent" and lost.id:
            headers = {"last-event-id": lost.last_event}
            status, _, _ = call(self.port, "GET", f"/v1/agent/{lost.id}", headers=headers)
            self.resumed[status] += 1
        for _ in range(5):
            again = self.stream(lost.form, previous if lost.form == "response" else None)
            if again.outcome == "whole":
                self.asked_again.append(again.began - lost.ended)
                return again
        self.faults.append(f"a lost {lost.form} was not answered when the client asked again: {again.outcome}")
        return again

    def check_history(self, stream: Stream, previous: Stream | None) -> None:
        """Checks that a continued response has read the one before."""
        if previous is None:
            return
        self.continued[previous.upstream == stream.upstream, previous.upstream] += 1
        if stream.input_tokens <= previous.input_tokens:
            self.faults.append(f"{stream.id} has {stream.input_tokens} input tokens, not more than what it continues")


@dataclass
class Documents:
    """Documents committed at the writer, and the delay until each server has them."""

    writer: Server
    place: Path
    servers: list[Server]
    delays: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stopping: bool = False

    def files(self) -> dict[Path, int]:
        """Sizes of the files that are published."""
        sizes = {}
        for file in self.place.rglob("*"):
            # A file may be removed or renamed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    sizes[file] = file.stat().st_size
        return sizes

    def run(self) -> None:
        count = 0
        while not self.stopping:
            name = f"new-{count}"
            before = self.files()
            text = f"The quince {name} was seen at the {random.choice(WORDS)}."
            status, answer, _ = call(self.writer.port, "POST", "/v1/documents", {"documents": [{"id": name, "title": name, "text": text}]})
            committed = time.monotonic()
            if status != 200:
                self.faults.append(f"the writer refused {name}: {status} {answer}")
            for server in list(self.servers):
                self.wait(server, name, committed)
            self.sent.append(sum(size for file, size in self.files().items() if file not in before))
            count += 1
            time.sleep(random.uniform(1, 4))

    def wait(self, server: Server, name: str, committed: float) -> None:
        """Waits until a server has a document."""
        while time.monotonic() < committed + 30:
            try:
                if call(server.port, "GET", f"/v1/documents/{name}", timeout=5)[0] == 200:
                    self.delays.append(time.monotonic() - committed)
                    return
            except (OSError, http.client.HTTPException):
                pass
            if server not in self.servers:
                return
            time.sleep(0.05)
        self.faults.append(f"{server.name} had no {name} within 30 s")


def guarded(work: Callable[[], None], faults: list[str]) -> None:
    """Does the work of a thread. An exception becomes a fault, because it would only end the thread."""
    try:
        work()
    except Exception as error:
        faults.append(f"a thread ended: {type(error).__name__}: {error}")


@dataclass
class Stage:
    """What is started: a writer, servers that can be added, and the flags that they share."""

    program: str
    folder: Path
    state: str
    flags: list[str]

    def corpus(self, count: int) -> Path:
        path = self.folder / "corpus.jsonl"
        with path.open("w") as lines:
            for number in range(count):
                text = f"The {random.choice(WORDS)} number {number} lies by the {random.choice(WORDS)} of {random.choice(WORDS)}."
                lines.write(json.dumps({"id": f"p{number}", "title": f"Passage {number}", "text": text}) + "\n")
        return path

    def server(self, name: str) -> Server:
        place = f"file://{self.folder}/place"
        flags = ["--index", place, "--state", self.state, "--cache", str(self.folder / f"cache-{name}"), *self.flags]
        return Server(self.program, self.folder, name, *flags)


def run(stage: Stage, arguments, stack: contextlib.ExitStack) -> tuple[Load, Documents, dict]:
    """Starts everything, loads it, and makes the faults."""
    index = stage.folder / "index"
    build = [stage.program, "index", "build", "--corpus", stage.corpus(arguments.documents), "--embedder", "mock", "--out", index]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    push = [stage.program, "index", "push", index, f"file://{stage.folder}/place", "--log", "warn"]
    subprocess.run(push, check=True, stdout=subprocess.DEVNULL)
    follower = subprocess.Popen([*push, "--follow", "--interval", "0.2"], stdout=subprocess.DEVNULL)
    stack.callback(follower.wait, 30)
    stack.callback(follower.terminate)
    writer = Server(stage.program, stage.folder, "writer", "--index", index, "--state", "none", *stage.flags)
    stack.callback(writer.stop)
    servers = []
    for number in range(3):
        servers.append(stage.server(f"replica-{number}"))
        stack.callback(servers[-1].stop)
    proxy = Proxy(stage.folder / "nginx", [server.port for server in servers])
    stack.callback(proxy.stop)
    load = Load(proxy.port)
    documents = Documents(writer, stage.folder / "place", servers)
    facts = {"bytes": sum(documents.files().values())}
    threads = [threading.Thread(target=guarded, args=(load.client, load.faults)) for _ in range(arguments.clients)]
    threads.append(threading.Thread(target=guarded, args=(documents.run, documents.faults)))
    for thread in threads:
        thread.start()
    try:
        faults(stage, arguments, stack, proxy, load, documents, facts)
    finally:
        load.stopping = documents.stopping = True
        for thread in threads:
            thread.join()
    return load, documents, facts


def faults(stage: Stage, arguments, stack, proxy: Proxy, load: Load, documents: Documents, facts: dict) -> None:
    """Kills a server, adds one, and takes one out."""
    quarter = arguments.seconds / 4
    servers = documents.servers
    time.sleep(quarter)
    killed = servers.pop(0)
    facts["killed"] = f"127.0.0.1:{killed.port}"
    facts["killed_at"] = time.monotonic()
    facts["open"] = sum(stream.upstream == facts["killed"] for stream in list(load.open.values()))
    killed.kill()
    time.sleep(quarter)
    added = stage.server("replica-added")
    stack.callback(added.stop)
    facts["added"] = f"127.0.0.1:{added.port}"
    facts["added_seconds"] = added.seconds_to_ready
    servers.append(added)
    proxy.reload([server.port for server in servers])
    time.sleep(quarter)
    leaving = servers.pop(0)
    proxy.reload([server.port for server in servers])
    time.sleep(1)
    facts["left"] = f"127.0.0.1:{leaving.port}"
    facts["left_open"] = sum(stream.upstream == facts["left"] for stream in list(load.open.values()))
    facts["left_status"] = leaving.stop()
    time.sleep(quarter)


def judge(load: Load, documents: Documents, facts: dict) -> list[str]:
    """Returns the promises that were broken."""
    broken = load.faults + documents.faults
    for stream in load.streams:
        of_the_killed = stream.upstream == facts["killed"] or stream.outcome == "refused 502"
        during_the_kill = stream.began <= facts["killed_at"] + 0.1 and stream.ended >= facts["killed_at"]
        if stream.outcome != "whole" and not (of_the_killed and during_the_kill):
            broken.append(f"lost: {stream}")
    if facts["left_status"] != 0:
        broken.append(f"the server that was stopped ended with {facts['left_status']}")
    if not any(stream.upstream == facts["added"] for stream in load.streams):
        broken.append("the added server got no request")
    continued_killed = sum(count for (same, upstream), count in load.continued.items() if upstream == facts["killed"] and not same)
    if not continued_killed:
        broken.append("no response of the killed server was continued elsewhere")
    return broken


def report(load: Load, documents: Documents, facts: dict, version: str) -> None:
    outcomes = Counter(stream.outcome for stream in load.streams)
    forms = Counter(stream.form for stream in load.streams if stream.outcome == "whole")
    delays = sorted(documents.delays)
    elsewhere = sum(count for (same, _), count in load.continued.items() if not same)
    of_killed = sum(count for (same, upstream), count in load.continued.items() if upstream == facts["killed"] and not same)
    rows = {
        "PostgreSQL": version,
        "streams": f"{len(load.streams)}: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()),
        "whole ones by form": ", ".join(f"{count} {form}" for form, count in forms.items()),
        "open at the killed server": facts["open"],
        "lost episodes looked for by their ID, by status": dict(load.resumed),
        "asked again and answered": f"{len(load.asked_again)}, after {max(load.asked_again, default=0):.3f} s at most",
        "responses continued on another server": f"{elsewhere} of {sum(load.continued.values())}, {of_killed} of them of the killed one",
        "added server ready after": f"{facts['added_seconds']:.2f} s, with {facts['bytes'] / 1e6:.1f} MB to fetch",
        "streams of the added server": sum(stream.upstream == facts["added"] for stream in load.streams),
        "open at the server that was taken out": f"{facts['left_open']}, all finished" if facts["left_status"] == 0 else facts["left_open"],
        "documents committed": len(documents.sent),
        "until a server has one": f"median {statistics.median(delays):.2f} s, {delays[0]:.2f} to {delays[-1]:.2f} s, of {len(delays)}",
        "sent for one": f"median {statistics.median(documents.sent) / 1e3:.1f} kB, {max(documents.sent) / 1e3:.1f} kB at most",
    }
    print("| | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/waymark")
    parser.add_argument("--seconds", type=float, default=100, help="duration of the load")
    parser.add_argument("--clients", type=int, default=18)
    parser.add_argument("--documents", type=int, default=5000, help="documents of the index at the start")
    parser.add_argument("--step-ms", type=int, default=30, help="duration of a step of the mock")
    arguments = parser.parse_args()
    random.seed(24)
    flags = ["--mock", "--mock-step-ms", arguments.step_ms, "--embedder", "mock", "--max-batch", "64"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = Postgres()
        stack.callback(database.stop)
        stage = Stage(arguments.program, folder, database.url, flags)
        load, documents, facts = run(stage, arguments, stack)
        broken = judge(load, documents, facts)
        for line in broken:
            print(f"broken: {line}", file=sys.stderr)
        # Last, because a run that broke early lacks numbers for it.
        report(load, documents, facts, database.version())
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
