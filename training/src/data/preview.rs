//! Preview of the observations that searches of an episode will show.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use waymark_agent::{ActionOutcome, BlockingSearch, Format, FoundEvidence, Injected, Policy, Protocol};
use waymark_index::{Mode, SearchOptions};

/// Tenths of characters per token of English text, rounded down.
const CHARS_PER_TEN_TOKENS: usize = 38;

/// Text, entities and mode of a search.
type PreviewedSearch = (String, Vec<String>, Mode);

/// Previews the observation of a search. Results are cached.
pub struct SearchPreview {
    index: Box<dyn BlockingSearch>,
    protocol: Arc<dyn Protocol>,
    options: SearchOptions,
    format: Format,
    /// Approximate number of characters in the longest observation.
    chars: usize,
    seen: Mutex<HashMap<PreviewedSearch, Arc<str>>>,
}

impl fmt::Debug for SearchPreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchPreview").field("protocol", &self.protocol.name()).finish_non_exhaustive()
    }
}

impl SearchPreview {
    /// Creates a preview of `index`, which the episodes of `policy` search too.
    pub fn new(index: impl BlockingSearch + 'static, policy: &Policy) -> SearchPreview {
        SearchPreview {
            index: Box::new(index),
            protocol: Arc::clone(&policy.protocol),
            options: policy.retrieval.search.clone(),
            format: policy.retrieval.format,
            chars: policy.budget.observation_tokens.saturating_mul(CHARS_PER_TEN_TOKENS) / 10,
            seen: Mutex::default(),
        }
    }

    /// Mode of searches that name none.
    pub fn mode(&self) -> Mode {
        self.options.mode()
    }

    /// Approximate observation of a search that names `entities`. Empty if the search fails.
    pub fn probe(&self, query: &str, entities: Vec<String>, mode: Mode) -> Arc<str> {
        let key = (query.to_owned(), entities, mode);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(&key) {
            return Arc::clone(known);
        }
        // The loop truncates observations, too: a finding after the cut would never be shown.
        let text: Arc<str> = self.observation(query, &key.1, mode).chars().take(self.chars).collect::<String>().into();
        seen.insert(key, Arc::clone(&text));
        text
    }

    fn observation(&self, query: &str, entities: &[String], mode: Mode) -> String {
        let entities = (!entities.is_empty()).then(|| entities.to_vec());
        let options = SearchOptions { mode: Some(mode), entities, ..SearchOptions::default() }.or(&self.options);
        let Ok(evidence) = self.index.find(&options.query(query)) else { return String::new() };
        let passages: Vec<_> = evidence.hits.into_iter().map(|hit| hit.passage).collect();
        let found = FoundEvidence { mode, passages: &passages, triples: &evidence.triples };
        let parts = self.protocol.observation(&ActionOutcome::Evidence(found), self.format);
        parts.iter().map(Injected::text).collect()
    }
}
