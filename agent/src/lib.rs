//! The loop of a trained agentic RAG policy: think, search, answer. The table in `ARCHITECTURE.md` lists the crates.
//!
//! | modules | content |
//! |---|---|
//! | `protocol`, `training_protocol`, `action`, `segment`, `tag`, `json_query`, `routerag`, `search_r1`, `path_router`, `graphrag_r1`, `tearag`, `evo_rag`, `plain`, `verbatim` | protocols: the prompt, the actions of a turn, and the observations |
//! | `policy`, `policy_file`, `policy_family`, `policy_loading`, `protocol_registry`, `retrieval`, `loaded_base`, `logprob_fingerprint`, `content_hash`, `budget`, `sampling`, `options`, `loop_variant`, `loop_rules` | policies and the options of an episode |
//! | `conversation`, `continued_episode`, `tool_prompt`, `runtime`, `text_codec`, `speaker`, `episode`, `opened_thought`, `episode_limits`, `truncation`, `run`, `observation` | the loop |
//! | `guide`, `token_bans` | the loop for policies that were never trained in it |
//! | `episode_forms`, `answer_format`, `answer_opening`, `answer_closing`, `turn_openings`, `either_form`, `tool_constraint` | answers in a required format, and tool calls |
//! | `scanner`, `answer_filter`, `turn_reader`, `turn_calls`, `tool_call` | tokens to deltas; tool calls in a reply |
//! | `event`, `token_logprob`, `usage`, `trajectory`, `hidden_evidence`, `replay` | events, records, and replaying a record |
//! | `citation` | passages that support an answer |
//! | `sanitize`, `folded_text`, `hidden_text`, `evidence_header` | tags and headers in retrieved text made harmless |
//! | `search`, `search_pool`, `fair_semaphore`, `excluded_passages` | search on threads of its own |
//! | `generator` | the interface to the engine |
//! | `metric` | scores of answers and of retrieval |

mod action;
mod answer_closing;
mod answer_filter;
mod answer_format;
mod answer_opening;
mod budget;
pub mod citation;
mod content_hash;
mod continued_episode;
mod conversation;
mod either_form;
mod episode;
mod episode_forms;
mod episode_limits;
mod error;
mod event;
mod evidence_header;
mod evo_rag;
mod excluded_passages;
mod fair_semaphore;
mod folded_text;
mod generator;
mod graphrag_r1;
mod guide;
mod hidden_evidence;
mod hidden_text;
mod json_query;
mod loaded_base;
mod logprob_fingerprint;
mod loop_rules;
mod loop_variant;
pub mod metric;
mod observation;
mod opened_thought;
mod options;
pub mod path_router;
mod plain;
mod policy;
mod policy_family;
mod policy_file;
mod policy_loading;
mod protocol;
mod protocol_registry;
mod replay;
mod retrieval;
pub mod routerag;
mod run;
mod runtime;
mod sampling;
pub mod sanitize;
mod scanner;
mod search;
mod search_pool;
mod search_r1;
mod segment;
mod speaker;
pub mod tag;
pub mod tearag;
mod text_codec;
mod token_bans;
mod token_logprob;
pub mod tool_call;
mod tool_constraint;
mod tool_prompt;
mod training_protocol;
mod trajectory;
mod truncation;
mod turn_calls;
mod turn_openings;
mod turn_reader;
mod usage;
mod verbatim;

pub use action::{Action, ActionOutcome, FoundEvidence, PolicySearch};
pub use budget::{Budget, BudgetLimit};
pub use continued_episode::ContinuedEpisode;
pub use conversation::{Conversation, ConversationMessage, Role};
pub use episode::Episode;
pub use error::AgentError;
pub use event::{Cited, EpisodeEnd, Event};
pub use evidence_header::EvidenceHeader;
pub use evo_rag::EvoRag;
pub use excluded_passages::{ExcludedPassages, MAX_WITHOUT};
pub use fair_semaphore::{FairPermit, FairSemaphore};
pub use generator::{FingerprintFailure, Generator, Resumption, SessionSource, Steps};
pub use graphrag_r1::GraphragR1;
pub use guide::{AllowedActions, Guide, GuideState};
pub use hidden_evidence::HiddenEvidence;
pub use loaded_base::{LoadedBase, WeightsSummary};
pub use logprob_fingerprint::{FingerprintMismatch, LogprobFingerprint};
pub use loop_variant::LoopVariant;
pub use opened_thought::opened_thought;
pub use options::{EpisodeOptions, TurnEnds};
pub use path_router::PathRouter;
pub use plain::Plain;
pub use policy::Policy;
pub use policy_family::family_members;
pub use protocol::{Injected, ModePrefix, Protocol, ProtocolPrompt, ReadingRule};
pub use replay::ReplayedEpisode;
pub use retrieval::{Backtrack, Format, Retrieval};
pub use routerag::RouteRag;
pub use run::{EpisodeBranch, EpisodeState};
pub use runtime::Runtime;
pub use sampling::Sampling;
pub use scanner::{Scanner, TextPiece};
pub use search::{BlockingSearch, Search, SearchError, SearchLimits, SearchQuery, Searcher};
pub use search_r1::SearchR1;
pub use segment::{SegmentKind, Tag, Tags, TurnSegment};
pub use tearag::TeaRag;
pub use token_logprob::{TokenLogprob, TopLogprob};
pub use training_protocol::TrainingProtocol;
pub use trajectory::{ActionRecord, PartialTrajectory, SearchRecord, Timings, Trajectory};
pub use usage::Usage;
pub use verbatim::Verbatim;
