"""Makes the fixtures of families with experts for models/tests/decoder_experts.rs and gradient_experts.rs.

    pip install "mlx[cpu]" mlx-lm numpy safetensors gguf
    python3 scripts/parity/experts.py

As in families.py, the logits are computed with numpy in double precision, from the formulas of `modeling_qwen2_moe.py`,
`modeling_qwen3_moe.py` and `modeling_mixtral.py`, and mlx-lm computes every family again; the script stops where the two
differ. Gradients are those of mlx-lm, checked by finite differences of the reference. by_transformers.py compares the logits
with `transformers`. Stacked experts in GGUF files are those of llama.cpp's `convert_hf_to_gguf.py`.
"""

import importlib
import json
import pathlib
import shutil

import gguf
import numpy as np
from safetensors.numpy import save_file

from families import COMMON, HEAD, HEADS, KV_HEADS, MADE_BY, VOCAB, Reference

SEED = 20_261_126
RANK, ALPHA = 2, 4
ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "experts"
QWEN = dict(COMMON, tie_word_embeddings=False, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False)
FAMILIES = {
    "qwen3-moe": dict(QWEN, model_type="qwen3_moe", head_dim=HEAD, num_hidden_layers=3, mlp_only_layers=[1], num_experts=8,
                      num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True),
    "qwen2-moe": dict(QWEN, model_type="qwen2_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                      shared_expert_intermediate_size=64, norm_topk_prob=False, qkv_bias=True),
    "mixtral": dict(COMMON, model_type="mixtral", tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
                    sliding_window=None),
}
for config in FAMILIES.values():
    del config["attention_bias"], config["mlp_bias"]
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "mixtral": "llama"}
MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def count_of(config):
    return config.get("num_experts", config.get("num_local_experts"))


def has_experts(config, layer):
    return layer not in config.get("mlp_only_layers", []) and (layer + 1) % config.get("decoder_sparse_step", 1) == 0


def gated(path, width, hidden):
    return {f"{path}.gate_proj": [width, hidden], f"{path}.up_proj": [width, hidden], f"{path}.down_proj": [hidden, width]}


def tensors_of(config, generator):
    """Random weights, rounded to half precision, with outputs of about unit size, under the names of Qwen."""
    q, kv, hidden, ffn = HEADS * HEAD, KV_HEADS * HEAD, config["hidden_size"], config["intermediate_size"]
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden], "lm_head.weight": [VOCAB, hidden]}
    for layer in range(config["num_hidden_layers"]):
        parts = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.o_proj": [hidden, q]}
        sides = [("q", q), ("k", kv), ("v", kv)]
        parts |= {f"self_attn.{part}_proj": [width, hidden] for part, width in sides}
        if config["model_type"] == "qwen3_moe":
            parts |= {"self_attn.q_norm": [HEAD], "self_attn.k_norm": [HEAD]}
        if has_experts(config, layer):
            parts["mlp.gate"] = [count_of(config), hidden]
            for expert in range(count_of(config)):
                parts |= gated(f"mlp.experts.{expert}", config.get("moe_intermediate_size", ffn), hidden)
        else:
            parts |= gated("mlp", ffn, hidden)
        if shared := config.get("shared_expert_intermediate_size"):
            parts |= gated("mlp.shared_expert", shared, hidden) | {"mlp.shared_expert_gate": [1, hidden]}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
        if config.get("qkv_bias"):
            shapes |= {f"model.layers.{layer}.self_attn.{part}_proj.bias": [width] for part, width in sides}
    tensors = {}
    for name, shape in shapes.items():
        noise = generator.standard_normal(shape)
        if name.endswith("norm.weight"):
            value = 0.2 * noise + 1.0
        elif name.endswith("bias"):
            value = 0.2 * noise
        elif "embed_tokens" in name:
            value = 0.4 * noise
        else:
            value = 1.5 * noise / shape[-1] ** 0.5
        tensors[name] = value.astype(np.float16)
    return tensors


def named_as_in_mixtral(tensors):
    def rename(name):
        for ours, theirs in MIXTRAL.items():
            if ".experts." in name:
                name = name.replace(ours, theirs)
        return name.replace(".mlp.", ".block_sparse_moe.")

    return {rename(name): value for name, value in tensors.items()}


class ExpertReference(Reference):
    def linear(self, layer, name, x):
        bias = self.tensors.get(f"model.layers.{layer}.{name}.bias", 0.0)
        return super().linear(layer, name, x) + bias

    def gated(self, layer, path, x):
        gate, up = (self.linear(layer, f"{path}.{part}_proj", x) for part in ("gate", "up"))
        return self.linear(layer, f"{path}.down_proj", gate / (1.0 + np.exp(-gate)) * up)

    def feed_forward(self, layer, x):
        config = self.config
        if not has_experts(config, layer):
            return self.gated(layer, "mlp", x)
        logits = self.linear(layer, "mlp.gate", x)
        probabilities = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, : config["num_experts_per_tok"]]
        weights = np.take_along_axis(probabilities, chosen, -1)
        if config["model_type"] == "mixtral" or config["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for token in range(len(x)):
            for expert, weight in zip(chosen[token], weights[token]):
                y[token] += weight * self.gated(layer, f"mlp.experts.{expert}", x[token])
        if "shared_expert_intermediate_size" in config:
            opened = 1.0 / (1.0 + np.exp(-self.linear(layer, "mlp.shared_expert_gate", x)))
            y += opened * self.gated(layer, "mlp.shared_expert", x)
        return y


def report(name, by, found, logits):
    difference = np.abs(found - logits).max()
    print(f"{name}: largest logit {np.abs(logits).max():.2f}, difference from {by} {difference:.1e}")
    assert difference < 2e-4, name


def mlx_model(config, saved):
    import mlx.core as mx

    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {key: mx.array(value.astype(np.float32)) for key, value in saved.items()}
    model.load_weights(list(model.sanitize(weights).items()), strict=True)
    return model


def check_with_mlx(name, config, saved, tokens, logits):
    import mlx.core as mx

    report(name, "mlx-lm", np.array(mlx_model(config, saved)(mx.array([tokens]))[0]), logits)


def adapter_of(config, generator):
    """Random LoRA pairs on attention, A before B, by the path of the projection."""
    q, kv, hidden = HEADS * HEAD, KV_HEADS * HEAD, config["hidden_size"]
    sides = {"q": [q, hidden], "k": [kv, hidden], "v": [kv, hidden], "o": [hidden, q]}
    paths = {f"model.layers.{layer}.self_attn.{part}_proj": shape
             for layer in range(config["num_hidden_layers"]) for part, shape in sides.items()}
    pair = lambda out, inn: [0.2 * generator.standard_normal([RANK, inn]), 0.2 * generator.standard_normal([out, RANK])]
    return {path: [side.astype(np.float32) for side in pair(*shape)] for path, shape in paths.items()}


def loss_of(config, tensors, adapter, tokens):
    """Mean negative log-likelihood of all tokens but the first, in double precision."""
    tensors = {name: value.astype(np.float64) for name, value in tensors.items()}
    for path, (a, b) in adapter.items():
        tensors[f"{path}.weight"] = tensors[f"{path}.weight"] + ALPHA / RANK * b @ a
    logits = ExpertReference(config, tensors).logits(tokens)[:-1]
    logits = logits - logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -logprobs[np.arange(len(tokens) - 1), tokens[1:]].mean()


def gradients_by_mlx(config, saved, adapter, tokens):
    """Loss, and its gradients for the pairs of the adapter, by automatic differentiation in mlx-lm."""
    import mlx.core as mx
    import mlx.nn as nn

    model = mlx_model(config, saved)
    projection = lambda path: getattr(model.model.layers[int(path.split(".")[2])].self_attn, path.split(".")[-1])
    weights = {path: projection(path).weight for path in adapter}
    tokens = mx.array([tokens.tolist()])

    def loss(pairs):
        for path, (a, b) in pairs.items():
            projection(path).weight = weights[path] + ALPHA / RANK * b @ a
        return nn.losses.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).mean()

    value, gradients = mx.value_and_grad(loss)({path: [mx.array(side) for side in pair] for path, pair in adapter.items()})
    return value.item(), {path: [np.array(side) for side in pair] for path, pair in gradients.items()}


def write_gradients(folder, config, tensors, saved, generator):
    """Writes an adapter in PEFT's layout, and the gradients of a loss for it. A finite difference of the reference in double
    precision checks them."""
    adapter = adapter_of(config, generator)
    tokens = generator.integers(0, VOCAB, 30)
    loss, gradients = gradients_by_mlx(config, saved, adapter, tokens)
    ways = {path: [generator.standard_normal(side.shape) for side in pair] for path, pair in adapter.items()}
    moved = lambda size: {path: [side + size * way for side, way in zip(pair, ways[path])] for path, pair in adapter.items()}
    difference = (loss_of(config, tensors, moved(1e-6), tokens) - loss_of(config, tensors, moved(-1e-6), tokens)) / 2e-6
    slope = sum((side * way).sum() for path in adapter for side, way in zip(gradients[path], ways[path]))
    print(f"{folder.name}: loss {loss:.4f}, slope {slope:.5f}, by finite differences {difference:.5f}")
    assert abs(loss - loss_of(config, tensors, adapter, tokens)) < 1e-4 and abs(slope - difference) < 1e-4
    named = lambda pairs: {f"base_model.model.{path}.lora_{side}.weight": value.astype(np.float32)
                           for path, pair in pairs.items() for side, value in zip("AB", pair)}
    (folder / "adapter").mkdir()
    save_file(named(adapter), folder / "adapter" / "adapter_model.safetensors")
    settings = dict(peft_type="LORA", r=RANK, lora_alpha=ALPHA, bias="none", target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings) + "\n")
    merged = {name: value.astype(np.float64) for name, value in tensors.items()}
    for path, (a, b) in adapter.items():
        merged[f"{path}.weight"] += ALPHA / RANK * b @ a
    expected = {"0.tokens": tokens.astype(np.int32), "0.positions": np.array([7, 29], dtype=np.int32)}
    expected["0.logits"] = ExpertReference(config, merged).logits(tokens)[[7, 29]].astype(np.float32)
    save_file(expected | named(gradients) | {"loss": np.array([loss], dtype=np.float32)}, folder / "adapter" / "expected.safetensors")


def stacked(config, tensors):
    """All experts of a layer in one tensor."""
    result = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        if has_experts(config, layer):
            for part in ("gate", "up", "down"):
                path = f"model.layers.{layer}.mlp.experts"
                experts = [tensors[f"{path}.{expert}.{part}_proj.weight"] for expert in range(count_of(config))]
                result[f"{path}.{part}_proj.weight"] = np.stack(experts)
    return result


def write_gguf(path, config, tensors):
    kind = config["model_type"]
    architecture = ARCHITECTURES[kind]
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    # llama.cpp has no Qwen3-MoE with ordinary layers among those with experts, and no names for them.
    plain = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(count_of(config))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "head_dim" in config:
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    for name, value in stacked(config, tensors).items():
        if "shared_expert_gate" in name:
            value = value.reshape(-1)
        if value.ndim == 1 or name.endswith(".mlp.gate.weight"):
            value = value.astype(np.float32)
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        if heads and kind == "mixtral":
            halves = value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1])
            value = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
        suffixes = (".weight", ".bias")
        writer.add_tensor(names.get_name(name, suffixes) or plain.get_name(name, suffixes), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    for name, config in FAMILIES.items():
        generator = np.random.default_rng(SEED)
        folder = ROOT / name
        (folder / "gguf").mkdir(parents=True)
        tensors = tensors_of(config, generator)
        saved = named_as_in_mixtral(tensors) if name == "mixtral" else tensors
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
        expected = {}
        for case, (length, positions) in enumerate([(7, [0, 3, 6]), (75, [15, 19, 20, 40, 74])]):
            tokens = generator.integers(0, VOCAB, length)
            logits = ExpertReference(config, tensors).logits(tokens)
            check_with_mlx(name, config, saved, tokens.tolist(), logits)
            expected[f"{case}.tokens"] = tokens.astype(np.int32)
            expected[f"{case}.positions"] = np.array(positions, dtype=np.int32)
            expected[f"{case}.logits"] = logits[positions].astype(np.float32)
        save_file(expected, folder / "expected.safetensors", metadata=MADE_BY | dict(made_by="scripts/parity/experts.py", seed=str(SEED)))
        write_gguf(folder / "gguf" / "model.gguf", config, tensors)
        write_gradients(folder, config, tensors, saved, generator)


if __name__ == "__main__":
    main()
