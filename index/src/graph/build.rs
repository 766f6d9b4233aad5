//! From the triples of passages to a graph on disk.

use std::path::Path;

use super::adjacency::SparseRows;
use super::edges;
use super::statements::StatementTables;
use super::synonyms::Neighbours;
use super::table::StringTable;
use super::triples::{TripleFile, TripleOrigin, TripleWriter};
use super::{Graph, phrase};
use crate::batch_embedder::{BatchEmbedder, NumberedTexts};
use crate::dense::{Codes, VectorFile};
use crate::error::IndexError;
use crate::extract::Extract;
use crate::layout::graph_file;
use crate::manifest::GraphInfo;
use crate::progress::{BuildPhase, BuildProgress};
use crate::store::PassageStore;

/// What a graph is built of and with.
#[derive(Clone, Copy)]
pub(crate) struct GraphDraft<'a> {
    /// The folder of the graph, which holds the triples already.
    pub(crate) dir: &'a Path,
    pub(crate) store: &'a PassageStore,
    pub(crate) embedding: BatchEmbedder<'a>,
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
        let earlier =
            earlier.filter(|_| [TripleOrigin::Extracted, TripleOrigin::Builtin].iter().any(|&from| triples.has(from)));
        let asked = extract.map(|extract| self.extract(&mut triples, extract)).transpose()?;
        let given = triples.has(TripleOrigin::Given);
        triples.finish(self.store.len())?;
        // Whoever was at hand and had nothing to do is no source, unless nobody else is named for the next documents.
        let extract = extract.filter(|_| asked == Some(true) || earlier.is_none());
        self.join(GraphInfo::source(given, extract.map(Extract::id).as_deref(), earlier))
    }

    /// Whether there was a passage to ask about.
    fn extract(&self, triples: &mut TripleWriter, extract: &dyn Extract) -> Result<bool, IndexError> {
        let unknown = triples.unknown(self.store.count());
        let origin = TripleOrigin::of(&extract.id());
        let (mut done, total) = (0, Some(unknown.len() as u64));
        self.progress.update(BuildPhase::Extracting, 0, total);
        extract.extract(self.store, &unknown, &mut |number, found| {
            // What nobody asked for is not kept.
            if unknown.binary_search(&number).is_err() {
                return Ok(());
            }
            triples.add(number, &found, origin)?;
            done += 1;
            self.progress.update(BuildPhase::Extracting, done, total);
            Ok(())
        })?;
        Ok(!unknown.is_empty())
    }

    /// Builds everything that follows from the triples.
    fn join(&self, source: String) -> Result<GraphInfo, IndexError> {
        let triples = TripleFile::open(&self.dir.join(graph_file::TRIPLES), self.store.len())?;
        let statements = StatementTables::write(self.dir, &triples)?;
        let phrases = StringTable::open(&self.dir.join(graph_file::PHRASES))?;
        let relations = StringTable::open(&self.dir.join(graph_file::RELATIONS))?;
        let phrase_vectors = self.embed(BuildPhase::Phrases, graph_file::PHRASE_VECTORS, phrases.len(), &|number| {
            Ok(phrases.get(number).to_owned())
        })?;
        let fact_vectors =
            self.embed(BuildPhase::Facts, graph_file::FACT_VECTORS, statements.facts.len(), &|number| {
                let [subject, relation, object] = statements.facts[number as usize];
                Ok(phrase::fact(phrases.get(subject), relations.get(relation), phrases.get(object)))
            })?;
        Codes::write(&fact_vectors, &self.dir.join(graph_file::FACT_CODES))?;
        let synonyms = self.synonyms(&phrases, &phrase_vectors)?;
        synonyms.write(&self.dir.join(graph_file::SYNONYMS))?;
        let passages_of = statements.phrases_of.inverse(statements.phrases);
        let graph = edges::graph(&statements.stated, &passages_of, &synonyms, self.store.len());
        let compiled = SparseRows::of(&graph);
        compiled.write(&self.dir.join(graph_file::ADJACENCY))?;
        Ok(GraphInfo {
            source,
            triples: statements.stated.len() as u64,
            phrases: statements.phrases as u64,
            facts: statements.facts.len() as u64,
            edges: compiled.targets.len() as u64 / 2,
        })
    }

    fn synonyms(&self, phrases: &StringTable, vectors: &VectorFile) -> Result<Neighbours, IndexError> {
        let total = phrases.len() as u64;
        let update = |done: u64| self.progress.update(BuildPhase::Synonyms, done.min(total), Some(total));
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
        phase: BuildPhase,
        name: &str,
        count: usize,
        text: &dyn Fn(u32) -> Result<String, IndexError>,
    ) -> Result<VectorFile, IndexError> {
        let what = if phase == BuildPhase::Facts { "facts" } else { "phrases" };
        let (path, total) = (self.dir.join(name), Some(count as u64));
        let texts = NumberedTexts { what, count: u32::try_from(count).unwrap_or(u32::MAX), text };
        self.embedding.write(&path, &texts, &|done| self.progress.update(phase, done, total))?;
        VectorFile::open(&path, count, self.embedding.embed.dims())
    }
}
