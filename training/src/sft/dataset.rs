//! Training data of supervised training.

use std::collections::HashSet;

use crate::TrainError;
use crate::pack::TrainingSequence;
use crate::recipe::Sft;
use crate::sample::{Sample, SampleView};
use crate::seeding;

/// Token sequence with a mask of the tokens to train on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MaskedSequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) learned: Vec<bool>,
}

impl MaskedSequence {
    /// Creates the sequence of all tokens of a sample. The mask selects the tokens that the policy wrote while it saw
    /// all earlier tokens.
    pub fn new(sample: &Sample) -> Self {
        Self { learned: sample.loss_mask(), tokens: sample.tokens.clone() }
    }

    /// Creates one sequence for each set of tokens that the policy saw while it wrote; see [`Sample::views`]. Together,
    /// the masks select all tokens that the policy wrote.
    pub fn views(sample: &Sample) -> Vec<Self> {
        sample.views().into_iter().map(|view| Self { tokens: view.tokens, learned: view.learned }).collect()
    }

    /// Same as [`views`](Self::views), masking all tokens before one of the policy's turns, counted from 0. Sequences
    /// without a token to train on are left out, unless there is no other.
    pub fn views_from_turn(sample: &Sample, turn: usize) -> Vec<Self> {
        let start = sample.turn_start(turn);
        let masked = |view: SampleView| {
            let after = |(learned, at): (bool, usize)| learned && at >= start;
            let learned = view.learned.into_iter().zip(view.positions).map(after).collect();
            Self { tokens: view.tokens, learned }
        };
        let mut views: Vec<Self> = sample.views().into_iter().map(masked).collect();
        if views.iter().any(|view| view.sequence().targets() > 0) {
            views.retain(|view| view.sequence().targets() > 0);
        }
        views
    }

    /// Borrowed view for a training pass.
    pub fn sequence(&self) -> TrainingSequence<'_> {
        TrainingSequence { tokens: &self.tokens, learned: &self.learned }
    }
}

/// Training and held-out sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct SftDataset {
    /// Sequences to train on.
    pub train: Vec<MaskedSequence>,
    /// Sequences of other questions, for measuring the loss.
    pub held_out: Vec<MaskedSequence>,
    /// Number of sequences dropped because they are too long or have no target token.
    pub dropped: usize,
}

impl SftDataset {
    /// Splits samples by question: `seed` determines the held-out questions.
    ///
    /// # Errors
    /// If no training sequence remains.
    pub fn new(samples: &[Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        let mut questions: Vec<&str> = samples.iter().map(|sample| sample.question_id.as_str()).collect();
        // Sorted, so that the split does not depend on the order of lines in the file.
        questions.sort_unstable();
        questions.dedup();
        let count = (questions.len() as f64 * settings.held_out).round() as usize;
        let order = seeding::shuffled(questions.len(), seeding::seed(seed, "held out", 0));
        // By question, not by sample: variants of one question on both sides would leak answers into the validation
        // loss.
        let aside: HashSet<&str> = order.into_iter().take(count).map(|at| questions[at]).collect();
        let aside = |sample: &&Sample| aside.contains(sample.question_id.as_str());
        let (held_out, train): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(aside);
        Self::sorted(train, &held_out, settings, seed)
    }

    /// Uses an existing split.
    ///
    /// # Errors
    /// If no training sequence remains.
    pub fn given(train: &[Sample], held_out: &[Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        Self::sorted(train.iter().collect(), &held_out.iter().collect::<Vec<_>>(), settings, seed)
    }

    fn sorted(mut train: Vec<&Sample>, held_out: &[&Sample], settings: &Sft, seed: u64) -> Result<Self, TrainError> {
        // Held-out samples are not limited: losses of runs with different limits stay comparable.
        if let Some(limit) = settings.limit {
            let order = seeding::shuffled(train.len(), seeding::seed(seed, "limit", 0));
            train = order.into_iter().take(limit).map(|at| train[at]).collect();
        }
        let teaches =
            |masked: &MaskedSequence| masked.tokens.len() <= settings.longest && masked.sequence().targets() > 0;
        let mut dropped = 0;
        let mut keep = |samples: &[&Sample]| {
            let (kept, others): (Vec<MaskedSequence>, Vec<MaskedSequence>) =
                samples.iter().flat_map(|sample| MaskedSequence::views(sample)).partition(teaches);
            dropped += others.len();
            kept
        };
        let dataset = Self { train: keep(&train), held_out: keep(held_out), dropped: 0 };
        let dataset = Self { dropped, ..dataset };
        if dataset.train.is_empty() {
            let all = train.len();
            let aside = held_out.len();
            let longest = settings.longest;
            let why = match all {
                0 => format!("no sample to train on ({aside} held out): check the file, sft.limit and sft.held_out"),
                _ => format!("none of the {all} samples can be trained on: sft.longest = {longest} may be too short"),
            };
            return Err(TrainError::Nothing(why));
        }
        Ok(dataset)
    }
}
