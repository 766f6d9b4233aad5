//! Bound of the log-probabilities in answers that are sent in one piece.

use waymark_agent::{Event, TokenLogprob};
use waymark_index::{AnswerCut, AnswerRoom};

/// Size of the fields around the text and the bytes of a token in JSON.
const TOKEN_FIELDS: usize = 72;

/// Bytes that the log-probabilities of an answer may still take. Each token may have twenty alternatives.
#[derive(Debug)]
pub(super) struct LogprobRoom {
    room: AnswerRoom,
    /// Number of tokens whose log-probabilities found no room.
    left_out: usize,
}

impl LogprobRoom {
    /// Creates the room of an answer of at most `answer_bytes` bytes.
    pub(super) fn new(answer_bytes: usize) -> LogprobRoom {
        LogprobRoom { room: AnswerRoom::new(answer_bytes), left_out: 0 }
    }

    /// Removes the log-probabilities of an event that find no room.
    pub(super) fn cut(&mut self, event: &mut Event) {
        let (Event::Think { tokens, .. }
        | Event::Query { tokens, .. }
        | Event::Answer { tokens, .. }
        | Event::Text { tokens, .. }) = event
        else {
            return;
        };
        let kept = tokens.iter().take_while(|token| self.room.take(token_bytes(token))).count();
        self.left_out += tokens.len() - kept;
        tokens.truncate(kept);
    }

    /// Reports the tokens whose log-probabilities are missing. `None` if all found room.
    pub(super) fn report(&self) -> Option<AnswerCut> {
        AnswerCut::of(self.left_out, self.room.limit())
    }
}

/// Returns the approximate size of a token with its alternatives in JSON.
fn token_bytes(token: &TokenLogprob) -> usize {
    let text = |text: &str, bytes: &[u8]| TOKEN_FIELDS + text.len() + 4 * bytes.len();
    text(&token.text, &token.bytes) + token.top.iter().map(|token| text(&token.text, &token.bytes)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Event {
        let bytes = text.as_bytes().to_vec();
        let token = TokenLogprob { id: 0, text: text.to_owned(), bytes, logprob: Some(-1.0), top: Vec::new() };
        Event::Answer { text: text.repeat(2), tokens: vec![token.clone(), token] }
    }

    fn kept(event: &Event) -> usize {
        match event {
            Event::Answer { tokens, .. } => tokens.len(),
            _ => 0,
        }
    }

    #[test]
    fn the_last_tokens_are_left_out_and_counted() {
        // 72 + 4 + 16 bytes per token of four bytes.
        let mut room = LogprobRoom::new(3 * 92);
        let mut events = [answer("word"), answer("word"), answer("a")];
        events.iter_mut().for_each(|event| room.cut(event));
        assert_eq!(events.each_ref().map(kept), [2, 1, 0], "a shorter token later leaves no gap");
        assert_eq!(room.report(), Some(AnswerCut { left_out: 3, limit: 276 }));
        assert!(matches!(&events[2], Event::Answer { text, .. } if text == "aa"), "the text stays");
    }

    #[test]
    fn an_answer_with_room_is_whole() {
        let mut room = LogprobRoom::new(1 << 20);
        let mut event = answer("word");
        room.cut(&mut event);
        assert_eq!((kept(&event), room.report()), (2, None));
    }
}
