//! What a session is made of and what a turn yields.

/// Where a token came from. Loss masks, usage and traces all derive from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Given by the caller before anything was sampled.
    Prompt,
    /// Produced by the policy: sampled, or forced in its name.
    Policy,
    /// Injected by the environment: an observation.
    Environment,
}

/// One token of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Where it came from.
    pub origin: Origin,
    /// Log-probability under the model's full distribution; `None` for tokens that were not sampled.
    pub logprob: Option<f32>,
    /// True when a protocol put it in the policy's mouth instead of sampling it.
    pub forced: bool,
}

/// One sampled token, as a turn delivers it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its id.
    pub id: u32,
    /// Log-probability under the full distribution: raw logits, temperature 1, nothing filtered.
    pub logprob: f32,
    /// The most probable tokens there, best first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop string was completed: its index in the [`StopSet`](super::StopSet).
    Stop(usize),
    /// An end-of-sequence token was sampled; it is part of the session.
    Eos,
    /// `max_tokens` were sampled.
    Length,
    /// The sequence is as long as the model or the KV pool allows.
    Context,
}
