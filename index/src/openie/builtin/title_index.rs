//! Index of the titles of a corpus, for finding them in running text.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use super::clean::clean;
use super::token::{WordToken, tokens};
use crate::split_mix::{STEP, finalize};

/// Maximum number of tokens in a title, which bounds the work at each token of a text.
const LONGEST: usize = 16;

/// Node of the trie: properties of a run of tokens at the start of some title.
#[derive(Debug, Clone, Copy, Default)]
struct TitleNode {
    /// If `true`, the run is a complete title.
    ends: bool,
    /// If `true`, a longer title begins with the run.
    goes_on: bool,
}

/// Trie of titles over tokens, with nodes keyed by the hash of the tokens that lead to them. Takes a few words of
/// memory per token of each title, and one lookup per token of a text while some title continues.
#[derive(Debug, Default)]
pub(super) struct TitleIndex {
    nodes: HashMap<u64, TitleNode, BuildHasherDefault<IdentityHasher>>,
    /// Full title for each title without its qualifier. `None` if several titles share that form.
    bases: HashMap<u64, Option<u64>, BuildHasherDefault<IdentityHasher>>,
}

impl TitleIndex {
    /// Adds `title`, with and without its qualifier.
    pub(super) fn add(&mut self, title: &str) {
        let title = clean(title);
        let base = base(&title);
        self.insert(base);
        if base.len() < title.len() {
            self.insert(&title);
        }
        let whole = hash(title.as_bytes());
        match self.bases.entry(hash(base.as_bytes())) {
            Entry::Vacant(entry) => {
                entry.insert(Some(whole));
            }
            Entry::Occupied(mut entry) if *entry.get() != Some(whole) => {
                // Two titles share the form, so neither may lose its qualifier.
                entry.insert(None);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// Returns the name of a passage under `title` in triples: without the qualifier, unless other titles share that
    /// form.
    pub(super) fn name(&self, title: &str) -> String {
        let title = clean(title).trim().to_owned();
        let base = base(&title);
        match self.bases.get(&hash(base.as_bytes())) {
            Some(None) => title,
            _ => base.to_owned(),
        }
    }

    /// Returns the number of tokens in the longest title that `tokens` begin with; 0 if there is none.
    pub(super) fn longest(&self, tokens: &[WordToken<'_>]) -> usize {
        let mut way = TokenRunHash::default();
        let mut found = 0;
        for (token, length) in tokens.iter().zip(1..=LONGEST) {
            way.step(token.text);
            match self.nodes.get(&way.0) {
                None => break,
                Some(node) => {
                    if node.ends {
                        found = length;
                    }
                    if !node.goes_on {
                        break;
                    }
                }
            }
        }
        found
    }

    fn insert(&mut self, title: &str) {
        let tokens = tokens(title);
        // Longer titles are never found, because `longest` stops there.
        if tokens.is_empty() || tokens.len() > LONGEST {
            return;
        }
        let mut way = TokenRunHash::default();
        let last = tokens.len() - 1;
        for (at, token) in tokens.iter().enumerate() {
            way.step(token.text);
            let node = self.nodes.entry(way.0).or_default();
            if at == last { node.ends = true } else { node.goes_on = true }
        }
    }
}

/// Removes a qualifier in brackets from the end of `title`.
pub(super) fn base(title: &str) -> &str {
    let title = title.trim();
    match title.strip_suffix(')').and_then(|head| head.rsplit_once(" (")) {
        Some((base, _)) if !base.is_empty() => base,
        _ => title,
    }
}

/// Hash of a run of tokens, equal on every machine, so that extraction is deterministic. A collision would produce a
/// false name, which is negligible with 64 bits.
#[derive(Default)]
struct TokenRunHash(u64);

impl TokenRunHash {
    fn step(&mut self, token: &str) {
        // The rotation makes the order of the tokens count.
        self.0 = self.0.rotate_left(5).wrapping_mul(STEP) ^ hash(token.as_bytes());
    }
}

/// FNV-1a, finished by the mixer of SplitMix64.
fn hash(bytes: &[u8]) -> u64 {
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    finalize(sum)
}

/// Hasher that passes keys through, since they are hashes already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(bytes);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles() -> TitleIndex {
        let mut titles = TitleIndex::default();
        for title in
            ["Lothair II", "Venus (1929 film)", "Venus (planet)", "Up (2009 film)", "Henry, Duke of York", "Henry"]
        {
            titles.add(title);
        }
        titles
    }

    #[test]
    fn the_longest_title_is_found() {
        let titles = titles();
        let found = |text: &str| titles.longest(&tokens(text));
        assert_eq!(found("Lothair II was"), 2);
        assert_eq!(found("Lothair was"), 0);
        assert_eq!(found("Henry, Duke of York, was"), 5);
        assert_eq!(found("Henry, Duke of Kent"), 1);
        assert_eq!(found("Venus (1929 film)"), 5);
        assert_eq!(found(""), 0);
    }

    #[test]
    fn a_qualifier_stays_where_it_is_needed() {
        let titles = titles();
        assert_eq!(titles.name("Up (2009 film)"), "Up");
        assert_eq!(titles.name("Venus (planet)"), "Venus (planet)");
        assert_eq!(titles.name("(unnamed)"), "(unnamed)");
    }
}
