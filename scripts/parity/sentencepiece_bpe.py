"""Makes the fixture that the tests of models/src/tokenizer/model_file.rs compare tokens with.

    pip install sentencepiece
    python3 scripts/parity/sentencepiece_bpe.py

A BPE vocabulary with byte fallback is trained on this repository's guide, and texts are encoded with SentencePiece itself.
"""

import json
import pathlib
import tempfile

import sentencepiece

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models" / "tests" / "fixtures" / "sentencepiece"
TEXTS = [
    "The server searches the index and injects the passages that it finds.",
    "a model's weights, read from safetensors (F32, F16) or a GGUF",
    "naïve café 中文 🙂  two  spaces\tand a tab\nand a line",
    " leading space, 12,345 tokens and `--model org/name`",
    "<s> is text here",
]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "tokenizer"
        sentencepiece.SentencePieceTrainer.train(
            input=str(REPOSITORY / "docs" / "serving.md"), model_prefix=str(prefix), vocab_size=700, model_type="bpe",
            byte_fallback=True, character_coverage=0.995, add_dummy_prefix=True, remove_extra_whitespaces=False,
            normalization_rule_name="identity", minloglevel=2)
        model = prefix.with_suffix(".model").read_bytes()
    (FOLDER / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = [{"text": text, "ids": processor.encode(text)} for text in TEXTS]
    made = {"made_by": "scripts/parity/sentencepiece_bpe.py", "sentencepiece": sentencepiece.__version__, "cases": cases}
    (FOLDER / "expected.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
