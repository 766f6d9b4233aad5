"""Tests of `serve_check.py` and its modules, with a small program in place of `waymark`, without a GPU.

    python3 scripts/cuda/serve_check_test.py
"""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import serve_answers
import serve_check
import serve_client
import serve_scores
from serve_client import Failure

# Serves what the steps ask for. The device decides how: `other` answers differently, `late` does not answer agents, `bare`
# ends before it listens, and `torn` leaves streams without their end. Each process leaves its ID in the folder STARTED.
PROGRAM = r"""#!/usr/bin/env python3
import json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
if sys.argv[1] == "--version":
    sys.exit(print("waymark 0"))
device = sys.argv[sys.argv.index("--device") + 1]
open(os.path.join(os.environ["STARTED"], str(os.getpid())), "w").close()
if device == "bare":
    sys.exit("no such device")
flying, told = [], threading.Event()
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, value):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path.startswith("/v1/traces/"):
            return self.reply({"tokens": {"ids": [5, 6, 7], "runs": [{"origin": "prompt", "tokens": 1}, {"origin": "policy", "tokens": 2}]}})
        self.reply(f"waymark_http_in_flight {len(flying) + 1}\n")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        flying.append(1)
        try:
            self.answer(body)
        finally:
            flying.pop()
    def answer(self, body):
        if self.path == "/v1/agent":
            # Some of many at once still run when the server is told to drain.
            told.wait(600 if device == "late" else 1 if len(flying) >= 5 else 0.03)
            answer = "Rome" if device == "other" else "Paris"
            usage = dict(completion_tokens=2, prompt_tokens=1, environment_tokens=0, searches=0)
            return self.reply(dict(id="e", answer=answer, finish_reason="stop", usage=usage, trace=[dict(type="answer", text=answer)]))
        if self.path.endswith("/replay"):
            return self.reply({"ids_equal": True})
        if self.path == "/inference/v1/generate":
            entry = {token: {"logprob": -1.0 - (device == "other")} for token in "567"}
            return self.reply({"prompt_logprobs": [None, entry, entry]})
        if body.get("stream"):
            end = "" if device == "torn" else "data: [DONE]\n"
            return self.reply('data: {"choices": [{"delta": {"content": "Pa"}}]}\n\ndata: {"choices": [{"delta": {"content": "ris"}}]}\n\n' + end)
        text = '{"answer": "Paris", "certain": true}' if "response_format" in body else "Paris"
        self.reply({"choices": [{"message": {"content": text}}]})
ThreadingHTTPServer.request_queue_size = 128
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = device == "late"
def stop(*_):
    told.set()
    threading.Thread(target=server.shutdown).start()
signal.signal(signal.SIGTERM, stop)
print(f"listening on http://127.0.0.1:{server.server_port}\ncomputing on the {device}", flush=True)
server.serve_forever(0.02)
server.server_close()
"""


class Whole(unittest.TestCase):
    """Runs of the script."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.program, self.started = self.dir / "waymark", self.dir / "started"
        self.started.mkdir()
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        questions = [dict(id=str(at), question=f"Which city is number {at}?", answers=["paris"]) for at in range(20)]
        (self.dir / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)) + "\n")
        os.environ["STARTED"] = str(self.started)
        self.addCleanup(os.environ.pop, "STARTED")

    def run_check(self, *more):
        """Returns the exit code, the report, and what was printed."""
        report = self.dir / "report.json"
        line = [str(self.program), "--demo", "demo.index", "--demo-questions", str(self.dir / "questions.jsonl"), "--json", str(report)]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = serve_check.main([*line, "--seconds", "120", "--clients", "1,4", *more])
        for started in self.started.iterdir():
            with self.assertRaises(ProcessLookupError):
                os.kill(int(started.name), 0)
        return code, json.loads(report.read_text()), printed.getvalue()

    def test_equal_servers_pass_every_step(self):
        code, report, printed = self.run_check()
        self.assertEqual((code, report["failures"]), (0, []), printed)
        for side in ("first", "second"):
            steps = [(step["step"], step["outcome"]) for step in report["servers"][side]["steps"]]
            self.assertEqual(steps, [(step.__name__, "ok") for step in serve_check.STEPS])
        compared = report["compared"]["first-second"]
        self.assertEqual({group["phase"] for group in compared["answers"]}, {"readme", "demo", "policies", "load", "again", "drain"})
        self.assertEqual(compared["scores"]["written"]["gap_max"], 0)
        self.assertEqual(len(list(self.started.iterdir())), 2)

    def test_other_answers_fail_and_a_third_server_is_compared_with_both(self):
        code, report, printed = self.run_check("--third", "--device other", "--steps", "readme,demo,scores")
        self.assertEqual(code, 1)
        self.assertEqual(set(report["compared"]), {"first-second", "first-third", "second-third"})
        self.assertEqual(
            report["failures"],
            [
                f"{pair}: {reason}" for pair in ("first-third", "second-third")
                for reason in ("4 of 4 answers to the README's questions differ", "exact match changes by -20 of 20 questions, the bound is 10 %")
            ], printed,
        )
        self.assertEqual(report["compared"]["first-third"]["scores"]["written"]["gap_mean"], 1)

    def test_a_server_that_does_not_start_leaves_the_other_its_turn(self):
        code, report, _ = self.run_check("--first", "--device bare", "--steps", "readme")
        self.assertEqual(code, 1)
        self.assertIn("no such device", report["failures"][0])
        self.assertEqual(report["servers"]["second"]["steps"][0]["outcome"], "ok")
        self.assertEqual(report["compared"], {})

    def test_a_torn_stream_fails_its_step_alone(self):
        code, report, _ = self.run_check("--second", "--device torn", "--steps", "demo,features,schema")
        self.assertEqual(code, 1)
        outcomes = [step["outcome"] for step in report["servers"]["second"]["steps"]]
        self.assertEqual(sorted(outcomes), ["failed", "ok", "ok"])
        self.assertIn("[DONE]", report["failures"][0])

    def test_a_server_that_hangs_ends_with_its_time(self):
        last, serve_client.LAST_SECONDS = serve_client.LAST_SECONDS, 0.2
        self.addCleanup(setattr, serve_client, "LAST_SECONDS", last)
        began = time.monotonic()
        code, report, _ = self.run_check("--second", "--device late", "--seconds", "10", "--steps", "readme,features")
        self.assertLess(time.monotonic() - began, 120)
        self.assertEqual(code, 1)
        self.assertIn("second: readme: 4 of 4 questions failed: ", report["failures"][0])
        self.assertIn("no time left", report["failures"][1])

    def test_sigterm_ends_the_server_and_writes_the_report(self):
        report = self.dir / "report.json"
        line = [sys.executable, "-B", serve_check.__file__, str(self.program), "--demo", "demo.index", "--json", str(report)]
        child = subprocess.Popen([*line, "--first", "--device late"], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not list(self.started.iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        child.terminate()
        self.assertEqual(child.wait(60), 143)
        (server,) = self.started.iterdir()
        with self.assertRaises(ProcessLookupError):
            os.kill(int(server.name), 0)
        self.assertEqual(list(json.loads(report.read_text())["servers"]), ["first"])


class Parts(unittest.TestCase):
    """Parsing and comparison."""

    def row(self, id_, answer, correct, phase="demo", text="t"):
        return dict(phase=phase, model="m", id=id_, answer=answer, text=text, correct=correct)

    def test_exact_match_ignores_case_articles_and_punctuation(self):
        self.assertTrue(serve_answers.exact("The  Louvre.", ["a louvre"]))
        self.assertFalse(serve_answers.exact("Louvre Lens", ["Louvre"]))
        self.assertFalse(serve_answers.exact(None, ["Louvre"]))

    def test_only_questions_that_both_answered_are_compared(self):
        ours = [self.row("1", "a", True), self.row("2", "b", False), dict(self.row("3", "c", True), error="timed out")]
        theirs = [self.row("1", "x", False, text="u"), self.row("2", "b", False), self.row("3", "c", True)]
        (group,) = serve_answers.compare(ours, theirs)
        expected = dict(phase="demo", model="m", questions=2, same_answer=1, same_text=1, correct=[1, 0], gained=0, lost=1)
        self.assertEqual(group, expected)

    def test_exact_match_may_differ_by_the_bound_and_by_two_questions(self):
        group = lambda asked, gained: [dict(phase="demo", model="m", questions=asked, same_answer=0, gained=gained, lost=0)]
        self.assertEqual(serve_answers.faults(group(6, 2), "m", 10), [])
        self.assertEqual(len(serve_answers.faults(group(6, 3), "m", 10)), 1)
        self.assertEqual(serve_answers.faults(group(50, 5), "m", 10), [])
        self.assertEqual(len(serve_answers.faults(group(50, 6), "m", 10)), 1)
        self.assertEqual(serve_answers.faults(group(50, 6), "another policy", 10), [])

    def test_a_failed_question_fails_its_step(self):
        with self.assertRaisesRegex(Failure, "1 of 2 questions failed: timed out"):
            serve_answers.answered([self.row("1", "a", True), dict(error="timed out")])
        with self.assertRaisesRegex(Failure, "no time"):
            serve_answers.answered([])

    def test_metrics_are_sums_over_labels(self):
        text = '# HELP a\na{b="1"} 2\na{b="2",outcome="cancelled"} 3\na_bucket{le="1"} 9\n'
        self.assertEqual(serve_client.metrics(text), {"a": 5, "a cancelled": 3})

    def test_a_stream_is_joined_and_must_end(self):
        chunk = 'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
        self.assertEqual(serve_client.streamed(f'{chunk}data: {{"choices": []}}\n\n{chunk}data: [DONE]\n'), "xx")
        with self.assertRaisesRegex(Failure, "DONE"):
            serve_client.streamed(chunk)

    def test_work_at_once_keeps_its_order_and_its_end(self):
        done, _ = serve_client.at_once(lambda item: item, [1, 2, 3], 1, time.monotonic() + 60)
        self.assertEqual(done, [1, 2, 3])
        done, _ = serve_client.at_once(lambda item: time.sleep(0.1) or item, list(range(50)), 2, time.monotonic() + 1)
        self.assertEqual(sorted(done), list(range(len(done))))
        self.assertTrue(0 < len(done) < 50, done)

    def test_time_is_shared_by_weight(self):
        self.assertEqual(serve_check.share(100, [25, 50, 25]), 25)
        self.assertEqual(serve_check.share(60, [25]), 60)

    def test_divergence_counts_unlisted_tokens_as_one(self):
        half, quarter = math.log(0.5), math.log(0.25)
        self.assertEqual(serve_scores.divergence({1: half}, {1: half}), 0)
        expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
        self.assertAlmostEqual(serve_scores.divergence({1: half, 2: quarter}, {1: quarter, 3: quarter}), expected)

    def test_scores_are_compared_apart_for_written_and_read_tokens(self):
        taken = [dict(ids=[1, 2, 3], origins=["prompt", "prompt", "policy"])]
        ours = [[None, {2: -1.0, 4: -2.0}, {3: -1.0, 4: -1.5}]]
        theirs = [[None, {2: -1.0, 4: -2.0}, {3: -2.0, 4: -1.5}]]
        compared = serve_scores.compare(taken, ours, theirs)
        self.assertEqual((compared["read"]["tokens"], compared["read"]["gap_max"], compared["read"]["same_best"]), (1, 0, 1))
        written = compared["written"]
        self.assertEqual((written["tokens"], written["gap_max"], written["same_best"], written["margin_max"]), (1, 1, 0, 0.5))
        self.assertEqual(written["loss"], [1, 2])

    def test_the_recommended_policy_of_a_family_is_served_and_routerag_comes_first(self):
        found = serve_check.committed(serve_check.ROOT / "models" / "policies")
        self.assertEqual(len(found), 5)
        self.assertEqual(found[0].parent.name, "routerag-smollm2-135m")
        self.assertTrue(all((path / "policy.toml").exists() for path in found))

    def test_wrong_arguments_are_refused(self):
        for wrong in (["--steps", "reamde"], ["--clients", "0"], ["--index", "x"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                serve_check.arguments(["waymark", "--demo", "d", *wrong])


if __name__ == "__main__":
    sys.exit(unittest.main())
