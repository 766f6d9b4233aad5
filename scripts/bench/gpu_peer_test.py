"""Tests of `gpu_peer.py` with stubs in place of PyTorch, transformers and the GPU.

    python3 scripts/bench/gpu_peer_test.py
"""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

import gpu_peer

SIZES = "--shapes tiny --sequences 1,8,4 --prompt 4 --tokens 5 --prompts 2 --prompt-tokens 600 --rounds 2 --loops 3 --turns 2 " \
    "--observed 3 --written 2 --search-ms 1"


class Config:
    def __init__(self, max_requests_per_batch=None, max_blocks_per_request=None):
        self.max_requests_per_batch, self.max_blocks_per_request = max_requests_per_batch, max_blocks_per_request
        self.use_cuda_graph, self.use_async_batching, self.max_batch_tokens = (False, False), False, 512


class OldConfig(Config):
    def __init__(self, max_requests_per_batch=None):
        super().__init__(max_requests_per_batch)


class Manager:
    """Answers requests in the order in which they come."""

    def __init__(self, config):
        self.continuous_batching_config, self.waiting = config, []

    def add_request(self, input_ids, request_id, max_new_tokens, record_timestamps):
        self.waiting.append(answer(request_id, max_new_tokens, time.perf_counter()))

    def get_result(self, timeout):
        return self.waiting.pop(0) if self.waiting else None

    def is_running(self):
        return True


def answer(name, tokens, begun):
    stamps = [begun + 1e-3 * (at + 1) for at in range(tokens)]
    ended = types.SimpleNamespace(
        request_id=name, generated_tokens=[1] * tokens, timestamps=stamps, created_time=begun, error=None,
        is_finished=lambda: True,
    )
    return ended


class Model:
    """Model like those of transformers: the first session makes the manager, and later ones reuse it."""

    def __init__(self):
        self.config = types.SimpleNamespace(_attn_implementation="sdpa")
        self.made, self.batches, self.kept = [], [], None
        # Batch sizes at which the call fails, at which its requests fail, and at which SIGTERM arrives.
        self.broken, self.refused, self.ended = set(), set(), set()

    def session(self, config):
        if self.kept is None:
            self.kept = config
            self.made.append(config)
        return Manager(self.kept)

    @contextlib.contextmanager
    def continuous_batching_context_manager(
        self, generation_config=None, continuous_batching_config=None, persistent_manager=False, warmup=True
    ):
        yield self.session(continuous_batching_config)

    def generate_batch(
        self, inputs, generation_config=None, continuous_batching_config=None, record_timestamps=False,
        progress_bar=False, persistent_manager=False, warmup=True, **kwargs
    ):
        assert not kwargs, kwargs
        self.session(continuous_batching_config)
        self.batches.append(len(inputs))
        if len(inputs) in self.ended:
            os.kill(os.getpid(), signal.SIGTERM)
        if len(inputs) in self.broken:
            raise ValueError("an illegal address")
        begun = time.perf_counter()
        answers = {n: answer(n, generation_config, begun) for n in range(len(inputs))}
        if len(inputs) in self.refused:
            # All but the first, each with its reason, as the manager's thread delivers them.
            for n in range(1, len(inputs)):
                answers[n].generated_tokens, answers[n].error = [], f"out of memory at {n}"
        return answers

    def destroy_cached_continuous_batching_manager(self):
        self.kept = None


def run(lm, *more, config=Config, made=None):
    """Runs the program. Returns the JSON that it wrote, and what it printed."""
    cuda = types.SimpleNamespace(is_available=lambda: True, get_device_name=lambda _: "a card", empty_cache=lambda: None)
    modules = dict(
        torch=types.SimpleNamespace(__version__="1", cuda=cuda),
        transformers=types.SimpleNamespace(__version__="2", ContinuousBatchingConfig=config),
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path, out = os.path.join(folder, "peer.json"), io.StringIO()
        before = signal.getsignal(signal.SIGTERM)
        stack.callback(signal.signal, signal.SIGTERM, before)
        stack.enter_context(mock.patch.dict(sys.modules, modules))
        stack.enter_context(mock.patch.object(sys, "argv", ["gpu_peer.py", *SIZES.split(), "--json", path, *more]))
        stack.enter_context(mock.patch.object(gpu_peer, "model", made or (lambda shape, attention: lm)))
        stack.enter_context(mock.patch.object(gpu_peer, "settings", lambda tokens: tokens))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        gpu_peer.main()
        with open(path) as file:
            return json.load(file), out.getvalue()


class Tests(unittest.TestCase):
    def test_only_what_is_decoded_together_counts(self):
        at = lambda milliseconds: [1e-3 * at for at in milliseconds]
        early, late = at([1, 11, *range(20, 28)]), at(range(20, 30))
        self.assertAlmostEqual(gpu_peer.together([early, late]), 2000.0)
        self.assertAlmostEqual(gpu_peer.together([at([1, 2, 3, 4]), at([5, 6, 7, 9])]), 750.0)
        self.assertEqual(gpu_peer.together([]), 0.0)

    def test_one_manager_is_made_for_all_that_is_asked_of_it(self):
        lm = Model()
        report, _ = run(lm)
        self.assertEqual(len(lm.made), 1)
        # Eight sequences at most, and 602 tokens: two blocks and a part, and as many as make an even number.
        self.assertEqual((lm.made[0].max_requests_per_batch, lm.made[0].max_blocks_per_request), (8, 4))
        self.assertEqual([row["sequences"] for row in report["decode"]], [1, 8, 4])
        self.assertEqual((len(report["prefill"]), report["agentic"][0]["turns"]), (1, 2))
        self.assertFalse(report["decode"][0]["graphs"], "as the manager has it")
        self.assertTrue(any("attention sdpa, use_cuda_graph (False, False)" in note for note in report["notes"]))

    def test_what_a_version_does_not_know_is_not_asked_of_it(self):
        lm = Model()
        report, _ = run(lm, config=OldConfig)
        self.assertEqual((lm.made[0].max_requests_per_batch, len(report["decode"])), (8, 3))
        self.assertIn("this version has no max_blocks_per_request in OldConfig", report["notes"])

    def test_what_fails_keeps_nothing_else_from_being_measured(self):
        lm = Model()
        lm.broken = {8}
        report, _ = run(lm)
        self.assertEqual([row["sequences"] for row in report["decode"]], [1, 4])
        self.assertEqual((len(report["prefill"]), len(report["agentic"])), (1, 1))
        self.assertTrue(any("decode of 8: ValueError: an illegal address" in note for note in report["notes"]))

        def made(shape, attention):
            if shape == "tiny":
                raise MemoryError("too large")
            return lm

        report, _ = run(lm, "--shapes", "tiny,smollm2-135m", made=made)
        self.assertIn("tiny: MemoryError: too large", report["notes"])
        self.assertEqual({row["shape"] for row in report["decode"]}, {"smollm2-135m"})

    def test_why_requests_failed_is_told(self):
        lm = Model()
        lm.refused = {4}
        report, _ = run(lm)
        self.assertEqual([row["sequences"] for row in report["decode"]], [1, 8])
        told = "decode of 4: RuntimeError: 4 of 4 requests ended, 3 too short: out of memory at 1"
        self.assertTrue(any(told in note for note in report["notes"]), report["notes"])

    def test_less_is_done_where_there_is_less_time(self):
        lm = Model()
        run(lm, "--seconds", "1000")
        self.assertEqual(lm.batches, [1, 1, 8, 8, 4, 4, 2, 2])
        lm = Model()
        report, _ = run(lm, "--seconds", "1e-9")
        self.assertEqual(lm.batches, [])
        self.assertTrue(any("decode of 1: left out" in note for note in report["notes"]))
        peer = gpu_peer.Peer(lm, "tiny", types.SimpleNamespace(rounds=3), None, time.perf_counter() - 1)
        self.assertEqual(list(peer.rounds()), [0])

    def test_whoever_is_ended_prints_what_there_is(self):
        lm = Model()
        lm.ended = {8}
        exits = mock.patch.object(os, "_exit", side_effect=SystemExit)
        with mock.patch.object(gpu_peer, "finish") as finish, exits as left, self.assertRaises(SystemExit):
            run(lm)
        left.assert_called_once_with(128 + signal.SIGTERM)
        self.assertEqual(len(finish.call_args_list[0].args[0]["decode"]), 1)

    def test_what_is_the_same_is_compared(self):
        report, _ = run(Model())
        ours = json.loads(json.dumps(report))
        for row in ours["decode"] + ours["prefill"]:
            row["tokens_per_second"] *= 3
            row["graphs"] = True
        ours["decode"].insert(0, dict(ours["decode"][0], graphs=False, tokens_per_second=1.0))
        ours["decode"].insert(0, dict(ours["decode"][1], sampling="top-p", tokens_per_second=1.0))
        ours["decode"][3]["tokens"] += 1
        ours["agentic"] = [dict(ours["agentic"][0], way="parked", searched=False)]
        said = self.said(report, ours)
        self.assertEqual((said.count("decode"), said.count("3.00")), (2, 3), said)
        self.assertRegex(said, "parked +1.00")
        ours["agentic"][0]["turns"] = 4
        self.assertIn("not compared", self.said(report, ours))

    def said(self, report, ours):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            gpu_peer.compare(report, ours)
        return out.getvalue()

    def test_numbers_are_in_the_file_as_soon_as_they_are_known(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "peer.json")
            ledger = gpu_peer.Ledger(dict(decode=[], notes=[]), path)
            for count in [1, 2]:
                ledger.add("decode", count)
                with open(path) as file:
                    self.assertEqual(len(json.load(file)["decode"]), count)
            self.assertEqual(os.listdir(folder), ["peer.json"])


if __name__ == "__main__":
    unittest.main()
