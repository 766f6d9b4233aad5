"""Tests of `first_run.py` with real processes that succeed, fail, crash, hang and leave others behind, without a GPU.

    python3 scripts/cuda/first_run_test.py
"""

import contextlib
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
import unittest
from pathlib import Path
from unittest import mock

import first_run
import machine
from first_run import Slice

# Does what the value of --parts says. Each start is counted in STARTS.
PROGRAM = """#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
part = args.get("--parts", "judge")
with open(os.environ["STARTS"], "a") as file:
    file.write(part + " " + os.environ.get("CUDA_LAUNCH_BLOCKING", "0") + os.environ.get("RUST_BACKTRACE", "0") + "\\n")
def report(**fields):
    with open(args["--json"], "w") as file:
        json.dump(dict(device=os.environ.get("CARD", "a card"), notes=[], **fields), file)
print("output of", part, flush=True)
print("trouble of", part, file=sys.stderr, flush=True)
report(part=part)
if part == "judge":
    report(judged=args["--judge"].count(",") + 1, peer="--peer" in args)
    print("goal reached" if "--peer" in args else "goal missed")
if part == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if part == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if part in ("hang", "stubborn"):
    time.sleep(600)
if part == "orphan":
    print(subprocess.Popen(["sleep", "600"]).pid)
if part == "fail":
    report(part=part)
    sys.exit(1)
if part == "loud":
    sys.stderr.write("x" * 1000000 + "the end")
if part == "cardless":
    os.environ["CARD"] = ""
    report()
    sys.exit(1)
"""

# Seconds of a part that ends by itself, and of a wait for what must come about, on a slow machine too.
PATIENCE = 120

MACHINE = dict(card="a card, 1.0", libraries={}, compute_sanitizer="", packages=[], library_path="", platform="", python="")


class FirstRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.program, self.archive = self.dir / "program", self.dir / "out" / "first_run.tar.gz"
        self.program.write_text(PROGRAM)
        self.starts = self.dir / "starts"
        self.starts.touch()
        for patch in (
            mock.patch.dict(os.environ, {"STARTS": str(self.starts)}),
            mock.patch.object(machine, "describe", lambda: dict(MACHINE)),
            mock.patch.object(first_run, "GRACE", 1),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    def run_parts(self, slices, *more):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = first_run.main([str(self.program), str(self.archive), *more], slices)
        return code, said.getvalue()

    def results(self):
        return {result["slice"]: result for result in first_run.results(self.archive)}

    def file(self, name):
        with tarfile.open(self.archive) as packed:
            return packed.extractfile(f"first_run/{name}").read().decode()

    def started(self):
        parts = self.starts.read_text().split("\n")[:-1]
        self.starts.write_text("")
        return [part for part in parts if not part.startswith("judge")]

    def test_a_part_that_crashes_or_hangs_loses_no_other(self):
        parts = ["fine", "crash", "hang", "stubborn", "fail", "cardless", "last"]
        limit = lambda part: 6 if part in ("hang", "stubborn") else PATIENCE
        slices = [Slice(part, limit(part), f"--parts {part}", judged=part == "fine") for part in parts]
        begun = time.monotonic()
        code, said = self.run_parts(slices)
        self.assertLess(time.monotonic() - begun, 300)
        self.assertEqual(code, 1)
        results = self.results()
        outcomes = {name: result["outcome"] for name, result in results.items()}
        self.assertEqual(outcomes, {
            "fine": "ok", "crash": "crashed", "hang": "timed out", "stubborn": "timed out", "fail": "failed",
            "cardless": "no GPU", "last": "ok",
        })
        self.assertEqual(results["crash"]["code"], -signal.SIGSEGV)
        for part in parts:
            # What was said before the end is there, whatever the end.
            self.assertEqual(results[part]["stderr"], f"trouble of {part}\n")
            self.assertEqual(results[part]["stdout"], f"output of {part}\n")
        self.assertEqual(results["hang"]["report"]["part"], "hang")
        # What failed is tried once more with blocking launches, under a name of its own.
        self.assertEqual(results["crash"]["with_blocking_launches"]["outcome"], "crashed")
        self.assertIn("==== crash, with blocking launches\ntrouble of crash\n", self.file("stderr.txt"))
        self.assertEqual([part for part in self.started() if part.startswith(("crash", "fine"))], ["fine 01", "crash 01", "crash 11"])
        self.assertIn("goal missed", said)
        self.assertEqual(json.loads(self.file("goals.json"))["judged"], 1)
        with tarfile.open(self.archive) as packed:
            self.assertLessEqual(len(packed.getnames()), 7)
        self.assertEqual([path.name for path in self.archive.parent.iterdir()], [self.archive.name])

    def test_a_second_call_runs_what_has_no_result_of_the_same_program_on_the_same_card(self):
        slices = [Slice(part, PATIENCE, f"--parts {part}") for part in ("one", "two", "cardless")]
        self.assertEqual(self.run_parts(slices, "--only", "one,card")[0], 0)
        self.assertEqual(self.started(), ["one 01", "cardless 01"])
        self.run_parts(slices)
        # A result without a card is none.
        self.assertEqual(self.started(), ["two 01", "cardless 01"])
        self.run_parts(slices, "--again", "t")
        self.assertEqual(self.started(), ["two 01", "cardless 01"])
        changed = [Slice(one.name, PATIENCE, f"{one.args} --seed 2") for one in slices[:1]]
        self.run_parts(changed)
        self.assertEqual(self.started(), ["one 01"], "other arguments are another part")
        earlier = self.dir / "earlier.tar.gz"
        self.archive.rename(earlier)
        self.run_parts(changed, "--from", str(earlier))
        self.assertEqual(self.started(), [])
        self.assertEqual(self.results()["one"]["outcome"], "ok", "it is in the new archive too")
        with mock.patch.object(machine, "describe", lambda: dict(MACHINE, card="another, 1.0")):
            self.run_parts(changed)
        self.assertEqual(self.started(), ["one 01"])
        self.program.write_text(PROGRAM + "\n")
        self.run_parts(changed)
        self.assertEqual(self.started(), ["one 01"])

    def test_a_spent_budget_leaves_the_rest_for_the_next_call(self):
        slices = [Slice("hang", 60, "--parts hang"), Slice("two", PATIENCE, "--parts two"), Slice("short", 10, "--parts short")]
        with mock.patch.object(first_run, "RESERVE", 0):
            code, _ = self.run_parts(slices, "--budget", "20")
            self.assertEqual(code, 0)
            outcomes = [result["outcome"] for result in self.results().values()]
            self.assertEqual(outcomes, ["cut short", "not run", "not run"])
            self.started()
            self.run_parts(slices, "--only", "two,short")
        self.assertEqual(self.started(), ["two 01", "short 01"])

    def test_what_a_part_leaves_behind_is_ended(self):
        self.run_parts([Slice("orphan", PATIENCE, "--parts orphan")])
        left = int(self.results()["orphan"]["stdout"].split()[-1])
        state = Path(f"/proc/{left}/stat")

        def gone():
            try:
                return state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                return True

        until = time.monotonic() + PATIENCE
        while not gone() and time.monotonic() < until:
            time.sleep(0.05)
        self.assertTrue(gone())

    def test_much_output_is_kept_at_both_ends(self):
        self.run_parts([Slice("loud", PATIENCE, "--parts loud", blocking=True)])
        self.assertEqual(self.started(), ["loud 11"])
        kept = self.results()["loud"]["stderr"]
        self.assertTrue(kept.startswith("trouble of loud\n") and kept.endswith("the end") and "bytes left out" in kept)
        self.assertLess(len(kept), 40_000)

    def test_missing_tools_and_packages_are_results(self):
        slices = [
            Slice("memcheck-128", PATIENCE, "--parts kernels", kind="memcheck"),
            Slice("peer-none", PATIENCE, "gpu_peer.py", kind="no_such_package"),
        ]
        self.assertEqual(self.run_parts(slices)[0], 0)
        results = self.results()
        self.assertEqual([result["outcome"] for result in results.values()], ["absent", "absent"])
        self.assertIn("compute-sanitizer", results["memcheck-128"]["stderr"])
        self.assertIn("no_such_package", results["peer-none"]["stderr"])
        self.assertEqual(self.started(), [])

    def test_a_sanitizer_runs_around_the_program(self):
        tool = self.dir / "compute-sanitizer"
        tool.write_text('#!/bin/sh\necho "$1 $2 $3 $4"; shift 4; exec "$@"\n')
        tool.chmod(0o755)
        with mock.patch.object(machine, "describe", lambda: dict(MACHINE, compute_sanitizer=str(tool))):
            self.run_parts([Slice("racecheck-128", PATIENCE, "--parts fine", kind="racecheck")])
        self.assertEqual(self.results()["racecheck-128"]["stdout"], "--tool racecheck --error-exitcode 86\noutput of fine\n")

    def test_a_packed_program_and_an_end_from_outside(self):
        packed = self.dir / "program.xz"
        packed.write_bytes(lzma.compress(PROGRAM.encode()))
        code = f"import sys; sys.path.insert(0, {str(Path(first_run.__file__).parent)!r}); import first_run; " \
            "first_run.main(sys.argv[1:], [first_run.Slice(p, 300, f'--parts {p}') for p in ('one', 'hang', 'two')])"
        child = subprocess.Popen(
            [sys.executable, "-B", "-c", code, str(packed), str(self.archive)], stdout=subprocess.PIPE,
        )
        self.addCleanup(child.stdout.close)
        until = time.monotonic() + PATIENCE
        while "hang" not in self.starts.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        child.terminate()
        self.assertEqual(child.wait(PATIENCE), 143)
        self.assertEqual({name: result["outcome"] for name, result in self.results().items()}, {"one": "ok"})
        self.assertNotIn("two 01", self.started())

    def test_the_table_has_every_part_once_and_in_its_order(self):
        slices = first_run.table()
        names = [one.name for one in slices]
        self.assertEqual(len(names), len(set(names)))
        kernels = [name for name in names if name.startswith("kernels-")]
        self.assertEqual(kernels, ["kernels-128", "kernels-64", "kernels-96", "kernels-80"])
        order = ["info", "kernels-128", "memcheck-128", "agreement-128", "stress-attention", "gemm-3b", "decode-3b", "agentic-3b", "peer-vllm-3b"]
        self.assertEqual(sorted(order, key=names.index), order)
        blocking = [one.name for one in slices if one.blocking]
        self.assertEqual(blocking, kernels)

    def test_an_unknown_part_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "unknown part `decod3`: use one"):
            self.run_parts([Slice("one", PATIENCE, "--parts one")], "--again", "decod3")


class Machine(unittest.TestCase):
    def test_libraries_of_each_generation_are_found_in_wheels_and_toolkits(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [
                "site/nvidia/cublas/lib/libcublas.so.12", "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "site/nvidia/cu13/lib/libcublas.so.13", "site/nvidia/cu13/lib/libnvrtc.so.13", "toolkit/lib64/libcublas.so.12",
            ]
            for file in files:
                path = Path(folder) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            roots = [f"{folder}/site/nvidia/**/lib", f"{folder}/toolk*/lib64"]
            found = [path[len(folder) + 1:] for path in machine.libraries(12, roots)]
            self.assertEqual(found, ["site/nvidia/cublas/lib", "site/nvidia/cuda_nvrtc/lib", "toolkit/lib64"])
            found = [path[len(folder) + 1:] for path in machine.libraries(13, roots)]
            self.assertEqual(found, ["site/nvidia/cu13/lib"])

    def test_the_driver_says_which_card_and_which_generation(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder) / "nvidia-smi"
            tool.write_text(
                '#!/bin/sh\ncase "$*" in *query-gpu*) echo "NVIDIA H200, 550.54" ;; *) echo "| CUDA Version: 12.4  |" ;; esac\n'
            )
            tool.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": f"{folder}:{os.environ['PATH']}"}):
                self.assertEqual((machine.card(), machine.newest()), ("NVIDIA H200, 550.54", 12))
                self.assertNotIn(13, machine.describe()["libraries"])
                tool.write_text("#!/bin/sh\necho No devices were found\n")
                self.assertEqual((machine.card(), machine.newest()), ("", 13))


if __name__ == "__main__":
    unittest.main()
