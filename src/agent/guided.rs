//! Runs a protocol's state machine: what is certain is forced, what is open is chosen by the policy's own probabilities.
//!
//! Log-probabilities stay honest: a forced token has none and is marked; a chosen one has that of the full distribution,
//! also where only a few tokens were allowed.

use std::sync::Arc;

use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::budget::Bound;
use super::episode::line;
use super::generator::Source;
use super::guide::{Guide, Offer, State};
use super::reader::Reader;
use super::run::Run;
use super::scanner::overlap;
use super::trajectory::Found;
use super::turn::{Ended, Want};
use crate::engine::{Constraint, StopSet};

/// Tokens that guided generation keeps a policy from, as logit biases.
#[derive(Debug)]
pub(super) struct Bans {
    /// At the beginning of a span: what is banned inside, white space alone, and whatever could begin a tag or end a line,
    /// so that no span is empty.
    first: Arc<[(u32, f32)]>,
    /// Inside a span: control tokens and whatever could open a tag.
    inside: Arc<[(u32, f32)]>,
    /// The same without the tokens that end a sequence.
    last: Arc<[(u32, f32)]>,
}

impl Bans {
    /// Below any logit, and finite.
    const NEVER: f32 = -1e9;

    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Bans {
        // Where `</` is one token, a policy can close a tag without being able to open one; else it does neither.
        let closes = tokenizer.encode("</", Specials::Literal).is_ok_and(|ids| ids.len() == 1);
        let opens = |bytes: &[u8]| {
            let after = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'<').map(|(at, _)| bytes.get(at + 1));
            after.into_iter().any(|next| !closes || next != Some(&b'/'))
        };
        let (mut first, mut inside, mut last) = (Vec::new(), Vec::new(), Vec::new());
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

/// A branch of a choice: its tokens and where it leads.
type Branch = (Vec<u32>, usize);

impl<S: Source> Run<S> {
    /// What the policy may do in a turn of `room` tokens, most of which are for thinking.
    pub(super) fn offer(&self, room: usize, last: bool) -> Offer {
        const THINK: usize = 80;
        const QUERY: usize = 40;
        let offered = || self.runtime.searcher.as_ref().map_or_else(Vec::new, |searcher| searcher.modes());
        // Whoever repeats a search has nothing more to ask.
        let repeats = self.evidence.last().is_some_and(|found| found.cached);
        let used_up = self.used_up();
        let vain = |found: &Found| found.hits.is_empty() && found.triples.is_empty();
        let standing = self.evidence.iter().filter(|found| found.stands()).count();
        Offer {
            question: line(&self.question),
            informed: standing > 0,
            turn: self.turn,
            opened: self.opened().is_some(),
            search: !last && !repeats && used_up.is_none(),
            answer: standing >= self.settings.retrieval.least_searches,
            withdraw: !last
                && used_up != Some(Bound::EnvironmentTokens)
                && self.evidence.iter().rfind(|found| found.stands()).is_some_and(vain),
            refuse: !self.evidence.is_empty() && self.evidence.iter().filter(|found| found.stands()).all(vain),
            modes: self.settings.mode.map_or_else(offered, |mode| vec![mode]),
            think_tokens: THINK.min(room / 2).max(1),
            query_tokens: QUERY.min(room / 4).max(1),
            answer_tokens: self.settings.budget.answer_tokens.min(room / 4).max(1),
        }
    }

    /// Writes one turn after `guide`.
    pub(super) async fn follow(&mut self, guide: &Guide, reader: &mut Reader) -> Result<Ended, AgentError> {
        let (mut at, mut ended) = (0, Ended::Tag(0));
        loop {
            match &guide.states[at] {
                State::End => return Ok(ended),
                State::Force { text, next } => {
                    let ids = self.runtime.literal(text)?;
                    self.force(reader, &ids).await?;
                    at = *next;
                }
                State::Choose { branches } => match self.choose(branches, reader).await? {
                    Ok(next) => at = next,
                    Err(early) => return Ok(early),
                },
                State::Free { close, limit, pause, eos, next } => {
                    ended = self.free(close, *limit, pause, *eos, reader).await?;
                    if matches!(ended, Ended::Context | Ended::Stopped | Ended::Time) {
                        return Ok(ended);
                    }
                    at = *next;
                }
            }
        }
    }

    /// Lets the policy choose between texts, token by token where they part.
    async fn choose(
        &mut self,
        branches: &[(String, usize)],
        reader: &mut Reader,
    ) -> Result<Result<usize, Ended>, AgentError> {
        let mut live = self.branches(branches)?;
        let mut depth = 0;
        while live.len() > 1 {
            let mut ids: Vec<u32> = live.iter().map(|(ids, _)| ids[depth]).collect();
            ids.sort_unstable();
            ids.dedup();
            if let [only] = ids[..] {
                self.force(reader, &[only]).await?;
            } else {
                let want = Want { max: 1, allow: Some(ids), ..Want::default() };
                let ended = self.sample(reader, want).await?;
                if !matches!(ended, Ended::Length) {
                    return Ok(Err(ended));
                }
                let chosen = self.tokens.last().map(|token| token.id);
                live.retain(|(ids, _)| ids.get(depth).copied() == chosen);
            }
            depth += 1;
        }
        let Some((ids, next)) = live.pop() else { return Ok(Err(Ended::Eos)) };
        self.force(reader, &ids[depth..]).await?;
        Ok(Ok(next))
    }

    /// The branches in tokens. One that begins another is closed with a space, so that they part.
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

    /// Lets the policy write until `close`, `pause` or, where it may, the end of the sequence, and for `limit` tokens at
    /// most; closes for it where it has not.
    async fn free(
        &mut self,
        close: &'static str,
        limit: usize,
        pause: &'static str,
        eos: bool,
        reader: &mut Reader,
    ) -> Result<Ended, AgentError> {
        let shape = self.settings.shape.as_ref().filter(|shape| shape.ends(close));
        if let Some(constraint) = shape.map(|shape| Arc::clone(&shape.answer)) {
            return self.shaped(close, limit, constraint, reader).await;
        }
        let bans = self.runtime.bans();
        let (first, rest) = (bans.first.clone(), if eos { bans.last.clone() } else { bans.inside.clone() });
        let begin = Want { max: 1, bans: Some(first), ..Want::default() };
        let mut ended = self.sample(reader, begin).await?;
        if ended == Ended::Length && limit > 1 {
            let stops = Arc::new(StopSet::new([close, pause]));
            ended = self.sample(reader, Want { max: limit - 1, stops, bans: Some(rest), ..Want::default() }).await?;
        }
        if matches!(ended, Ended::Length | Ended::Eos | Ended::Tag(1..)) {
            let written = overlap(reader.text(), close);
            let ids = self.runtime.literal(&close[written..])?;
            self.force(reader, &ids).await?;
        }
        Ok(ended)
    }

    /// Lets the policy write an answer that is held to a rule, which closes it too. Such an answer is useless unless it
    /// is whole, so it may take what the budget leaves.
    async fn shaped(
        &mut self,
        close: &'static str,
        limit: usize,
        constraint: Arc<dyn Constraint>,
        reader: &mut Reader,
    ) -> Result<Ended, AgentError> {
        let max = self.room().unwrap_or(limit).max(limit);
        let stops = Arc::new(StopSet::new([close]));
        let ended = self.sample(reader, Want { max, stops, constraint: Some(constraint), ..Want::default() }).await?;
        if matches!(ended, Ended::Length | Ended::Eos) {
            let written = overlap(reader.text(), close);
            let ids = self.runtime.literal(&close[written..])?;
            self.force(reader, &ids).await?;
        }
        Ok(ended)
    }
}
