//! One run of the loop for one question.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;
use waymark_index::{Condition, Evidence, Mode, Query};
use waymark_models::chat::Tool;
use waymark_models::grammar::Json;

use super::AgentError;
use super::absence::Absence;
use super::budget::Budget;
use super::calling::Calling;
use super::conversation::Conversation;
use super::event::Event;
use super::generator::Source;
use super::guide::Offer;
use super::neutral::STAND_IN;
use super::observation::frame;
use super::options::EpisodeOptions;
use super::policy::{Policy, Retrieval};
use super::protocol::{Kind, Tag, Tags};
use super::run::Run;
use super::runtime::Runtime;
use super::sampling::Sampling;
use super::shape::Shape;
use super::trajectory::{Fragment, Trajectory};
use super::variant::Variant;
use crate::engine::{Engine, RequestId, SessionOptions};

/// A question that is ready to be asked: checked, and its prompt encoded. Nothing was computed yet.
#[derive(Debug)]
pub struct Episode<S: Source = Engine> {
    pub(super) runtime: Runtime<S>,
    pub(super) policy: Policy,
    pub(super) settings: Settings,
    pub(super) question: String,
    pub(super) prompt: Vec<u32>,
    /// Where what is left of it goes when it is broken off.
    pub(super) remains: Option<oneshot::Sender<Fragment>>,
}

/// What the policy and the request make together.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) id: String,
    pub(super) budget: Budget,
    pub(super) retrieval: Retrieval,
    /// What its searches are not to find.
    pub(super) absence: Absence,
    /// What the metadata of what they find must say.
    pub(super) only: Option<Arc<Condition>>,
    /// Overrules what the policy writes.
    pub(super) mode: Option<Mode>,
    pub(super) sampling: Sampling,
    pub(super) seed: u64,
    pub(super) stop: Vec<String>,
    /// The tools of which a call ends the answer.
    pub(super) one_call: Vec<String>,
    pub(super) guided: bool,
    pub(super) logprobs: Option<usize>,
    pub(super) shape: Option<Shape>,
    /// The tag of the thought that the prompt has opened, in which the first turn begins.
    pub(super) opened: Option<&'static str>,
    /// Whether its end tells which passages support the answer. They are looked for when its time is over and its
    /// blocks are free.
    pub(super) cites: bool,
    pub(super) salt: u64,
    /// The request it is run for.
    pub(super) request: Option<RequestId>,
    /// The longest sequence, in tokens.
    pub(super) context: usize,
    /// How much of it is kept for the end.
    pub(super) aside: usize,
    /// The shortest observation that the policy can go on after, in tokens.
    pub(super) frame: usize,
}

impl Settings {
    /// What a sequence of such an episode is opened with.
    pub(super) fn session(&self, policy: &Policy) -> SessionOptions {
        SessionOptions { adapter: policy.adapter(), salt: self.salt, request: self.request }
    }

    /// The search for `text`, about `entities`, that such an episode makes in `mode`.
    pub(super) fn query(&self, text: &str, entities: &[String], mode: Mode) -> Query {
        let wanted = self.retrieval.query(text, entities, mode);
        self.absence.widen(Query { only: self.only.clone(), ..wanted })
    }

    /// What such an episode gets to know of what its [search](Self::query) found.
    pub(super) fn left(&self, found: Evidence) -> Evidence {
        self.absence.narrow(found, &self.retrieval)
    }
}

impl<S: Source> Episode<S> {
    /// Checks a question against its policy and encodes its prompt.
    ///
    /// # Errors
    /// [`AgentError::TooLong`] when the prompt leaves no room for an answer, [`AgentError::Mode`] and
    /// [`AgentError::NoIndex`] when the searches it asks for cannot be made, [`AgentError::Speakers`] when the template
    /// cannot show what they find, [`AgentError::Option`] and [`AgentError::NoGuide`] for impossible options and bounds,
    /// [`AgentError::Shape`] and [`AgentError::Tool`] for a schema that cannot be followed, [`AgentError::Text`] when
    /// template or tokenizer fail.
    pub fn new(
        runtime: &Runtime<S>,
        policy: &Policy,
        question: Conversation,
        options: EpisodeOptions,
    ) -> Result<Episode<S>, AgentError> {
        let budget = options.budget(policy)?;
        let retrieval = options.retrieval(policy)?;
        let absence = Absence::new(&options.without)?;
        check_search(runtime, policy, &budget, retrieval.mode)?;
        let frame = if budget.turns > 0 { frame(runtime, policy, retrieval.format)? } else { 0 };
        let sampling = options.sampling.or(&policy.sampling);
        sampling.params(options.seed, options.logprobs.unwrap_or(0)).check()?;
        let guided = guided(policy, options.guided)?;
        let mut prompt = match options.prompt {
            Some(ids) => ids,
            None => runtime.encode_with_tools(&policy.protocol.prompt(&question, guided), question.tools())?,
        };
        let context = budget.context_tokens.min(runtime.engine.limit());
        let aside = set_aside(runtime, policy, guided, question.question(), &budget, context);
        if policy.variant == Variant::Training {
            check_turns(runtime, policy, &budget)?;
            let most = policy.protocol.prompt_tokens().min(context.saturating_sub(1));
            prompt.drain(..prompt.len().saturating_sub(most));
        } else if prompt.len() + aside >= context {
            return Err(AgentError::TooLong { tokens: prompt.len(), limit: context });
        }
        let shape = match &options.json {
            Some(json) => Some(shape(runtime, policy, json)?),
            None if options.calls.is_empty() => None,
            None => Some(call(runtime, question.tools(), &options.calls)?),
        };
        let tags = policy.protocol.tags();
        // Where the whole turn is JSON, or a call, it begins at once, whatever the template has opened.
        let whole = shape.is_some() && tags.outside == Kind::Answer;
        let opened = if whole { None } else { opened(runtime, tags, &prompt) };
        let settings = Settings {
            id: options.id.unwrap_or_else(new_id),
            budget,
            retrieval,
            absence,
            only: options.only,
            mode: options.mode,
            sampling,
            seed: options.seed,
            stop: options.stop,
            one_call: options.one_call,
            guided,
            logprobs: options.logprobs,
            shape,
            opened,
            cites: options.cites,
            salt: options.salt,
            request: options.request,
            context,
            aside,
            frame,
        };
        let question = question.into_question();
        let (runtime, policy) = (runtime.clone(), policy.clone());
        Ok(Episode { runtime, policy, settings, question, prompt, remains: None })
    }

    /// The same question once more, with an id and a random sequence of its own: what was checked, encoded and compiled
    /// for this episode serves for both.
    pub fn again(&self, id: Option<String>, seed: u64) -> Episode<S> {
        let Episode { runtime, policy, settings, question, prompt, .. } = self;
        Episode {
            runtime: runtime.clone(),
            policy: policy.clone(),
            settings: Settings { id: id.unwrap_or_else(new_id), seed, ..settings.clone() },
            question: question.clone(),
            prompt: prompt.clone(),
            remains: None,
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.settings.id
    }

    /// The wall time it may take.
    pub fn time(&self) -> Duration {
        self.settings.budget.time()
    }

    /// Length of its prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Hands over what it has written down when it is broken off after its beginning: when it fails, or its future is
    /// dropped. Of an episode that ends as it should, or by a panic, nothing comes.
    pub fn remains(&mut self) -> oneshot::Receiver<Fragment> {
        let (sender, receiver) = oneshot::channel();
        self.remains = Some(sender);
        receiver
    }

    /// Runs it and tells `events` what happens while it happens. Dropping the future breaks it off and frees what it
    /// holds; a listener who stops reading holds it up, and one who goes ends it.
    ///
    /// # Errors
    /// [`AgentError::Engine`] when the engine fails, after an [`Event::Failed`]; [`AgentError::Gone`] when nobody
    /// listens any more.
    pub async fn run(self, events: mpsc::Sender<Event>) -> Result<Trajectory, AgentError> {
        let result = Run::new(self, events.clone()).play().await;
        if let Err(error) = &result {
            // Whoever has gone cannot be told.
            let _ = events.send(Event::Failed { message: error.to_string(), code: error.code().to_owned() }).await;
        }
        result
    }
}

fn new_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// The tag that opens a thought at the end of the prompt: the templates of models that always think end with one.
fn opened<S: Source>(runtime: &Runtime<S>, tags: &Tags, prompt: &[u32]) -> Option<&'static str> {
    /// More tokens than such a tag and the white space around it are.
    const END: usize = 16;
    // Without a template there is nobody to open anything, and what was asked opens nothing.
    let control = prompt.iter().rposition(|&id| runtime.tokenizer.is_control(id))?;
    let reply = &prompt[control + 1..];
    let end = runtime.tokenizer.decode(&reply[reply.len().saturating_sub(END)..]);
    let opens = |tag: &&Tag| tag.kind == Kind::Think && end.trim_end().ends_with(tag.open);
    tags.pairs.iter().find(opens).map(|tag| tag.open)
}

/// The rules for answers that must be `json`.
fn shape<S: Source>(runtime: &Runtime<S>, policy: &Policy, json: &Json) -> Result<Shape, AgentError> {
    let around = runtime.around(&*policy.protocol);
    Ok(Shape::new(json, around, runtime.vocabulary()?, &runtime.eos)?)
}

/// The rules for replies that must be a call of one of the tools with these names.
fn call<S: Source>(runtime: &Runtime<S>, tools: &[Tool], names: &[String]) -> Result<Shape, AgentError> {
    let wanted = tools.iter().filter(|tool| names.contains(&tool.name));
    let rule = Calling::new(wanted, runtime.vocabulary()?, runtime.tokenizer.table(), &runtime.eos)?;
    Ok(Shape::whole(Arc::new(rule)))
}

/// Whether the episode is guided. The training loop never is: it exists to be like the reference's.
fn guided(policy: &Policy, asked: Option<bool>) -> Result<bool, AgentError> {
    let can = policy.protocol.guide(&Offer::default()).is_some() && !policy.variant.cuts();
    match asked {
        Some(true) if !can => Err(AgentError::NoGuide(policy.protocol.name())),
        asked => Ok(asked.unwrap_or(policy.guided) && can),
    }
}

/// Tokens of the context that are kept for what an episode must be able to write at its end: a forced answer with the
/// words that open it, and in guided generation the words between its spans.
fn set_aside<S: Source>(
    runtime: &Runtime<S>,
    policy: &Policy,
    guided: bool,
    question: &str,
    budget: &Budget,
    context: usize,
) -> usize {
    let length = |text: &str| runtime.literal(text).map_or(0, |ids| ids.len());
    let opening = policy.protocol.force_answer(Kind::Think).filter(|_| policy.variant.serves());
    let forced = opening.map_or(0, |opening| budget.reserve(context) + length(&opening) + 1);
    let frame = |(informed, turn)| {
        let (question, modes) = (line(question), vec![Mode::Hybrid]);
        let offer = Offer { question, informed, turn, search: true, answer: true, modes, ..Offer::default() };
        policy.protocol.guide(&offer).map_or(0, |guide| guide.frame(length))
    };
    let turns = [(false, 1), (false, 2), (true, 2)];
    forced + if guided { turns.into_iter().map(frame).max().unwrap_or(0) } else { 0 }
}

/// Whether a turn of the training variant can see anything of the sequence before it: as much is seen as leaves room for a
/// whole turn.
fn check_turns<S: Source>(runtime: &Runtime<S>, policy: &Policy, budget: &Budget) -> Result<(), AgentError> {
    if budget.turns == 0 || budget.turn_tokens < runtime.engine.limit() {
        return Ok(());
    }
    Err(AgentError::Blind { policy: policy.name.clone(), turn: budget.turn_tokens, limit: runtime.engine.limit() })
}

/// A question in one short line that holds no tag.
pub(super) fn line(question: &str) -> String {
    const LONGEST: usize = 200;
    let words = question.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(LONGEST).map(|c| if c == '<' { STAND_IN } else { c }).collect()
}

fn check_search<S: Source>(
    runtime: &Runtime<S>,
    policy: &Policy,
    budget: &Budget,
    mode: Mode,
) -> Result<(), AgentError> {
    if budget.turns == 0 {
        return Ok(());
    }
    let Some(searcher) = &runtime.searcher else { return Err(AgentError::NoIndex { policy: policy.name.clone() }) };
    let offered = searcher.modes();
    if offered.contains(&mode) { Ok(()) } else { Err(AgentError::Mode { mode, offered }) }
}
