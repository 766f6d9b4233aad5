//! The part of an episode's budget that is left.

use std::time::Duration;

use crate::budget::{Budget, BudgetLimit};

/// Counts what an episode has used, and says what is left.
#[derive(Debug, Clone)]
pub(super) struct BudgetTracker {
    limits: Budget,
    reserves: Reserves,
    /// Maximum number of tokens in the policy's name, sampled or forced. `None` if the client has set no limit.
    completion: Option<usize>,
    /// Completed rounds with the environment.
    rounds: usize,
    /// Sampled tokens; in the training loop, only the kept ones.
    sampled: usize,
    /// Forced tokens.
    forced: usize,
    /// Executed searches.
    searches: usize,
    /// Tokens left for observations. `None` without a limit on all of them.
    environment_left: Option<usize>,
}

/// Parts of a budget that an episode sets aside, all in tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reserves {
    /// Maximum length of the sequence.
    pub(super) context: usize,
    /// Part of the context kept for the end of the episode.
    pub(super) ending: usize,
    /// Part of the sampled tokens kept for a forced answer.
    pub(super) answer: usize,
    /// Length of the shortest observation after which the policy can continue.
    pub(super) frame: usize,
    /// Length of the shortest turn.
    pub(super) turn: usize,
}

impl BudgetTracker {
    /// Creates a tracker of an episode that has used nothing.
    pub(super) fn new(limits: Budget, reserves: Reserves) -> BudgetTracker {
        let environment_left = limits.environment_tokens;
        BudgetTracker {
            limits,
            reserves,
            completion: None,
            rounds: 0,
            sampled: 0,
            forced: 0,
            searches: 0,
            environment_left,
        }
    }

    /// Bounds the sampled and the forced tokens together. `None` has no effect.
    #[must_use]
    pub(super) fn bounded(self, completion: Option<usize>) -> BudgetTracker {
        BudgetTracker { completion, ..self }
    }

    /// Returns the number of the current turn, counted from 1.
    pub(super) fn turn(&self) -> usize {
        self.rounds + 1
    }

    /// Returns `true` if the episode has rounds with the environment, and all of them are used.
    pub(super) fn has_used_rounds(&self) -> bool {
        self.is_last_turn() && self.limits.turns > 0
    }

    /// Returns `true` if no round with the environment can follow the current turn.
    pub(super) fn is_last_turn(&self) -> bool {
        self.rounds >= self.limits.turns
    }

    /// Returns `true` if the time of the episode is used.
    pub(super) fn is_late(&self, elapsed: Duration) -> bool {
        elapsed >= self.limits.time()
    }

    /// Returns the number of tokens by which a sequence of `length` tokens may still grow.
    fn context_left(&self, length: usize) -> usize {
        self.reserves.context.saturating_sub(length)
    }

    fn sampled_left(&self) -> usize {
        self.limits.sampled_tokens.saturating_sub(self.sampled).min(self.completion_left())
    }

    /// Returns the number of tokens that the client's limit leaves.
    fn completion_left(&self) -> usize {
        self.completion.map_or(usize::MAX, |most| most.saturating_sub(self.sampled + self.forced))
    }

    /// Returns `true` if the client's limit counts forced tokens.
    pub(super) fn counts_forced(&self) -> bool {
        self.completion.is_some()
    }

    /// Returns `true` if the client's limit leaves room for `count` forced tokens.
    pub(super) fn holds(&self, count: usize) -> bool {
        count <= self.completion_left()
    }

    /// Returns the maximum number of tokens of the next turn after a sequence of `length` tokens.
    ///
    /// # Errors
    /// The limit that leaves too few.
    pub(super) fn turn_room(&self, length: usize) -> Result<usize, BudgetLimit> {
        // The reserve lets an episode that runs out of tokens still be forced to answer.
        let sampled = self.sampled_left().saturating_sub(self.reserves.answer);
        let context = self.context_left(length).saturating_sub(self.reserves.ending);
        if sampled < self.reserves.turn {
            Err(BudgetLimit::SampledTokens)
        } else if context < self.reserves.turn {
            Err(BudgetLimit::Context)
        } else {
            Ok(self.limits.turn_tokens.min(sampled).min(context))
        }
    }

    /// Returns the maximum number of tokens that a generation of `wanted` tokens may sample, reserves included.
    pub(super) fn clip(&self, wanted: usize, length: usize) -> usize {
        wanted.min(self.sampled_left()).min(self.context_left(length))
    }

    /// Returns the maximum number of tokens of a forced answer after an opening of `opening` tokens.
    pub(super) fn answer_room(&self, length: usize, opening: usize) -> usize {
        let context = self.context_left(length).saturating_sub(opening);
        let completion = self.completion_left().saturating_sub(opening);
        self.sampled_left().min(self.limits.turn_tokens).min(context).min(completion)
    }

    /// Returns the maximum length of an observation, and the limit that determines it.
    pub(super) fn observation_room(&self, length: usize) -> (usize, BudgetLimit) {
        let most = self.limits.observation_tokens;
        let context = self.context_left(length).saturating_sub(self.reserves.ending);
        let (room, limit) =
            if context < most { (context, BudgetLimit::Context) } else { (most, BudgetLimit::ObservationTokens) };
        match self.environment_left {
            // On a tie the limit on all observations is named, because it also blocks the next one.
            Some(left) if left <= room => (left, BudgetLimit::EnvironmentTokens),
            _ => (room, limit),
        }
    }

    /// Returns the exhausted limit of the environment, if any: no more searches are executed, or no observation fits.
    pub(super) fn exhausted(&self) -> Option<BudgetLimit> {
        // Without a change of speaker the frame is 0, but an observation needs at least one token.
        if self.environment_left.is_some_and(|left| left < self.reserves.frame.max(1)) {
            return Some(BudgetLimit::EnvironmentTokens);
        }
        self.limits.searches.is_some_and(|most| self.searches >= most).then_some(BudgetLimit::Searches)
    }

    /// Returns the limit that prevents an observation from which the policy could continue, if any. `searches` is
    /// `true` if the observation needs a search to be executed.
    pub(super) fn blocks(&self, length: usize, searches: bool) -> Option<BudgetLimit> {
        let (room, limit) = self.observation_room(length);
        if room < self.reserves.frame {
            return Some(limit);
        }
        // A withdrawal needs an observation but no search.
        self.exhausted().filter(|limit| searches || *limit != BudgetLimit::Searches)
    }

    /// Counts a sampled token.
    pub(super) fn spend_token(&mut self) {
        self.sampled += 1;
    }

    /// Counts forced tokens.
    pub(super) fn spend_forced(&mut self, count: usize) {
        self.forced += count;
    }

    /// Takes back sampled tokens that the training loop has cut.
    pub(super) fn refund_tokens(&mut self, count: usize) {
        self.sampled = self.sampled.saturating_sub(count);
    }

    /// Counts an executed search.
    pub(super) fn spend_search(&mut self) {
        self.searches += 1;
    }

    /// Counts an observation of `tokens` tokens; `cut_by` is the limit that has cut it, if one has.
    pub(super) fn spend_observation(&mut self, tokens: usize, cut_by: Option<BudgetLimit>) {
        if let Some(left) = &mut self.environment_left {
            // The cut may leave a token or two, too few for another observation.
            let used_up = cut_by == Some(BudgetLimit::EnvironmentTokens);
            *left = if used_up { 0 } else { left.saturating_sub(tokens) };
        }
    }

    /// Counts a round with the environment.
    pub(super) fn spend_round(&mut self) {
        self.rounds += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(change: impl FnOnce(&mut Budget)) -> BudgetTracker {
        let mut limits =
            Budget { turns: 2, turn_tokens: 20, observation_tokens: 30, sampled_tokens: 50, ..Budget::default() };
        change(&mut limits);
        BudgetTracker::new(limits, Reserves { context: 100, ending: 10, answer: 5, frame: 4, turn: 1 })
    }

    #[test]
    fn a_turn_gets_the_least_of_its_limits() {
        let mut tracker = tracker(|_| ());
        assert_eq!(tracker.turn_room(0), Ok(20));
        assert_eq!(tracker.turn_room(75), Ok(15), "the end of the episode needs 10 of the context");
        assert_eq!(tracker.turn_room(90), Err(BudgetLimit::Context));
        (0..44).for_each(|_| tracker.spend_token());
        assert_eq!(tracker.turn_room(0), Ok(1), "a forced answer needs 5 of the sampled tokens");
        tracker.spend_token();
        assert_eq!(tracker.turn_room(90), Err(BudgetLimit::SampledTokens), "it is named first");
        assert_eq!((tracker.clip(20, 0), tracker.clip(20, 98), tracker.answer_room(98, 1)), (5, 2, 1));
        tracker.refund_tokens(10);
        assert_eq!(tracker.turn_room(0), Ok(10));
    }

    #[test]
    fn only_a_clients_limit_counts_forced_tokens() {
        let mut own = tracker(|_| ());
        own.spend_forced(1000);
        assert_eq!((own.turn_room(0), own.holds(usize::MAX), own.counts_forced()), (Ok(20), true, false));
        let mut bounded = tracker(|_| ()).bounded(Some(30));
        bounded.spend_token();
        bounded.spend_forced(19);
        assert_eq!(bounded.turn_room(0), Ok(5), "5 of the 10 tokens left are for the forced answer");
        assert_eq!((bounded.clip(20, 0), bounded.answer_room(0, 4), bounded.answer_room(0, 11)), (10, 6, 0));
        assert!(bounded.holds(10) && !bounded.holds(11));
        bounded.spend_forced(10);
        assert_eq!((bounded.turn_room(0), bounded.holds(0)), (Err(BudgetLimit::SampledTokens), true));
    }

    #[test]
    fn an_observation_gets_the_least_of_its_limits() {
        let mut tracker = tracker(|limits| limits.environment_tokens = Some(40));
        assert_eq!(tracker.observation_room(0), (30, BudgetLimit::ObservationTokens));
        assert_eq!(tracker.observation_room(61), (29, BudgetLimit::Context));
        tracker.spend_observation(20, None);
        assert_eq!(tracker.observation_room(0), (20, BudgetLimit::EnvironmentTokens));
        assert_eq!(tracker.blocks(0, true), None);
        tracker.spend_observation(17, None);
        assert_eq!(tracker.blocks(0, false), Some(BudgetLimit::EnvironmentTokens), "3 tokens hold no frame");
        assert_eq!(tracker.exhausted(), Some(BudgetLimit::EnvironmentTokens));
    }

    #[test]
    fn a_cut_observation_ends_the_environment() {
        let mut tracker = tracker(|limits| limits.environment_tokens = Some(25));
        tracker.spend_observation(20, Some(BudgetLimit::EnvironmentTokens));
        assert_eq!(tracker.observation_room(0), (0, BudgetLimit::EnvironmentTokens));
    }

    #[test]
    fn used_searches_block_further_ones_only() {
        let mut tracker = tracker(|limits| limits.searches = Some(1));
        assert_eq!(tracker.exhausted(), None);
        tracker.spend_search();
        assert_eq!(tracker.exhausted(), Some(BudgetLimit::Searches));
        assert_eq!((tracker.blocks(0, true), tracker.blocks(0, false)), (Some(BudgetLimit::Searches), None));
        assert_eq!(tracker.blocks(87, false), Some(BudgetLimit::Context), "3 tokens of the context hold no frame");
    }

    #[test]
    fn rounds_end_with_their_limit() {
        let mut tracker = tracker(|limits| limits.seconds = 1.5);
        assert!(!tracker.is_last_turn() && !tracker.has_used_rounds());
        tracker.spend_round();
        tracker.spend_round();
        assert!(tracker.is_last_turn() && tracker.has_used_rounds());
        assert_eq!(tracker.turn(), 3);
        assert!(!tracker.is_late(Duration::from_millis(1499)) && tracker.is_late(Duration::from_millis(1500)));
        let single = BudgetTracker::new(Budget { turns: 0, ..Budget::default() }, Reserves::default());
        assert!(single.is_last_turn() && !single.has_used_rounds());
    }
}
