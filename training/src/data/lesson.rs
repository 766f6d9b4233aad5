//! What a supervised trajectory teaches: a question, the hops that lead to its answer, and how the answer follows.

use super::question::Document;

/// A question whose way to the answer is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// The question's id.
    pub question_id: String,
    /// The question.
    pub question: String,
    /// Answers that count as right; the first is the one given.
    pub golds: Vec<String>,
    /// Ids of the passages that hold the answer.
    pub supporting: Vec<String>,
    /// What must be found, in this order.
    pub hops: Vec<Hop>,
    /// How the answer follows from it.
    pub close: Close,
}

/// One thing to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// What is needed, as a noun phrase.
    pub need: String,
    /// What it is about.
    pub subject: String,
    /// Queries that may find it, the best first.
    pub queries: Vec<String>,
    /// What the right passage says, in words that must stand in it.
    pub answer: String,
    /// Beginnings of words, one of which must stand in the sentence that says it; none where any sentence may.
    pub cues: &'static [&'static str],
    /// The passages that may say it.
    pub sources: Vec<Document>,
    /// How it is told once it is found.
    pub tells: Tells,
}

/// How a finding is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    /// That it is what was needed.
    Value,
    /// That it leads to what is looked for next.
    Link,
    /// In the passage's words alone.
    Words,
}

/// How the answer follows from what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Close {
    /// It is what was found last.
    Last,
    /// By this reasoning.
    Because(String),
}

impl Hop {
    /// Whether it is put as a question of its own, and names no subject.
    pub fn is_question(&self) -> bool {
        self.queries.first().is_some_and(|query| *query == self.subject)
    }
}
