"""Makes the fixture that models/tests/gradient_peft.rs compares the learner with.

    pip install torch transformers peft safetensors
    python3 scripts/parity/lora_step.py

A small random Llama with a LoRA adapter on all projections learns from two sequences of unlike length, padded, with the
loss on the last tokens of each (the mean over all of them): the gradients of the first step, and the adapter after three
steps of AdamW. Everything is computed by PyTorch, `transformers` and `peft` on the CPU in float32.
"""

import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import save_file

SEED = 20_261_121
ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "gradient"
LENGTHS = [23, 14]
PROMPTS = [9, 5]
STEPS = 3
OPTIMIZER = dict(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
IGNORED = -100


def noise(shape, generator, scale):
    return torch.randn(shape, generator=generator) * scale


def model_of(generator):
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10_000.0))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.copy_(1.0 + noise(parameter.shape, generator, 0.2))
        else:
            parameter.data.copy_(noise(parameter.shape, generator, 0.5 if "embed" in name else parameter.shape[-1] ** -0.5))
    return model


def batch_of(vocab, generator):
    width = max(LENGTHS)
    tokens = torch.zeros(len(LENGTHS), width, dtype=torch.long)
    labels = torch.full_like(tokens, IGNORED)
    mask = torch.zeros_like(tokens)
    for row, (length, prompt) in enumerate(zip(LENGTHS, PROMPTS)):
        tokens[row, :length] = torch.randint(0, vocab, (length,), generator=generator)
        labels[row, prompt:length] = tokens[row, prompt:length]
        mask[row, :length] = 1
    return tokens, labels, mask


def main():
    generator = torch.Generator().manual_seed(SEED)
    shutil.rmtree(ROOT, ignore_errors=True)
    base = model_of(generator)
    base.save_pretrained(ROOT)
    (ROOT / "generation_config.json").unlink(missing_ok=True)
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM"))
    learned = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    for parameter in learned.values():
        parameter.data.copy_(noise(parameter.shape, generator, 0.5 * parameter.shape[-1] ** -0.5))
    model.save_pretrained(ROOT / "adapter")
    (ROOT / "adapter" / "README.md").unlink(missing_ok=True)
    tokens, labels, mask = batch_of(base.config.vocab_size, generator)
    optimizer = torch.optim.AdamW(learned.values(), **OPTIMIZER)
    tensors, losses = {}, []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=tokens, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        if step == 0:
            tensors.update({f"gradient.{name}": p.grad.clone() for name, p in learned.items()})
        optimizer.step()
        losses.append(loss.item())
    tensors.update({f"after.{name}": p.data.clone() for name, p in learned.items()})
    tensors["losses"] = torch.tensor(losses)
    for row, (length, prompt) in enumerate(zip(LENGTHS, PROMPTS)):
        tensors[f"{row}.tokens"] = tokens[row, :length].to(torch.int32)
        tensors[f"{row}.prompt"] = torch.tensor([prompt], dtype=torch.int32)
    made = dict(made_by="scripts/parity/lora_step.py", torch=torch.__version__.split("+")[0],
                transformers=transformers.__version__, peft=peft.__version__, seed=str(SEED), steps=str(STEPS))
    save_file(tensors, ROOT / "expected.safetensors", metadata=made | {k: str(v) for k, v in OPTIMIZER.items()})
    print(losses)


if __name__ == "__main__":
    main()
