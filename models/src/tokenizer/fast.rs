//! Wrapper of a `tokenizers` pipeline that exists in two versions: with its added tokens and without.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{
    AddedToken, AddedVocabulary, DecoderWrapper, Model as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizerWrapper, Tokenizer as Pipeline,
};

use super::vocabulary::check_ids;
use super::window::is_word_break;
use super::{Piece, Specials, TokenBytes, windows};
use crate::ModelError;

/// Limit of token IDs: a single huge ID would fill the memory with an empty table. The largest published
/// vocabularies have about 2¹⁸ tokens.
const MAX_IDS: u32 = 1 << 24;

/// Number of words that each encoding thread caches per pipeline; the first words stay forever. A word takes about
/// 400 bytes, one of 255 bytes takes 8 KiB. With the library's default of 10,000, every server thread would grow by
/// 4 MB, or by 80 MB for deliberately long words. Prompts are encoded on the runtime's blocking threads, of which
/// load can create 512: with this limit they hold 26 MB in total, or 512 MB for long words.
const CACHED_WORDS: usize = 128;

/// A tokenizer pipeline. `parse` is the published one; `literal` lacks all added tokens, so no text can spell
/// one, and marks no space that only the first word of a sequence has.
#[derive(Debug)]
pub(super) struct FastTokenizer {
    parse: Pipeline,
    literal: Pipeline,
    /// Added tokens by their own names. `parse` looks for the normalized name of some: `▁<s>` for `<s>`.
    named: AddedVocabulary,
    /// Added tokens that are ordinary characters, found in every text.
    characters: HashMap<char, u32>,
    /// Mark of the space before the first word of a sequence. `None` if the beginning is encoded like any other text.
    first_mark: Option<char>,
    /// If `true`, a text has the same IDs as its [`windows`] one after another.
    windowed: bool,
}

/// Texts with word breaks of every kind, to find out if a pipeline treats the words on both sides separately.
const PROBES: [&str; 4] = [
    "The quick brown Fox doesn't jump over a lazy dog",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "in 1987 it was v2 of x86,but not \n\n the  last one; it's so  \tand so on",
    "caf\u{e9} au lait et\u{301} th\u{e9} \u{4e2d}\u{6587} ab cd \u{4e2d} ef gh  (one two) the end",
];

impl FastTokenizer {
    pub(super) fn new(mut parse: Pipeline) -> Self {
        // A tokenizer.json may ask for padding or truncation, which belong to the training script that saved it.
        parse.with_padding(None);
        // Removing a truncation cannot fail; only an invalid one can be refused.
        let _ = parse.with_truncation(None);
        let mut model = parse.get_model().clone();
        model.resize_cache(CACHED_WORDS);
        parse.with_model(model);
        let mut literal = parse.clone();
        literal.with_added_vocabulary(AddedVocabulary::new());
        let mut splitter = literal.get_pre_tokenizer().cloned();
        let first_mark = splitter.as_mut().and_then(without_first_mark);
        literal.with_pre_tokenizer(splitter);
        let characters = single_characters(parse.get_added_vocabulary());
        let mut named = parse.get_added_vocabulary().clone();
        // Cannot fail: without a normalizer, the patterns are the names, each of which occurs once.
        let _ = named.refresh_normalized_tokens(None::<&NormalizerWrapper>);
        let windowed = PROBES.iter().all(|probe| splits_at_words(&literal, probe));
        Self { parse, literal, named, characters, first_mark, windowed }
    }

    /// Returns the published pipeline without the added tokens whose IDs are `end` or higher.
    ///
    /// # Errors
    /// A message naming a remaining token that would get another ID.
    pub(super) fn without_added_from(&self, end: usize) -> Result<Pipeline, String> {
        let added = self.parse.get_added_vocabulary().get_added_tokens_decoder();
        let kept = added.iter().filter(|(id, _)| (**id as usize) < end);
        // Sorted, because the library numbers tokens in the order in which they are added.
        let kept: BTreeMap<u32, AddedToken> = kept.map(|(id, token)| (*id, token.clone())).collect();
        let mut pipeline = self.parse.clone();
        pipeline.with_added_vocabulary(AddedVocabulary::new());
        pipeline.add_tokens(kept.values().cloned()).map_err(|error| error.to_string())?;
        check_ids(&pipeline, &kept)?;
        Ok(pipeline)
    }

    /// Returns `true` if long texts are encoded window by window.
    pub(super) fn is_windowed(&self) -> bool {
        self.windowed
    }

    pub(super) fn encode(&self, text: &str, specials: Specials, table: &TokenBytes) -> Result<Vec<u32>, ModelError> {
        if specials == Specials::Parse {
            return encode(&self.parse, text);
        }
        let ids = self.encode_plain(text)?;
        if !ids.iter().any(|&id| table.is_control(id)) {
            return Ok(ids);
        }
        self.encode_by_char(text, table)
    }

    /// Encodes plain text at the beginning of a sequence.
    pub(super) fn encode_first(&self, text: &str, table: &TokenBytes) -> Result<Vec<u32>, ModelError> {
        match self.gets_space(text) {
            true => self.encode(&format!(" {text}"), Specials::Literal, table),
            false => self.encode(text, Specials::Literal, table),
        }
    }

    /// Returns `true` if a sequence that begins with `text` begins with a space that is not in the text.
    fn gets_space(&self, text: &str) -> bool {
        let (Some(mark), Some(first)) = (self.first_mark, text.chars().next()) else { return false };
        first != ' ' && first != mark && !self.characters.contains_key(&first)
    }

    /// Encodes a text without added tokens, except for those that are ordinary characters.
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        if self.characters.is_empty() {
            return self.encode_windows(text);
        }
        let mut ids = Vec::new();
        let mut start = 0;
        for (at, c) in text.char_indices() {
            let Some(&id) = self.characters.get(&c) else { continue };
            if start < at {
                ids.extend(self.encode_windows(&text[start..at])?);
            }
            ids.push(id);
            start = at + c.len_utf8();
        }
        ids.extend(self.encode_windows(&text[start..])?);
        Ok(ids)
    }

    /// Encodes a text window by window, because a pipeline takes hundreds of bytes per byte of its input.
    fn encode_windows(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        if !self.windowed {
            return encode(&self.literal, text);
        }
        let mut ids = Vec::new();
        for window in windows(text) {
            ids.extend(encode(&self.literal, window)?);
        }
        Ok(ids)
    }

    /// Fallback for a vocabulary whose merges can build a control token out of ordinary text: encodes character by
    /// character.
    fn encode_by_char(&self, text: &str, table: &TokenBytes) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::with_capacity(text.len());
        let mut buffer = [0; 4];
        for c in text.chars() {
            match self.characters.get(&c) {
                Some(&id) => ids.push(id),
                None => ids.extend(encode(&self.literal, c.encode_utf8(&mut buffer))?),
            }
        }
        ids.retain(|&id| !table.is_control(id));
        Ok(ids)
    }

    pub(super) fn split_control(&self, text: &str) -> Vec<Piece> {
        let split = self.named.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let pieces =
            split.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().map(|(part, _, tokens)| {
                match tokens.as_ref().and_then(|tokens| tokens.first()) {
                    Some(token) => Piece::Control(token.id),
                    None => Piece::Text(part.to_owned()),
                }
            });
        pieces.collect()
    }

    /// Names of the added tokens that are not special, such as `<think>`, without those of white space and of a single
    /// character.
    pub(super) fn markers(&self) -> Vec<String> {
        let added = self.parse.get_added_vocabulary().get_added_tokens_decoder().values();
        let is_space = |c: char| c.is_whitespace() || c == '▁';
        let is_text = |name: &str| name.chars().nth(1).is_none() || name.chars().all(is_space);
        let markers = added.filter(|token| !token.special && !is_text(&token.content));
        let mut names: Vec<String> = markers.map(|token| token.content.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Token that the post-processor writes before a text. `None` if it writes none.
    pub(super) fn opening_token(&self) -> Option<u32> {
        let processor = serde_json::to_value(self.parse.get_post_processor()?).ok()?;
        self.id(opening_name(&processor)?)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.parse.token_to_id(token)
    }

    pub(super) fn name(&self, id: u32) -> Option<String> {
        self.parse.id_to_token(id)
    }

    /// Raw bytes of each token, derived from its name in the way of the tokenizer's decoder.
    ///
    /// # Errors
    /// A message naming an ID that is too high.
    pub(super) fn table(&self) -> Result<TokenBytes, String> {
        let added = self.parse.get_added_vocabulary().get_added_tokens_decoder();
        let model = self.parse.get_model();
        let highest = added.keys().copied().chain(model.get_vocab().into_values()).max();
        if let Some(id) = highest.filter(|&id| id >= MAX_IDS) {
            return Err(format!("token id {id} is too high: expected an id below {MAX_IDS}"));
        }
        let byte_level = is_byte_level(self.parse.get_decoder());
        let mut table = TokenBytes::new();
        for id in 0..highest.map_or(0, |id| id + 1) {
            match (added.get(&id), model.id_to_token(id)) {
                // Runs of spaces of Gemma are such tokens, with the marks of spaces in their names.
                (Some(token), _) if !byte_level && !token.special => {
                    table.push(&sentencepiece_bytes(&token.content), false);
                }
                (Some(token), _) => table.push(token.content.as_bytes(), token.special),
                (None, Some(name)) if byte_level => table.push(&byte_level_bytes(&name), false),
                (None, Some(name)) => table.push(&sentencepiece_bytes(&name), false),
                (None, None) => table.push(&[], false),
            }
        }
        Ok(table)
    }
}

/// Lets a pre-tokenizer mark no space before the first word of a sequence. Returns the mark if it did before.
fn without_first_mark(splitter: &mut PreTokenizerWrapper) -> Option<char> {
    match splitter {
        PreTokenizerWrapper::Metaspace(space) if space.prepend_scheme == PrependScheme::First => {
            space.prepend_scheme = PrependScheme::Never;
            Some(space.get_replacement())
        }
        PreTokenizerWrapper::Sequence(list) => {
            let mut mark = None;
            for part in list.as_mut().iter_mut() {
                mark = mark.or(without_first_mark(part));
            }
            mark
        }
        _ => None,
    }
}

/// Added tokens of one character that are not special: letters, in DeepSeek's vocabularies. They cannot spell a control
/// token or a tag. A character of longer ones (a line break, among runs of line breaks) is left to the merges of the
/// vocabulary, because the longest one counts.
fn single_characters(added: &AddedVocabulary) -> HashMap<char, u32> {
    let tokens = added.get_added_tokens_decoder();
    let mut found = HashMap::new();
    for (&id, token) in tokens {
        let mut name = token.content.chars();
        let (Some(c), None) = (name.next(), name.next()) else { continue };
        let is_restricted = token.special || token.single_word || token.lstrip || token.rstrip;
        // A name that the normalizer changes is searched for in normalized text only.
        let is_changed = added.simple_id_to_token(id).as_ref() != Some(&token.content);
        if !is_restricted && !is_changed {
            found.insert(c, id);
        }
    }
    for token in tokens.values().filter(|token| !token.special && token.content.chars().nth(1).is_some()) {
        for c in token.content.chars() {
            found.remove(&c);
        }
    }
    found
}

/// Name of the special token with which a post-processor's template of one text begins.
fn opening_name(processor: &Value) -> Option<&str> {
    match processor["processors"].as_array() {
        Some(parts) => parts.iter().find_map(opening_name),
        None => processor["single"][0]["SpecialToken"]["id"].as_str(),
    }
}

/// Returns `true` if splitting `text` at any one of its word breaks leaves its IDs unchanged.
fn splits_at_words(pipeline: &Pipeline, text: &str) -> bool {
    let Ok(whole) = encode(pipeline, text) else { return false };
    (0..text.len()).filter(|&at| is_word_break(text.as_bytes(), at)).all(|at| {
        let (Ok(mut head), Ok(tail)) = (encode(pipeline, &text[..at]), encode(pipeline, &text[at..])) else {
            return false;
        };
        head.extend(tail);
        head == whole
    })
}

fn encode(pipeline: &Pipeline, text: &str) -> Result<Vec<u32>, ModelError> {
    Ok(pipeline.encode_fast(text, false).map_err(refused)?.get_ids().to_vec())
}

// `map_err` passes the error by value.
#[allow(clippy::needless_pass_by_value)]
fn refused(reason: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer(reason.to_string())
}

fn is_byte_level(decoder: Option<&DecoderWrapper>) -> bool {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(sequence)) => {
            sequence.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
        }
        _ => false,
    }
}

/// Decodes GPT-2's printable spelling of bytes (`bytes_to_unicode` in its `encoder.py`): printable Latin-1
/// characters stand for themselves, the other 68 byte values are the characters from U+0100 on, in order.
fn byte_level_bytes(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    for c in name.chars() {
        match u32::from(c) {
            code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => bytes.push(code as u8),
            code @ 0x100..=0x120 => bytes.push((code - 0x100) as u8),
            code @ 0x121..=0x142 => bytes.push((code - 0x121 + 0x7f) as u8),
            0x143 => bytes.push(0xad),
            // Not the spelling of a byte: the character stands for itself.
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Decodes SentencePiece names: `▁` is a space and `<0x0A>` is a byte.
fn sentencepiece_bytes(name: &str) -> Vec<u8> {
    let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => name.replace('▁', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_printable_spelling() {
        // The published table, built the way GPT-2's encoder.py builds it.
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let spelled = if printable { char::from(byte) } else { char::from_u32(next).unwrap_or_default() };
            next += u32::from(!printable);
            assert_eq!(byte_level_bytes(&spelled.to_string()), [byte], "byte {byte:#x}");
        }
    }

    #[test]
    fn sentencepiece_names_are_text_or_one_byte() {
        assert_eq!(sentencepiece_bytes("▁the"), b" the");
        assert_eq!(sentencepiece_bytes("<0x0A>"), b"\n");
        assert_eq!(sentencepiece_bytes("<0xZZ>"), b"<0xZZ>");
    }
}
