#!/usr/bin/env python3
"""Writes the seeds that are made rather than written by hand: fuzz/seeds/*/made-*. Same bytes every time."""
import gzip
import io
import json
import struct
import zipfile
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
shards = {"weight_map": {name: "model-00001-of-00001.safetensors" for name in SHAPES}}
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
put("embedder", "whole", parts(bert, wordpiece, modules, pooling, length, b"", b"", b"", tensors(weights)[0]))
bare = {name: shape for name, shape in weights.items() if name.startswith("embeddings.")}
layerless = {**bert, "num_hidden_layers": 0}
put("embedder", "layerless", parts(layerless, wordpiece, b"", b"", b"", b"", b"", b"", tensors(bare)[0]))


def embedder(name, config, shapes, pooling):
    """A seed of another family, whose tokenizer marks no ends: a text may have no piece."""
    limit, prompts = {"model_max_length": 12}, {"prompts": {"query": "a ", "document": ""}}
    config = {**bert, "model_type": name, **config}
    files = (config, wordpiece, modules, {"pooling_mode": pooling}, b"", limit, prompts, b"", tensors(shapes)[0])
    put("embedder", name.replace("_", "-"), parts(*files))


def matrices(prefix, named):
    """Shapes of the matrices of a layer, by their outputs and inputs."""
    return {f"{prefix}.{name}.weight": list(shape) for name, shape in named.items()}


square, doubled = (HIDDEN, HIDDEN), (2 * HIDDEN, HIDDEN)
modern = {
    "hidden_activation": "gelu", "global_attn_every_n_layers": 2, "local_attention": 4, "layer_types": ["full_attention"],
    "rope_parameters": {name: {"rope_theta": 1000.0} for name in ("full_attention", "sliding_attention")},
}
embedder("modernbert", modern, {
    "embeddings.tok_embeddings.weight": [len(words), HIDDEN], "embeddings.norm.weight": [HIDDEN], "final_norm.weight": [HIDDEN],
    **matrices("layers.0", {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.Wo": square, "mlp.Wi": doubled, "mlp.Wo": square}),
    "layers.0.mlp_norm.weight": [HIDDEN],
}, "cls")
layer, norms = "encoder.layers.0", ["emb_ln", "encoder.layers.0.norm1", "encoder.layers.0.norm2"]
nomic = {"activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "prenorm": False, "causal": False}
embedder("nomic_bert", nomic, {
    "embeddings.word_embeddings.weight": [len(words), HIDDEN], "embeddings.token_type_embeddings.weight": [1, HIDDEN],
    **matrices(layer, {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.out_proj": square}),
    **matrices(layer, {"mlp.fc11": square, "mlp.fc12": square, "mlp.fc2": square}),
    **{f"{name}.{part}": [HIDDEN] for name in norms for part in ("weight", "bias")},
}, "mean")
layer, norms = "encoder.layer.0", ["embeddings.LayerNorm", "encoder.layer.0.attn_ln", "encoder.layer.0.mlp_ln"]
gte = {"rope_scaling": {"type": "ntk", "factor": 2.0}, "rope_theta": 1000.0, "position_embedding_type": "rope", "pack_qkv": True}
embedder("gte", {**gte, "type_vocab_size": 0}, {
    "embeddings.word_embeddings.weight": [len(words), HIDDEN],
    **matrices(layer, {"attention.qkv_proj": (3 * HIDDEN, HIDDEN), "attention.o_proj": square}),
    **matrices(layer, {"mlp.up_gate_proj": doubled, "mlp.down_proj": square}),
    **{f"{name}.{part}": [HIDDEN] for name in norms for part in ("weight", "bias")},
}, "max")
embedder("qwen3", {"hidden_act": "silu", "num_key_value_heads": 1, "head_dim": WIDTH, "rope_theta": 1000.0}, {
    "embed_tokens.weight": [len(words), HIDDEN], "norm.weight": [HIDDEN],
    **matrices("layers.0.self_attn", {name: (WIDTH, HIDDEN) for name in ("q_proj", "k_proj", "v_proj")}),
    "layers.0.self_attn.o_proj.weight": [HIDDEN, WIDTH], "layers.0.self_attn.q_norm.weight": [WIDTH],
    "layers.0.self_attn.k_norm.weight": [WIDTH],
    **matrices("layers.0.mlp", {name: square for name in ("gate_proj", "up_proj", "down_proj")}),
    "layers.0.input_layernorm.weight": [HIDDEN], "layers.0.post_attention_layernorm.weight": [HIDDEN],
}, "lasttoken")

# One change of each kind to the first files, see src/index.rs.
put("index", "whole", b"f")
put("index", "damaged", b"d" + bytes([0, 0, 9, 0, 0, 1, 2, 3]))
put("index", "query", b"f\xff" + "Where is Weimar, \u00e4?".encode())
for number in range(16):
    changes = [[number, kind, 8 * number, 0, 0, 255, 255, 255] for kind in range(4)]
    put("index", f"forged-{number:02}", b"f" + bytes(changes[number % 4]))


def archive(files):
    """A zip file with a fixed date."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as writer:
        for name, content in files.items():
            writer.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def pdf(content):
    """A file of one page."""
    stream = b"<</Length %d>>\nstream\n%s\nendstream" % (len(content), content)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Resources<</Font<</F 4 0 R>>>>/Contents 5 0 R>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>", stream,
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"xref\n0 6\n0000000000 65535 f \n%strailer\n<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    return out + end % (table, len(out))


def zstandard(content):
    """A frame of one block that is not compressed."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)]) + struct.pack("<I", 1 | len(content) << 3)[:3] + content


def varint(number):
    """A number in groups of seven bits, the lowest first."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


# Types of Thrift's compact protocol.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def structure(fields):
    """A structure of Thrift's compact protocol. Each field is its number, its type and its content."""
    out, last = b"", 0
    for number, kind, content in fields:
        out += bytes([number - last << 4 | kind]) + item(kind, content)
        last = number
    return out + b"\0"


def item(kind, content):
    """A value of this type; the content of a list is the type of its items, and the items."""
    if kind == STRUCT:
        return structure(content)
    if kind == LIST:
        kind, items = content
        return bytes([len(items) << 4 | kind]) + b"".join(item(kind, one) for one in items)
    # The sign of a number is its lowest bit.
    return varint(len(content)) + content if kind == BINARY else varint(2 * content)


def parquet(columns):
    """A file of one row. Each column is its name, its text, and 1 if it is compressed with Snappy, or else 0."""
    out, chunks = b"PAR1", []
    for name, content, codec in columns:
        plain = struct.pack("<I", len(content)) + content
        page = varint(len(plain)) + bytes([len(plain) - 1 << 2]) + plain if codec else plain
        data = [(1, I32, 1), (2, I32, 0), (3, I32, 3), (4, I32, 3)]
        header = structure([(1, I32, 0), (2, I32, len(plain)), (3, I32, len(page)), (5, STRUCT, data)])
        chunk = [
            (1, I32, 6), (2, LIST, (I32, [0, 3])), (3, LIST, (BINARY, [name])), (4, I32, codec), (5, I64, 1),
            (6, I64, len(header + plain)), (7, I64, len(header + page)), (9, I64, len(out)),
        ]
        chunks.append([(2, I64, len(out)), (3, STRUCT, chunk)])
        out += header + page
    schema = [[(4, BINARY, b"schema"), (5, I32, len(columns))]]
    schema += [[(1, I32, 6), (3, I32, 0), (4, BINARY, name), (6, I32, 0)] for name, _, _ in columns]
    group = [(1, LIST, (STRUCT, chunks)), (2, I64, len(out) - 4), (3, I64, 1)]
    footer = structure([(1, I32, 1), (2, LIST, (STRUCT, schema)), (3, I64, 1), (4, LIST, (STRUCT, [group]))])
    return out + footer + struct.pack("<I", len(footer)) + b"PAR1"


# The first byte names the format, see src/corpus.rs.
line = b'{"id":"a","title":"T","text":"some text"}\n'
styles = '<w:styles><w:style w:styleId="H"><w:name w:val="heading 1"/></w:style></w:styles>'
body = (
    '<w:document><w:body><w:p><w:pPr><w:pStyle w:val="H"/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p><w:tbl><w:tr><w:tc>'
    "<w:p><w:r><w:t>a &amp; b</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>"
)
put("corpus", "docx", b"d" + archive({"word/styles.xml": styles, "word/document.xml": body}))
put("corpus", "pdf", b"p" + pdf(b"BT /F 9 Tf (some text) Tj ET"))
put("corpus", "gzip", b"g" + gzip.compress(line, 9, mtime=0))
put("corpus", "zstandard", b"z" + zstandard(line))
put("corpus", "parquet", b"q" + parquet([(b"id", b"a", 0), (b"title", b"T", 0), (b"text", b"some text", 1)]))
