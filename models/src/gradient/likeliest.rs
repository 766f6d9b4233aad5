//! Most probable tokens at a target, and the divergence of another distribution from them.

/// The most probable tokens of a distribution, with probabilities renormalized over these tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likeliest {
    ids: Vec<u32>,
    probabilities: Vec<f32>,
}

impl Likeliest {
    /// Selects the `count` tokens with the largest logits, or all tokens if there are fewer. Logits must be finite.
    /// The lower ID wins ties.
    pub fn of(logits: &[f32], count: usize) -> Likeliest {
        let count = count.min(logits.len());
        let ahead = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        if count < order.len() {
            order.select_nth_unstable_by(count, ahead);
        }
        // Copied into a new list, because `order` is as long as the vocabulary.
        let mut ids = order[..count].to_vec();
        ids.sort_unstable_by(ahead);
        let probabilities = logs(&ids, logits).into_iter().map(|log| log.exp() as f32).collect();
        Likeliest { ids, probabilities }
    }

    /// Token IDs, the most probable first.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Probabilities of the tokens; they sum to 1 up to rounding.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Computes KL(p ‖ q) in nats, where p is the distribution of these tokens and q the softmax of `logits`
    /// restricted to them, together with its derivative `q − p` with respect to each of their logits. The
    /// derivative is zero for all other logits.
    ///
    /// # Panics
    /// If there is no logit for one of the tokens.
    pub fn divergence(&self, logits: &[f32]) -> (f64, Vec<f32>) {
        let own = logs(&self.ids, logits);
        let pairs = || self.probabilities.iter().map(|&p| f64::from(p)).zip(&own);
        let term = |(p, log): (f64, &f64)| if p > 0.0 { p * (p.ln() - log) } else { 0.0 };
        let nats: f64 = pairs().map(term).sum();
        // Rounding may leave the sum slightly below zero.
        (nats.max(0.0), pairs().map(|(p, log)| (log.exp() - p) as f32).collect())
    }
}

/// Log-softmax over the logits of `ids` alone.
fn logs(ids: &[u32], logits: &[f32]) -> Vec<f64> {
    let own: Vec<f64> = ids.iter().map(|&id| f64::from(logits[id as usize])).collect();
    let largest = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = own.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
    own.into_iter().map(|logit| logit - largest - total).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        // Few distinct values, so ties occur.
        prop::collection::vec((-8i8..8).prop_map(|value| f32::from(value) / 2.0), 1..60)
    }

    proptest! {
        #[test]
        fn they_are_the_first_of_a_full_sort(logits in logits(), count in 1usize..70) {
            let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
            // A stable sort keeps ties in the order of their IDs.
            sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            sorted.truncate(count);
            let found = Likeliest::of(&logits, count);
            prop_assert_eq!(found.ids(), &sorted[..]);
            let total: f64 = sorted.iter().map(|&id| f64::from(logits[id as usize]).exp()).sum();
            for (&id, &found) in sorted.iter().zip(found.probabilities()) {
                let wanted = f64::from(logits[id as usize]).exp() / total;
                prop_assert!((f64::from(found) - wanted).abs() < 1e-6, "{found} {wanted}");
            }
        }

        /// The divergence from the source logits is zero; for all others, the derivative agrees with finite
        /// differences.
        #[test]
        fn slopes_are_those_of_the_divergence(
            values in prop::collection::vec((-4.0f32..4.0, -4.0f32..4.0), 2..20), count in 1usize..12,
        ) {
            const STEP: f32 = 1.0 / 256.0;
            let (teacher, student): (Vec<f32>, Vec<f32>) = values.into_iter().unzip();
            let likeliest = Likeliest::of(&teacher, count);
            prop_assert!(likeliest.divergence(&teacher).0 < 1e-6);
            let (nats, slopes) = likeliest.divergence(&student);
            prop_assert!(nats >= 0.0 && nats.is_finite());
            for id in 0..student.len() as u32 {
                let at = |step: f32| {
                    let mut moved = student.clone();
                    moved[id as usize] += step;
                    (likeliest.divergence(&moved).0, moved[id as usize])
                };
                let (above, up) = at(STEP);
                let (below, down) = at(-STEP);
                let measured = (above - below) / f64::from(up - down);
                let place = likeliest.ids().iter().position(|&own| own == id);
                let slope = place.map_or(0.0, |place| f64::from(slopes[place]));
                prop_assert!((measured - slope).abs() < 1e-3, "{id}: {slope}, differences give {measured}");
            }
        }
    }

    #[test]
    fn one_token_alone_is_certain_and_none_is_nothing() {
        let one = Likeliest::of(&[0.5, 2.0, -1.0], 1);
        assert_eq!((one.ids(), one.probabilities()), (&[1][..], &[1.0][..]));
        assert_eq!(one.divergence(&[9.0, -9.0, 0.0]), (0.0, vec![0.0]));
        assert_eq!(Likeliest::of(&[0.5], 0), Likeliest::default());
    }
}
