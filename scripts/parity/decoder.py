"""Makes the fixtures that models/tests/decoder*.rs compare the decoder with.

    pip install torch transformers peft gguf safetensors
    python3 scripts/parity/decoder.py tiny                # small random checkpoints, adapters, rope frequencies
    python3 scripts/parity/decoder.py smollm2 FILE.gguf   # logits of the catalog's SmolLM2-135M-Instruct.Q4_1.gguf

Everything is computed by `transformers` on the CPU in float32; random weights come from the seed below. Each fixture's
metadata names the versions it was made with.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

SEED = 20_240_917
ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "decoder"
MADE_BY = {
    "made_by": "scripts/parity/decoder.py",
    "torch": torch.__version__.split("+")[0],
    "transformers": transformers.__version__,
    "seed": str(SEED),
}


def randomize(model, generator):
    """Sets random weights with outputs of unit size, so that every part of the computation shows in the logits."""
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed_tokens" in name:
            value = 0.4 * noise
        else:
            value = 1.5 * noise / shape[-1] ** 0.5
        parameter.data.copy_(value)


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float()


def tokens_of(length, vocab, generator):
    return torch.randint(0, vocab, (length,), generator=generator).tolist()


def expect(model, path, vocab, generator):
    """Saves the full logits at a few positions of a short and of a long sequence."""
    tensors = {}
    for case, (length, positions) in enumerate([(7, [0, 3, 6]), (75, [15, 16, 40, 74])]):
        tokens = tokens_of(length, vocab, generator)
        tensors[f"{case}.tokens"] = torch.tensor(tokens, dtype=torch.int32)
        tensors[f"{case}.positions"] = torch.tensor(positions, dtype=torch.int32)
        tensors[f"{case}.logits"] = logits_of(model, tokens)[positions].contiguous()
    save_file(tensors, path, metadata=MADE_BY)


def tiny():
    common = dict(vocab_size=256, num_hidden_layers=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1)
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=32, rope_theta=500.0)
    configs = {
        "qwen2": transformers.Qwen2Config(
            **common, hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0)),
        "qwen3": transformers.Qwen3Config(
            **common, hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0)),
        "llama": transformers.LlamaConfig(
            **common, hidden_size=48, intermediate_size=80, num_attention_heads=3, num_key_value_heads=1,
            tie_word_embeddings=False, rope_parameters=llama3),
    }
    for name, config in configs.items():
        generator = torch.Generator().manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        randomize(model, generator)
        folder = ROOT / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        expect(model, folder / "expected.safetensors", config.vocab_size, generator)
        if name == "qwen2":
            sharded = ROOT / "qwen2-sharded"
            shutil.rmtree(sharded, ignore_errors=True)
            model.save_pretrained(sharded, max_shard_size="100KB")
        if name == "qwen3":
            adapters(model, generator)
    for config in ROOT.rglob("generation_config.json"):
        config.unlink()
    rope()


def adapters(base, generator):
    """Two adapters of the tiny Qwen3: every projection with plain scaling; two projections, rank-stabilized."""
    import copy

    import peft

    everything = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = {
        "full": peft.LoraConfig(r=4, lora_alpha=8, target_modules=everything, task_type="CAUSAL_LM"),
        "rslora": peft.LoraConfig(r=8, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "v_proj"],
                                  task_type="CAUSAL_LM"),
    }
    for name, config in settings.items():
        folder = ROOT / "qwen3-adapters" / name
        shutil.rmtree(folder, ignore_errors=True)
        model = peft.get_peft_model(copy.deepcopy(base), config).eval()
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(noise / parameter.shape[-1] ** 0.5)
        model.save_pretrained(folder)
        readme = folder / "README.md"
        readme.unlink(missing_ok=True)
        expect(model, folder / "expected.safetensors", base.config.vocab_size, generator)


def rope():
    """Saves the rotary frequencies under every scaling, for head size 64."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scalings = {
        "linear": dict(rope_type="linear", rope_theta=10_000.0, factor=4.0),
        "llama3": dict(rope_type="llama3", rope_theta=500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=8192),
        "yarn": dict(rope_type="yarn", rope_theta=1_000_000.0, factor=4.0, original_max_position_embeddings=32_768),
    }
    made = dict(MADE_BY)
    for name, parameters in scalings.items():
        context = parameters.get("original_max_position_embeddings", 2048)
        config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2,
                                          max_position_embeddings=int(context * parameters["factor"]),
                                          rope_parameters=parameters)
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[name](config, "cpu")
        made[name] = dict(parameters, frequencies=frequencies.tolist(), magnitude=float(magnitude))
    (ROOT / "rope.json").write_text(json.dumps(made, indent=1) + "\n")


PROMPTS = [
    "The capital of France is",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWho wrote the play Hamlet?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The Rhine rises in the Swiss Alps, forms part of the borders between Switzerland and Liechtenstein, Austria and "
    "Germany, and flows on through the Rhineland to the Netherlands, where it empties into the North Sea. It is the second "
    "longest river in Central and Western Europe after the Danube, at about 1,230 kilometres, with an average discharge of "
    "about 2,900 cubic metres per second. The Rhine and the Danube made up most of the Roman Empire's northern inland "
    "boundary, and the Rhine has been a vital waterway bringing trade and goods deep inland since those days. The various "
    "castles and defences built along it attest to its prominence in the Holy Roman Empire. Among the largest cities on the "
    "Rhine are Cologne, Rotterdam,",
]
GREEDY = 32
TOP = 32
STRIDE = 97


def smollm2(path):
    path = pathlib.Path(path)
    load = dict(pretrained_model_name_or_path=path.parent, gguf_file=path.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32).eval()
    tensors = {}
    for case, prompt in enumerate(PROMPTS):
        tokens = tokenizer(prompt, add_special_tokens=False).input_ids
        positions = sorted({0, len(tokens) // 2, len(tokens) - 1})
        logits = logits_of(model, tokens)[positions]
        top = logits.topk(TOP)
        chain = list(tokens)
        for _ in range(GREEDY):
            chain.append(logits_of(model, chain)[-1].argmax().item())
        tensors[f"{case}.tokens"] = torch.tensor(tokens, dtype=torch.int32)
        tensors[f"{case}.positions"] = torch.tensor(positions, dtype=torch.int32)
        tensors[f"{case}.top_ids"] = top.indices.to(torch.int32).contiguous()
        tensors[f"{case}.top_values"] = top.values.contiguous()
        tensors[f"{case}.every_97th"] = logits[:, ::STRIDE].contiguous()
        tensors[f"{case}.greedy"] = torch.tensor(chain[len(tokens):], dtype=torch.int32)
        print(case, len(tokens), repr(tokenizer.decode(chain[len(tokens):])))
    ROOT.mkdir(parents=True, exist_ok=True)
    save_file(tensors, ROOT / "smollm2.safetensors", metadata=dict(MADE_BY, file=path.name))


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        tiny()
    elif len(sys.argv) == 3 and sys.argv[1] == "smollm2":
        smollm2(sys.argv[2])
    else:
        sys.exit(__doc__)
