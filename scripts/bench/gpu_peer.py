#!/usr/bin/env python3
"""The peer of `waymark bench gpu`: continuous batching of `transformers` on the same shapes and loads.

    python3 scripts/bench/gpu_peer.py --json peer.json [--ours gpu.json]

Needs PyTorch with CUDA and transformers 5.17 (checked against its public documentation, `generate_batch` and
`ContinuousBatchingManager`). Weights are random, in bf16. Prints the fields of `waymark bench gpu --json` that it
measures, and with --ours the ratio of each rate to it.
"""

import argparse
import heapq
import json
import random
import sys
import time

# As in src/cli/bench/gpu/shape.rs.
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
    parser.add_argument("--json", help="write the report here")
    parser.add_argument("--ours", help="the report of `waymark bench gpu --json`, to be compared with")
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
    """Greedy, and never ending by itself."""
    from transformers import GenerationConfig

    return GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)


def batch(lm, inputs, tokens):
    """Runs all prompts at once: when it began, when each had its first token, and when its last."""
    begun = time.perf_counter()
    out = lm.generate_batch(
        inputs=inputs, generation_config=settings(tokens), record_timestamps=True, progress_bar=False,
        persistent_manager=True, warmup=True,
    )
    short = [o.request_id for o in out.values() if len(o.generated_tokens) != tokens]
    if len(out) != len(inputs) or short:
        raise RuntimeError(f"{len(out)} of {len(inputs)} requests ended, too short: {short}")
    stamps = [o.timestamps for o in out.values()]
    # A manager that captures graphs at its first use does so before it takes requests.
    begun = max(begun, min(o.created_time for o in out.values()))
    return begun, max(s[0] for s in stamps), max(s[-1] for s in stamps)


def rates(lm, shape, args):
    rng = random.Random(1)
    decode = []
    for count in map(int, args.sequences.split(",")):
        best = 0.0
        for _ in range(args.rounds):
            _, first, last = batch(lm, [prompt(rng, shape, args.prompt) for _ in range(count)], args.tokens)
            best = max(best, count * (args.tokens - 1) / (last - first))
        decode.append(dict(shape=shape, sequences=count, prompt=args.prompt, graphs=True, tokens_per_second=best))
        print(f"  decode {count:4} sequences {best:10.1f} tokens/s", file=sys.stderr)
    seconds = float("inf")
    for _ in range(args.rounds):
        begun, first, _ = batch(lm, [prompt(rng, shape, args.prompt_tokens) for _ in range(args.prompts)], 2)
        seconds = min(seconds, first - begun)
    rate = args.prompts * args.prompt_tokens / seconds
    print(f"  prefill {rate:10.1f} tokens/s", file=sys.stderr)
    prefill = dict(
        shape=shape, sequences=args.prompts, prompt=args.prompt_tokens, graphs=True, tokens_per_second=rate
    )
    return decode, prefill


def agentic(lm, shape, args):
    """Loops whose every turn is a new request with the whole text so far: the peer knows no parked sequences."""
    rng = random.Random(2)
    texts = [prompt(rng, shape, args.prompt) for _ in range(args.loops)]
    turn, found, resumed, waiting = [0] * args.loops, [None] * args.loops, [], []
    begun, done = time.perf_counter(), 0
    with lm.continuous_batching_context_manager(
        generation_config=settings(args.written), persistent_manager=True, warmup=True
    ) as manager:
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
    return dict(
        shape=shape, way="resubmitted", loops=args.loops, questions_per_second=args.loops / seconds,
        resume_p50=at(0.5), resume_p95=at(0.95),
    )


def compare(report, ours):
    """Our rate over the peer's, line by line."""
    print("ratio of waymark to transformers:")
    for part in ["decode", "prefill"]:
        for theirs in report[part]:
            key = ("shape", "sequences", "prompt", "graphs")
            own = [row for row in ours.get(part, []) if all(row[k] == theirs[k] for k in key)]
            if own:
                ratio = own[0]["tokens_per_second"] / theirs["tokens_per_second"]
                print(f"  {part:8} {theirs['shape']:>14} {theirs['sequences']:4} sequences {ratio:8.2f}")
    for theirs in report["agentic"]:
        waits = f"agentic load on {theirs['shape']}: no index was given"
        if not any(note.startswith(waits) for note in ours.get("notes", [])):
            print(f"  agentic  {theirs['shape']:>14} not compared: ours searched an index, the peer waited")
            continue
        for own in ours.get("agentic", []):
            if own["shape"] == theirs["shape"] and own["loops"] == theirs["loops"]:
                ratio = own["questions_per_second"] / theirs["questions_per_second"]
                print(f"  agentic  {theirs['shape']:>14} {own['way']:>21} {ratio:8.2f}")


def main():
    args = arguments()
    unknown = [shape for shape in args.shapes.split(",") if shape not in SHAPES]
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
    for shape in args.shapes.split(","):
        print(shape, file=sys.stderr)
        begun = time.perf_counter()
        lm = model(shape, args.attention)
        report["notes"].append(f"{shape}: made in {time.perf_counter() - begun:.1f} s")
        # A part that fails is told, and the others are measured all the same.
        for part, run in [("rates", rates), ("agentic", agentic)]:
            try:
                found = run(lm, shape, args)
            except Exception as error:  # noqa: BLE001
                report["notes"].append(f"{shape}, {part}: {type(error).__name__}: {error}")
                print(f"  {part} failed: {error}", file=sys.stderr)
                continue
            if part == "rates":
                report["decode"].extend(found[0])
                report["prefill"].append(found[1])
            else:
                report["agentic"].append(found)
        lm.destroy_cached_continuous_batching_manager()
        del lm
        torch.cuda.empty_cache()
        # After each shape: whoever ends this early has what was measured.
        if args.json:
            with open(args.json, "w") as file:
                file.write(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    if args.ours:
        with open(args.ours) as file:
            compare(report, json.load(file))


if __name__ == "__main__":
    main()
