"""Passages embedded per second by onnxruntime and sentence-transformers, beside `cargo bench --bench embedder`.

    python3 -m pip install sentence-transformers onnx onnxruntime onnxscript
    python3 scripts/bench/embedder.py DIRECTORY CORPUS.jsonl SCRATCH_FOLDER [threads] [batch] [rounds]

Takes the same passages as the Rust side: the first with 90 to 120 word pieces.
"""

import json
import os
import sys
import time


def main(directory: str, corpus: str, scratch: str, threads: int = 2, batch: int = 32, rounds: int = 5) -> None:
    import onnxruntime
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(directory, device="cpu")
    tokenizer = model.tokenizer
    texts = []
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            if 90 <= len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= 120:
                texts.append(text)
            if len(texts) == batch:
                break
    if len(texts) < batch:
        raise SystemExit(f"{corpus} has only {len(texts)} passages of 90 to 120 word pieces, not {batch}")

    path = os.path.join(scratch, "minilm.onnx")
    if not os.path.exists(path):
        export(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def onnx() -> None:
        inputs = dict(tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="np"))
        hidden = session.run(None, {name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")})[0]
        mask = inputs["attention_mask"][..., None].astype("float32")
        mean = (hidden * mask).sum(1) / mask.sum(1)
        mean / (mean**2).sum(1, keepdims=True) ** 0.5

    def torch_() -> None:
        model.encode(texts, batch_size=batch, normalize_embeddings=True)

    for name, run in (("onnxruntime", onnx), ("sentence-transformers", torch_)):
        run()
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            print(f"{name}: {batch / (time.perf_counter() - start):.1f} passages/s", flush=True)


def export(model, path: str) -> None:
    import torch

    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Encoder(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.bert(**dict(zip(names, inputs, strict=True))).last_hidden_state

    inputs = model.tokenizer(["one text", "another longer text"], padding=True, return_tensors="pt")
    axes = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
    torch.onnx.export(
        Encoder(model[0].auto_model.eval()), tuple(inputs[name] for name in names), path,
        input_names=names, output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
