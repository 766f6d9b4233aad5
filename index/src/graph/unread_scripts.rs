//! Scripts of passages in which an extractor finds nothing.

use std::ops::RangeInclusive;

use crate::progress::UnreadScript;

/// Scripts by ranges of letters.
const SCRIPTS: [(&str, RangeInclusive<char>); 13] = [
    ("Latin", 'A'..='\u{24f}'),
    ("Greek", '\u{370}'..='\u{3ff}'),
    ("Cyrillic", '\u{400}'..='\u{52f}'),
    ("Armenian", '\u{530}'..='\u{58f}'),
    ("Hebrew", '\u{590}'..='\u{5ff}'),
    ("Arabic", '\u{600}'..='\u{6ff}'),
    ("Devanagari", '\u{900}'..='\u{97f}'),
    ("Bengali", '\u{980}'..='\u{9ff}'),
    ("Tamil", '\u{b80}'..='\u{bff}'),
    ("Thai", '\u{e00}'..='\u{e7f}'),
    ("Japanese", '\u{3040}'..='\u{30ff}'),
    ("Chinese", '\u{4e00}'..='\u{9fff}'),
    ("Korean", '\u{ac00}'..='\u{d7a3}'),
];

/// Number of letters that decide on the script of a passage.
const LETTERS: usize = 200;

/// Passages by script, and those without triples among them.
#[derive(Debug, Default)]
pub(super) struct ScriptCounts {
    counts: [[u64; 2]; SCRIPTS.len()],
}

impl ScriptCounts {
    /// Counts a passage.
    pub(super) fn add(&mut self, text: &str, without_triples: bool) {
        let Some(script) = script_of(text) else { return };
        let [passages, unread] = &mut self.counts[script];
        *passages += 1;
        *unread += u64::from(without_triples);
    }

    /// Returns the scripts where more than half of the passages have no triples.
    pub(super) fn unread(&self) -> impl Iterator<Item = UnreadScript> {
        let scripts = SCRIPTS.iter().zip(self.counts);
        scripts
            .filter(|(_, [passages, unread])| unread * 2 > *passages)
            .map(|((script, _), [passages, unread])| UnreadScript { script, passages, unread })
    }
}

/// Index of the script of most letters at the beginning of a text. `None` without letters of a known script.
fn script_of(text: &str) -> Option<usize> {
    let mut counts = [0usize; SCRIPTS.len()];
    for letter in text.chars().filter(|letter| letter.is_alphabetic()).take(LETTERS) {
        if let Some(script) = SCRIPTS.iter().position(|(_, letters)| letters.contains(&letter)) {
            counts[script] += 1;
        }
    }
    // Japanese mixes its own letters with many more Chinese ones.
    let [kana, chinese] = [SCRIPTS.len() - 3, SCRIPTS.len() - 2];
    if counts[kana] > 0 {
        counts[kana] += counts[chinese];
    }
    let (script, most) = counts.into_iter().enumerate().max_by_key(|(_, count)| *count)?;
    (most > 0).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_whose_passages_are_mostly_unread_are_named() {
        let mut counts = ScriptCounts::default();
        for (text, unread) in [
            ("The Seine flows through Paris.", false),
            ("A list.", true),
            ("Paris is large.", false),
            ("Сена течёт через Париж.", true),
            ("Париж — столица.", true),
            ("セーヌ川はパリを流れる。", true),
            ("塞纳河流经巴黎。", true),
            ("12345", true),
        ] {
            counts.add(text, unread);
        }
        let found: Vec<_> = counts.unread().map(|found| (found.script, found.unread, found.passages)).collect();
        assert_eq!(found, [("Cyrillic", 2, 2), ("Japanese", 1, 1), ("Chinese", 1, 1)]);
    }
}
