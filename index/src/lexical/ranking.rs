//! BM25 ranking over the base segment and the segments in memory.
//!
//! tantivy finds candidates and skips documents that cannot be among them. It adds the scores of a document's terms in
//! an order that depends on the segment, so candidates are scored again in the order of the query's terms: a passage
//! has the same score in whatever segment it is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tantivy::query::{
    Bm25StatisticsProvider, BooleanQuery, BoostQuery, EnableScoring, Occur, Query, TermQuery, Weight,
};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED, Term};

use super::LexicalIndex;
use crate::condition::{AllowedPassages, admits};
use crate::scored::{Scored, best};

/// Largest relative difference between two sums of the same scores in different orders.
const ROUNDING: f32 = 1e-4;

/// Term statistics over all passages.
struct CurrentStatistics<'a>(&'a LexicalIndex);

impl CurrentStatistics<'_> {
    fn changed(count: u64, by: i64) -> u64 {
        count.saturating_add_signed(by)
    }
}

impl Bm25StatisticsProvider for CurrentStatistics<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        let base = Bm25StatisticsProvider::total_num_tokens(&self.0.base.searcher, field)?;
        Ok(Self::changed(base, self.0.delta.tokens))
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(u64::from(self.0.documents.live()))
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        let base = Bm25StatisticsProvider::doc_freq(&self.0.base.searcher, term)?;
        Ok(Self::changed(base, self.0.delta.term(term)))
    }
}

/// Document of a segment that may be among the best.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    segment: usize,
    document: DocId,
    number: u32,
    score: Score,
}

/// Candidates found so far.
struct Candidates {
    found: Vec<Candidate>,
    /// Scores of the best `limit` candidates, the worst on top.
    best: BinaryHeap<Reverse<OrderedScore>>,
    limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct OrderedScore(Score);

impl Eq for OrderedScore {}

impl PartialOrd for OrderedScore {
    fn partial_cmp(&self, other: &OrderedScore) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedScore {
    fn cmp(&self, other: &OrderedScore) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Candidates {
    /// Returns the score below which no document can be among the best.
    fn floor(&self) -> Score {
        match self.best.peek() {
            Some(Reverse(worst)) if self.best.len() == self.limit => worst.0 * (1.0 - ROUNDING),
            _ => Score::MIN,
        }
    }

    fn offer(&mut self, candidate: Candidate) {
        if candidate.score < self.floor() {
            return;
        }
        self.best.push(Reverse(OrderedScore(candidate.score)));
        if self.best.len() > self.limit {
            self.best.pop();
        }
        self.found.push(candidate);
        // Drops candidates that better ones have overtaken, whenever the length of the list reaches a power of two.
        if self.found.len() > 1024 && self.found.len().is_power_of_two() {
            let floor = self.floor();
            self.found.retain(|candidate| candidate.score >= floor);
        }
    }
}

impl LexicalIndex {
    /// Returns the best `limit` allowed passages for these terms.
    pub(super) fn ranked(
        &self,
        terms: &[(Term, f32)],
        limit: usize,
        allowed: Option<&AllowedPassages>,
    ) -> tantivy::Result<Vec<Scored>> {
        let statistics = CurrentStatistics(self);
        let enabled = || EnableScoring::enabled_from_statistics_provider(&statistics, &self.base.searcher);
        let clauses = terms.iter().map(|(term, times)| (Occur::Should, clause(term, *times))).collect();
        let weight = BooleanQuery::new(clauses).weight(enabled())?;
        let mut candidates = Candidates { found: Vec::new(), best: BinaryHeap::new(), limit };
        // Pruning relies on bounds from the statistics of each segment alone; the current statistics differ.
        let margin = 1.0 - self.drift()?;
        for (segment, reader) in self.segments().enumerate() {
            weight.for_each_pruning(Score::MIN, reader, &mut |document, score| {
                if let Some(number) = self.number(segment, document).filter(|&number| admits(allowed, number)) {
                    candidates.offer(Candidate { segment, document, number, score });
                }
                // tantivy skips documents that do not score above the returned threshold.
                candidates.floor() * margin
            })?;
        }
        let floor = candidates.floor();
        let mut found = candidates.found;
        found.retain(|candidate| candidate.score >= floor);
        // Pruning adds up the scores of terms in any order, and the last bits of a sum depend on that.
        let weights = terms.iter().map(|(term, times)| clause(term, *times).weight(enabled()));
        self.score(&mut found, &weights.collect::<tantivy::Result<Vec<_>>>()?)?;
        Ok(best(found.iter().map(|found| Scored { number: found.number, score: found.score }).collect(), limit))
    }

    /// Segment of the base snapshot, then those in memory.
    fn segments(&self) -> impl Iterator<Item = &SegmentReader> {
        let base = self.base.searcher.segment_readers().iter();
        base.chain(self.delta.segments.iter().map(|segment| &segment.reader))
    }

    /// Returns the passage number of a document of a segment. `None` if the passage has changed since.
    fn number(&self, segment: usize, document: DocId) -> Option<u32> {
        match segment.checked_sub(1) {
            None => self.documents.get(document).is_none().then_some(document),
            Some(place) => self.delta.segments[place].number(document, &self.documents),
        }
    }

    /// Returns a bound on the relative error of tantivy's upper bounds. A segment stores for each block the term
    /// frequency and length that score highest at the average length of that segment; at another average a different
    /// document may score higher. The derivative of the logarithm of a BM25 score with respect to the logarithm of the
    /// average length is at most 1.
    fn drift(&self) -> tantivy::Result<Score> {
        if self.documents.is_empty() {
            return Ok(0.0);
        }
        let average = |tokens: u64, documents: u64| tokens as f64 / documents.max(1) as f64;
        let current = CurrentStatistics(self);
        let now = average(current.total_num_tokens(self.base.content)?, current.total_num_docs()?);
        let mut drift = 0.0_f64;
        for reader in self.segments() {
            let tokens = reader.inverted_index(self.base.content)?.total_num_tokens();
            let then = average(tokens, u64::from(reader.max_doc()));
            drift = drift.max((now.max(1e-9) / then.max(1e-9)).ln().abs());
        }
        Ok((2.0 * drift).min(1.0) as Score)
    }

    /// Scores candidates again, adding the scores of their terms in the order of `weights`.
    fn score(&self, found: &mut [Candidate], weights: &[Box<dyn Weight>]) -> tantivy::Result<()> {
        // A scorer only seeks forward.
        found.sort_unstable_by_key(|candidate| (candidate.segment, candidate.document));
        found.iter_mut().for_each(|candidate| candidate.score = 0.0);
        let readers: Vec<&SegmentReader> = self.segments().collect();
        for of_segment in found.chunk_by_mut(|a, b| a.segment == b.segment) {
            for weight in weights {
                let mut scorer = weight.scorer(readers[of_segment[0].segment], 1.0)?;
                for candidate in of_segment.iter_mut() {
                    let mut at = scorer.doc();
                    if at < candidate.document {
                        at = scorer.seek(candidate.document);
                    }
                    if at == candidate.document && at != TERMINATED {
                        candidate.score += scorer.score();
                    }
                }
            }
        }
        Ok(())
    }
}

/// Builds the clause of a term. A term that occurs several times in the query counts as many times.
fn clause(term: &Term, times: f32) -> Box<dyn Query> {
    let query = Box::new(TermQuery::new(term.clone(), IndexRecordOption::WithFreqs));
    if times > 1.0 { Box::new(BoostQuery::new(query, times)) } else { query }
}
