#!/usr/bin/env python3
"""More peers of `bench-gpu`: vLLM and SGLang in their own process, on the same shapes and loads.

    python3 scripts/bench/gpu_peer_engines.py --engine vllm --shape qwen2.5-3b --json peer.json

Not run on a GPU yet. Weights are random (`load_format="dummy"`), prompts are token IDs, and nothing is downloaded. Decode and
prefill are measured from outside, as the time of a whole batch: a rate of decode is the time of all tokens less that of
the first ones.
"""

import argparse
import importlib.metadata
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import gpu_peer
from gpu_peer import Ledger, counts, prompt

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--shape", choices=sorted(gpu_peer.SHAPES), required=True)
    parser.add_argument("--sequences", default="1,8,32,64")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the report here")
    return parser.parse_args(argv)


def config(shape, folder):
    """Writes a model without weights: the configuration alone."""
    settings = dict(gpu_peer.SHAPES[shape])
    kind = settings["model_type"]
    settings.setdefault("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    settings.update(
        architectures=[ARCHITECTURES[kind]], torch_dtype="bfloat16", rms_norm_eps=1e-6, hidden_act="silu",
        rope_theta=1e6,
        bos_token_id=0, eos_token_id=1,
    )
    path = Path(folder) / shape
    path.mkdir()
    (path / "config.json").write_text(json.dumps(settings))
    return str(path)


def vllm(path, longest, rows):
    """Starts vLLM. Returns a function that runs prompts for a number of tokens, and one that ends the engine."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=path, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=longest,
        max_num_seqs=rows, enable_prefix_caching=False,
    )

    def run(prompts, tokens):
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        out = engine.generate([dict(prompt_token_ids=ids) for ids in prompts], sampling, use_tqdm=False)
        return [len(one.outputs[0].token_ids) for one in out]

    return run, lambda: None


def sglang(path, longest, rows):
    """Starts SGLang, as [`vllm`]."""
    import sglang as package

    engine = package.Engine(
        model_path=path, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", context_length=longest,
        max_running_requests=rows, disable_radix_cache=True,
    )

    def run(prompts, tokens):
        sampling = dict(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)
        out = engine.generate(input_ids=prompts, sampling_params=sampling)
        return [one["meta_info"]["completion_tokens"] for one in out]

    return run, engine.shutdown


ENGINES = dict(vllm=vllm, sglang=sglang)


class Engine:
    """One running engine of one shape."""

    def __init__(self, run, shape, args, ledger):
        self.run, self.shape, self.args, self.ledger = run, shape, args, ledger

    def seconds(self, rng, count, tokens, length):
        """Returns the best time of a batch."""
        best = float("inf")
        for _ in range(self.args.rounds):
            prompts = [prompt(rng, self.shape, length) for _ in range(count)]
            begun = time.perf_counter()
            made = self.run(prompts, tokens)
            best = min(best, time.perf_counter() - begun)
            if made != [tokens] * count:
                raise RuntimeError(f"{made} tokens instead of {tokens} for each of {count}")
        return best

    def rate(self, part, sequences, length, tokens, rate):
        self.ledger.add(part, dict(
            shape=self.shape, sequences=sequences, prompt=length, tokens=tokens, graphs=True, tokens_per_second=rate,
        ))
        print(f"  {part} {sequences:4} sequences {rate:10.1f} tokens/s", file=sys.stderr)

    def measure(self):
        args = self.args
        for count in counts(args):
            rng = random.Random(count)
            self.run([prompt(rng, self.shape, args.prompt) for _ in range(count)], 4)
            first = self.seconds(rng, count, 1, args.prompt)
            every = self.seconds(rng, count, args.tokens, args.prompt)
            rate = count * (args.tokens - 1) / max(every - first, 1e-9)
            self.rate("decode", count, args.prompt, args.tokens, rate)
        rng = random.Random(1 << 20)
        seconds = self.seconds(rng, args.prompts, 1, args.prompt_tokens)
        self.rate("prefill", args.prompts, args.prompt_tokens, 1, args.prompts * args.prompt_tokens / seconds)


def device():
    import torch

    return torch.cuda.get_device_name(0)


def main(argv=None):
    args = arguments(argv)
    version = f"{args.engine} {importlib.metadata.version(args.engine)}"
    report = dict(device=device(), version=version, decode=[], prefill=[], agentic=[], notes=[])
    ledger = Ledger(report, args.json)
    longest = max(args.prompt + args.tokens, args.prompt_tokens + 1) + 16
    rows = max(*counts(args), args.prompts)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run, end = ENGINES[args.engine](config(args.shape, folder), longest, rows)
        ledger.note(f"{args.shape}: ready in {time.perf_counter() - begun:.1f} s")
        try:
            Engine(run, args.shape, args, ledger).measure()
        finally:
            end()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
