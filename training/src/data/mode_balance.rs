//! Balance of the modes of first searches among the samples of a source.

use waymark_index::Mode;

/// Number of samples from which on the share of a mode is limited: a share of few samples is noise.
const FREE: usize = 8;

/// Counts of first modes, with a limit on the share of each.
#[derive(Debug, Clone)]
pub struct ModeBalance {
    most: f64,
    counts: Vec<(Mode, usize)>,
}

impl ModeBalance {
    /// Limits the share of each mode to `most`; 1 limits nothing.
    pub fn new(most: f64) -> ModeBalance {
        ModeBalance { most, counts: Vec::new() }
    }

    /// Returns `true` if a sample whose first search has this mode keeps the mode's share within the limit. Samples
    /// without a search are always admitted.
    pub fn admits(&self, first: Option<Mode>) -> bool {
        let Some(mode) = first else { return true };
        let total: usize = self.counts.iter().map(|(_, count)| count).sum::<usize>() + 1;
        total <= FREE || (self.count(mode) + 1) as f64 <= self.most * total as f64
    }

    /// Counts a sample.
    pub fn add(&mut self, first: Option<Mode>) {
        let Some(mode) = first else { return };
        match self.counts.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((mode, 1)),
        }
    }

    fn count(&self, mode: Mode) -> usize {
        self.counts.iter().find(|(known, _)| *known == mode).map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mode_exceeds_its_share() {
        let mut balance = ModeBalance::new(0.6);
        for at in 0..100 {
            let wanted = Some(if at % 5 == 0 { Mode::Graph } else { Mode::Passage });
            if balance.admits(wanted) {
                balance.add(wanted);
            }
        }
        let [passage, graph] = [Mode::Passage, Mode::Graph].map(|mode| balance.count(mode));
        assert_eq!(graph, 20, "the rare mode is never refused");
        assert!(passage as f64 <= 0.6 * (passage + graph) as f64 && passage >= 28, "{passage}");
        assert!(balance.admits(None) && ModeBalance::new(1.0).admits(Some(Mode::Hybrid)));
    }
}
