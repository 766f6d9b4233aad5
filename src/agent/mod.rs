//! The loop of a trained agentic RAG policy: think, search, answer. See the table in `ARCHITECTURE.md`.
//!
//! | file | what it holds |
//! |---|---|
//! | `protocol`, `tag`, `statement`, `routerag`, `search_r1`, `path_router`, `graphrag_r1`, `tearag`, `evo_rag`, `plain`, `verbatim` | what a policy writes and what it is answered |
//! | `policy`, `base`, `contents`, `budget`, `sampling`, `options`, `variant` | what an episode may do |
//! | `conversation`, `runtime`, `speaker`, `episode`, `run`, `turn`, `lookup`, `observation` | the loop |
//! | `guide`, `guided` | the loop for policies that were never trained in it |
//! | `shape`, `opening`, `closing`, `calling` | answers that must be JSON, or a call of a tool |
//! | `scanner`, `answer`, `reader`, `call` | tokens to deltas, while they come; calls of tools in a reply |
//! | `event`, `trajectory`, `replay` | what is told, what is kept, and running that again |
//! | `citation` | which passages support an answer |
//! | `neutral` | what retrieved text may not do |
//! | `search`, `pool`, `part`, `absence` | searching beside everything else, what each mode reads, and what is not to be found |
//! | `generator` | the seam to the engine |

mod absence;
mod answer;
mod base;
mod budget;
pub(crate) mod call;
mod calling;
pub mod citation;
mod closing;
mod contents;
mod conversation;
mod episode;
mod error;
mod event;
mod evo_rag;
mod generator;
mod graphrag_r1;
mod guide;
mod guided;
mod lookup;
pub mod neutral;
mod observation;
mod opening;
mod options;
mod part;
pub mod path_router;
mod plain;
mod policy;
mod pool;
mod protocol;
mod reader;
mod replay;
pub mod routerag;
mod run;
mod runtime;
mod sampling;
mod scanner;
mod search;
mod search_r1;
mod shape;
mod speaker;
mod statement;
pub mod tag;
mod tearag;
mod trajectory;
mod turn;
mod variant;
mod verbatim;

pub use absence::MAX_WITHOUT;
pub use base::Base;
pub use budget::{Bound, Budget};
pub use conversation::{Conversation, Message, Role};
pub use episode::Episode;
pub use error::AgentError;
pub use event::{Cited, Event, Reason, TokenLogprob, TopLogprob, Usage};
pub use evo_rag::EvoRag;
pub use generator::{Generator, Source, Steps};
pub use graphrag_r1::GraphragR1;
pub use guide::{Guide, Offer, State};
pub use options::EpisodeOptions;
pub(crate) use part::Part;
pub use path_router::PathRouter;
pub use plain::Plain;
pub use policy::{Policy, Retrieval};
pub use protocol::{
    Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Request, Seen, Span, Tag, Tags,
};
pub use replay::Forced;
pub use routerag::RouteRag;
pub use runtime::Runtime;
pub use sampling::Sampling;
pub use scanner::{Piece, Scanner};
pub use search::{Find, MAX_K, Search, SearchError, SearchLimits, SearchQuery, Searcher};
pub use search_r1::SearchR1;
pub use tearag::TeaRag;
pub use trajectory::{Acted, Found, Fragment, Timings, Trajectory};
pub use variant::Variant;
pub use verbatim::Verbatim;
