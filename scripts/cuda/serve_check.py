#!/usr/bin/env python3
"""Serves the committed policies on a GPU and on the CPU, asks both servers the same, and compares what they answer.

    target/release/waymark demo        # once: fetches the weights and builds the demo's index in the cache directory
    python3 scripts/cuda/serve_check.py target/release/waymark --demo ~/.cache/waymark/demo.index

The servers run one after the other, because a GPU server counts the memory that other processes hold. The first is the
reference. With --third "--device cuda --gpu-weights fp8", a third is compared with the first two. Steps, in this order:

    readme    the README's questions, one after the other
    demo      the demo's questions by 16 clients
    policies  the same questions to all policies in one batch
    schema    answers in JSON of a schema
    scores    log-probabilities of the same texts
    load      more and more clients: tokens per second and latencies
    features  forced replays, a stream, clients that leave
    drain     SIGTERM while questions run

Each server has an equal share of --seconds, and each step a share of its server's time: new questions begin within it,
and time that a step leaves goes to later ones. Without --index and --questions, the load is the demo's questions.

Exit code 1: a step failed or had no time, an answer to a question of the README differs, or exact match differs by more
than --bound and by more than 2 questions. Differences of other answers are reported only: other rounding may turn one.
Needs Python 3.9, and nothing else.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine  # noqa: E402
import serve_answers  # noqa: E402
import serve_scores  # noqa: E402
from serve_answers import FAULTS  # noqa: E402
from serve_client import Server  # noqa: E402
from serve_steps import STEPS, Session  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "demo" / "questions.jsonl"
SIDES = ("first", "second", "third")
NAMES = tuple(step.__name__ for step in STEPS)


def committed(folder):
    """Directories of the committed policies, RouteRAG's first; of a family, the recommended one."""
    found = []
    for path in sorted(folder.iterdir()):
        family = path / "family.toml"
        found.append(path / setting(family, "recommended") if family.exists() else path)
    return sorted(found, key=lambda path: not path.is_relative_to(folder / "routerag-smollm2-135m"))


def setting(path, name):
    """A text of a TOML file, outside of its tables."""
    found = re.search(rf'^{name} = "([^"]+)"', path.read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"no `{name}` in {path}")
    return found[1]


def share(left, weights):
    """Seconds of the next of some steps or servers, whose weight comes first, of those that are left for all."""
    return left * weights[0] / sum(weights)


class Check:
    """All servers, one after the other, with their results so far."""

    def __init__(self, args):
        self.args, self.machine = args, machine.describe()
        self.flags = {side: getattr(args, side) for side in SIDES if getattr(args, side)}
        self.until = time.monotonic() + args.seconds
        self.policies = args.policy or committed(ROOT / "models" / "policies")
        self.models = [setting(path / "policy.toml", "name") for path in self.policies]
        self.taken, self.sessions, self.servers, self.failures, self.compared = [], {}, {}, [], {}
        demo = serve_answers.load(args.demo_questions)
        load = serve_answers.load(args.questions) if args.questions else demo
        self.demo, self.load = demo[:args.most], load[:args.most]

    def command(self, flags):
        args = self.args
        line = [str(args.program), "serve", "--host", "127.0.0.1", "--read-only-index", "--state", "none", "--log", "info"]
        line += ["--index", f"demo={args.demo}", "--index", f"load={args.index or args.demo}"]
        line += [part for path in self.policies for part in ("--policy", str(path))]
        line += ["--cache", str(args.cache)] if args.cache else []
        line += ["--embedder", args.embedder] if args.embedder else []
        return [*line, *shlex.split(flags)]

    def serve(self, side, folder):
        """Runs one server with all its steps. Its process ends in any case."""
        environment = dict(os.environ)
        if self.machine["library_path"]:
            environment["LD_LIBRARY_PATH"] = self.machine["library_path"]
        until = time.monotonic() + share(self.until - time.monotonic(), [1] * (len(self.flags) - len(self.servers)))
        found = self.servers[side] = dict(flags=self.flags[side], steps=[])
        print(f"{side}: waymark serve {self.flags[side]}", flush=True)
        server = Server(side, self.command(self.flags[side]), environment, folder / f"{side}.log", until)
        try:
            server.wait()
            print(f"  ready after {server.ready_seconds:.1f} s: {device(server.text())}", flush=True)
            session = Session(server, self.models, self.demo, self.load, self.args.clients, self.taken)
            self.sessions[side] = session
            self.steps(session, found["steps"])
        except FAULTS as error:
            self.fail(f"{side}: {error}")
        finally:
            code = server.stop()
            found.update(ready_seconds=server.ready_seconds, code=code, log=server.tail())
        if code != 0:
            self.fail(f"{side}: the server ended with exit code {code}")

    def steps(self, session, results):
        wanted = {step: weight for step, weight in STEPS.items() if step.__name__ in self.args.steps}
        for at, step in enumerate(wanted):
            name, began, found = step.__name__, time.monotonic(), {}
            left = session.server.until - began
            try:
                if left <= 0:
                    raise TimeoutError("no time left: raise --seconds, or leave steps out")
                found = step(session, began + share(left, list(wanted.values())[at:]))
                outcome = "ok"
            except FAULTS as error:
                outcome = "failed"
                self.fail(f"{session.server.name}: {name}: {error}")
            seconds = time.monotonic() - began
            results.append(dict(found, step=name, outcome=outcome, seconds=seconds))
            print(f"  {name:9} {outcome:6} {seconds:6.1f} s  {found.get('line', '')}".rstrip(), flush=True)

    def fail(self, reason):
        self.failures.append(reason)
        print(f"  FAILED: {reason}", flush=True)

    def compare(self):
        """Compares each two servers; those that did not start have failed already."""
        for one, other in itertools.combinations(self.sessions, 2):
            ours, theirs, pair = self.sessions[one], self.sessions[other], f"{one}-{other}"
            answers = serve_answers.compare(ours.rows, theirs.rows)
            scores = serve_scores.compare(self.taken, ours.scored, theirs.scored)
            self.compared[pair] = dict(answers=answers, scores=scores)
            print("\n".join([*serve_answers.lines(pair, answers), *serve_scores.lines(pair, scores)]), flush=True)
            for reason in serve_answers.faults(answers, self.models[0], self.args.bound):
                self.fail(f"{pair}: {reason}")

    def report(self):
        rows = {side: session.rows for side, session in self.sessions.items()}
        found = dict(
            machine=self.machine, version=machine.said([str(self.args.program), "--version"]).strip(), servers=self.servers,
            compared=self.compared, failures=self.failures, answers=rows,
        )
        self.args.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def device(log):
    """The part of a log that names the device on which a server computes."""
    found = re.search(r"computing on .*", log)
    return found[0] if found else "the log names no device"


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("program", type=Path, metavar="WAYMARK", help="`waymark`, built with --features cuda")
    add("--demo", type=Path, required=True, metavar="DIR", help="index of demo/corpus.jsonl")
    add("--demo-questions", type=Path, default=DEMO, metavar="FILE", help="its questions; default demo/questions.jsonl")
    add("--index", type=Path, metavar="DIR", help="index for the load")
    add("--questions", type=Path, metavar="FILE", help="its questions: JSON lines with `question` and `answers`")
    policy = "policy to serve, several times; the first is asked most. Default: those in models/policies"
    add("--policy", type=Path, action="append", metavar="DIR", help=policy)
    add("--embedder", help="embedder of the indexes; default: the model that the index names")
    add("--cache", type=Path, metavar="DIR", help="cache directory with the base model")
    add("--first", default="--device cpu", metavar="FLAGS", help="flags of the reference; default %(default)r")
    add("--second", default="--device cuda", metavar="FLAGS", help="flags of the server to check; default %(default)r")
    add("--third", default="", metavar="FLAGS", help="flags of one more; default none")
    add("--seconds", type=float, default=360, help="time for all servers, which a last request may exceed; default %(default)s")
    add("--clients", type=numbers, default=[1, 16, 64], metavar="N,…", help="clients of the load; default 1,16,64")
    add("--most", type=int, metavar="N", help="at most so many questions of each file")
    add("--bound", type=float, default=10, metavar="PERCENT", help="questions by which exact match may differ; default %(default)s")
    add("--steps", type=names, default=list(NAMES), metavar="STEP,…", help="steps to run; default all")
    add("--json", type=Path, default=Path("serve_check.json"), metavar="FILE", help="report to write; default %(default)s")
    args = parser.parse_args(argv)
    if (args.index is None) != (args.questions is None):
        parser.error("--index and --questions belong together: give both or neither")
    return args


def numbers(text):
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of clients is at least 1")
    return found


def names(text):
    for name in text.split(","):
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"unknown step {name!r}: use {', '.join(NAMES)}")
    return text.split(",")


def main(argv=None):
    check = Check(arguments(argv))
    # Ends the server that runs, and writes the report.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="waymark-serve-check-") as folder:
        try:
            for side in check.flags:
                check.serve(side, Path(folder))
            check.compare()
        finally:
            check.report()
    print(f"{len(check.failures)} failures; report: {check.args.json}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
