//! Text that was written for the policy: modes of a search, and the opening of a forced answer.

use waymark_models::tokenizer::Tokenizer;

use super::Sample;

impl Sample {
    /// Notes the last mode that was written for the policy with this marker.
    #[must_use]
    pub fn with_written_mode(self, marker: &str, tokenizer: &Tokenizer) -> Sample {
        let marker = marker.trim_start();
        let written_mode = self.forced.iter().rev().find_map(|&(first, run)| {
            let ids = self.tokens.get(first..first.checked_add(run)?)?;
            // The opening of a forced answer may follow in the same run.
            let length = (1..=run).find(|&length| tokenizer.decode(&ids[..length]).trim_start() == marker)?;
            Some((first, length))
        });
        Sample { written_mode, ..self }
    }

    /// Returns `true` if the protocol forced the answer by writing its opening tag. The reference programs end such
    /// episodes without an answer.
    pub fn is_forced(&self) -> bool {
        self.forced_answer().is_some()
    }

    /// Returns the index of the first token of a forced answer. It ends the episode: it stands in the last turn and is
    /// the action of that turn, even if it was cut. Rollouts are not guided, so the only other thing that is forced in
    /// them is the mode of a search, which may stand in the same turn before an answer, forced or not. In samples
    /// without `written_mode`, a mode in that turn counts as the opening of the answer.
    pub(super) fn forced_answer(&self) -> Option<usize> {
        let last = self.actions.last();
        // A search that broke off or could not be executed may have a forced mode, but no answer follows it.
        if last.is_some_and(|act| !act.action.ends()) {
            return None;
        }
        let start = last.map_or(0, |act| self.turn_start(act.turn.saturating_sub(1)));
        // The response may be cut before its last turn.
        let from = if start < self.tokens.len() { start } else { 0 };
        let mode_end = self.written_mode.map_or(0, |(first, run)| first.saturating_add(run));
        let behind = self.forced.iter().filter(|(first, run)| *first >= from && first.saturating_add(*run) > mode_end);
        behind.map(|&(first, _)| first.max(mode_end)).max()
    }

    /// Marks the modes that were written for the policy as its own, so that training learns them. A forced answer and
    /// the tokens after it stay forced.
    pub fn adopt_modes(&mut self) {
        let asked = self.forced_answer().unwrap_or(usize::MAX);
        let from_answer = |&(first, run): &(usize, usize)| {
            let start = first.max(asked);
            let left = first.saturating_add(run).saturating_sub(start);
            (left > 0).then_some((start, left))
        };
        self.forced = self.forced.iter().filter_map(from_answer).collect();
        self.written_mode = None;
    }

    /// Returns the answer, unless the protocol forced it.
    pub fn own_answer(&self) -> Option<&str> {
        self.answer.as_deref().filter(|_| !self.is_forced())
    }
}
