//! A baseline's run on one question: its generations and searches, and their record.

use std::time::Instant;

use waymark_agent::{
    AgentError, Budget, ConversationMessage, EpisodeEnd, EpisodeOptions, ExcludedPassages, Policy, ProtocolPrompt,
    Role, Runtime, Sampling, SearchQuery, SearchRecord, SessionSource, Verbatim,
};
use waymark_index::{Hit, SearchOptions};

use crate::evaluate::question::Question;
use crate::evaluate::row::TokenCounts;
use crate::evaluate::{EpisodeRow, EvaluationPlan, play};

/// A baseline's run on one question.
pub(super) struct BaselineRun<'a, S: SessionSource> {
    runtime: &'a Runtime<S>,
    /// The base model, which continues a text.
    policy: Policy,
    question: &'a Question,
    search: &'a SearchOptions,
    plan: &'a EvaluationPlan,
    seed: u64,
    started: Instant,
    first_token: Option<f64>,
    search_seconds: f64,
    turns: usize,
    tokens: TokenCounts,
    evidence: Vec<SearchRecord>,
    text: String,
    /// If `true`, a generation ended at its token limit.
    cut: bool,
}

/// Text of one generation.
#[derive(Debug)]
pub(super) struct Generated {
    pub(super) text: String,
    /// If `true`, a stop string ended the text; otherwise the model or the limit did.
    pub(super) stopped: bool,
}

impl<'a, S: SessionSource> BaselineRun<'a, S> {
    /// Creates a run without any generation.
    ///
    /// # Errors
    /// If the built-in policy `plain` is missing.
    pub(super) fn new(
        runtime: &'a Runtime<S>,
        question: &'a Question,
        search: &'a SearchOptions,
        plan: &'a EvaluationPlan,
        seed: u64,
    ) -> Result<BaselineRun<'a, S>, AgentError> {
        let plain = Policy::builtin("plain")
            .ok_or(AgentError::Option { field: "policy", reason: "the built-in policy plain is missing" })?;
        let policy = Verbatim::over(&plain);
        let budget = Budget { seconds: plan.seconds, ..policy.budget };
        Ok(BaselineRun {
            runtime,
            policy: Policy { budget, sampling: Sampling::greedy(), ..policy },
            question,
            search,
            plan,
            seed,
            started: Instant::now(),
            first_token: None,
            search_seconds: 0.0,
            turns: 0,
            tokens: TokenCounts::default(),
            evidence: Vec::new(),
            text: String::new(),
            cut: false,
        })
    }

    /// Returns the text of the question.
    pub(super) fn question(&self) -> &'a str {
        &self.question.question
    }

    /// Continues the reply `written` to a chat by at most `limit` tokens, up to a stop string, which is not returned.
    /// Greedy unless the evaluation samples.
    pub(super) async fn generate(
        &mut self,
        messages: &[ConversationMessage],
        written: &str,
        stops: &[&str],
        limit: usize,
    ) -> Result<Generated, AgentError> {
        let mut prompt = self.runtime.encode(&ProtocolPrompt::Chat(messages.to_vec()))?;
        // `written` is encoded as plain text, so that quoted evidence in it cannot become a control token.
        prompt.extend(self.runtime.literal(written)?);
        let options = EpisodeOptions {
            prompt: Some(prompt),
            sampling: self.plan.sampling.clone(),
            seed: self.seed.wrapping_add(self.turns as u64),
            stop: stops.iter().map(|&stop| stop.to_owned()).collect(),
            max_tokens: Some(limit),
            ..EpisodeOptions::default()
        };
        let before = self.started.elapsed().as_secs_f64();
        let trajectory = play(self.runtime, &self.policy, self.question(), options).await?;
        self.first_token = self.first_token.or(trajectory.timings.first_token.map(|first| before + first));
        self.turns += 1;
        self.tokens.prompt += trajectory.prompt_tokens;
        self.tokens.sampled += trajectory.response().len();
        self.cut |= trajectory.finish != EpisodeEnd::Stop;
        let ids: Vec<u32> = trajectory.response().iter().map(|token| token.id).collect();
        let sampled = self.runtime.tokenizer.decode(&ids);
        let stopped = stops.iter().any(|stop| sampled.contains(stop));
        let text = trajectory.answer.unwrap_or_default();
        self.text.push_str(&text);
        self.text.push('\n');
        Ok(Generated { text, stopped })
    }

    /// Searches for `query`, with `defaults` for what the evaluation does not force and without the passages that
    /// the question withholds. A failed search finds nothing and is recorded as such.
    ///
    /// # Errors
    /// [`AgentError::NoIndex`] without an index, and the error of [`ExcludedPassages::new`].
    pub(super) async fn search(&mut self, query: &str, defaults: &SearchOptions) -> Result<Vec<Hit>, AgentError> {
        let Some(searcher) = &self.runtime.searcher else {
            return Err(AgentError::NoIndex { policy: "baseline".to_owned() });
        };
        let options = self.search.clone().or(defaults);
        let excluded = ExcludedPassages::new(&self.question.without)?;
        let started = Instant::now();
        let wanted = excluded.widen(options.query(query));
        let found = searcher.search(SearchQuery::from(wanted)).await.map(|found| excluded.narrow(found, &options));
        let asked = SearchRecord::asked(self.turns + 1, query.to_owned(), Vec::new(), options.mode());
        let record = asked.with_result(found, started.elapsed());
        self.search_seconds += record.seconds;
        let hits = record.hits.clone();
        self.evidence.push(record);
        Ok(hits)
    }

    /// Forgets that generations ended at their token limit. Procedures call it where they expect this.
    pub(super) fn forgive_cuts(&mut self) {
        self.cut = false;
    }

    /// Counts `text` as evidence that the model reads. Call it once per text, before its first use in a prompt.
    pub(super) fn show(&mut self, text: &str) -> Result<(), AgentError> {
        self.tokens.environment += self.runtime.literal(text)?.len();
        Ok(())
    }

    /// Scores the answer. `valid` is `true` if the answer was marked as the procedure requires.
    pub(super) fn finish(self, answer: Option<&str>, valid: bool) -> EpisodeRow {
        let cost = &self.plan.cost;
        let scored = EpisodeRow::scored(self.question, answer, &self.evidence, cost);
        // Prompts contain the evidence, which is counted on its own.
        let prompt = self.tokens.prompt.saturating_sub(self.tokens.environment);
        EpisodeRow {
            valid: valid && !self.cut,
            finish: Some(if self.cut { EpisodeEnd::Length } else { EpisodeEnd::Stop }),
            turns: self.turns,
            retrieval_seconds: self.search_seconds,
            tokens: TokenCounts { prompt, ..self.tokens },
            seconds: self.started.elapsed().as_secs_f64(),
            first_token: self.first_token,
            text: self.text,
            ..scored
        }
    }
}

/// Creates a message of the user.
pub(super) fn user(text: impl Into<String>) -> ConversationMessage {
    ConversationMessage::new(Role::User, text)
}

/// Creates a message of the model.
pub(super) fn assistant(text: impl Into<String>) -> ConversationMessage {
    ConversationMessage::new(Role::Assistant, text)
}

/// Creates an instruction.
pub(super) fn system(text: impl Into<String>) -> ConversationMessage {
    ConversationMessage::new(Role::System, text)
}
