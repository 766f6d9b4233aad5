//! Triples without a model, from text as encyclopaedias write it.
//!
//! Two passes over the corpus: the first learns its titles, the second reads each passage sentence by sentence. A
//! sentence is cut into noun phrases, verbs and the small words between them by lists of closed classes and the form
//! of words; what the verbs and prepositions say of the subject becomes its triples. Pronouns, short names and `the
//! film` stand for the passage's title, and other titles are known wherever they are named, which is what joins
//! passages into one graph.

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

/// The extractor that needs no model. The same corpus always gives the same triples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Builtin;

impl Extract for Builtin {
    fn id(&self) -> String {
        "builtin".to_owned()
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

/// The triples of one passage.
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

/// Triples of a passage, each once.
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
