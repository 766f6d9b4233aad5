//! Graph-R1's reward, which PathRouter builds upon.

use waymark::agent::path_router;
use waymark::metric::f1;

use super::extract::between;
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// How a turn of the policy begins in a decoded sequence, and how it ends.
const TURN: (&str, &str) = ("<|im_start|>assistant\n", "<|im_end|>");

/// `−1 + min(form, 1)`, and F1 of the answer on top where the form is whole (`qa_em_and_format` of Graph-R1; the base
/// reward R0 = −1 in PathRouter's Table 5). Form is ½ for each turn of thought and query, and ½ for a last turn of thought
/// and answer: so a right answer without any query is worth −½.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphR1;

/// What a sequence earns.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Earned {
    /// Its form.
    pub form: f64,
    /// F1 of its answer.
    pub f1: f64,
    /// All together.
    pub total: f64,
}

impl GraphR1 {
    /// What a decoded sequence with its control tokens earns. Turns that the policy did not end do not count.
    pub fn of(sequence: &str, golds: &[String]) -> Earned {
        let turns = turns(sequence);
        let Some((last, before)) = turns.split_last() else { return Earned { total: -1.0, ..Earned::default() } };
        let queries = before.iter().filter(|turn| once(turn, "think") && once(turn, "query") && pair(turn, "query"));
        let form = 0.5 * (queries.count() + usize::from(pair(last, "answer"))) as f64;
        let answer = between(last, "answer").first().map_or(0.0, |answer| f1(answer, golds));
        let whole = form >= 1.0;
        Earned { form, f1: answer, total: if whole { answer } else { form - 1.0 } }
    }
}

impl Reward for GraphR1 {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            // Control tokens are not in the text: the loop knows where its messages begin and end.
            let mut turns = path_router::turns(&sample.text);
            // A forced answer is not the policy's. The turn after the last round is one that Graph-R1 does not have: there
            // the last query ends the episode. What another turn wrote by itself is neither a query nor an answer.
            if sample.is_forced() && sample.actions.last().is_some_and(|act| act.late) {
                turns.pop();
            } else if sample.is_forced()
                && let Some(last) = turns.last_mut()
            {
                last.clear();
            }
            let messages = turns.into_iter().map(|turn| [TURN.0, &turn, TURN.1].concat());
            let sequence: String = messages.collect();
            let Earned { form, f1, total } = GraphR1::of(&sequence, &sample.golds);
            worth(total, [("form", form), ("f1", f1)])
        };
        samples.iter().map(score).collect()
    }
}

/// The turns of the policy.
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

/// Whether a pair of tags occurs once.
fn once(turn: &str, name: &str) -> bool {
    turn.matches(&format!("<{name}>")).count() == 1 && turn.matches(&format!("</{name}>")).count() == 1
}

/// Whether a turn is thought, a line break and `name`, each in its tags, and nothing else but a line break at the end.
fn pair(turn: &str, name: &str) -> bool {
    let turn = turn.strip_suffix('\n').unwrap_or(turn);
    let inner = turn.strip_prefix("<think>").and_then(|rest| rest.strip_suffix(&format!("</{name}>")));
    inner.is_some_and(|inner| inner.contains(&format!("</think>\n<{name}>")))
}
