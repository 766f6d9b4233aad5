//! A protocol as a small state machine, for policies that were never trained in it.

use waymark_index::Mode;

use super::tool_call::OPEN;

/// Actions allowed in the next turn.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedActions {
    /// The question in one line, without any text that reads like a tag.
    pub question: String,
    /// If `true`, the episode, or one that it continues, has a search that was not withdrawn, with or without results.
    pub informed: bool,
    /// Number of the turn, counted from 1.
    pub turn: usize,
    /// If `true`, the prompt has opened a thought in which the turn begins. Only possible in the first turn.
    pub opened: bool,
    /// If `true`, a search would be executed.
    pub search: bool,
    /// If `true`, an answer would be accepted. If neither a search nor an answer is allowed, a guide offers an answer.
    pub answer: bool,
    /// If `true`, the last search that was not withdrawn found nothing, and can be withdrawn.
    pub withdraw: bool,
    /// If `true`, there were searches, and none that was not withdrawn found anything.
    pub refuse: bool,
    /// Available retrieval modes.
    pub modes: Vec<Mode>,
    /// Maximum length of a thought, in tokens.
    pub think_tokens: usize,
    /// Maximum length of a query, in tokens.
    pub query_tokens: usize,
    /// Maximum length of an answer, in tokens.
    pub answer_tokens: usize,
}

impl AllowedActions {
    /// Returns `true` if the turn follows an observation, as all but the first do.
    pub fn follows(&self) -> bool {
        self.turn > 1
    }
}

/// Tags of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueryTags {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Beginning of the thought of a guided turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThoughtStart {
    /// The protocol has opened the thought.
    Opened,
    /// The guide opens the thought, unless the prompt has opened it.
    Unopened,
}

/// A state machine that writes one turn, starting in its first state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guide {
    /// States, addressed by index.
    pub states: Vec<GuideState>,
}

impl Guide {
    // Indexes of the states of `turn`.
    const GOAL: usize = 0;
    const THOUGHT: usize = 1;
    const BREAK: usize = 2;
    const CHOICE: usize = 3;
    const QUERY: usize = 4;
    const ANSWER: usize = 5;
    pub(super) const END: usize = 6;
    const MODE: usize = 7;

    /// Creates a turn of a one-line thought, begun for the policy, then a one-line search or answer. `modes` are the
    /// alternative ways to begin a search.
    pub(super) fn turn(offer: &AllowedActions, query: QueryTags, modes: &[&str], thought: ThoughtStart) -> Guide {
        let search = (query.open.to_owned(), if modes.is_empty() { Guide::QUERY } else { Guide::MODE });
        let answer = ("<answer>".to_owned(), Guide::ANSWER);
        let branches = match (offer.search, offer.answer) {
            (true, true) => vec![search, answer],
            (true, false) => vec![search],
            (false, _) => vec![answer],
        };
        let tag = if thought == ThoughtStart::Opened || offer.opened { "" } else { "<think>" };
        // The opening quotation mark makes a small model quote an answer instead of announcing one.
        let goal = match offer.informed {
            false => "To answer it, I need to search for",
            true => "According to the documents, the answer is \"",
        };
        let goal = format!("{tag} The question is: {} {goal}", offer.question);
        let modes = modes.iter().map(|mode| (format!(" {mode}"), Guide::QUERY)).collect();
        let line = |close, limit, eos, next| GuideState::Free { close, limit, pause: "\n", eos, next };
        let mut states = vec![GuideState::End; Guide::MODE + 1];
        states[Guide::GOAL] = GuideState::Force { text: goal, next: Guide::THOUGHT };
        states[Guide::THOUGHT] = line("</think>", offer.think_tokens, false, Guide::BREAK);
        states[Guide::BREAK] = GuideState::Force { text: "\n".to_owned(), next: Guide::CHOICE };
        states[Guide::CHOICE] = GuideState::Choose { branches };
        states[Guide::QUERY] = line(query.close, offer.query_tokens, false, Guide::END);
        states[Guide::ANSWER] = line("</answer>", offer.answer_tokens, true, Guide::END);
        states[Guide::MODE] = GuideState::Choose { branches: modes };
        Guide { states }
    }

    /// Adds an alternative to the choice of [`turn`](Self::turn): `open` is written, then `state` follows.
    #[must_use]
    pub(super) fn with_branch(mut self, open: &str, state: GuideState) -> Guide {
        let place = self.states.len();
        if let Some(GuideState::Choose { branches }) = self.states.get_mut(Self::CHOICE) {
            branches.push((open.to_owned(), place));
        }
        self.states.push(state);
        self
    }

    /// Adds a tool call as an alternative to the first choice of the turn.
    #[must_use]
    pub(super) fn with_call(mut self) -> Guide {
        let place = self.states.len();
        let choice = self.states.iter_mut().find_map(|state| match state {
            GuideState::Choose { branches } => Some(branches),
            _ => None,
        });
        if let Some(branches) = choice {
            branches.push((OPEN.to_owned(), place));
            self.states.push(GuideState::Call);
        }
        self
    }

    /// Returns the maximum number of forced tokens in one turn, given a function for the length of a text.
    pub fn frame(&self, length: impl Fn(&str) -> usize) -> usize {
        let of = |state: &GuideState| match state {
            GuideState::Force { text, .. } => length(text),
            // One token more, because a branch that is a prefix of another one gets a space.
            GuideState::Choose { branches } => branches.iter().map(|(text, _)| length(text) + 1).max().unwrap_or(0),
            GuideState::Free { close, .. } => length(close),
            GuideState::Call | GuideState::End => 0,
        };
        self.states.iter().map(of).sum()
    }
}

/// A state. `next` and the targets of branches are indexes in [`Guide::states`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuideState {
    /// Writes a text for the policy.
    Force {
        /// The text.
        text: String,
        /// Next state.
        next: usize,
    },
    /// Writes one of several texts, chosen by the policy's own probabilities.
    Choose {
        /// Texts with their next states; at least one.
        branches: Vec<(String, usize)>,
    },
    /// Lets the policy write at least one token, until it closes the span or exhausts the limit; then the span is
    /// closed for it. No tag can be opened here.
    Free {
        /// Text that closes the span.
        close: &'static str,
        /// Maximum number of tokens.
        limit: usize,
        /// Another text that ends the span.
        pause: &'static str,
        /// If `true`, an end-of-sequence token ends the span. Set only if no text follows the span.
        eos: bool,
        /// State after the closing text.
        next: usize,
    },
    /// Lets the policy write the rest of a tool call, whose opening tag is written. It ends the turn.
    Call,
    /// Ends the turn.
    End,
}
