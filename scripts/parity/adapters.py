"""Makes the adapters that models/tests/decoder_peft.rs compares serving and training with.

    pip install torch transformers peft safetensors
    python3 scripts/parity/adapters.py

The base models are the small random checkpoints of decoder.py and families.py. For each family of dense models, `peft` makes
a plain adapter on all projections, with the gradients of a loss, and one with DoRA, rank-stabilized scales and ranks and
alphas by pattern. Some families have further ones: on embedding and output projection, with saved modules, and with biases.
Logits and gradients are computed by `transformers` and `peft`, on the CPU in float32.
"""

import json
import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import save_file

SEED = 20_261_126
FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"
ROOT = FIXTURES / "adapters"
LENGTH, PROMPT, POSITIONS = 30, 18, [0, 7, 21, 29]
BASES = {name: FIXTURES / "decoder" / name for name in ("llama", "qwen2", "qwen3")} | {
    name: FIXTURES / "families" / name for name in ("mistral", "smollm3", "phi3", "granite", "olmo2", "gemma2", "gemma3")}
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
SPLIT = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapters_of(name):
    modules = FUSED if name == "phi3" else SPLIT
    adapters = {
        "plain": dict(r=2, lora_alpha=5, target_modules=modules),
        "dora": dict(r=2, lora_alpha=3, use_dora=True, use_rslora=True, target_modules=modules,
                     rank_pattern={modules[0]: 3, r"layers\.1\.mlp\.down_proj": 1},
                     alpha_pattern={"o_proj": 7, r"layers\.0\..*_proj": 4}),
    }
    if name == "mistral":
        adapters["saved"] = dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens", "lm_head"])
        adapters["dora"]["target_modules"] = modules + ["lm_head"]
    if name == "gemma3":
        adapters["saved"] = dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"])
    if name in ("olmo2", "gemma2"):
        adapters["vocabulary"] = dict(r=3, lora_alpha=4, target_modules=["embed_tokens", "lm_head", "q_proj"])
    if name == "qwen2":
        adapters["all-biases"] = dict(r=2, lora_alpha=4, target_modules=["o_proj"], bias="all")
        adapters["own-biases"] = dict(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj"], bias="lora_only")
    if name in ("qwen3", "granite"):
        adapters["lora-bias"] = dict(r=2, lora_alpha=4, target_modules=modules + ["lm_head"], lora_bias=True)
    return adapters


def stir(model, generator):
    """Sets every trained parameter to random values of about the size that training leads to."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "lora_magnitude_vector" in name:
            parameter.data.mul_(1.0 + 0.3 * noise)
        elif "lora_" in name:
            parameter.data.copy_(0.5 * noise * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0))
        else:
            parameter.data.add_(0.3 * noise * parameter.data.abs().mean())


def expected(model, tokens, gradients):
    logits = model(input_ids=tokens[None]).logits[0]
    tensors = {"0.tokens": tokens.to(torch.int32), "0.positions": torch.tensor(POSITIONS, dtype=torch.int32),
               "0.logits": logits[POSITIONS].detach().float().contiguous()}
    if gradients:
        loss = torch.nn.functional.cross_entropy(logits[PROMPT - 1:-1], tokens[PROMPT:])
        loss.backward()
        tensors |= {f"gradient.{name.replace('.default', '')}": parameter.grad.clone()
                    for name, parameter in model.named_parameters() if parameter.requires_grad}
        tensors["loss"] = loss.detach()[None]
        tensors["prompt"] = torch.tensor([PROMPT], dtype=torch.int32)
    return tensors


def opened(base):
    # Some configurations name a padding token beyond these small vocabularies.
    return transformers.AutoModelForCausalLM.from_pretrained(
        base, pad_token_id=0, dtype=torch.float32, attn_implementation="eager").eval()


def describe(file, base):
    """Names the base without the path to it, and modules in order, so that every run writes the same file."""
    config = json.loads(file.read_text())
    config["base_model_name_or_path"] = base.name
    for name in ("target_modules", "modules_to_save"):
        config[name] = sorted(config[name]) if config[name] else config[name]
    file.write_text(json.dumps(config, indent=1) + "\n")


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    made = dict(made_by="scripts/parity/adapters.py", torch=torch.__version__.split("+")[0],
                transformers=transformers.__version__, peft=peft.__version__, seed=str(SEED))
    for name, base in BASES.items():
        for kind, settings in adapters_of(name).items():
            generator = torch.Generator().manual_seed(SEED)
            model = opened(base)
            tokens = torch.randint(0, model.config.vocab_size, (LENGTH,), generator=generator)
            with torch.no_grad():
                before = model(input_ids=tokens[None]).logits[0, POSITIONS]
            model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
            stir(model, generator)
            folder = ROOT / name / kind
            model.save_pretrained(folder)
            (folder / "README.md").unlink(missing_ok=True)
            describe(folder / "adapter_config.json", base)
            # PEFT writes patterns in the order of their names, and the first that matches counts when it reads them.
            model = peft.PeftModel.from_pretrained(opened(base), folder, is_trainable=True).eval()
            tensors = expected(model, tokens, kind == "plain")
            change = (tensors["0.logits"] - before).abs().max().item()
            assert change > 0.1, (name, kind, change)
            save_file(tensors, folder / "expected.safetensors", metadata=made)
            print(f"{name}/{kind}: logits change by up to {change:.2f}")


if __name__ == "__main__":
    main()
