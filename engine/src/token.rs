//! Tokens of sessions and steps of turns.

/// Origin of a token. Loss masks, usage and traces derive from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Given by the caller before anything was sampled.
    Prompt,
    /// Written by the policy: sampled, or forced in its name.
    Policy,
    /// Injected by the environment: an observation.
    Environment,
}

/// One token of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Origin of the token.
    pub origin: Origin,
    /// Log-probability under the model's full distribution; `None` for tokens that were not sampled.
    pub logprob: Option<f32>,
    /// If `true`, a protocol forced the token in the policy's name instead of sampling it.
    pub forced: bool,
}

impl Token {
    /// Returns a token that was given, not sampled.
    pub fn given(id: u32, origin: Origin, forced: bool) -> Self {
        Self { id, origin, logprob: None, forced }
    }

    /// Returns the token that a turn has sampled.
    pub fn sampled(step: &TokenStep) -> Self {
        Self { id: step.id, origin: Origin::Policy, logprob: Some(step.logprob), forced: false }
    }
}

/// A sampled token, as a turn delivers it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenStep {
    /// Token id.
    pub id: u32,
    /// Log-probability under the full distribution: raw logits, temperature 1, nothing filtered.
    pub logprob: f32,
    /// Most probable tokens at this position, best first; as many as were requested.
    pub top: Vec<(u32, f32)>,
}

/// Reason for the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFinish {
    /// A stop string was completed: its index in the [`StopSet`](super::StopSet).
    Stop(usize),
    /// An end-of-sequence token was sampled; it is part of the session.
    Eos,
    /// `max_tokens` were sampled.
    Length,
    /// The sequence is as long as the model or the KV pool allows.
    Context,
}
