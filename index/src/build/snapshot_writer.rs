//! Writes and publishes a snapshot, for builds and for commits.

use std::path::Path;

use crate::batch_embedder::BatchEmbedder;
use crate::corpus::Document;
use crate::dense;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::{LockedFolder, PartialSnapshot};
use crate::graph::{GraphDraft, TripleOrigin, TripleWriter};
use crate::layout::{graph_file, snapshot_file};
use crate::lexical;
use crate::manifest::{BuildInfo, EmbedderInfo, FORMAT, GraphInfo, Manifest};
use crate::options::OpenOptions;
use crate::progress::BuildProgress;
use crate::snapshot::Snapshot;
use crate::store::PassageStore;

use super::{estimate, passages, seal, vectors};

/// Inputs and options for writing a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotWriter<'a> {
    pub(crate) embedding: BatchEmbedder<'a>,
    /// Number of threads that link vectors into the nearest-neighbor graph.
    pub(crate) threads: usize,
    pub(crate) extract: Option<&'a dyn Extract>,
    pub(crate) progress: &'a dyn BuildProgress,
    /// Name by which the embedder can be opened again. A commit keeps the name in the index: the commit itself may run
    /// the same embedder at an endpoint, or from a folder of another machine.
    pub(crate) embedder_source: Option<&'a str>,
}

/// Snapshot that a commit starts from.
#[derive(Clone, Copy)]
pub(crate) struct BaseSnapshot<'a> {
    pub(crate) snapshot: &'a Snapshot,
    /// Folder of the snapshot.
    pub(crate) files: &'a Path,
    /// New number of each passage of the snapshot. `None` if no document has the same ID, title and text.
    pub(crate) moved: &'a [Option<u32>],
    /// Origin of triples that are not kept, because their extractor runs over the whole corpus again.
    pub(crate) again: Option<TripleOrigin>,
}

impl BaseSnapshot<'_> {
    /// Copies extracted triples of unchanged passages, unless new ones are already known.
    fn keep_extracted(&self, triples: &mut TripleWriter, count: u32) -> Result<(), IndexError> {
        let Some(graph) = &self.snapshot.graph else { return Ok(()) };
        let mut unknown = vec![false; count as usize];
        triples.unknown(count).into_iter().for_each(|number| unknown[number as usize] = true);
        for (old, &number) in (0..).zip(self.moved) {
            let origin = graph.origin(old);
            if let Some(number) = number.filter(|&number| unknown[number as usize])
                && origin.is_extracted()
                // The built-in extractor knows the titles of the whole corpus, so its triples change with the corpus.
                && self.again != Some(origin)
            {
                triples.add(number, &graph.triples(old)?, origin)?;
            }
        }
        Ok(())
    }
}

impl SnapshotWriter<'_> {
    /// Writes every file of the snapshot over `documents`, whose IDs must be unique, reusing what `base` allows.
    /// Returns statistics of the graph, or `None` if there is none.
    pub(crate) fn write(
        &self,
        part: &PartialSnapshot,
        documents: &mut dyn Iterator<Item = Result<Document, IndexError>>,
        base: Option<BaseSnapshot<'_>>,
    ) -> Result<Option<GraphInfo>, IndexError> {
        let graph = part.path().join(snapshot_file::GRAPH);
        std::fs::create_dir(&graph).map_err(IndexError::io("create", &graph))?;
        let mut triples = TripleWriter::create(&graph.join(graph_file::TRIPLES))?;
        passages::write(documents, part.path(), &mut triples, self.progress)?;
        let store = PassageStore::open(&part.path().join(snapshot_file::STORE))?;
        // A commit embeds only what is new.
        if base.is_none()
            && let Some(estimate) = estimate::estimate(&store, self.embedding, self.extract.is_some() || triples.any())?
        {
            self.progress.estimated(estimate);
        }
        vectors::write(part.path(), &store, self.embedding, base, self.threads, self.progress)?;
        if let Some(base) = base {
            base.keep_extracted(&mut triples, store.count())?;
        }
        // A graph without triples would only cost time and space.
        if self.extract.is_none() && !triples.any() {
            drop(triples);
            std::fs::remove_dir_all(&graph).map_err(IndexError::io("remove", &graph))?;
            return Ok(None);
        }
        let SnapshotWriter { embedding, threads, progress, .. } = *self;
        let earlier = base.and_then(|base| base.snapshot.manifest.graph.as_ref()?.extractor());
        let previous = base.and_then(|base| base.snapshot.graph.as_ref());
        let draft = GraphDraft { dir: &graph, store: &store, embedding, previous, threads, progress };
        draft.build(triples, self.extract, earlier).map(Some)
    }

    /// Makes the written files durable, opens them as a check, and publishes them in place of the previous snapshot.
    pub(crate) fn publish(
        &self,
        writing: &LockedFolder,
        part: PartialSnapshot,
        snapshot: u64,
        corpus: String,
        graph: Option<GraphInfo>,
        keep: usize,
    ) -> Result<Manifest, IndexError> {
        let manifest = self.seal(&part, snapshot, corpus, graph)?;
        seal::publish(writing, part, &manifest, keep, self.progress)?;
        Ok(manifest)
    }

    /// Makes the written files durable, and opens them as a check. Returns the manifest of snapshot `snapshot`.
    pub(crate) fn seal(
        &self,
        part: &PartialSnapshot,
        snapshot: u64,
        corpus: String,
        graph: Option<GraphInfo>,
    ) -> Result<Manifest, IndexError> {
        let passages = PassageStore::open(&part.path().join(snapshot_file::STORE))?.len() as u64;
        let BatchEmbedder { embed, prompts, .. } = self.embedding;
        let manifest = Manifest {
            format: FORMAT,
            snapshot,
            corpus,
            passages,
            embedder: EmbedderInfo {
                id: embed.id().to_owned(),
                dims: embed.dims(),
                prompts: prompts.clone(),
                source: self.embedder_source.map(str::to_owned),
            },
            graph,
            delta: None,
            build: BuildInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                analyzer: lexical::ANALYZER.to_owned(),
                connectivity: dense::CONNECTIVITY,
                expansion: dense::EXPANSION_ADD,
            },
            files: seal::seal(part, snapshot, self.progress)?,
            checksum: 0,
        };
        let manifest = manifest.seal();
        // Opening verifies the files independently of the code that wrote them, before anything is published.
        Snapshot::open_files(part.path(), manifest.clone(), &OpenOptions::unwalked())?;
        Ok(manifest)
    }
}
