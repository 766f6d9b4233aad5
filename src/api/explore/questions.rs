//! `/v1/index/questions`: questions that the index answers.

use axum::extract::RawQuery;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{ExampleQuestion, PassageName, QuestionFact};

use super::{broken, params};
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::indexes::IndexedState;

/// Default number of questions.
const DEFAULT_QUESTIONS: usize = 6;

/// Maximum number of questions.
const MAX_QUESTIONS: usize = 20;

/// Questions.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexQuestionList {
    /// Always `list`.
    pub object: &'static str,
    /// Snapshot that the questions were made from.
    pub snapshot: u64,
    /// Questions: first those that take two facts, then those that take one, then those about a title.
    pub data: Vec<IndexQuestion>,
}

/// Question whose answer the index holds.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexQuestion {
    /// Question, in English.
    pub question: String,
    /// Number of facts that it takes to answer the question. 0 for a question about a title.
    pub hops: usize,
    /// Facts that answer the question, in the order in which they follow each other.
    pub facts: Vec<IndexQuestionFact>,
    /// Passage whose title the question is about. Absent for a question made from facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passage: Option<IndexPassageName>,
}

/// Fact, as a passage states it.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexQuestionFact {
    /// Subject of the triple.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the triple.
    pub object: String,
    /// Passage that states the triple.
    pub passage: IndexPassageName,
}

/// ID and title of a passage.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexPassageName {
    /// ID of the passage.
    pub id: String,
    /// Title; may be empty.
    pub title: String,
}

/// Makes example questions from the facts of the index.
///
/// The same snapshot always gives the same questions. Only facts with well-known English relations give any; titles fill
/// up the list.
#[utoipa::path(get, path = "/v1/index/questions", operation_id = "exampleQuestions", tag = "index",
    params(
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
        ("limit" = Option<usize>, Query, description = "maximum number of questions, from 1 to 20; defaults to 6", minimum = 1, maximum = 20),
    ),
    responses(
        (status = 200, description = "the questions", body = IndexQuestionList),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn list(
    IndexedState(state): IndexedState,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<IndexQuestionList>, ApiError> {
    let index = state.library()?.live.current();
    let mut limit = DEFAULT_QUESTIONS;
    params::each(query.as_deref(), |name, value| match name {
        "limit" => params::number(name, value, 1..=MAX_QUESTIONS).map(|given| limit = given),
        name => Err(ApiError::unknown(name)),
    })?;
    run_blocking(move || {
        let questions = index.example_questions(limit).map_err(|error| broken(&error))?;
        let data = questions.into_iter().map(IndexQuestion::from).collect();
        Ok(axum::Json(IndexQuestionList { object: "list", snapshot: index.manifest().snapshot, data }))
    })
    .await
}

impl From<ExampleQuestion> for IndexQuestion {
    fn from(ExampleQuestion { question, facts, about }: ExampleQuestion) -> IndexQuestion {
        let hops = facts.len();
        let facts = facts.into_iter().map(IndexQuestionFact::from).collect();
        IndexQuestion { question, hops, facts, passage: about.map(IndexPassageName::from) }
    }
}

impl From<QuestionFact> for IndexQuestionFact {
    fn from(QuestionFact { triple, passage }: QuestionFact) -> IndexQuestionFact {
        let [subject, relation, object] = triple.into();
        IndexQuestionFact { subject, relation, object, passage: passage.into() }
    }
}

impl From<PassageName> for IndexPassageName {
    fn from(PassageName { id, title }: PassageName) -> IndexPassageName {
        IndexPassageName { id, title }
    }
}
