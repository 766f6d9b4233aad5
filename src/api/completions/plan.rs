//! Validation of a completion request: its policy, prompts, options and number of answers.

use std::sync::Arc;

use waymark_agent::{AgentError, Conversation, EpisodeOptions, Policy, Usage};
use waymark_engine::Priority;

use super::logprobs::CompletionBuilder;
use super::request::{CompletionRequest, PromptInput};
use crate::api::body::within;
use crate::api::chunks::CompletionHead;
use crate::api::episodes::{self, EpisodeRequest};
use crate::api::error::{ApiError, Code};
use crate::api::sampling_params::{self, RequestSampling};
use crate::api::state::AppState;
use crate::api::usage::ChatUsage;
use crate::api::vllm_options::{EndFields, FormFields};

/// Default of `max_tokens`, as in OpenAI's interface.
const MAX_TOKENS: usize = 16;

/// Maximum number of alternatives per token, as in OpenAI's interface.
const MAX_LOGPROBS: u32 = 5;

/// Maximum number of answers to all prompts.
const MAX_ANSWERS: usize = 64;

/// Validated completion request.
#[derive(Debug)]
pub(super) struct CompletionPlan {
    /// Fields shared by all chunks.
    pub(super) head: CompletionHead,
    /// The policy, without its protocol.
    pub(super) policy: Arc<Policy>,
    /// Number of answers per prompt.
    pub(super) n: usize,
    /// Text echoed at the beginning of each prompt's answers.
    echoes: Vec<String>,
    pub(super) streams: bool,
    pub(super) include_usage: bool,
    logprobs: Option<usize>,
    /// Path of the field that gives the form of the answers, if one does.
    form_param: Option<&'static str>,
}

impl CompletionPlan {
    /// Validates everything about a request that does not need the engine.
    pub(super) fn new(
        state: &AppState,
        request: CompletionRequest,
    ) -> Result<(CompletionPlan, Vec<EpisodeRequest>), ApiError> {
        // Completions continue the prompt as it is, so the protocol of the policy must not touch it.
        let policy = state.policy(&request.model)?.verbatim.clone();
        let head = CompletionHead::new(state, &policy, episodes::id("cmpl"));
        let streams = sampling_params::streams(request.stream, request.stream_options.as_ref())?;
        let n = sampling_params::choices(request.n)?;
        let logprobs = logprobs(&request)?;
        let seed = request.seed;
        let mut options = EpisodeOptions {
            id: Some(head.id.clone()),
            sampling: sampling(&request).sampling(state.runtime.engine.spec().vocab)?,
            max_tokens: sampling_params::most_tokens("max_tokens", request.max_tokens)?.or(Some(MAX_TOKENS)),
            stop: sampling_params::stops("stop", request.stop, sampling_params::MAX_STOPS)?,
            logprobs,
            store: request.store,
            priority: request.priority.map(Priority::from),
            ..EpisodeOptions::default()
        };
        let fields = FormFields {
            structured_outputs: request.structured_outputs,
            guided_json: request.guided_json,
            guided_regex: request.guided_regex,
            guided_choice: request.guided_choice,
            guided_grammar: request.guided_grammar,
        };
        let (form_param, form) = fields.form(None)?.unzip();
        options.form = form;
        let ends = EndFields {
            stop_token_ids: request.stop_token_ids,
            ignore_eos: request.ignore_eos,
            min_tokens: request.min_tokens,
        };
        ends.apply(&policy, state.runtime.engine.spec().vocab, &mut options)?;
        let prompts = prompts(state, request.prompt, n)?;
        sampling_params::note_user(request.user.as_deref());
        let echo = request.echo.unwrap_or(false);
        let text = |(text, _): &(String, _)| if echo { text.clone() } else { String::new() };
        let plan = CompletionPlan {
            head,
            policy,
            n,
            echoes: prompts.iter().map(text).collect(),
            streams,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            logprobs,
            form_param,
        };
        let episode_request = |(text, prompt)| EpisodeRequest {
            conversation: Conversation::new(text),
            // Without a seed, a prompt that is repeated must not get the same answers again.
            options: EpisodeOptions { prompt, seed: episodes::seed(seed), ..options.clone() },
        };
        Ok((plan, prompts.into_iter().map(episode_request).collect()))
    }

    /// Replaces the field in an error about the form of the answers with the field that the request used.
    pub(super) fn of_form(&self, error: ApiError) -> ApiError {
        match self.form_param {
            Some(param) => error.renamed("response_format", param),
            None => error,
        }
    }

    /// Creates the answers, all still empty.
    pub(super) fn drafts(&self) -> Vec<CompletionBuilder> {
        let echoes = self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo, self.n));
        echoes.map(|echo| CompletionBuilder::new(echo.clone(), self.logprobs)).collect()
    }
}

/// Adds up the usage of the answers. A prompt counts once, not for each of its `n` answers.
pub(super) fn usage(spent: &[Option<Usage>], n: usize) -> ChatUsage {
    let mut all = ChatUsage::default();
    // The answers to one prompt are next to each other, as `drafts` makes them.
    for prompt in spent.chunks(n) {
        let mut one = ChatUsage::default();
        prompt.iter().flatten().for_each(|usage| one.add(usage));
        all.join(&one);
    }
    all
}

fn sampling(request: &CompletionRequest) -> RequestSampling<'_> {
    RequestSampling {
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

/// Prompt as text, and as token IDs if the client sent IDs.
type CompletionPrompt = (String, Option<Vec<u32>>);

/// Decodes a prompt of token IDs. A prompt that cannot fit is refused first, because its text may be a hundred times as
/// long.
fn decoded(state: &AppState, ids: Vec<u32>) -> Result<CompletionPrompt, ApiError> {
    let limit = state.runtime.engine.limit();
    if ids.len() >= limit {
        return Err(ApiError::from(AgentError::TooLong { tokens: ids.len(), limit }).with_param("prompt"));
    }
    Ok((state.runtime.tokenizer.decode(&ids), Some(ids)))
}

/// Returns the prompts, checked to be non-empty.
fn prompts(state: &AppState, prompt: PromptInput, n: usize) -> Result<Vec<CompletionPrompt>, ApiError> {
    let vocab = state.runtime.engine.spec().vocab;
    let prompts: Vec<_> = match prompt {
        PromptInput::Text(text) => vec![(text, None)],
        PromptInput::Texts(texts) => texts.into_iter().map(|text| (text, None)).collect(),
        PromptInput::Ids(ids) => vec![decoded(state, ids)?],
        PromptInput::IdLists(lists) => lists.into_iter().map(|ids| decoded(state, ids)).collect::<Result<_, _>>()?,
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid("prompt", "`prompt` is empty"));
    }
    let answers = prompts.len().saturating_mul(n);
    if answers > MAX_ANSWERS {
        let message = format!("{answers} answers requested, the maximum is {MAX_ANSWERS}");
        return Err(ApiError::invalid("prompt", message));
    }
    for (text, ids) in &prompts {
        // IDs may have no text, such as an end token alone, and are a prompt all the same.
        let empty = ids.as_ref().map_or(text.is_empty(), Vec::is_empty);
        if empty {
            return Err(ApiError::invalid("prompt", "a prompt must not be empty"));
        }
        if let Some(id) = ids.iter().flatten().find(|id| **id as usize >= vocab) {
            return Err(ApiError::invalid("prompt", format!("`prompt`: {id} is not a token ID below {vocab}")));
        }
    }
    Ok(prompts)
}
