//! The tool `ask`: an episode, as `/v1/agent` runs it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::search::headed;
use super::{message, shape};
use crate::agent::{Cited, Reason};
use crate::api::agent::{self, AgentRequest, AgentResponse};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// What a model is told of the tool.
pub(super) const DESCRIPTION: &str = "Asks a language model of this server. One that was trained to search does so in \
                                      the corpus, as often as it needs to, and the passages that support its answer are \
                                      named.";

/// What it takes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The question, by itself: nothing that was said before is known.
    question: String,
    /// Which model answers; the first one when not given.
    #[schema(nullable = false)]
    model: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Answered {
    /// The answer, if there is one.
    #[schema(required)]
    answer: Option<String>,
    /// Why the model gives none, where it says that it can give none.
    #[schema(required)]
    refusal: Option<String>,
    /// The passages that support it, in the order of its text.
    citations: Vec<Cited>,
    /// Why it ended: `stop`, `length`, `turns`, `time` or `refused`.
    finish_reason: Reason,
    /// Searches made.
    searches: usize,
    /// The model.
    model: String,
    /// The id of what was written down about it (`GET /v1/traces/{id}`); null where nothing is kept.
    #[schema(required)]
    trace: Option<String>,
}

/// What it takes, with the names of the models, and what it gives.
pub(super) fn schemas(state: &AppState) -> Result<[Value; 2], ApiError> {
    let mut takes = shape::of::<Arguments>()?;
    if let Some(Value::Object(model)) = takes.pointer_mut("/properties/model") {
        let names: Vec<String> = state.policies.all().iter().map(|served| served.policy.name.clone()).collect();
        // Not all that there may be: policies come and go, and clients keep what they were told.
        model.insert("examples".to_owned(), json!(names));
    }
    Ok([takes, shape::of::<Answered>()?])
}

/// Runs an episode to its end; what came of it as a text, and as it is. It ends when the future is dropped.
pub(super) async fn call(
    state: &AppState,
    caller: &Caller,
    arguments: Option<Value>,
) -> Result<(String, Answered), ApiError> {
    let Arguments { question, model } = message::named("arguments", arguments)?;
    let request = AgentRequest { question, model, ..AgentRequest::default() };
    let response = agent::answer(state, caller, request).await?;
    let AgentResponse { id, model, answer, refusal, citations, finish_reason, searches, .. } = response;
    let trace = state.traces.get(&id).map(|_| id);
    let answered = Answered { answer, refusal, citations, finish_reason, searches, model, trace };
    Ok((text(&answered), answered))
}

/// The answer, what is to be known of its end, and the passages that support it, each once.
fn text(answered: &Answered) -> String {
    let short = match answered.finish_reason {
        Reason::Stop => "the model ended without one",
        Reason::Length => "the tokens were used up",
        Reason::Turns => "the rounds were used up",
        Reason::Time => "the time was used up",
        Reason::Refused => "the model can give none",
    };
    let mut text = match (&answered.answer, &answered.refusal) {
        (Some(answer), _) => answer.clone(),
        (None, Some(refusal)) => format!("There is no answer: {refusal}"),
        (None, None) => format!("There is no answer: {short}."),
    };
    if answered.answer.is_some() && matches!(answered.finish_reason, Reason::Length | Reason::Time) {
        text.push_str(&format!("\n\nThe answer is not complete: {short}."));
    }
    let mut seen: Vec<&str> = Vec::new();
    for cited in &answered.citations {
        if seen.contains(&cited.passage.as_str()) {
            continue;
        }
        text.push_str(if seen.is_empty() { "\n\nSources:" } else { "" });
        seen.push(&cited.passage);
        text.push_str(&format!("\n[{}] {}", seen.len(), headed(&cited.title, &cited.passage)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(answer: Option<&str>, refusal: Option<&str>, finish_reason: Reason, passages: &[&str]) -> Answered {
        let cited = |passage: &&str| Cited {
            start: 0,
            end: 1,
            passage: (*passage).to_owned(),
            title: format!("Title of {passage}"),
            stated: true,
        };
        Answered {
            answer: answer.map(str::to_owned),
            refusal: refusal.map(str::to_owned),
            citations: passages.iter().map(cited).collect(),
            finish_reason,
            searches: 1,
            model: "m".to_owned(),
            trace: None,
        }
    }

    #[test]
    fn a_text_says_what_came_of_it() {
        let of = |answer, refusal, reason, passages| text(&answered(answer, refusal, reason, passages));
        let sources = "Yes.\n\nSources:\n[1] Title of p2 (p2)\n[2] Title of p1 (p1)";
        assert_eq!(of(Some("Yes."), None, Reason::Stop, &["p2", "p1", "p2"]), sources);
        assert_eq!(
            of(Some("Ye"), None, Reason::Length, &[]),
            "Ye\n\nThe answer is not complete: the tokens were used up."
        );
        assert_eq!(of(None, Some("I cannot say."), Reason::Refused, &[]), "There is no answer: I cannot say.");
        assert_eq!(of(None, None, Reason::Turns, &[]), "There is no answer: the rounds were used up.");
    }
}
