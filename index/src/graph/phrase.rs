//! Normalization, IDs and texts of phrases and facts, as in HippoRAG 2.

use md5::{Digest, Md5};

use crate::python;

/// Normalizes a phrase (HippoRAG 2, `misc_utils.py:text_processing`): lower case, every character except ASCII letters,
/// digits and spaces replaced by a space, ends trimmed. Inner spaces stay as they are.
pub fn normalize(text: &str) -> String {
    let lower = text.to_lowercase();
    let plain: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
    plain.trim_matches(' ').to_owned()
}

/// Returns the ID that HippoRAG 2 gives a text: `prefix` (`chunk-`, `entity-`, `fact-`) and the MD5 of the text in
/// lower-case hexadecimal (`misc_utils.py:compute_mdhash_id`).
pub fn id(prefix: &str, text: &str) -> String {
    let digest = Md5::digest(text.as_bytes());
    digest.iter().fold(prefix.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// Text of a fact as embedded: Python's notation of a tuple of three strings.
pub fn fact(subject: &str, relation: &str, object: &str) -> String {
    python::tuple(&[subject, relation, object])
}

/// Returns `true` if a phrase can have synonyms: it has more than two ASCII letters and digits (HippoRAG 2,
/// `HippoRAG.py:add_synonymy_edges`).
pub(crate) fn has_synonyms(phrase: &str) -> bool {
    phrase.bytes().filter(u8::is_ascii_alphanumeric).nth(2).is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_python_lowers_to_ascii_stays() {
        // In lower case, the Kelvin sign is k, and the dotted capital I is i with a combining dot.
        assert_eq!(normalize("5 \u{212a}"), "5 k");
        assert_eq!(normalize("\u{130}zmir"), "i zmir");
        assert_eq!(normalize("\ttab\there\n"), "tab here");
    }

    #[test]
    fn short_phrases_have_no_synonyms() {
        for (phrase, expected) in [("", false), ("a b", false), ("42", false), ("abc", true), ("a 1 b", true)] {
            assert_eq!(has_synonyms(phrase), expected, "{phrase:?}");
        }
    }
}
