//! The fixed schedule of an episode: the number of tokens that each turn samples, and the text that ends it.

use std::str::FromStr;

use waymark_models::ModelError;
use waymark_models::tokenizer::{Specials, Tokenizer};

/// Text that begins each turn.
const OPENING: &str = "<think>";

/// Number of tokens that each turn samples. All turns but the last one search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TurnSchedule(Vec<usize>);

impl FromStr for TurnSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let turns = text.split(',').map(|part| part.trim().parse().ok().filter(|tokens| (1..=400).contains(tokens)));
        let turns: Option<Vec<usize>> = turns.collect();
        let turns = turns.filter(|turns| (2..=5).contains(&turns.len()));
        turns.map(Self).ok_or_else(|| "expected 2 to 5 numbers from 1 to 400, such as 64,64,32".to_owned())
    }
}

impl TurnSchedule {
    /// Returns the schedule of an episode that answers at once.
    pub(super) fn answer() -> Self {
        Self(vec![1])
    }

    /// Returns the number of turns.
    pub(super) fn turns(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of tokens that each turn samples.
    pub(super) fn tokens(&self) -> &[usize] {
        &self.0
    }

    /// Returns the number of tokens that an episode samples.
    pub(super) fn sampled(&self) -> usize {
        self.0.iter().sum()
    }

    /// Returns the turn with this number, counted from 0, of an episode about `question`. `None` after the last one.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub(super) fn turn(
        &self,
        tokenizer: &Tokenizer,
        number: usize,
        question: &str,
    ) -> Result<Option<ScheduledTurn>, ModelError> {
        let Some(&sampled) = self.0.get(number) else { return Ok(None) };
        let closing = if number + 1 < self.turns() {
            // Numbered, because a repeated query would be answered from the episode's memory, without a search.
            let query = question.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("</think>\n<search> [passage] {query} {} </search>", number + 1)
        } else {
            "</think>\n<answer> end of the schedule </answer>".to_owned()
        };
        let opening = tokenizer.encode(OPENING, Specials::Literal)?;
        let closing = tokenizer.encode(&closing, Specials::Literal)?;
        Ok(Some(ScheduledTurn { opening, sampled, closing }))
    }
}

/// One turn: given tokens, sampled tokens, given tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScheduledTurn {
    /// Tokens that begin the turn.
    pub(super) opening: Vec<u32>,
    /// Number of sampled tokens.
    pub(super) sampled: usize,
    /// Tokens that end the turn.
    pub(super) closing: Vec<u32>,
}

/// Returns the tokens that the policy must not sample: those that could begin a tag and so end a turn early, control
/// tokens, and parts of characters, for which `llama-server` streams no IDs.
pub(super) fn banned(tokenizer: &Tokenizer) -> Vec<u32> {
    let bad = |id: &u32| {
        let bytes = tokenizer.bytes_of(*id);
        let whole = std::str::from_utf8(bytes).is_ok_and(|text| !text.is_empty() && !text.contains('<'));
        !whole || tokenizer.is_control(*id)
    };
    (0..tokenizer.vocab() as u32).filter(bad).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_schedule_searches_in_all_turns_but_the_last() {
        let schedule: TurnSchedule = "3, 2,1".parse().unwrap();
        assert_eq!((schedule.turns(), schedule.sampled()), (3, 6));
        let tokenizer = Tokenizer::bytes();
        let turn = |number| schedule.turn(&tokenizer, number, "Who wrote Faust?").unwrap();
        let closing = |number| tokenizer.decode(&turn(number).unwrap().closing);
        assert_eq!(closing(0), "</think>\n<search> [passage] Who wrote Faust? 1 </search>");
        assert_eq!(closing(1), "</think>\n<search> [passage] Who wrote Faust? 2 </search>");
        assert!(closing(2).ends_with("</answer>") && turn(2).unwrap().sampled == 1);
        assert_eq!(turn(3), None);
        let answer = TurnSchedule::answer().turn(&tokenizer, 0, "Who?").unwrap().unwrap();
        assert!(tokenizer.decode(&answer.closing).ends_with("</answer>"));
        for text in ["", "4", "0,1", "1,401", "1,2,3,4,5,6", "a,b"] {
            assert!(text.parse::<TurnSchedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_turn_of_any_question_searches_for_another_text() {
        let schedule: TurnSchedule = "1,1,1,1,1".parse().unwrap();
        let tokenizer = Tokenizer::bytes();
        for question in ["Who?", "誰が描いた", "Who wrote Faust?", ""] {
            let closing = |number| schedule.turn(&tokenizer, number, question).unwrap().unwrap().closing;
            let queries: BTreeSet<Vec<u32>> = (0..4).map(closing).collect();
            assert_eq!(queries.len(), 4, "{question}");
        }
    }

    #[test]
    fn tags_control_tokens_and_parts_of_characters_are_banned() {
        let tokenizer = Tokenizer::bytes();
        let banned = banned(&tokenizer);
        let id = |text: &str| tokenizer.encode(text, Specials::Literal).unwrap()[0];
        assert!(banned.contains(&id("<")) && banned.contains(&id("é")) && !banned.contains(&id("a")));
        assert!(banned.contains(&tokenizer.id("<|im_end|>").unwrap()));
    }
}
