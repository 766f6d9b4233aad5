//! An episode: one run of the loop for one question.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;
use waymark_engine::{Engine, Priority, RequestId, SessionOptions};
use waymark_index::{Evidence, Mode, Query, SearchOptions};

use super::AgentError;
use super::budget::Budget;
use super::continued_episode::ContinuedEpisode;
use super::conversation::Conversation;
use super::episode_forms::EpisodeForms;
use super::episode_limits::{check_turns, reserved_tokens, truncate_prompt};
use super::excluded_passages::ExcludedPassages;
use super::generator::SessionSource;
use super::guide::AllowedActions;
use super::loop_variant::LoopVariant;
use super::observation::frame;
use super::opened_thought::opened_thought;
use super::options::{EpisodeOptions, TurnEnds};
use super::policy::Policy;
use super::protocol::{ModePrefix, Protocol, ProtocolPrompt};
use super::retrieval::Retrieval;
use super::runtime::Runtime;
use super::sampling::Sampling;
use super::segment::SegmentKind;
use super::trajectory::PartialTrajectory;

/// An episode that is ready to run: its options are checked and its prompt is encoded, but nothing was computed yet.
#[derive(Debug)]
pub struct Episode<S: SessionSource = Engine> {
    pub(super) runtime: Runtime<S>,
    pub(super) policy: Policy,
    pub(super) settings: EpisodeSettings,
    pub(super) question: String,
    pub(super) prompt: Vec<u32>,
    /// Sender of the partial record if the episode is interrupted. `None` unless [`Episode::partial`] was called.
    pub(super) partial: Option<oneshot::Sender<PartialTrajectory>>,
}

/// Settings of an episode, combined from its policy and the request.
#[derive(Debug, Clone)]
pub(super) struct EpisodeSettings {
    pub(super) id: String,
    pub(super) budget: Budget,
    /// Maximum number of sampled and forced tokens together. `None` if the client has set no limit.
    pub(super) max_tokens: Option<usize>,
    pub(super) retrieval: Retrieval,
    /// Passages excluded from the episode's searches.
    pub(super) excluded: ExcludedPassages,
    /// Mode of every search, which overrides the mode that the policy writes. `None` lets the policy choose.
    pub(super) mode: Option<Mode>,
    pub(super) sampling: Sampling,
    pub(super) seed: u64,
    pub(super) stop: Vec<String>,
    /// Tokens that end a turn.
    pub(super) ends: TurnEnds,
    /// Names of the tools whose first call in the answer ends the answer.
    pub(super) one_call: Vec<String>,
    pub(super) guided: bool,
    /// Beginning of the first query, written for the policy. `None` if the policy writes it.
    pub(super) first_query: Option<ModePrefix>,
    pub(super) logprobs: Option<usize>,
    /// Formats of the answer and of tool calls.
    pub(super) forms: EpisodeForms,
    /// Episode that this one continues.
    pub(super) continues: Option<Arc<ContinuedEpisode>>,
    /// Tag that opens a thought at the end of the prompt, so that the first turn begins inside the thought. `None` if
    /// the prompt does not end with such a tag.
    pub(super) opened: Option<&'static str>,
    /// If `true`, the final event contains citations. They are computed after the episode's time has stopped and its
    /// blocks are freed.
    pub(super) cites: bool,
    /// Maximum size of the evidence in the record and in the events, in bytes.
    pub(super) evidence_bytes: usize,
    pub(super) salt: u64,
    pub(super) tenant: u64,
    pub(super) priority: Priority,
    /// ID of the request that the episode serves.
    pub(super) request: Option<RequestId>,
    /// Maximum length of the sequence, in tokens.
    pub(super) context: usize,
    /// Tokens of the context reserved for the end of the episode.
    pub(super) reserved: usize,
    /// Length of the shortest observation after which the policy can continue, in tokens.
    pub(super) frame: usize,
}

impl EpisodeSettings {
    /// Returns the options of the episode's sessions.
    pub(super) fn session(&self, policy: &Policy) -> SessionOptions {
        let Self { salt, tenant, priority, request, .. } = *self;
        SessionOptions { adapter: policy.adapter(), salt, tenant, priority, request }
    }

    /// Returns the query for `text`, about `entities`, in `mode`.
    pub(super) fn query(&self, text: &str, entities: &[String], mode: Mode) -> Query {
        self.excluded.widen(self.retrieval.query(text, entities, mode)).cache_salt(self.salt)
    }

    /// Returns the part of a [search](Self::query)'s result that the episode may see.
    pub(super) fn permitted(&self, found: Evidence) -> Evidence {
        self.excluded.narrow(found, &self.retrieval.search)
    }
}

impl<S: SessionSource> Episode<S> {
    /// Checks a question against its policy and encodes its prompt.
    ///
    /// # Errors
    /// [`AgentError::TooLong`] and [`AgentError::TooManyBytes`] when the prompt leaves no room for an answer,
    /// [`AgentError::Mode`] and [`AgentError::NoIndex`] when the requested searches are impossible,
    /// [`AgentError::Speakers`] when the template cannot show evidence as messages, [`AgentError::Option`] and
    /// [`AgentError::NoGuide`] for invalid options and limits, [`AgentError::SearchOption`] when an excluded passage is
    /// in the prompt, [`AgentError::AnswerFormat`] and [`AgentError::Tool`] for an unsupported schema,
    /// [`AgentError::Text`] when template or tokenizer fail.
    pub fn new(
        runtime: &Runtime<S>,
        policy: &Policy,
        question: Conversation,
        options: EpisodeOptions,
    ) -> Result<Episode<S>, AgentError> {
        // Cheap checks come first; the prompt is encoded only for a valid request.
        let budget = options.budget(policy)?;
        if !options.ends.is_default() && policy.budget.turns > 0 {
            return Err(AgentError::Option {
                field: "stop_token_ids",
                reason: "a policy that searches ends its turns itself",
            });
        }
        let retrieval = options.retrieval(policy)?;
        let excluded = ExcludedPassages::new(&options.without)?;
        check_search(runtime, policy, &budget, &retrieval.search)?;
        let frame = if budget.turns > 0 { frame(&runtime.codec(), policy, retrieval.format)? } else { 0 };
        let sampling = options.sampling.or(&policy.sampling);
        sampling.params(options.seed, options.logprobs.unwrap_or(0)).check()?;
        let guided = guided(policy, options.guided)?;
        let first_query = options.mode_prefix(policy, guided)?;
        let context = budget.context_tokens.min(runtime.engine.limit());
        let reserved = reserved_tokens(runtime, policy, guided, question.question(), &budget, context);
        let room = context.saturating_sub(reserved);
        let FittedPrompt { question, ids: mut prompt, continues } =
            FittedPrompt::new(runtime, policy, question, &options, PromptFit { guided, room })?;
        if let Some(earlier) = &continues {
            excluded.check_continued(earlier)?;
        }
        let context = match policy.variant {
            LoopVariant::Training => {
                check_turns(runtime, policy, &budget)?;
                truncate_prompt(policy, &mut prompt, context)?;
                // Each turn sees only the end of the sequence, so its length is not limited.
                usize::MAX
            }
            _ if prompt.len() + reserved >= context => {
                return Err(AgentError::TooLong { tokens: prompt.len(), limit: context });
            }
            LoopVariant::Serving | LoopVariant::Evaluation => context,
        };
        let options = EpisodeOptions { continues, ..options };
        let forms = EpisodeForms::new(runtime, policy, &question, &options, guided)?;
        let tags = policy.protocol.tags();
        // JSON or a call must begin at once if it is the whole turn, even if the template has opened a thought.
        let whole = forms.answer.is_some() && tags.outside == SegmentKind::Answer;
        let opened =
            if whole { None } else { opened_thought(runtime.template.as_deref(), &runtime.tokenizer, tags, &prompt) };
        let settings = EpisodeSettings {
            id: options.id.unwrap_or_else(new_id),
            budget,
            max_tokens: options.max_tokens,
            retrieval,
            excluded,
            mode: options.search.mode,
            sampling,
            seed: options.seed,
            stop: options.stop,
            ends: options.ends,
            one_call: if policy.protocol.calls() { options.one_call } else { Vec::new() },
            guided,
            first_query,
            logprobs: options.logprobs,
            forms,
            continues: options.continues,
            opened,
            cites: options.cites,
            evidence_bytes: options.evidence_bytes.unwrap_or(usize::MAX),
            salt: options.salt,
            tenant: options.tenant,
            priority: options.priority.unwrap_or_default(),
            request: options.request,
            context,
            reserved,
            frame,
        };
        let (runtime, policy, question) = (runtime.clone(), policy.clone(), question.into_question());
        Ok(Episode { runtime, policy, settings, question, prompt, partial: None })
    }

    /// Returns a copy of the episode with its own ID and seed. The checks, the encoding and the compiled grammars are
    /// shared.
    pub fn again(&self, id: Option<String>, seed: u64) -> Episode<S> {
        let Episode { runtime, policy, settings, question, prompt, .. } = self;
        Episode {
            runtime: runtime.clone(),
            policy: policy.clone(),
            settings: EpisodeSettings { id: id.unwrap_or_else(new_id), seed, ..settings.clone() },
            question: question.clone(),
            prompt: prompt.clone(),
            partial: None,
        }
    }

    /// Returns the episode's ID.
    pub fn id(&self) -> &str {
        &self.settings.id
    }

    /// Returns the maximum wall time.
    pub fn time(&self) -> Duration {
        self.settings.budget.time()
    }

    /// Returns the length of the prompt in tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Returns a receiver of the partial record, for an episode that is interrupted after its start: when it fails, or
    /// its future is dropped. After a normal end or a panic, the receiver gets nothing.
    pub fn partial(&mut self) -> oneshot::Receiver<PartialTrajectory> {
        let (sender, receiver) = oneshot::channel();
        self.partial = Some(sender);
        receiver
    }
}

/// Prompt of an episode, with the conversation that it was encoded from.
struct FittedPrompt {
    /// Conversation, without the turns that were dropped.
    question: Conversation,
    ids: Vec<u32>,
    /// Episode that the prompt continues. `None` if the prompt was encoded from the conversation alone.
    continues: Option<Arc<ContinuedEpisode>>,
}

/// Constraints on a prompt.
#[derive(Clone, Copy)]
struct PromptFit {
    guided: bool,
    /// Number of tokens that a prompt must stay below. Oldest turns are dropped for it only if the options allow that.
    room: usize,
}

impl FittedPrompt {
    /// Encodes the conversation as a prompt, unless the options give the prompt's token IDs.
    fn new<S: SessionSource>(
        runtime: &Runtime<S>,
        policy: &Policy,
        question: Conversation,
        options: &EpisodeOptions,
        PromptFit { guided, room }: PromptFit,
    ) -> Result<FittedPrompt, AgentError> {
        if let Some(ids) = options.prompt.clone() {
            return Ok(FittedPrompt { question, ids, continues: None });
        }
        // The training variant shortens a long prompt instead of refusing it.
        if !policy.variant.is_training() {
            runtime.check_bytes(question.bytes())?;
        }
        let earlier = options.continues.as_deref();
        let continued = earlier.and_then(|earlier| continued_prompt(runtime, &*policy.protocol, &question, earlier));
        // The tokens of an earlier episode cannot be shortened, so a prompt that is too long is encoded from the
        // conversation alone.
        if let Some(ids) = continued.filter(|ids| ids.len() < room) {
            return Ok(FittedPrompt { question, ids, continues: options.continues.clone() });
        }
        let encode = |shorter: &Conversation| runtime.encode_conversation(&*policy.protocol, shorter, guided);
        let ids = encode(&question)?;
        if !options.truncates || ids.len() < room {
            return Ok(FittedPrompt { question, ids, continues: None });
        }
        let question = question.shortened(|shorter| encode(shorter).map(|ids| ids.len() < room))?;
        let ids = encode(&question)?;
        Ok(FittedPrompt { question, ids, continues: None })
    }
}

/// Returns the tokens of an earlier episode and the messages after it. `None` if the protocol's prompt is plain text, in
/// which the template's marks of speakers mean nothing, or if the template does not allow that.
fn continued_prompt<S: SessionSource>(
    runtime: &Runtime<S>,
    protocol: &dyn Protocol,
    question: &Conversation,
    earlier: &ContinuedEpisode,
) -> Option<Vec<u32>> {
    if matches!(protocol.prompt(question, false), ProtocolPrompt::Raw(_)) {
        return None;
    }
    let more = runtime.encode_after_reply(&earlier.messages).ok()?;
    Some([earlier.tokens.as_slice(), &more].concat())
}

fn new_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Decides whether the episode is guided. In the training variant it never is, because the reference's loop is not
/// guided.
fn guided(policy: &Policy, asked: Option<bool>) -> Result<bool, AgentError> {
    let can = policy.protocol.guide(&AllowedActions::default()).is_some() && !policy.variant.is_training();
    match asked {
        Some(true) if !can => Err(AgentError::NoGuide(policy.protocol.name())),
        asked => Ok(asked.unwrap_or(policy.guided) && can),
    }
}

fn check_search<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    budget: &Budget,
    search: &SearchOptions,
) -> Result<(), AgentError> {
    if budget.turns == 0 {
        return Ok(());
    }
    let Some(searcher) = &runtime.searcher else { return Err(AgentError::NoIndex { policy: policy.name.clone() }) };
    if search.rerank == Some(true) && !searcher.reranks() {
        let reason = "needs a reranker: start the server with --reranker".to_owned();
        return Err(AgentError::SearchOption { field: "rag.rerank".to_owned(), reason });
    }
    let mode = search.mode();
    let offered = searcher.modes();
    if offered.contains(&mode) { Ok(()) } else { Err(AgentError::Mode { mode, offered }) }
}
