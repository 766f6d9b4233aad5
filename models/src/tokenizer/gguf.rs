//! BPE tokenizers rebuilt from GGUF metadata.
//!
//! For byte-level BPE the file holds tokens, token types and merges, but only the name of the pre-tokenization
//! (`tokenizer.ggml.pre`); for SentencePiece it holds tokens, token types and scores.

use std::borrow::Cow;

use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use super::byte_level::{TextSplit, byte_level};
use super::control_tokens::{CONTROL, ControlTokens, USER_DEFINED};
use super::merge;
use super::sentencepiece::{self, PieceKind, ScoredPiece};
use crate::ModelError;
use crate::weights::Gguf;

/// Names of the splitting rule of Llama 3, as in `llama-vocab.cpp` of llama.cpp. Texts of these vocabularies begin with
/// BOS if a file does not state otherwise.
const LIKE_LLAMA3: [&str; 8] =
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"];

pub(super) fn pipeline(gguf: &Gguf) -> Result<Pipeline, ModelError> {
    match gguf.text("tokenizer.ggml.model") {
        Some("gpt2") => {}
        Some("llama") => return sentences(gguf),
        Some(other) => {
            let what = format!("tokenizer model {other}: use a directory with the tokenizer.json of this model");
            return Err(gguf.unsupported(what));
        }
        None => return Err(gguf.corrupt("tokenizer.ggml.model is missing")),
    }
    let texts = |key: &str| gguf.texts(key).ok_or_else(|| gguf.corrupt(format!("{key} is missing")));
    let tokens = texts("tokenizer.ggml.tokens")?;
    let merges = texts("tokenizer.ggml.merges")?;
    let split = cut(gguf)?;
    let refused = |error: tokenizers::Error| gguf.corrupt(format!("tokenizer: {error}"));
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, token) in (0..).zip(&tokens) {
        // If two tokens have the same spelling, the first keeps the name.
        vocab.entry(token.clone().into_owned()).or_insert(id);
    }
    let merges = pairs(gguf, &merges)?;
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merge::check(parts, "", |token| vocab.contains_key(token)).map_err(|reason| gguf.corrupt(reason))?;
    byte_level(vocab, merges, added(gguf, &tokens)?, split).map_err(refused)
}

/// Token with which texts begin. `None` if they begin with none. Where the file does not state it, the defaults of
/// llama.cpp apply.
pub(super) fn bos(gguf: &Gguf) -> Option<u32> {
    let default = match gguf.text("tokenizer.ggml.model") {
        Some("llama") => true,
        _ => gguf.text("tokenizer.ggml.pre").is_some_and(|pre| LIKE_LLAMA3.contains(&pre)),
    };
    let is_added = gguf.flag("tokenizer.ggml.add_bos_token").unwrap_or(default);
    let id = gguf.number("tokenizer.ggml.bos_token_id").filter(|_| is_added)?;
    u32::try_from(id).ok()
}

/// Rebuilds a tokenizer of SentencePiece.
fn sentences(gguf: &Gguf) -> Result<Pipeline, ModelError> {
    let missing = |key: &str| gguf.corrupt(format!("{key} is missing"));
    let tokens = gguf.texts("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
    let scores = gguf.floats("tokenizer.ggml.scores").ok_or_else(|| missing("tokenizer.ggml.scores"))?;
    let types = gguf.numbers("tokenizer.ggml.token_type").ok_or_else(|| missing("tokenizer.ggml.token_type"))?;
    if [scores.len(), types.len()] != [tokens.len(); 2] {
        let counts = format!("{} tokens but {} scores and {} types", tokens.len(), scores.len(), types.len());
        return Err(gguf.corrupt(counts));
    }
    let control = ControlTokens::new(gguf);
    let piece = |id: u64, text: Cow<'_, str>, score: f32, kind: Option<u64>| {
        let kind = control.kind(id, &text, kind);
        // As in llama.cpp, a type that is not defined counts as that of ordinary text.
        let kind = kind.and_then(PieceKind::of).unwrap_or(PieceKind::Normal);
        ScoredPiece { text: text.into_owned(), score, kind }
    };
    let fields = tokens.into_iter().zip(scores).zip(types);
    let pieces: Vec<_> = (0..).zip(fields).map(|(id, ((text, score), kind))| piece(id, text, score, kind)).collect();
    let prefix = gguf.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let is_phi3 = gguf.text("general.architecture") == Some("phi3");
    let further = if is_phi3 { phi3_tokens(&pieces) } else { Vec::new() };
    sentencepiece::pipeline(&pieces, prefix, further).map_err(|reason| gguf.corrupt(reason))
}

/// Tokens of Phi-3 that swallow the white space after them. A GGUF does not state this; llama.cpp knows it by the name
/// of the model, with the same exceptions.
fn phi3_tokens(pieces: &[ScoredPiece]) -> Vec<AddedToken> {
    let swallows = |piece: &&ScoredPiece| match piece.text.as_str() {
        "<unk>" | "<s>" | "<|endoftext|>" => false,
        "</s>" => true,
        _ => piece.kind == PieceKind::Control,
    };
    let token = |piece: &ScoredPiece| {
        AddedToken::from(piece.text.clone(), piece.kind == PieceKind::Control).normalized(false).rstrip(true)
    };
    pieces.iter().filter(swallows).map(token).collect()
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
    let control = ControlTokens::new(gguf);
    let token = |(id, (token, kind)): (u64, (&Cow<'_, str>, Option<u64>))| {
        let kind = control.kind(id, token, kind).filter(|kind| matches!(*kind, CONTROL | USER_DEFINED))?;
        Some(AddedToken::from(token.clone().into_owned(), kind == CONTROL).normalized(false))
    };
    Ok((0..).zip(tokens.iter().zip(types)).filter_map(token).collect())
}

/// Returns the splitting rule that the file names.
fn cut(gguf: &Gguf) -> Result<TextSplit, ModelError> {
    match gguf.text("tokenizer.ggml.pre") {
        // One rule under several names, see `llama-vocab.cpp` of llama.cpp.
        Some("smollm" | "refact" | "starcoder" | "minerva-7b") => Ok(TextSplit::Smollm),
        Some("dbrx" | "smaug-bpe") => Ok(TextSplit::Cl100k),
        Some("qwen2" | "deepseek-r1-qwen" | "kormo" | "megrez" | "f2llmv2") => Ok(TextSplit::Qwen2),
        Some(name) if LIKE_LLAMA3.contains(&name) => Ok(TextSplit::Llama3),
        Some("gpt-2" | "gpt2" | "mellum" | "a.x-4.0" | "trillion" | "granite-docling") => Ok(TextSplit::Gpt2),
        // Files written before this key existed.
        None | Some("default") if gguf.architecture()?.starts_with("qwen") => Ok(TextSplit::Qwen2),
        None | Some("default") => Ok(TextSplit::Llama3),
        Some(other) => {
            let what = format!("tokenizer.ggml.pre {other}: use a directory with the tokenizer.json of this model");
            Err(gguf.unsupported(what))
        }
    }
}
