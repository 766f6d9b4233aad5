//! A turn of the schedule: given tokens, then those that the server samples, then given tokens.

use std::collections::VecDeque;
use std::sync::Arc;

use waymark_agent::Steps;
use waymark_engine::{EngineError, Matcher, Origin, StopSet, Token, TokenStep, TurnFinish};

use super::server_kind::{StreamPart, TokenRequest};
use super::source::ServerSession;
use super::stream::TokenStream;

/// A running turn.
#[derive(Debug)]
pub(super) struct ServerTurn<'a> {
    pub(super) session: &'a mut ServerSession,
    pub(super) stops: Arc<StopSet>,
    pub(super) matcher: Matcher,
    /// Given tokens before the sampled ones.
    pub(super) opening: VecDeque<u32>,
    /// Number of tokens that are still to be sampled.
    pub(super) sampled: usize,
    /// Given tokens after the sampled ones.
    pub(super) closing: VecDeque<u32>,
    /// Request for the sampled tokens. `None` before it is sent.
    pub(super) request: Option<RunningRequest>,
    pub(super) finish: Option<TurnFinish>,
}

/// A request whose tokens arrive.
#[derive(Debug)]
pub(super) struct RunningRequest {
    stream: TokenStream,
    /// Length of its sequence.
    prompt: usize,
    /// Number of tokens to sample.
    sampled: usize,
    ready: VecDeque<u32>,
}

impl ServerTurn<'_> {
    async fn step(&mut self) -> Result<Option<TokenStep>, EngineError> {
        if let Some(id) = self.opening.pop_front() {
            return Ok(Some(self.deliver(id, true)));
        }
        if self.sampled > 0 {
            let id = self.sample().await?;
            // A banned token could end the turn early, and then the two servers would not do the same work.
            if self.session.shared.bans(id) {
                let server = self.session.shared.kind.name();
                return Err(broken(format!("{server} sampled the banned token {id}")));
            }
            self.sampled -= 1;
            return Ok(Some(self.deliver(id, false)));
        }
        self.end().await?;
        Ok(self.closing.pop_front().map(|id| self.deliver(id, true)))
    }

    /// Delivers a token, which is then part of the session.
    fn deliver(&mut self, id: u32, forced: bool) -> TokenStep {
        // Neither server is asked for log-probabilities.
        self.session.tokens.push(Token { id, origin: Origin::Policy, logprob: None, forced });
        let bytes = self.session.shared.tokenizer.bytes_of(id);
        self.finish = self.matcher.push(&self.stops, bytes).map(TurnFinish::Stop);
        TokenStep { id, logprob: 0.0, top: Vec::new() }
    }

    /// Sends the request for the sampled tokens.
    fn send(&self) -> Result<RunningRequest, EngineError> {
        let session = &*self.session;
        let shared = &session.shared;
        let ids: Vec<u32> = session.tokens.iter().map(|token| token.id).collect();
        let request = TokenRequest { ids: &ids, tokens: self.sampled, slot: session.slot, bans: &shared.bans_json };
        let body = shared.kind.body(&request).map_err(|error| EngineError::Request(error.to_string()))?;
        let stream = shared.client.send(&session.name, body);
        Ok(RunningRequest { stream, prompt: ids.len(), sampled: self.sampled, ready: VecDeque::new() })
    }

    /// Returns the next sampled token.
    async fn sample(&mut self) -> Result<u32, EngineError> {
        let mut request = match self.request.take() {
            Some(request) => request,
            None => self.send()?,
        };
        let id = request.sample().await?;
        self.request = Some(request);
        self.session.mark_first_token();
        Ok(id)
    }

    /// Waits for the end of the stream, if there is one, and counts its tokens.
    async fn end(&mut self) -> Result<(), EngineError> {
        let Some(request) = self.request.take() else { return Ok(()) };
        let prompt = request.prompt;
        let sampled = request.sampled;
        let computed = request.end().await?;
        self.session.count(prompt, sampled, computed);
        Ok(())
    }
}

impl RunningRequest {
    /// Returns the next token.
    async fn sample(&mut self) -> Result<u32, EngineError> {
        loop {
            if let Some(id) = self.ready.pop_front() {
                return Ok(id);
            }
            let StreamPart { tokens, computed } = self.next().await?;
            if tokens.is_empty() && computed.is_some() {
                return Err(broken(format!("the server sampled fewer tokens than the {} requested", self.sampled)));
            }
            self.ready.extend(tokens);
        }
    }

    /// Returns the number of tokens of the sequence that the server computed.
    async fn end(mut self) -> Result<usize, EngineError> {
        loop {
            let StreamPart { tokens, computed } = self.next().await?;
            if !tokens.is_empty() || !self.ready.is_empty() {
                return Err(broken(format!("the server sampled more tokens than the {} requested", self.sampled)));
            }
            if let Some(computed) = computed {
                return Ok(computed);
            }
        }
    }

    async fn next(&mut self) -> Result<StreamPart, EngineError> {
        let part = self.stream.recv().await.ok_or_else(|| broken("the stream ended without token counts"))?;
        part.map_err(|error| broken(format!("{error:#}")))
    }
}

fn broken(message: impl Into<String>) -> EngineError {
    EngineError::Unavailable(message.into())
}

impl Steps for ServerTurn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        if self.finish.is_some() {
            return None;
        }
        self.step().await.transpose()
    }

    fn finish(&self) -> Option<TurnFinish> {
        self.finish
    }
}
