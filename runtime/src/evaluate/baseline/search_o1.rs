//! Search-o1 (Li et al. 2025): the model searches within its thought, and a second call reads what was found and writes
//! down what matters (Reason-in-Documents).

use std::collections::HashSet;

use waymark_agent::{AgentError, ConversationMessage, SessionSource};
use waymark_index::{Ranking, SearchOptions};

use super::baseline_run::{BaselineRun, user};
use super::reader;
use crate::evaluate::EpisodeRow;

/// Maximum number of searches: the limit of Search-o1's program for single-hop questions, and half of its limit for
/// multi-hop questions.
const SEARCHES: usize = 5;

/// Maximum number of turns, as in Search-o1's program. Turns that ask for a refused search count as well.
const TURNS: usize = 15;

/// Number of passages per search; Search-o1's program reads ten web pages.
const PASSAGES: usize = 5;

/// Maximum number of tokens between two searches.
const TURN: usize = 400;

/// Maximum number of tokens of a condensed result.
const CONDENSED: usize = 250;

const QUERY: (&str, &str) = ("<|begin_search_query|>", "<|end_search_query|>");

const RESULT: (&str, &str) = ("<|begin_search_result|>", "<|end_search_result|>");

/// Mark before the condensed result.
const FINAL: &str = "**Final Information**";

/// Thinks with searches until there is an answer.
pub(super) async fn answer<S: SessionSource>(mut run: BaselineRun<'_, S>) -> Result<EpisodeRow, AgentError> {
    let messages = [user(instruction(run.question()))];
    let mut written = String::new();
    let mut asked = HashSet::new();
    for _ in 0..TURNS {
        let turn = run.generate(&messages, &written, &[QUERY.1], TURN).await?;
        written.push_str(&turn.text);
        // A turn that the model or its limit ended has not closed its query.
        let Some(query) = query_in(&turn.text).filter(|_| turn.stopped) else { break };
        written.push_str(QUERY.1);
        let result = if asked.contains(query) {
            "You have searched this query before. See the earlier results.".to_owned()
        } else if asked.len() == SEARCHES {
            "The maximum number of searches is reached. You cannot search any more.".to_owned()
        } else {
            asked.insert(query.to_owned());
            condense(&mut run, query, &written).await?
        };
        written.push_str(&format!("\n\n{}{result}{}\n\n", RESULT.0, RESULT.1));
    }
    let answer = boxed(&written).map(str::to_owned);
    let marked = answer.is_some();
    Ok(run.finish(answer.as_deref(), marked))
}

/// Searches and lets the model write down what matters for its reasoning.
async fn condense<S: SessionSource>(
    run: &mut BaselineRun<'_, S>,
    query: &str,
    reasoning: &str,
) -> Result<String, AgentError> {
    let options = SearchOptions { k: Some(PASSAGES), ranking: Some(Ranking::Dense), ..SearchOptions::default() };
    let hits = run.search(query, &options).await?;
    let passages = reader::shown(&hits);
    run.show(&passages)?;
    let message = format!(
        "Read the passages and extract what helps the reasoning below to go on. Write it after {FINAL}. If nothing \
         helps, write \"{FINAL} No helpful information found.\"\n\nReasoning so far:\n{reasoning}\n\nSearch query: \
         {query}\n\nPassages:\n{passages}"
    );
    let messages: [ConversationMessage; 1] = [user(message)];
    let reply = run.generate(&messages, "", &[], CONDENSED).await?;
    run.forgive_cuts();
    let text = reply.text.rsplit_once(FINAL).map_or(reply.text.as_str(), |(_, after)| after);
    Ok(text.trim().to_owned())
}

fn instruction(question: &str) -> String {
    format!(
        "You are a reasoning assistant that can search to answer the user's question. To search, write {} your query \
         {}. The system then searches, reads the results, and writes what helps between {} and {}. You may search \
         several times, at most {SEARCHES} times. Once you know enough, go on reasoning.\n\nExample:\nQuestion: \"Who got \
         the first Nobel Prize in Physics?\"\nI have to find out who won it.\n{}first Nobel Prize in Physics \
         winner{}\n\n(The system writes the results here.)\n\nI can go on with this information.\n\nThink step by step. \
         Give the final answer in the form \\boxed{{YOUR_ANSWER}}.\n\nQuestion:\n{question}\n\n",
        QUERY.0, QUERY.1, RESULT.0, RESULT.1, QUERY.0, QUERY.1,
    )
}

/// Returns the query at the end of a turn that stopped at a query's end.
fn query_in(turn: &str) -> Option<&str> {
    turn.rsplit_once(QUERY.0).map(|(_, query)| query.trim()).filter(|query| !query.is_empty())
}

/// Returns the answer in the last complete `\boxed{…}`, which may stand in `\text{…}` there or, as a choice does, in
/// parentheses.
fn boxed(text: &str) -> Option<&str> {
    let content = last_group(text, "\\boxed{")?;
    let answer = last_group(content, "\\text{").unwrap_or(content);
    Some(answer.trim_matches(['(', ')']))
}

/// Returns the content of the last complete group in braces that `open` begins.
fn last_group<'t>(text: &'t str, open: &str) -> Option<&'t str> {
    let mut starts: Vec<usize> = text.match_indices(open).map(|(at, _)| at + open.len()).collect();
    starts.reverse();
    starts.into_iter().find_map(|start| {
        let mut depth = 1;
        let end = text[start..].char_indices().find(|&(_, c)| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        end.map(|(length, _)| text[start..start + length].trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_box_is_the_answer() {
        for (text, answer) in [
            ("so \\boxed{Paris}.", Some("Paris")),
            ("\\boxed{a} and \\boxed{\\text{b}}", Some("b")),
            ("\\boxed{\\text{Ann Lee}}", Some("Ann Lee")),
            ("\\boxed{\\text{a {b}}}", Some("a {b}")),
            ("\\boxed{(A)}", Some("A")),
            ("\\boxed{a} and \\boxed{b", Some("a")),
            ("boxed{a}", None),
        ] {
            assert_eq!(boxed(text), answer, "{text}");
        }
    }

    #[test]
    fn a_query_is_read_from_its_last_tag() {
        assert_eq!(query_in("x <|begin_search_query|> Seine river "), Some("Seine river"));
        assert_eq!(query_in("x"), None);
        assert_eq!(query_in("<|begin_search_query|> "), None);
    }
}
