"""Compares the logits in the fixtures of families.py and experts.py with `transformers`, on the CPU.

    pip install torch transformers numpy safetensors
    python3 scripts/parity/by_transformers.py

transformers 5.24.0 with torch 2.15.0 differs by at most 2e-5 in each family.
"""

import pathlib

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"


def difference(folder):
    # Some configurations name a padding token beyond these small vocabularies.
    model = AutoModelForCausalLM.from_pretrained(
        folder, pad_token_id=0, dtype=torch.float32, attn_implementation="eager").eval()
    expected = load_file(folder / "expected.safetensors")
    most = 0.0
    for case in range(2):
        tokens = torch.tensor(expected[f"{case}.tokens"].astype(np.int64))
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].numpy()
        most = max(most, np.abs(logits[expected[f"{case}.positions"]] - expected[f"{case}.logits"]).max())
    return most


def main():
    for folder in sorted(path for root in ("families", "experts") for path in (ROOT / root).iterdir()):
        found = difference(folder)
        print(f"{folder.name}: {found:.1e}")
        assert found < 1e-4, folder.name


if __name__ == "__main__":
    main()
