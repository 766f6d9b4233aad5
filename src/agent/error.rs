//! Why an episode could not begin or go on.

use std::path::PathBuf;

use waymark_index::Mode;
use waymark_models::ModelError;
use waymark_models::grammar::GrammarError;

use crate::engine::EngineError;

/// Why an episode could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The messages are no conversation that could be continued.
    #[error("messages: {0}")]
    Conversation(&'static str),
    /// The prompt leaves no room for an answer.
    #[error("the prompt is {tokens} tokens long and leaves no room for an answer: the context holds {limit}")]
    TooLong {
        /// Its length with the template and the protocol's instruction.
        tokens: usize,
        /// What fits.
        limit: usize,
    },
    /// A mode was asked for that the index does not offer.
    #[error("the index does not offer {mode} search: use one of {}", names(.offered))]
    Mode {
        /// What was asked for.
        mode: Mode,
        /// What there is.
        offered: Vec<Mode>,
    },
    /// A mode was asked for whose triples the policy would not see.
    #[error("the protocol {protocol} shows its policy no triples, so it cannot search in the mode {mode}: use one of {}", names(.shown))]
    Unshown {
        /// The protocol.
        protocol: &'static str,
        /// What was asked for.
        mode: Mode,
        /// What it shows all of.
        shown: &'static [Mode],
    },
    /// The protocol searches and there is nothing to search in.
    #[error("policy {policy:?} searches, but no index is loaded: start with an index, or use a plain policy")]
    NoIndex {
        /// The policy.
        policy: String,
    },
    /// Others speak in the protocol, and the model's chat template cannot let them.
    #[error("policy {policy:?} cannot be used with this model, for evidence is a message in its protocol: {reason}")]
    Speakers {
        /// The policy.
        policy: String,
        /// What is wrong with the template.
        reason: String,
    },
    /// In the training variant a turn sees as much as leaves room for a whole one, and that would be nothing.
    #[error(
        "policy {policy:?} leaves its turns nothing to see: its turn_tokens ({turn}) must be below the {limit} tokens that \
         context and KV cache (--kv-bytes) hold"
    )]
    Blind {
        /// The policy.
        policy: String,
        /// Tokens of a turn.
        turn: usize,
        /// What fits.
        limit: usize,
    },
    /// Guided generation was asked for and the protocol has no guide.
    #[error("protocol {0:?} cannot be guided")]
    NoGuide(&'static str),
    /// A budget or an option has an impossible value.
    #[error("{field}: {reason}")]
    Option {
        /// Which one.
        field: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// The answer cannot be held to what the request says it must be.
    #[error(transparent)]
    Shape(#[from] GrammarError),
    /// A call of a tool cannot be held to what its arguments must be.
    #[error("a call of `{name}` cannot be held to its parameters: {reason}")]
    Tool {
        /// The tool.
        name: String,
        /// What is wrong with its parameters.
        reason: GrammarError,
    },
    /// A policy file cannot be used.
    #[error("{}: {reason}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where there is one.
        reason: String,
    },
    /// A chat template or the tokenizer failed.
    #[error(transparent)]
    Text(#[from] ModelError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The loop ran into a bug. The panic hook has printed where and why.
    #[error("this request ran into a bug in the server")]
    Panicked,
    /// Nobody listens to the events any more.
    #[error("the client has gone")]
    Gone,
}

impl AgentError {
    /// A short name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            AgentError::Conversation(_) => "invalid_messages",
            AgentError::TooLong { .. } | AgentError::Engine(EngineError::TooLong { .. }) => "context_length_exceeded",
            AgentError::Mode { .. } | AgentError::Unshown { .. } => "unsupported_mode",
            AgentError::NoIndex { .. } => "no_index",
            AgentError::NoGuide(_) | AgentError::Option { .. } | AgentError::Shape(_) | AgentError::Tool { .. } => {
                "invalid_option"
            }
            AgentError::Policy { .. } | AgentError::Speakers { .. } | AgentError::Blind { .. } => "invalid_policy",
            AgentError::Text(_) => "text_error",
            AgentError::Engine(EngineError::QueueFull { .. }) => "queue_full",
            AgentError::Engine(_) => "engine_error",
            AgentError::Panicked => "internal_error",
            AgentError::Gone => "client_gone",
        }
    }
}

fn names(modes: &[Mode]) -> String {
    modes.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ")
}
