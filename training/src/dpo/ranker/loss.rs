//! The loss of a pair of branches: each head is to have the better one ahead.

/// What a head is to say of a pair, whose first branch is the better one in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// That the first one is ahead.
    First,
    /// That the second one is.
    Second,
    /// Nothing: they earned the same.
    Neither,
}

impl Label {
    /// By how much more the first one earned.
    pub(super) fn of(ahead: f64) -> Label {
        if ahead > 0.0 {
            Label::First
        } else if ahead < 0.0 {
            Label::Second
        } else {
            Label::Neither
        }
    }

    /// y: 1, −1, or 0 for nothing.
    fn sign(self) -> f64 {
        match self {
            Label::First => 1.0,
            Label::Second => -1.0,
            Label::Neither => 0.0,
        }
    }

    /// Whether a head that has the first branch ahead by `margin` says so; nothing where it is to say nothing.
    pub(super) fn agrees(self, margin: f64) -> Option<bool> {
        (self != Label::Neither).then(|| self.sign() * margin > 0.0)
    }
}

/// `−(1/K) Σ_k ln σ(y_k m_k)` over K heads (§3.3 of EVO-RAG's paper, where every y is 1), m being by how much each head has the
/// first branch ahead; and its slope in each of them. A head that is to say nothing adds nothing.
pub(super) fn loss(margins: &[f64], labels: &[Label]) -> (f64, Vec<f64>) {
    let share = 1.0 / margins.len().max(1) as f64;
    let (mut loss, mut slopes) = (0.0, Vec::with_capacity(margins.len()));
    for (&margin, &label) in margins.iter().zip(labels) {
        let (sign, right) = (label.sign(), label.sign() * margin);
        // −ln σ(r), which does not overflow on either side.
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

    fn labels() -> impl Strategy<Value = Label> {
        prop_oneof![Just(Label::First), Just(Label::Second), Just(Label::Neither)]
    }

    proptest! {
        #[test]
        fn slopes_are_those_of_the_loss(heads in prop::collection::vec((-9.0f64..9.0, labels()), 1..8)) {
            const STEP: f64 = 1e-5;
            let (margins, labels): (Vec<f64>, Vec<Label>) = heads.into_iter().unzip();
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
        fn equal_heads_are_one(margin in -30.0f64..30.0) {
            let (seven, _) = loss(&[margin; 7], &[Label::First; 7]);
            let (one, _) = loss(&[margin], &[Label::First]);
            let wanted = -(1.0 / (1.0 + (-margin).exp())).ln();
            prop_assert!((seven - wanted).abs() < 1e-9 && (one - wanted).abs() < 1e-9, "{seven} {one} {wanted}");
        }
    }

    #[test]
    fn far_apart_branches_stay_numbers_and_equal_ones_say_nothing() {
        assert_eq!(loss(&[2000.0, -2000.0], &[Label::First; 2]), (1000.0, vec![-0.0, -0.5]));
        assert_eq!(loss(&[0.7], &[Label::Neither]), (0.0, vec![-0.0]));
        let labels = [0.1, -0.1, 0.0].map(Label::of);
        assert_eq!(labels, [Label::First, Label::Second, Label::Neither]);
        assert_eq!(labels.map(|label| label.agrees(0.5)), [Some(true), Some(false), None]);
    }
}
