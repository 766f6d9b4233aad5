"""Makes the fixtures of model families that models/tests/families.rs compares the decoder with.

    pip install "mlx[cpu]" mlx-lm numpy safetensors gguf
    python3 scripts/parity/families.py

The logits are computed here, with numpy in double precision, from the formulas of each family's `modeling_*.py` in
`transformers`; by_transformers.py compares them with it. As an independent check, every family is also computed by
mlx-lm, in single precision, with the features that mlx-lm implements; the script stops where the two differ. GGUF files
have the names of the package `gguf` and the row order, offsets and metadata of llama.cpp's `convert_hf_to_gguf.py`.
"""

import importlib
import json
import math
import pathlib
import shutil
from importlib.metadata import version

import gguf
import numpy as np
from safetensors.numpy import save_file

SEED = 20_261_123
ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "families"
VOCAB, FFN, HEADS, KV_HEADS, HEAD = 64, 48, 2, 1, 16
MADE_BY = {
    "made_by": "scripts/parity/families.py",
    "numpy": np.__version__,
    "mlx-lm": version("mlx-lm"),
    "gguf": version("gguf"),
    "seed": str(SEED),
}

COMMON = dict(
    vocab_size=VOCAB, hidden_size=HEADS * HEAD, intermediate_size=FFN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
    num_hidden_layers=2, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=1000.0, hidden_act="silu",
    tie_word_embeddings=True, attention_bias=False, mlp_bias=False)
GEMMA = dict(
    COMMON, hidden_size=16, rms_norm_eps=1e-6, head_dim=HEAD, hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh",
    sliding_window=20)
FACTORS = dict(short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5], long_factor=[1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
LOCAL = "sliding_attention"
# Names of directories, with the configuration that `transformers` saves.
FAMILIES = {
    "mistral": dict(COMMON, model_type="mistral", sliding_window=20, tie_word_embeddings=False),
    "smollm3": dict(COMMON, model_type="smollm3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0],
                    no_rope_layer_interval=4, use_sliding_window=False, sliding_window=None,
                    layer_types=["full_attention"] * 4),
    "phi3": dict(COMMON, model_type="phi3", sliding_window=20, tie_word_embeddings=False, rope_scaling=None,
                 original_max_position_embeddings=128),
    "phi4-mini": dict(COMMON, model_type="phi3", max_position_embeddings=384, original_max_position_embeddings=96,
                      partial_rotary_factor=0.75, sliding_window=None,
                      rope_scaling=dict(type="longrope", **FACTORS)),
    "granite": dict(COMMON, model_type="granite", embedding_multiplier=12.0, residual_multiplier=0.22,
                    attention_multiplier=0.15, logits_scaling=8.0),
    "olmo2": dict(COMMON, model_type="olmo2", tie_word_embeddings=False),
    "gemma2": dict(GEMMA, model_type="gemma2", num_hidden_layers=2, query_pre_attn_scalar=HEAD,
                   attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gemma3": dict(GEMMA, model_type="gemma3_text", num_hidden_layers=6, query_pre_attn_scalar=HEAD,
                   attn_logit_softcapping=None, final_logit_softcapping=None,
                   layer_types=[LOCAL] * 5 + ["full_attention"],
                   rope_parameters={LOCAL: dict(rope_type="default", rope_theta=100.0),
                                    "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000.0)}),
}


def is_gemma(config):
    return config["model_type"].startswith("gemma")


def windows_of(config):
    """Window of each layer. None sees all earlier tokens."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if "layer_types" in config:
        return [window if kind == LOCAL else None for kind in config["layer_types"]]
    if config["model_type"] == "gemma2":
        return [window if index % 2 == 0 else None for index in range(layers)]
    return [window] * layers


def tensors_of(config, generator):
    """Random weights, rounded to half precision, with outputs of about unit size."""
    q, kv, hidden = HEADS * HEAD, KV_HEADS * HEAD, config["hidden_size"]
    kind = config["model_type"]
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [VOCAB, hidden]
    for layer in range(config["num_hidden_layers"]):
        parts = {"self_attn.o_proj": [hidden, q], "mlp.down_proj": [hidden, FFN], "post_attention_layernorm": [hidden]}
        if kind == "phi3":
            parts |= {"self_attn.qkv_proj": [q + 2 * kv, hidden], "mlp.gate_up_proj": [2 * FFN, hidden]}
        else:
            parts |= {f"self_attn.{part}_proj": [width, hidden] for part, width in [("q", q), ("k", kv), ("v", kv)]}
            parts |= {"mlp.gate_proj": [FFN, hidden], "mlp.up_proj": [FFN, hidden]}
        if kind != "olmo2":
            parts["input_layernorm"] = [hidden]
        if is_gemma(config):
            parts["pre_feedforward_layernorm"] = [hidden]
        if is_gemma(config) or kind == "olmo2":
            parts["post_feedforward_layernorm"] = [hidden]
        if kind in ("olmo2", "gemma3_text"):
            whole = kind == "olmo2"
            parts |= {"self_attn.q_norm": [q if whole else HEAD], "self_attn.k_norm": [kv if whole else HEAD]}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    tensors = {}
    for name, shape in shapes.items():
        noise = generator.standard_normal(shape)
        if name.endswith("norm.weight"):
            value = 0.2 * noise + (0.0 if is_gemma(config) else 1.0)
        elif "embed_tokens" in name:
            value = (0.1 if is_gemma(config) else 0.4) * noise
        else:
            value = 1.5 * noise / shape[-1] ** 0.5
        tensors[name] = value.astype(np.float16)
    return tensors


class Reference:
    """Decoder in double precision, with the features in which the families differ from Llama."""

    def __init__(self, config, tensors):
        self.config = config
        self.tensors = {name: value.astype(np.float64) for name, value in tensors.items()}

    def logits(self, tokens):
        config, kind = self.config, self.config["model_type"]
        x = self.tensors["model.embed_tokens.weight"][tokens]
        if is_gemma(config):
            x = x * config["hidden_size"] ** 0.5
        if kind == "granite":
            x = x * config["embedding_multiplier"]
        for layer in range(config["num_hidden_layers"]):
            x = self.block(layer, x, self.attention, "input_layernorm", "post_attention_layernorm")
            before = "pre_feedforward_layernorm" if is_gemma(config) else "post_attention_layernorm"
            x = self.block(layer, x, self.feed_forward, before, "post_feedforward_layernorm")
        x = self.norm("model.norm", x)
        logits = x @ self.tensors.get("lm_head.weight", self.tensors["model.embed_tokens.weight"]).T
        if kind == "granite":
            logits = logits / config["logits_scaling"]
        cap = config.get("final_logit_softcapping")
        return np.tanh(logits / cap) * cap if cap else logits

    def block(self, layer, x, body, before, after):
        kind = self.config["model_type"]
        y = x if kind == "olmo2" else self.norm(f"model.layers.{layer}.{before}", x)
        y = body(layer, y)
        if kind == "olmo2" or is_gemma(self.config):
            y = self.norm(f"model.layers.{layer}.{after}", y)
        return x + y * self.config.get("residual_multiplier", 1.0)

    def norm(self, name, x):
        weight = self.tensors[f"{name}.weight"] + (1.0 if is_gemma(self.config) else 0.0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def linear(self, layer, name, x):
        return x @ self.tensors[f"model.layers.{layer}.{name}.weight"].T

    def feed_forward(self, layer, x):
        if self.config["model_type"] == "phi3":
            gate, up = np.split(self.linear(layer, "mlp.gate_up_proj", x), 2, axis=-1)
        else:
            gate, up = (self.linear(layer, f"mlp.{part}_proj", x) for part in ("gate", "up"))
        if is_gemma(self.config):
            gate = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1.0 + np.exp(-gate))
        return self.linear(layer, "mlp.down_proj", gate * up)

    def attention(self, layer, x):
        config, kind = self.config, self.config["model_type"]
        q, kv = HEADS * HEAD, KV_HEADS * HEAD
        if kind == "phi3":
            queries, keys, values = np.split(self.linear(layer, "self_attn.qkv_proj", x), [q, q + kv], axis=-1)
        else:
            queries, keys, values = (self.linear(layer, f"self_attn.{part}_proj", x) for part in "qkv")
        norms = [f"model.layers.{layer}.self_attn.{part}_norm" for part in "qk"]
        if kind == "olmo2":
            queries, keys = self.norm(norms[0], queries), self.norm(norms[1], keys)
        queries, keys, values = (part.reshape(len(x), -1, HEAD) for part in (queries, keys, values))
        if kind in ("gemma3_text", "qwen3_moe"):
            queries, keys = self.norm(norms[0], queries), self.norm(norms[1], keys)
        queries, keys = self.rotate(layer, queries), self.rotate(layer, keys)
        scale = config.get("attention_multiplier", config.get("query_pre_attn_scalar", HEAD) ** -0.5)
        keys, values = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (keys, values))
        scores = np.einsum("qhd,khd->hqk", queries, keys) * scale
        if cap := config.get("attn_logit_softcapping"):
            scores = np.tanh(scores / cap) * cap
        distance = np.arange(len(x))[:, None] - np.arange(len(x))[None]
        window = windows_of(config)[layer]
        visible = (distance >= 0) & (distance < (window or len(x)))
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(layer, "self_attn.o_proj", np.einsum("hqk,khd->qhd", weights, values).reshape(len(x), q))

    def rotate(self, layer, heads):
        config = self.config
        if not config.get("no_rope_layers", [1] * config["num_hidden_layers"])[layer]:
            return heads
        rope = config.get("rope_scaling") or {}
        if "rope_parameters" in config:
            rope = config["rope_parameters"][config["layer_types"][layer]]
        base = rope.get("rope_theta", config["rope_theta"])
        dim = int(HEAD * config.get("partial_rotary_factor", 1.0))
        frequencies = base ** (-np.arange(0, dim, 2) / dim) / rope.get("factor", 1.0)
        magnitude = 1.0
        if rope.get("type") == "longrope":
            original = config["original_max_position_embeddings"]
            frequencies = frequencies / np.array(rope["short_factor"])
            magnitude = math.sqrt(1.0 + math.log(config["max_position_embeddings"] / original) / math.log(original))
        angles = np.arange(len(heads))[:, None, None] * frequencies
        cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        left, right, rest = np.split(heads, [dim // 2, dim], axis=-1)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin, rest], axis=-1)


def check_with_mlx(name, config, tensors, tokens, logits):
    """Compares the logits with mlx-lm. Its Phi-3 and Gemma 2 have no windows, its Llama needs a layer without a window,
    and its LongRoPE has only the long factors."""
    import mlx.core as mx
    from mlx.utils import tree_unflatten

    config = dict(config)
    if name in ("phi3", "gemma2"):
        config["sliding_window"] = None
    if name == "mistral":
        config["layer_types"] = [LOCAL, "full_attention"]
    if name == "phi4-mini":
        config["rope_scaling"] = dict(config["rope_scaling"], long_factor=FACTORS["short_factor"])
    if name == "gemma3":
        config |= dict(rope_local_base_freq=100.0, rope_scaling=dict(type="linear", factor=8.0))
    expected = logits if name not in ("mistral", "phi3", "gemma2") else Reference(config, tensors).logits(tokens)
    module = "llama" if name == "mistral" else config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{module}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {key: mx.array(value.astype(np.float32)) for key, value in tensors.items()}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=True)
    found = np.array(model(mx.array([tokens]))[0])
    difference = np.abs(found - expected).max()
    print(f"{name}: largest logit {np.abs(logits).max():.2f}, difference from mlx-lm {difference:.1e}")
    assert difference < 2e-4, name


ARCHITECTURES = {"gemma3_text": "gemma3"}


def write_gguf(path, config, tensors):
    kind = config["model_type"]
    architecture = ARCHITECTURES.get(kind, kind)
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
    if kind in ("phi3", "smollm3", "granite"):
        writer.add_rope_dimension_count(int(HEAD * config.get("partial_rotary_factor", 1.0)))
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if kind == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "gemma3_text":
        writer.add_float32("gemma3.rope.freq_base_swa", 100.0)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
    if (config.get("rope_scaling") or {}).get("type") == "longrope":
        original = config["original_max_position_embeddings"]
        factor = math.sqrt(1.0 + math.log(config["max_position_embeddings"] / original) / math.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(factor)
        for side in ("long", "short"):
            writer.add_tensor(f"rope_factors_{side}.weight", np.array(FACTORS[f"{side}_factor"], dtype=np.float32))
    for name, value in tensors.items():
        if value.ndim == 1:
            value = value.astype(np.float32) + (1.0 if is_gemma(config) else 0.0)
            value = value.astype(np.float32)
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        if heads and kind in ("smollm3", "granite"):
            halves = value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1])
            value = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    for name, config in FAMILIES.items():
        generator = np.random.default_rng(SEED)
        folder = ROOT / name
        folder.mkdir(parents=True)
        tensors = tensors_of(config, generator)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        expected = {}
        for case, (length, positions) in enumerate([(7, [0, 3, 6]), (75, [15, 19, 20, 40, 74])]):
            tokens = generator.integers(0, VOCAB, length)
            logits = Reference(config, tensors).logits(tokens)
            check_with_mlx(name, config, tensors, tokens.tolist(), logits)
            expected[f"{case}.tokens"] = tokens.astype(np.int32)
            expected[f"{case}.positions"] = np.array(positions, dtype=np.int32)
            expected[f"{case}.logits"] = logits[positions].astype(np.float32)
        save_file(expected, folder / "expected.safetensors", metadata=MADE_BY)
        # A GGUF of Mistral is one of Llama, without a window.
        if name != "mistral":
            (folder / "gguf").mkdir()
            write_gguf(folder / "gguf" / "model.gguf", config, tensors)


if __name__ == "__main__":
    main()
