//! Speculation by prompt lookup: proposes the tokens that followed an earlier occurrence of a sequence's last tokens.
//!
//! Answers that quote their evidence repeat it token by token. A step verifies proposed tokens by sampling at each
//! position as it would without them, and keeps them up to the first one that differs. Proposals change no output.

use std::ops::RangeInclusive;

/// Lengths of the matched tokens at the end of a sequence. A single token occurs too often by chance.
const MATCH: RangeInclusive<usize> = 2..=4;
/// Number of last tokens that are searched for a match.
const REACH: usize = 16_384;
/// Factor by which a verification reduces the weight of earlier ones, so about the last ten count.
const MEMORY: f64 = 0.9;
/// Factor by which a step without a proposal reduces the weight of verifications, so lookup is tried again in a
/// session that quotes nothing for a while.
const FADING: f64 = 0.97;
/// Chance of acceptance before the first verification. This prior counts as much as one verified token.
const PRIOR: f64 = 0.5;

/// Proposed tokens of a session, and the success of those that were looked up so far.
#[derive(Debug, Default)]
pub(super) struct PromptLookup {
    proposal: Vec<u32>,
    /// If `true`, the turn forces the proposed tokens, and their acceptance says nothing about lookup.
    forced: bool,
    /// Weighted number of accepted tokens.
    accepted: f64,
    /// Weighted number of verified tokens; those after a rejected one are not verified.
    verified: f64,
}

impl PromptLookup {
    /// Returns the tokens last proposed.
    pub(super) fn proposal(&self) -> &[u32] {
        &self.proposal
    }

    /// Returns `true` if the tokens last proposed were looked up.
    pub(super) fn is_looked_up(&self) -> bool {
        !self.forced
    }

    /// Returns the estimated probability that a proposed token is accepted, if all tokens before it are.
    pub(super) fn chance(&self) -> f64 {
        (self.accepted + PRIOR) / (self.verified + 1.0)
    }

    /// Proposes `tokens` tokens to follow `ids`. Returns `false` if the last ids have no earlier occurrence.
    pub(super) fn propose(&mut self, ids: &[u32], tokens: usize) -> bool {
        self.proposal.clear();
        self.forced = false;
        let Some(from) = continuation(ids) else { return false };
        for index in from..from + tokens {
            // Past the end of the sequence, the proposal continues with its own tokens: a repeated phrase continues.
            let id = ids.get(index).copied().unwrap_or_else(|| self.proposal[index - ids.len()]);
            self.proposal.push(id);
        }
        true
    }

    /// Proposes tokens that the turn forces, which are accepted for certain.
    pub(super) fn propose_forced(&mut self, tokens: &[u32]) {
        self.proposal.clear();
        self.proposal.extend_from_slice(tokens);
        self.forced = true;
    }

    /// Records a step without a proposal.
    pub(super) fn skip(&mut self) {
        self.accepted *= FADING;
        self.verified *= FADING;
    }

    /// Records that the first `accepted` of `proposed` tokens were accepted.
    pub(super) fn record(&mut self, accepted: usize, proposed: usize) {
        self.accepted = MEMORY * self.accepted + accepted as f64;
        self.verified = MEMORY * self.verified + proposed.min(accepted + 1) as f64;
    }
}

/// Returns the index after the longest earlier occurrence of the last ids. Of equally long ones, the latest wins.
fn continuation(ids: &[u32]) -> Option<usize> {
    let last = *ids.last()?;
    let window = ids.len().saturating_sub(REACH);
    let mut longest = *MATCH.start() - 1;
    let mut found = None;
    for end in (window + 1..ids.len()).rev() {
        // Nearly all positions fail this first comparison.
        if ids[end - 1] != last {
            continue;
        }
        let pairs = ids[..end].iter().rev().zip(ids.iter().rev());
        let length = pairs.take(*MATCH.end()).take_while(|(earlier, latest)| earlier == latest).count();
        if length > longest {
            longest = length;
            found = Some(end);
        }
        if length == *MATCH.end() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(ids: &[u32], tokens: usize) -> Vec<u32> {
        let mut lookup = PromptLookup::default();
        lookup.propose(ids, tokens);
        lookup.proposal().to_vec()
    }

    #[test]
    fn the_longest_match_wins_and_among_equals_the_latest() {
        assert_eq!(proposed(&[1, 2, 3, 10, 9, 2, 3, 11, 1, 2, 3], 2), [10, 9], "three tokens match, not two");
        assert_eq!(proposed(&[2, 3, 10, 2, 3, 11, 2, 3], 1), [11]);
        assert_eq!(proposed(&[5, 1, 2, 3, 4, 10, 6, 1, 2, 3, 4, 11, 5, 1, 2, 3, 4], 1), [11], "four tokens are enough");
        assert_eq!(proposed(&[1, 2, 3, 10, 9, 2, 3, 11, 1, 2, 3], 0), [0; 0]);
    }

    #[test]
    fn a_single_token_is_no_match() {
        assert_eq!(proposed(&[], 4), [0; 0]);
        assert_eq!(proposed(&[7], 4), [0; 0]);
        assert_eq!(proposed(&[7, 7], 4), [0; 0]);
        assert_eq!(proposed(&[1, 7, 2, 7], 4), [0; 0]);
        assert!(!PromptLookup::default().propose(&[1, 2, 3], 4));
    }

    #[test]
    fn a_repetition_is_continued_past_the_end() {
        assert_eq!(proposed(&[7, 7, 7], 3), [7, 7, 7]);
        assert_eq!(proposed(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(proposed(&[4, 5, 6, 4, 5], 4), [6, 4, 5, 6]);
    }

    #[test]
    fn matches_out_of_reach_are_not_found() {
        let mut ids = vec![1, 2, 3];
        ids.extend((0..REACH as u32).map(|id| 10 + id));
        ids.extend([1, 2]);
        assert_eq!(proposed(&ids, 1), [0; 0]);
        ids.drain(3..REACH);
        assert_eq!(proposed(&ids, 1), [3]);
    }

    #[test]
    fn the_chance_follows_the_last_verifications_and_fades_without_any() {
        let mut lookup = PromptLookup::default();
        assert_eq!(lookup.chance(), 0.5);
        lookup.record(4, 4);
        assert_eq!(lookup.chance(), 0.9, "4.5 of 5");
        (0..50).for_each(|_| lookup.record(0, 4));
        assert!(lookup.chance() < 0.06, "one token is verified each time: {lookup:?}");
        (0..200).for_each(|_| lookup.skip());
        assert!((0.45..0.5).contains(&lookup.chance()), "{lookup:?}");
        (0..50).for_each(|_| lookup.record(3, 4));
        assert!((0.72..0.76).contains(&lookup.chance()), "three of four verified tokens: {lookup:?}");
    }
}
