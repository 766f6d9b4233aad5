//! Observations: encoding to token ids within a limit.

use super::AgentError;
use super::action::{ActionOutcome, FoundEvidence};
use super::policy::Policy;
use super::protocol::{Injected, Protocol};
use super::retrieval::Format;
use super::text_codec::TextCodec;

/// Upper bound of the bytes of a token.
const LONGEST: usize = 256;

/// Upper bound of the bytes of most tokens: in English they have four or five.
const USUAL: usize = 16;

/// Number of tokens at the end of a prefix that may differ from those of the whole text.
const MARGIN: usize = 64;

/// Number of bytes at the end of a text that determine how it merges with the text behind it.
const TAIL: usize = 256;

/// An encoded observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observation {
    /// Token ids.
    pub(super) ids: Vec<u32>,
    /// Decoded text.
    pub(super) text: String,
    /// If `true`, the observation was cut.
    pub(super) truncated: bool,
}

/// Rule for shortening an observation that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObservationCut {
    /// Cuts the end, closing tag included. An observation with a change of speaker keeps its frame all the same.
    End,
    /// Shortens the retrieved text and keeps the frame, if the frame fits.
    Retrieved,
}

impl ObservationCut {
    /// Returns the rule of a protocol for evidence in this format.
    pub(super) fn of(protocol: &dyn Protocol, format: Format) -> ObservationCut {
        let trained = protocol.training().filter(|_| format == Format::Training);
        let cuts_frame = trained.is_some_and(|training| training.cuts_frame());
        if cuts_frame { ObservationCut::End } else { ObservationCut::Retrieved }
    }
}

/// Encodes an observation into at most `limit` tokens. The frame of an observation with a change of speaker must fit
/// ([`frame`]).
pub(super) fn observe(
    codec: &TextCodec,
    parts: Vec<Injected>,
    cut: ObservationCut,
    limit: usize,
) -> Result<Observation, AgentError> {
    let mut parts = within(parts, limit);
    for part in &mut parts {
        if let Injected::Retrieved(text) = part {
            drop_middle(codec, text, limit)?;
        }
    }
    encode_within(codec, &parts, cut, limit)
}

fn encode_within(
    codec: &TextCodec,
    parts: &[Injected],
    cut: ObservationCut,
    limit: usize,
) -> Result<Observation, AgentError> {
    let ids = codec.encode_parts(parts)?;
    if ids.len() <= limit {
        return Ok(Observation { text: text(codec, parts, &ids), ids, truncated: false });
    }
    if (cut == ObservationCut::Retrieved || speaks(parts))
        && let Some((ids, text)) = shortened(codec, parts, ids.len(), limit)?
    {
        return Ok(Observation { ids, text, truncated: true });
    }
    let ids = ids[..limit].to_vec();
    Ok(Observation { text: codec.tokenizer.decode(&ids), ids, truncated: true })
}

/// Returns the number of bytes beyond which no text is shown in an observation of `limit` tokens.
pub(super) fn most_bytes(limit: usize) -> usize {
    limit.saturating_add(1).saturating_mul(LONGEST)
}

/// Truncates retrieved texts that are too long for `limit` tokens to represent. A passage may be megabytes long, and
/// encoding all of it would block the other tasks of this thread.
pub(super) fn within(mut parts: Vec<Injected>, limit: usize) -> Vec<Injected> {
    let most = most_bytes(limit);
    for part in &mut parts {
        if let Injected::Retrieved(text) = part {
            text.truncate(text.floor_char_boundary(most));
        }
    }
    parts
}

/// Removes the middle of a long text that cannot influence an observation of `limit` tokens: keeps a beginning that
/// exceeds the limit, and the end, which merges with the frame. Encoding the rest would take most of the time.
fn drop_middle(codec: &TextCodec, text: &mut String, limit: usize) -> Result<(), AgentError> {
    // The last tokens of the head may differ from those of the whole text.
    let enough = limit.saturating_add(MARGIN);
    let tail = word_start(text, text.len().saturating_sub(TAIL));
    let mut most = enough.saturating_mul(USUAL);
    loop {
        let head = word_start(text, most);
        if head >= tail {
            return Ok(());
        }
        if codec.literal(&text[..head])?.len() > enough {
            text.replace_range(head..tail, "");
            return Ok(());
        }
        // Tokens of white space, for example, are much longer than usual: a longer beginning is needed.
        most = most.saturating_mul(4);
    }
}

/// Returns a position in `text` near `at`, not after it, at which a word with its leading space begins: both sides then
/// have the same tokens as in the whole text. Without such a word nearby, returns `at`, rounded down to a character
/// boundary.
fn word_start(text: &str, at: usize) -> usize {
    const NEAR: usize = 256;
    let at = text.floor_char_boundary(at);
    let bytes = text.as_bytes();
    let word = |at: usize| bytes.get(at).is_some_and(|byte| !byte.is_ascii_whitespace());
    let begins = |&at: &usize| bytes[at] == b' ' && at > 0 && word(at - 1) && word(at + 1);
    (at.saturating_sub(NEAR)..at).rev().find(begins).unwrap_or(at)
}

/// Returns the length in tokens of the shortest observation after which the policy can continue; 0 if the observation
/// contains no change of speaker, since any part of it will do.
///
/// # Errors
/// [`AgentError::Speakers`] when the protocol changes speakers and the chat template cannot.
pub(super) fn frame(codec: &TextCodec, policy: &Policy, format: Format) -> Result<usize, AgentError> {
    let nothing = ActionOutcome::Evidence(FoundEvidence::of(&[]));
    let mut parts = policy.protocol.observation(&nothing, format);
    if !speaks(&parts) {
        return Ok(0);
    }
    if let Err(reason) = codec.speakers() {
        return Err(AgentError::Speakers { policy: policy.name.clone(), reason: reason.to_owned() });
    }
    for part in &mut parts {
        if let Injected::Retrieved(text) = part {
            text.clear();
        }
    }
    Ok(codec.encode_parts(&parts)?.len())
}

/// Returns `true` if an observation contains a change of speaker.
fn speaks(parts: &[Injected]) -> bool {
    parts.iter().any(|part| matches!(part, Injected::Speaker(_)))
}

/// Returns the text of an observation: its decoded ids without control tokens.
fn text(codec: &TextCodec, parts: &[Injected], ids: &[u32]) -> String {
    if speaks(parts) {
        return codec.tokenizer.decode(ids);
    }
    parts.iter().map(Injected::text).collect()
}

/// Encodes an observation with shortened retrieved text. `None` when there is no retrieved text, or the frame alone is
/// too long.
fn shortened(
    codec: &TextCodec,
    parts: &[Injected],
    length: usize,
    limit: usize,
) -> Result<Option<(Vec<u32>, String)>, AgentError> {
    let Some(at) = parts.iter().position(|part| matches!(part, Injected::Retrieved(_))) else { return Ok(None) };
    let retrieved = codec.literal(parts[at].text())?;
    let mut parts = parts.to_vec();
    // Tokens merge across the boundaries, so the first guess can be off by a few.
    let mut keep = retrieved.len().saturating_sub(length - limit);
    loop {
        let kept = codec.tokenizer.decode(&retrieved[..keep]);
        // The cut may fall within a character, which then decodes to replacement characters.
        parts[at] = Injected::retrieved(kept.trim_end_matches(char::REPLACEMENT_CHARACTER));
        let ids = codec.encode_parts(&parts)?;
        if ids.len() <= limit {
            let text = text(codec, &parts, &ids);
            return Ok(Some((ids, text)));
        }
        if keep == 0 {
            return Ok(None);
        }
        // Smaller in every pass, so the loop ends.
        keep = keep.saturating_sub(ids.len() - limit);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use proptest::prelude::*;
    use waymark_index::Passage;
    use waymark_models::tokenizer::Tokenizer;

    use super::super::evo_rag::EvoRag;
    use super::super::graphrag_r1::GraphragR1;
    use super::super::routerag::RouteRag;
    use super::super::search_r1::SearchR1;
    use super::super::tearag::TeaRag;
    use super::*;

    #[test]
    fn what_lies_far_behind_the_cut_is_not_encoded() {
        let parts =
            vec![Injected::frame("f".repeat(9000)), Injected::retrieved("a".to_owned() + &"\u{e9}".repeat(9000))];
        let cut = within(parts.clone(), 9);
        assert_eq!(cut[0], parts[0], "the frame stays");
        // The limit falls within the last character, which is cut as a whole.
        assert_eq!(cut[1].text().len(), 10 * LONGEST - 1);
        assert_eq!(within(parts.clone(), usize::MAX), parts);
    }

    const LONG: &str = " abcdeghijklmnopqrstuvwyz0123456789";

    /// Creates a byte-level BPE with a few words, so that tokens have few or many bytes and some merge with the frame.
    fn words() -> Tokenizer {
        let printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let odd: Vec<u8> = (0..=255).filter(|byte| !printable(byte)).collect();
        let spell = |byte: u8| match odd.iter().position(|other| *other == byte) {
            Some(place) => char::from_u32(0x100 + place as u32).unwrap().to_string(),
            None => char::from(byte).to_string(),
        };
        let mut names: Vec<String> = (0..=255).map(spell).collect();
        let mut merges: Vec<[String; 2]> = Vec::new();
        for word in [" capital", " of", "aaaaaaaa", ".\n", "\n\n", "x</", "f</i", "\u{e9}", LONG] {
            let mut name = String::new();
            for next in word.bytes().map(spell) {
                let merge = [name.clone(), next.clone()];
                name += &next;
                if merge[0].is_empty() || merges.contains(&merge) {
                    continue;
                }
                merges.push(merge);
                names.push(name.clone());
            }
        }
        let vocab: serde_json::Map<String, serde_json::Value> =
            names.iter().enumerate().map(|(id, name)| (name.clone(), id.into())).collect();
        let level = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
        });
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "pre_tokenizer": level, "decoder": level, "added_tokens": [],
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, json.to_string()).unwrap();
        Tokenizer::from_file(&path).unwrap()
    }

    fn codec(tokenizer: Tokenizer) -> TextCodec {
        TextCodec { tokenizer: Arc::new(tokenizer), template: None, eos: Vec::new(), tables: Arc::default() }
    }

    fn framed(text: &str) -> Vec<Injected> {
        vec![Injected::frame("\n\n<information>"), Injected::retrieved(text), Injected::frame("</information>\n\n")]
    }

    #[test]
    fn of_a_long_text_little_is_encoded() {
        let codec = codec(words());
        for (text, most) in [("capital of \u{e9} ".repeat(9000), 3000), ("\u{e9}".repeat(60_000), 3000)] {
            let mut left = text.clone();
            drop_middle(&codec, &mut left, 50).unwrap();
            assert!(left.len() < most, "{}", left.len());
            assert!(
                text.starts_with(&left[..left.floor_char_boundary(800)]) && text.ends_with(&left[left.len() - 20..])
            );
        }
        // Tokens of more bytes need a longer beginning.
        let long = LONG.repeat(9000);
        let mut left = LONG.repeat(9000);
        drop_middle(&codec, &mut left, 50).unwrap();
        assert!(left.len() > LONG.len() * (50 + MARGIN) && left.len() < long.len() / 10, "{}", left.len());
    }

    #[test]
    fn only_the_protocols_that_were_trained_so_lose_the_end_of_a_frame() {
        let passages = [Passage { id: "1".into(), title: "T".into(), text: "x".repeat(4000) }];
        let codec = codec(Tokenizer::bytes());
        let protocols: [(&dyn Protocol, &str, bool); 5] = [
            (&GraphragR1, "<|end_of_documents|>\n\n", false),
            (&TeaRag, " </Reference>", false),
            (&EvoRag, "</information>\n\n", false),
            (&RouteRag, "</information>\n\n", true),
            (&SearchR1, "</information>\n\n", true),
        ];
        for (protocol, end, cuts) in protocols {
            for (format, lost) in [(Format::Training, cuts), (Format::Evaluation, false)] {
                let found = ActionOutcome::Evidence(FoundEvidence::of(&passages));
                let parts = protocol.observation(&found, format);
                let seen = observe(&codec, parts, ObservationCut::of(protocol, format), 200).unwrap();
                let name = protocol.name();
                assert!(seen.truncated && seen.ids.len() <= 200, "{name} {format:?}");
                assert_ne!(seen.text.ends_with(end), lost, "{name} {format:?}: {}", seen.text);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// An observation equals, token by token, the one obtained by encoding everything.
        #[test]
        fn what_is_left_out_changes_nothing(
            parts in prop::collection::vec(part(), 0..60),
            limit in 0..90usize,
            whole: bool,
        ) {
            thread_local!(static CODECS: [TextCodec; 2] = [codec(words()), codec(Tokenizer::bytes())]);
            let cut = if whole { ObservationCut::Retrieved } else { ObservationCut::End };
            let parts = framed(&parts.concat());
            CODECS.with(|codecs| {
                for codec in codecs {
                    let plain = encode_within(codec, &within(parts.clone(), limit), cut, limit).unwrap();
                    prop_assert_eq!(observe(codec, parts.clone(), cut, limit).unwrap(), plain);
                }
                Ok(())
            })?;
        }
    }

    /// Generates a text that repeats a pattern.
    fn part() -> impl Strategy<Value = String> {
        let kinds = ["the capital of", "a", "\u{e9}", " ", ".\n", "x", "capital of France. ", "\n\n", "f", LONG];
        (prop::sample::select(kinds.to_vec()), 1..40usize).prop_map(|(kind, times)| kind.repeat(times))
    }
}
