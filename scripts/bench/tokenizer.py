"""Speed and memory of the package `tokenizers`, beside `cargo bench --bench tokenizer`.

    python3 -m pip install tokenizers
    python3 scripts/bench/tokenizer.py TOKENIZER.json CORPUS.jsonl [rounds]
    python3 scripts/bench/tokenizer.py --train SIZE TOKENIZER.json CORPUS.jsonl ...

The second form trains a byte-level BPE with SIZE tokens, split as Qwen2 splits, for sizes of which no tokenizer is at hand.
Takes the same texts as the Rust side.
"""

import json
import sys
import time

TEXT = 4 << 20
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def texts_of(corpus):
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def first_texts(corpus):
    texts, total = [], 0
    for text in texts_of(corpus):
        total += len(text.encode())
        if total > TEXT:
            return texts
        texts.append(text)
    return texts


def resident(field):
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(field))


def train(size, path, corpora):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text for corpus in corpora for text in texts_of(corpus)), trainer)
    tokenizer.save(path)
    print(f"{path}: {tokenizer.get_vocab_size()} tokens")


def main(path, corpus, rounds=3):
    from tokenizers import Tokenizer

    texts = first_texts(corpus)
    size = sum(len(text.encode()) for text in texts)
    before = resident("VmRSS")
    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(path)
    loading = time.perf_counter() - start
    print(f"tokenizers: {tokenizer.get_vocab_size()} tokens, loaded in {loading:.2f} s, {resident('VmRSS') - before:.0f} MB kept, "
          f"{resident('VmHWM') - before:.0f} MB at the peak", flush=True)
    for _ in range(rounds):
        start = time.perf_counter()
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        encoding = time.perf_counter() - start
        start = time.perf_counter()
        for one in ids:
            tokenizer.decode(one)
        decoding = time.perf_counter() - start
        tokens = sum(map(len, ids))
        print(f"tokenizers: encodes {size / encoding / 1e6:.1f} MB/s ({tokens / encoding / 1e6:.2f} million tokens/s), "
              f"decodes {size / decoding / 1e6:.1f} MB/s", flush=True)
    print(f"tokenizers: {resident('VmRSS') - before:.0f} MB kept after encoding")


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
