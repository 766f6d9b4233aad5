//! The loop's source of tokens: a server that samples what the schedule says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use waymark_agent::{Generator, SessionSource};
use waymark_engine::{EngineError, Generate, Matcher, Origin, SessionOptions, Token};
use waymark_models::tokenizer::Tokenizer;

use super::schedule::TurnSchedule;
use super::server_kind::ServerKind;
use super::stream::TokenClient;
use super::turn::ServerTurn;

/// Counts of all requests to a server.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestTally {
    /// Tokens of sequences that the server computed.
    pub(super) computed: usize,
    /// Tokens among these that the server had computed before in the same session.
    pub(super) recomputed: usize,
    /// Sampled tokens.
    pub(super) sampled: usize,
    /// Seconds from the beginning of each session to its first sampled token.
    pub(super) first_token: Vec<f64>,
}

/// State shared by the sessions of a server.
#[derive(Debug)]
pub(super) struct ServerShared {
    pub(super) kind: ServerKind,
    pub(super) client: TokenClient,
    pub(super) tokenizer: Arc<Tokenizer>,
    /// Tokens that are never sampled, in ascending order.
    banned: Vec<u32>,
    /// The same, as JSON of a request.
    pub(super) bans_json: String,
    /// Maximum length of a sequence, in tokens.
    pub(super) context: usize,
    tally: Mutex<RequestTally>,
    sessions: AtomicUsize,
}

/// Source of the sequences of one client, about one question.
#[derive(Debug, Clone)]
pub(super) struct ScheduledSource {
    shared: Arc<ServerShared>,
    schedule: Arc<TurnSchedule>,
    slot: usize,
    question: Arc<str>,
}

/// Sequence whose tokens a server samples.
#[derive(Debug)]
pub(super) struct ServerSession {
    pub(super) shared: Arc<ServerShared>,
    pub(super) slot: usize,
    /// Name of the session.
    pub(super) name: String,
    pub(super) tokens: Vec<Token>,
    /// Number of leading tokens that the server has computed for this session.
    known: usize,
    /// Time of its beginning. `None` after its first sampled token.
    started: Option<Instant>,
    schedule: Arc<TurnSchedule>,
    question: Arc<str>,
    /// Number of turns that have begun.
    turns: usize,
}

impl ServerShared {
    /// Creates the state of a server at `url`. `banned` is in ascending order.
    pub(super) fn new(kind: ServerKind, url: &str, tokenizer: Arc<Tokenizer>, banned: &[u32], context: usize) -> Self {
        let client = TokenClient::new(kind, url);
        let bans_json = kind.bans(banned);
        let banned = banned.to_vec();
        let tally = Mutex::default();
        Self { kind, client, tokenizer, banned, bans_json, context, tally, sessions: AtomicUsize::new(0) }
    }

    /// Returns `true` if the token must not be sampled.
    pub(super) fn bans(&self, id: u32) -> bool {
        self.banned.binary_search(&id).is_ok()
    }

    /// Adds to the counts.
    pub(super) fn count(&self, add: impl FnOnce(&mut RequestTally)) {
        add(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes the counts, which begin at 0 again.
    pub(super) fn take_tally(&self) -> RequestTally {
        std::mem::take(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ScheduledSource {
    /// Creates the source of the first client, without a question.
    pub(super) fn new(shared: Arc<ServerShared>, schedule: TurnSchedule) -> Self {
        Self { shared, schedule: Arc::new(schedule), slot: 0, question: Arc::from("") }
    }

    /// Returns the source of the client with this slot for its next question.
    pub(super) fn with_question(self, slot: usize, question: &str) -> Self {
        Self { slot, question: Arc::from(question), ..self }
    }
}

impl ServerSession {
    /// Records the time of the first sampled token, if this is it.
    pub(super) fn mark_first_token(&mut self) {
        if let Some(started) = self.started.take() {
            self.shared.count(|tally| tally.first_token.push(started.elapsed().as_secs_f64()));
        }
    }

    /// Counts a request that has sampled `sampled` tokens after the first `prompt` ones of the session, of which the
    /// server computed `computed`.
    pub(super) fn count(&mut self, prompt: usize, sampled: usize, computed: usize) {
        let recomputed = computed.saturating_sub(prompt - self.known);
        self.shared.count(|tally| {
            tally.computed += computed;
            tally.recomputed += recomputed;
            tally.sampled += sampled;
        });
        // The last sampled token was never fed to the model.
        self.known = prompt + sampled - 1;
    }
}

impl SessionSource for ScheduledSource {
    type Sequence = ServerSession;

    fn open(&self, _options: SessionOptions) -> ServerSession {
        let number = self.shared.sessions.fetch_add(1, Ordering::Relaxed);
        ServerSession {
            shared: Arc::clone(&self.shared),
            slot: self.slot,
            name: format!("bench-{number}"),
            tokens: Vec::new(),
            known: 0,
            started: Some(Instant::now()),
            schedule: Arc::clone(&self.schedule),
            question: Arc::clone(&self.question),
            turns: 0,
        }
    }

    fn limit(&self) -> usize {
        self.shared.context
    }
}

impl Generator for ServerSession {
    type Generation<'a> = ServerTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    async fn generate(&mut self, spec: Generate) -> Result<ServerTurn<'_>, EngineError> {
        let turn = self.schedule.turn(&self.shared.tokenizer, self.turns, &self.question);
        let turn = turn.map_err(|error| EngineError::Request(error.to_string()))?;
        let turn = turn.ok_or_else(|| EngineError::Request("the schedule has no further turn".to_owned()))?;
        self.turns += 1;
        let tokens = turn.opening.len() + turn.sampled + turn.closing.len();
        if tokens > spec.max_tokens {
            let reason = format!("a turn of {tokens} tokens exceeds the budget of {}: set --turns", spec.max_tokens);
            return Err(EngineError::Request(reason));
        }
        Ok(ServerTurn {
            session: self,
            stops: spec.stops,
            matcher: Matcher::default(),
            opening: VecDeque::from(turn.opening),
            sampled: turn.sampled,
            closing: VecDeque::from(turn.closing),
            request: None,
            finish: None,
        })
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        0
    }
}
