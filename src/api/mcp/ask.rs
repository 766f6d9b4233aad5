//! The tool `ask`: runs an episode, like `/v1/agent`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_agent::{Cited, EpisodeEnd};

use super::search::title_and_id;
use super::{json_schema, message};
use crate::api::agent::{self, AgentRequest, AgentResponse};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::state::AppState;

/// Description of the tool for models.
pub(super) const DESCRIPTION: &str = "Asks a language model of this server. A model that was trained to search \
                                      searches the corpus as often as it needs to, and the answer names the \
                                      passages that support it.";

/// Arguments of the tool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AskArguments {
    /// Question to answer, complete in itself: earlier questions are not known.
    question: String,
    /// Model that answers; defaults to the first one.
    #[schema(nullable = false)]
    model: Option<String>,
}

/// Result of the tool.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AskOutput {
    /// Answer, if there is one.
    #[schema(required)]
    answer: Option<String>,
    /// Reason the model gives for having no answer, if it refuses.
    #[schema(required)]
    refusal: Option<String>,
    /// Passages that support the answer, in the order of its text.
    citations: Vec<Cited>,
    /// Reason the episode ended: `stop`, `length`, `turns`, `time` or `refused`.
    finish_reason: EpisodeEnd,
    /// Number of searches.
    searches: usize,
    /// Name of the model.
    model: String,
    /// ID of the episode's trace (`GET /v1/traces/{id}`). Null if none is kept.
    #[schema(required)]
    trace: Option<String>,
}

/// Returns the input schema, with the names of the models, and the output schema.
pub(super) fn schemas(state: &AppState) -> Result<[Value; 2], ApiError> {
    let mut takes = json_schema::of::<AskArguments>()?;
    if let Some(Value::Object(model)) = takes.pointer_mut("/properties/model") {
        let names: Vec<String> = state.policies.all().iter().map(|served| served.policy.name.clone()).collect();
        // Examples rather than an enum: policies come and go while clients cache the schema.
        model.insert("examples".to_owned(), json!(names));
    }
    Ok([takes, json_schema::of::<AskOutput>()?])
}

/// Runs an episode to its end. Returns its result as text and structured. Dropping the future cancels the episode.
pub(super) async fn call(
    state: &AppState,
    caller: &Caller,
    arguments: Option<Value>,
) -> Result<(String, AskOutput), ApiError> {
    let AskArguments { question, model } = message::named("arguments", arguments)?;
    let request = AgentRequest { question, model, ..AgentRequest::default() };
    let response = agent::answer(state, caller, request).await?;
    let AgentResponse { id, model, answer, refusal, citations, finish_reason, searches, .. } = response;
    // Traces may be disabled, or this one may be too large, so it is only named if it is stored.
    let trace = state.traces.holds(&id).then_some(id);
    let answered = AskOutput { answer, refusal, citations, finish_reason, searches, model, trace };
    Ok((text(&answered), answered))
}

/// Formats the answer, the reason it is missing or incomplete, and the supporting passages without duplicates.
fn text(answered: &AskOutput) -> String {
    let short = match answered.finish_reason {
        EpisodeEnd::Stop => "the model ended without an answer",
        EpisodeEnd::Length => "the token limit was reached",
        EpisodeEnd::Turns => "the turn limit was reached",
        EpisodeEnd::Time => "the time limit was reached",
        EpisodeEnd::Refused => "the model refused to answer",
        EpisodeEnd::Called => "the model called a tool",
    };
    let mut text = match (&answered.answer, &answered.refusal) {
        (Some(answer), _) => answer.clone(),
        (None, Some(refusal)) => format!("There is no answer: {refusal}"),
        (None, None) => format!("There is no answer: {short}."),
    };
    if answered.answer.is_some() && matches!(answered.finish_reason, EpisodeEnd::Length | EpisodeEnd::Time) {
        text.push_str(&format!("\n\nThe answer is not complete: {short}."));
    }
    let mut seen: Vec<&str> = Vec::new();
    for cited in &answered.citations {
        if seen.contains(&cited.passage.as_str()) {
            continue;
        }
        text.push_str(if seen.is_empty() { "\n\nSources:" } else { "" });
        seen.push(&cited.passage);
        text.push_str(&format!("\n[{}] {}", seen.len(), title_and_id(&cited.title, &cited.passage)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(
        answer: Option<&str>,
        refusal: Option<&str>,
        finish_reason: EpisodeEnd,
        passages: &[&str],
    ) -> AskOutput {
        let cited = |passage: &&str| Cited {
            start: 0,
            end: 1,
            passage: (*passage).to_owned(),
            title: format!("Title of {passage}"),
            stated: true,
        };
        AskOutput {
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
        assert_eq!(of(Some("Yes."), None, EpisodeEnd::Stop, &["p2", "p1", "p2"]), sources);
        assert_eq!(
            of(Some("Ye"), None, EpisodeEnd::Length, &[]),
            "Ye\n\nThe answer is not complete: the token limit was reached."
        );
        assert_eq!(of(None, Some("I cannot say."), EpisodeEnd::Refused, &[]), "There is no answer: I cannot say.");
        assert_eq!(of(None, None, EpisodeEnd::Turns, &[]), "There is no answer: the turn limit was reached.");
    }
}
