"""Effect of other clients' long prompts on a short request and on a running stream, over HTTP with real weights.

    python3 scripts/bench/fair.py --server fair=target/release/waymark --server before=../before/waymark > table.md

Starts each server in turn, once a round, so that a machine that gets slower does so for all of them. A round is

1. short requests one after the other on an idle server;
2. `--clients` long prompts at once, and the same number of short requests one after the other beside them; the
   time until all of them are answered tells the throughput, since all servers do the same work;
3. a stream alone;
4. a stream, and one long prompt while it runs.

With `--turns N` all servers run at once and only step 2 is repeated, by turns: on a machine whose speed changes from
minute to minute, neighboring turns compare throughputs when whole rounds cannot. Their ratio to the first server is
printed, in time and in CPU time.

Prompts are random token IDs, so that no two share a prefix. Needs nothing but Python. Client and server share the
machine.
"""

import argparse
import http.client
import json
import math
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

# Bias that excludes the end tokens of SmolLM2, so that every answer has the wanted length.
ENDS = {"0": -100, "2": -100}


class Server:
    """A running server."""

    def __init__(self, program, flags):
        self.log = tempfile.NamedTemporaryFile("r+", suffix=".log")
        command = [program, "serve", "--port", "0", "--log", "warn", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 120
        self.port = None
        while not self.port or not self.ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"the server did not start:\n{self.printed()}")
            time.sleep(0.1)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", self.printed()):
                self.port = int(found[1])

    def printed(self):
        """Returns the output of the server so far."""
        with open(self.log.name) as log:
            return log.read()

    def ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()

    def cpu_seconds(self):
        """CPU time so far."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, tokens, max_tokens):
        """Streams an answer to a random prompt. Returns the time of the request and of each token."""
        prompt = [random.randrange(1000, 40_000) for _ in range(tokens)]
        body = {"model": "plain", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, "logit_bias": ENDS}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode()}")
        times = []
        while line := response.readline():
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                times += [time.monotonic() for choice in chunk["choices"] if choice["text"]]
        connection.close()
        return begin, times


def first(asked):
    """The time to the first token."""
    begin, times = asked
    return times[0] - begin


def p99(times, begin=0.0, end=float("inf")):
    """The 99th percentile of the gaps between tokens that lie between two times; NaN if there are none."""
    gaps = sorted(late - early for early, late in zip(times, times[1:]) if begin <= early and late <= end)
    if not gaps:
        return math.nan
    return gaps[int(len(gaps) * 0.99)]


def spawn(work, *arguments):
    """Runs `work` on a thread. Returns the future of its result, which raises what ended the thread."""
    return ThreadPoolExecutor(1).submit(work, *arguments)


def warm_up(server):
    """Sends requests that are not measured."""
    for _ in range(3):
        server.ask(200, 20)


def measure_load(server, options):
    """Sends long prompts at once, and short requests beside them. Returns the times to the first token of the short
    requests, and the time until all are answered."""
    begin = time.monotonic()
    load = [spawn(server.ask, options.tokens, 32) for _ in range(options.clients)]
    time.sleep(0.5)
    loaded = []
    for _ in range(options.clients):
        busy = not all(one.done() for one in load)
        asked = server.ask(64, 32)
        if busy:
            loaded.append(first(asked))
    for one in load:
        one.result()
    return loaded, time.monotonic() - begin


def measure(server, options):
    """Measures one round."""
    warm_up(server)
    alone = [first(server.ask(64, 32)) for _ in range(options.clients)]
    loaded, total = measure_load(server, options)
    if not loaded:
        raise SystemExit("no short request ran beside the long prompts: raise --clients or --tokens")
    _, times = server.ask(32, options.stream)
    normal = p99(times[10:])
    stream = spawn(server.ask, 32, options.stream)
    time.sleep(0.5)
    begin, (end, *_) = server.ask(options.tokens, 1)
    _, beside = stream.result()
    during = p99(beside, begin, end)
    if math.isnan(during):
        raise SystemExit("no token of the stream came during the long prompt: raise --stream or --tokens")
    longest = max(late - early for early, late in zip(beside, beside[1:]))
    return {
        "short request alone": statistics.median(alone),
        "beside the long prompts, median": statistics.median(loaded),
        "longest": max(loaded),
        "all answered after": total,
        "gap alone, p99": normal,
        "during one long prompt, p99": during,
        "longest gap": longest,
        "the long prompt's first token": end - begin,
    }


def take_turns(programs, options):
    """Compares the throughput of servers that all run while each in turn serves the load."""
    servers = {}
    try:
        for name, program in programs.items():
            servers[name] = Server(program, options.flags)
        for server in servers.values():
            warm_up(server)
        ratios = {name: [] for name in servers}
        for turn in range(options.turns):
            spent = {}
            for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                before = servers[name].cpu_seconds()
                _, total = measure_load(servers[name], options)
                spent[name] = (total, servers[name].cpu_seconds() - before)
            print(f"<!-- turn {turn + 1}, time and CPU time in s: {json.dumps(spent)} -->", flush=True)
            base = spent[next(iter(servers))]
            for name, own in spent.items():
                ratios[name].append([mine / theirs for mine, theirs in zip(own, base)])
    finally:
        for server in servers.values():
            server.stop()
    print(f"| until all are answered, median of {options.turns} turns | {' | '.join(servers)} |")
    print("|---|" + "---|" * len(servers))
    for row, label in enumerate(["time", "CPU time"]):
        medians = [statistics.median(ratio[row] for ratio in ratios[name]) for name in servers]
        print(f"| {label} | {' | '.join(f'{value:.3f}' for value in medians)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PROGRAM", help="a server to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, help="compare throughput alone, by so many turns")
    parser.add_argument("--clients", type=int, default=8, help="long prompts at once")
    parser.add_argument("--tokens", type=int, default=6000, help="length of a long prompt")
    parser.add_argument("--stream", type=int, default=600, help="tokens of the running stream")
    parser.add_argument("flags", nargs="*", help="flags for the servers, after --")
    options = parser.parse_args()
    servers = dict(server.split("=", 1) for server in options.server)
    if options.turns:
        return take_turns(servers, options)
    results = {name: [] for name in servers}
    for round in range(options.rounds):
        # Every other round in the opposite order.
        for name in list(servers)[:: 1 if round % 2 == 0 else -1]:
            server = Server(servers[name], options.flags)
            try:
                results[name].append(measure(server, options))
            finally:
                server.stop()
            print(f"<!-- round {round + 1}, {name}: {json.dumps(results[name][-1])} -->", flush=True)
    print(f"| seconds, median of {options.rounds} rounds | {' | '.join(servers)} |")
    print("|---|" + "---|" * len(servers))
    for row in results[next(iter(servers))][0]:
        medians = [statistics.median(result[row] for result in results[name]) for name in servers]
        print(f"| {row} | {' | '.join(f'{value:.3f}' for value in medians)} |")


main()
