//! IRCoT (Trivedi et al. 2023, §3): each sentence of a chain of thought is the query of the next search; a reader
//! answers from all that was found.

use waymark_agent::{AgentError, ConversationMessage, SessionSource};
use waymark_index::{Hit, Ranking, SearchOptions};

use super::baseline_run::{BaselineRun, assistant, system, user};
use super::reader;
use crate::evaluate::EpisodeRow;

/// Maximum number of sentences, as in the paper.
const SENTENCES: usize = 8;

/// Maximum number of passages in a prompt, as in the paper.
const PASSAGES: usize = 15;

/// Number of passages per search; the paper tries 2, 4, 6 and 8.
const PER_SEARCH: usize = 4;

/// Maximum number of tokens of a sentence.
const LIMIT: usize = 80;

/// Words that mark the last sentence.
const ENDING: &str = "answer is";

const INSTRUCTION: &str = "You reason over passages to answer a question that needs several steps. Write only the next \
sentence of the reasoning, never all of it at once. When you know the answer, the sentence begins with \"So the answer \
is:\".";

const EXAMPLE: &str = "Wikipedia Title: Neville A. Stanton\nNeville A. Stanton is a British professor of human factors \
and ergonomics at the University of Southampton.\n\nQuestion: When was Neville A. Stanton's employer founded?\nThought: ";

const EXAMPLE_REPLY: &str = "The employer of Neville A. Stanton is the University of Southampton.";

/// Alternates between sentences and searches, then reads.
pub(super) async fn answer<S: SessionSource>(mut run: BaselineRun<'_, S>) -> Result<EpisodeRow, AgentError> {
    let options = SearchOptions { k: Some(PER_SEARCH), ranking: Some(Ranking::Dense), ..SearchOptions::default() };
    let mut passages: Vec<Hit> = Vec::new();
    let mut thoughts = String::new();
    let mut query = run.question().to_owned();
    for _ in 0..SENTENCES {
        let found = run.search(&query, &options).await?;
        let before = passages.len();
        collect(&mut passages, found);
        run.show(&reader::shown(&passages[before..]))?;
        let messages = messages(run.question(), &passages);
        let reply = run.generate(&messages, &thoughts, &["\n"], LIMIT).await?;
        let sentence = first_sentence(&reply.text).to_owned();
        if sentence.is_empty() {
            break;
        }
        thoughts.push_str(&sentence);
        thoughts.push(' ');
        if sentence.to_lowercase().contains(ENDING) {
            break;
        }
        query = sentence;
    }
    // A sentence is cut off on purpose: only the reader's reply decides if the run is complete.
    run.forgive_cuts();
    reader::read(run, Some(&reader::shown(&passages))).await
}

/// Adds the passages that are not among `passages` yet, up to the limit.
fn collect(passages: &mut Vec<Hit>, found: Vec<Hit>) {
    for hit in found {
        if passages.len() < PASSAGES && passages.iter().all(|known| known.passage.id != hit.passage.id) {
            passages.push(hit);
        }
    }
}

fn messages(question: &str, passages: &[Hit]) -> Vec<ConversationMessage> {
    let task = format!("{}Question: {question}\nThought: ", reader::shown(passages));
    vec![system(INSTRUCTION), user(EXAMPLE), assistant(EXAMPLE_REPLY), user(task)]
}

/// Returns the text up to its first full stop, question or exclamation mark before white space. A full stop after a
/// single capital letter is an initial.
fn first_sentence(text: &str) -> &str {
    let text = text.trim();
    let mut ends = text.char_indices().filter(|&(at, c)| {
        let after = text[at + c.len_utf8()..].chars().next();
        let word = text[..at].rsplit(char::is_whitespace).next().unwrap_or("");
        let initial = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
        ".!?".contains(c) && after.is_none_or(char::is_whitespace) && !initial
    });
    ends.next().map_or(text, |(at, _)| &text[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_their_mark() {
        for (text, sentence) in [
            (" A b. C d.", "A b."),
            ("Neville A. Stanton works. Yes.", "Neville A. Stanton works."),
            ("In 3.5 km? Yes.", "In 3.5 km?"),
            ("no end", "no end"),
            ("", ""),
        ] {
            assert_eq!(first_sentence(text), sentence);
        }
    }
}
