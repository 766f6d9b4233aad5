//! What a request means: whose weights write, what they continue, and how it is shown.

use std::sync::Arc;

use super::logprobs::Draft;
use super::request::{CompletionRequest, Prompt};
use crate::agent::{Conversation, EpisodeOptions, Policy, Usage};
use crate::api::body::within;
use crate::api::chunks::Head;
use crate::api::episodes::{self, Question};
use crate::api::error::{ApiError, Code};
use crate::api::knobs::{self, Knobs};
use crate::api::state::AppState;
use crate::api::usage::ChatUsage;

/// Tokens sampled where a request does not say, as in OpenAI's interface.
const MAX_TOKENS: usize = 16;

/// Most alternatives per token, as in OpenAI's interface.
const MAX_LOGPROBS: u32 = 5;

/// Most answers in all.
const MAX_ANSWERS: usize = 64;

/// A request that makes sense.
#[derive(Debug)]
pub(super) struct Plan {
    /// What stands in every chunk.
    pub(super) head: Head,
    /// The policy, without its protocol.
    pub(super) policy: Arc<Policy>,
    /// Answers per prompt.
    pub(super) n: usize,
    /// What each prompt's answers begin with.
    echoes: Vec<String>,
    pub(super) streams: bool,
    pub(super) include_usage: bool,
    logprobs: Option<usize>,
}

impl Plan {
    /// Checks everything about a request but what only the engine can know.
    pub(super) fn new(state: &AppState, request: CompletionRequest) -> Result<(Plan, Vec<Question>), ApiError> {
        let policy = state.policies.get(&request.model)?.verbatim.clone();
        let head = Head::new(state, &policy, episodes::id("cmpl"));
        let streams = knobs::streams(request.stream, request.stream_options.as_ref())?;
        let (n, logprobs) = (knobs::choices(request.n)?, logprobs(&request)?);
        let options = EpisodeOptions {
            id: Some(head.id.clone()),
            sampling: sampling(&request).sampling(state.runtime.engine.spec().vocab)?,
            seed: episodes::seed(request.seed),
            max_tokens: knobs::most_tokens("max_tokens", request.max_tokens)?.or(Some(MAX_TOKENS)),
            stop: knobs::stops(request.stop)?,
            logprobs,
            store: request.store,
            ..EpisodeOptions::default()
        };
        let prompts = prompts(state, request.prompt, n)?;
        knobs::note_user(request.user.as_deref());
        let echo = request.echo.unwrap_or(false);
        let text = |(text, _): &(String, _)| if echo { text.clone() } else { String::new() };
        let plan = Plan {
            head,
            policy,
            n,
            echoes: prompts.iter().map(text).collect(),
            streams,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            logprobs,
        };
        let question = |(text, prompt)| (Conversation::new(text), EpisodeOptions { prompt, ..options.clone() });
        Ok((plan, prompts.into_iter().map(question).collect()))
    }

    /// The answers before anything of them was written.
    pub(super) fn drafts(&self) -> Vec<Draft> {
        let echoes = self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo, self.n));
        echoes.map(|echo| Draft::new(echo.clone(), self.logprobs)).collect()
    }
}

/// What answers cost: of each prompt's `n` the prompt counts once.
pub(super) fn usage(spent: &[Option<Usage>], n: usize) -> ChatUsage {
    let mut all = ChatUsage::default();
    for prompt in spent.chunks(n) {
        let mut one = ChatUsage::default();
        prompt.iter().flatten().for_each(|usage| one.add(usage));
        all.join(&one);
    }
    // Nothing is thought here: what is not part of an answer ends it.
    all.completion_tokens_details.reasoning_tokens = 0;
    all
}

fn sampling(request: &CompletionRequest) -> Knobs<'_> {
    Knobs {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.as_ref(),
    }
}

fn logprobs(request: &CompletionRequest) -> Result<Option<usize>, ApiError> {
    let logprobs = within("logprobs", request.logprobs, 0, MAX_LOGPROBS)?;
    if logprobs.is_some() && request.echo == Some(true) {
        let message = "`logprobs` of a prompt are not computed here: leave out `echo`";
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("logprobs"));
    }
    Ok(logprobs.map(|top| top as usize))
}

/// A prompt as text, and as ids where it came so.
type Given = (String, Option<Vec<u32>>);

/// The prompts, none of them empty.
fn prompts(state: &AppState, prompt: Prompt, n: usize) -> Result<Vec<Given>, ApiError> {
    let vocab = state.runtime.engine.spec().vocab;
    let decoded = |ids: Vec<u32>| (state.runtime.tokenizer.decode(&ids), Some(ids));
    let prompts: Vec<_> = match prompt {
        Prompt::Text(text) => vec![(text, None)],
        Prompt::Texts(texts) => texts.into_iter().map(|text| (text, None)).collect(),
        Prompt::Ids(ids) => vec![decoded(ids)],
        Prompt::IdLists(lists) => lists.into_iter().map(decoded).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid("prompt", "`prompt` is empty"));
    }
    let answers = prompts.len().saturating_mul(n);
    if answers > MAX_ANSWERS {
        let message = format!("{answers} answers are asked for, {MAX_ANSWERS} at most");
        return Err(ApiError::invalid("prompt", message));
    }
    for (text, ids) in &prompts {
        let empty = ids.as_ref().map_or(text.is_empty(), Vec::is_empty);
        if empty {
            return Err(ApiError::invalid("prompt", "a prompt must not be empty"));
        }
        if let Some(id) = ids.iter().flatten().find(|id| **id as usize >= vocab) {
            return Err(ApiError::invalid("prompt", format!("`prompt`: {id} is no token id below {vocab}")));
        }
    }
    Ok(prompts)
}
