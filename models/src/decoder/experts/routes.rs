//! Choice of experts for the tokens of a step.

use std::ops::Range;

use crate::kernel::{Team, softmax};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;

/// Experts of each token, and the grouping of tokens by expert. Memory is reused from step to step.
#[derive(Debug, Default)]
pub(crate) struct ExpertRoutes {
    count: usize,
    per_token: usize,
    /// Logits of the router, then probabilities, shape (tokens, count).
    probabilities: Vec<f32>,
    /// Experts of each token in ascending order, shape (tokens, per_token).
    choices: Vec<ExpertChoice>,
    /// First row of each expert among the grouped rows, followed by the total number of rows.
    starts: Vec<usize>,
    /// Token of each grouped row, with the probability of the row's expert.
    tokens: Vec<usize>,
    row_probabilities: Vec<f32>,
}

/// One expert of a token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ExpertChoice {
    expert: usize,
    probability: f32,
    /// Index of the token's row among the grouped rows.
    row: usize,
}

impl ExpertRoutes {
    /// Makes room for `tokens` tokens, each with `per_token` of `count` experts.
    pub(crate) fn resize(&mut self, tokens: usize, count: usize, per_token: usize) {
        self.count = count;
        self.per_token = per_token;
        self.probabilities.resize(tokens * count, 0.0);
        self.choices.resize(tokens * per_token, ExpertChoice::default());
        self.starts.resize(count + 1, 0);
        self.tokens.resize(tokens * per_token, 0);
        self.row_probabilities.resize(tokens * per_token, 0.0);
    }

    /// Makes room like [`resize`](Self::resize), without over-allocating.
    pub(crate) fn resize_exact(&mut self, tokens: usize, count: usize, per_token: usize) {
        reserve(&mut self.probabilities, tokens * count);
        reserve(&mut self.choices, tokens * per_token);
        reserve(&mut self.starts, count + 1);
        reserve(&mut self.tokens, tokens * per_token);
        reserve(&mut self.row_probabilities, tokens * per_token);
        self.resize(tokens, count, per_token);
    }

    /// Frees the memory that this size does not need. The content is lost.
    pub(crate) fn shrink(&mut self, tokens: usize, count: usize, per_token: usize) {
        shrink(&mut self.probabilities, tokens * count);
        shrink(&mut self.choices, tokens * per_token);
        shrink(&mut self.starts, count + 1);
        shrink(&mut self.tokens, tokens * per_token);
        shrink(&mut self.row_probabilities, tokens * per_token);
    }

    /// Size of the buffers for `tokens` tokens, in bytes.
    pub(crate) fn bytes_for(tokens: usize, count: usize, per_token: usize) -> usize {
        let choice = size_of::<ExpertChoice>() + size_of::<usize>() + size_of::<f32>();
        tokens * (count * size_of::<f32>() + per_token * choice) + (count + 1) * size_of::<usize>()
    }

    /// Capacity of the buffers, in bytes.
    pub(crate) fn allocated_bytes(&self) -> usize {
        size_of::<f32>() * (self.probabilities.capacity() + self.row_probabilities.capacity())
            + size_of::<ExpertChoice>() * self.choices.capacity()
            + size_of::<usize>() * (self.starts.capacity() + self.tokens.capacity())
    }

    /// Buffer for the logits of the router, shape (tokens, count).
    pub(crate) fn logits(&mut self) -> &mut [f32] {
        &mut self.probabilities
    }

    /// Chooses the most probable experts of each token, by the logits, and groups the tokens by expert. With
    /// `normalized`, the probabilities of a token's experts are divided by their sum.
    pub(crate) fn choose(&mut self, team: &Team, normalized: bool) {
        let Self { count, per_token, probabilities, choices, .. } = self;
        let count = *count;
        team.rows(probabilities, count, GRAIN, &|_, share| share.chunks_exact_mut(count).for_each(softmax));
        let probabilities = probabilities.as_slice();
        team.rows(choices, *per_token, GRAIN, &|first, share| {
            for (token, choices) in (first..).zip(share.chunks_exact_mut(*per_token)) {
                choose(&probabilities[token * count..][..count], normalized, choices);
            }
        });
        self.group();
    }

    /// Groups the tokens by expert, in the order of the batch.
    fn group(&mut self) {
        let Self { per_token, choices, starts, tokens, row_probabilities, .. } = self;
        starts.fill(0);
        choices.iter().for_each(|choice| starts[choice.expert + 1] += 1);
        for expert in 1..starts.len() {
            starts[expert] += starts[expert - 1];
        }
        for (index, choice) in choices.iter_mut().enumerate() {
            // Each start moves to the end of its expert's rows, which is where the next expert's begin.
            choice.row = starts[choice.expert];
            tokens[choice.row] = index / *per_token;
            row_probabilities[choice.row] = choice.probability;
            starts[choice.expert] += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
    }

    /// Grouped rows of an expert.
    pub(crate) fn rows_of(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    /// Copies the rows of `input`, shape (tokens, hidden), to `rows` in the order of the grouped rows in `range`.
    pub(crate) fn gather(&self, team: &Team, range: Range<usize>, input: &[f32], rows: &mut [f32], hidden: usize) {
        let tokens = &self.tokens[range];
        team.rows(rows, hidden, GRAIN, &|first, share| {
            for (row, &token) in share.chunks_exact_mut(hidden).zip(&tokens[first..]) {
                row.copy_from_slice(&input[token * hidden..][..hidden]);
            }
        });
    }

    /// Tokens of an expert in ascending order, with its probability for each.
    pub(crate) fn choices_of(&self, expert: usize) -> (&[usize], &[f32]) {
        let rows = self.rows_of(expert);
        (&self.tokens[rows.clone()], &self.row_probabilities[rows])
    }

    /// Calls `add(row, probability, output)` for each token of an expert: `row` is the index among the expert's rows,
    /// and `output` is the token's row of `outputs`, of shape (tokens, hidden).
    pub(crate) fn scatter(
        &self,
        team: &Team,
        expert: usize,
        outputs: &mut [f32],
        hidden: usize,
        add: &(dyn Fn(usize, f32, &mut [f32]) + Sync),
    ) {
        let (tokens, probabilities) = self.choices_of(expert);
        // Threads divide all tokens among them, but the expert has only some of the tokens.
        let grain = GRAIN * (outputs.len() / hidden) / tokens.len().max(1);
        team.rows(outputs, hidden, grain, &|first, share| {
            let bound = |end: usize| tokens.partition_point(|&token| token < end);
            for row in bound(first)..bound(first + share.len() / hidden) {
                add(row, probabilities[row], &mut share[(tokens[row] - first) * hidden..][..hidden]);
            }
        });
    }

    /// Experts of a token, in ascending order, with their grouped rows and probabilities.
    pub(crate) fn experts_of(&self, token: usize) -> impl Iterator<Item = (usize, usize, f32)> {
        let choices = &self.choices[token * self.per_token..][..self.per_token];
        choices.iter().map(|choice| (choice.expert, choice.row, choice.probability))
    }

    /// Probabilities of all experts for a token, before the choice.
    pub(crate) fn probabilities_of(&self, token: usize) -> &[f32] {
        &self.probabilities[token * self.count..][..self.count]
    }

    /// Grouped rows of a token with the probabilities of their experts, in the order of the experts.
    pub(crate) fn of_token(&self, token: usize) -> impl Iterator<Item = (usize, f32)> {
        self.experts_of(token).map(|(_, row, probability)| (row, probability))
    }
}

fn reserve<T>(buffer: &mut Vec<T>, len: usize) {
    buffer.reserve_exact(len.saturating_sub(buffer.len()));
}

fn shrink<T>(buffer: &mut Vec<T>, len: usize) {
    buffer.truncate(len);
    buffer.shrink_to(len);
}

/// Chooses the most probable experts of one token. Ties go to the lower index.
fn choose(probabilities: &[f32], normalized: bool, choices: &mut [ExpertChoice]) {
    let most = choices.len();
    let mut chosen = 0;
    for (expert, &probability) in probabilities.iter().enumerate() {
        let better = |choice: &ExpertChoice| probability > choice.probability;
        let at = choices[..chosen].iter().position(better).unwrap_or(chosen);
        if at == most {
            continue;
        }
        chosen = (chosen + 1).min(most);
        choices[at..chosen].rotate_right(1);
        choices[at] = ExpertChoice { expert, probability, row: 0 };
    }
    if normalized {
        let sum: f32 = choices.iter().map(|choice| choice.probability).sum();
        choices.iter_mut().for_each(|choice| choice.probability /= sum);
    }
    choices.sort_unstable_by_key(|choice| choice.expert);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(probabilities: &[f32], count: usize, normalized: bool) -> Vec<(usize, f32)> {
        let mut choices = vec![ExpertChoice::default(); count];
        choose(probabilities, normalized, &mut choices);
        choices.iter().map(|choice| (choice.expert, choice.probability)).collect()
    }

    #[test]
    fn the_most_probable_experts_are_chosen_and_of_equal_ones_the_first() {
        assert_eq!(chosen(&[0.1, 0.4, 0.2, 0.3], 2, false), [(1, 0.4), (3, 0.3)]);
        assert_eq!(chosen(&[0.25; 4], 2, false), [(0, 0.25), (1, 0.25)]);
        assert_eq!(chosen(&[0.125, 0.125, 0.5, 0.25], 3, true), [(0, 1.0 / 7.0), (2, 4.0 / 7.0), (3, 2.0 / 7.0)]);
        assert_eq!(chosen(&[0.5, 0.5], 2, true), [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn values_that_are_no_numbers_choose_distinct_experts() {
        let experts: Vec<usize> = chosen(&[f32::NAN; 5], 3, true).into_iter().map(|(expert, _)| expert).collect();
        assert_eq!(experts, [0, 1, 2]);
    }

    #[test]
    fn rows_are_added_to_their_tokens_whatever_the_threads() {
        let logits: Vec<f32> = (0..90).map(|index| (index * index % 31) as f32).collect();
        let scattered = |threads| {
            let team = Team::new(threads);
            let mut routes = ExpertRoutes::default();
            routes.resize(30, 3, 2);
            routes.logits().copy_from_slice(&logits);
            routes.choose(&team, true);
            let mut outputs = vec![0.0; 60];
            for expert in 0..3 {
                let rows = routes.rows_of(expert);
                routes.scatter(&team, expert, &mut outputs, 2, &|row, probability, output| {
                    assert_eq!(routes.row_probabilities[rows.start + row], probability);
                    output[0] += probability;
                    output[1] += (routes.tokens[rows.start + row] + 1) as f32;
                });
            }
            outputs
        };
        let expected = scattered(1);
        for (token, output) in expected.chunks_exact(2).enumerate() {
            assert!((output[0] - 1.0).abs() < 1e-6 && output[1] == 2.0 * (token + 1) as f32, "{token}: {output:?}");
        }
        assert_eq!([2, 3, 5].map(scattered), [(); 3].map(|()| expected.clone()));
    }

    #[test]
    fn exact_buffers_take_what_is_said() {
        let mut routes = ExpertRoutes::default();
        for (tokens, count, per_token) in [(7, 5, 2), (33, 9, 3), (4, 9, 1), (0, 2, 1)] {
            routes.shrink(tokens, count, per_token);
            routes.resize_exact(tokens, count, per_token);
            assert_eq!(routes.allocated_bytes(), ExpertRoutes::bytes_for(tokens, count, per_token));
        }
    }

    #[test]
    fn tokens_are_grouped_by_expert() {
        let team = Team::new(2);
        let mut routes = ExpertRoutes::default();
        routes.resize(3, 4, 2);
        // Token 0 prefers experts 3 and 1, token 1 prefers 1 and 0, token 2 prefers 3 and 0.
        let logits = [0.0, 2.0, -9.0, 3.0, 1.0, 4.0, 0.0, 0.0, 2.0, 0.0, 1.0, 5.0];
        routes.logits().copy_from_slice(&logits);
        routes.choose(&team, true);
        assert_eq!([0, 1, 2, 3].map(|expert| routes.rows_of(expert)), [0..2, 2..4, 4..4, 4..6]);
        assert_eq!(routes.tokens, [1, 2, 0, 1, 0, 2]);
        for token in 0..3 {
            let own: Vec<_> = routes.of_token(token).collect();
            assert!(own.iter().all(|(row, _)| routes.tokens[*row] == token));
            assert!((own.iter().map(|(_, probability)| probability).sum::<f32>() - 1.0).abs() < 1e-6);
        }
        let expected = 1.0 / (1.0 + 1f32.exp());
        assert!(routes.of_token(0).next().is_some_and(|(row, value)| row == 2 && (value - expected).abs() < 1e-6));
    }
}
