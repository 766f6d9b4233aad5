#!/usr/bin/env python3
"""The first run of `bench-gpu` on a GPU: every part in a process of its own, and all results in one archive.

    python3 scripts/cuda/first_run.py BENCH_GPU ARCHIVE.tar.gz [--from EARLIER.tar.gz] [--budget 570]

BENCH_GPU is `bench-gpu`, built with --features cuda and stripped; it may be packed as .xz or .gz. A part that crashes,
hangs or fails ends alone: its output so far and its standard error are in the archive, which is rewritten after each
part. A second call with the same archive, or with --from, runs only what has no result of the same program on the same
GPU. A part that was cut short by --budget counts as not run. Needs Python 3.9, and nothing else.

Exit code 1: a part failed, crashed or timed out. A missing GPU, tool or package is a result, and no failure.
"""

import argparse
import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine  # noqa: E402

BENCH = Path(__file__).resolve().parent.parent / "bench"
# Exit code of `compute-sanitizer` for a finding.
FOUND = 86
# The program names a kernel that hangs before this script ends its process.
HANGS = ("--step-timeout", "20")
# Bytes kept of each output: the beginning and the end.
HEAD, TAIL = 8 << 10, 24 << 10
# Seconds at the end of the budget, for the judgement and the archive.
RESERVE = 10
# Seconds between SIGTERM and SIGKILL, and until a process that ignores both is left behind.
GRACE = 5
SANITIZERS = ("memcheck", "racecheck")
# Kinds of parts that run our program.
OURS = ("bench-gpu", *SANITIZERS)
# Outcomes that need no repetition.
KEPT = ("ok", "failed", "crashed", "timed out")
RATES = "--sequences 1,8,32,64 --rounds 2"


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part that runs in a process of its own."""

    name: str
    seconds: int
    args: str
    # `bench-gpu`, a tool of `compute-sanitizer` around it, or the package that a script measures.
    kind: str = "bench-gpu"
    blocking: bool = False
    judged: bool = False


def table():
    """All parts in their order. Parts on which later results depend come first."""
    kernels = [Slice(f"kernels-{dim}", 45, f"--parts kernels --head-dims {dim}", blocking=True) for dim in (128, 64, 96, 80)]
    sanitized = [Slice(f"{tool}-128", 75, "--parts kernels --head-dims 128", kind=tool) for tool in ("memcheck", "racecheck")]
    compared = [
        Slice(f"{part}-{dim}", 90, f"--parts {part} --compared {shape}", judged=True)
        for part in ("agreement", "batches", "training") for dim, shape in ((128, "tiny-128"), (64, "tiny"))
    ]
    stress = [Slice(f"stress-{what}", 60, f"--parts stress-{what} --head-dims 128") for what in ("attention", "cache", "sampler")]
    shapes = (("3b", "qwen2.5-3b"), ("7b", "qwen2.5-7b"))
    timed = [Slice(f"gemm-{name}", 40, f"--parts gemm --shapes {shape}") for name, shape in shapes]
    timed += [Slice(f"profile-{name}", 120, f"--parts profile --shapes {shape} {RATES}") for name, shape in shapes]
    rates = [
        Slice(
            f"decode-{name}", 100,
            f"--parts decode --shapes {shape} --sampling greedy,top-p --launch graphs {RATES}", judged=True,
        ) for name, shape in (*shapes, ("135m", "smollm2-135m"))
    ]
    rates += [Slice(f"prefill-{name}", 75, f"--parts prefill --shapes {shape} --rounds 2", judged=True) for name, shape in shapes]
    loads = [Slice(f"agentic-{name}", 75, f"--parts agentic --shapes {shape}", judged=True) for name, shape in shapes]
    fp8 = [
        Slice("fp8-128", 90, "--parts agreement,batches --compared tiny-128 --weights fp8"),
        Slice("decode-7b-fp8", 100, f"--parts decode --shapes qwen2.5-7b --launch graphs --weights fp8 {RATES}"),
        Slice("prefill-7b-fp8", 75, "--parts prefill --shapes qwen2.5-7b --rounds 2 --weights fp8"),
    ]
    peers = [
        Slice("peer-transformers", 105, f"gpu_peer.py --shapes qwen2.5-3b,qwen2.5-7b {RATES} --seconds 90", kind="transformers"),
        *(
            Slice(f"peer-{engine}-{name}", 120, f"gpu_peer_engines.py --engine {engine} --shape {shape} {RATES}", kind=engine)
            for engine in ("vllm", "sglang") for name, shape in shapes
        ),
    ]
    first = [Slice("info", 60, "--parts info"), Slice("ceilings", 40, "--parts ceilings")]
    return [*first, *kernels, *sanitized, *compared, *stress, *timed, *rates, *loads, *fp8, *peers]


def clipped(path):
    """The text of a file, without its middle where it is long."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= HEAD + TAIL:
            return file.read().decode(errors="replace")
        head = file.read(HEAD).decode(errors="replace")
        file.seek(size - TAIL)
        return f"{head}\n[… {size - HEAD - TAIL} bytes left out …]\n{file.read().decode(errors='replace')}"


def parsed(path):
    """The JSON of a file, or None."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


class Run:
    """One call: the program, the machine, the results so far, and the time left."""

    def __init__(self, program, archive, budget, slices):
        self.program, self.archive, self.slices = program, archive, slices
        self.until = time.monotonic() + budget
        self.build = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
        self.machine = machine.describe()
        self.card = self.machine["card"]
        self.results, self.judgement, self.goals = {}, "", None
        self.dir = program.parent

    def restore(self, archive):
        """Takes over the results of the same program on the same GPU."""
        for result in results(archive):
            same = result.get("build") == self.build and result.get("card") == self.card
            if same and result.get("outcome") in KEPT:
                self.results[result["slice"]] = result

    def known(self, one):
        result = self.results.get(one.name)
        return result is not None and result["args"] == one.args

    def command(self, one, report):
        """The command line of a part, or the name of what it lacks."""
        ours = [str(self.program), *one.args.split(), "--json", str(report)]
        if one.kind == "bench-gpu":
            return [*ours, *HANGS, "--algorithms", str(self.dir / "algorithms.json")], None
        if one.kind in SANITIZERS:
            tool = self.machine["compute_sanitizer"]
            if not tool:
                return None, "compute-sanitizer"
            return [tool, "--tool", one.kind, "--error-exitcode", str(FOUND), *ours], None
        if importlib.util.find_spec(one.kind) is None:
            return None, f"the Python package {one.kind}"
        script, *rest = one.args.split()
        return [sys.executable, str(BENCH / script), *rest, "--json", str(report)], None

    def run(self, one):
        """Runs a part if enough time is left, and keeps its result."""
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        result = dict(slice=one.name, build=self.build, card=self.card, args=one.args, begun=begun)
        command, lacks = self.command(one, self.dir / "report.json")
        limit = min(one.seconds, self.until - time.monotonic() - RESERVE)
        if command is None:
            result.update(outcome="absent", stderr=f"not found: {lacks}\n")
        elif limit < min(one.seconds, 15):
            result.update(outcome="not run", stderr="the budget is spent\n")
        else:
            result.update(self.process(one, command, limit, one.blocking))
            if result["outcome"] in ("failed", "crashed") and not one.blocking and one.kind == "bench-gpu":
                # Errors of asynchronous launches name the wrong call.
                limit = min(one.seconds, self.until - time.monotonic() - RESERVE)
                if limit > 15:
                    result["with_blocking_launches"] = self.process(one, command, limit, True)
        self.results[one.name] = result
        return result

    def process(self, one, command, limit, blocking):
        """Runs a command in a process group of its own, which ends within `limit` seconds."""
        names = ("report.json", "stdout.txt", "stderr.txt")
        report, stdout, stderr = (self.dir / name for name in names)
        report.unlink(missing_ok=True)
        # At `info`, the program logs which versions of libraries it uses, and which algorithms it chose.
        environment = {"WAYMARK_LOG": "info", **os.environ, "RUST_BACKTRACE": "1", "PYTHONUNBUFFERED": "1"}
        if one.kind in OURS and self.machine["library_path"]:
            # PyTorch finds its own libraries, and might take these instead.
            environment["LD_LIBRARY_PATH"] = self.machine["library_path"]
        if blocking:
            environment["CUDA_LAUNCH_BLOCKING"] = "1"
        begun = time.monotonic()
        # Files instead of pipes: a process that a child leaves behind would keep a pipe open.
        with open(stdout, "wb") as out, open(stderr, "wb") as err:
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=self.dir,
                    start_new_session=True,
                )
            except OSError as error:
                return dict(outcome="failed", stderr=f"cannot start {command[0]}: {error}\n")
            code, late = wait(child, limit)
        found = parsed(report)
        return dict(
            outcome=outcome(one, found, code, late, limit), code=code, seconds=round(time.monotonic() - begun, 2),
            limit=round(limit, 1), blocking=blocking, report=found, stdout=clipped(stdout), stderr=clipped(stderr),
        )

    def judge(self):
        """Judges the goals by all rates and comparisons so far, once for each peer."""
        reports, peers = [], []
        for one in self.slices:
            result = self.results.get(one.name) or {}
            if not (result.get("report") or {}).get("device"):
                continue
            path = self.dir / f"{one.name}.json"
            path.write_text(json.dumps(result["report"]))
            if one.judged:
                reports.append(path)
            elif one.name.startswith("peer-"):
                peers.append((one.name, path))
        self.judgement, self.goals = "", None
        for name, peer in (peers or [("no peer", None)]) if reports else []:
            goals = self.dir / "goals.json"
            command = [self.program, "--json", goals, "--judge", ",".join(map(str, reports))]
            done = machine.said([*map(str, command), *(["--peer", str(peer)] if peer else [])])
            self.judgement += f"== goals, {name}\n{done}"
            self.goals = self.goals or parsed(goals)

    def summary(self):
        lines = [f"bench-gpu {self.build} on {self.card or 'no GPU'}", ""]
        for one in self.slices:
            result = self.results.get(one.name, {})
            notes = (result.get("report") or {}).get("notes") or []
            why = next((note for note in notes if note.startswith("FAILED: ")), "")
            if not why and result.get("outcome") not in (None, "ok"):
                why = ([line for line in result.get("stderr", "").splitlines() if line.strip()] or [""])[0]
            lines.append(f"{one.name:20} {result.get('outcome', 'not run'):10} {result.get('seconds', 0):7.1f} s  {why[:160]}".rstrip())
        return "\n".join(lines) + "\n\n" + self.judgement

    def pack(self):
        """Replaces the archive by one of at most six files."""
        done = [self.results[one.name] for one in self.slices if one.name in self.results]

        def texts(key):
            again = lambda result: (result.get("with_blocking_launches") or {}).get(key)
            parts = [(result["slice"], result.get(key)) for result in done]
            parts += [(f"{result['slice']}, with blocking launches", again(result)) for result in done]
            return "".join(f"==== {name}\n{text}\n" for name, text in parts if text)

        files = {
            "summary.txt": self.summary(),
            "results.jsonl": "".join(json.dumps(result) + "\n" for result in done),
            "stdout.txt": texts("stdout"),
            "stderr.txt": texts("stderr"),
            "machine.txt": machine.text(self.machine),
        }
        if self.goals:
            files["goals.json"] = json.dumps(self.goals, indent=2) + "\n"
        part = Path(f"{self.archive}.part")
        with tarfile.open(part, "w:gz") as packed:
            for name, text in files.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"first_run/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                packed.addfile(entry, io.BytesIO(data))
        os.replace(part, self.archive)


def wait(child, limit):
    """Waits until a process has ended or its time is over, and ends its whole group. Returns its exit code, or None if
    SIGKILL did not end it, and True if it was late."""
    late = False
    try:
        child.wait(limit)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # Processes that a part left behind when it ended by itself are killed at once.
            if number == signal.SIGKILL or late or child.poll() is None:
                try:
                    os.killpg(child.pid, number)
                except (ProcessLookupError, PermissionError):
                    break
                try:
                    child.wait(GRACE)
                except subprocess.TimeoutExpired:
                    pass
    return child.poll(), late


def outcome(one, report, code, late, limit):
    """One word for how a part ended."""
    if late:
        return "timed out" if limit >= one.seconds else "cut short"
    if code == 0:
        return "ok"
    if code < 0:
        return "crashed"
    # A report is saved before anything runs; without a GPU it has no device.
    if one.kind in OURS and report is not None and not report.get("device"):
        return "no GPU"
    return "failed"


def results(archive):
    """The results in an archive."""
    if not archive or not Path(archive).exists():
        return []
    with tarfile.open(archive) as packed:
        lines = packed.extractfile("first_run/results.jsonl").read().decode().splitlines()
    return [json.loads(line) for line in lines]


def unpacked(program, folder):
    """A copy of the program that runs, in a folder of its own."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(program.suffix, open)
    copy = folder / "bench-gpu"
    with opened(program, "rb") as file:
        copy.write_bytes(file.read())
    copy.chmod(0o755)
    return copy


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path, metavar="BENCH_GPU")
    parser.add_argument("archive", type=Path, metavar="ARCHIVE")
    parser.add_argument("--from", dest="earlier", type=Path, help="archive with earlier results; default ARCHIVE itself")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for everything")
    parser.add_argument("--only", default="", help="names or beginnings of names of the parts to run, with commas")
    parser.add_argument("--again", default="", help="the same, of parts to repeat although they have a result")
    return parser.parse_args(argv)


def named(one, names):
    return any(one.name.startswith(name) for name in names.split(",") if name)


def main(argv=None, slices=None):
    args = arguments(argv)
    slices = table() if slices is None else slices
    for names in (args.only, args.again):
        for name in filter(None, names.split(",")):
            if not any(named(one, name) for one in slices):
                sys.exit(f"unknown part `{name}`: use {', '.join(one.name for one in slices)}")
    args.archive.parent.mkdir(parents=True, exist_ok=True)
    # Ends the part that runs, and packs what there is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="waymark-first-run-") as folder:
        run = Run(unpacked(args.program, Path(folder)), args.archive, args.budget, slices)
        run.restore(args.earlier or args.archive)
        try:
            for one in slices:
                if (args.only and not named(one, args.only)) or (run.known(one) and not named(one, args.again)):
                    continue
                result = run.run(one)
                print(f"{one.name:20} {result['outcome']:10} {result.get('seconds', 0):7.1f} s", flush=True)
                run.pack()
            run.judge()
        finally:
            run.pack()
        print(run.summary(), end="")
        wrong = [result for result in run.results.values() if result["outcome"] in ("failed", "crashed", "timed out")]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
