//! A byte-level BPE tokenizer rebuilt from GGUF metadata.
//!
//! The file holds tokens, token types and merges, but only the name of the pre-tokenization (`tokenizer.ggml.pre`).
//! The splitting rules here are those of the published `tokenizer.json` files.

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Pipeline};

use super::merge;
use crate::ModelError;
use crate::weights::Gguf;

/// Splitting patterns. Llama 3 and Qwen 2 differ in how many digits stay together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Token types of the GGUF specification.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Rule that splits text before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Smollm,
    Qwen2,
    Llama3,
    Gpt2,
}

pub(super) fn pipeline(gguf: &Gguf) -> Result<Pipeline, ModelError> {
    match gguf.text("tokenizer.ggml.model") {
        Some("gpt2") => {}
        Some(other) => {
            let what = format!("tokenizer model {other}: use a directory with the tokenizer.json of this model");
            return Err(gguf.unsupported(what));
        }
        None => return Err(gguf.corrupt("tokenizer.ggml.model is missing")),
    }
    let texts = |key: &str| gguf.texts(key).ok_or_else(|| gguf.corrupt(format!("{key} is missing")));
    let tokens = texts("tokenizer.ggml.tokens")?;
    let merges = texts("tokenizer.ggml.merges")?;
    let cut = Cut::of(gguf)?;
    let refused = |error: tokenizers::Error| gguf.corrupt(format!("tokenizer: {error}"));
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, token) in (0..).zip(&tokens) {
        // If two tokens have the same spelling, the first keeps the name.
        vocab.entry(token.clone().into_owned()).or_insert(id);
    }
    let merges = pairs(gguf, &merges)?;
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merge::check(parts, "", |token| vocab.contains_key(token)).map_err(|reason| gguf.corrupt(reason))?;
    let bpe =
        BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(cut == Cut::Llama3).build().map_err(refused)?;
    let mut pipeline = Pipeline::new(bpe);
    if cut == Cut::Qwen2 {
        pipeline.with_normalizer(Some(NFC)).map_err(refused)?;
    }
    pipeline.with_pre_tokenizer(Some(cut.pre_tokenizer().map_err(refused)?));
    pipeline.with_decoder(Some(ByteLevel::new(false, false, false)));
    pipeline.add_tokens(added(gguf, &tokens)?).map_err(refused)?;
    Ok(pipeline)
}

/// Splits each merge into its two tokens. The separator is a space, which byte-level spelling never contains.
fn pairs(gguf: &Gguf, merges: &[Cow<'_, str>]) -> Result<Vec<(String, String)>, ModelError> {
    let pair = |merge: &Cow<'_, str>| {
        let (left, right) = merge.split_once(' ')?;
        Some((left.to_owned(), right.to_owned()))
    };
    let pairs: Option<Vec<_>> = merges.iter().map(pair).collect();
    pairs.ok_or_else(|| gguf.corrupt("tokenizer.ggml.merges has an entry that is not two tokens"))
}

/// Control tokens and user-defined tokens, both of which are matched before a text is split.
fn added(gguf: &Gguf, tokens: &[Cow<'_, str>]) -> Result<Vec<AddedToken>, ModelError> {
    let Some(types) = gguf.numbers("tokenizer.ggml.token_type") else { return Ok(Vec::new()) };
    if ![0, tokens.len()].contains(&types.len()) {
        return Err(gguf.corrupt(format!("{} tokens but {} token types", tokens.len(), types.len())));
    }
    let token = |(token, kind): (&Cow<'_, str>, Option<u64>)| {
        let kind = kind.filter(|kind| matches!(*kind, CONTROL | USER_DEFINED))?;
        Some(AddedToken::from(token.clone().into_owned(), kind == CONTROL).normalized(false))
    };
    Ok(tokens.iter().zip(types).filter_map(token).collect())
}

impl Cut {
    fn of(gguf: &Gguf) -> Result<Self, ModelError> {
        match gguf.text("tokenizer.ggml.pre") {
            Some("smollm") => Ok(Self::Smollm),
            Some("qwen2" | "deepseek-r1-qwen") => Ok(Self::Qwen2),
            Some("llama-bpe" | "llama3" | "llama-v3") => Ok(Self::Llama3),
            Some("gpt-2" | "gpt2") => Ok(Self::Gpt2),
            // Files written before this key existed.
            None | Some("default") if gguf.architecture()?.starts_with("qwen") => Ok(Self::Qwen2),
            None | Some("default") => Ok(Self::Llama3),
            Some(other) => {
                let what = format!("tokenizer.ggml.pre {other}: use a directory with the tokenizer.json of this model");
                Err(gguf.unsupported(what))
            }
        }
    }

    fn pre_tokenizer(self) -> tokenizers::Result<PreTokenizerWrapper> {
        let split =
            |regex: &str| Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false);
        let bytes = |use_regex: bool| ByteLevel::new(false, true, use_regex);
        Ok(match self {
            Self::Gpt2 => bytes(true).into(),
            Self::Smollm => Sequence::new(vec![Digits::new(true).into(), bytes(true).into()]).into(),
            Self::Qwen2 => Sequence::new(vec![split(QWEN2)?.into(), bytes(false).into()]).into(),
            Self::Llama3 => Sequence::new(vec![split(LLAMA3)?.into(), bytes(false).into()]).into(),
        })
    }
}
