#!/usr/bin/env python3
"""The peer of `bench-gpu`: continuous batching of `transformers` on the same shapes and loads.

    python3 scripts/bench/gpu_peer.py --json peer.json [--ours gpu.json] [--seconds 240]

Needs PyTorch with CUDA and transformers 5.17 or later (read against the source of 5.23). Weights are random, in bf16. Prints
the fields of `bench-gpu --json` that it measures, and with --ours the ratio of each rate to it. What was measured is in
the file of --json as soon as it is known.
"""

import argparse
import gc
import heapq
import inspect
import json
import os
import random
import signal
import sys
import time

# As in tools/src/gpu/shape.rs.
SHAPES = {
    "smollm2-135m": dict(
        model_type="llama", vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, intermediate_size=1536, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
    "qwen2.5-3b": dict(
        model_type="qwen2", vocab_size=151936, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
        num_key_value_heads=2, intermediate_size=11008, max_position_embeddings=32768, tie_word_embeddings=True,
    ),
    "qwen2.5-7b": dict(
        model_type="qwen2", vocab_size=152064, hidden_size=3584, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, intermediate_size=18944, max_position_embeddings=32768, tie_word_embeddings=False,
    ),
    "tiny": dict(
        model_type="qwen2", vocab_size=4096, hidden_size=576, num_hidden_layers=6, num_attention_heads=9,
        num_key_value_heads=3, intermediate_size=1536, max_position_embeddings=4096, tie_word_embeddings=True,
    ),
    "tiny-128": dict(
        model_type="qwen2", vocab_size=4096, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, head_dim=128,
        num_key_value_heads=2, intermediate_size=1536, max_position_embeddings=4096, tie_word_embeddings=True,
    ),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="smollm2-135m,qwen2.5-3b,qwen2.5-7b")
    parser.add_argument("--sequences", default="1,8,32,64,128,256")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--observed", type=int, default=500)
    parser.add_argument("--written", type=int, default=64)
    parser.add_argument("--search-ms", type=float, default=20.0)
    parser.add_argument("--attention", default="sdpa", help="attn_implementation, such as sdpa or flash_attention_2")
    parser.add_argument("--seconds", type=float, default=0.0, help="do less rather than take longer; 0 is no limit")
    parser.add_argument("--json", help="write the report here")
    parser.add_argument("--ours", help="the report of `bench-gpu --json`, to be compared with")
    return parser.parse_args()


def model(shape, attention):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = dict(SHAPES[shape])
    config = AutoConfig.for_model(settings.pop("model_type"), rms_norm_eps=1e-6, **settings)
    config.dtype = torch.bfloat16
    torch.manual_seed(1)
    with torch.device("cuda"):
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    return made.eval()


def prompt(rng, shape, tokens):
    return [rng.randrange(SHAPES[shape]["vocab_size"]) for _ in range(tokens)]


def settings(tokens):
    """Settings for greedy sampling without an end token."""
    from transformers import GenerationConfig

    return GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)


class Ledger:
    """The report, saved to a file after every number, so that a run that ends early loses nothing."""

    def __init__(self, report, path):
        self.report, self.path = report, path

    def add(self, part, row):
        self.report[part].append(row)
        self.save()

    def note(self, text):
        if text not in self.report["notes"]:
            print(f"  {text}", file=sys.stderr)
            self.add("notes", text)

    def save(self):
        if self.path:
            part = f"{self.path}.part"
            with open(part, "w") as file:
                file.write(json.dumps(self.report, indent=2) + "\n")
            os.replace(part, self.path)


class Peer:
    """A model of one shape, the loads that it is measured under, and the time there is."""

    def __init__(self, lm, shape, args, ledger, until):
        self.lm, self.shape, self.args, self.ledger = lm, shape, args, ledger
        self.until, self.half = until, (time.perf_counter() + until) / 2
        self.graphs = False

    def tried(self, what, work):
        """Does a part of the work. A failure is noted, and the other parts are still measured."""
        if time.perf_counter() > self.until:
            return self.ledger.note(f"{self.shape}, {what}: left out, the time is over")
        try:
            work()
        except Exception as error:  # noqa: BLE001
            self.ledger.note(f"{self.shape}, {what}: {type(error).__name__}: {error}")
            # The part that failed may have left requests behind.
            self.forget()

    def forget(self):
        try:
            self.lm.destroy_cached_continuous_batching_manager()
        except Exception as error:  # noqa: BLE001
            self.ledger.note(f"{self.shape}, the end of its manager: {type(error).__name__}: {error}")
        free()

    def rounds(self):
        """Yields at least one round, and further ones until half of the time is over."""
        for round in range(self.args.rounds):
            if round == 0 or time.perf_counter() < self.half:
                yield round

    def accepted(self, call, **wanted):
        """Returns those of the arguments that this version knows, and notes the others."""
        known = inspect.signature(call).parameters
        for name in wanted.keys() - known.keys():
            self.ledger.note(f"this version has no {name} in {call.__name__}")
        return {name: value for name, value in wanted.items() if name in known}

    def pool(self):
        """Returns the options for the size of the manager. It is made once and kept, and without them its size would be
        that of the first batch, one sequence."""
        try:
            from transformers import ContinuousBatchingConfig
        except ImportError:
            return {}
        args = self.args
        longest = max(
            args.prompt + args.tokens, args.prompt_tokens + 2,
            args.prompt + args.turns * (args.written + args.observed),
        )
        blocks = longest // 256 + 2
        wanted = self.accepted(
            ContinuousBatchingConfig,
            max_requests_per_batch=max(*counts(args), args.prompts, args.loops),
            # An even number, as the manager would choose.
            max_blocks_per_request=blocks + blocks % 2,
        )
        return dict(continuous_batching_config=ContinuousBatchingConfig(**wanted))

    def manager(self, tokens):
        call = self.lm.continuous_batching_context_manager
        wanted = dict(generation_config=settings(tokens), persistent_manager=True, warmup=True, **self.pool())
        return call(**self.accepted(call, **wanted))

    def warm(self):
        """Makes the manager, and notes its settings."""
        with self.manager(self.args.tokens) as manager:
            config = getattr(manager, "continuous_batching_config", None)
            graphs = getattr(config, "use_cuda_graph", None)
            self.graphs = any(graphs) if isinstance(graphs, tuple) else bool(graphs)
            names = ["use_cuda_graph", "use_async_batching", "max_batch_tokens", "max_requests_per_batch"]
            told = [f"{name} {getattr(config, name, None)}" for name in names]
            attention = getattr(self.lm.config, "_attn_implementation", None)
            self.ledger.note(f"{self.shape}: attention {attention}, {', '.join(told)}")

    def batch(self, inputs, tokens):
        """Runs all prompts at once. Returns the time of the start, and of each token of each prompt."""
        begun = time.perf_counter()
        call = self.lm.generate_batch
        out = call(**self.accepted(
            call, inputs=inputs, generation_config=settings(tokens), record_timestamps=True, progress_bar=False,
            persistent_manager=True, warmup=True, **self.pool(),
        ))
        short = sum(len(o.generated_tokens) != tokens for o in out.values())
        if len(out) != len(inputs) or short:
            # A request that fails ends like others, with the reason in `error`.
            why = next((o.error for o in out.values() if getattr(o, "error", None)), "no request says why")
            raise RuntimeError(f"{len(out)} of {len(inputs)} requests ended, {short} too short: {why}")
        # A manager may capture graphs at its first use, before it accepts requests. That time does not count.
        begun = max(begun, min(o.created_time for o in out.values()))
        return begun, [o.timestamps for o in out.values()]

    def rate(self, part, sequences, prompt, tokens, rate):
        self.ledger.add(part, dict(
            shape=self.shape, sequences=sequences, prompt=prompt, tokens=tokens, graphs=self.graphs,
            tokens_per_second=rate,
        ))
        print(f"  {part} {sequences:4} sequences {rate:10.1f} tokens/s", file=sys.stderr)

    def decode(self, count):
        rng, args, best = random.Random(count), self.args, 0.0
        for _ in self.rounds():
            _, stamps = self.batch([prompt(rng, self.shape, args.prompt) for _ in range(count)], args.tokens)
            best = max(best, together(stamps))
        self.rate("decode", count, args.prompt, args.tokens, best)

    def prefill(self):
        rng, args, seconds = random.Random(1 << 20), self.args, float("inf")
        for _ in self.rounds():
            inputs = [prompt(rng, self.shape, args.prompt_tokens) for _ in range(args.prompts)]
            begun, stamps = self.batch(inputs, 2)
            seconds = min(seconds, max(own[0] for own in stamps) - begun)
        # Prefill ends with the first token of each prompt.
        self.rate("prefill", args.prompts, args.prompt_tokens, 1, args.prompts * args.prompt_tokens / seconds)

    def measure(self):
        self.tried("the manager", self.warm)
        for count in counts(self.args):
            self.tried(f"decode of {count}", lambda: self.decode(count))
        self.tried("prefill", self.prefill)
        self.tried("agentic", self.agentic)
        self.forget()

    def agentic(self):
        """Measures loops. Each turn is a new request with the whole text so far: the peer has no parked sequences."""
        rng, args, shape = random.Random(1 << 21), self.args, self.shape
        texts = [prompt(rng, shape, args.prompt) for _ in range(args.loops)]
        turn, found, resumed, waiting, done = [0] * args.loops, [None] * args.loops, [], [], 0
        with self.manager(args.written) as manager:
            begun = time.perf_counter()

            def submit(loop):
                manager.add_request(
                    input_ids=texts[loop], request_id=f"{loop}-{turn[loop]}", max_new_tokens=args.written,
                    record_timestamps=True,
                )

            for loop in range(args.loops):
                submit(loop)
            while done < args.loops:
                while waiting and waiting[0][0] <= time.perf_counter():
                    _, loop = heapq.heappop(waiting)
                    found[loop] = time.perf_counter()
                    submit(loop)
                result = manager.get_result(timeout=0.001)
                if result is None or not result.is_finished():
                    if not manager.is_running():
                        raise RuntimeError("the manager ended")
                    continue
                if len(result.generated_tokens) != args.written:
                    raise RuntimeError(f"{result.request_id} ended early: {getattr(result, 'error', None)}")
                loop = int(result.request_id.split("-")[0])
                if found[loop] is not None:
                    resumed.append((result.timestamps[0] - found[loop]) * 1e3)
                texts[loop] = texts[loop] + list(result.generated_tokens)
                turn[loop] += 1
                if turn[loop] == args.turns:
                    done += 1
                    continue
                texts[loop] = texts[loop] + prompt(rng, shape, args.observed)
                heapq.heappush(waiting, (time.perf_counter() + args.search_ms * 1e-3, loop))
            seconds = time.perf_counter() - begun
        resumed.sort()
        at = lambda share: resumed[min(len(resumed) - 1, int(share * len(resumed)))] if resumed else 0.0
        self.ledger.add("agentic", dict(
            shape=shape, way="resubmitted", **load(args), questions_per_second=args.loops / seconds,
            resume_p50=at(0.5), resume_p95=at(0.95),
        ))


def load(args):
    """Sizes of the agentic load, as in tools/src/gpu/report.rs."""
    names = ["loops", "turns", "prompt", "written", "observed", "search_ms"]
    return {name: getattr(args, name) for name in names}


def counts(args):
    return [int(count) for count in args.sequences.split(",")]


def together(stamps):
    """Tokens per second while all sequences decode: `together` of tools/src/gpu/rates.rs."""
    every = [at for own in stamps for at in own]
    if not every:
        return 0.0
    begun = max(own[0] for own in stamps if own)
    until = min(own[-1] for own in stamps if own)

    def rate(until):
        count = sum(begun < at <= until for at in every)
        return count, count / max(until - begun, 1e-9)

    count, value = rate(until)
    return value if 2 * count >= len(every) else rate(max(every))[1]


def free():
    """Frees unused memory. Only the garbage collector frees a manager and its model, which refer to each other."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def compare(report, ours):
    """Prints the ratio of our rate to the peer's for each row. Our rates are those with graphs."""
    print("ratio of waymark to transformers:")
    for part in ["decode", "prefill"]:
        for theirs in report[part]:
            key = ("shape", "sequences", "prompt", "tokens")
            greedy = lambda row: row.get("sampling", "greedy") == "greedy"
            rows = [row for row in ours.get(part, []) if row["graphs"] and greedy(row)]
            own = [row for row in rows if all(row.get(k) == theirs[k] for k in key)]
            if own:
                ratio = own[0]["tokens_per_second"] / theirs["tokens_per_second"]
                print(f"  {part:8} {theirs['shape']:>14} {theirs['sequences']:4} sequences {ratio:8.2f}")
    for theirs in report["agentic"]:
        key = ("shape", "loops", "turns", "prompt", "written", "observed", "search_ms")
        same = [own for own in ours.get("agentic", []) if all(own.get(k) == theirs[k] for k in key)]
        waited = [own for own in same if not own["searched"]]
        if not waited:
            print(f"  agentic  {theirs['shape']:>14} not compared: no load of ours that waited for the same")
        for own in waited:
            ratio = own["questions_per_second"] / theirs["questions_per_second"]
            print(f"  agentic  {theirs['shape']:>14} {own['way']:>21} {ratio:8.2f}")


def finish(report, args):
    """Prints the report so far and, with --ours, the ratios."""
    print(json.dumps(report, indent=2))
    if args.ours:
        with open(args.ours) as file:
            compare(report, json.load(file))
    sys.stdout.flush()


def main():
    begun, args = time.perf_counter(), arguments()
    shapes = args.shapes.split(",")
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        sys.exit(f"unknown shapes {unknown}: use {', '.join(SHAPES)}")
    import torch
    import transformers

    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device")
    report = dict(
        device=torch.cuda.get_device_name(0),
        version=f"transformers {transformers.__version__}, torch {torch.__version__}, {args.attention}",
        decode=[], prefill=[], agentic=[], notes=[],
    )
    ledger = Ledger(report, args.json)

    def ended(number, _):
        """Prints the report and exits at once, because work on the GPU may never end."""
        finish(report, args)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, ended)
    try:
        for number, shape in enumerate(shapes):
            print(shape, file=sys.stderr)
            now = time.perf_counter()
            until = begun + args.seconds * (number + 1) / len(shapes) if args.seconds else float("inf")
            try:
                lm = model(shape, args.attention)
                ledger.note(f"{shape}: made in {time.perf_counter() - now:.1f} s")
                Peer(lm, shape, args, ledger, until).measure()
            except Exception as error:  # noqa: BLE001
                ledger.note(f"{shape}: {type(error).__name__}: {error}")
            lm = None
            free()
    finally:
        finish(report, args)


if __name__ == "__main__":
    main()
