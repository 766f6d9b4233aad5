#!/usr/bin/env python3
"""Writes the seeds that are made rather than written by hand: fuzz/seeds/*/made-*. Same bytes every time."""
import json
import struct
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"
WIDTH, VOCAB = 16, 8
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": [VOCAB, WIDTH],
    **{f"{LAYER}.self_attn.{name}.weight": [WIDTH, WIDTH] for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
    **{f"{LAYER}.mlp.{name}.weight": [WIDTH, WIDTH] for name in ("gate_proj", "up_proj", "down_proj")},
    f"{LAYER}.input_layernorm.weight": [WIDTH],
    f"{LAYER}.post_attention_layernorm.weight": [WIDTH],
    "model.norm.weight": [WIDTH],
}
GGUF_NAMES = dict(zip(SHAPES, [
    "token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
    "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.0.attn_norm.weight",
    "blk.0.ffn_norm.weight", "output_norm.weight",
]))
CONFIG = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH, "tie_word_embeddings": True,
}
TOKENS = ["a", "b", "ab", "\u0120", "\u0120a", "<|im_start|>", "<|im_end|>", "!"]
MERGES = ["a b", "\u0120 a"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def size(shape):
    count = 1
    for side in shape:
        count *= side
    return count


def put(target, name, data):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"made-{name}").write_bytes(data)


def tensors(shapes):
    """The header of half-precision zeros, and how many bytes they take."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * size(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text, end


def safetensors(shapes):
    """Half-precision zeros."""
    header, end = tensors(shapes)
    return header + bytes(end)


def parts(*parts):
    """Parts of an input, each bytes or JSON."""
    return b"\0".join(part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(data):
    """A metadata value with its type: texts, numbers and lists of them."""
    if isinstance(data, str):
        return struct.pack("<I", 8) + text(data)
    if isinstance(data, int):
        return struct.pack("<II", 4, data)
    if isinstance(data, float):
        return struct.pack("<If", 6, data)
    kind = 8 if isinstance(data[0], str) else 4
    items = b"".join(text(item) if kind == 8 else struct.pack("<I", item) for item in data)
    return struct.pack("<IIQ", 9, kind, len(data)) + items


def gguf(metadata, names):
    """A GGUF file, version 3, of half-precision zeros."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(metadata))
    for key, data in metadata.items():
        out += text(key) + value(data)
    offset = 0
    for name, stored in names.items():
        shape = SHAPES[name]
        kind, width = (0, 4) if len(shape) == 1 else (1, 2)
        out += text(stored) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", side) for side in reversed(shape))
        out += struct.pack("<IQ", kind, offset)
        offset += -(-width * size(shape) // 32) * 32
    return out + bytes(-len(out) % 32) + bytes(offset)


metadata = {
    "general.architecture": "llama", "general.alignment": 32, "llama.block_count": 1, "llama.context_length": 64,
    "llama.embedding_length": WIDTH, "llama.feed_forward_length": WIDTH, "llama.attention.head_count": 1,
    "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": WIDTH,
    "llama.rope.freq_base": 10000.0, "llama.vocab_size": VOCAB, "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 3, 1], "tokenizer.ggml.eos_token_id": 6,
    "tokenizer.chat_template": TEMPLATE,
}
put("gguf", "llama", gguf(metadata, GGUF_NAMES))
put("gguf", "header", gguf(metadata, {}))
put("gguf", "empty", gguf({}, {}))

checkpoint = json.dumps(CONFIG).encode()
put("safetensors", "checkpoint", checkpoint + b"\0" + safetensors(SHAPES))
adapter = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj", "down_proj"]}
prefix = "base_model.model." + LAYER
pairs = {}
for module in ("self_attn.q_proj", "mlp.down_proj"):
    pairs[f"{prefix}.{module}.lora_A.weight"] = [2, WIDTH]
    pairs[f"{prefix}.{module}.lora_B.weight"] = [WIDTH, 2]
put("safetensors", "adapter", json.dumps(adapter).encode() + b"\0" + safetensors(pairs))
rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
put("safetensors", "yarn", json.dumps({**CONFIG, "rope_scaling": rope}).encode() + b"\0" + safetensors(SHAPES))

added = [
    {"id": TOKENS.index(name), "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
     "normalized": False}
    for name in ("<|im_start|>", "<|im_end|>")
]
bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
bpe = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
    "pre_tokenizer": bytelevel, "post_processor": None, "decoder": bytelevel,
    "model": {"type": "BPE", "vocab": {name: id for id, name in enumerate(TOKENS)}, "merges": MERGES},
}
put("tokenizer", "bpe", json.dumps(bpe).encode() + b"\0a ab<|im_end|>")
words = {"[UNK]": 0, "a": 1, "##b": 2, "ab": 3}
wordpiece = {
    **bpe, "added_tokens": [], "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                              "strip_accents": None, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": words},
}
put("tokenizer", "wordpiece", json.dumps(wordpiece).encode() + b"\0Ab a")

named = {"eos_token": {"content": "<|im_end|>"}, "chat_template": [{"name": "default", "template": TEMPLATE}]}
put("checkpoint", "whole", parts(CONFIG, bpe, named, {"eos_token_id": [6, 5]}, b"", b"", safetensors(SHAPES)))
shards = {"weight_map": {name: "model.safetensors" for name in SHAPES}}
put("checkpoint", "sharded", parts(CONFIG, bpe, {}, b"", TEMPLATE.encode(), shards, safetensors(SHAPES)))

HIDDEN = 32
bert = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 1,
    "intermediate_size": HIDDEN, "vocab_size": len(words), "max_position_embeddings": 16, "type_vocab_size": 1,
    "layer_norm_eps": 1e-12,
}
modules = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
weights = {
    "embeddings.word_embeddings.weight": [len(words), HIDDEN], "embeddings.token_type_embeddings.weight": [1, HIDDEN],
    "embeddings.position_embeddings.weight": [16, HIDDEN],
}
inner = [f"encoder.layer.0.{name}" for name in (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense",
    "output.dense",
)]
norms = ["embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm"]
for name in inner + norms:
    weights[f"{name}.weight"] = [HIDDEN] if name in norms else [HIDDEN, HIDDEN]
    weights[f"{name}.bias"] = [HIDDEN]
length = {"max_seq_length": 12, "do_lower_case": True}
put("embedder", "whole", parts(bert, wordpiece, modules, pooling, length, tensors(weights)[0]))
bare = {name: shape for name, shape in weights.items() if name.startswith("embeddings.")}
put("embedder", "layerless", parts({**bert, "num_hidden_layers": 0}, wordpiece, b"", b"", b"", tensors(bare)[0]))

# One change of each kind to the first files, see src/index.rs.
put("index", "whole", b"f")
put("index", "damaged", b"d" + bytes([0, 0, 9, 0, 0, 1, 2, 3]))
put("index", "query", b"f\xff" + "Where is Weimar, \u00e4?".encode())
for number in range(16):
    changes = [[number, kind, 8 * number, 0, 0, 255, 255, 255] for kind in range(4)]
    put("index", f"forged-{number:02}", b"f" + bytes(changes[number % 4]))
