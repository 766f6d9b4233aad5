//! Weights of passages by their words and titles, for the walk of [`GraphVariant::Waymark`](crate::GraphVariant).

use std::collections::BTreeMap;

use super::SearchContext;
use super::graph::OWN;
use crate::error::IndexError;
use crate::graph::{Graph, phrase};
use crate::graph_ranking::named;

/// Share of the words in a passage's own weight, in units of the share of its similarity. Chosen on the training
/// questions of MuSiQue and 2WikiMultiHopQA, where 0.3 to 1 differ little.
const WORDS: f64 = 0.5;

/// Weight of a passage whose title the question names. Chosen on the same questions, where 0.2 to 0.8 differ little.
const TITLED: f32 = 0.5;

/// Weight of a passage to whose title a fact about a named phrase leads. Chosen on the same questions, where 0.1 to 0.4
/// differ little.
const RELATED: f32 = 0.2;

/// Weights of passages by their words and titles, which join the weights by similarity.
pub(super) struct WordWeights {
    /// Factor of the weights by similarity, which leaves room for the words.
    pub(super) share: f64,
    /// Weights to add, by passage number. A number may occur twice.
    pub(super) added: Vec<(u32, f32)>,
}

impl SearchContext<'_> {
    /// Weighs passages by words and titles, where `weight` is the passages' own weight.
    pub(super) fn weights_by_words(&self, graph: &Graph, weight: f64) -> Result<WordWeights, IndexError> {
        let share = 1.0 / (1.0 + WORDS);
        // The condition does not apply, because scores must not depend on it.
        let found = self.index.snapshot.lexical.search(self.text, OWN, None)?;
        let best = found.first().map(|best| f64::from(best.score)).filter(|best| *best > 0.0).unwrap_or(1.0);
        let part = |score: f32| (f64::from(score) / best * WORDS * share * weight) as f32;
        let mut added: Vec<(u32, f32)> = found.iter().map(|word| (word.number, part(word.score))).collect();
        // A title counts twice in BM25, so passages with a named title are among the best by words.
        let mut titles: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, word) in found.iter().enumerate() {
            let title = self.index.snapshot.store.name(word.number)?.title;
            for form in title_forms(&title) {
                titles.entry(form).or_default().push(place);
            }
        }
        for places in named(self.text, |name| titles.get(name)) {
            // Chunks of one page share its title and its weight.
            places.iter().for_each(|&place| added[place].1 += TITLED / places.len() as f32);
        }
        for passages in self.related_titles(graph)? {
            added.extend(passages.iter().map(|&number| (number, RELATED / passages.len() as f32)));
        }
        Ok(WordWeights { share, added })
    }
}

/// Normal forms of a title: whole, and without a note in parentheses at its end. Empty forms are omitted.
pub(super) fn title_forms(title: &str) -> Vec<String> {
    let whole = phrase::normalize(title);
    let bare =
        title.strip_suffix(')').and_then(|title| title.rsplit_once('(')).map(|(bare, _)| phrase::normalize(bare));
    let mut forms = vec![whole];
    forms.extend(bare.filter(|bare| *bare != forms[0]));
    forms.retain(|form| !form.is_empty());
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_known_without_their_notes() {
        assert_eq!(title_forms("Get Low (Dillon Francis song)"), ["get low  dillon francis song", "get low"]);
        assert_eq!(title_forms("Oslo"), ["oslo"]);
        assert_eq!(title_forms("(Oslo)"), ["oslo"]);
        for title in [":)", "", "Лев Толстой", "Лев Толстой (писатель)"] {
            assert_eq!(title_forms(title), [""; 0], "{title}");
        }
    }
}
