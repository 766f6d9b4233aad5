"""Tests of `gpu_peer_engines.py` with stubs in place of vLLM, SGLang and the GPU.

    python3 scripts/bench/gpu_peer_engines_test.py
"""

import contextlib
import importlib.metadata
import io
import json
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import gpu_peer_engines

SIZES = "--shape tiny-128 --sequences 1,8 --prompt 4 --tokens 5 --prompts 2 --prompt-tokens 600 --rounds 2"


class Fake:
    """Either engine: remembers how it was made, and answers each prompt with as many tokens as were asked for."""

    made, ended, short = None, 0, 0

    def __init__(self, **options):
        path = options.get("model") or options["model_path"]
        with open(os.path.join(path, "config.json")) as file:
            self.config = json.load(file)
        self.options, self.batches = options, []
        Fake.made = self

    def shutdown(self):
        Fake.ended += 1


class Vllm(Fake):
    def generate(self, prompts, sampling, use_tqdm):
        self.batches.append((len(prompts), sampling["max_tokens"]))
        ids = [0] * (sampling["max_tokens"] - Fake.short)
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=ids)]) for _ in prompts]


class Sglang(Fake):
    def generate(self, input_ids, sampling_params):
        self.batches.append((len(input_ids), sampling_params["max_new_tokens"]))
        return [dict(meta_info=dict(completion_tokens=sampling_params["max_new_tokens"])) for _ in input_ids]


class Engines(unittest.TestCase):
    def setUp(self):
        Fake.made, Fake.ended, Fake.short = None, 0, 0

    def run_engine(self, engine):
        modules = dict(vllm=types.SimpleNamespace(LLM=Vllm, SamplingParams=dict), sglang=types.SimpleNamespace(Engine=Sglang))
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = os.path.join(folder, "peer.json")
            stack.enter_context(mock.patch.dict(sys.modules, modules))
            stack.enter_context(mock.patch.object(importlib.metadata, "version", lambda _: "1.2"))
            stack.enter_context(mock.patch.object(gpu_peer_engines, "device", lambda: "a card"))
            for stream in (contextlib.redirect_stdout, contextlib.redirect_stderr):
                stack.enter_context(stream(io.StringIO()))
            try:
                gpu_peer_engines.main(["--engine", engine, "--json", path, *SIZES.split()])
            finally:
                with open(path) as file:
                    self.report = json.load(file)

    def test_both_are_measured_under_the_same_loads(self):
        for engine in ("vllm", "sglang"):
            self.run_engine(engine)
            # Of each size a warm-up, the first tokens twice, and all tokens twice; then prefill twice.
            decode = [batch for count in (1, 8) for batch in [(count, 4), (count, 1), (count, 1), (count, 5), (count, 5)]]
            self.assertEqual(Fake.made.batches, [*decode, (2, 1), (2, 1)])
            self.assertEqual(self.report["version"], f"{engine} 1.2")
            self.assertEqual([row["sequences"] for row in self.report["decode"]], [1, 8])
            self.assertGreater(self.report["prefill"][0]["tokens_per_second"], 0)
            config = Fake.made.config
            self.assertEqual((config["architectures"], config["head_dim"]), (["Qwen2ForCausalLM"], 128))
            self.assertEqual(Fake.made.options["load_format"], "dummy")
        self.assertEqual(Fake.ended, 1, "SGLang has processes to end")

    def test_too_few_tokens_are_no_rate(self):
        Fake.short = 1
        with self.assertRaisesRegex(RuntimeError, r"\[0\] tokens instead of 1 for each of 1"):
            self.run_engine("vllm")
        self.assertEqual(self.report["decode"], [])


if __name__ == "__main__":
    unittest.main()
