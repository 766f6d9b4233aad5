//! The loop: prompt, turn, action, observation, and again.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use waymark_index::Passage;

use super::AgentError;
use super::answer::AnswerFilter;
use super::budget::Bound;
use super::citation::cited;
use super::episode::{Episode, Settings};
use super::event::{Event, Reason, Usage};
use super::generator::{Generator, Source};
use super::observation::observe;
use super::policy::Policy;
use super::protocol::{Action, Injected, Kind, Outcome, Reading};
use super::reader::Reader;
use super::runtime::Runtime;
use super::trajectory::{Acted, Found, Fragment, Timings, Trajectory};
use super::turn::{Ended, Want};
use crate::engine::{Origin, SessionOptions, StopSet, Token};

/// An episode while it runs.
pub(super) struct Run<S: Source> {
    pub(super) runtime: Runtime<S>,
    pub(super) policy: Policy,
    pub(super) settings: Settings,
    pub(super) question: String,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) session: S::Session,
    /// Every token: the record. In all but the training variant it is what the session holds.
    pub(super) tokens: Vec<Token>,
    prompt_tokens: usize,
    pub(super) turn: usize,
    /// Tokens sampled so far; in the training variant, of those that its turns keep.
    pub(super) sampled: usize,
    /// Generations begun so far, each with a random sequence of its own.
    pub(super) generations: u64,
    answer_tokens: usize,
    actions: Vec<Acted>,
    pub(super) evidence: Vec<Found>,
    /// Tokens that observations may still have, where they are bounded all together.
    environment_left: Option<usize>,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) timings: Timings,
    /// What it took, once nothing more is computed for it.
    spent: Option<Usage>,
    turn_stops: Arc<StopSet>,
    /// Where what is left goes when it is broken off.
    remains: Option<oneshot::Sender<Fragment>>,
}

/// A guided turn with fewer tokens would hold nothing.
const LEAST_GUIDED: usize = 8;

/// What is told of a refusal that gives no reason.
const UNSAID: &str = "The question cannot be answered.";

/// How an episode ended.
struct End {
    reason: Reason,
    answer: Option<String>,
}

impl<S: Source> Run<S> {
    pub(super) fn new(episode: Episode<S>, events: mpsc::Sender<Event>) -> Run<S> {
        let Episode { runtime, policy, settings, question, prompt, remains } = episode;
        let session = runtime.engine.open(settings.session(&policy));
        let began = Instant::now();
        let stops = match policy.variant.cuts() {
            true => StopSet::default(),
            false => StopSet::new(policy.protocol.stops()).with_lines(policy.protocol.lines()),
        };
        let mut run = Run {
            turn_stops: Arc::new(stops),
            deadline: began + settings.budget.time(),
            environment_left: settings.budget.environment_tokens,
            prompt_tokens: prompt.len(),
            tokens: Vec::new(),
            turn: 0,
            sampled: 0,
            generations: 0,
            answer_tokens: 0,
            actions: Vec::new(),
            evidence: Vec::new(),
            timings: Timings::default(),
            spent: None,
            runtime,
            policy,
            settings,
            question,
            events,
            session,
            began,
            remains,
        };
        run.append(&prompt, Origin::Prompt, false);
        run
    }

    pub(super) async fn play(mut self) -> Result<Trajectory, AgentError> {
        self.tell(Event::Started {
            id: self.settings.id.clone(),
            model: self.policy.name.clone(),
            protocol: self.policy.protocol.name().to_owned(),
            question: self.question.clone(),
            prompt_tokens: self.prompt_tokens,
        })
        .await?;
        let end = self.rounds().await?;
        self.finish(end).await
    }

    /// Turns and observations until the episode ends.
    async fn rounds(&mut self) -> Result<End, AgentError> {
        let rounds = self.settings.budget.turns;
        for round in 0..=rounds {
            let last = round == rounds;
            if last && rounds > 0 {
                self.tell(Event::Budget { kind: Bound::Turns }).await?;
                if !self.concludes() {
                    break;
                }
            }
            let (reader, ended, starved) = self.turn(last).await?;
            let action = self.action(&reader);
            let over = self.is_over(&action, &reader);
            let goes_on = !last && starved.is_none() && ended != Ended::Time && !action.ends() && !over;
            self.answer_tokens += reader.answer_tokens();
            // What the policy may still search for is used up as its rounds may be.
            let spent = starved.is_some_and(|bound| matches!(bound, Bound::Searches | Bound::EnvironmentTokens));
            self.act(&action, &reader, goes_on, last || spent).await?;
            if ended == Ended::Time {
                self.tell(Event::Budget { kind: Bound::Time }).await?;
            }
            let reason = match ended {
                Ended::Time => Reason::Time,
                Ended::Length | Ended::Context => Reason::Length,
                Ended::Tag(_) | Ended::Eos | Ended::Stopped => Reason::Stop,
            };
            match action {
                Action::Answer { text } => return Ok(End { reason, answer: Some(text) }),
                Action::Refuse { .. } if reason == Reason::Stop => {
                    return Ok(End { reason: Reason::Refused, answer: None });
                }
                Action::Refuse { .. } => return Ok(End { reason, answer: None }),
                _ if goes_on => {}
                _ if ended == Ended::Time => return Ok(End { reason, answer: None }),
                _ if over => return Ok(End { reason, answer: None }),
                _ if starved.is_some() && !spent => return Ok(End { reason: Reason::Length, answer: None }),
                _ => return Ok(End { reason: Reason::Turns, answer: None }),
            }
            if Instant::now() >= self.deadline {
                self.tell(Event::Budget { kind: Bound::Time }).await?;
                return Ok(End { reason: Reason::Time, answer: None });
            }
        }
        Ok(End { reason: Reason::Turns, answer: None })
    }

    /// One turn. The last one, and one that the budget leaves no room for, ends with a forced answer where the policy
    /// gives none. Also tells which bound leaves no room for another, if one does.
    async fn turn(&mut self, last: bool) -> Result<(Reader, Ended, Option<Bound>), AgentError> {
        self.turn += 1;
        self.tell(Event::TurnStarted { turn: self.turn }).await?;
        self.reopen();
        let start = self.tokens.len();
        let mut reader = self.reader();
        let mut ended = match self.room() {
            Ok(room) => self.write(&mut reader, room, last).await?,
            Err(_) => Ended::Length,
        };
        let cuts = self.policy.variant.cuts();
        if cuts {
            // What is cut off takes nothing of the budget, so it goes before anybody looks at what is left of that.
            self.tell_all(reader.finish()).await?;
            self.recut(start, reader.text())?;
        }
        let action = self.action(&reader);
        let unanswered = !action.ends();
        let over = self.is_over(&action, &reader);
        let asks = unanswered && !over && !last;
        let starved = self.room().err().or_else(|| self.barred(&action).filter(|_| asks));
        if let Some(bound) = starved.filter(|_| unanswered) {
            self.tell(Event::Budget { kind: bound }).await?;
        }
        // Nothing is or could be made of what it asks for, so it is as in the last turn.
        let closing = last || starved.is_some() || over;
        if closing && unanswered && ended != Ended::Time && self.policy.variant.serves() {
            ended = self.force_answer(&mut reader).await?.unwrap_or(ended);
        }
        if !cuts {
            self.tell_all(reader.finish()).await?;
        }
        Ok((reader, ended, starved))
    }

    /// The policy writes, guided or not.
    async fn write(&mut self, reader: &mut Reader, room: usize, last: bool) -> Result<Ended, AgentError> {
        if self.settings.guided {
            if let Some(kind) = self.used_up().filter(|_| !last) {
                self.tell(Event::Budget { kind }).await?;
            }
            let offer = self.offer(room, last);
            if let Some(guide) = self.policy.protocol.guide(&offer) {
                return self.follow(&guide, reader).await;
            }
        }
        let constraint = self.settings.shape.as_ref().map(|shape| Arc::clone(&shape.turn));
        let want = Want { max: room, stops: self.turn_stops.clone(), constraint, ..Want::default() };
        self.sample(reader, want).await
    }

    fn reader(&self) -> Reader {
        let tags = self.policy.protocol.tags();
        let filter = self.policy.variant.serves().then(|| self.filter());
        let tokenizer = self.runtime.tokenizer.clone();
        let reader = Reader::new(self.turn, tokenizer, tags, filter, self.settings.logprobs.is_some());
        if self.opened().is_some() { reader.inside(tags, Kind::Think) } else { reader }
    }

    /// The tag of the thought that this turn begins in because the prompt has opened it.
    pub(super) fn opened(&self) -> Option<&'static str> {
        self.settings.opened.filter(|_| self.turn == 1)
    }

    /// What a turn asks for. When serving, an answer that was begun is the action, because it was shown already.
    fn action(&self, reader: &Reader) -> Action {
        if let Some(text) = reader.answer() {
            return Action::Answer { text: text.to_owned() };
        }
        let kept = if self.policy.variant.cuts() { self.policy.protocol.cut(reader.text()) } else { reader.text() };
        // Protocols read a turn by itself: a thought that the prompt has opened is one to them too.
        let read = self.opened().map_or(Cow::Borrowed(kept), |open| Cow::Owned(format!("{open}{kept}")));
        match self.policy.protocol.parse(&read, self.reading()) {
            Action::Answer { text } => {
                // It was not shown yet: the client's stop strings are still to be looked for.
                let mut filter = self.filter();
                filter.push(&text);
                filter.finish();
                Action::Answer { text: filter.shown().to_owned() }
            }
            action => action,
        }
    }

    /// Whether one more turn follows the last round.
    fn concludes(&self) -> bool {
        self.policy.variant.serves() || self.settings.guided || self.policy.protocol.concludes()
    }

    /// How turns are read. What a guide has written no reference refuses.
    fn reading(&self) -> Reading {
        if self.settings.guided { Reading::Guided } else { self.policy.variant.reading() }
    }

    /// Whether a turn asks for nothing where there is no second try.
    fn is_over(&self, action: &Action, reader: &Reader) -> bool {
        *action == Action::Invalid && self.rejection(reader).is_empty()
    }

    /// What a turn is told that asks for nothing.
    fn rejection(&self, reader: &Reader) -> Vec<Injected> {
        self.policy.protocol.observation(&Outcome::Invalid(reader.text()), self.settings.retrieval.format)
    }

    fn filter(&self) -> AnswerFilter {
        let filter = AnswerFilter::new(&self.settings.stop, self.policy.protocol.tags().trims);
        filter.ended_by_call(&self.settings.one_call)
    }

    /// Does what a turn asks for and records it.
    async fn act(&mut self, action: &Action, reader: &Reader, goes_on: bool, late: bool) -> Result<(), AgentError> {
        let (turn, executed) = (self.turn, goes_on || action.ends());
        let summary = self.policy.protocol.summary(reader.text());
        self.actions.push(Acted { turn, action: action.clone(), executed, late, summary });
        if !matches!(action, Action::Refuse { .. }) && !reader.withheld().is_empty() {
            let (text, tokens) = (reader.withheld().to_owned(), Vec::new());
            self.tell(Event::Text { turn, text, tokens }).await?;
        }
        match action {
            Action::Answer { text } if reader.answer().is_none() && !text.is_empty() => {
                self.tell(Event::Answer { text: text.clone(), tokens: Vec::new() }).await
            }
            Action::Refuse { text } => {
                let text = if text.is_empty() { UNSAID } else { text };
                self.tell(Event::Refusal { text: text.to_owned() }).await
            }
            Action::Search(request) if goes_on => {
                let parts = self.look_up(request).await?;
                self.inject(self.joined(parts, reader.text())).await
            }
            Action::Backtrack if goes_on => {
                let parts = self.withdraw().await?;
                self.inject(self.joined(parts, reader.text())).await
            }
            Action::Invalid if goes_on => {
                let parts = self.rejection(reader);
                let framed = parts.iter().any(|part| matches!(part, Injected::Retrieved(_)));
                let told = parts.iter().filter(|part| !framed || matches!(part, Injected::Retrieved(_)));
                let message = told.map(|part| part.text().trim()).collect();
                self.tell(Event::Invalid { turn: self.turn, message }).await?;
                self.inject(parts).await
            }
            _ => Ok(()),
        }
    }

    /// Leaves out what the policy has written already at the beginning of an observation: a tag that ends its turn and
    /// begins the observation, and white space, for its last token may run past the closing tag. In training such a rest
    /// was cut.
    fn joined(&self, mut parts: Vec<Injected>, turn: &str) -> Vec<Injected> {
        let protocol = &self.policy.protocol;
        let (kept, rest) = turn.split_at(protocol.cut(turn).len());
        let Some(Injected::Frame(first)) = parts.first_mut() else { return parts };
        let written = |stop: &&&str| kept.ends_with(**stop) && first.starts_with(**stop);
        if let Some(stop) = protocol.stops().iter().find(written) {
            first.replace_range(..stop.len(), "");
        }
        if self.policy.variant.serves()
            && rest.trim().is_empty()
            && let Some(shorter) = first.strip_prefix(rest)
        {
            *first = shorter.to_owned();
        }
        parts
    }

    /// Puts an observation into the context, as much of it as the budget allows.
    async fn inject(&mut self, parts: Vec<Injected>) -> Result<(), AgentError> {
        let (limit, kind) = self.observable();
        let observation = observe(&self.runtime, parts, self.settings.retrieval.format, limit)?;
        if observation.truncated {
            self.tell(Event::Budget { kind }).await?;
        }
        if let Some(left) = &mut self.environment_left {
            // What was cut may leave a token or two, in which nothing could be told.
            let spent = observation.truncated && kind == Bound::EnvironmentTokens;
            *left = if spent { 0 } else { left.saturating_sub(observation.ids.len()) };
        }
        self.append(&observation.ids, Origin::Environment, false);
        let (tokens, truncated) = (observation.ids.len(), observation.truncated);
        self.tell(Event::Observation { turn: self.turn, text: observation.text, tokens, truncated }).await
    }

    /// How many tokens an observation may have, and what bounds them.
    pub(super) fn observable(&self) -> (usize, Bound) {
        let most = self.settings.budget.observation_tokens;
        let room = self.context_left().saturating_sub(self.settings.aside);
        let (limit, bound) = if room < most { (room, Bound::Context) } else { (most, Bound::ObservationTokens) };
        match self.environment_left {
            Some(left) if left <= limit => (left, Bound::EnvironmentTokens),
            _ => (limit, bound),
        }
    }

    /// What keeps the environment from an answer to `action` that the policy could go on after, if anything does.
    fn barred(&self, action: &Action) -> Option<Bound> {
        let (most, bound) = self.observable();
        if most < self.settings.frame {
            return Some(bound);
        }
        match self.used_up()? {
            Bound::Searches => {
                matches!(action, Action::Search(request) if !self.repeats(request)).then_some(Bound::Searches)
            }
            bound => Some(bound),
        }
    }

    /// Which bound of what the environment does is reached, if one is: of searches none is executed any more, or there is
    /// no room for any observation.
    pub(super) fn used_up(&self) -> Option<Bound> {
        let budget = &self.settings.budget;
        if self.environment_left.is_some_and(|left| left < self.settings.frame.max(1)) {
            return Some(Bound::EnvironmentTokens);
        }
        budget.searches.is_some_and(|most| self.searches() >= most).then_some(Bound::Searches)
    }

    /// Searches that were executed so far.
    fn searches(&self) -> usize {
        self.evidence.iter().filter(|found| !found.cached).count()
    }

    /// How many tokens the coming turn may sample, or which bound leaves too few. What a forced answer needs is set
    /// aside.
    pub(super) fn room(&self) -> Result<usize, Bound> {
        let budget = &self.settings.budget;
        let aside = if self.policy.forces() { budget.reserve(budget.sampled_tokens) } else { 0 };
        let sampled = budget.sampled_tokens.saturating_sub(self.sampled + aside);
        let context = self.context_left().saturating_sub(self.settings.aside);
        let enough = if self.settings.guided { LEAST_GUIDED } else { 1 };
        match (sampled, context) {
            (sampled, _) if sampled < enough => Err(Bound::SampledTokens),
            (_, context) if context < enough => Err(Bound::Context),
            _ => Ok(budget.turn_tokens.min(sampled).min(context)),
        }
    }

    /// Tokens that the sequence may still grow by.
    pub(super) fn context_left(&self) -> usize {
        if self.policy.variant.cuts() {
            // Each turn sees the end of the sequence only.
            return usize::MAX;
        }
        self.settings.context.saturating_sub(self.tokens.len())
    }

    /// Writes the opening of an answer for the policy and lets it go on. `None` when nothing can be forced.
    async fn force_answer(&mut self, reader: &mut Reader) -> Result<Option<Ended>, AgentError> {
        let Some(opening) = self.policy.protocol.force_answer(reader.writing()) else { return Ok(None) };
        let ids = self.runtime.literal(&opening)?;
        let left = self.settings.budget.sampled_tokens.saturating_sub(self.sampled);
        let max = left.min(self.settings.budget.turn_tokens).min(self.context_left().saturating_sub(ids.len()));
        if max == 0 {
            return Ok(Some(Ended::Length));
        }
        self.force(reader, &ids).await?;
        let constraint = self.settings.shape.as_ref().map(|shape| Arc::clone(&shape.answer));
        let want = Want { max, stops: self.turn_stops.clone(), constraint, ..Want::default() };
        self.sample(reader, want).await.map(Some)
    }

    async fn finish(&mut self, end: End) -> Result<Trajectory, AgentError> {
        let End { reason, mut answer } = end;
        if self.policy.variant.cuts() {
            let kept = self.policy.protocol.response_tokens(self.settings.budget.context_tokens);
            let most = self.prompt_tokens.saturating_add(kept);
            if self.tokens.len() > most {
                // An answer ends the sequence, so it goes first.
                self.tokens.truncate(most);
                answer = None;
            }
        }
        let (usage, turns, searches) = (self.close(), self.actions.len(), self.evidence.len());
        let citations = match &answer {
            Some(answer) if self.settings.cites => cited(answer.clone(), self.passages()).await?,
            _ => Vec::new(),
        };
        let told = answer.clone();
        self.tell(Event::Finished { reason, answer: told, usage, turns, searches, citations }).await?;
        // It has ended as it should: nobody is to get what is left of it.
        self.remains = None;
        let Fragment { id, tokens, prompt_tokens, text, actions, evidence, usage, timings } = self.written();
        Ok(Trajectory { id, tokens, prompt_tokens, text, actions, evidence, answer, finish: reason, usage, timings })
    }

    /// What was found and not withdrawn, in the order in which it was.
    fn passages(&self) -> Vec<Passage> {
        let standing = self.evidence.iter().filter(|found| found.stands());
        standing.flat_map(|found| &found.hits).map(|hit| hit.passage.clone()).collect()
    }

    fn usage(&self) -> Usage {
        let count = |origin| self.tokens[self.prompt_tokens..].iter().filter(|token| token.origin == origin).count();
        let completion_tokens = count(Origin::Policy);
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            reasoning_tokens: completion_tokens.saturating_sub(self.answer_tokens),
            environment_tokens: count(Origin::Environment),
            cached_tokens: self.session.cached_prompt_tokens().min(self.prompt_tokens),
            searches: self.searches(),
            search_ms: self.timings.search * 1e3,
        }
    }

    /// Ends the sequence: tells what it took and frees its blocks, which neither the reading of passages nor a slow
    /// listener is to keep from others.
    fn close(&mut self) -> Usage {
        if let Some(usage) = self.spent {
            return usage;
        }
        let usage = self.usage();
        self.spent = Some(usage);
        self.timings.total = self.began.elapsed().as_secs_f64();
        // The one that it takes the place of is dropped; an empty one holds nothing.
        self.session = self.runtime.engine.open(SessionOptions::default());
        usage
    }

    /// Takes everything that was written down.
    fn written(&mut self) -> Fragment {
        let usage = self.close();
        let ids: Vec<u32> = self.tokens[self.prompt_tokens..].iter().map(|token| token.id).collect();
        Fragment {
            id: std::mem::take(&mut self.settings.id),
            tokens: std::mem::take(&mut self.tokens),
            prompt_tokens: self.prompt_tokens,
            text: self.runtime.tokenizer.decode(&ids),
            actions: std::mem::take(&mut self.actions),
            evidence: std::mem::take(&mut self.evidence),
            usage,
            timings: self.timings,
        }
    }

    pub(super) async fn tell(&self, event: Event) -> Result<(), AgentError> {
        self.events.send(event).await.map_err(|_| AgentError::Gone)
    }

    pub(super) async fn tell_all(&self, events: Vec<Event>) -> Result<(), AgentError> {
        for event in events {
            self.tell(event).await?;
        }
        Ok(())
    }
}

impl<S: Source> Drop for Run<S> {
    fn drop(&mut self) {
        // What is broken off by a panic is not read again: a second panic in here would end the whole process.
        if let Some(remains) = self.remains.take().filter(|_| !std::thread::panicking()) {
            // Whoever asked for it may have gone.
            let _ = remains.send(self.written());
        }
    }
}
