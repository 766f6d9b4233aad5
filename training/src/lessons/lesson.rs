//! Lesson of a supervised trajectory: a question, the hops to its answer, and the final step.

use super::rows::CorpusPassage;

/// Question with known hops to its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// ID of the question.
    pub question_id: String,
    /// Text of the question.
    pub question: String,
    /// Kind of the question: its data set's name for it, or the relation that it asks for. `None` if the data set names
    /// none, and for small talk.
    pub kind: Option<String>,
    /// Accepted answers. The first one is given.
    pub golds: Vec<String>,
    /// IDs of the passages that hold the answer.
    pub supporting: Vec<String>,
    /// If `true`, `supporting` is incomplete: other passages also hold the answer or are needed for it.
    pub partly: bool,
    /// Facts to find, in this order.
    pub hops: Vec<Hop>,
    /// Derivation of the answer from the hops.
    pub conclusion: Conclusion,
}

/// One fact to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Noun phrase for the needed fact.
    pub need: String,
    /// Subject of the fact.
    pub subject: String,
    /// Queries that may find the fact, best first.
    pub queries: Vec<String>,
    /// Answer, in words that must occur in the right passage.
    pub answer: String,
    /// Word prefixes, one of which must occur in the sentence with the answer. Empty if any sentence may hold it.
    pub cues: &'static [&'static str],
    /// Passages that may hold the answer.
    pub sources: Vec<CorpusPassage>,
    /// Form in which the finding is stated.
    pub finding_form: FindingForm,
}

/// Form in which a finding is stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingForm {
    /// States that the finding is the needed fact.
    Value,
    /// States that the finding leads to the next hop.
    Link,
    /// Only quotes the passage.
    Words,
}

/// Derivation of the answer from the findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The last finding is the answer.
    Last,
    /// The answer follows by this reasoning.
    Because(String),
}

impl Hop {
    /// Returns `true` if the hop is stated as a question and has no subject of its own.
    pub fn is_question(&self) -> bool {
        self.queries.first().is_some_and(|query| *query == self.subject)
    }
}
