//! The record of an episode: its tokens with their origins, its actions and searches, its usage and durations.

use std::ops::Range;
use std::time::Duration;

use waymark_engine::{Origin, Token, TokenStep};
use waymark_models::tokenizer::Tokenizer;

use crate::hidden_evidence::{HiddenEvidence, visible};
use crate::trajectory::{ActionRecord, PartialTrajectory, SearchRecord, Timings};
use crate::usage::Usage;

/// Record of a running episode.
#[derive(Debug, Clone)]
pub(super) struct Transcript {
    id: String,
    tokens: Vec<Token>,
    prompt_tokens: usize,
    reasoning_tokens: usize,
    actions: Vec<ActionRecord>,
    evidence: Vec<SearchRecord>,
    /// Positions of each search's observation. `None` if none was shown.
    shown: Vec<Option<Range<usize>>>,
    /// Number of tokens hidden from the policy.
    hidden: usize,
    timings: Timings,
    /// Final usage, once the sequence is closed.
    usage: Option<Usage>,
}

impl Transcript {
    /// Creates the record of an episode with this prompt.
    pub(super) fn new(id: String, prompt: &[u32]) -> Transcript {
        let mut transcript = Transcript {
            id,
            tokens: Vec::new(),
            prompt_tokens: prompt.len(),
            reasoning_tokens: 0,
            actions: Vec::new(),
            evidence: Vec::new(),
            shown: Vec::new(),
            hidden: 0,
            timings: Timings::default(),
            usage: None,
        };
        transcript.append(prompt, Origin::Prompt, false);
        transcript
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of tokens that the policy sees.
    pub(super) fn visible_len(&self) -> usize {
        self.tokens.len().saturating_sub(self.hidden)
    }

    /// Returns the number of visible tokens before a position of the record.
    pub(super) fn visible_before(&self, position: usize) -> usize {
        let hidden = self.evidence.iter().filter_map(|found| found.hidden);
        let before: usize = hidden.filter(|hidden| hidden.first < position).map(|hidden| hidden.tokens).sum();
        position.saturating_sub(before)
    }

    /// Returns the tokens that the policy sees.
    pub(super) fn visible(&self) -> Vec<Token> {
        visible(&self.tokens, &self.evidence)
    }

    /// Returns all tokens.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the same record under another ID.
    pub(super) fn renamed(self, id: String) -> Transcript {
        Transcript { id, ..self }
    }

    /// Returns the number of tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the actions of all turns, in order.
    pub(super) fn actions(&self) -> &[ActionRecord] {
        &self.actions
    }

    /// Returns the results of all searches, in order.
    pub(super) fn evidence(&self) -> &[SearchRecord] {
        &self.evidence
    }

    /// Appends given tokens.
    pub(super) fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    /// Appends a sampled token.
    pub(super) fn push(&mut self, step: &TokenStep) {
        self.tokens.push(Token::sampled(step));
    }

    /// Replaces the sampled tokens since `start` by `ids`, the encoding of the part of their text that training keeps.
    /// Log-probabilities stay as far as the ids agree. Returns the number of tokens by which the record is shorter.
    pub(super) fn recode(&mut self, start: usize, ids: &[u32]) -> usize {
        let sampled = self.tokens.split_off(start);
        // After the first difference the sampled tokens followed another context, so their log-probabilities do not
        // hold.
        let agree = ids.iter().zip(&sampled).take_while(|(id, token)| **id == token.id).count();
        let logprob = |at: usize| sampled.get(at).filter(|_| at < agree).and_then(|token| token.logprob);
        let recoded = ids.iter().enumerate();
        self.tokens.extend(recoded.map(|(at, &id)| Token {
            id,
            origin: Origin::Policy,
            logprob: logprob(at),
            forced: false,
        }));
        // The new encoding of the same text may also be longer.
        sampled.len().saturating_sub(ids.len())
    }

    /// Keeps at most `limit` tokens after the prompt. Returns `true` if some were cut.
    ///
    /// Evidence counts as hidden in the shorter record exactly if it would in a run that had ended there. So a record
    /// that ends with the withdrawal itself keeps the mark, though no token was written without the evidence in sight.
    pub(super) fn truncate_response(&mut self, limit: usize) -> bool {
        let limit = self.prompt_tokens.saturating_add(limit);
        let longer = self.tokens.len() > limit;
        self.tokens.truncate(limit);
        let left = self.tokens.len();
        for found in self.evidence.iter_mut().filter(|found| found.hidden.is_some_and(|hidden| hidden.from > left)) {
            found.hidden = None;
        }
        self.hidden = self.evidence.iter().filter_map(|found| found.hidden).map(|hidden| hidden.tokens).sum();
        longer
    }

    /// Records the action of a turn. `reasoning_tokens` is the number of its tokens in reasoning and queries.
    pub(super) fn record_action(&mut self, action: ActionRecord, reasoning_tokens: usize) {
        self.actions.push(action);
        self.reasoning_tokens += reasoning_tokens;
    }

    /// Records a search.
    pub(super) fn record_search(&mut self, search: SearchRecord) {
        self.timings.search += search.seconds;
        self.evidence.push(search);
        self.shown.push(None);
    }

    /// Records that the tokens since `start` are the observation of `turn`.
    pub(super) fn record_observation(&mut self, turn: usize, start: usize) {
        if let Some(acted) = self.actions.last_mut() {
            acted.reply = start..self.tokens.len();
        }
        if let (Some(found), Some(shown)) = (self.evidence.last(), self.shown.last_mut())
            && found.turn == turn
        {
            *shown = Some(start..self.tokens.len());
        }
    }

    /// Withdraws in `turn` the last search that was not withdrawn yet. Its evidence stays in the record, which only
    /// grows; if `hides`, the policy does not see it any more. Returns the record of that search.
    pub(super) fn withdraw(&mut self, turn: usize, hides: bool) -> Option<&SearchRecord> {
        let at = self.evidence.iter().rposition(SearchRecord::stands)?;
        let found = &mut self.evidence[at];
        found.withdrawn = Some(turn);
        let shown = self.shown[at].clone().filter(|shown| hides && !shown.is_empty());
        if let Some(Range { start: first, end }) = shown {
            let tokens = end - first;
            found.hidden = Some(HiddenEvidence { first, tokens, from: self.tokens.len() });
            self.hidden += tokens;
        }
        Some(&self.evidence[at])
    }

    /// Adds to the time of generation.
    pub(super) fn add_generation(&mut self, took: Duration) {
        self.timings.generation += took.as_secs_f64();
    }

    /// Records the time of the first token, unless it is known.
    pub(super) fn mark_first_token(&mut self, elapsed: impl FnOnce() -> Duration) {
        // The closure spares a look at the clock for every other token.
        self.timings.first_token.get_or_insert_with(|| elapsed().as_secs_f64());
    }

    /// Ends the record. `cached` is the number of tokens of its prompt that came from the prefix cache. Returns the
    /// usage, which later calls do not change.
    pub(super) fn close(&mut self, cached: usize, elapsed: Duration) -> Usage {
        if let Some(usage) = self.usage {
            return usage;
        }
        let usage = self.count(cached);
        self.timings.total = elapsed.as_secs_f64();
        self.usage = Some(usage);
        usage
    }

    fn count(&self, cached: usize) -> Usage {
        let response = &self.tokens[self.prompt_tokens..];
        let count = |origin| response.iter().filter(|token| token.origin == origin).count();
        let completion_tokens = count(Origin::Policy);
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            // The record of a turn that training cuts is shorter than the turn.
            reasoning_tokens: self.reasoning_tokens.min(completion_tokens),
            environment_tokens: count(Origin::Environment),
            // A session per turn finds earlier turns in the cache, not only the prompt.
            cached_tokens: cached.min(self.prompt_tokens),
            searches: self.evidence.iter().filter(|found| !found.cached).count(),
            search_ms: self.timings.search * 1e3,
        }
    }

    /// Takes the whole record of a closed episode.
    pub(super) fn take(&mut self, tokenizer: &Tokenizer) -> PartialTrajectory {
        let ids: Vec<u32> = self.tokens[self.prompt_tokens..].iter().map(|token| token.id).collect();
        PartialTrajectory {
            id: std::mem::take(&mut self.id),
            tokens: std::mem::take(&mut self.tokens),
            prompt_tokens: std::mem::take(&mut self.prompt_tokens),
            text: tokenizer.decode(&ids),
            actions: std::mem::take(&mut self.actions),
            evidence: std::mem::take(&mut self.evidence),
            usage: self.usage.unwrap_or_default(),
            timings: self.timings,
        }
    }
}

#[cfg(test)]
mod tests {
    use waymark_index::Mode;

    use super::*;

    fn transcript() -> Transcript {
        let mut transcript = Transcript::new("id".to_owned(), &[1, 2, 3]);
        for id in [10, 11, 12, 13] {
            transcript.push(&TokenStep { id, logprob: -0.5, top: Vec::new() });
        }
        transcript
    }

    #[test]
    fn recoded_tokens_keep_the_log_probabilities_of_those_that_agree() {
        let mut transcript = transcript();
        assert_eq!(transcript.recode(3, &[10, 11, 99]), 1);
        let kept: Vec<(u32, bool)> =
            transcript.tokens()[3..].iter().map(|token| (token.id, token.logprob.is_some())).collect();
        assert_eq!(kept, [(10, true), (11, true), (99, false)]);
        assert_eq!(transcript.recode(6, &[]), 0, "nothing was sampled since");
    }

    #[test]
    fn the_beginning_of_a_long_response_is_kept() {
        let mut transcript = transcript();
        assert!(!transcript.truncate_response(4) && transcript.truncate_response(3));
        assert_eq!((transcript.len(), transcript.prompt_tokens()), (6, 3));
        assert!(!transcript.truncate_response(usize::MAX));
    }

    #[test]
    fn a_cut_response_hides_what_a_run_that_ended_there_hides() {
        let mut transcript = transcript();
        transcript.record_search(SearchRecord::asked(1, "q".to_owned(), Vec::new(), Mode::Passage));
        let start = transcript.len();
        transcript.append(&[20, 21], Origin::Environment, false);
        transcript.record_observation(1, start);
        transcript.append(&[30], Origin::Policy, false);
        transcript.withdraw(2, true);
        let ended = transcript.clone();
        let from = transcript.len();
        transcript.append(&[40, 41], Origin::Policy, false);
        let cut = |len: usize| {
            let mut cut = transcript.clone();
            assert!(cut.truncate_response(len - cut.prompt_tokens()));
            (cut.evidence()[0].hidden, cut.visible_len(), cut.visible().len())
        };
        let hidden = ended.evidence()[0].hidden;
        assert_eq!(hidden.map(|hidden| (hidden.first, hidden.tokens, hidden.from)), Some((start, 2, from)));
        assert_eq!(cut(from + 1), (hidden, from - 1, from - 1));
        assert_eq!(cut(from), (hidden, ended.visible_len(), ended.visible().len()));
        assert_eq!(cut(from - 1), (None, from - 1, from - 1));
    }

    #[test]
    fn usage_counts_by_origin_and_is_counted_once() {
        let mut transcript = transcript();
        transcript.append(&[20, 21], Origin::Environment, false);
        transcript.append(&[30], Origin::Policy, true);
        transcript.mark_first_token(|| Duration::from_secs(1));
        transcript.mark_first_token(|| Duration::from_secs(2));
        let usage = transcript.close(7, Duration::from_secs(3));
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.environment_tokens), (3, 5, 2));
        assert_eq!(usage.cached_tokens, 3, "no more than the prompt has");
        transcript.append(&[40], Origin::Policy, false);
        assert_eq!(transcript.close(0, Duration::ZERO), usage);
        let taken = transcript.take(&Tokenizer::bytes());
        assert_eq!((taken.timings.total, taken.timings.first_token), (3.0, Some(1.0)));
    }
}
