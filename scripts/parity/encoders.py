"""Makes models/tests/fixtures/encoders, with which models/tests/encoders compares the embedder.

    pip install torch transformers sentence-transformers
    python3 scripts/parity/encoders.py

For each family, sentence-transformers saves a small model with a small tokenizer of the family's kind. Its weights are then
replaced by pseudo-random numbers, so that the repository need not hold them: `numbers` here and in the test are the same.
sentence-transformers opens the directory again, as it opens a downloaded one, and its vectors are the expected ones.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import sentence_transformers
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "encoders"
HIDDEN, FFN, LAYERS, HEADS, POSITIONS, MAX_PIECES = 64, 96, 2, 2, 80, 64

CORPUS = [
    "Marie Curie was a Polish and naturalised-French physicist and chemist who conducted research on radioactivity.",
    "The river rises in the hills, passes nine villages and a mill, and reaches the sea in the third county.",
    "Who wrote Faust, and where was the author of The Robbers born?",
    "Represent this sentence for searching relevant passages: search_query: search_document: query: passage:",
    "Ünïcödé, 東京都 and a number: 1234567890.",
] * 4
TEXTS = [
    "Who was born in the third county?",
    "The author of The Robbers was a physicist.",
    "",
    "x",
    "Ünïcödé, 東京都, emoji 🦀 and\nnew lines   too",
    "[CLS] and </s> are <|endoftext|> in the text",
    "The river passes nine villages and a mill. " * 12,
]


def word_pieces(first, last, pad, unknown):
    """BERT's tokenizer: lower case, without accents, in word pieces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = [first, pad, last, unknown, "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    return wrapped(tokenizer, first, last, pad, unknown)


def byte_pairs(first, last, pad, unknown, normalizer=None, split=None, pair=None):
    """Byte-level BPE, as in RoBERTa, ModernBERT and Qwen3. `first` may be missing."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = bytes_
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in dict.fromkeys((first, pad, last, unknown)) if token]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer, first, last, pad, unknown, pair)


def unigram():
    """XLM-R's tokenizer, without its table of normalizations."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer, "<s>", "</s>", "<pad>", "<unk>")


def wrapped(tokenizer, first, last, pad, unknown, pair=None):
    """Returns a tokenizer that adds the special tokens to texts, and to pairs if `pair` is their template."""
    ends = [(token, tokenizer.token_to_id(token)) for token in (first, last) if token]
    start = f"{first} " if first else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start}$A {last}", pair=pair, special_tokens=ends)
    names = dict(pad_token=pad, unk_token=unknown, cls_token=first, sep_token=last, eos_token=last)
    names = {name: token for name, token in names.items() if token}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS - 2, **names)


COMMON = dict(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
# BERT's own special tokens, and those of RoBERTa.
BERT = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
ROBERTA = ("<s>", "</s>", "<pad>", "<unk>")
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
              r"\s+(?!\S)|\s+")
QWEN_PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
NOMIC_PROMPTS = {"query": "search_query: ", "document": "search_document: "}
# Directories: the type of the model, its configuration, its tokenizer, the pooling, normalization, and prompts.
FAMILIES = {
    "bert": ("bert", dict(COMMON, max_position_embeddings=POSITIONS), lambda: word_pieces(*BERT), "mean", True, {}),
    "bert-cls": ("bert", dict(COMMON, max_position_embeddings=POSITIONS), lambda: word_pieces(*BERT), "cls", True,
                 {"query": "Represent this sentence for searching relevant passages: "}),
    "bert-max": ("bert", dict(COMMON, max_position_embeddings=POSITIONS), lambda: word_pieces(*BERT), "max", False, {}),
    "xlm-roberta": ("xlm-roberta", dict(COMMON, max_position_embeddings=POSITIONS, type_vocab_size=1, pad_token_id=1,
                                        bos_token_id=0, eos_token_id=2), unigram, "mean", True,
                    {"query": "query: ", "document": "passage: "}),
    "roberta": ("roberta", dict(COMMON, max_position_embeddings=POSITIONS, type_vocab_size=1, pad_token_id=1,
                                bos_token_id=0, eos_token_id=2), lambda: byte_pairs(*ROBERTA), "mean", True, {}),
    "mpnet": ("mpnet", dict(COMMON, max_position_embeddings=POSITIONS, pad_token_id=1, bos_token_id=0, eos_token_id=2),
              lambda: word_pieces("<s>", "</s>", "<pad>", "[UNK]"), "mean", True, {}),
    "distilbert": ("distilbert", dict(dim=HIDDEN, hidden_dim=FFN, n_layers=LAYERS, n_heads=HEADS,
                                      max_position_embeddings=POSITIONS), lambda: word_pieces(*BERT), "mean", False, {}),
    "modernbert": ("modernbert", dict(COMMON, num_hidden_layers=4, max_position_embeddings=POSITIONS, local_attention=8,
                                      pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2),
                   lambda: byte_pairs(*BERT, normalizer=normalizers.NFC()), "cls", False, {}),
    "nomic": ("nomic_bert", dict(COMMON, max_position_embeddings=POSITIONS, hidden_act="silu", type_vocab_size=2,
                                 rope_parameters=dict(rope_type="default", rope_theta=1000.0)),
              lambda: word_pieces(*BERT), "mean", True, NOMIC_PROMPTS),
    "qwen3": ("qwen3", dict(COMMON, num_key_value_heads=1, head_dim=48, max_position_embeddings=POSITIONS,
                            tie_word_embeddings=True, use_sliding_window=False,
                            rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0)),
              lambda: byte_pairs(None, "<|endoftext|>", "<|endoftext|>", None, normalizers.NFC(), QWEN_SPLIT), "lasttoken",
              True, {"query": QWEN_PROMPT, "document": ""}),
    # The rotations of gte-multilingual-base: NTK scaling by 8, which transformers states as a linear one with another base.
    "gte": ("gte", dict(COMMON, max_position_embeddings=POSITIONS, type_vocab_size=1, pad_token_id=0,
                        rope_parameters=dict(rope_type="linear", factor=8.0 ** (2 * HEADS / HIDDEN), rope_theta=160_000.0)),
            lambda: word_pieces(*BERT), "cls", True, {}),
}

# Cross-encoders: the type of the model, its configuration, and its tokenizer.
MODERN = FAMILIES["modernbert"][1]
PAIR = "[CLS] $A [SEP] $B [SEP]"
RERANKERS = {
    "modernbert-reranker": ("modernbert", dict(MODERN, classifier_pooling="mean"),
                            lambda: byte_pairs(*BERT, normalizer=normalizers.NFC(), pair=PAIR)),
    "modernbert-reranker-cls": ("modernbert", dict(MODERN, classifier_pooling="cls", classifier_bias=True),
                                lambda: byte_pairs(*BERT, normalizer=normalizers.NFC(), pair=PAIR)),
}


def numbers(shapes):
    """Tensors by name. One generator fills them in the order of their names: 24 bits each, from -1 to 1, then scaled."""
    state = 7
    tensors = {}
    for name in sorted(shapes):
        values = []
        for _ in range(int(np.prod(shapes[name]))):
            state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
            values.append((state >> 40) / 2**23 - 1.0)
        tensor = np.array(values).reshape(shapes[name])
        if len(shapes[name]) == 1:
            # Weights of normalizations are near 1, and biases near 0.
            tensor = 0.25 * tensor + (1.0 if name.endswith("weight") else 0.0)
        elif not ("embed" in name or "relative" in name):
            tensor = 0.25 * tensor
        tensors[name] = tensor.astype(np.float32)
    return tensors


def shapes_of(file):
    with safe_open(file, "np") as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}


def save(name, folder):
    """Saves a model of the family by sentence-transformers."""
    kind, config, tokenizer, pooling, normalize, prompts = FAMILIES[name]
    tokenizer = tokenizer()
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **config)
    with tempfile.TemporaryDirectory() as plain:
        AutoModel.from_config(config).save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        modules = [Transformer(plain, max_seq_length=MAX_PIECES), Pooling(HIDDEN, pooling_mode=pooling)]
        modules += [Normalize()] if normalize else []
        SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    (folder / "README.md").unlink(missing_ok=True)


def cases_of(model, prompts):
    """Vectors of sentence-transformers: of the texts alone, or with the prompts before them."""
    kinds = [("query", model.encode_query), ("document", model.encode_document)] if prompts else [("text", model.encode)]
    for kind, encode in kinds:
        for text in TEXTS:
            yield kind, text, encode([text], batch_size=1)[0]


def scores_of(folder):
    """Logits of sentence-transformers, with the query as the kind of a case."""
    model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    for text in TEXTS:
        query = TEXTS[0]
        yield query, text, model.predict([(query, text)], activation_fn=torch.nn.Identity())


def save_reranker(name, folder):
    kind, config, tokenizer = RERANKERS[name]
    tokenizer = tokenizer()
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), num_labels=1, **config)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write(name):
    folder = ROOT / name
    (save_reranker if name in RERANKERS else save)(name, folder)
    weights = folder / "model.safetensors"
    shapes = shapes_of(weights)
    save_file(numbers(shapes), weights, metadata={"format": "pt"})
    if name in RERANKERS:
        cases = scores_of(folder)
    else:
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        cases = cases_of(model, FAMILIES[name][-1])
    expected = {
        "made_by": "scripts/parity/encoders.py",
        "versions": {library.__name__: library.__version__ for library in (sentence_transformers, transformers, torch)},
        "tensors": {tensor: list(shapes[tensor]) for tensor in sorted(shapes)},
        "cases": [{"kind": kind, "text": text, "embedding": [round(float(value), 6) for value in vector]}
                  for kind, text, vector in cases],
    }
    weights.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    for name in (*FAMILIES, *RERANKERS):
        write(name)
        print(name)


if __name__ == "__main__":
    main()
