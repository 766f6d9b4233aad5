//! Runs a protocol's state machine: what is certain is forced, what is open is chosen by the policy's own probabilities.
//!
//! Log-probabilities stay honest: a forced token has none and is marked; a chosen one has that of the full distribution,
//! also where only a few tokens were allowed.

use std::sync::Arc;

use waymark_models::tokenizer::Tokenizer;

use super::AgentError;
use super::generator::Source;
use super::guide::{Guide, Offer, Shortcut, State};
use super::reader::Reader;
use super::run::Run;
use super::scanner::overlap;
use super::turn::{Ended, Want};
use crate::engine::StopSet;
use waymark_index::Mode;

/// Tokens that guided generation keeps a policy from, as logit biases.
#[derive(Debug)]
pub(super) struct Bans {
    /// Control tokens: they would end what the guide has not ended.
    always: Arc<[(u32, f32)]>,
    /// At the beginning of a span also white space alone and whatever could begin a tag, so that no span is empty.
    first: Arc<[(u32, f32)]>,
}

impl Bans {
    /// Below any logit, and finite.
    const NEVER: f32 = -1e9;

    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Bans {
        let (mut always, mut first) = (Vec::new(), Vec::new());
        for id in (0..).take(tokenizer.vocab()) {
            let bytes = tokenizer.bytes_of(id);
            if bytes.is_empty() || eos.contains(&id) {
                always.push((id, Self::NEVER));
            } else if bytes.contains(&b'<') || bytes.iter().all(u8::is_ascii_whitespace) {
                first.push((id, Self::NEVER));
            }
        }
        first.extend(&always);
        Bans { always: always.into(), first: first.into() }
    }
}

/// A branch of a choice: its tokens and where it leads.
type Branch = (Vec<u32>, usize);

impl<S: Source> Run<S> {
    /// The modes that the policy may choose from: one, where the request names it.
    pub(super) fn modes(&self) -> Vec<Mode> {
        let offered = self.runtime.searcher.as_ref().map(|searcher| searcher.modes().to_vec()).unwrap_or_default();
        match self.settings.mode {
            Some(mode) => vec![mode],
            None => offered,
        }
    }

    /// How the room of a turn is shared: most of it for thinking.
    pub(super) fn shares(&self, room: usize) -> Offer<'static> {
        const THINK: usize = 160;
        const QUERY: usize = 40;
        let answer_tokens = self.settings.budget.answer_tokens.min(room / 4).max(1);
        let query_tokens = QUERY.min(room / 4).max(1);
        let think_tokens = THINK.min(room / 2).max(1);
        Offer { search: true, modes: &[], think_tokens, query_tokens, answer_tokens }
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
                State::Free { close, limit, shortcuts, next } => {
                    ended = self.free(close, *limit, shortcuts, reader).await?;
                    at = match ended {
                        Ended::Tag(which) if which > 0 => shortcuts[which - 1].next,
                        Ended::Tag(_) | Ended::Length => *next,
                        Ended::Eos | Ended::Context | Ended::Stopped | Ended::Time => return Ok(ended),
                    };
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
                let want = Want { max: 1, stops: Arc::default(), allow: Some(ids), bans: None };
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

    /// Lets the policy write until `close`, or closes for it after `limit` tokens. [`Ended::Tag`] tells which tag ended
    /// it: 0 is `close`, the others are the shortcuts.
    async fn free(
        &mut self,
        close: &'static str,
        limit: usize,
        shortcuts: &[Shortcut],
        reader: &mut Reader,
    ) -> Result<Ended, AgentError> {
        let (first, always) = (self.runtime.bans().first.clone(), self.runtime.bans().always.clone());
        let begin = Want { max: 1, stops: Arc::default(), allow: None, bans: Some(first) };
        let mut ended = self.sample(reader, begin).await?;
        if ended == Ended::Length && limit > 1 {
            let tags = std::iter::once(close).chain(shortcuts.iter().map(|shortcut| shortcut.tag));
            let stops = Arc::new(StopSet::new(tags));
            ended = self.sample(reader, Want { max: limit - 1, stops, allow: None, bans: Some(always) }).await?;
        }
        if ended == Ended::Length {
            let written = overlap(reader.text(), close);
            let ids = self.runtime.literal(&close[written..])?;
            self.force(reader, &ids).await?;
        }
        Ok(ended)
    }
}
