//! From the triples of passages to a graph on disk.

use std::path::Path;

use super::adjacency::Compiled;
use super::edges;
use super::statements::Statements;
use super::synonyms::Neighbours;
use super::table::Table;
use super::triples::{Origin, TripleWriter, Triples};
use super::{Graph, file, phrase};
use crate::dense::{Codes, Vectors};
use crate::embedding::{Embedding, Texts};
use crate::error::IndexError;
use crate::extract::Extract;
use crate::manifest::GraphInfo;
use crate::progress::{BuildProgress, Phase};
use crate::store::Store;

/// What a graph is built of and with.
#[derive(Clone, Copy)]
pub(crate) struct GraphDraft<'a> {
    /// The folder of the graph, which holds the triples already.
    pub(crate) dir: &'a Path,
    pub(crate) store: &'a Store,
    pub(crate) embedding: Embedding<'a>,
    /// The graph that is replaced, if it is of the same embedder: its synonyms are found again by what changed.
    pub(crate) previous: Option<&'a Graph>,
    pub(crate) threads: usize,
    pub(crate) progress: &'a dyn BuildProgress,
}

impl GraphDraft<'_> {
    /// Asks `extract` for the triples that are not known, then builds the graph over all of them. `earlier` names the
    /// extractor of triples that are known from before.
    pub(crate) fn build(
        &self,
        mut triples: TripleWriter,
        extract: Option<&dyn Extract>,
        earlier: Option<&str>,
    ) -> Result<GraphInfo, IndexError> {
        let earlier = earlier.filter(|_| [Origin::Extracted, Origin::Builtin].iter().any(|&from| triples.has(from)));
        let asked = extract.map(|extract| self.extract(&mut triples, extract)).transpose()?;
        let given = triples.has(Origin::Given);
        triples.finish(self.store.len())?;
        // Whoever was at hand and had nothing to do is no source, unless nobody else is named for the next documents.
        let extract = extract.filter(|_| asked == Some(true) || earlier.is_none());
        self.join(GraphInfo::source(given, extract.map(Extract::id).as_deref(), earlier))
    }

    /// Whether there was a passage to ask about.
    fn extract(&self, triples: &mut TripleWriter, extract: &dyn Extract) -> Result<bool, IndexError> {
        let unknown = triples.unknown(self.store.count());
        let origin = Origin::of(&extract.id());
        let (mut done, total) = (0, Some(unknown.len() as u64));
        self.progress.update(Phase::Extracting, 0, total);
        extract.extract(self.store, &unknown, &mut |number, found| {
            // What nobody asked for is not kept.
            if unknown.binary_search(&number).is_err() {
                return Ok(());
            }
            triples.add(number, &found, origin)?;
            done += 1;
            self.progress.update(Phase::Extracting, done, total);
            Ok(())
        })?;
        Ok(!unknown.is_empty())
    }

    /// Builds everything that follows from the triples.
    fn join(&self, source: String) -> Result<GraphInfo, IndexError> {
        let triples = Triples::open(&self.dir.join(file::TRIPLES), self.store.len())?;
        let statements = Statements::write(self.dir, &triples)?;
        let phrases = Table::open(&self.dir.join(file::PHRASES))?;
        let relations = Table::open(&self.dir.join(file::RELATIONS))?;
        let phrase_vectors = self
            .embed(Phase::Phrases, file::PHRASE_VECTORS, phrases.len(), &|number| Ok(phrases.get(number).to_owned()))?;
        let fact_vectors = self.embed(Phase::Facts, file::FACT_VECTORS, statements.facts.len(), &|number| {
            let [subject, relation, object] = statements.facts[number as usize];
            Ok(phrase::fact(phrases.get(subject), relations.get(relation), phrases.get(object)))
        })?;
        Codes::write(&fact_vectors, &self.dir.join(file::FACT_CODES))?;
        let synonyms = self.synonyms(&phrases, &phrase_vectors)?;
        synonyms.write(&self.dir.join(file::SYNONYMS))?;
        let passages_of = statements.phrases_of.inverse(statements.phrases);
        let graph = edges::graph(&statements.stated, &passages_of, &synonyms, self.store.len());
        let compiled = Compiled::of(&graph);
        compiled.write(&self.dir.join(file::ADJACENCY))?;
        Ok(GraphInfo {
            source,
            triples: statements.stated.len() as u64,
            phrases: statements.phrases as u64,
            facts: statements.facts.len() as u64,
            edges: compiled.targets.len() as u64 / 2,
        })
    }

    fn synonyms(&self, phrases: &Table, vectors: &Vectors) -> Result<Neighbours, IndexError> {
        let total = phrases.len() as u64;
        let update = |done: u64| self.progress.update(Phase::Synonyms, done.min(total), Some(total));
        update(0);
        let synonyms = match self.previous {
            Some(previous) => Neighbours::renew(previous.as_earlier(), phrases, vectors, self.threads, &update),
            None => Neighbours::find(phrases, vectors, self.threads, &update),
        };
        update(total);
        synonyms
    }

    fn embed(
        &self,
        phase: Phase,
        name: &str,
        count: usize,
        text: &dyn Fn(u32) -> Result<String, IndexError>,
    ) -> Result<Vectors, IndexError> {
        let what = if phase == Phase::Facts { "facts" } else { "phrases" };
        let (path, total) = (self.dir.join(name), Some(count as u64));
        let texts = Texts { what, count: u32::try_from(count).unwrap_or(u32::MAX), text };
        self.embedding.write(&path, &texts, &|done| self.progress.update(phase, done, total))?;
        Vectors::open(&path, count, self.embedding.embed.dims())
    }
}
