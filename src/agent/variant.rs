//! Which loop is run: the server's, or one of the reference's two.

use serde::{Deserialize, Serialize};

use super::protocol::Reading;

/// The three loops around a protocol. They agree on well-formed turns; this is where they differ:
///
/// | | serving | evaluation | training |
/// |---|---|---|---|
/// | a turn ends | with the token that completes a closing tag | the same | at its length or an end-of-sequence token; its text is then cut after the tag and encoded again |
/// | sampled ids | kept, always | kept | kept where the new encoding agrees |
/// | counts against the episode's tokens | what is sampled | the same | what is kept of it |
/// | an end-of-sequence token | ends the turn and stays in the sequence | the same | vanishes |
/// | action | an answer once one is begun, else the first complete pair of tags | a search wherever there is one | the first complete pair of tags |
/// | a search in another form than the reference's | made, where it is clear what is meant | refused | refused |
/// | a turn that ends the episode by asking for nothing | an answer is forced | no answer | no answer |
/// | after the rounds | one more turn, then an answer is forced | one more turn, where the reference has one | the same |
/// | sequence | grows in one session | the same | a new session per turn, which sees the last tokens of the context length; of the response the first ones are kept |
/// | evidence, where a policy does not say | as in evaluation: cut within its tags where it is too long | the same | as RouteRAG and Search-R1 train: stripped, and cut with its closing tag; of other protocols the same |
/// | passages | tags in them are neutralised | as they are | as they are |
/// | repeated search | from the episode | made again | made again |
///
/// The reference's evaluation answers an episode that has used up its rounds by another prompt over other passages
/// (one-shot question answering). That is another system, so here such an episode ends without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// What is good for people.
    #[default]
    Serving,
    /// What the reference's tables were made with, but for three things that follow from one growing session: an
    /// end-of-sequence token stays in the sequence, sampled ids are never encoded again, and a budget may cut evidence and
    /// bounds all turns together, where the references bound a turn and the rounds alone. That of `search-r1` is RouteRAG's: the
    /// program that Search-R1 answers questions with samples, and has no bounds.
    Evaluation,
    /// What the reference's policies were trained in.
    Training,
}

impl Variant {
    /// How actions are read.
    pub fn reading(self) -> Reading {
        match self {
            Variant::Serving => Reading::Lenient,
            Variant::Training => Reading::First,
            Variant::Evaluation => Reading::SearchFirst,
        }
    }

    /// Whether each turn is sampled to its end, cut, and continued in a new session.
    pub fn cuts(self) -> bool {
        self == Variant::Training
    }

    /// Whether an answer is forced, unfinished answers count, passages are neutralised and searches remembered.
    pub fn serves(self) -> bool {
        self == Variant::Serving
    }
}
