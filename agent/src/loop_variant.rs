//! Variants of the loop: the server's, and the two of the reference.

use serde::{Deserialize, Serialize};

use super::loop_rules::{EvaluationRules, LoopRules, ServingRules, TrainingRules};

/// Variant of the loop around a protocol. All three agree on well-formed turns; they differ as follows:
///
/// | | serving | evaluation | training |
/// |---|---|---|---|
/// | end of a turn | the token that completes a closing tag | the same | the length limit or an end-of-sequence token; its text is then cut after the tag and encoded again |
/// | sampled ids | always kept | kept | kept as far as the new encoding agrees |
/// | tokens that count against the episode's limit | sampled ones | the same | kept ones |
/// | end-of-sequence token | ends the turn and stays in the sequence | the same | vanishes |
/// | action | an answer once one has begun, else the first complete pair of tags | a search wherever there is one | the first complete pair of tags |
/// | search in another form than the reference's | executed, if its meaning is clear | refused | refused |
/// | invalid turn that ends the episode | an answer is forced | no answer | no answer |
/// | after the rounds | one more turn, then an answer is forced | one more turn, if the reference has one | the same |
/// | sequence | grows in one session | the same | a new session per turn, which sees the last tokens of the context length; of the response the first tokens are kept |
/// | default format of evidence | as in evaluation: cut within its tags if too long | the same | as RouteRAG and Search-R1 train: stripped, and cut with its closing tag; for other protocols the same as in evaluation |
/// | passages | tags in them are sanitized | unmodified | unmodified |
/// | repeated search | answered from the episode | executed again | executed again |
///
/// When an episode has exhausted its rounds, the reference's evaluation answers with another prompt over other passages
/// (one-shot question answering). That is a different system, so such an episode ends without an answer here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopVariant {
    /// The serving loop, which is robust against malformed turns.
    #[default]
    Serving,
    /// The loop behind the reference's tables, with three differences that follow from one growing session: an
    /// end-of-sequence token stays in the sequence, sampled ids are never encoded again, and a budget may cut evidence
    /// and limits all turns together, where the references limit turns and rounds separately. For `search-r1` it is
    /// RouteRAG's loop, because Search-R1's own program for answering questions samples and has no limits.
    Evaluation,
    /// The loop in which the reference's policies were trained.
    Training,
}

impl LoopVariant {
    /// Returns the rules of the loop.
    pub(super) fn rules(self) -> &'static dyn LoopRules {
        match self {
            LoopVariant::Serving => &ServingRules,
            LoopVariant::Evaluation => &EvaluationRules,
            LoopVariant::Training => &TrainingRules,
        }
    }

    /// Returns `true` if each turn is sampled to its end, cut, and continued in a new session.
    pub fn is_training(self) -> bool {
        self == LoopVariant::Training
    }
}
