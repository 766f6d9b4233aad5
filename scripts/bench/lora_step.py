"""Tokens per second of a LoRA step with PyTorch and peft, beside `cargo bench -p waymark-models --bench gradient`.

    pip install torch transformers peft gguf
    python3 scripts/bench/lora_step.py FILE.gguf [--sequences 1] [--length 512] [--rank 16] [--threads 2] [--rounds 5]
                                    [--targets 1.0] [--dtype float32|bfloat16]

Forward, backward and a step of AdamW over sequences of equal length, with the base model in `--dtype` (peft keeps the
adapter in float32); `--targets` says which part of each sequence, at its end, counts in the loss. One shape per process,
so that the peak memory is that of the shape. CPU time, beside wall time, helps on a busy machine.
"""

import argparse
import pathlib
import resource
import statistics
import time

import peft
import torch
import transformers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=pathlib.Path)
    for name, default in [("sequences", 1), ("length", 512), ("rank", 16), ("threads", 2), ("rounds", 5)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--targets", type=float, default=1.0)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        options.weights.parent, gguf_file=options.weights.name, dtype=getattr(torch, options.dtype))
    modules = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=options.rank, lora_alpha=32, target_modules=modules, task_type="CAUSAL_LM"))
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.01)
    tokens = torch.randint(0, base.config.vocab_size, (options.sequences, options.length))
    # The loss skips the first label of a sequence by itself: nothing predicts it.
    labels = tokens.clone()
    labels[:, :int(options.length * (1 - options.targets))] = -100
    times, busy = [], 0.0
    for _ in range(options.rounds + 1):
        begin, before = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        busy = busy + time.process_time() - before if len(times) > 1 else 0.0
    median = statistics.median(times[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    shape = f"{options.sequences} x {options.length}, {options.dtype}"
    print(f"{shape}: {tokens.numel() / median:.0f} tok/s   median {median:.2f} s, best {min(times[1:]):.2f} s, "
          f"CPU {busy / options.rounds:.2f} s   peak {peak} MB   torch {torch.__version__}, peft {peft.__version__}")


if __name__ == "__main__":
    main()
