//! Graph-R1's reward, the basis of PathRouter's.

use waymark_agent::metric::f1;
use waymark_agent::path_router;

use super::extract::between;
use super::{Reward, reward_value};
use crate::sample::{RewardValue, Sample};

/// Start and end of a policy turn in a decoded sequence.
const TURN: (&str, &str) = ("<|im_start|>assistant\n", "<|im_end|>");

/// Reward `−1 + min(format, 1)`, plus F1 of the answer if the format is complete (`qa_em_and_format` of Graph-R1; the
/// base reward R0 = −1 in PathRouter's Table 5). The format value is ½ for each turn of thought and query, and ½ for
/// a last turn of thought and answer. A correct answer without any query therefore earns −½.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphR1;

/// Reward of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GraphR1Score {
    /// Format value.
    pub form: f64,
    /// F1 of the answer.
    pub f1: f64,
    /// Total reward.
    pub total: f64,
}

impl GraphR1 {
    /// Scores a decoded sequence with its control tokens. Turns that the policy did not end do not count.
    pub fn of(sequence: &str, golds: &[String]) -> GraphR1Score {
        let turns = turns(sequence);
        let Some((last, before)) = turns.split_last() else {
            return GraphR1Score { total: -1.0, ..GraphR1Score::default() };
        };
        let queries = before.iter().filter(|turn| once(turn, "think") && once(turn, "query") && pair(turn, "query"));
        let form = 0.5 * (queries.count() + usize::from(pair(last, "answer"))) as f64;
        let answer = between(last, "answer").first().map_or(0.0, |answer| f1(answer, golds));
        // F1 counts only with a complete format: at least one query turn and the answer turn.
        let whole = form >= 1.0;
        GraphR1Score { form, f1: answer, total: if whole { answer } else { form - 1.0 } }
    }
}

impl Reward for GraphR1 {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            // The text of a sample has no control tokens, but the loop knows where its messages begin and end.
            let mut turns = path_router::turns(&sample.opened_text());
            // A forced answer is not the policy's. Graph-R1 has no turn after the last round: the last query ends its
            // episodes, so that turn is dropped. In any other turn with a forced answer, the policy wrote neither a
            // query nor an answer.
            if sample.is_forced() && sample.actions.last().is_some_and(|act| act.late) {
                turns.pop();
            } else if sample.is_forced()
                && let Some(last) = turns.last_mut()
            {
                last.clear();
            }
            let messages = turns.into_iter().map(|turn| [TURN.0, &turn, TURN.1].concat());
            let sequence: String = messages.collect();
            let GraphR1Score { form, f1, total } = GraphR1::of(&sequence, &sample.golds);
            reward_value(total, [("form", form), ("f1", f1)])
        };
        samples.iter().map(score).collect()
    }
}

/// Splits a sequence into the policy's turns.
fn turns(sequence: &str) -> Vec<&str> {
    let mut turns = Vec::new();
    let mut rest = sequence;
    while let Some((_, after)) = rest.split_once(TURN.0) {
        let Some((turn, left)) = after.split_once(TURN.1) else { break };
        turns.push(turn);
        rest = left;
    }
    turns
}

/// Returns `true` if both tags occur exactly once.
fn once(turn: &str, name: &str) -> bool {
    turn.matches(&format!("<{name}>")).count() == 1 && turn.matches(&format!("</{name}>")).count() == 1
}

/// Returns `true` if a turn consists of a thought, a line break and `name`, each in its tags, with at most a trailing
/// line break.
fn pair(turn: &str, name: &str) -> bool {
    let turn = turn.strip_suffix('\n').unwrap_or(turn);
    let inner = turn.strip_prefix("<think>").and_then(|rest| rest.strip_suffix(&format!("</{name}>")));
    inner.is_some_and(|inner| inner.contains(&format!("</think>\n<{name}>")))
}
