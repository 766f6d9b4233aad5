//! Plays lessons and keeps what came of them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use waymark::agent::{AgentError, Conversation, Episode, EpisodeOptions, Policy, Reason, Runtime, Search, Timings};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use super::lesson::Lesson;
use super::script::Script;
use super::teacher::{Failure, Habits, Prober, Teacher};
use super::text::plain;
use crate::hash::fnv1a;
use crate::sample::{Sample, Task};

/// What every lesson over one index is played with.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The policy: its protocol, its bounds and how it searches.
    pub policy: Policy,
    /// Text to tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// What its vocabulary is known by.
    pub vocabulary: String,
    /// The chat template.
    pub template: Option<Arc<ChatTemplate>>,
    /// Tokens that end a turn.
    pub eos: Vec<u32>,
    /// The longest sequence.
    pub context: usize,
    /// Where the episode searches.
    pub searcher: Arc<dyn Search>,
    /// Where the teacher looks beforehand: the same index.
    pub prober: Arc<Prober>,
    /// What the teacher does that it could leave.
    pub habits: Habits,
}

impl Stage {
    /// Plays one lesson. Samples tell no times and no log-probabilities, so that the same seed gives the same bytes.
    ///
    /// # Errors
    /// [`AgentError`] where the loop cannot be run at all.
    pub async fn play(
        &self,
        lesson: &Lesson,
        dataset: &str,
        variant: usize,
        seed: u64,
    ) -> Result<Result<Sample, Failure>, AgentError> {
        let id = name(dataset, lesson, variant);
        let seed = seed ^ fnv1a(id.bytes());
        let teacher = Teacher::new(lesson.clone(), Arc::clone(&self.prober), self.habits, seed);
        let teacher = Arc::new(Mutex::new(teacher));
        let script = Script::new(Arc::clone(&self.tokenizer), teacher.clone(), self.context);
        let (tokenizer, template, eos) = (self.tokenizer.clone(), self.template.clone(), self.eos.clone());
        let runtime = Runtime::new(script, tokenizer, template, eos, Some(Arc::clone(&self.searcher)));
        let options = EpisodeOptions { id: Some(id), seed, ..EpisodeOptions::default() };
        let question = Conversation::new(lesson.question.as_str());
        let episode = Episode::new(&runtime, &self.policy, question, options)?;
        let (sender, mut events) = mpsc::channel(64);
        let (trajectory, ()) = tokio::join!(episode.run(sender), async { while events.recv().await.is_some() {} });
        let mut trajectory = trajectory?;
        let (failure, guessed) = {
            let teacher = teacher.lock().unwrap_or_else(PoisonError::into_inner);
            (teacher.failure(), teacher.guessed())
        };
        if let Some(failure) = failure {
            return Ok(Err(failure));
        }
        let right = |answer: &String| lesson.golds.iter().any(|gold| plain(gold) == plain(answer));
        if trajectory.finish != Reason::Stop || trajectory.valid_actions() != trajectory.turns() {
            return Ok(Err("the loop did not take it"));
        }
        if !trajectory.answer.as_ref().is_some_and(right) {
            return Ok(Err("another answer than gold"));
        }
        trajectory.timings = Timings::default();
        trajectory.usage.search_ms = 0.0;
        trajectory.tokens.iter_mut().for_each(|token| token.logprob = None);
        trajectory.evidence.iter_mut().for_each(|found| found.seconds = 0.0);
        let sample = Sample::from_trajectory(trajectory, self.task(lesson, dataset, seed));
        Ok(Ok(Sample { tokenizer: Some(self.vocabulary.clone()), guessed, ..sample }))
    }

    fn task(&self, lesson: &Lesson, dataset: &str, seed: u64) -> Task {
        Task {
            question_id: lesson.question_id.clone(),
            question: lesson.question.clone(),
            golds: lesson.golds.clone(),
            supporting: lesson.supporting.clone(),
            partly: false,
            dataset: dataset.to_owned(),
            protocol: self.policy.protocol.name().to_owned(),
            seed,
            step: 0,
        }
    }
}

/// The id of a lesson's sample.
pub fn name(dataset: &str, lesson: &Lesson, variant: usize) -> String {
    let id = &lesson.question_id;
    if id.starts_with(dataset) { format!("{id}-{variant}") } else { format!("{dataset}-{id}-{variant}") }
}
