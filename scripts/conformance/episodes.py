#!/usr/bin/env python3
"""Compares episodes over an engine elsewhere with those of the engine in the process.

    scripts/conformance/episodes.py target/release/waymark --engine vllm=http://gpu:8000 --model DIR

Starts two servers over the demo corpus, one with the weights of `--model` in its process, one with `--engine`, and asks both
the same questions in every protocol, greedily. Prints how many characters agree: kernels differ, so that texts may part
where two tokens are equally likely. Then it asks for an answer under a JSON schema, leaves a stream, and looks at the
metrics. The exit status is 1 if an episode fails, if texts part within the first `--agree` characters, if an answer does not
have its form, or if tokens are still generated after the client has left. Needs nothing but Python.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))

from local_services import Server, call  # noqa: E402

QUESTION = "Who painted the Mona Lisa?"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "year": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city", "year"], "additionalProperties": False}  # fmt: skip


def events(server, body):
    """Yields the events of a streamed episode."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request("POST", "/v1/agent", json.dumps({**body, "stream": True}), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode()}")
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        connection.close()


def episode(server, policy, tokens):
    """Returns the text of an episode, its searches and how it ended: the reason, or "failed"."""
    all_events = list(events(server, {"model": policy, "question": QUESTION, "temperature": 0, "max_tokens": tokens}))
    text = "".join(event.get("text", "") for event in all_events if event.get("type") in ("think", "answer"))
    last = all_events[-1] if all_events else {}
    if last.get("type") != "finished":
        print(f"{policy} at {server.name}: the stream ends with {last}", file=sys.stderr)
        return text, last.get("searches"), "failed"
    return text, last["searches"], last["reason"]


def agreeing(first, second):
    """Returns the number of characters with which both texts begin."""
    return next((at for at, (one, other) in enumerate(zip(first, second)) if one != other), min(len(first), len(second)))


def metric(server, name):
    text = call(server.port, "GET", "/metrics")[1]
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M))


def compare(local, remote, arguments):
    """Prints a row for each protocol. Returns the faults."""
    faults = []
    rows = call(local.port, "GET", "/v1/models")[1]["data"]
    policies = [row["id"] for row in rows if row.get("protocol") not in (None, "embedding", "rerank")]
    print("| policy | searches | end | characters | equal ones |\n|---|---|---|---|---|")
    for policy in policies:
        here, there = (episode(server, policy, arguments.tokens) for server in (local, remote))
        same = agreeing(here[0], there[0])
        print(f"| {policy} | {here[1]}, {there[1]} | {here[2]}, {there[2]} | {len(here[0])}, {len(there[0])} | {same} |", flush=True)
        if "failed" in (here[2], there[2]) or same < min(arguments.agree, len(here[0])):
            faults.append(f"{policy}: {here} and {there}")
    return faults


def structured(remote):
    """Checks answers under a schema. Returns the faults. Those that ended by their length are not judged."""
    faults = []
    whole = wrong = refused = 0
    for seed in range(5):
        body = {"model": "plain", "messages": [{"role": "user", "content": "Where?"}], "seed": seed, "temperature": 1, "max_tokens": 300,
                "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}}  # fmt: skip
        status, answer, _ = call(remote.port, "POST", "/v1/chat/completions", body, timeout=300)
        if status != 200:
            refused += 1
            faults.append(f"refused: {status} {answer}")
            continue
        if answer["choices"][0]["finish_reason"] == "length":
            continue
        whole += 1
        text = answer["choices"][0]["message"]["content"]
        try:
            value = json.loads(text)
            fits = value["city"] in ("Paris", "Rome") and 1 <= value["year"] <= 9
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits:
            wrong += 1
            faults.append(f"schema: {text}")
    corrected = metric(remote, "waymark_remote_corrected_tokens_total")
    print(f"\nanswers under a schema: {whole} of 5 whole, {wrong} of them wrong, {refused} refused, {corrected:.0f} tokens sampled again")
    return faults if whole else [*faults, "no answer under a schema was whole"]


def leave(remote):
    """Leaves a stream after its first text. Returns the faults."""
    stream = events(remote, {"model": "plain", "question": QUESTION, "max_tokens": 1000})
    next(event for event in stream if event.get("text"))
    stream.close()
    time.sleep(2)
    before = metric(remote, "waymark_remote_received_bytes_total")
    time.sleep(2)
    grown = metric(remote, "waymark_remote_received_bytes_total") - before
    print(f"after a client has left: {grown:.0f} bytes more from the engine")
    return [f"the engine sent {grown} bytes after the client had left"] if grown else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", default="target/release/waymark")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=200, help="maximum number of tokens of an episode")
    parser.add_argument("--agree", type=int, default=100, help="number of characters that must be equal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        index = folder / "index"
        build = [arguments.program, "index", "build", "--corpus", ROOT / "demo/corpus.jsonl", "--embedder", "mock", "--out", index]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shared = ["--model", arguments.model, "--index", index, "--embedder", "mock", "--state", "none"]
        local = Server(arguments.program, folder, "local", *shared)
        try:
            remote = Server(arguments.program, folder, "remote", *shared, "--engine", arguments.engine)
            try:
                faults = compare(local, remote, arguments) + structured(remote) + leave(remote)
                names = ("requests", "recomputed_tokens", "failures", "resumptions", "sent_bytes", "received_bytes")
                print(", ".join(f"{name} {metric(remote, f'waymark_remote_{name}_total'):.0f}" for name in names))
            finally:
                remote.stop()
        finally:
            local.stop()
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
