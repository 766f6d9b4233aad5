//! The reader of passages: one call that thinks, then answers, with one example as in HippoRAG's `rag_qa_musique`.

use waymark_agent::{AgentError, ConversationMessage, SessionSource};
use waymark_index::Hit;

use super::baseline_run::{BaselineRun, assistant, system, user};
use crate::evaluate::EpisodeRow;

/// Maximum number of tokens of a thought with its answer.
const LIMIT: usize = 300;

const WITH_PASSAGES: &str = "You read passages carefully to answer questions. Begin with \"Thought: \", where you \
reason step by step from the passages. End with \"Answer: \" and a short, definite answer without further details.";

const WITHOUT_PASSAGES: &str = "You answer questions. Begin with \"Thought: \", where you reason step by step. End with \
\"Answer: \" and a short, definite answer without further details.";

/// Example passages. Their question needs two of the three.
const EXAMPLE_PASSAGES: &str = "Wikipedia Title: Southampton\nThe University of Southampton was founded in 1862 and \
received its royal charter as a university in 1952.\n\nWikipedia Title: Stanton Township, Champaign County, \
Illinois\nStanton Township is a township in Champaign County, Illinois. As of the 2010 census, its population was \
505.\n\nWikipedia Title: Neville A. Stanton\nNeville A. Stanton is a British professor of human factors and ergonomics \
at the University of Southampton.\n\n";

const EXAMPLE_QUESTION: &str = "Question: When was Neville A. Stanton's employer founded?\nThought: ";

const EXAMPLE_REPLY: &str = "The employer of Neville A. Stanton is the University of Southampton. The University of \
Southampton was founded in 1862.\nAnswer: 1862.";

/// Formats passages as the reader sees them.
pub(super) fn shown(hits: &[Hit]) -> String {
    hits.iter().map(|hit| format!("Wikipedia Title: {}\n{}\n\n", hit.passage.title, hit.passage.text)).collect()
}

/// Answers the question from `passages`, formatted by [`shown`]. `None` answers without passages.
pub(super) async fn read<S: SessionSource>(
    mut run: BaselineRun<'_, S>,
    passages: Option<&str>,
) -> Result<EpisodeRow, AgentError> {
    let messages = messages(run.question(), passages);
    let reply = run.generate(&messages, "", &[], LIMIT).await?;
    let (answer, marked) = extract(&reply.text);
    Ok(run.finish(Some(answer), marked))
}

fn messages(question: &str, passages: Option<&str>) -> Vec<ConversationMessage> {
    let (instruction, example) =
        if passages.is_some() { (WITH_PASSAGES, EXAMPLE_PASSAGES) } else { (WITHOUT_PASSAGES, "") };
    vec![
        system(instruction),
        user(format!("{example}{EXAMPLE_QUESTION}")),
        assistant(EXAMPLE_REPLY),
        user(format!("{}Question: {question}\nThought: ", passages.unwrap_or_default())),
    ]
}

/// Returns the text between the first and the second `Answer:`, as HippoRAG does (`split('Answer:')[1]`), and `true`.
/// Without `Answer:`, returns the whole reply and `false`.
fn extract(reply: &str) -> (&str, bool) {
    match reply.split("Answer:").nth(1) {
        Some(answer) => (answer.trim(), true),
        None => (reply.trim(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_extracted_as_hipporag_does() {
        assert_eq!(extract("It flows.\nAnswer: Seine. \n"), ("Seine.", true));
        assert_eq!(extract("Answer: a Answer: b"), ("a", true));
        assert_eq!(extract(" the Seine "), ("the Seine", false));
    }

    #[test]
    fn the_question_comes_last() {
        let texts =
            |passages| messages("Who?", passages).into_iter().map(|message| message.content).collect::<Vec<_>>();
        assert!(texts(Some("Wikipedia Title: A\nB\n\n"))[3].ends_with("A\nB\n\nQuestion: Who?\nThought: "));
        assert!(!texts(None).concat().contains("Wikipedia"));
    }
}
