//! Builds a graph on disk from the triples of passages.

use std::path::Path;

use super::adjacency::SparseRows;
use super::edges;
use super::statements::StatementTables;
use super::synonyms::Neighbors;
use super::table::StringTable;
use super::triples::{TripleFile, TripleOrigin, TripleWriter};
use super::unread_scripts::ScriptCounts;
use super::{Graph, phrase};
use crate::batch_embedder::{BatchEmbedder, NumberedTexts};
use crate::dense::{Codes, VectorFile};
use crate::error::IndexError;
use crate::extract::Extract;
use crate::layout::graph_file;
use crate::manifest::GraphInfo;
use crate::openie::Builtin;
use crate::progress::{BuildPhase, BuildProgress};
use crate::store::PassageStore;

/// Inputs and options for building a graph.
#[derive(Clone, Copy)]
pub(crate) struct GraphDraft<'a> {
    /// Folder of the graph, which already contains the triples.
    pub(crate) dir: &'a Path,
    pub(crate) store: &'a PassageStore,
    pub(crate) embedding: BatchEmbedder<'a>,
    /// Graph to replace, if it has the same embedder. Its synonyms are updated instead of searched again.
    pub(crate) previous: Option<&'a Graph>,
    pub(crate) threads: usize,
    pub(crate) progress: &'a dyn BuildProgress,
}

impl GraphDraft<'_> {
    /// Extracts unknown triples with `extract`, then builds the graph over all triples. `earlier` names the extractor
    /// of triples known from before.
    pub(crate) fn build(
        &self,
        mut triples: TripleWriter,
        extract: Option<&dyn Extract>,
        earlier: Option<&str>,
    ) -> Result<GraphInfo, IndexError> {
        // An extractor whose triples are all gone is no source any more.
        let earlier =
            earlier.filter(|_| [TripleOrigin::Extracted, TripleOrigin::Builtin].iter().any(|&from| triples.has(from)));
        let asked = extract.map(|extract| self.extract(&mut triples, extract)).transpose()?;
        let given = triples.has(TripleOrigin::Given);
        triples.finish(self.store.len())?;
        // An extractor that had nothing to extract is named for later documents only if there is no other.
        let extract = extract.filter(|_| asked == Some(true) || earlier.is_none());
        self.join(GraphInfo::source(given, extract.map(Extract::id).as_deref(), earlier))
    }

    /// Extracts triples of passages without any. Returns `true` if there was such a passage.
    fn extract(&self, triples: &mut TripleWriter, extract: &dyn Extract) -> Result<bool, IndexError> {
        let unknown = triples.unknown(self.store.count());
        let origin = TripleOrigin::of(&extract.id());
        let mut done = 0;
        // Scripts are counted only for the built-in extractor. Others decide by themselves which languages they read.
        let mut scripts = (extract.id() == Builtin::ID).then(ScriptCounts::default);
        let total = Some(unknown.len() as u64);
        self.progress.update(BuildPhase::Extracting, 0, total);
        extract.extract(self.store, &unknown, &mut |number, found| {
            // Ignores passages that were not requested.
            if unknown.binary_search(&number).is_err() {
                return Ok(());
            }
            triples.add(number, &found, origin)?;
            if let Some(scripts) = &mut scripts {
                scripts.add(&self.store.passage(number)?.text, found.is_empty());
            }
            done += 1;
            self.progress.update(BuildPhase::Extracting, done, total);
            Ok(())
        })?;
        scripts.iter().flat_map(ScriptCounts::unread).for_each(|script| self.progress.unread(&script));
        Ok(!unknown.is_empty())
    }

    /// Builds all files that follow from the triples.
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
        // Each search scans all facts, and codes are a quarter of the vectors' bytes.
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
            // Every edge stands in the rows of both its ends.
            edges: compiled.targets.len() as u64 / 2,
        })
    }

    fn synonyms(&self, phrases: &StringTable, vectors: &VectorFile) -> Result<Neighbors, IndexError> {
        let total = phrases.len() as u64;
        let update = |done: u64| self.progress.update(BuildPhase::Synonyms, done.min(total), Some(total));
        update(0);
        let synonyms = match self.previous {
            Some(previous) => Neighbors::renew(previous, phrases, vectors, self.threads, &update),
            None => Neighbors::find(phrases, vectors, self.threads, &update),
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
        let path = self.dir.join(name);
        let total = Some(count as u64);
        let texts = NumberedTexts { what, count: u32::try_from(count).unwrap_or(u32::MAX), text };
        self.embedding.write(&path, &texts, &|done| self.progress.update(phase, done, total))?;
        VectorFile::open(&path, count, self.embedding.embed.dims())
    }
}
