//! Judgments of answers by a language model behind an OpenAI-compatible endpoint: ACC_L and G-E.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use waymark_index::{Complete, CompleteError, ModelMessage, ModelRole};

use super::row::EpisodeRow;
use super::verdict::Verdict;

/// Number of concurrent requests.
const CONCURRENT: usize = 8;

/// Number of attempts per request.
const ATTEMPTS: u32 = 4;

/// Maximum number of tokens of a reply.
const REPLY_TOKENS: u32 = 512;

/// Maximum number of characters of a trajectory that the judge reads. Longer ones lose their beginning, since the
/// answer is at the end.
const SHOWN: usize = 24_000;

/// Aspects of G-E (Graph-R1, `evaluation/eval_g.py`): one request each.
const ASPECTS: [(&str, &str); 7] = [
    ("comprehensiveness", "it covers all important aspects of the question"),
    ("knowledgeability", "it is rich in relevant and insightful knowledge"),
    ("correctness", "it is logical and agrees with the reference answers"),
    ("relevance", "it keeps to the question, without digressions"),
    ("diversity", "it looks at the question from several sides"),
    ("logical coherence", "its reasoning is ordered and follows step by step"),
    ("factuality", "its statements are factual and can be verified"),
];

/// Grade of a reply without a valid grade, as in Graph-R1's program.
const DEFAULT_GRADE: f64 = 5.0;

/// A judge of answers.
#[derive(Debug, Clone)]
pub struct Judge {
    model: Arc<dyn Complete>,
}

impl Judge {
    /// Creates a judge that asks `model`.
    pub fn new(model: Arc<dyn Complete>) -> Judge {
        Judge { model }
    }

    /// Fills in the verdicts of all rows. Blocks until all requests are answered; a metric is `None` if one of its
    /// requests fails.
    ///
    /// # Errors
    /// [`CompleteError::Refused`], after which every further request would fail too. No row has a verdict then.
    pub fn fill(&self, rows: &mut [EpisodeRow]) -> Result<(), CompleteError> {
        let next = AtomicUsize::new(0);
        let asked: &[EpisodeRow] = rows;
        let work = || -> Result<Vec<(usize, Verdict)>, CompleteError> {
            let mut verdicts = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(row) = asked.get(place) else { return Ok(verdicts) };
                // Every further request would fail too, so the other threads find no row left.
                let verdict = self.verdict(row).inspect_err(|_| next.store(asked.len(), Ordering::Relaxed))?;
                verdicts.push((place, verdict));
            }
        };
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..CONCURRENT).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let failed = || CompleteError::Refused("a thread of the judge panicked".to_owned());
        let done: Result<Vec<_>, CompleteError> =
            done.into_iter().map(|verdicts| verdicts.unwrap_or_else(|_| Err(failed()))).collect();
        // A mean over the rows that were judged before the refusal would be one over an arbitrary part of the questions.
        for (place, verdict) in done?.into_iter().flatten() {
            rows[place].verdict = Some(verdict);
        }
        Ok(())
    }

    fn verdict(&self, row: &EpisodeRow) -> Result<Verdict, CompleteError> {
        // An empty prediction counts as wrong without a request (GraphRAG-R1).
        let correct = match row.answer.as_deref().filter(|_| row.has_answer()) {
            None => Some(0.0),
            Some(answer) => self.ask(&alignment(row, answer))?.map(|reply| f64::from(u8::from(says_true(&reply)))),
        };
        let mut grades = Vec::new();
        for (aspect, meaning) in ASPECTS {
            grades.extend(self.ask(&grading(row, aspect, meaning))?.map(|reply| grade(&reply)));
        }
        // A mean over fewer aspects could not be compared with the others.
        let whole = grades.len() == ASPECTS.len();
        let quality = whole.then(|| grades.iter().sum::<f64>() / grades.len() as f64 / 10.0);
        Ok(Verdict { correct, quality })
    }

    /// Returns the reply to `text`. `None` if the model rejects it, or answers none of the attempts.
    fn ask(&self, text: &str) -> Result<Option<String>, CompleteError> {
        let message = ModelMessage { role: ModelRole::User, content: text.to_owned() };
        for attempt in 0..ATTEMPTS {
            match self.model.complete(std::slice::from_ref(&message), REPLY_TOKENS) {
                Ok(reply) => return Ok(Some(reply.text)),
                Err(CompleteError::Refused(message)) => return Err(CompleteError::Refused(message)),
                Err(CompleteError::Rejected(message)) => {
                    tracing::warn!(message, "the judge rejected a request");
                    return Ok(None);
                }
                Err(CompleteError::Transient { message, after }) => {
                    tracing::warn!(message, attempt, "the judge did not answer");
                    thread::sleep(after.unwrap_or(Duration::from_millis(200 << attempt)).min(Duration::from_secs(30)));
                }
            }
        }
        Ok(None)
    }
}

/// Request for ACC_L (GraphRAG-R1, `eval_online.py`). Accepted answers to yes-or-no questions may be `True` and
/// `False`.
fn alignment(row: &EpisodeRow, answer: &str) -> String {
    let golds: Vec<&str> = row
        .golds
        .iter()
        .map(|gold| match gold.as_str() {
            "True" => "yes",
            "False" => "no",
            gold => gold,
        })
        .collect();
    format!(
        "Given a question, its golden answer and a predicted answer, decide if the prediction agrees with the golden \
         answer in its meaning and in its key information. Respond with True if it does and with False if it does \
         not.\nQuestion: {}\nGolden answer: {}\nPredicted answer: {answer}\nTrue or False:",
        row.question,
        golds.join(" / "),
    )
}

/// Request for the grade of one aspect. The whole trajectory is judged, not only its answer.
fn grading(row: &EpisodeRow, aspect: &str, meaning: &str) -> String {
    let begin = row.text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
    format!(
        "Grade the {aspect} of a response to a question: to what degree {meaning}. The grade is an integer from 0 to \
         10, where 10 is best.\nQuestion: {}\nReference answers: {}\nResponse:\n{}\n\nExplain the grade in one \
         sentence, then write it between <score> and </score>.",
        row.question,
        row.golds.join(" / "),
        &row.text[begin..],
    )
}

fn says_true(reply: &str) -> bool {
    reply.to_lowercase().contains("true")
}

/// Returns the grade between the tags, from 0 to 10, or else [`DEFAULT_GRADE`].
fn grade(reply: &str) -> f64 {
    let inner = reply.split_once("<score>").and_then(|(_, rest)| rest.split_once("</score>"));
    let grade = inner.and_then(|(grade, _)| grade.trim().parse::<u8>().ok()).filter(|grade| *grade <= 10);
    grade.map_or(DEFAULT_GRADE, f64::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Barrier;

    use waymark_index::ModelReply;

    use super::*;

    /// Model that agrees with "Seine" and grades 8. One call in ten fails.
    #[derive(Debug, Default)]
    struct Fixed(AtomicUsize);

    impl Complete for Fixed {
        fn model(&self) -> &str {
            "fixed"
        }

        fn complete(&self, messages: &[ModelMessage], _max_tokens: u32) -> Result<ModelReply, CompleteError> {
            let text = &messages[0].content;
            if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(10) {
                let message = "later".to_owned();
                return Err(CompleteError::Transient { message, after: Some(Duration::ZERO) });
            }
            if text.contains("forbidden") {
                return Err(CompleteError::Refused("the key is wrong".to_owned()));
            }
            if text.contains("too long") {
                return Err(CompleteError::Rejected("too long".to_owned()));
            }
            let right = if text.contains("Predicted answer: Seine\n") { "True." } else { "False." };
            let text = if text.contains("<score>") { "Good. <score> 8 </score>" } else { right };
            Ok(ModelReply { text: text.to_owned(), cut: false })
        }
    }

    fn row(question: &str, answer: Option<&str>) -> EpisodeRow {
        EpisodeRow {
            question: question.to_owned(),
            answer: answer.map(str::to_owned),
            golds: vec!["Seine".to_owned()],
            ..EpisodeRow::default()
        }
    }

    #[test]
    fn verdicts_go_to_their_rows() {
        let judge = Judge::new(Arc::new(Fixed::default()));
        let mut rows: Vec<EpisodeRow> =
            (0..20).map(|place| row("Which river?", Some(if place % 3 == 0 { "Seine" } else { "Loire" }))).collect();
        rows.push(row("Which river?", None));
        rows.push(row("too long", Some("Seine")));
        judge.fill(&mut rows).unwrap();
        let verdict = |place: usize| rows[place].verdict.unwrap();
        for place in 0..20 {
            let correct = if place % 3 == 0 { 1.0 } else { 0.0 };
            assert_eq!(verdict(place), Verdict { correct: Some(correct), quality: Some(0.8) }, "{place}");
        }
        assert_eq!(verdict(20).correct, Some(0.0), "an empty answer is wrong");
        assert_eq!(verdict(21), Verdict::default(), "a rejected request has no verdict");
        let refused = judge.fill(&mut [row("forbidden", Some("Seine"))]).unwrap_err();
        assert_eq!(refused, CompleteError::Refused("the key is wrong".to_owned()));
    }

    /// Model that answers the first requests of all threads together, so that each thread has one of as many rows. It
    /// refuses the question "forbidden".
    #[derive(Debug)]
    struct Together {
        asked: AtomicUsize,
        barrier: Barrier,
    }

    impl Complete for Together {
        fn model(&self) -> &str {
            "together"
        }

        fn complete(&self, messages: &[ModelMessage], _max_tokens: u32) -> Result<ModelReply, CompleteError> {
            if self.asked.fetch_add(1, Ordering::Relaxed) < CONCURRENT {
                self.barrier.wait();
            }
            if messages[0].content.contains("forbidden") {
                return Err(CompleteError::Refused("moderated".to_owned()));
            }
            Ok(ModelReply { text: "True.".to_owned(), cut: false })
        }
    }

    /// Otherwise the scores of an arm would be means over the rows whose threads came before the refused one.
    #[test]
    fn a_refusal_leaves_no_verdicts() {
        // The refused row may fall to the first thread, but hardly in every run.
        for _ in 0..8 {
            let model = Together { asked: AtomicUsize::new(0), barrier: Barrier::new(CONCURRENT) };
            let mut rows = vec![row("Which river?", Some("Seine")); CONCURRENT];
            rows[CONCURRENT - 1].question = "forbidden".to_owned();
            let refused = Judge::new(Arc::new(model)).fill(&mut rows).unwrap_err();
            assert_eq!(refused, CompleteError::Refused("moderated".to_owned()));
            assert!(rows.iter().all(|row| row.verdict.is_none()), "{rows:?}");
        }
    }

    #[test]
    fn grades_are_read_as_in_the_reference() {
        for (reply, expected) in
            [("<score>7</score>", 7.0), ("a <score> 10 </score> b", 10.0), ("<score>11</score>", 5.0), ("7", 5.0)]
        {
            assert_eq!(grade(reply), expected, "{reply}");
        }
        assert!(says_true("TRUE") && !says_true("False"));
        let long = EpisodeRow { text: "é".repeat(SHOWN * 2), ..row("?", None) };
        assert!(grading(&long, "x", "y").chars().count() < SHOWN + 1000);
    }
}
