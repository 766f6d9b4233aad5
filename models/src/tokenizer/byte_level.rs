//! Byte-level BPE tokenizers from a vocabulary and its merges. The splitting rules are those of the published
//! `tokenizer.json` files.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Pipeline};

/// Splitting patterns. Llama 3 and Qwen 2 differ in how many digits stay together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Rule that splits text before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextSplit {
    Smollm,
    Qwen2,
    Llama3,
    /// Pattern of Llama 3, without its precedence of whole words over merges.
    Cl100k,
    Gpt2,
}

/// Builds a tokenizer. The merges must fit the vocabulary (see [`check`](super::merge::check)).
pub(super) fn byte_level(
    vocab: Vocab,
    merges: Vec<(String, String)>,
    added: Vec<AddedToken>,
    split: TextSplit,
) -> tokenizers::Result<Pipeline> {
    let ignore_merges = split == TextSplit::Llama3;
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignore_merges).build()?;
    let mut pipeline = Pipeline::new(bpe);
    if split == TextSplit::Qwen2 {
        pipeline.with_normalizer(Some(NFC))?;
    }
    pipeline.with_pre_tokenizer(Some(split.pre_tokenizer()?));
    pipeline.with_decoder(Some(ByteLevel::new(false, false, false)));
    pipeline.add_tokens(added)?;
    Ok(pipeline)
}

impl TextSplit {
    fn pre_tokenizer(self) -> tokenizers::Result<PreTokenizerWrapper> {
        let split =
            |regex: &str| Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false);
        let bytes = |use_regex: bool| ByteLevel::new(false, true, use_regex);
        Ok(match self {
            Self::Gpt2 => bytes(true).into(),
            Self::Smollm => Sequence::new(vec![Digits::new(true).into(), bytes(true).into()]).into(),
            Self::Qwen2 => Sequence::new(vec![split(QWEN2)?.into(), bytes(false).into()]).into(),
            Self::Llama3 | Self::Cl100k => Sequence::new(vec![split(LLAMA3)?.into(), bytes(false).into()]).into(),
        })
    }
}
