//! What supervised training learns from.

use std::collections::HashSet;

use crate::TrainError;
use crate::order;
use crate::pack::Sequence;
use crate::recipe::Sft;
use crate::sample::Sample;

/// A trajectory with what of it is learnt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lesson {
    pub(super) tokens: Vec<u32>,
    pub(super) learnt: Vec<bool>,
}

impl Lesson {
    /// What a sample teaches.
    pub fn new(sample: &Sample) -> Self {
        Self { learnt: sample.loss_mask(), tokens: sample.tokens.clone() }
    }

    /// What a sample teaches from one of the policy's turns on, counted from 0.
    pub fn from_turn(sample: &Sample, turn: usize) -> Self {
        let mut lesson = Self::new(sample);
        lesson.learnt[..sample.turn_start(turn)].fill(false);
        lesson
    }

    /// For a pass.
    pub fn sequence(&self) -> Sequence<'_> {
        Sequence { tokens: &self.tokens, learnt: &self.learnt }
    }
}

/// What is learnt from, and what the loss is measured on.
#[derive(Debug, Clone, PartialEq)]
pub struct Lessons {
    /// Trajectories to learn from.
    pub train: Vec<Lesson>,
    /// Trajectories of other questions.
    pub held_out: Vec<Lesson>,
    /// How many were left out because they are too long or teach nothing.
    pub dropped: usize,
}

impl Lessons {
    /// Divides samples: all of a question are on one side, and `seed` says which.
    ///
    /// # Errors
    /// When nothing is left to learn from.
    pub fn new(samples: &[Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        let mut questions: Vec<&str> = samples.iter().map(|sample| sample.question_id.as_str()).collect();
        questions.sort_unstable();
        questions.dedup();
        let count = (questions.len() as f64 * settings.held_out).round() as usize;
        let order = order::shuffled(questions.len(), order::seed(seed, "held out", 0));
        let aside: HashSet<&str> = order.into_iter().take(count).map(|at| questions[at]).collect();
        let aside = |sample: &&Sample| aside.contains(sample.question_id.as_str());
        let (held_out, train): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(aside);
        Self::sorted(train, &held_out, settings, seed)
    }

    /// Takes samples as they were divided before.
    ///
    /// # Errors
    /// When nothing is left to learn from.
    pub fn given(train: &[Sample], held_out: &[Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        Self::sorted(train.iter().collect(), &held_out.iter().collect::<Vec<_>>(), settings, seed)
    }

    fn sorted(mut train: Vec<&Sample>, held_out: &[&Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        if let Some(limit) = settings.limit {
            let order = order::shuffled(train.len(), order::seed(seed, "limit", 0));
            train = order.into_iter().take(limit).map(|at| train[at]).collect();
        }
        let teaches = |lesson: &Lesson| lesson.tokens.len() <= settings.longest && lesson.sequence().targets() > 0;
        let keep = |samples: &[&Sample]| samples.iter().map(|sample| Lesson::new(sample)).filter(teaches).collect();
        let lessons: Self = Self { train: keep(&train), held_out: keep(held_out), dropped: 0 };
        let kept = lessons.train.len() + lessons.held_out.len();
        let lessons = Self { dropped: train.len() + held_out.len() - kept, ..lessons };
        if lessons.train.is_empty() {
            let (all, aside, longest) = (train.len(), held_out.len(), settings.longest);
            let why = match all {
                0 => format!("no sample to learn from, {aside} held out: look at the file, sft.limit, sft.held_out"),
                _ => format!("none of {all} samples can be learnt from: is sft.longest = {longest} too short?"),
            };
            return Err(TrainError::Nothing(why));
        }
        Ok(lessons)
    }
}
