//! The loop: prompt, turn, action, observation, and again.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use waymark_engine::{Origin, SessionOptions, StopSet, Token};
use waymark_index::Passage;

use super::AgentError;
use super::answer_filter::AnswerFilter;
use super::budget::BudgetLimit;
use super::citation::cited;
use super::episode::{Episode, EpisodeSettings};
use super::event::{EpisodeEnd, Event, Usage};
use super::generator::{Generator, SessionSource};
use super::observation::observe;
use super::policy::Policy;
use super::protocol::{Action, ActionOutcome, Injected, ReadingRule, SegmentKind};
use super::runtime::Runtime;
use super::trajectory::{ActionRecord, PartialTrajectory, SearchRecord, Timings, Trajectory};
use super::turn::{GenerationParams, TurnEnd};
use super::turn_reader::TurnReader;

/// A running episode.
pub(super) struct EpisodeRun<S: SessionSource> {
    pub(super) runtime: Runtime<S>,
    pub(super) policy: Policy,
    pub(super) settings: EpisodeSettings,
    pub(super) question: String,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) session: S::Sequence,
    /// Record of every token. Equals the content of the session, except in the training variant.
    pub(super) tokens: Vec<Token>,
    prompt_tokens: usize,
    pub(super) turn: usize,
    /// Number of sampled tokens; in the training variant, of kept ones.
    pub(super) sampled: usize,
    /// Number of generations so far. Each has its own random sequence.
    pub(super) generations: u64,
    answer_tokens: usize,
    actions: Vec<ActionRecord>,
    pub(super) evidence: Vec<SearchRecord>,
    /// Tokens left for observations. `None` without a limit on all of them.
    environment_left: Option<usize>,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) timings: Timings,
    /// Final usage, once the session is closed.
    spent: Option<Usage>,
    turn_stops: Arc<StopSet>,
    /// Receiver of the partial record if the episode is interrupted.
    partial: Option<oneshot::Sender<PartialTrajectory>>,
}

/// Minimum number of tokens of a guided turn; a shorter one has no room for text.
const LEAST_GUIDED: usize = 8;

/// Text of a refusal without an explanation.
const DEFAULT_REFUSAL: &str = "The question cannot be answered.";

/// End of an episode.
struct EpisodeResult {
    reason: EpisodeEnd,
    answer: Option<String>,
}

impl<S: SessionSource> EpisodeRun<S> {
    pub(super) fn new(episode: Episode<S>, events: mpsc::Sender<Event>) -> EpisodeRun<S> {
        let Episode { runtime, policy, settings, question, prompt, partial } = episode;
        let session = runtime.engine.open(settings.session(&policy));
        let began = Instant::now();
        let stops = match policy.variant.is_training() {
            true => StopSet::default(),
            false => StopSet::new(policy.protocol.stops()).with_lines(policy.protocol.lines()),
        };
        let mut run = EpisodeRun {
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
            partial,
        };
        run.append(&prompt, Origin::Prompt, false);
        run
    }

    pub(super) async fn play(mut self) -> Result<Trajectory, AgentError> {
        self.emit(Event::Started {
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

    /// Runs turns and observations until the episode ends.
    async fn rounds(&mut self) -> Result<EpisodeResult, AgentError> {
        let rounds = self.settings.budget.turns;
        for round in 0..=rounds {
            let last = round == rounds;
            if last && rounds > 0 {
                self.emit(Event::Budget { kind: BudgetLimit::Turns }).await?;
                if !self.concludes() {
                    break;
                }
            }
            let (reader, ended, exhausted) = self.turn(last).await?;
            let action = self.action(&reader);
            let over = self.is_over(&action, &reader);
            let goes_on = !last && exhausted.is_none() && ended != TurnEnd::Time && !action.ends() && !over;
            self.answer_tokens += reader.answer_tokens();
            // An exhausted limit on searches or observations ends the episode like exhausted rounds.
            let spent =
                exhausted.is_some_and(|bound| matches!(bound, BudgetLimit::Searches | BudgetLimit::EnvironmentTokens));
            self.act(&action, &reader, goes_on, last || spent).await?;
            if ended == TurnEnd::Time {
                self.emit(Event::Budget { kind: BudgetLimit::Time }).await?;
            }
            let reason = match ended {
                TurnEnd::Time => EpisodeEnd::Time,
                TurnEnd::Length | TurnEnd::Context => EpisodeEnd::Length,
                TurnEnd::Tag(_) | TurnEnd::Eos | TurnEnd::Stopped => EpisodeEnd::Stop,
            };
            match action {
                Action::Answer { text } => return Ok(EpisodeResult { reason, answer: Some(text) }),
                Action::Refuse { .. } if reason == EpisodeEnd::Stop => {
                    return Ok(EpisodeResult { reason: EpisodeEnd::Refused, answer: None });
                }
                Action::Refuse { .. } => return Ok(EpisodeResult { reason, answer: None }),
                _ if goes_on => {}
                _ if ended == TurnEnd::Time => return Ok(EpisodeResult { reason, answer: None }),
                _ if over => return Ok(EpisodeResult { reason, answer: None }),
                _ if exhausted.is_some() && !spent => {
                    return Ok(EpisodeResult { reason: EpisodeEnd::Length, answer: None });
                }
                _ => return Ok(EpisodeResult { reason: EpisodeEnd::Turns, answer: None }),
            }
            // Searches do not end a turn, so their time is checked here.
            if Instant::now() >= self.deadline {
                self.emit(Event::Budget { kind: BudgetLimit::Time }).await?;
                return Ok(EpisodeResult { reason: EpisodeEnd::Time, answer: None });
            }
        }
        Ok(EpisodeResult { reason: EpisodeEnd::Turns, answer: None })
    }

    /// Runs one turn. If the turn is the last one, or the budget leaves no room for another, and it contains no answer,
    /// an answer is forced. Also returns the limit that leaves no room for another turn, if any.
    async fn turn(&mut self, last: bool) -> Result<(TurnReader, TurnEnd, Option<BudgetLimit>), AgentError> {
        self.turn += 1;
        self.emit(Event::TurnStarted { turn: self.turn }).await?;
        self.reopen_session();
        // Cutting a training turn replaces the tokens from here on.
        let start = self.tokens.len();
        let mut reader = self.reader();
        let mut ended = match self.room() {
            Ok(room) => self.write(&mut reader, room, last).await?,
            Err(_) => TurnEnd::Length,
        };
        let cuts = self.policy.variant.is_training();
        if cuts {
            // Cut tokens do not count, so the cut precedes every look at the remaining budget.
            self.emit_all(reader.finish()).await?;
            self.cut_turn(start, reader.text())?;
        }
        let action = self.action(&reader);
        let unanswered = !action.ends();
        let over = self.is_over(&action, &reader);
        let asks = unanswered && !over && !last;
        let exhausted = self.room().err().or_else(|| self.blocking_limit(&action).filter(|_| asks));
        if let Some(bound) = exhausted.filter(|_| unanswered) {
            self.emit(Event::Budget { kind: bound }).await?;
        }
        // The action is not or cannot be executed, so the turn ends as the last one does.
        let closing = last || exhausted.is_some() || over;
        if closing && unanswered && ended != TurnEnd::Time && self.policy.variant.is_serving() {
            ended = self.force_answer(&mut reader).await?.unwrap_or(ended);
        }
        if !cuts {
            self.emit_all(reader.finish()).await?;
        }
        Ok((reader, ended, exhausted))
    }

    /// Lets the policy write a turn, guided or free.
    async fn write(&mut self, reader: &mut TurnReader, room: usize, last: bool) -> Result<TurnEnd, AgentError> {
        if self.settings.guided {
            if let Some(kind) = self.exhausted_limit().filter(|_| !last) {
                self.emit(Event::Budget { kind }).await?;
            }
            let offer = self.offer(room, last);
            if let Some(guide) = self.policy.protocol.guide(&offer) {
                return self.follow(&guide, reader).await;
            }
        }
        let constraint = self.settings.shape.as_ref().map(|shape| Arc::clone(&shape.turn));
        let want =
            GenerationParams { max: room, stops: self.turn_stops.clone(), constraint, ..GenerationParams::default() };
        self.sample(reader, want).await
    }

    fn reader(&self) -> TurnReader {
        let tags = self.policy.protocol.tags();
        let filter = self.policy.variant.is_serving().then(|| self.filter());
        let tokenizer = self.runtime.tokenizer.clone();
        let reader = TurnReader::new(self.turn, tokenizer, tags, filter, self.settings.logprobs.is_some());
        if self.opened().is_some() { reader.inside(tags, SegmentKind::Think) } else { reader }
    }

    /// Returns the tag of the thought that the prompt has opened, in which this turn begins.
    pub(super) fn opened(&self) -> Option<&'static str> {
        self.settings.opened.filter(|_| self.turn == 1)
    }

    /// Returns the action of a turn. In the serving loop an answer that has begun is the action, because the client has
    /// seen it.
    fn action(&self, reader: &TurnReader) -> Action {
        if let Some(text) = reader.answer() {
            return Action::Answer { text: text.to_owned() };
        }
        let kept =
            if self.policy.variant.is_training() { self.policy.protocol.cut(reader.text()) } else { reader.text() };
        // Protocols read a turn by itself, so the tag that the prompt has opened is prepended.
        let read = self.opened().map_or(Cow::Borrowed(kept), |open| Cow::Owned(format!("{open}{kept}")));
        match self.policy.protocol.parse(&read, self.reading()) {
            Action::Answer { text } => {
                // This answer was not shown yet, so the client's stop strings still have to be applied.
                let mut filter = self.filter();
                filter.push(&text);
                filter.finish();
                Action::Answer { text: filter.shown().to_owned() }
            }
            action => action,
        }
    }

    /// Returns `true` if one more turn follows the last round.
    fn concludes(&self) -> bool {
        self.policy.variant.is_serving() || self.settings.guided || self.policy.protocol.concludes()
    }

    /// Returns the rule for reading actions. A guided turn is never refused.
    fn reading(&self) -> ReadingRule {
        if self.settings.guided { ReadingRule::Guided } else { self.policy.variant.reading() }
    }

    /// Returns `true` if the turn is invalid and the protocol gives no second try.
    fn is_over(&self, action: &Action, reader: &TurnReader) -> bool {
        *action == Action::Invalid && self.rejection(reader).is_empty()
    }

    /// Returns the observation after an invalid turn.
    fn rejection(&self, reader: &TurnReader) -> Vec<Injected> {
        self.policy.protocol.observation(&ActionOutcome::Invalid(reader.text()), self.settings.retrieval.format)
    }

    fn filter(&self) -> AnswerFilter {
        let filter = AnswerFilter::new(&self.settings.stop, self.policy.protocol.tags().trims);
        filter.ended_by_call(&self.settings.one_call)
    }

    /// Records the action of a turn and executes it.
    async fn act(&mut self, action: &Action, reader: &TurnReader, goes_on: bool, late: bool) -> Result<(), AgentError> {
        let turn = self.turn;
        let executed = goes_on || action.ends();
        let summary = self.policy.protocol.summary(reader.text());
        self.actions.push(ActionRecord { turn, action: action.clone(), executed, late, summary });
        if !matches!(action, Action::Refuse { .. }) && !reader.withheld().is_empty() {
            let text = reader.withheld().to_owned();
            let tokens = Vec::new();
            self.emit(Event::Text { turn, text, tokens }).await?;
        }
        match action {
            Action::Answer { text } if reader.answer().is_none() && !text.is_empty() => {
                self.emit(Event::Answer { text: text.clone(), tokens: Vec::new() }).await
            }
            Action::Refuse { text } => {
                let text = if text.is_empty() { DEFAULT_REFUSAL } else { text };
                self.emit(Event::Refusal { text: text.to_owned() }).await
            }
            Action::Search(request) if goes_on => {
                let parts = self.search_for(request).await?;
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
                self.emit(Event::Invalid { turn: self.turn, message }).await?;
                self.inject(parts).await
            }
            _ => Ok(()),
        }
    }

    /// Removes from an observation the text that the policy has already written at its beginning: a tag that both ends
    /// the turn and begins the observation, and white space, since the last token may extend beyond the closing tag. In
    /// training such a rest was cut.
    fn joined(&self, mut parts: Vec<Injected>, turn: &str) -> Vec<Injected> {
        let protocol = &self.policy.protocol;
        let (kept, rest) = turn.split_at(protocol.cut(turn).len());
        let Some(Injected::Frame(first)) = parts.first_mut() else { return parts };
        let written = |stop: &&&str| kept.ends_with(**stop) && first.starts_with(**stop);
        if let Some(stop) = protocol.stops().iter().find(written) {
            first.replace_range(..stop.len(), "");
        }
        if self.policy.variant.is_serving()
            && rest.trim().is_empty()
            && let Some(shorter) = first.strip_prefix(rest)
        {
            *first = shorter.to_owned();
        }
        parts
    }

    /// Appends an observation to the context, as far as the budget allows.
    async fn inject(&mut self, parts: Vec<Injected>) -> Result<(), AgentError> {
        let (limit, kind) = self.observation_limit();
        let observation = observe(&self.runtime, parts, self.settings.retrieval.format, limit)?;
        if observation.truncated {
            self.emit(Event::Budget { kind }).await?;
        }
        if let Some(left) = &mut self.environment_left {
            // The cut may leave a token or two, too few for another observation.
            let spent = observation.truncated && kind == BudgetLimit::EnvironmentTokens;
            *left = if spent { 0 } else { left.saturating_sub(observation.ids.len()) };
        }
        self.append(&observation.ids, Origin::Environment, false);
        let tokens = observation.ids.len();
        let truncated = observation.truncated;
        self.emit(Event::Observation { turn: self.turn, text: observation.text, tokens, truncated }).await
    }

    /// Returns the maximum length of an observation in tokens, and the limit that determines it.
    pub(super) fn observation_limit(&self) -> (usize, BudgetLimit) {
        let most = self.settings.budget.observation_tokens;
        let room = self.context_left().saturating_sub(self.settings.reserved);
        let (limit, bound) =
            if room < most { (room, BudgetLimit::Context) } else { (most, BudgetLimit::ObservationTokens) };
        match self.environment_left {
            Some(left) if left <= limit => (left, BudgetLimit::EnvironmentTokens),
            _ => (limit, bound),
        }
    }

    /// Returns the limit that prevents an observation after `action` from which the policy could continue, if any.
    fn blocking_limit(&self, action: &Action) -> Option<BudgetLimit> {
        let (most, bound) = self.observation_limit();
        if most < self.settings.frame {
            return Some(bound);
        }
        match self.exhausted_limit()? {
            BudgetLimit::Searches => {
                matches!(action, Action::Search(request) if !self.repeats(request)).then_some(BudgetLimit::Searches)
            }
            bound => Some(bound),
        }
    }

    /// Returns the exhausted limit of the environment, if any: no more searches are executed, or no observation fits.
    pub(super) fn exhausted_limit(&self) -> Option<BudgetLimit> {
        let budget = &self.settings.budget;
        if self.environment_left.is_some_and(|left| left < self.settings.frame.max(1)) {
            return Some(BudgetLimit::EnvironmentTokens);
        }
        budget.searches.is_some_and(|most| self.searches() >= most).then_some(BudgetLimit::Searches)
    }

    /// Returns the number of executed searches.
    fn searches(&self) -> usize {
        self.evidence.iter().filter(|found| !found.cached).count()
    }

    /// Returns the maximum number of tokens of the next turn, or the limit that leaves too few. The tokens of a forced
    /// answer are reserved.
    pub(super) fn room(&self) -> Result<usize, BudgetLimit> {
        let budget = &self.settings.budget;
        let aside = if self.policy.forces() { budget.reserve(budget.sampled_tokens) } else { 0 };
        let sampled = budget.sampled_tokens.saturating_sub(self.sampled + aside);
        let context = self.context_left().saturating_sub(self.settings.reserved);
        let enough = if self.settings.guided { LEAST_GUIDED } else { 1 };
        match (sampled, context) {
            (sampled, _) if sampled < enough => Err(BudgetLimit::SampledTokens),
            (_, context) if context < enough => Err(BudgetLimit::Context),
            _ => Ok(budget.turn_tokens.min(sampled).min(context)),
        }
    }

    /// Returns the number of tokens by which the sequence may still grow.
    pub(super) fn context_left(&self) -> usize {
        if self.policy.variant.is_training() {
            // Each turn sees only the end of the sequence, so its length is not limited.
            return usize::MAX;
        }
        self.settings.context.saturating_sub(self.tokens.len())
    }

    /// Forces the opening of an answer and lets the policy continue. `None` if the protocol cannot force one.
    async fn force_answer(&mut self, reader: &mut TurnReader) -> Result<Option<TurnEnd>, AgentError> {
        let Some(opening) = self.policy.protocol.force_answer(reader.writing()) else { return Ok(None) };
        let ids = self.runtime.literal(&opening)?;
        let left = self.settings.budget.sampled_tokens.saturating_sub(self.sampled);
        let max = left.min(self.settings.budget.turn_tokens).min(self.context_left().saturating_sub(ids.len()));
        if max == 0 {
            return Ok(Some(TurnEnd::Length));
        }
        self.force(reader, &ids).await?;
        let constraint = self.settings.shape.as_ref().map(|shape| Arc::clone(&shape.answer));
        let want = GenerationParams { max, stops: self.turn_stops.clone(), constraint, ..GenerationParams::default() };
        self.sample(reader, want).await.map(Some)
    }

    async fn finish(&mut self, end: EpisodeResult) -> Result<Trajectory, AgentError> {
        let EpisodeResult { reason, mut answer } = end;
        if self.policy.variant.is_training() {
            let kept = self.policy.protocol.response_tokens(self.settings.budget.context_tokens);
            let most = self.prompt_tokens.saturating_add(kept);
            if self.tokens.len() > most {
                // The answer is at the end of the sequence, so it is cut first.
                self.tokens.truncate(most);
                answer = None;
            }
        }
        let usage = self.close();
        let turns = self.actions.len();
        let searches = self.evidence.len();
        let citations = match &answer {
            Some(answer) if self.settings.cites => cited(answer.clone(), self.passages()).await?,
            _ => Vec::new(),
        };
        let told = answer.clone();
        self.emit(Event::Finished { reason, answer: told, usage, turns, searches, citations }).await?;
        // The episode has ended normally, so there is no partial record.
        self.partial = None;
        let PartialTrajectory { id, tokens, prompt_tokens, text, actions, evidence, usage, timings } =
            self.take_record();
        Ok(Trajectory { id, tokens, prompt_tokens, text, actions, evidence, answer, finish: reason, usage, timings })
    }

    /// Returns the passages found and not withdrawn, in the order of retrieval.
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

    /// Closes the sequence and returns its usage. Its blocks are freed before passages are read for citations, and
    /// before a slow receiver of events can delay that.
    fn close(&mut self) -> Usage {
        if let Some(usage) = self.spent {
            return usage;
        }
        let usage = self.usage();
        self.spent = Some(usage);
        self.timings.total = self.began.elapsed().as_secs_f64();
        // Replacing the session drops it; an empty one holds no blocks.
        self.session = self.runtime.engine.open(SessionOptions::default());
        usage
    }

    /// Takes the whole record.
    fn take_record(&mut self) -> PartialTrajectory {
        let usage = self.close();
        let ids: Vec<u32> = self.tokens[self.prompt_tokens..].iter().map(|token| token.id).collect();
        PartialTrajectory {
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

    pub(super) async fn emit(&self, event: Event) -> Result<(), AgentError> {
        self.events.send(event).await.map_err(|_| AgentError::Disconnected)
    }

    pub(super) async fn emit_all(&self, events: Vec<Event>) -> Result<(), AgentError> {
        for event in events {
            self.emit(event).await?;
        }
        Ok(())
    }
}

impl<S: SessionSource> Drop for EpisodeRun<S> {
    fn drop(&mut self) {
        // After a panic the record is not taken: a second panic in here would abort the process.
        if let Some(partial) = self.partial.take().filter(|_| !std::thread::panicking()) {
            // The receiver may have been dropped.
            let _ = partial.send(self.take_record());
        }
    }
}
