//! Error type of episodes and policies.

use std::path::PathBuf;

use waymark_engine::EngineError;
use waymark_index::{InvalidOption, Mode};
use waymark_models::ModelError;
use waymark_models::grammar::GrammarError;

/// Error of an episode or of a policy.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The messages do not form a conversation that can be continued.
    #[error("messages: {0}")]
    Conversation(&'static str),
    /// The prompt leaves no room for an answer.
    #[error("the prompt of {tokens} tokens leaves no room for an answer: the context holds {limit} tokens")]
    TooLong {
        /// Length of the prompt, including the template and the protocol's instruction.
        tokens: usize,
        /// Maximum length of a sequence.
        limit: usize,
    },
    /// The text of the prompt has more bytes than any prompt that fits.
    #[error("the prompt of {bytes} bytes is too long: the context holds texts of at most {limit} bytes")]
    TooManyBytes {
        /// Size of the texts of the prompt, in bytes.
        bytes: usize,
        /// Maximum length of a sequence times the length of the longest token, in bytes.
        limit: usize,
    },
    /// The index does not offer the requested mode.
    #[error("the index does not offer {mode} search: use one of {}", names(.offered))]
    Mode {
        /// Requested mode.
        mode: Mode,
        /// Available modes.
        offered: Vec<Mode>,
    },
    /// The protocol does not show its policy the triples that the requested mode returns.
    #[error("the protocol {protocol} does not show triples, so it cannot search in the mode {mode}: use one of {}", names(.shown))]
    TriplesNotShown {
        /// Name of the protocol.
        protocol: &'static str,
        /// Requested mode.
        mode: Mode,
        /// Modes whose whole evidence the protocol shows.
        shown: &'static [Mode],
    },
    /// The policy searches, but no index is loaded.
    #[error(
        "policy {policy:?} searches, but no index is loaded: start the server with an index, or use the policy `plain`"
    )]
    NoIndex {
        /// Name of the policy.
        policy: String,
    },
    /// The protocol shows evidence as messages, and the model's chat template cannot render them.
    #[error(
        "policy {policy:?} cannot be used with this model, because its protocol shows evidence as messages: {reason}"
    )]
    Speakers {
        /// Name of the policy.
        policy: String,
        /// Defect of the template.
        reason: String,
    },
    /// The turns of the training variant would see no context, because the visible context must leave room for a whole
    /// turn.
    #[error(
        "policy {policy:?} leaves no context for its turns: its turn_tokens ({turn}) must be below the {limit} tokens that \
         context and KV cache (--kv-bytes) hold"
    )]
    NoVisibleContext {
        /// Name of the policy.
        policy: String,
        /// Tokens of a turn.
        turn: usize,
        /// Maximum length of a sequence.
        limit: usize,
    },
    /// Guided generation was requested, and the protocol has no guide.
    #[error("protocol {0:?} does not support guided generation")]
    NoGuide(&'static str),
    /// A limit or an option has an invalid value.
    #[error("{field}: {reason}")]
    Option {
        /// Name of the option.
        field: &'static str,
        /// Reason of the refusal.
        reason: &'static str,
    },
    /// A search option has an invalid value, or no effect.
    #[error("{field}: {reason}")]
    SearchOption {
        /// Path of the option, such as `rag.k` or `retrieval.k`.
        field: String,
        /// Reason of the refusal.
        reason: String,
    },
    /// The requested answer format is not supported.
    #[error(transparent)]
    AnswerFormat(#[from] GrammarError),
    /// The parameters of a tool are not supported as a grammar.
    #[error("the parameters of the tool `{name}` are not supported: {reason}")]
    Tool {
        /// Name of the tool.
        name: String,
        /// Reason of the refusal.
        reason: GrammarError,
    },
    /// A policy file is invalid.
    #[error("{}: {reason}", path.display())]
    Policy {
        /// Path of the file.
        path: PathBuf,
        /// Reason, with the line where possible.
        reason: String,
    },
    /// A chat template or the tokenizer failed.
    #[error(transparent)]
    Text(#[from] ModelError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The loop panicked. The panic hook has logged the location.
    #[error("this request ran into a bug in the server")]
    Panicked,
    /// The receiver of the events was dropped.
    #[error("the client disconnected")]
    Disconnected,
}

impl AgentError {
    /// Returns a machine-readable error code.
    pub fn code(&self) -> &'static str {
        match self {
            AgentError::Conversation(_) => "invalid_messages",
            AgentError::TooLong { .. }
            | AgentError::TooManyBytes { .. }
            | AgentError::Engine(EngineError::TooLong { .. }) => "context_length_exceeded",
            AgentError::Mode { .. } | AgentError::TriplesNotShown { .. } => "unsupported_mode",
            AgentError::NoIndex { .. } => "no_index",
            AgentError::NoGuide(_)
            | AgentError::Option { .. }
            | AgentError::SearchOption { .. }
            | AgentError::AnswerFormat(_)
            | AgentError::Tool { .. } => "invalid_option",
            AgentError::Policy { .. } | AgentError::Speakers { .. } | AgentError::NoVisibleContext { .. } => {
                "invalid_policy"
            }
            AgentError::Text(_) => "text_error",
            AgentError::Engine(EngineError::QueueFull { .. }) => "queue_full",
            AgentError::Engine(_) => "engine_error",
            AgentError::Panicked => "internal_error",
            AgentError::Disconnected => "client_gone",
        }
    }
}

impl AgentError {
    /// Refuses a search option. `table` is the path of the options.
    pub(super) fn of_search(table: &str, invalid: &InvalidOption) -> AgentError {
        AgentError::SearchOption { field: format!("{table}.{}", invalid.name), reason: invalid.reason() }
    }
}

fn names(modes: &[Mode]) -> String {
    modes.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ")
}
