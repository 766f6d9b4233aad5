//! A protocol as a small state machine, for policies that were never trained in it.

use waymark_index::Mode;

/// What may be done in the coming turn.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// What is asked, in one line and without anything that could pass for a tag.
    pub question: String,
    /// Whether there is evidence already.
    pub informed: bool,
    /// Which turn it is, counted from 1.
    pub turn: usize,
    /// Whether the prompt has opened a thought that the turn begins in: the first may.
    pub opened: bool,
    /// Whether a search would be executed.
    pub search: bool,
    /// Whether an answer would be accepted. With neither, an answer is.
    pub answer: bool,
    /// Whether the last search that stands found nothing, and could be withdrawn.
    pub withdraw: bool,
    /// Whether there were searches, and none that stands found anything.
    pub refuse: bool,
    /// The modes that can be searched in.
    pub modes: Vec<Mode>,
    /// How long a thought may become, in tokens.
    pub think_tokens: usize,
    /// How long a query may become, in tokens.
    pub query_tokens: usize,
    /// How long an answer may become, in tokens.
    pub answer_tokens: usize,
}

impl Offer {
    /// Whether the turn follows an observation: all but the first do.
    pub fn follows(&self) -> bool {
        self.turn > 1
    }
}

/// A state machine that writes one turn; it starts in its first state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guide {
    /// The states, named by their place.
    pub states: Vec<State>,
}

impl Guide {
    /// Where [`turn`](Self::turn) chooses.
    const CHOICE: usize = 3;
    /// Where it ends.
    pub(super) const END: usize = 6;

    /// A turn that is a thought of one line, begun for the policy, then a search or an answer of one line. `query` are the
    /// tags of a search, `modes` the ways to begin one, if any; with `inside` the protocol has opened the thought already.
    pub(super) fn turn(offer: &Offer, query: (&str, &'static str), modes: &[&str], inside: bool) -> Guide {
        const QUERY: usize = 4;
        const ANSWER: usize = 5;
        const MODE: usize = 7;
        let (open, close) = query;
        let search = (open.to_owned(), if modes.is_empty() { QUERY } else { MODE });
        let answer = ("<answer>".to_owned(), ANSWER);
        let branches = match (offer.search, offer.answer) {
            (true, true) => vec![search, answer],
            (true, false) => vec![search],
            (false, _) => vec![answer],
        };
        let tag = if inside || offer.opened { "" } else { "<think>" };
        // The opening quotation mark is what makes a small model quote an answer instead of announcing one.
        let goal = match offer.informed {
            false => "To answer it, I need to search for",
            true => "According to the documents, the answer is \"",
        };
        let think = format!("{tag} The question is: {} {goal}", offer.question);
        let line = |close, limit, eos| State::Free { close, limit, pause: "\n", eos, next: Guide::END };
        Guide {
            states: vec![
                State::Force { text: think, next: 1 },
                State::Free { close: "</think>", limit: offer.think_tokens, pause: "\n", eos: false, next: 2 },
                State::Force { text: "\n".to_owned(), next: Guide::CHOICE },
                State::Choose { branches },
                line(close, offer.query_tokens, false),
                line("</answer>", offer.answer_tokens, true),
                State::End,
                State::Choose { branches: modes.iter().map(|mode| (format!(" {mode}"), QUERY)).collect() },
            ],
        }
    }

    /// A turn of [`turn`](Self::turn) in which something else may be chosen: `open` is written, then comes `state`.
    #[must_use]
    pub(super) fn or(mut self, open: &str, state: State) -> Guide {
        let place = self.states.len();
        if let Some(State::Choose { branches }) = self.states.get_mut(Self::CHOICE) {
            branches.push((open.to_owned(), place));
        }
        self.states.push(state);
        self
    }

    /// The most that can be written for the policy in one turn, given the length of a text.
    pub fn frame(&self, length: impl Fn(&str) -> usize) -> usize {
        let of = |state: &State| match state {
            State::Force { text, .. } => length(text),
            State::Choose { branches } => branches.iter().map(|(text, _)| length(text) + 1).max().unwrap_or(0),
            State::Free { close, .. } => length(close),
            State::End => 0,
        };
        self.states.iter().map(of).sum()
    }
}

/// One state. `next` and its like are places in [`Guide::states`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A text is written for the policy.
    Force {
        /// The text.
        text: String,
        /// The state after it.
        next: usize,
    },
    /// One of several texts is written; the policy's own probabilities choose.
    Choose {
        /// The texts and the states they lead to; at least one.
        branches: Vec<(String, usize)>,
    },
    /// The policy writes freely, at least one token, until it closes the span or has used it up; then it is closed
    /// for it. It can open no tag in here.
    Free {
        /// What closes the span.
        close: &'static str,
        /// How many tokens it may take.
        limit: usize,
        /// What ends the span as well, besides.
        pause: &'static str,
        /// Whether an end-of-sequence token does: where nothing follows.
        eos: bool,
        /// The state after the closing tag.
        next: usize,
    },
    /// The turn is complete.
    End,
}
