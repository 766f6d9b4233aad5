//! Loss of a pair of branches: each head should score the better one higher.

/// Target of a head for a pair whose first branch has the higher total reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadLabel {
    /// The first branch is better.
    First,
    /// The second branch is better.
    Second,
    /// Both earned the same, so the pair does not train the head.
    Neither,
}

impl HeadLabel {
    /// Label for the reward difference `ahead` of the first branch.
    pub(super) fn of(ahead: f64) -> HeadLabel {
        if ahead > 0.0 {
            HeadLabel::First
        } else if ahead < 0.0 {
            HeadLabel::Second
        } else {
            HeadLabel::Neither
        }
    }

    /// y: 1, −1, or 0 for no preference.
    fn sign(self) -> f64 {
        match self {
            HeadLabel::First => 1.0,
            HeadLabel::Second => -1.0,
            HeadLabel::Neither => 0.0,
        }
    }

    /// Returns `true` if the `margin` of the first branch has the labeled sign. `None` if the label has no preference.
    pub(super) fn agrees(self, margin: f64) -> Option<bool> {
        (self != HeadLabel::Neither).then(|| self.sign() * margin > 0.0)
    }
}

/// Computes `−(1/K) Σ_k ln σ(y_k m_k)` over K heads (§3.3 of EVO-RAG's paper, where every y is 1) and its slope in each
/// margin m_k, the lead of the first branch by head k. A head without a preference adds nothing.
pub(super) fn loss(margins: &[f64], labels: &[HeadLabel]) -> (f64, Vec<f64>) {
    let share = 1.0 / margins.len().max(1) as f64;
    let mut loss = 0.0;
    let mut slopes = Vec::with_capacity(margins.len());
    for (&margin, &label) in margins.iter().zip(labels) {
        let sign = label.sign();
        let right = sign * margin;
        // This form of −ln σ(r) does not overflow, whatever the sign of r.
        let own = (-right).max(0.0) + (-right.abs()).exp().ln_1p();
        loss += share * sign.abs() * own;
        slopes.push(-share * sign / (1.0 + right.exp()));
    }
    (loss, slopes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels() -> impl Strategy<Value = HeadLabel> {
        prop_oneof![Just(HeadLabel::First), Just(HeadLabel::Second), Just(HeadLabel::Neither)]
    }

    proptest! {
        #[test]
        fn slopes_match_finite_differences(heads in prop::collection::vec((-9.0f64..9.0, labels()), 1..8)) {
            const STEP: f64 = 1e-5;
            let (margins, labels): (Vec<f64>, Vec<HeadLabel>) = heads.into_iter().unzip();
            let (_, slopes) = loss(&margins, &labels);
            for (head, slope) in slopes.into_iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = margins.clone();
                    moved[head] += step;
                    loss(&moved, &labels).0
                };
                let measured = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                prop_assert!((measured - slope).abs() < 1e-6, "{head}: {slope}, differences give {measured}");
            }
        }

        /// "This loss reduces to Direct Preference Optimization with temperature 1 if all heads are tied" (§3.3).
        #[test]
        fn tied_heads_equal_a_single_one(margin in -30.0f64..30.0) {
            let (seven, _) = loss(&[margin; 7], &[HeadLabel::First; 7]);
            let (one, _) = loss(&[margin], &[HeadLabel::First]);
            let wanted = -(1.0 / (1.0 + (-margin).exp())).ln();
            prop_assert!((seven - wanted).abs() < 1e-9 && (one - wanted).abs() < 1e-9, "{seven} {one} {wanted}");
        }
    }

    #[test]
    fn large_margins_do_not_overflow_and_equal_rewards_have_no_label() {
        assert_eq!(loss(&[2000.0, -2000.0], &[HeadLabel::First; 2]), (1000.0, vec![-0.0, -0.5]));
        assert_eq!(loss(&[0.7], &[HeadLabel::Neither]), (0.0, vec![-0.0]));
        let labels = [0.1, -0.1, 0.0].map(HeadLabel::of);
        assert_eq!(labels, [HeadLabel::First, HeadLabel::Second, HeadLabel::Neither]);
        assert_eq!(labels.map(|label| label.agrees(0.5)), [Some(true), Some(false), None]);
    }
}
