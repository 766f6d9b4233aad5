"""Writes models/tests/fixtures/tokenizer.json: token ids that the Rust tokenizer must reproduce.

    pip install tokenizers transformers torch gguf
    python scripts/parity/tokenizer.py SMOLLM2.gguf MINILM_DIR

SMOLLM2.gguf is the default policy base of models/catalog.toml and MINILM_DIR the folder of the default embedder, as
`waymark pull` places them. What the ids come from:

* smollm2: the published pipeline (digits one by one, then GPT-2's byte-level pattern) over the file's tokens and merges,
  run by `tokenizers`. `transformers.AutoTokenizer` on the same GGUF file must agree, or this script stops; only texts
  with numerals beyond 0-9 are excepted, because its GGUF conversion leaves the digit step out.
* minilm: `tokenizers` on the tokenizer.json.
* qwen2, llama3: their vocabularies are not available, so a small one is trained here behind their published
  pre-tokenizers and normalisers (tokenizer.json of Qwen2.5 and Llama 3); Rust rebuilds it from GGUF metadata.
"""

import json
import sys
from pathlib import Path

import tokenizers
import transformers
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PLAIN = [
    "",
    " ",
    "Hello, world!",
    "  two leading spaces",
    "trailing spaces   ",
    "a\nb\r\nc\n\n\nd\t\te \n f",
    "\n\n\n   \n \t \n",
    "Who is the mother of the director of film Polish-Russian War (Film)?",
    "I'm you're we'll they'd it's he've DON'T I'LL rock'n'roll",
    "1 12 123 1234 12345 3.14159 1,000,000 1e-5 0x1F 2026-11-21 ½ ² ٣٤٥ Ⅻ 千",
    "x=1;y[2]=x**3 # comment\nif (a != b && c <= d) { return \"e\\n\"; }",
    "def f(x: int) -> str:\n    return f\"{x:>10}\"\n\n\nclass A:\n\tpass\n",
    "fn main() -> Result<(), Box<dyn Error>> { println!(\"{}\", vec![1, 2, 3].len()); Ok(()) }",
    "SELECT * FROM t WHERE a >= 'b''c' -- d",
    "<div class=\"a b\">&amp; &lt;p&gt;</div><!-- x -->",
    "https://example.org/path?q=a%20b&c=d#e user@example.org ~/.bashrc C:\\Windows",
    "naïve café résumé coöperate Ærøskøbing Łódź İstanbul ẞ ß ǆ ﬁ",
    "cafe\u0301 vs caf\u00e9, A\u030a vs \u00c5 vs \u212b, \u1e9b\u0323, \uac00 vs \u1100\u1161",
    "Ελληνικά Русский עברית العربية हिन्दी বাংলা ไทย ქართული Հայերեն አማርኛ",
    "日本語のテキスト、中文字符測試。한국어 문장입니다.",
    "😀😃 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇯🇵 🏳️‍🌈 ❤️ ☃ ✈️ 🧑🏿‍🚀",
    "zero\u200bwidth\u200djoin\ufeffbom\u00a0nbsp\u2009thin\u3000ideographic\u2028line\u2029para\u0085nel",
    "control \u0000 \u0001 \u001b[31m \u007f chars",
    "\U00010348\U0001d4d0\U0001f9ff\U000e0041 private \ue000 \U0010fffd",
    "math: ∑ᵢ xᵢ² ≤ ∫₀^∞ e^{-t} dt ≈ 1 → ∀ε>0 ∃δ",
    "“quotes” ‘single’ «guillemets» „low“ – en — em … • · ¶ § © ® ™ € £ ¥",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...,,,;;;---___***///\\\\\\|||",
    "word" + " " * 1 + "word" + " " * 2 + "word" + " " * 3 + "word" + " " * 17 + "word",
    "\t\ttabs\t and  \t mixed \t\t ",
    "MixedCASE camelCase PascalCase snake_case kebab-case SCREAMING_CASE",
    "<think>I should search.</think>\n<search>[passage] Xawery Żuławski</search>",
    "<information>Doc 1(Title: \"A\") text\n</information>\n<answer>Małgorzata Braunek</answer>",
    "< | im_end | > <|im_en <|im_end| im_end|> |im_end|",
]

CONTROL = [
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b",
    " <|im_end|> ",
    "<|im_end|><|im_end|>",
    "<|endoftext|>",
    "<|im_start|>system\nignore\n<|im_end|>\n  <|im_start|>user\n😀<|im_end|>",
    "x<|im_start|",
]


def byte_level(pattern=None):
    """The published pre-tokenizers: cut by a pattern, then spell bytes; or GPT-2's own pattern."""
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def smollm2(path):
    transformed = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    published = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level()]
    )
    control = [token for token, kind in zip(tokens, types) if kind == 3]
    published.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    cases = []
    for text in PLAIN + CONTROL:
        ids = published.encode(text, add_special_tokens=False).ids
        other = transformed(text, add_special_tokens=False)["input_ids"]
        beyond = any(c.isnumeric() and not c.isascii() for c in text)
        if ids != other and not beyond:
            sys.exit(f"the two references disagree on {text!r}: {ids} {other}")
        cases.append({"text": text, "ids": ids})
    return {"cases": cases}


def minilm(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    return {"cases": [{"text": text, "ids": encode(text)} for text in PLAIN]}


def trained(pattern, normaliser, ignore_merges):
    """A vocabulary of 1,000 tokens from this very file, behind a published pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normaliser is not None:
        tokenizer.normalizer = normaliser
    tokenizer.pre_tokenizer = byte_level(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")] + PLAIN * 3, trainer)
    special = [AddedToken(name, normalized=False, special=True) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    user = [AddedToken(name, normalized=False, special=False) for name in ("<think>", "</think>")]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(user)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    kind = lambda token: 3 if token.startswith("<|") and len(token) > 9 else 4 if token in ("<think>", "</think>") else 1
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    return {
        "tokens": tokens,
        "types": [kind(token) for token in tokens],
        "merges": merges,
        "json": json.loads(tokenizer.to_str()),
        "cases": [{"text": text, "ids": encode(text)} for text in PLAIN + CONTROL],
    }


def main():
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    fixture = {
        "made_by": f"scripts/parity/tokenizer.py, tokenizers {tokenizers.__version__}, transformers {transformers.__version__}",
        "smollm2": smollm2(gguf),
        "minilm": minilm(folder),
        "qwen2": trained(SPLIT.replace("DIGITS", r"\p{N}"), normalizers.NFC(), False),
        "llama3": trained(SPLIT.replace("DIGITS", r"\p{N}{1,3}"), None, True),
    }
    out = Path(__file__).parents[2] / "models/tests/fixtures/tokenizer.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(fixture, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(out, out.stat().st_size)


if __name__ == "__main__":
    main()
