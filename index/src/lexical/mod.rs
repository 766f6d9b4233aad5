//! BM25 over title and text, by tantivy (k1 = 1.2, b = 0.75).
//!
//! The index is one segment in the order of the store, so tantivy's document IDs equal passage numbers and no field is
//! stored. A query is plain text: it is analyzed like a passage and its terms are alternatives, so no character can
//! cause a syntax error.

mod analyzer;
mod filtered;
mod read_only;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tantivy::collector::TopDocs;
use tantivy::directory::MmapDirectory;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{ReloadPolicy, Searcher, Term};

use crate::condition::AllowedPassages;
use crate::error::IndexError;
use crate::scored::Scored;

pub(crate) use analyzer::NAME as ANALYZER;
pub(crate) use writer::LexicalWriter;

const CONTENT: &str = "content";

/// Maximum number of distinct terms searched in a query; further ones would only add time.
const MOST_TERMS: usize = 1024;

/// Lexical index of a snapshot.
pub(crate) struct LexicalIndex {
    dir: PathBuf,
    searcher: Searcher,
    content: Field,
    analyzer: TextAnalyzer,
}

impl fmt::Debug for LexicalIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lexical").field("documents", &self.searcher.num_docs()).finish_non_exhaustive()
    }
}

impl LexicalIndex {
    /// Opens the folder that [`LexicalWriter`] wrote for `count` passages.
    pub(crate) fn open(dir: &Path, count: usize) -> Result<LexicalIndex, IndexError> {
        let opening = || IndexError::lexical("open", dir);
        let files = MmapDirectory::open(dir).map_err(|error| opening()(error.into()))?;
        let index = tantivy::Index::open(read_only::ReadOnlyDirectory::new(files)).map_err(opening())?;
        if index.schema() != schema() {
            return Err(IndexError::corrupt(dir, "its schema is not the one written here"));
        }
        // A snapshot never changes, so that tantivy need not watch its folder with a thread.
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(opening())?;
        let searcher: Searcher = reader.searcher();
        let segments = searcher.segment_readers();
        // Document IDs equal passage numbers only in a single segment without deletions.
        if segments.len() != 1 || segments[0].max_doc() as usize != count || searcher.num_docs() != count as u64 {
            return Err(IndexError::corrupt(dir, format!("it does not hold {count} passages")));
        }
        let content = schema().get_field(CONTENT).map_err(opening())?;
        Ok(LexicalIndex { dir: dir.to_owned(), searcher, content, analyzer: analyzer::analyzer() })
    }

    /// Returns the `limit` passages with the highest BM25 score that share a term with `text` and are in `allowed`
    /// (`None` allows all), ties in corpus order. Term frequencies always count all passages.
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
        let clauses = terms.into_iter().map(|(term, times)| (Occur::Should, clause(term, times))).collect();
        let query = BooleanQuery::new(clauses);
        let failed = IndexError::lexical("search", &self.dir);
        if let Some(allowed) = allowed {
            return filtered::best(&self.searcher, &query, limit, allowed).map_err(failed);
        }
        let best = TopDocs::with_limit(limit).order_by_score();
        let found = self.searcher.search(&query, &best).map_err(failed)?;
        Ok(found.into_iter().map(|(score, address)| Scored { number: address.doc_id, score }).collect())
    }

    /// Returns the distinct terms of `text` in order, each with its number of occurrences.
    fn terms(&self, text: &str) -> Vec<(Term, f32)> {
        let mut terms: Vec<(Term, f32)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        // Analyzers hold buffers, and searches run side by side.
        let mut analyzer = self.analyzer.clone();
        let mut tokens = analyzer.token_stream(text);
        while let Some(token) = tokens.next() {
            match places.get(&token.text) {
                Some(&place) => terms[place].1 += 1.0,
                None if terms.len() == MOST_TERMS => {}
                None => {
                    places.insert(token.text.clone(), terms.len());
                    terms.push((Term::from_field_text(self.content, &token.text), 1.0));
                }
            }
        }
        terms
    }
}

/// Builds the clause of a term. A term that occurs several times in the query counts as many times.
fn clause(term: Term, times: f32) -> Box<dyn Query> {
    let query = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
    if times > 1.0 { Box::new(BoostQuery::new(query, times)) } else { query }
}

fn schema() -> Schema {
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(analyzer::NAME)
        // BM25 needs frequencies, and nothing here reads positions.
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let mut schema = Schema::builder();
    schema.add_text_field(CONTENT, TextOptions::default().set_indexing_options(indexing));
    schema.build()
}

#[cfg(test)]
mod tests;
