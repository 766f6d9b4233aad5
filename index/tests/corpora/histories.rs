//! Random histories of an index: documents, changes, their effect, and what must not depend on the history.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use waymark_index::{Changes, Document, Extract, Index, IndexError, Passages, Triple, TripleSink};

use super::document;

/// Extractor that makes a triple of each two consecutive words. If it reads the corpus, the relation tells how many
/// passages have the title.
#[derive(Debug, Clone, Copy)]
pub struct Pairs {
    pub reads_corpus: bool,
}

impl Extract for Pairs {
    fn id(&self) -> String {
        "pairs".to_owned()
    }

    fn reads_corpus(&self) -> bool {
        self.reads_corpus
    }

    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError> {
        let mut titles = BTreeMap::new();
        for number in (0..).take(if self.reads_corpus { passages.len() } else { 0 }) {
            *titles.entry(passages.passage(number)?.title).or_insert(0) += 1;
        }
        for &number in numbers {
            let passage = passages.passage(number)?;
            let words: Vec<&str> = passage.text.split_whitespace().collect();
            let relation = format!("precedes {}", titles.get(&passage.title).unwrap_or(&0));
            let triples = words.windows(2).map(|pair| Triple::new(pair[0], relation.as_str(), pair[1])).collect();
            sink(number, triples)?;
        }
        Ok(())
    }
}

/// One of nine documents made of `words`, which has triples with the probability `triples`.
pub fn document_of(words: &'static [&'static str], triples: f64) -> impl Strategy<Value = Document> {
    let word = move || prop::sample::select(words);
    let text = prop::collection::vec(word(), 1..6).prop_map(|words| words.join(" "));
    let triple = (word(), word(), word()).prop_map(|(a, b, c)| Triple::new(a, b, c));
    let triples = prop::option::weighted(triples, prop::collection::vec(triple, 0..4));
    (0..9_u8, word(), text, triples, prop::option::of(word())).prop_map(|(id, title, text, triples, note)| {
        let metadata = note.map(|note| [("note".to_owned(), note.into())].into_iter().collect());
        Document { triples, metadata, ..document(&format!("d{id}"), title, &text) }
    })
}

/// Changes that add some of `documents` and remove others.
pub fn changes_of(documents: impl Strategy<Value = Document>) -> impl Strategy<Value = Changes> {
    let delete = prop::collection::vec((0..9_u8).prop_map(|id| format!("d{id}")), 0..3);
    (prop::collection::vec(documents, 0..4), delete).prop_map(|(documents, mut delete)| {
        let upsert: BTreeMap<String, Document> =
            documents.into_iter().map(|document| (document.id.clone(), document)).collect();
        delete.retain(|id| !upsert.contains_key(id));
        Changes { upsert: upsert.into_values().collect(), delete, ..Changes::default() }
    })
}

/// Plain reimplementation of the effect of a commit.
pub fn apply(documents: &mut Vec<Document>, changes: &Changes) {
    documents.retain(|document| !changes.delete.contains(&document.id));
    for new in &changes.upsert {
        match documents.iter_mut().find(|document| document.id == new.id) {
            Some(old) => *old = new.clone(),
            None => documents.push(new.clone()),
        }
    }
}

/// Files of the published snapshot that are independent of its history. Excluded are file names that tantivy draws at
/// random, the nearest-neighbor graph, and the order in which triples became known.
pub fn canonical(index: &Index) -> BTreeMap<String, Vec<u8>> {
    let other = |name: &str| name.contains("lexical/") || name.contains("vectors.") || name.ends_with("triples.bin");
    let dir = index.info().dir;
    let names = index.manifest().files.keys().filter(|name| !other(name) || name.ends_with("vectors.bin"));
    names.map(|name| (name.split_once('/').unwrap().1.to_owned(), fs::read(dir.join(name)).unwrap())).collect()
}
