#!/usr/bin/env python3
"""Kills a server (SIGKILL) at random moments and checks that everything it acknowledged is still there.

    scripts/bench/kills.py target/release/waymark --kills 200
    scripts/bench/kills.py target/release/waymark --kills 50 --state postgres

Between two kills, clients create conversations, stored responses (whole, streamed, continued and in the background) and
documents (with and without `wait`). One kill in eight falls into the start. After each restart everything that was
acknowledged since the last one is compared, and at the end everything of all of them. The exit status is 0 if nothing
was lost and nothing is half there. Without a model; needs nothing but Python, and for PostgreSQL its programs.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from local_services import Postgres, Server, call

GONE = (OSError, http.client.HTTPException)
WRITERS = 3
# Number of documents that each writer changes.
DOCUMENTS = 12


@dataclass
class Ledger:
    """What the server has acknowledged."""

    conversations: dict[str, list[str]] = field(default_factory=dict)
    # Conversations with a turn that was sent and not acknowledged.
    open_turns: set[str] = field(default_factory=set)
    responses: dict[str, dict] = field(default_factory=dict)
    background: set[str] = field(default_factory=set)
    # Acknowledged version and those sent since then.
    documents: dict[str, tuple[int, list[int]]] = field(default_factory=dict)

    def merge(self, other: "Ledger") -> None:
        self.conversations |= other.conversations
        self.open_turns |= other.open_turns
        self.responses |= other.responses
        self.background |= other.background
        self.documents |= other.documents


class Writer(threading.Thread):
    """Client that writes until the server is gone."""

    def __init__(self, port: int, number: int, cycle: int, documents: dict[str, tuple[int, list[int]]]):
        super().__init__()
        self.port = port
        self.number = number
        self.version = cycle * 1000
        self.ledger = Ledger(documents=dict(documents))
        self.faults: list[str] = []
        self.random = random.Random(f"{number} {cycle}")

    def run(self) -> None:
        try:
            while True:
                self.random.choice([self.converse, self.continued, self.streamed, self.in_background, self.change])()
        except GONE:
            pass
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    def post(self, path: str, body: dict, wanted: tuple[int, ...] = (200,)) -> dict:
        status, answer, headers = call(self.port, "POST", path, body)
        if status not in wanted or "x-waymark-not-stored" in headers:
            raise ValueError(f"{path}: {status} {answer} {headers}")
        return answer

    def ask(self, **fields) -> dict:
        return self.post("/v1/responses", {"model": "plain", "input": "Who?", **fields})

    def converse(self) -> None:
        """Creates a conversation and answers in it."""
        name = self.post("/v1/conversations", {})["id"]
        self.ledger.conversations[name] = []
        self.ledger.open_turns.add(name)
        response = self.ask(conversation=name)
        self.ledger.responses[response["id"]] = response
        self.ledger.conversations[name].append(response["id"])
        self.ledger.open_turns.discard(name)

    def continued(self) -> None:
        """Stores a response, and another one that continues it."""
        first = self.ask()
        self.ledger.responses[first["id"]] = first
        second = self.ask(previous_response_id=first["id"])
        self.ledger.responses[second["id"]] = second

    def streamed(self) -> None:
        """Reads a stored response as a stream: it is acknowledged by its last event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            body = {"model": "plain", "input": "Who?", "stream": True}
            connection.request("POST", "/v1/responses", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200 or "x-waymark-not-stored" in response.headers:
                raise ValueError(f"a stream: {response.status} {response.headers} {response.read(1000)}")
            while line := response.readline():
                if line.startswith(b"data: {") and b'"response.completed"' in line:
                    whole = json.loads(line[6:])["response"]
                    self.ledger.responses[whole["id"]] = whole
        finally:
            connection.close()

    def in_background(self) -> None:
        self.ledger.background.add(self.ask(background=True)["id"])

    def change(self) -> None:
        """Writes the next version of a document."""
        name = f"d{self.number}-{self.random.randrange(DOCUMENTS)}"
        self.version += 1
        acknowledged, sent = self.ledger.documents.get(name, (0, []))
        self.ledger.documents[name] = (acknowledged, [*sent, self.version])
        document = {"id": name, "title": name, "text": text_of(self.version)}
        answer = self.post("/v1/documents", {"documents": [document], "wait": self.random.random() < 0.7}, (200, 202))
        if answer:
            self.ledger.documents[name] = (self.version, [])


def text_of(version: int) -> str:
    """Returns the text of a version of a document. Its end shows if a part is missing."""
    return f"version {version} " + "word " * 40 + f"end {version}"


class Check:
    """Comparison of a server with what was acknowledged."""

    def __init__(self, server: Server, shared: bool):
        self.server = server
        self.shared = shared
        self.lost: list[str] = []
        self.compared: Counter = Counter()

    def get(self, path: str):
        return call(self.server.port, "GET", path)[:2]

    def all(self, ledger: Ledger) -> None:
        for name, response in ledger.responses.items():
            status, found = self.get(f"/v1/responses/{name}")
            if (status, found) != (200, response):
                self.lost.append(f"response {name}: {status} {found}, not {response}")
            self.compared["responses"] += 1
        for name in ledger.background:
            status, found = self.get(f"/v1/responses/{name}")
            # Over a shared database another server could still generate the response until its deadline.
            ends = ("completed", "failed") + (("queued", "in_progress") if self.shared else ())
            if status != 200 or found["status"] not in ends:
                self.lost.append(f"background response {name}: {status} {found}")
            self.compared["background responses"] += 1
        for name, answered in ledger.conversations.items():
            self.conversation(name, answered, name in ledger.open_turns)
        for name, (acknowledged, sent) in ledger.documents.items():
            self.document(name, acknowledged, sent)

    def conversation(self, name: str, answered: list[str], open_turn: bool) -> None:
        """Checks that each turn is there as a whole or not at all, and is there if it was acknowledged."""
        status, found = self.get(f"/v1/conversations/{name}/items?order=asc&limit=100")
        roles = [item["role"] for item in found["data"] if "role" in item] if status == 200 else None
        allowed = [["user", "assistant"] * (len(answered) + more) for more in ((0, 1) if open_turn else (0,))]
        if roles not in allowed:
            self.lost.append(f"conversation {name}: {status} {roles}, expected one of {allowed}")
        self.compared["conversations"] += 1

    def document(self, name: str, acknowledged: int, sent: list[int]) -> None:
        """Checks that the text is the acknowledged version, or a later one that was sent without an acknowledgement."""
        texts = {text_of(version).strip(): version for version in [acknowledged, *sent]}
        deadline = time.monotonic() + 20
        while True:
            status, found = self.get(f"/v1/documents/{name}")
            text = found["document"]["text"].strip() if status == 200 else None
            if text in texts or (status == 404 and not acknowledged):
                break
            # The next process commits changes that were answered by 202, possibly only after it is ready.
            if time.monotonic() > deadline:
                self.lost.append(f"document {name}: {status} {text and text[:20]}, expected {acknowledged} or {sent}")
                break
            time.sleep(0.05)
        self.compared["documents"] += 1


def settle(server: Server, ledger: Ledger) -> None:
    """Notes the versions that are there, so that the next cycle begins from them."""
    for name in ledger.documents:
        status, found, _ = call(server.port, "GET", f"/v1/documents/{name}")
        version = int(found["document"]["text"].split()[1]) if status == 200 else 0
        ledger.documents[name] = (version, [])


def cycle(server: Server, number: int, total: Ledger, pause: float) -> tuple[Ledger, list[str]]:
    """Writes until the server is killed. Returns what it acknowledged meanwhile."""
    own = [{name: kept for name, kept in total.documents.items() if name.startswith(f"d{place}-")} for place in range(WRITERS)]
    writers = [Writer(server.port, place, number, own[place]) for place in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(pause)
    server.kill()
    new = Ledger()
    for writer in writers:
        writer.join()
        new.merge(writer.ledger)
    return new, [fault for writer in writers for fault in writer.faults]


def start(program: str, folder: Path, state: str, wait: bool = True) -> Server:
    flags = ["--mock", "--embedder", "mock", "--index", folder / "index", "--state", state, "--trace-count", "0"]
    limits = ["--state-count", "1000000", "--state-bytes", "8GiB"]
    return Server(program, folder, "server", *flags, *limits, wait=wait)


def run(arguments, folder: Path, state: str, shared: bool) -> tuple[Counter, list[str]]:
    """Kills servers and compares. Returns numbers and what was lost."""
    chance = random.Random(arguments.seed)
    total, last = Ledger(), Ledger()
    counts, lost = Counter(), []
    for number in range(arguments.kills):
        if chance.random() < 1 / 8:
            starting = start(arguments.program, folder, state, wait=False)
            time.sleep(chance.uniform(0, 0.3))
            starting.kill()
            counts["kills during a start"] += 1
            continue
        server = start(arguments.program, folder, state)
        try:
            check = Check(server, shared)
            check.all(last)
            settle(server, last)
            total.merge(last)
            lost += check.lost
            counts += check.compared
            last, faults = cycle(server, number, total, chance.uniform(0.005, 0.5))
            lost += faults
        finally:
            server.kill()
        counts["kills under load"] += 1
        if lost:
            break
    server = start(arguments.program, folder, state)
    total.merge(last)
    try:
        check = Check(server, shared)
        check.all(total)
    finally:
        status = server.stop()
    if not check.compared["responses"]:
        lost.append("no response was acknowledged before a kill")
    counts.update({f"{name} at the end": count for name, count in check.compared.items()})
    counts["exit status of the last one"] = status
    if status:
        lost.append(f"the last server ended with status {status}")
    return counts, lost + check.lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/waymark")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--state", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--documents", type=int, default=3000, help="documents of the index; from 2,048 on, changes go to a log")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        corpus = folder / "corpus.jsonl"
        rows = ({"id": f"p{n}", "title": f"P {n}", "text": f"Passage number {n}."} for n in range(arguments.documents))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        build = [arguments.program, "index", "build", "--corpus", corpus, "--embedder", "mock", "--triples", "none"]
        subprocess.run([*build, "--out", folder / "index"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        database = Postgres() if arguments.state == "postgres" else None
        began = time.monotonic()
        try:
            counts, lost = run(arguments, folder, database.url if database else str(folder / "state"), bool(database))
        finally:
            if database:
                database.stop()
    for name, count in counts.items():
        print(f"{name}: {count}")
    print(f"seconds: {time.monotonic() - began:.0f}")
    for line in lost:
        print(f"lost: {line}", file=sys.stderr)
    print(f"lost or half there: {len(lost)}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
