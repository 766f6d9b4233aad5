//! Measured cost of a step as a function of its size.

use std::ops::AddAssign;
use std::time::Duration;

/// Number of terms of the cost: one per step, one per token, and one per token and thousand tokens of its context.
const TERMS: usize = 3;
/// Factor by which each new measurement reduces the weight of the earlier ones, so about the last hundred count.
const MEMORY: f64 = 0.99;
/// Ridge penalty of each term, which decides where the measurements do not determine the terms. The term per step has
/// the largest penalty: a step of an unmeasured size is then predicted to cost in proportion to its tokens, so
/// chunks grow step by step toward the right size.
const RIDGE: [f64; TERMS] = [1e-4, 1e-8, 1e-5];
/// Sets of terms to fit, in the order of preference. Noise can make a small term negative; a set without it is then
/// used.
const FITS: [[bool; TERMS]; 5] =
    [[true, true, true], [true, true, false], [false, true, true], [false, true, false], [true, false, false]];

/// Size of a step or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct StepSize {
    /// Number of computed tokens.
    tokens: f64,
    /// Sum of the context lengths of these tokens, in thousands of tokens.
    reach: f64,
}

/// Time of a step as a function of its size. The function depends on the model and the machine, so it is fitted while
/// the engine runs: by least squares of relative errors, in which older measurements count less and less.
#[derive(Debug, Default)]
pub(super) struct StepCosts {
    products: [[f64; TERMS]; TERMS],
    targets: [f64; TERMS],
    /// Fitted terms, in seconds. `None` before the first measurement.
    terms: Option<[f64; TERMS]>,
}

impl StepSize {
    /// Returns the size of a row of `tokens` tokens that follow `computed` earlier ones.
    pub(super) fn of_row(tokens: usize, computed: usize) -> Self {
        let reach = tokens as f64 * (computed as f64 + tokens as f64 / 2.0) / 1000.0;
        Self { tokens: tokens as f64, reach }
    }

    fn features(self) -> [f64; TERMS] {
        [1.0, self.tokens, self.reach]
    }
}

impl AddAssign for StepSize {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.reach += other.reach;
    }
}

impl StepCosts {
    /// Records a step.
    pub(super) fn record(&mut self, size: StepSize, time: Duration) {
        // Milliseconds keep all sums near 1.
        let time = (time.as_secs_f64() * 1e3).max(1e-3);
        let features = size.features().map(|feature| feature / time);
        for (row, (products, target)) in self.products.iter_mut().zip(&mut self.targets).enumerate() {
            for (product, feature) in products.iter_mut().zip(features) {
                *product = MEMORY * *product + features[row] * feature;
            }
            *target = MEMORY * *target + features[row];
        }
        let fits = FITS.iter().filter_map(|used| self.fit(used));
        let sound = fits.into_iter().find(|terms| terms.iter().all(|term| *term >= 0.0));
        self.terms = sound.map(|terms| terms.map(|term| term / 1e3)).or(self.terms);
    }

    /// Solves the normal equations for the terms in use. The others are 0.
    fn fit(&self, used: &[bool; TERMS]) -> Option<[f64; TERMS]> {
        let mut matrix = [[0.0; TERMS + 1]; TERMS];
        for row in 0..TERMS {
            for column in 0..TERMS {
                matrix[row][column] = if used[row] && used[column] { self.products[row][column] } else { 0.0 };
            }
            matrix[row][row] += if used[row] { RIDGE[row] } else { 1.0 };
            matrix[row][TERMS] = if used[row] { self.targets[row] } else { 0.0 };
        }
        // The matrix is positive definite, so elimination needs no pivot search.
        for pivot in 0..TERMS {
            let head = matrix[pivot];
            if head[pivot] <= 0.0 {
                return None;
            }
            for (row, other) in matrix.iter_mut().enumerate() {
                let factor = if row == pivot { 0.0 } else { other[pivot] / head[pivot] };
                other.iter_mut().zip(head).for_each(|(value, above)| *value -= factor * above);
            }
        }
        let terms = std::array::from_fn(|row| matrix[row][TERMS] / matrix[row][row]);
        terms.iter().all(|term: &f64| term.is_finite()).then_some(terms)
    }

    /// Returns `true` if a step was recorded.
    pub(super) fn known(&self) -> bool {
        self.terms.is_some()
    }

    /// Predicts the seconds of a step.
    pub(super) fn seconds(&self, size: StepSize) -> f64 {
        self.terms.unwrap_or_default().iter().zip(size.features()).map(|(term, feature)| term * feature).sum()
    }

    /// Predicts the seconds that a step takes whatever its size.
    pub(super) fn fixed(&self) -> f64 {
        self.seconds(StepSize::default())
    }

    /// Predicts the seconds that one more token after `computed` others adds to a step.
    pub(super) fn per_token(&self, computed: usize) -> f64 {
        self.seconds(StepSize::of_row(1, computed)) - self.fixed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::Random;

    /// 3 ms for a step, 0.5 ms for a token, 0.25 ms for a thousand tokens of its context.
    fn time(size: StepSize) -> f64 {
        0.003 + 0.0005 * size.tokens + 0.00025 * size.reach
    }

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 0.02 * expected
    }

    #[test]
    fn a_few_sizes_show_all_three_parts() {
        let mut costs = StepCosts::default();
        assert!(!costs.known());
        for (tokens, computed) in [(1, 10), (4, 900), (100, 0), (100, 4000), (512, 0)] {
            let size = StepSize::of_row(tokens, computed);
            costs.record(size, Duration::from_secs_f64(time(size)));
        }
        assert!(costs.known() && close(costs.fixed(), 0.003), "{costs:?}");
        assert!(close(costs.per_token(0), 0.0005) && close(costs.per_token(6000), 0.002), "{costs:?}");
        let size = StepSize::of_row(300, 2000);
        assert!(close(costs.seconds(size), time(size)), "{costs:?}");
    }

    #[test]
    fn an_unmeasured_size_is_taken_to_cost_its_tokens() {
        let mut costs = StepCosts::default();
        let one = StepSize::of_row(1, 0);
        (0..1000).for_each(|_| costs.record(one, Duration::from_secs_f64(time(one))));
        assert!(costs.fixed() < 0.0005 && costs.per_token(0) > 0.003, "{costs:?}");
        // A single step of another size corrects it.
        let eight = StepSize::of_row(8, 0);
        costs.record(eight, Duration::from_secs_f64(time(eight)));
        assert!(close(costs.seconds(eight), time(eight)) && costs.per_token(0) < 0.001, "{costs:?}");
    }

    #[test]
    fn a_machine_that_gets_slower_is_noticed() {
        let mut costs = StepCosts::default();
        for factor in [1.0, 3.0] {
            for step in 0..600 {
                let size = StepSize::of_row(1 + step % 64, step * 5);
                costs.record(size, Duration::from_secs_f64(factor * time(size)));
            }
        }
        assert!(
            (costs.fixed() / 0.009 - 1.0).abs() < 0.2 && (costs.per_token(0) / 0.0015 - 1.0).abs() < 0.2,
            "{costs:?}"
        );
    }

    #[test]
    fn noise_shifts_the_parts_a_little() {
        let random = Random { seed: 3, vocab: 1000 };
        let mut costs = StepCosts::default();
        for step in 0..2000u32 {
            let drawn = |salt| random.next(None, &[step, salt]) as f64 / 1000.0;
            let tokens = if step % 3 == 0 { 1 } else { 8 + (drawn(1) * 100.0) as usize };
            let size = StepSize::of_row(tokens, (drawn(2) * 6000.0) as usize);
            // Other processes only ever slow a step down.
            let slowed = if drawn(3) < 0.05 { 3.0 } else { 1.0 + 0.2 * drawn(4) };
            costs.record(size, Duration::from_secs_f64(time(size) * slowed));
            if step > 100 {
                let fixed = costs.fixed() / 0.003;
                let token = costs.per_token(3000) / 0.00125;
                assert!((0.5..2.0).contains(&fixed) && (0.7..1.5).contains(&token), "{step}: {fixed} {token}");
            }
        }
    }

    #[test]
    fn a_step_without_a_price_per_token_is_fitted_too() {
        let mut costs = StepCosts::default();
        for tokens in [1, 5, 100, 1, 300] {
            costs.record(StepSize::of_row(tokens, 0), Duration::from_millis(4));
        }
        assert!(close(costs.fixed(), 0.004) && costs.per_token(6000) < 1e-5, "{costs:?}");
    }
}
