//! Plain statements in place of a policy's made-up answers: lessons that differ from what the policy would have done by
//! their last turn alone.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use waymark_agent::metric::declines;
use waymark_agent::{Action, EpisodeEnd, Policy, ReadingRule, SegmentKind};
use waymark_engine::Origin;
use waymark_models::ModelError;
use waymark_models::tokenizer::{Specials, Tokenizer};

use crate::data::phrases;
use crate::data::voice::{TurnDraft, Voice, voice};
use crate::lessons::text::{find_words, normalized};
use crate::reward::ExactMatch;
use crate::reward::extract::closed_answer;
use crate::sample::{OriginRun, Sample};
use crate::seeding;

/// Writer of last turns that state that nothing was found.
#[derive(Debug)]
pub struct DeclineWriter<'a> {
    /// Tokenizer of the policy's base model.
    pub tokenizer: &'a Tokenizer,
    /// Token that ends turns without a closing tag.
    pub turn_end: Option<u32>,
    /// Seed of the choice of words.
    pub seed: u64,
}

impl DeclineWriter<'_> {
    /// Returns `true` if the policy searched and gave a wrong answer of its own, although nothing that it was shown
    /// contains the words of a gold answer. Never `true` for questions answered by yes or no, whose evidence has neither
    /// word, nor if all supporting passages were found, nor for protocols in which no lesson can be written.
    pub fn applies(&self, sample: &Sample) -> bool {
        let wrong = closed_answer(sample).is_some() && ExactMatch::of_sample(sample) <= 0.0;
        let judges = |gold: &String| matches!(normalized(gold).as_str(), "" | "yes" | "no");
        let writable = voice(&sample.protocol).is_some() && !sample.actions.is_empty();
        let told = sample.answer.as_deref().is_some_and(declines);
        if !wrong
            || !writable
            || told
            || sample.evidence.is_empty()
            || sample.golds.iter().all(judges)
            || has_all_support(sample)
        {
            return false;
        }
        let shown = self.observations(sample);
        !sample.golds.iter().any(|gold| shown.iter().any(|text| find_words(text, gold).is_some()))
    }

    /// Replaces the last turn by a statement that nothing was found, in the form of the sample's protocol. Fields that
    /// describe how the old turn was sampled and scored are cleared. A sample without an action, or of a protocol
    /// without a [voice](crate::data::voice), stays as it is.
    ///
    /// # Errors
    /// [`ModelError`] if the statement cannot be encoded.
    pub fn rewrite(&self, sample: &mut Sample) -> Result<(), ModelError> {
        let (Some(voice), Some(policy)) = (voice(&sample.protocol), Policy::builtin(&sample.protocol)) else {
            return Ok(());
        };
        let Some(turn) = sample.actions.last().map(|last| last.turn) else { return Ok(()) };
        let start = sample.turn_start(turn.saturating_sub(1));
        let text = self.turn(sample, voice, turn);
        let mut ids = self.tokenizer.encode(&text, Specials::Literal)?;
        if !policy.protocol.stops().iter().any(|stop| text.ends_with(stop)) {
            ids.extend(self.turn_end);
        }
        let old = self.tokenizer.decode(sample.tokens.get(start..).unwrap_or_default());
        let old_reasoning = self.reasoning_tokens(&policy, &old)?;
        replace_tokens(sample, start, &ids);
        sample.text = self.tokenizer.decode(&sample.tokens[sample.prompt_tokens..]);

        let action = policy.protocol.parse(&text, ReadingRule::First);
        let statement = action.ending().unwrap_or_default().to_owned();
        sample.finish = if matches!(action, Action::Refuse { .. }) { EpisodeEnd::Refused } else { EpisodeEnd::Stop };
        if let Some(last) = sample.actions.last_mut() {
            last.summary = policy.protocol.summary(&text);
            last.action = action;
        }
        let earlier_reasoning = sample.usage.reasoning_tokens.saturating_sub(old_reasoning);
        sample.usage.completion_tokens = sample.count(Origin::Policy);
        sample.usage.reasoning_tokens = earlier_reasoning + self.reasoning_tokens(&policy, &text)?;
        sample.answer = Some(statement);
        Ok(())
    }

    /// Returns the number of tokens of reasoning and queries in a turn.
    fn reasoning_tokens(&self, policy: &Policy, turn: &str) -> Result<usize, ModelError> {
        let spans = policy.protocol.spans(turn).into_iter();
        let reasoning = spans.filter(|span| !matches!(span.kind, SegmentKind::Answer | SegmentKind::Refusal));
        let encoded = reasoning.map(|span| self.tokenizer.encode(&turn[span.range], Specials::Literal));
        encoded.map(|ids| ids.map(|ids| ids.len())).sum()
    }

    /// Text of the new last turn.
    fn turn(&self, sample: &Sample, voice: &dyn Voice, number: usize) -> String {
        // A seed for each sample, so that the words do not depend on the other samples.
        let mut rng = ChaCha8Rng::seed_from_u64(seeding::seed(self.seed, &sample.id, number as u64));
        let observation = self.observations(sample).pop().unwrap_or_default();
        let found = phrases::absent(&mut rng, &voice.read(&observation));
        let plan = phrases::refusal(&mut rng);
        let statement = phrases::nothing_found(&mut rng);
        voice.decline(&TurnDraft { number, found: &found, plan: &plan }, &statement)
    }

    /// Texts that the environment wrote, in order.
    fn observations(&self, sample: &Sample) -> Vec<String> {
        let mut at = 0usize;
        let mut texts = Vec::new();
        for &OriginRun(origin, run) in &sample.origins {
            let end = at.saturating_add(run).min(sample.tokens.len());
            if origin == Origin::Environment {
                texts.push(self.tokenizer.decode(&sample.tokens[at..end]));
            }
            at = end;
        }
        texts
    }
}

/// Returns `true` if the supporting passages are known and the policy found all of them.
fn has_all_support(sample: &Sample) -> bool {
    let found =
        |id: &String| sample.evidence.iter().flat_map(|found| &found.passages).any(|(passage, _)| passage == id);
    !sample.supporting.is_empty() && sample.supporting.iter().all(found)
}

/// Replaces the tokens from `start` on by `ids` of the policy, and clears what is known of the old ones.
fn replace_tokens(sample: &mut Sample, start: usize, ids: &[u32]) {
    sample.tokens.truncate(start);
    sample.tokens.extend(ids);
    let mut left = start;
    for run in &mut sample.origins {
        run.1 = run.1.min(left);
        left -= run.1;
    }
    sample.origins.retain(|run| run.1 > 0);
    sample.origins.push(OriginRun(Origin::Policy, ids.len()));
    let before = |&(first, run): &(usize, usize)| first.saturating_add(run) <= start;
    sample.forced.retain(before);
    sample.written_mode = sample.written_mode.filter(before);
    sample.logprobs.clear();
    sample.reward = None;
    sample.advantage = None;
    sample.preferred_to.clear();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_agent::Action;

    use super::*;
    use crate::data::voice::protocols;
    use crate::reward::evidence_measure::EvidenceMeasure;
    use crate::traps::{Behavior, Trap, play};

    async fn played(protocol: &str, behavior: Behavior) -> Sample {
        let policy = Policy::builtin(protocol).unwrap();
        play(behavior, &policy, voice(protocol).unwrap(), EvidenceMeasure::default()).await.unwrap()
    }

    #[tokio::test]
    async fn a_made_up_answer_becomes_a_statement_in_the_form_of_its_protocol() {
        let tokenizer = Tokenizer::bytes();
        let writer = DeclineWriter { tokenizer: &tokenizer, turn_end: None, seed: 7 };
        for protocol in protocols() {
            // The trap reads about the first of two hops only, and answers all the same.
            let old = played(protocol, Behavior::Bad(Trap::Repeat)).await;
            let last = old.turn_start(old.actions.last().unwrap().turn - 1);
            let mut new = old.clone();
            writer.rewrite(&mut new).unwrap();
            assert_eq!(new.flaw(), None, "{protocol}");
            assert_eq!(new.tokens[..last], old.tokens[..last], "{protocol}");
            assert!(new.loss_mask()[last..].iter().all(|learned| *learned), "{protocol}");
            let turn = tokenizer.decode(&new.tokens[last..]);
            let statement = new.answer.clone().unwrap();
            assert!(waymark_agent::metric::declines(&statement) && turn.contains(&statement), "{protocol}: {turn}");
            let refused = matches!(new.actions.last().unwrap().action, Action::Refuse { .. });
            assert_eq!(refused, protocol == "evo-rag", "{protocol}");
            assert_eq!(refused, new.finish == EpisodeEnd::Refused, "{protocol}");
            assert_eq!(new.actions.len(), old.actions.len(), "{protocol}");
            assert_eq!(new.evidence, old.evidence, "{protocol}");
            let usage = new.usage;
            assert!((1..usage.completion_tokens).contains(&usage.reasoning_tokens), "{protocol}: {usage:?}");
        }
    }

    #[tokio::test]
    async fn only_wrong_answers_on_evidence_without_a_gold_answer_apply() {
        let tokenizer = Tokenizer::bytes();
        let writer = DeclineWriter { tokenizer: &tokenizer, turn_end: None, seed: 7 };
        let applies = async |behavior| writer.applies(&played("routerag", behavior).await);
        assert!(!applies(Behavior::Right).await);
        assert!(!applies(Behavior::Bad(Trap::Answer)).await, "it never searched");
        let made_up = played("routerag", Behavior::Bad(Trap::Repeat)).await;
        let closed = Sample { forced: Vec::new(), ..made_up };
        assert!(writer.applies(&closed));
        assert!(!writer.applies(&Sample { protocol: "plain".to_owned(), ..closed.clone() }));
        assert!(!writer.applies(&Sample { golds: vec!["Yes".to_owned()], ..closed.clone() }));
        let found = closed.evidence[0].passages[0].0.clone();
        assert!(!writer.applies(&Sample { supporting: vec![found], ..closed.clone() }));
        // The first hop's passage tells of Ann Lee.
        assert!(!writer.applies(&Sample { golds: vec!["ANN LEE".to_owned()], ..closed }));
    }
}
