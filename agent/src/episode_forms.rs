//! Constraints on the turns of an episode: the format of its answer and of its tool calls.

use std::sync::Arc;

use serde_json::Value;
use waymark_engine::Constraint;
use waymark_models::chat::Tool;
use waymark_models::grammar::OutputForm;

use super::AgentError;
use super::answer_format::{AnswerFormat, check_between};
use super::answer_opening::AnswerOpening;
use super::conversation::Conversation;
use super::either_form::EitherForm;
use super::generator::SessionSource;
use super::options::EpisodeOptions;
use super::policy::Policy;
use super::runtime::Runtime;
use super::tool_constraint::{CallForm, ToolConstraint};
use super::turn_openings::{TurnForm, TurnOpenings};

/// Output formats of an episode. A policy that does not search writes its calls in the answer. If a policy searches, a
/// call outside the answer ends the episode, and a required call takes the place of the answer.
#[derive(Debug, Clone, Default)]
pub(super) struct EpisodeForms {
    /// Format of the answer. `None` allows any.
    pub(super) answer: Option<AnswerFormat>,
    /// Constraint of a turn that is not guided. `None` allows any text.
    pub(super) turn: Option<TurnForm>,
    /// Constraint of a call in a guided turn, after its opening tag. `None` allows no call in a guided turn.
    pub(super) call: Option<Arc<dyn Constraint>>,
    /// Names of the tools whose call, outside the answer, ends the episode.
    pub(super) tools: Vec<String>,
    /// If `true`, the prompt offers tools, and no text from outside may spell their tags.
    pub(super) offers_tools: bool,
    /// If `true`, the answer is the JSON of a call.
    pub(super) answer_calls: bool,
}

impl EpisodeForms {
    /// Creates the formats that the options demand.
    ///
    /// # Errors
    /// [`AgentError::AnswerFormat`] and [`AgentError::Tool`] for unsupported schemas, [`AgentError::Option`] for tools
    /// in the training loop.
    pub(super) fn new<S: SessionSource>(
        runtime: &Runtime<S>,
        policy: &Policy,
        conversation: &Conversation,
        options: &EpisodeOptions,
        guided: bool,
    ) -> Result<EpisodeForms, AgentError> {
        let tools = conversation.tools();
        let in_answer = policy.protocol.calls();
        if !tools.is_empty() && !in_answer && policy.variant.is_training() {
            return Err(AgentError::Option { field: "tools", reason: "the training loop takes no tools" });
        }
        let demanded = !options.calls.is_empty();
        let answer = match &options.form {
            Some(form) => Some(shape(runtime, policy, form)?),
            None if !demanded => None,
            None if in_answer => Some(AnswerFormat::whole(Arc::new(call(runtime, tools, options)?))),
            None => Some(answer_call(runtime, policy, tools, options)?),
        };
        let free = !tools.is_empty() && !demanded;
        let strict = free && !options.strict.is_empty();
        let behind_tag = if strict || (free && guided) { Some(call(runtime, tools, options)?.opened()) } else { None };
        let behind_tag: Option<Arc<dyn Constraint>> = behind_tag.map(|rule| Arc::new(rule) as Arc<dyn Constraint>);
        let turn = match (&answer, behind_tag.clone().filter(|_| strict)) {
            (Some(format), _) if free && in_answer => {
                Some(TurnForm::Fixed(either(format, call(runtime, tools, options)?)))
            }
            (_, None) => answer.as_ref().map(|format| TurnForm::Fixed(Arc::clone(&format.turn))),
            (_, Some(rule)) => Some(TurnForm::Openings(openings(runtime, policy, answer.as_ref(), rule))),
        };
        let ending = free && !in_answer;
        let names = tools.iter().filter(|_| ending).map(|tool| tool.name.clone()).collect();
        let call = behind_tag.filter(|_| ending);
        let offers_tools = !tools.is_empty();
        Ok(EpisodeForms { answer, turn, call, tools: names, offers_tools, answer_calls: demanded && !in_answer })
    }
}

/// Returns the constraint of a turn that is, as a whole, either an answer in a required form, which cannot contain a
/// call, or a call.
fn either(format: &AnswerFormat, call: ToolConstraint) -> Arc<dyn Constraint> {
    Arc::new(EitherForm::new(vec![Arc::clone(&format.turn), Arc::new(call)]))
}

/// Returns the constraint of a turn in which an answer of the form `answer`, or a call that follows `rule`, may begin.
fn openings<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    answer: Option<&AnswerFormat>,
    rule: Arc<dyn Constraint>,
) -> TurnOpenings {
    let calls = AnswerOpening::of_call(runtime.call_marks(), rule, policy.protocol.tags());
    let answers = answer.and_then(|format| format.opening.clone());
    TurnOpenings::new(answers.into_iter().chain([calls]).collect())
}

/// Returns the constraints of answers that must have the form `form`.
fn shape<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    form: &OutputForm,
) -> Result<AnswerFormat, AgentError> {
    let around = runtime.around(&*policy.protocol);
    Ok(AnswerFormat::new(form, around, runtime.vocabulary()?, &runtime.eos)?)
}

/// Returns the tools that may be called.
fn callable<'a>(tools: &'a [Tool], options: &'a EpisodeOptions) -> impl Iterator<Item = &'a Tool> {
    tools.iter().filter(|tool| options.calls.is_empty() || options.calls.contains(&tool.name))
}

/// Returns the constraint of a call between its tags.
fn call<S: SessionSource>(
    runtime: &Runtime<S>,
    tools: &[Tool],
    options: &EpisodeOptions,
) -> Result<ToolConstraint, AgentError> {
    let strict = options.calls.is_empty().then_some(options.strict.as_slice());
    let form = CallForm { strict, tagged: true };
    ToolConstraint::new(callable(tools, options), form, runtime.vocabulary()?, runtime.tokenizer.table(), &runtime.eos)
}

/// Returns the constraints of answers that must be the JSON of a call.
fn answer_call<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    tools: &[Tool],
    options: &EpisodeOptions,
) -> Result<AnswerFormat, AgentError> {
    let around = runtime.around(&*policy.protocol);
    for tool in callable(tools, options) {
        let schema = tool.parameters.as_ref().unwrap_or(&Value::Null);
        check_between(schema, around.as_ref())
            .map_err(|reason| AgentError::Tool { name: tool.name.clone(), reason })?;
    }
    let form = CallForm { strict: None, tagged: false };
    let tokens = runtime.tokenizer.table();
    let rule = ToolConstraint::new(callable(tools, options), form, runtime.vocabulary()?, tokens, &runtime.eos)?;
    Ok(AnswerFormat::between(Arc::new(rule), around, &runtime.eos))
}
