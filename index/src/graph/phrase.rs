//! Phrases and facts as HippoRAG 2 writes them: normalised, named and turned into the text that is embedded.

use md5::{Digest, Md5};

use crate::python;

/// A phrase in its normal form (HippoRAG 2, `misc_utils.py:text_processing`): lower case, every character but ASCII
/// letters, digits and the space replaced by a space, the ends stripped. Spaces within are kept as they are.
pub fn normalise(text: &str) -> String {
    let lower = text.to_lowercase();
    let plain: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
    plain.trim_matches(' ').to_owned()
}

/// The id that HippoRAG 2 gives a text: `prefix` (`chunk-`, `entity-`, `fact-`) and the MD5 of the text in lower-case
/// hexadecimal (`misc_utils.py:compute_mdhash_id`).
pub fn id(prefix: &str, text: &str) -> String {
    let digest = Md5::digest(text.as_bytes());
    digest.iter().fold(prefix.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// The text of a fact, by which it is embedded: what Python shows of a tuple of three strings.
pub fn fact(subject: &str, relation: &str, object: &str) -> String {
    python::tuple(&[subject, relation, object])
}

/// Whether a phrase has synonyms at all: more than two ASCII letters and digits (HippoRAG 2,
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
        // The Kelvin sign is lowered to k, and the capital I with a dot to i and a combining dot.
        assert_eq!(normalise("5 \u{212a}"), "5 k");
        assert_eq!(normalise("\u{130}zmir"), "i zmir");
        assert_eq!(normalise("\ttab\there\n"), "tab here");
    }

    #[test]
    fn short_phrases_have_no_synonyms() {
        for (phrase, expected) in [("", false), ("a b", false), ("42", false), ("abc", true), ("a 1 b", true)] {
            assert_eq!(has_synonyms(phrase), expected, "{phrase:?}");
        }
    }
}
