//! A generation elsewhere: attempts, one after another, until the turn ends.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;
use waymark_agent::{Resumption, Steps};
use waymark_engine::{EngineError, Generate, Token, TokenStep, TurnFinish};

use super::attempt::{Attempt, AttemptEnd, AttemptPart, AttemptRequest};
use super::constrained::ConstraintRun;
use super::engine::{EngineFacts, RemoteEngine};
use super::fault::{Fault, FaultKind};
use super::judge::TurnJudge;
use super::reply::ReplyUsage;
use super::request::TokenRequest;
use super::scoring::ScoreRequest;
use super::session::RemoteSession;

/// Number of consecutive attempts without a token after which a turn fails.
const MOST_FRUITLESS: u32 = 3;

/// Pause before the second attempt; doubles with each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// Distance of the seeds of two attempts, per sampled token: the rest of a turn must not repeat the random numbers of
/// its beginning.
const SEED_STRIDE: u64 = 0xd1b5_4a32_d192_ed03;

/// Distance of the seeds of a correcting attempt and of the attempt that it corrects. Both begin at the same token if
/// the first token of an attempt is withdrawn, and would draw it by the same random number, whose distribution is no
/// longer uniform: it has chosen a token that is not allowed.
const CORRECTION_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generation. Dropping it closes the socket, which stops the engine; the session keeps the delivered tokens.
#[derive(Debug)]
pub struct RemoteTurn<'a> {
    session: &'a mut RemoteSession,
    spec: Generate,
    judge: TurnJudge,
    /// Progress of the constraint. `None` before the first token, and without a constraint.
    constraint: Option<ConstraintRun>,
    /// Last delivered token, while the constraint has not accepted it.
    unaccepted: Option<u32>,
    attempt: Option<Attempt>,
    /// If `true`, the attempt samples one token from those that the constraint allows.
    correcting: bool,
    /// Tokens received and not delivered yet.
    ready: VecDeque<TokenStep>,
    finish: Option<TurnFinish>,
    /// If `true`, the token counts of the last attempt are recorded.
    accounted: bool,
    /// If `true`, the turn has failed.
    failed: bool,
    fruitless: u32,
    /// If `true`, the engine has passed its check for the current attempt, so that a failure is that of a request of this
    /// turn.
    checked: bool,
    /// URLs of the engines at which a request of this turn has broken since the last token.
    broken_at: BTreeSet<String>,
    resumptions: VecDeque<Resumption>,
    /// Permit to use the engines. `None` while a later turn of a session waits for one.
    permit: Option<OwnedSemaphorePermit>,
}

/// Engine that is ready for a request of the session.
struct PreparedEngine {
    engine: Arc<RemoteEngine>,
    facts: EngineFacts,
    /// Name of the model there.
    model: String,
}

impl<'a> RemoteTurn<'a> {
    /// Creates a generation that sends its request when it is asked for a token. Without a permit, it waits for one
    /// first.
    pub(super) fn new(session: &'a mut RemoteSession, spec: Generate, permit: Option<OwnedSemaphorePermit>) -> Self {
        let fleet = &session.fleet;
        fleet.counters.turns_total.add(1);
        let judge = TurnJudge::new(fleet.tokenizer.table(), fleet.spec.limit());
        Self {
            session,
            spec,
            judge,
            constraint: None,
            unaccepted: None,
            attempt: None,
            correcting: false,
            ready: VecDeque::new(),
            finish: None,
            accounted: false,
            failed: false,
            fruitless: 0,
            checked: false,
            broken_at: BTreeSet::new(),
            resumptions: VecDeque::new(),
            permit,
        }
    }

    async fn step(&mut self) -> Result<Option<TokenStep>, EngineError> {
        self.take_permit().await?;
        loop {
            if let Some(step) = self.ready.pop_front() {
                if self.permits(&step).await? {
                    return Ok(Some(self.deliver(step)));
                }
                continue;
            }
            // Forced tokens are not sampled, but reported with their log-probabilities like all others.
            if !self.scorable().is_empty() {
                self.score().await?;
                continue;
            }
            let part = match &mut self.attempt {
                Some(attempt) => attempt.next().await,
                None => {
                    match self.send().await {
                        Ok(attempt) => self.attempt = Some(attempt),
                        Err(fault) => self.recover(fault).await?,
                    }
                    continue;
                }
            };
            match part {
                Ok(AttemptPart::Tokens(steps)) => self.receive(steps),
                Ok(AttemptPart::End(end)) => {
                    let empty = self.attempt.take().and_then(|attempt| attempt.fault_if_empty());
                    self.account(end.usage);
                    if let Some(finish) = self.ended(&end)? {
                        self.finish = Some(finish);
                        return Ok(None);
                    }
                    // Without progress the next attempt would end like this one, and so would all others.
                    if let Some(fault) = empty {
                        self.recover(fault).await?;
                    }
                }
                Err(fault) => self.recover(fault).await?,
            }
        }
    }

    /// Takes tokens, which end a row of failures.
    fn receive(&mut self, steps: Vec<TokenStep>) {
        self.fruitless = 0;
        self.broken_at.clear();
        self.ready.extend(steps);
    }

    /// Waits for a permit, unless the turn has one.
    async fn take_permit(&mut self) -> Result<(), EngineError> {
        if self.permit.is_some() {
            return Ok(());
        }
        let fleet = Arc::clone(&self.session.fleet);
        let permit = Arc::clone(&fleet.permits).acquire_owned().await;
        self.permit = Some(permit.map_err(|_| EngineError::QueueFull { limit: fleet.requests })?);
        Ok(())
    }

    /// Returns the next forced tokens that an engine can score: none that fills the context, because engines refuse a
    /// prompt that leaves no room for another token.
    fn scorable(&self) -> &[u32] {
        let forced = self.spec.force.get(self.judge.sampled()..).unwrap_or_default();
        let room = self.session.fleet.spec.limit().saturating_sub(self.session.tokens.len() + 1);
        &forced[..forced.len().min(room)]
    }

    /// Returns `true` if the constraint allows a token, and accepts it. Otherwise the token is withdrawn with all after
    /// it, and the next attempt samples it again.
    async fn permits(&mut self, step: &TokenStep) -> Result<bool, EngineError> {
        let forced = self.spec.force.get(self.judge.sampled());
        if forced.is_some_and(|forced| *forced != step.id) {
            return Err(ignores_allowed(step.id));
        }
        let Some(rule) = &self.spec.constraint else { return Ok(true) };
        if self.constraint.is_none() {
            self.constraint = Some(ConstraintRun::begin(Arc::clone(rule)).await?);
        }
        let Some(run) = &mut self.constraint else { return Ok(true) };
        // Accepted only when another token follows: after the last token of a turn no mask needs to exist.
        if let Some(before) = self.unaccepted.take() {
            run.accept(before).await?;
        }
        if run.allows(step.id) {
            self.unaccepted = Some(step.id);
            return Ok(true);
        }
        // Another attempt would only withdraw such a token again.
        if self.correcting {
            return Err(ignores_allowed(step.id));
        }
        self.session.fleet.remote.corrected_tokens_total.add(1);
        self.ready.clear();
        self.attempt = None;
        self.correcting = true;
        Ok(false)
    }

    /// Delivers a token, which is then part of the session.
    fn deliver(&mut self, step: TokenStep) -> TokenStep {
        self.session.tokens.push(Token::sampled(&step));
        self.session.fleet.counters.decode_tokens_total.add(1);
        self.correcting = false;
        self.accounted = false;
        self.finish = self.judge.push(&self.spec, step.id, self.session.tokens.len());
        step
    }

    /// Ends the attempt after the last token of the turn, which ended by `finish`.
    async fn close(&mut self, finish: TurnFinish) {
        // Complete even if the engine's stream goes on, or if there was none because all tokens were forced.
        if let Some(engine) = &self.session.engine {
            engine.succeeded();
        }
        if let Some(attempt) = self.attempt.take() {
            let end = attempt.finish(finish).await;
            self.account(end.and_then(|end| end.usage));
        }
    }

    /// Returns the reason for the end of the turn if the engine has ended its stream before the judge ended the turn.
    /// `None` if another attempt has to follow.
    fn ended(&self, end: &AttemptEnd) -> Result<Option<TurnFinish>, EngineError> {
        let tokens = self.judge.sampled();
        match end.reason.as_str() {
            // A correcting attempt samples only one token, so that an unfinished turn goes on.
            "length" if self.spec.constraint.is_some() && tokens < self.spec.max_tokens && !self.is_full() => Ok(None),
            // The judge itself ends a turn at `max_tokens`, so this is the engine's context.
            "length" => Ok(Some(TurnFinish::Context)),
            "stop" => Ok(Some(TurnFinish::Eos)),
            other => Err(EngineError::Unavailable(format!("the engine ended with the unknown reason {other:?}"))),
        }
    }

    fn is_full(&self) -> bool {
        self.session.tokens.len() >= self.session.fleet.spec.limit()
    }

    /// Records the token counts of a complete stream.
    fn account(&mut self, usage: Option<ReplyUsage>) {
        let session = &mut *self.session;
        let length = session.tokens.len();
        if let Some(usage) = usage
            && let Some(cached) = usage.cached()
        {
            let new = usage.prompt_tokens.saturating_sub(session.known);
            let recomputed = usage.prompt_tokens.saturating_sub(cached).saturating_sub(new);
            session.fleet.remote.recomputed_tokens_total.add(recomputed);
            session.fleet.counters.prefill_tokens_recomputed_total.add(recomputed);
            session.fleet.counters.prefill_tokens_total.add(usage.prompt_tokens.saturating_sub(cached));
            session.fleet.counters.prefix_cache_hit_tokens_total.add(cached);
            // The first prompt only: later ones repeat the session's own tokens.
            session.cached.get_or_insert(cached);
        }
        // The last sampled token was never fed to the model.
        session.known = length.saturating_sub(1);
        self.accounted = true;
    }

    /// Chooses an engine and prepares it for the session.
    async fn prepared(&mut self) -> Result<PreparedEngine, Fault> {
        let fleet = Arc::clone(&self.session.fleet);
        let published = self.session.options.adapter.and_then(|adapter| fleet.adapters.get(adapter));
        let engine = fleet.choose(self.session.engine.as_ref(), published.as_ref())?;
        // Set before anything can fail there, so that the failure is known to be this engine's.
        self.session.engine = Some(Arc::clone(&engine));
        self.checked = false;
        let facts = fleet.checked(&engine).await?;
        self.checked = true;
        let model = match self.session.options.adapter {
            None => facts.model.clone(),
            Some(adapter) => {
                let missing = || engine.endpoint.fault(FaultKind::Refused, "the session's adapter was unloaded");
                let adapter = fleet.adapters.get(adapter).ok_or_else(missing)?;
                engine.load_adapter(&adapter).await?;
                adapter.name
            }
        };
        Ok(PreparedEngine { engine, facts, model })
    }

    /// Sends the request for the rest of the turn.
    async fn send(&mut self) -> Result<Attempt, Fault> {
        let PreparedEngine { engine, facts, model } = self.prepared().await?;
        let sampled = self.judge.sampled();
        let corrected = match (&self.constraint, self.correcting) {
            (Some(run), true) => {
                let allowed = run.allowed(self.session.fleet.spec.vocab);
                Some(allowed.map_err(|error| engine.endpoint.fault(FaultKind::Refused, error.to_string()))?)
            }
            _ => None,
        };
        let ids: Vec<u32> = self.session.tokens.iter().map(|token| token.id).collect();
        let spec = &self.spec;
        // A forced token that could not be scored is sampled as the only allowed one. Its log-probability is that of
        // the full distribution all the same.
        let forced = spec.force.get(sampled).map(slice::from_ref);
        let max_tokens = if forced.is_some() || corrected.is_some() { 1 } else { spec.max_tokens - sampled };
        // Without effect on forced tokens, which may be those that end the turn.
        let min_tokens = if forced.is_some() { 0 } else { spec.min_tokens.saturating_sub(sampled) };
        let correction = if corrected.is_some() { CORRECTION_SEED } else { 0 };
        let distance = (sampled as u64).wrapping_mul(SEED_STRIDE).wrapping_add(correction);
        let request = TokenRequest {
            model: &model,
            ids: &ids,
            sampling: &spec.sampling,
            seed: spec.sampling.seed.wrapping_add(distance),
            max_tokens,
            // The API refuses a request whose minimum exceeds its own maximum or the policy's limit. A correcting
            // attempt and the rest of the context may still be shorter than the minimum, which engines would refuse.
            min_tokens: min_tokens.min(max_tokens),
            stops: &spec.stops,
            begins: sampled == 0,
            eos: if spec.ignore_eos { &[] } else { &spec.eos },
            allow: forced.or(corrected.as_deref()).or(spec.allow.as_deref()),
            score: None,
            salt: self.session.options.salt,
        };
        let body = request.body(engine.endpoint.address.kind, facts.dialect);
        let body = body.map_err(|error| engine.endpoint.fault(FaultKind::Refused, error.to_string()))?;
        let request = AttemptRequest {
            body,
            session: &self.session.name,
            top: spec.sampling.top_logprobs,
            stops: request.sent_stops(engine.endpoint.address.kind, facts.dialect),
        };
        Attempt::send(&self.session.fleet, &engine, facts, request).await
    }

    /// Scores the forced tokens that the turn begins with.
    async fn score(&mut self) -> Result<(), EngineError> {
        match self.scores().await {
            Ok(steps) => {
                self.receive(steps);
                Ok(())
            }
            Err(fault) => self.recover(fault).await,
        }
    }

    async fn scores(&mut self) -> Result<Vec<TokenStep>, Fault> {
        let PreparedEngine { engine, facts, model } = self.prepared().await?;
        let mut ids: Vec<u32> = self.session.tokens.iter().map(|token| token.id).collect();
        let scored = self.scorable().len();
        ids.extend(self.scorable());
        let score = ScoreRequest {
            model: &model,
            ids: &ids,
            scored,
            top: self.spec.sampling.top_logprobs,
            salt: self.session.options.salt,
        };
        self.session.fleet.score(&engine, &facts, &score).await
    }

    /// Prepares another attempt after a failure.
    ///
    /// # Errors
    /// The failure, if another attempt would fail as well.
    async fn recover(&mut self, mut fault: Fault) -> Result<(), EngineError> {
        // Tokens of swapped weights may be among the delivered ones.
        let tainted = self.attempt.take().is_some() && fault.kind == FaultKind::Unfit;
        let fleet = Arc::clone(&self.session.fleet);
        fleet.remote.failures_total.add(1);
        let adapter = self.session.options.adapter.and_then(|adapter| fleet.adapters.get(adapter));
        if fault.kind == FaultKind::MissingModel && adapter.is_none() {
            fault.kind = FaultKind::Unfit;
        }
        // If the failure belongs to no engine, all engines are down, and another attempt would fail as well.
        let engine = self.session.engine.take().filter(|engine| engine.endpoint.url() == fault.url);
        let Some(engine) = engine else { return Err(fault.ending(fleet.requests)) };
        let broken = mem::take(&mut self.checked) && fault.kind == FaultKind::Broken;
        if broken && !self.broken_at.insert(fault.url.clone()) {
            // Counted once: a request that always fails must not take the engine from all other requests.
            engine.distrust();
        } else {
            fleet.note(&engine, &fault);
        }
        self.fruitless += 1;
        // An adapter that the engine has lost is loaded again there. After other failures, another engine is preferred.
        let other = fleet.other_than(&engine, adapter.as_ref());
        let next = match (fault.kind, adapter) {
            (FaultKind::MissingModel, Some(adapter)) => {
                engine.adapters.forget(&adapter.name);
                Some(engine)
            }
            // Loaded once more on the same engine, the adapter would only be refused or found different again.
            (FaultKind::OtherAdapter, _) => other,
            _ => other.or_else(|| Some(engine).filter(|engine| engine.is_usable())),
        };
        let hopeless = tainted || fault.kind == FaultKind::Refused || self.fruitless >= MOST_FRUITLESS;
        let Some(next) = next.filter(|_| !hopeless) else {
            tracing::error!(error = %fault, "a generation failed");
            return Err(fault.ending(fleet.requests));
        };
        tracing::warn!(error = %fault, delivered = self.judge.sampled(), "a generation goes on in a new request");
        fleet.remote.resumptions_total.add(1);
        self.resumptions.push_back(Resumption { delivered: self.judge.sampled(), reason: fault.message.clone() });
        self.session.renew(next);
        sleep(PAUSE * 2_u32.pow(self.fruitless - 1)).await;
        Ok(())
    }
}

/// Returns the error of an engine that sampled `id`, which it was not allowed to.
fn ignores_allowed(id: u32) -> EngineError {
    EngineError::Unavailable(format!("the engine ignores allowed_token_ids: it sampled {id}"))
}

impl Drop for RemoteTurn<'_> {
    fn drop(&mut self) {
        // The engine has computed the delivered tokens, even if its token counts were not received.
        if !self.accounted && !self.failed && self.judge.sampled() > 0 {
            self.session.known = self.session.tokens.len().saturating_sub(1);
        }
    }
}

impl Steps for RemoteTurn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        if let Some(finish) = self.finish {
            // Closed only after the last token was delivered: a caller that stops waiting must not lose it.
            self.close(finish).await;
            return None;
        }
        if self.failed {
            return None;
        }
        let step = self.step().await;
        if step.is_err() {
            self.failed = true;
            self.session.fleet.counters.turn_failures_total.add(1);
        }
        step.transpose()
    }

    fn finish(&self) -> Option<TurnFinish> {
        self.finish
    }

    fn resumption(&mut self) -> Option<Resumption> {
        self.resumptions.pop_front()
    }
}
