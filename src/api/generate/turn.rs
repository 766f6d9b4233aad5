//! A generation: its session is opened or continued, runs, and is parked.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use scopeguard::ScopeGuard;
use tokio::time::Instant;
use waymark_agent::{Generator, Steps};
use waymark_engine::{EngineError, Generate, Origin, TokenStep, TurnFinish};
use waymark_models::sampler::SamplingParams;
use waymark_runtime::fleet::{SourceSession, SourceTurn};

use super::plan::{GenerateHead, GeneratePlan};
use crate::api::auth::{Accounts, Caller};
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Maximum duration of a request. The client's loop has its own, shorter limit.
const LONGEST: Duration = Duration::from_secs(600);

/// Part of a generation.
#[derive(Debug)]
pub(super) enum GeneratedPart {
    /// Scores of all tokens of the sequence but the first.
    Prompt(Vec<TokenStep>),
    /// A sampled token.
    Token(TokenStep),
    /// End of the generation.
    End {
        finish: TurnFinish,
        /// Number of tokens of the sequence that were not computed again.
        cached: usize,
    },
}

/// Parts of a generation. The last one is its end or an error.
pub(super) type Generated = BoxStream<'static, Result<GeneratedPart, ApiError>>;

/// Starts a generation and waits for its first part, so a refused one gets an error status.
pub(super) async fn begin(
    state: &AppState,
    caller: &Caller,
    plan: GeneratePlan,
) -> Result<(GenerateHead, Generated), ApiError> {
    let GeneratePlan { shown, token_ids, spec, options, prompt_logprobs, session: name } = plan;
    check_length(token_ids.len(), state.runtime.engine.limit())?;
    caller.lifetime.end_by(Instant::now() + LONGEST + state.config.connection.send);
    let parked = state.parked.clone();
    let name = name.filter(|_| prompt_logprobs.is_none());
    if let Some(name) = &name {
        parked.settle(name, &token_ids).await;
    }
    let known = name.as_ref().and_then(|name| parked.take(&state.runtime.engine, name, options, &token_ids));
    // Engines elsewhere do not report what they kept. A parked session had computed all of its tokens but the last.
    let kept = known.as_ref().map(|session| session.len().saturating_sub(1));
    let session = known.unwrap_or_else(|| state.runtime.engine.session(options));
    let prompt = token_ids.len() - session.len();
    caller.accounts.count_tokens(prompt);
    let accounts = caller.accounts.clone();
    let caller = caller.clone();
    let parking = caller.clone();
    // Also parked if the client disconnects, because the client may have ended the turn by its own rules.
    let turn = name.map(|name| (parked.begin_turn(name.clone(), &token_ids), name));
    let mut session = scopeguard::guard(session, move |session| {
        if let Some((turn, name)) = turn {
            parked.put(name, options, session, &parking);
            // Dropped after the session is parked, because the next request may wait for it.
            drop(turn);
        }
    });
    let parts = async_stream::stream! {
        if let Some(top) = prompt_logprobs {
            match score(&mut session, &token_ids, top).await {
                Ok(steps) => yield Ok(GeneratedPart::Prompt(steps)),
                Err(error) => { yield Err(refusal(error)); return }
            }
        } else {
            let new = session.len();
            session.append(&token_ids[new..], Origin::Prompt, false);
        }
        let ended = 'turn: {
            let mut turn = match session.generate(spec).await {
                Ok(turn) => turn,
                Err(error) => break 'turn Err(error),
            };
            while let Some(step) = turn.next().await {
                match step {
                    Ok(step) => {
                        caller.accounts.count_tokens(1);
                        yield Ok(GeneratedPart::Token(step));
                    }
                    Err(error) => break 'turn Err(error),
                }
            }
            let reused = match &turn {
                // Measured, because other sessions may have taken the blocks of the parked one.
                SourceTurn::Engine(turn) => kept.map(|_| turn.reused_tokens()),
                SourceTurn::Fleet(_) => kept,
            };
            Ok((turn.finish(), reused))
        };
        let (finish, reused) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // Not parked, because the engine would refuse its next turn too.
                drop(ScopeGuard::into_inner(session));
                yield Err(refusal(error));
                return;
            }
        };
        let cached = reused.unwrap_or_else(|| session.cached_prompt_tokens());
        // Dropped before the end is sent, because the next request may come right after the end.
        drop(session);
        let unexplained = || ApiError::new(Code::Internal, "the generation ended without a reason");
        yield finish.map(|finish| GeneratedPart::End { finish, cached }).ok_or_else(unexplained);
    };
    Ok((shown, started(parts.boxed(), &accounts, prompt).await?))
}

/// Waits for the first part of a generation. The `prompt` tokens that were counted for it are taken back if the queue is
/// full, because the retries of a refused request would use up what its key may use.
async fn started(mut parts: Generated, accounts: &Accounts, prompt: usize) -> Result<Generated, ApiError> {
    let first = parts.next().await.transpose();
    if first.as_ref().is_err_and(|error| error.code == Code::QueueFull) {
        accounts.uncount_tokens(prompt);
    }
    Ok(stream::iter(first?.map(Ok)).chain(parts).boxed())
}

/// Checks that a sequence of this many tokens is not empty and leaves room to generate. The engine checks that as well,
/// but only after `score` has computed all tokens that fit.
fn check_length(tokens: usize, limit: usize) -> Result<(), ApiError> {
    if tokens == 0 {
        return Err(ApiError::invalid("token_ids", "`token_ids` must not be empty"));
    }
    if tokens >= limit { Err(refusal(EngineError::TooLong { tokens, limit })) } else { Ok(()) }
}

/// Puts `ids` into a new session and scores all of them but the first, with `top` alternatives each.
async fn score(session: &mut SourceSession, ids: &[u32], top: usize) -> Result<Vec<TokenStep>, EngineError> {
    let (first, rest) = ids.split_at(1);
    session.append(first, Origin::Prompt, false);
    let mut steps = Vec::with_capacity(rest.len());
    if rest.is_empty() {
        return Ok(steps);
    }
    let sampling = SamplingParams { top_logprobs: top, ..SamplingParams::greedy() };
    let spec =
        Generate { sampling, max_tokens: rest.len(), force: rest.to_vec(), ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(spec).await?;
    while let Some(step) = turn.next().await {
        steps.push(step?);
    }
    Ok(steps)
}

/// Names the field at fault as this route calls it.
fn refusal(error: EngineError) -> ApiError {
    let refusal = ApiError::from(error).renamed("messages", "token_ids");
    // The engine says in words which of the parameters it refuses.
    if refusal.code == Code::InvalidValue && refusal.param.is_none() {
        refusal.with_param("token_ids")
    } else {
        refusal
    }
}
