"""Passages embedded per second by each family of encoders and by sentence-transformers, with random weights in the
shapes of published models.

    pip install sentence-transformers
    cargo bench -p waymark-models --bench embedder --no-run
    python3 scripts/bench/encoders.py BENCH CORPUS.jsonl SCRATCH_FOLDER [family ...]

BENCH is the program that the second line builds. The two run in turn, twice, on two threads, with the same passages (the
first with 90 to 120 word pieces, batches of 32), and the best of each counts. A directory is removed after its run.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

THREADS, BATCH, ROUNDS, TURNS = 2, 32, 2, 2
BASE = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
# Families with the shapes of a published model: its name, the configuration, special tokens (first, last, padding), and
# the pooling.
BERT = ("[CLS]", "[SEP]", "[PAD]")
ROBERTA = ("<s>", "</s>", "<pad>")
IDS = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
FAMILIES = {
    "bert": ("bge-base-en-v1.5", dict(BASE, max_position_embeddings=512), BERT, "cls"),
    "xlm-roberta": ("multilingual-e5-base", dict(BASE, max_position_embeddings=514, type_vocab_size=1, **IDS), ROBERTA, "mean"),
    "mpnet": ("all-mpnet-base-v2", dict(BASE, max_position_embeddings=514, **IDS), ROBERTA, "mean"),
    "distilbert": ("distilbert-base", dict(dim=768, hidden_dim=3072, n_layers=6, n_heads=12, max_position_embeddings=512), BERT,
                   "mean"),
    "modernbert": ("gte-modernbert-base", dict(
        hidden_size=768, intermediate_size=1152, num_hidden_layers=22, num_attention_heads=12, max_position_embeddings=8192,
        local_attention=128, cls_token_id=0, sep_token_id=2, **IDS), ROBERTA, "cls"),
    "nomic_bert": ("nomic-embed-text-v1.5", dict(
        BASE, max_position_embeddings=2048, hidden_act="silu", type_vocab_size=2,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0)), BERT, "mean"),
    "gte": ("gte-multilingual-base", dict(
        BASE, max_position_embeddings=8192, type_vocab_size=1, pad_token_id=0,
        rope_parameters=dict(rope_type="default", rope_theta=20_000.0)), BERT, "cls"),
    "qwen3": ("qwen3-embedding-0.6b", dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=8192, tie_word_embeddings=True, use_sliding_window=False,
        rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0)), (None, "<|endoftext|>", "<|endoftext|>"), "lasttoken"),
}


def texts_of(corpus):
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def tokenizer_of(corpus, first, last, padding):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    unknown = "[UNK]"
    if first:
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=20_000, special_tokens=[first, padding, last, unknown])
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=20_000, special_tokens=[last], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(itertools.islice(texts_of(corpus), 3000), trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in (first, last) if token]
    start = f"{first} " if first else ""
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start}$A {last}", special_tokens=ends)
    names = dict(pad_token=padding, cls_token=first, sep_token=last, eos_token=last, unk_token=unknown if first else None)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **{k: v for k, v in names.items() if v})


def save(kind, corpus, folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import AutoConfig, AutoModel

    _, config, special, pooling = FAMILIES[kind]
    tokenizer = tokenizer_of(corpus, *special)
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **config)
    with tempfile.TemporaryDirectory(dir=folder.parent) as plain:
        AutoModel.from_config(config).save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        width = getattr(config, "hidden_size", None) or config.dim
        modules = [Transformer(plain, max_seq_length=256), Pooling(width, pooling_mode=pooling), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def ours(bench, folder, corpus):
    out = subprocess.run([bench, folder, corpus, str(THREADS), str(BATCH), str(ROUNDS)], check=True, capture_output=True, text=True)
    return max(float(number) for number in re.findall(r"waymark: ([\d.]+) passages/s", out.stdout))


def peer(model, texts):
    best = 0.0
    model.encode(texts, batch_size=BATCH)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        model.encode(texts, batch_size=BATCH)
        best = max(best, BATCH / (time.perf_counter() - start))
    return best


def main(bench, corpus, scratch, *kinds):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    print("| family | in the shape of | waymark, passages/s | sentence-transformers | ratio |\n|---|---|---|---|---|")
    for kind in kinds or FAMILIES:
        folder = pathlib.Path(scratch) / f"encoder-{kind}"
        try:
            save(kind, corpus, folder)
            model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
            pieces = lambda text: len(model.tokenizer(text, add_special_tokens=False)["input_ids"])
            texts = list(itertools.islice((text for text in texts_of(corpus) if 90 <= pieces(text) <= 120), BATCH))
            if len(texts) < BATCH:
                raise SystemExit(f"{corpus} has only {len(texts)} passages of 90 to 120 word pieces, not {BATCH}")
            turns = [(ours(bench, folder, corpus), peer(model, texts)) for _ in range(TURNS)]
            one, other = (max(numbers) for numbers in zip(*turns))
            print(f"| `{kind}` | {FAMILIES[kind][0]} | {one:.1f} | {other:.1f} | {one / other:.2f} |", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main(*sys.argv[1:])
