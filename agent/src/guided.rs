//! Guided generation: runs a protocol's state machine, which forces fixed text and lets the policy's probabilities
//! choose the rest.
//!
//! Log-probabilities stay honest: a forced token has none and is marked; a chosen token has that of the full
//! distribution, even if only a few tokens were allowed.

use std::sync::Arc;

use waymark_engine::{Constraint, StopSet};
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::budget::BudgetLimit;
use super::episode::line;
use super::generator::SessionSource;
use super::guide::{AllowedActions, Guide, GuideState};
use super::run::EpisodeRun;
use super::scanner::overlap;
use super::trajectory::SearchRecord;
use super::turn::{GenerationParams, TurnEnd};
use super::turn_reader::TurnReader;

/// Tokens banned in guided generation, as logit biases.
#[derive(Debug)]
pub(super) struct Bans {
    /// Bans at the beginning of a span: those inside a span, and tokens that are white space, begin a tag or end a
    /// line, so that no span is empty.
    first: Arc<[(u32, f32)]>,
    /// Bans inside a span: control tokens and tokens that could open a tag.
    inside: Arc<[(u32, f32)]>,
    /// Bans inside a span that an end-of-sequence token may end.
    last: Arc<[(u32, f32)]>,
}

impl Bans {
    /// A bias below any logit, and finite.
    const NEVER: f32 = -1e9;

    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Bans {
        // If `</` is one token, a policy can close a tag without being able to open one; otherwise both are banned.
        let closes = tokenizer.encode("</", Specials::Literal).is_ok_and(|ids| ids.len() == 1);
        let opens = |bytes: &[u8]| {
            let after = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'<').map(|(at, _)| bytes.get(at + 1));
            after.into_iter().any(|next| !closes || next != Some(&b'/'))
        };
        let mut first = Vec::new();
        let mut inside = Vec::new();
        let mut last = Vec::new();
        for id in (0..).take(tokenizer.vocab()) {
            let bytes = tokenizer.bytes_of(id);
            let ban = (id, Self::NEVER);
            if eos.contains(&id) {
                first.push(ban);
                inside.push(ban);
            } else if bytes.is_empty() || opens(bytes) {
                first.push(ban);
                inside.push(ban);
                last.push(ban);
            } else if bytes.iter().any(|byte| b"<\n".contains(byte))
                || bytes.iter().all(|&byte| char::from(byte).is_whitespace())
            {
                first.push(ban);
            }
        }
        Bans { first: first.into(), inside: inside.into(), last: last.into() }
    }
}

/// A branch of a choice: its tokens and its next state.
type Branch = (Vec<u32>, usize);

impl<S: SessionSource> EpisodeRun<S> {
    /// Returns the actions allowed in a turn of `room` tokens, most of which are for thinking.
    pub(super) fn offer(&self, room: usize, last: bool) -> AllowedActions {
        const THINK: usize = 80;
        const QUERY: usize = 40;
        let offered = || self.runtime.searcher.as_ref().map_or_else(Vec::new, |searcher| searcher.modes());
        // A policy that repeats a search has no other question left.
        let repeats = self.evidence.last().is_some_and(|found| found.cached);
        let exhausted = self.exhausted_limit();
        let found_nothing = |found: &SearchRecord| found.hits.is_empty() && found.triples.is_empty();
        let standing = self.evidence.iter().filter(|found| found.stands()).count();
        AllowedActions {
            question: line(&self.question),
            informed: standing > 0,
            turn: self.turn,
            opened: self.opened().is_some(),
            search: !last && !repeats && exhausted.is_none(),
            answer: standing >= self.settings.retrieval.least_searches,
            withdraw: !last
                && exhausted != Some(BudgetLimit::EnvironmentTokens)
                && self.evidence.iter().rfind(|found| found.stands()).is_some_and(found_nothing),
            refuse: !self.evidence.is_empty() && self.evidence.iter().filter(|found| found.stands()).all(found_nothing),
            modes: self.settings.mode.map_or_else(offered, |mode| vec![mode]),
            think_tokens: THINK.min(room / 2).max(1),
            query_tokens: QUERY.min(room / 4).max(1),
            answer_tokens: self.settings.budget.answer_tokens.min(room / 4).max(1),
        }
    }

    /// Writes one turn with `guide`.
    pub(super) async fn follow(&mut self, guide: &Guide, reader: &mut TurnReader) -> Result<TurnEnd, AgentError> {
        let mut at = 0;
        let mut ended = TurnEnd::Tag(0);
        loop {
            match &guide.states[at] {
                GuideState::End => return Ok(ended),
                GuideState::Force { text, next } => {
                    let ids = self.runtime.literal(text)?;
                    self.force(reader, &ids).await?;
                    at = *next;
                }
                GuideState::Choose { branches } => match self.choose(branches, reader).await? {
                    Ok(next) => at = next,
                    Err(early) => return Ok(early),
                },
                GuideState::Free { close, limit, pause, eos, next } => {
                    ended = self.free(close, *limit, pause, *eos, reader).await?;
                    if matches!(ended, TurnEnd::Context | TurnEnd::Stopped | TurnEnd::Time) {
                        return Ok(ended);
                    }
                    at = *next;
                }
            }
        }
    }

    /// Lets the policy choose between texts, token by token where they differ.
    async fn choose(
        &mut self,
        branches: &[(String, usize)],
        reader: &mut TurnReader,
    ) -> Result<Result<usize, TurnEnd>, AgentError> {
        let mut live = self.branches(branches)?;
        let mut depth = 0;
        while live.len() > 1 {
            let mut ids: Vec<u32> = live.iter().map(|(ids, _)| ids[depth]).collect();
            ids.sort_unstable();
            ids.dedup();
            if let [only] = ids[..] {
                self.force(reader, &[only]).await?;
            } else {
                // One token is enough: the allowed tokens differ at this depth.
                let want = GenerationParams { max: 1, allow: Some(ids), ..GenerationParams::default() };
                let ended = self.sample(reader, want).await?;
                if !matches!(ended, TurnEnd::Length) {
                    return Ok(Err(ended));
                }
                let chosen = self.tokens.last().map(|token| token.id);
                live.retain(|(ids, _)| ids.get(depth).copied() == chosen);
            }
            depth += 1;
        }
        let Some((ids, next)) = live.pop() else { return Ok(Err(TurnEnd::Eos)) };
        self.force(reader, &ids[depth..]).await?;
        Ok(Ok(next))
    }

    /// Encodes the branches. A branch that is a prefix of another one gets a space at its end, so that they differ.
    fn branches(&self, branches: &[(String, usize)]) -> Result<Vec<Branch>, AgentError> {
        let mut all: Vec<Branch> = Vec::with_capacity(branches.len());
        for (text, next) in branches {
            all.push((self.runtime.literal(text)?, *next));
        }
        let space = self.runtime.literal(" ")?;
        for i in 0..all.len() {
            let begins = |other: &Branch| other.0.len() > all[i].0.len() && other.0.starts_with(&all[i].0);
            if all.iter().any(begins) {
                all[i].0.extend(&space);
            }
        }
        Ok(all)
    }

    /// Lets the policy write at most `limit` tokens, until `close`, `pause` or, with `eos`, the end of the sequence;
    /// then closes the span if the policy has not.
    async fn free(
        &mut self,
        close: &'static str,
        limit: usize,
        pause: &'static str,
        eos: bool,
        reader: &mut TurnReader,
    ) -> Result<TurnEnd, AgentError> {
        let shape = self.settings.shape.as_ref().filter(|shape| shape.ends(close));
        if let Some(constraint) = shape.map(|shape| Arc::clone(&shape.answer)) {
            return self.shaped(close, limit, constraint, reader).await;
        }
        let bans = self.runtime.bans();
        let first = bans.first.clone();
        let rest = if eos { bans.last.clone() } else { bans.inside.clone() };
        // The first token has its own bans, so that the span is not empty.
        let begin = GenerationParams { max: 1, bans: Some(first), ..GenerationParams::default() };
        let mut ended = self.sample(reader, begin).await?;
        if ended == TurnEnd::Length && limit > 1 {
            let stops = Arc::new(StopSet::new([close, pause]));
            ended = self
                .sample(
                    reader,
                    GenerationParams { max: limit - 1, stops, bans: Some(rest), ..GenerationParams::default() },
                )
                .await?;
        }
        if matches!(ended, TurnEnd::Length | TurnEnd::Eos | TurnEnd::Tag(1..)) {
            // The policy may have written a part of the closing tag.
            let written = overlap(reader.text(), close);
            let ids = self.runtime.literal(&close[written..])?;
            self.force(reader, &ids).await?;
        }
        Ok(ended)
    }

    /// Lets the policy write an answer under a constraint, which also closes it. An incomplete answer would be useless,
    /// so it may take all that the budget leaves.
    async fn shaped(
        &mut self,
        close: &'static str,
        limit: usize,
        constraint: Arc<dyn Constraint>,
        reader: &mut TurnReader,
    ) -> Result<TurnEnd, AgentError> {
        let max = self.room().unwrap_or(limit).max(limit);
        let stops = Arc::new(StopSet::new([close]));
        let ended = self
            .sample(
                reader,
                GenerationParams { max, stops, constraint: Some(constraint), ..GenerationParams::default() },
            )
            .await?;
        if matches!(ended, TurnEnd::Length | TurnEnd::Eos) {
            let written = overlap(reader.text(), close);
            let ids = self.runtime.literal(&close[written..])?;
            self.force(reader, &ids).await?;
        }
        Ok(ended)
    }
}
