//! BM25 over title and text, by tantivy (k1 = 1.2, b = 0.75).
//!
//! The index is one segment in the order of the store, so tantivy's document IDs equal passage numbers and no field is
//! stored. Documents changed since the base snapshot are in further segments in memory. A query is plain text: it is
//! analyzed like a passage and its terms are alternatives, so no character can cause a syntax error.

mod analyzer;
mod composed;
mod delta;
mod ranking;
mod read_only;
mod unspaced;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::directory::MmapDirectory;
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{ReloadPolicy, Searcher, Term};

use crate::condition::AllowedPassages;
use crate::delta::{DocumentDelta, TouchedNumbers};
use crate::error::IndexError;
use crate::scored::Scored;
use crate::store::PassageStore;

use analyzer::Analysis;
pub(crate) use analyzer::NAME as ANALYZER;
use delta::LexicalDelta;
pub(crate) use writer::LexicalWriter;

const CONTENT: &str = "content";

/// Maximum number of distinct terms searched in a query; further ones would only add time.
const MOST_TERMS: usize = 1024;

/// Lexical index of a snapshot.
#[derive(Clone)]
pub(crate) struct LexicalIndex {
    base: Arc<BaseSegment>,
    delta: LexicalDelta,
    documents: Arc<DocumentDelta>,
}

/// Lexical index of the base snapshot.
struct BaseSegment {
    dir: PathBuf,
    searcher: Searcher,
    content: Field,
    analyzer: TextAnalyzer,
}

impl fmt::Debug for LexicalIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let documents = self.documents.live();
        f.debug_struct("Lexical").field("documents", &documents).field("delta", &self.delta).finish_non_exhaustive()
    }
}

impl LexicalIndex {
    /// Opens the folder that [`LexicalWriter`] wrote for `count` passages.
    pub(crate) fn open(dir: &Path, count: usize) -> Result<LexicalIndex, IndexError> {
        let opening = || IndexError::lexical("open", dir);
        let files = MmapDirectory::open(dir).map_err(|error| opening()(error.into()))?;
        let index = tantivy::Index::open(read_only::ReadOnlyDirectory::new(files)).map_err(opening())?;
        let Some(analysis) = Analysis::ALL.into_iter().find(|&analysis| index.schema() == schema(analysis)) else {
            return Err(IndexError::corrupt(dir, "its schema is not one that was ever written here"));
        };
        // A snapshot never changes, so tantivy need not watch its folder with a thread.
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(opening())?;
        let searcher: Searcher = reader.searcher();
        let segments = searcher.segment_readers();
        // Document IDs equal passage numbers only in a single segment without deletions.
        if segments.len() != 1 || segments[0].max_doc() as usize != count || searcher.num_docs() != count as u64 {
            return Err(IndexError::corrupt(dir, format!("it does not hold {count} passages")));
        }
        let content = schema(analysis).get_field(CONTENT).map_err(opening())?;
        let base = BaseSegment { dir: dir.to_owned(), searcher, content, analyzer: analysis.analyzer() };
        let documents = Arc::new(DocumentDelta::new(u32::try_from(count).unwrap_or(u32::MAX)));
        Ok(LexicalIndex { base: Arc::new(base), delta: LexicalDelta::empty(analysis), documents })
    }

    /// Returns the index over the same base snapshot after further changes. Without `touched`, all changed documents
    /// are indexed again.
    pub(crate) fn with_delta(
        &self,
        store: &PassageStore,
        documents: Arc<DocumentDelta>,
        touched: Option<&TouchedNumbers>,
    ) -> Result<LexicalIndex, IndexError> {
        let dir = &self.base.dir;
        let delta = match touched {
            Some(touched) => self.delta.changed(dir, store, &self.documents, &documents, touched)?,
            None => LexicalDelta::empty(self.delta.analysis).filled(dir, store, &documents)?,
        };
        Ok(LexicalIndex { base: Arc::clone(&self.base), delta, documents })
    }

    /// Returns the `limit` passages with the highest BM25 score that share a term with `text` and are in `allowed`
    /// (`None` allows all), ties in corpus order. Term statistics always count all passages.
    pub(crate) fn search(
        &self,
        text: &str,
        limit: usize,
        allowed: Option<&AllowedPassages>,
    ) -> Result<Vec<Scored>, IndexError> {
        let terms = self.terms(text);
        if terms.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        self.ranked(&terms, limit, allowed).map_err(IndexError::lexical("search", &self.base.dir))
    }

    /// Returns the distinct terms of `text` in order, each with its number of occurrences.
    fn terms(&self, text: &str) -> Vec<(Term, f32)> {
        let mut terms: Vec<(Term, f32)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        // Cloned, because an analyzer holds buffers and searches run concurrently.
        let mut analyzer = self.base.analyzer.clone();
        let mut tokens = analyzer.token_stream(text);
        while let Some(token) = tokens.next() {
            match places.get(&token.text) {
                Some(&place) => terms[place].1 += 1.0,
                None if terms.len() == MOST_TERMS => {}
                None => {
                    places.insert(token.text.clone(), terms.len());
                    terms.push((Term::from_field_text(self.base.content, &token.text), 1.0));
                }
            }
        }
        terms
    }
}

fn schema(analysis: Analysis) -> Schema {
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(analysis.name())
        // BM25 needs frequencies, and nothing here reads positions.
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let mut schema = Schema::builder();
    schema.add_text_field(CONTENT, TextOptions::default().set_indexing_options(indexing));
    schema.build()
}

#[cfg(test)]
mod tests;
