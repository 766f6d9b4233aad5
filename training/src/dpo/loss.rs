//! Loss of a pair, which makes the chosen trajectory more probable than the rejected one.

/// Log-likelihood of a trajectory: the sum over its target tokens, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Likelihood {
    /// Under the policy.
    pub policy: f64,
    /// Under the reference. 0 without a reference.
    pub reference: f64,
    /// Number of target tokens.
    pub tokens: usize,
}

/// Coefficients of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DpoTerms {
    /// β, the weight of the margin.
    pub beta: f64,
    /// λ, the weight of the chosen trajectory's negative log-likelihood.
    pub nll: f64,
}

/// Loss of a pair and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PairLoss {
    /// `−log σ(margin)`.
    pub preference: f64,
    /// Negative log-likelihood of the chosen trajectory per token, unweighted.
    pub nll: f64,
    /// Margin of the chosen trajectory over the rejected one.
    pub margin: f64,
    /// Total loss.
    pub loss: f64,
    /// Derivative of the loss with respect to the log-probability of any token, for the chosen and the rejected
    /// trajectory.
    pub slopes: [f64; 2],
}

impl DpoTerms {
    /// Computes `−log σ(m) − λ log π(x⁺) / |x⁺|` with `m = β [(log π(x⁺) − log π_ref(x⁺)) − (log π(x⁻) − log
    /// π_ref(x⁻))]`: DPO (Rafailov et al. 2023, eq. 7) with the likelihood of the chosen trajectory (Pang et al. 2024,
    /// eq. 2), as in TeaRAG (its eq. 15 to 17). Without a reference it is EVO-RAG's loss (its §3.4).
    pub fn of(&self, chosen: Likelihood, rejected: Likelihood) -> PairLoss {
        let ahead = |side: Likelihood| side.policy - side.reference;
        let margin = self.beta * (ahead(chosen) - ahead(rejected));
        // These forms of −log σ(m) and σ(−m) do not overflow, whatever the sign of m.
        let preference = (-margin).max(0.0) + (-margin.abs()).exp().ln_1p();
        let doubt = 1.0 / (1.0 + margin.exp());
        let length = chosen.tokens.max(1) as f64;
        let nll = -chosen.policy / length;
        let loss = preference + self.nll * nll;
        let slopes = [-self.beta * doubt - self.nll / length, self.beta * doubt];
        PairLoss { preference, nll, margin, loss, slopes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    /// Expected values from Python, `m = b * ((c - cr) - (r - rr))`, `math.log1p(math.exp(-m)) - l * c / n`, and for
    /// the slopes `-b / (1 + math.exp(m)) - l / n` and `b / (1 + math.exp(m))`: m = 0.1 · ((−12 + 14) − (−20 + 19)) =
    /// 0.3, and m = 0.1 · (−12 + 20) = 0.8.
    #[test]
    fn a_pair_by_hand() {
        let terms = DpoTerms { beta: 0.1, nll: 0.5 };
        let chosen = Likelihood { policy: -12.0, reference: -14.0, tokens: 8 };
        let rejected = Likelihood { policy: -20.0, reference: -19.0, tokens: 5 };
        let found = terms.of(chosen, rejected);
        close(found.margin, 0.3);
        close(found.preference, 0.554_355_244_468_527);
        close(found.nll, 1.5);
        close(found.loss, 1.304_355_244_468_527);
        close(found.slopes[0], -0.105_055_748_318_834);
        close(found.slopes[1], 0.042_555_748_318_834);
        let free = |side: Likelihood| Likelihood { reference: 0.0, ..side };
        let found = DpoTerms { nll: 0.0, ..terms }.of(free(chosen), free(rejected));
        close(found.margin, 0.8);
        close(found.loss, 0.371_100_665_947_777);
        close(found.slopes[0], -found.slopes[1]);
    }

    #[test]
    fn large_margins_do_not_overflow() {
        let terms = DpoTerms { beta: 1.0, nll: 0.0 };
        let side = |policy| Likelihood { policy, reference: 0.0, tokens: 1 };
        let won = terms.of(side(0.0), side(-2000.0));
        let lost = terms.of(side(-2000.0), side(0.0));
        assert_eq!((won.loss, won.slopes, lost.loss, lost.slopes), (0.0, [0.0; 2], 2000.0, [-1.0, 1.0]));
        assert_eq!(terms.of(Likelihood::default(), Likelihood::default()).nll, 0.0);
    }

    proptest! {
        /// The slopes equal finite differences of the loss in any one token.
        #[test]
        fn slopes_match_finite_differences(
            policies in (-60.0f64..0.0, -60.0f64..0.0),
            references in (-60.0f64..0.0, -60.0f64..0.0),
            beta in 0.01f64..1.0,
            nll in 0.0f64..2.0,
            tokens in 1usize..40,
        ) {
            const STEP: f64 = 1e-4;
            let terms = DpoTerms { beta, nll };
            let at = |chosen: f64, rejected: f64| {
                let chosen = Likelihood { policy: policies.0 + chosen, reference: references.0, tokens };
                let rejected = Likelihood { policy: policies.1 + rejected, reference: references.1, tokens: 3 };
                terms.of(chosen, rejected)
            };
            let measured = [
                (at(STEP, 0.0).loss - at(-STEP, 0.0).loss) / (2.0 * STEP),
                (at(0.0, STEP).loss - at(0.0, -STEP).loss) / (2.0 * STEP),
            ];
            for (found, measured) in at(0.0, 0.0).slopes.into_iter().zip(measured) {
                prop_assert!((found - measured).abs() < 1e-6, "{found} {measured}");
            }
        }
    }
}
