//! Episodes of the behaviors, played in the loop that trains and serves the policy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use waymark_agent::{Budget, EpisodeOptions, Policy, Runtime};
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::evaluate;

use super::TrapError;
use super::behavior::Behavior;
use super::world::{HOPS, QUESTION, RIGHT, WRONG, WorldSearch};
use crate::data::scripted::{Author, ScriptedGenerator};
use crate::data::voice::Voice;
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::sample::{Sample, SampleTask};

/// Maximum number of searches of a behavior. A budget may allow any number, and the table must not take minutes.
const MOST_ROUNDS: usize = 32;

/// Room for all tokens of an episode: the tokenizer has one per byte.
const ROOM: usize = 1 << 18;

/// Author that writes prepared turns, and after them the rest of a forced answer.
struct PreparedTurns(VecDeque<String>);

impl Author for PreparedTurns {
    fn turn(&mut self, _: Option<&str>) -> String {
        self.0.pop_front().unwrap_or_else(|| format!(" {WRONG} </answer>"))
    }
}

/// Plays a behavior with a policy. Its evidence is measured by `measure`.
///
/// # Errors
/// [`TrapError::Play`] if the loop cannot run with this policy.
pub(crate) async fn play(
    behavior: Behavior,
    policy: &Policy,
    voice: &dyn Voice,
    measure: EvidenceMeasure,
) -> Result<Sample, TrapError> {
    // The right behavior takes two searches, even if the policy's budget allows only one.
    let rounds = policy.budget.turns.clamp(HOPS.len(), MOST_ROUNDS);
    let turns = PreparedTurns(behavior.turns(voice, rounds).into());
    let tokenizer = Arc::new(Tokenizer::bytes());
    let script = ScriptedGenerator::new(Arc::clone(&tokenizer), Arc::new(Mutex::new(turns)), ROOM);
    let runtime = Runtime::new(script, tokenizer, None, Vec::new(), Some(Arc::new(WorldSearch)));
    // Rollouts are not guided either.
    let options = EpisodeOptions { guided: Some(false), ..EpisodeOptions::default() };
    let played = evaluate::play(&runtime, &roomy(policy, rounds), QUESTION, options).await;
    let trajectory =
        played.map_err(|source| TrapError::Play { behavior: behavior.name(), source: Box::new(source) })?;
    let support = measure.of(&evaluate::retrieved(&trajectory.evidence), &HOPS.map(|hop| hop.support()));
    let task = SampleTask {
        question: QUESTION.to_owned(),
        golds: vec![RIGHT.to_owned()],
        supporting: HOPS.map(|hop| hop.subject.to_owned()).to_vec(),
        protocol: policy.protocol.name().to_owned(),
        ..SampleTask::default()
    };
    Ok(Sample { support, ..Sample::from_trajectory(trajectory, task) })
}

/// Returns the policy with `rounds` rounds and no other limit that the behaviors could reach, although one token per
/// byte makes many tokens.
fn roomy(policy: &Policy, rounds: usize) -> Policy {
    let mut policy = policy.clone();
    policy.budget = Budget {
        turns: rounds,
        turn_tokens: ROOM / 64,
        observation_tokens: ROOM / 64,
        sampled_tokens: ROOM,
        context_tokens: ROOM,
        environment_tokens: None,
        searches: policy.budget.searches.map(|most| most.max(HOPS.len())),
        ..Budget::default()
    };
    policy
}
