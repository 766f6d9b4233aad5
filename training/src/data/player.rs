//! Plays lessons through the agent's loop and turns them into samples.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use waymark_agent::{
    AgentError, Conversation, Episode, EpisodeEnd, EpisodeOptions, MAX_WITHOUT, Policy, Runtime, Search, Timings,
};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use super::scripted::{self, ScriptedGenerator};
use super::teacher::{DropReason, LessonTeacher, LessonTeacherSettings, TeacherEnding};
use crate::hash::fnv1a;
use crate::lessons::lesson::Lesson;
use crate::lessons::text::normalized;
use crate::sample::{Sample, SampleTask};

/// Player of all lessons over one index: policy, tokenizer, search and teacher settings.
#[derive(Debug, Clone)]
pub struct LessonPlayer {
    /// Policy: protocol, budget and retrieval settings.
    pub policy: Policy,
    /// Tokenizer of the base model.
    pub tokenizer: Arc<Tokenizer>,
    /// Hash of the vocabulary.
    pub vocabulary: String,
    /// Chat template. `None` if the base model has none.
    pub template: Option<Arc<ChatTemplate>>,
    /// IDs of the tokens that end a turn.
    pub eos: Vec<u32>,
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    /// Search backend of the episodes.
    pub searcher: Arc<dyn Search>,
    /// Settings of the teacher.
    pub teacher: LessonTeacherSettings,
}

impl LessonPlayer {
    /// Plays one lesson. The inner result is the sample, or the reason why the lesson was dropped. Samples hold no
    /// times and no log-probabilities, so that the same seed gives the same bytes.
    ///
    /// # Errors
    /// [`AgentError`] if the loop cannot run at all.
    pub async fn play(
        &self,
        lesson: &Lesson,
        dataset: &str,
        variant: usize,
        seed: u64,
    ) -> Result<Result<Sample, DropReason>, AgentError> {
        let id = sample_id(dataset, lesson, variant);
        // Each sample has its own seed, so the samples do not depend on the order of play.
        let seed = seed ^ fnv1a(id.bytes());
        let teacher = LessonTeacher::new(lesson.clone(), self.teacher.clone(), seed);
        if !teacher.is_contested() {
            return Ok(Err("the modes agree"));
        }
        let without = teacher.without();
        if without.len() > MAX_WITHOUT {
            return Ok(Err("too many passages to withhold"));
        }
        let teacher = Arc::new(Mutex::new(teacher));
        let generator = ScriptedGenerator::new(Arc::clone(&self.tokenizer), teacher.clone(), self.context)
            .with_turn_end(scripted::turn_end(&self.tokenizer, self.template.as_deref(), &self.eos))
            .with_template(self.template.clone(), self.policy.protocol.tags());
        let tokenizer = self.tokenizer.clone();
        let template = self.template.clone();
        let eos = self.eos.clone();
        let runtime = Runtime::new(generator, tokenizer, template, eos, Some(Arc::clone(&self.searcher)));
        let options = EpisodeOptions { id: Some(id), seed, without: without.clone(), ..EpisodeOptions::default() };
        let question = Conversation::new(lesson.question.as_str());
        // Lessons run through the same loop as served requests, so their format is that of the server.
        let episode = Episode::new(&runtime, &self.policy, question, options)?;
        let (sender, mut events) = mpsc::channel(64);
        // The channel is bounded: the episode would wait forever if nothing took its events.
        let (trajectory, ()) = tokio::join!(episode.run(sender), async { while events.recv().await.is_some() {} });
        let mut trajectory = trajectory?;
        let ending = teacher.lock().unwrap_or_else(PoisonError::into_inner).ending();
        if let TeacherEnding::Dropped(drop_reason) = ending {
            return Ok(Err(drop_reason));
        }
        let right = |answer: &String| lesson.golds.iter().any(|gold| normalized(gold) == normalized(answer));
        // A lesson that the loop cut or refused would teach what the loop refuses.
        let refused = trajectory.finish == EpisodeEnd::Refused && ending == TeacherEnding::Declined;
        let ended = trajectory.finish == EpisodeEnd::Stop || refused;
        if !ended || trajectory.valid_actions() != trajectory.turns() {
            return Ok(Err("the agent loop rejected a turn"));
        }
        // A lesson whose withheld passages were not missed would teach that they are not needed.
        if (ending == TeacherEnding::Declined) == without.is_empty() {
            return Ok(Err("the answer was found without the withheld passages"));
        }
        if ending != TeacherEnding::Declined && !trajectory.answer.as_ref().is_some_and(right) {
            return Ok(Err("the answer is not gold"));
        }
        trajectory.timings = Timings::default();
        trajectory.usage.search_ms = 0.0;
        // A script has no distribution; the constant that it reports must not reach an importance ratio.
        trajectory.tokens.iter_mut().for_each(|token| token.logprob = None);
        trajectory.evidence.iter_mut().for_each(|found| found.seconds = 0.0);
        let sample = Sample::from_trajectory(trajectory, self.task(lesson, dataset, seed));
        let template = self.template.as_deref();
        let sample = sample.with_opened_thought(template, &self.tokenizer, self.policy.protocol.tags());
        let guessed = ending == TeacherEnding::Guessed;
        Ok(Ok(Sample { tokenizer: Some(self.vocabulary.clone()), guessed, without, ..sample }))
    }

    fn task(&self, lesson: &Lesson, dataset: &str, seed: u64) -> SampleTask {
        SampleTask {
            question_id: lesson.question_id.clone(),
            question: lesson.question.clone(),
            kind: lesson.kind.clone(),
            golds: lesson.golds.clone(),
            supporting: lesson.supporting.clone(),
            partly: lesson.partly,
            dataset: dataset.to_owned(),
            protocol: self.policy.protocol.name().to_owned(),
            seed,
            step: 0,
        }
    }
}

/// ID of the sample of a lesson.
pub fn sample_id(dataset: &str, lesson: &Lesson, variant: usize) -> String {
    let id = &lesson.question_id;
    if id.starts_with(dataset) { format!("{id}-{variant}") } else { format!("{dataset}-{id}-{variant}") }
}
