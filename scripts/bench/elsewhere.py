#!/usr/bin/env python3
"""Cost of a remote engine: scripts/bench/elsewhere.py [WAYMARK] > table.md

Asks the same questions of a server with its engine in the process and of one whose engine is another server of this
machine, one question at a time and 64, with an engine whose steps take no time and one whose steps take 5 ms. Without a
model: the mock writes episodes of two turns. Both servers and the client share the machine.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "demo"
TURNS = 2


class Server:
    """A running server of the mock."""

    def __init__(self, program: str, folder: Path, name: str, *flags: str):
        self.log = folder / f"{name}.log"
        command = [program, "serve", "--mock", "--port", "0", "--log", "warn", "--state", "none", *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.url = self.ready()

    def ready(self) -> str:
        """Waits for the server and returns its URL."""
        for _ in range(600):
            found = re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())
            if found:
                try:
                    urllib.request.urlopen(f"{found[0]}/ready", timeout=5).close()
                    return found[0]
                except OSError:
                    pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.log.read_text()}")

    def metric(self, name: str) -> float:
        """Value of a counter."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def ask(program: str, server: Server, clients: int, count: int) -> dict:
    """Sends `count` questions, `clients` at a time."""
    command = [program, "bench", "serve", "--url", server.url, "--clients", str(clients), "--count", str(count), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if report["answered"] != count or report["searches"] != count * (TURNS - 1):
        raise SystemExit(f"not every question was answered after {TURNS} turns: {report}")
    return report


def compare(program: str, local: Server, remote: Server, clients: int, count: int, rounds: int) -> str:
    """Row of the table for this number of questions at a time."""
    reports = {"local": [], "remote": []}
    for server in (local, remote):
        ask(program, server, clients, count)  # Connections, caches and threads, before anything is timed.
    sent, received, recomputed = (f"waymark_remote_{name}_total" for name in ("sent_bytes", "received_bytes", "recomputed_tokens"))
    before = [remote.metric(name) for name in (sent, received)]
    for _ in range(rounds):
        reports["local"].append(ask(program, local, clients, count))
        reports["remote"].append(ask(program, remote, clients, count))
    grown = [(remote.metric(name) - was) / (rounds * count * TURNS) for name, was in zip((sent, received), before)]

    def median(name: str, field: str) -> float:
        return statistics.median(report[field] for report in reports[name])

    def turn(name: str) -> float:
        return median(name, "answer_p50") / TURNS * 1e3

    rates = [median(name, "questions_per_second") for name in ("local", "remote")]
    return (
        f"| {clients} | {rates[0]:.1f} | {rates[1]:.1f} | {turn('local'):.2f} ms | {turn('remote'):.2f} ms "
        f"| {turn('remote') - turn('local'):+.2f} ms | {grown[0]:.0f} | {grown[1]:.0f} | {remote.metric(recomputed):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/waymark")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per row, of which the median counts")
    arguments = parser.parse_args()
    program = arguments.program
    print("| at a time | questions/s in process | over loopback | per turn in process | over loopback | added per turn "
          "| bytes sent per turn | received | tokens computed twice |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        index = folder / "index"
        build = [program, "index", "build", "--corpus", DEMO / "corpus.jsonl", "--embedder", "mock", "--out", index]
        subprocess.run(build, check=True, stdout=sys.stderr)
        for step in (0, 5):
            shared = ["--max-batch", "128", "--mock-step-ms", str(step)]
            searches = ["--index", str(index), "--embedder", "mock"]
            servers = []
            try:
                engine = Server(program, folder, f"engine{step}", *shared)
                servers.append(engine)
                local = Server(program, folder, f"local{step}", *shared, *searches)
                servers.append(local)
                remote = Server(program, folder, f"remote{step}", *searches, "--engine", f"waymark={engine.url}")
                servers.append(remote)
                print(f"| **steps of {step} ms** | | | | | | | | |", flush=True)
                for clients, count in ((1, 200 if step == 0 else 10), (64, 2048 if step == 0 else 256)):
                    print(compare(program, local, remote, clients, count, arguments.rounds), flush=True)
            finally:
                for server in servers:
                    server.stop()


if __name__ == "__main__":
    main()
