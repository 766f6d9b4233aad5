//! A snapshot on its way from documents to being published, the same for a build and for a commit.

use crate::corpus::Document;
use crate::dense;
use crate::embedding::Embedding;
use crate::error::IndexError;
use crate::folder::{Part, Writing, part};
use crate::index::OpenOptions;
use crate::lexical;
use crate::manifest::{Build, Embedder, FORMAT, Manifest};
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
    pub(super) progress: &'a dyn BuildProgress,
}

impl Draft<'_> {
    /// Writes every file of the snapshot over `documents`, whose ids are unique.
    pub(super) fn write(
        &self,
        part: &Part,
        documents: &mut dyn Iterator<Item = Result<Document, IndexError>>,
    ) -> Result<(), IndexError> {
        passages::write(documents, part.path(), self.progress)?;
        let store = Store::open(&part.path().join(part::STORE))?;
        vectors::write(part.path(), &store, self.embedding, None, self.threads, self.progress)
    }

    /// Makes what was written durable, looks at it once more, and puts it in the place of what was published before.
    pub(super) fn publish(&self, part: Part, snapshot: u64, corpus: String) -> Result<Manifest, IndexError> {
        let passages = Store::open(&part.path().join(part::STORE))?.len() as u64;
        let embed = self.embedding.embed;
        let manifest = Manifest {
            format: FORMAT,
            snapshot,
            corpus,
            passages,
            embedder: Embedder { id: embed.id().to_owned(), dims: embed.dims() },
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
