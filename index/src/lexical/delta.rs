//! Lexical index of the documents changed since the base snapshot: small tantivy segments in memory, and the
//! differences that the changes make to the term statistics.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tantivy::directory::RamDirectory;
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{ReloadPolicy, SegmentReader, Term};

use super::analyzer::Analysis;
use super::writer::{LexicalWriter, parts};
use crate::delta::{DocumentDelta, Layered, RecordDocument, TouchedNumbers};
use crate::error::IndexError;
use crate::store::PassageStore;

/// Number of segments of similar size that are merged into one.
const FAN_IN: usize = 8;

/// Lexical changes since the base snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct LexicalDelta {
    /// Segments, each of a commit or merged from several.
    pub(super) segments: Vec<Arc<DeltaSegment>>,
    /// Change of the number of passages that contain a term.
    pub(super) terms: Layered<String, i64>,
    /// Change of the number of tokens.
    pub(super) tokens: i64,
    /// Analyzer of the base snapshot.
    pub(super) analysis: Analysis,
}

/// Segment in memory. Documents that were changed again later stay in it until it is merged.
pub(super) struct DeltaSegment {
    pub(super) reader: SegmentReader,
    documents: Vec<(u32, Arc<RecordDocument>)>,
}

impl fmt::Debug for DeltaSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaSegment").field("documents", &self.documents.len()).finish_non_exhaustive()
    }
}

impl DeltaSegment {
    fn of(
        dir: &Path,
        analysis: Analysis,
        documents: Vec<(u32, Arc<RecordDocument>)>,
    ) -> Result<DeltaSegment, IndexError> {
        let mut writer = LexicalWriter::in_memory(dir, RamDirectory::create(), analysis)?;
        documents.iter().try_for_each(|(_, document)| writer.add(&document.title, &document.text))?;
        let failed = || IndexError::lexical("open", dir);
        let index = writer.finish_index()?;
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(failed())?;
        let searcher = reader.searcher();
        match searcher.segment_readers() {
            [segment] if segment.max_doc() as usize == documents.len() => {
                Ok(DeltaSegment { reader: segment.clone(), documents })
            }
            _ => Err(IndexError::corrupt(dir, format!("a segment does not hold {} passages", documents.len()))),
        }
    }

    /// Returns the passage number of a document of the segment. `None` if the passage has changed since.
    pub(super) fn number(&self, document: u32, current: &DocumentDelta) -> Option<u32> {
        let (number, document) = self.documents.get(document as usize)?;
        let newest = current.get(*number)??;
        Arc::ptr_eq(newest, document).then_some(*number)
    }

    /// Size class: segments of one class differ in size by less than a factor of [`FAN_IN`].
    fn class(&self) -> u32 {
        // `ilog` panics on 0.
        self.documents.len().max(1).ilog(FAN_IN)
    }
}

impl LexicalDelta {
    /// Creates an empty delta for a base snapshot with this analyzer.
    pub(super) fn empty(analysis: Analysis) -> LexicalDelta {
        LexicalDelta { analysis, ..LexicalDelta::default() }
    }

    /// Adds the changes of a commit. `before` and `after` are the states around it.
    pub(super) fn changed(
        &self,
        dir: &Path,
        store: &PassageStore,
        before: &DocumentDelta,
        after: &DocumentDelta,
        touched: &TouchedNumbers,
    ) -> Result<LexicalDelta, IndexError> {
        let mut next = self.clone();
        let mut analyzer = self.analysis.analyzer();
        for &number in &touched.left {
            match before.get(number) {
                // Unchanged so far, so its text is in the base snapshot.
                None => {
                    let passage = store.passage(number)?;
                    next.count(&mut analyzer, &passage.title, &passage.text, -1);
                }
                Some(Some(document)) => next.count(&mut analyzer, &document.title, &document.text, -1),
                // Deleted by an earlier commit, and no longer counted.
                Some(None) => {}
            }
        }
        let mut documents = Vec::with_capacity(touched.came.len());
        for &number in &touched.came {
            if let Some(Some(document)) = after.get(number) {
                next.count(&mut analyzer, &document.title, &document.text, 1);
                documents.push((number, Arc::clone(document)));
            }
        }
        next.terms.settle();
        if !documents.is_empty() {
            next.segments.push(Arc::new(DeltaSegment::of(dir, self.analysis, documents)?));
            next.merge(dir, after)?;
        }
        Ok(next)
    }

    /// Indexes all changed documents at once, starting from an empty delta.
    pub(super) fn filled(
        &self,
        dir: &Path,
        store: &PassageStore,
        current: &DocumentDelta,
    ) -> Result<LexicalDelta, IndexError> {
        let mut touched = TouchedNumbers {
            // Only the base snapshot has counted anything yet, so only its passages leave.
            left: current.numbers().filter(|&number| number < current.base()).collect(),
            came: current.documents().map(|(number, _)| number).collect(),
        };
        touched.came.sort_unstable();
        self.changed(dir, store, &DocumentDelta::new(current.base()), current, &touched)
    }

    /// Counts the terms of a passage that comes (1) or goes (-1).
    fn count(&mut self, analyzer: &mut TextAnalyzer, title: &str, text: &str, sign: i64) {
        let mut distinct = HashSet::new();
        for part in parts(title, text) {
            let mut tokens = analyzer.token_stream(part);
            while let Some(token) = tokens.next() {
                self.tokens += sign;
                // Looked up first, because most tokens repeat and only a new one needs a string of its own.
                if !distinct.contains(&token.text) {
                    distinct.insert(token.text.clone());
                }
            }
        }
        for term in distinct {
            let count = self.terms.get(&term).copied().unwrap_or_default() + sign;
            self.terms.insert(term, count);
        }
    }

    /// Merges the segments of a class once there are [`FAN_IN`] of them.
    fn merge(&mut self, dir: &Path, current: &DocumentDelta) -> Result<(), IndexError> {
        let full = |segments: &[Arc<DeltaSegment>]| {
            let of = |class| segments.iter().filter(|segment| segment.class() == class).count();
            segments.iter().map(|segment| segment.class()).find(|&class| of(class) >= FAN_IN)
        };
        // A merged segment may fill the next class.
        while let Some(class) = full(&self.segments) {
            let (merged, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.segments).into_iter().partition(|segment| segment.class() == class);
            self.segments = kept;
            let mut documents = Vec::new();
            for segment in merged {
                let live = (0..).zip(&segment.documents).filter(|(place, _)| segment.number(*place, current).is_some());
                documents.extend(live.map(|(_, (number, document))| (*number, Arc::clone(document))));
            }
            documents.sort_unstable_by_key(|(number, _)| *number);
            if !documents.is_empty() {
                self.segments.push(Arc::new(DeltaSegment::of(dir, self.analysis, documents)?));
            }
        }
        Ok(())
    }

    /// Change of the number of passages that contain a term.
    pub(super) fn term(&self, term: &Term) -> i64 {
        let value = term.value();
        value.as_str().and_then(|text| self.terms.get(text)).copied().unwrap_or_default()
    }
}
