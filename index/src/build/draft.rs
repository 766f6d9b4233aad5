//! A snapshot on its way from documents to being published, the same for a build and for a commit.

use crate::corpus::Document;
use crate::dense;
use crate::embedding::Embedding;
use crate::error::IndexError;
use crate::extract::Extract;
use crate::folder::{Part, Writing, part};
use crate::graph::{GraphDraft, TripleWriter, file};
use crate::index::OpenOptions;
use crate::lexical;
use crate::manifest::{Build, Embedder, FORMAT, GraphInfo, Manifest};
use crate::progress::BuildProgress;
use crate::snapshot::Snapshot;
use crate::store::Store;

use super::{passages, seal, vectors};

/// What writes a snapshot, and where.
#[derive(Clone, Copy)]
pub(super) struct Draft<'a> {
    pub(super) writing: &'a Writing,
    pub(super) embedding: Embedding<'a>,
    /// Threads that join the vectors into a graph.
    pub(super) threads: usize,
    pub(super) extract: Option<&'a dyn Extract>,
    pub(super) progress: &'a dyn BuildProgress,
}

impl Draft<'_> {
    /// Writes every file of the snapshot over `documents`, whose ids are unique. Gives what the graph is, if there is
    /// one.
    pub(super) fn write(
        &self,
        part: &Part,
        documents: &mut dyn Iterator<Item = Result<Document, IndexError>>,
    ) -> Result<Option<GraphInfo>, IndexError> {
        let graph = part.path().join(part::GRAPH);
        std::fs::create_dir(&graph).map_err(IndexError::io("create", &graph))?;
        let mut triples = TripleWriter::create(&graph.join(file::TRIPLES))?;
        passages::write(documents, part.path(), &mut triples, self.progress)?;
        let store = Store::open(&part.path().join(part::STORE))?;
        vectors::write(part.path(), &store, self.embedding, None, self.threads, self.progress)?;
        if self.extract.is_none() && !triples.any() {
            drop(triples);
            std::fs::remove_dir_all(&graph).map_err(IndexError::io("remove", &graph))?;
            return Ok(None);
        }
        let Draft { embedding, threads, progress, .. } = *self;
        GraphDraft { dir: &graph, store: &store, embedding, earlier: None, threads, progress }
            .build(triples, self.extract)
            .map(Some)
    }

    /// Makes what was written durable, looks at it once more, and puts it in the place of what was published before.
    pub(super) fn publish(
        &self,
        part: Part,
        snapshot: u64,
        corpus: String,
        graph: Option<GraphInfo>,
    ) -> Result<Manifest, IndexError> {
        let passages = Store::open(&part.path().join(part::STORE))?.len() as u64;
        let embed = self.embedding.embed;
        let manifest = Manifest {
            format: FORMAT,
            snapshot,
            corpus,
            passages,
            embedder: Embedder { id: embed.id().to_owned(), dims: embed.dims() },
            graph,
            build: Build {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                analyzer: lexical::ANALYZER.to_owned(),
                connectivity: dense::CONNECTIVITY,
                expansion: dense::EXPANSION_ADD,
            },
            files: seal::seal(&part, snapshot, self.progress)?,
            checksum: 0,
        };
        let (manifest, json) = manifest.seal();
        // Whoever wrote the files said that all went well; nothing is published on their word alone.
        Snapshot::open_files(part.path(), manifest.clone(), &OpenOptions::default())?;
        seal::publish(self.writing, part, &manifest, &json, self.progress)?;
        Ok(manifest)
    }
}
