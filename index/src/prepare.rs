//! Embeds the texts of changes before their commit, so that a large change does not hold up others while it is
//! embedded.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use crate::batch_embedder::BatchEmbedder;
use crate::commit::Changes;
use crate::corpus::Document;
use crate::embedding_cache::EmbeddingCache;
use crate::embedding_journal::TextHash;
use crate::error::IndexError;
use crate::graph::{Graph, phrase};
use crate::live::LiveIndex;

/// Vectors embedded before a commit; see [`LiveIndex::prepare`].
pub struct PreparedVectors {
    /// Identity of the vectors; see [`EmbeddingCache::id`].
    id: String,
    vectors: HashMap<TextHash, Vec<f32>>,
}

impl fmt::Debug for PreparedVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedVectors").field("texts", &self.vectors.len()).finish_non_exhaustive()
    }
}

impl PreparedVectors {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Returns `true` if there are no texts.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Adds the vectors to a cache, unless they are of another embedder or prompt: the index may have been built anew
    /// since.
    pub(crate) fn publish<'a>(&'a self, memory: &mut EmbeddingCache<'a>) {
        if self.id == memory.id() {
            self.vectors.iter().for_each(|(&key, vector)| memory.publish_hashed(key, vector));
        }
    }
}

impl LiveIndex {
    /// Embeds the texts that `changes` bring and the index does not know: documents, and the phrases and facts of given
    /// triples. Calls `go_on` before each batch. Stops and returns `None` once `go_on` returns `false`. A commit with
    /// the result in [`CommitOptions::prepared`](crate::CommitOptions::prepared) need not embed them.
    ///
    /// # Errors
    /// If the embedder fails or a file is damaged.
    pub fn prepare(
        &self,
        changes: &Changes,
        batch: usize,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<PreparedVectors>, IndexError> {
        let current = self.current();
        let snapshot = &current.snapshot;
        let mut texts: [(&'static str, BTreeSet<String>); 3] =
            [("passages", BTreeSet::new()), ("phrases", BTreeSet::new()), ("facts", BTreeSet::new())];
        for document in &changes.upsert {
            let known = snapshot.store.find(&document.id)?.map(|number| snapshot.store.passage(number)).transpose()?;
            if known.is_none_or(|known| (&known.title, &known.text) != (&document.title, &document.text)) {
                texts[0].1.insert(document.content());
            }
            stated(document, snapshot.graph.as_ref(), &mut texts);
        }
        let prompts = &snapshot.manifest.embedder.prompts;
        let memory = EmbeddingCache::open(&self.dir, self.embed.as_ref(), prompts, false)?;
        let embedding = BatchEmbedder { embed: self.embed.as_ref(), prompts, batch, memory: &memory };
        let mut vectors = HashMap::new();
        for (what, texts) in texts {
            let texts: Vec<String> = texts.into_iter().collect();
            for few in texts.chunks(batch.max(1)) {
                if !go_on() {
                    return Ok(None);
                }
                let embedded = embedding.vectors(what, few)?;
                vectors.extend(few.iter().map(|text| TextHash::of(text)).zip(embedded));
            }
        }
        Ok(Some(PreparedVectors { id: memory.id().to_owned(), vectors }))
    }
}

/// Adds the unknown phrases and facts of a document.
fn stated(document: &Document, graph: Option<&Graph>, texts: &mut [(&'static str, BTreeSet<String>); 3]) {
    for triple in document.triples.iter().flatten() {
        let [subject, relation, object] =
            [&triple.subject, &triple.relation, &triple.object].map(|part| phrase::normalize(part));
        if graph.is_none_or(|graph| !graph.knows_fact(&subject, &relation, &object)) {
            texts[2].1.insert(phrase::fact(&subject, &relation, &object));
        }
        for text in [subject, object] {
            if graph.is_none_or(|graph| graph.known_vector(&text).is_none()) {
                texts[1].1.insert(text);
            }
        }
    }
}
