//! Triple extraction without a model, from encyclopedic text.
//!
//! Two passes over the corpus: the first collects its titles, the second reads each passage sentence by sentence. Lists
//! of closed word classes and the form of other words split a sentence into noun phrases, verbs and the small words
//! between them; verbs and prepositions between a subject and its objects become triples. Pronouns, short names and
//! `the film` refer to the passage's title. Other titles are recognized wherever they occur, which connects passages
//! into one graph.

mod brackets;
mod chunk;
mod clause;
mod clean;
mod date;
mod lexicon;
mod phrase;
mod referent;
mod sentence;
mod title_index;
mod token;

use std::collections::HashSet;

use self::clause::Clauses;
use self::referent::Referents;
use self::title_index::TitleIndex;
use crate::error::IndexError;
use crate::extract::{Extract, Passages, TripleSink};
use crate::triple::Triple;

/// Extractor that needs no model. The same corpus always gives the same triples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Builtin;

impl Builtin {
    /// Name of the source, for the manifest.
    pub(crate) const ID: &str = "builtin";
}

impl Extract for Builtin {
    fn id(&self) -> String {
        Builtin::ID.to_owned()
    }

    fn reads_corpus(&self) -> bool {
        true
    }

    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError> {
        let mut titles = TitleIndex::default();
        for number in 0..u32::try_from(passages.len()).unwrap_or(u32::MAX) {
            titles.add(&passages.passage(number)?.title);
        }
        for &number in numbers {
            let passage = passages.passage(number)?;
            sink(number, triples(&titles, &passage.title, &passage.text))?;
        }
        Ok(())
    }
}

/// Extracts the triples of one passage.
fn triples(titles: &TitleIndex, title: &str, text: &str) -> Vec<Triple> {
    let text = clean::clean(text);
    let tokens = token::tokens(&text);
    let mut referents = Referents::new(titles.name(title), title, &tokens);
    let mut triples = UniqueTriples::default();
    for (number, sentence) in sentence::sentences(&tokens).enumerate() {
        let chunks = chunk::chunks(sentence, titles);
        Clauses::new(&text, sentence, &chunks, number == 0, &mut referents, &mut triples).read();
    }
    triples.list
}

/// Triples of a passage without repetitions.
#[derive(Default)]
struct UniqueTriples {
    list: Vec<Triple>,
    seen: HashSet<Triple>,
}

impl UniqueTriples {
    fn add(&mut self, triple: Triple) {
        if !self.seen.contains(&triple) {
            self.list.push(triple.clone());
            self.seen.insert(triple);
        }
    }
}
