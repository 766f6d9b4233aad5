//! Balance of the samples of a source: limits on the shares of first modes and of statements that nothing was found.

use waymark_index::Mode;

use crate::sample::Sample;

/// Number of samples with a search up to which no mode is limited, because a share of few samples is noise.
const FREE: usize = 8;

/// Properties of a sample whose shares are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleTraits {
    /// Mode of the first search. `None` without searches.
    pub first_mode: Option<Mode>,
    /// If `true`, the sample ends with the statement that nothing was found.
    pub declined: bool,
}

impl SampleTraits {
    /// Properties of a sample.
    pub fn of(sample: &Sample) -> SampleTraits {
        SampleTraits { first_mode: sample.first_mode(), declined: !sample.without.is_empty() }
    }
}

/// Counts of the samples of a source, with limits.
#[derive(Debug, Clone)]
pub struct SampleBalance {
    /// Maximum share of samples whose first search has the same mode.
    most_mode: f64,
    /// Maximum share of declined samples. Lessons with withheld passages nearly always succeed and others often do not.
    /// Without a limit, the share of declined samples would exceed the share of lessons with withheld passages.
    most_declined: f64,
    modes: Vec<(Mode, usize)>,
    declined: usize,
    total: usize,
}

impl SampleBalance {
    /// Limits the share of each first mode and of declined samples; 1 limits nothing.
    pub fn new(most_mode: f64, most_declined: f64) -> SampleBalance {
        SampleBalance { most_mode, most_declined, modes: Vec::new(), declined: 0, total: 0 }
    }

    /// Returns `true` if a sample keeps the shares within their limits. The limit on declined samples does not apply to
    /// the first one of a source, and the limit on modes does not apply to samples without a search.
    pub fn admits(&self, sample: SampleTraits) -> bool {
        if sample.declined && self.declined > 0 {
            let share = (self.declined + 1) as f64 / (self.total + 1) as f64;
            if share > self.most_declined {
                return false;
            }
        }
        let Some(mode) = sample.first_mode else { return true };
        let searched = self.modes.iter().map(|(_, count)| count).sum::<usize>() + 1;
        searched <= FREE || (self.count(mode) + 1) as f64 <= self.most_mode * searched as f64
    }

    /// Counts a sample.
    pub fn add(&mut self, sample: SampleTraits) {
        self.total += 1;
        self.declined += usize::from(sample.declined);
        let Some(mode) = sample.first_mode else { return };
        match self.modes.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, count)) => *count += 1,
            None => self.modes.push((mode, 1)),
        }
    }

    fn count(&self, mode: Mode) -> usize {
        self.modes.iter().find(|(known, _)| *known == mode).map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(mode: Mode, declined: bool) -> SampleTraits {
        SampleTraits { first_mode: Some(mode), declined }
    }

    #[test]
    fn no_mode_exceeds_its_share() {
        let mut balance = SampleBalance::new(0.6, 1.0);
        for at in 0..100 {
            let wanted = searched(if at % 5 == 0 { Mode::Graph } else { Mode::Passage }, false);
            if balance.admits(wanted) {
                balance.add(wanted);
            }
        }
        let [passage, graph] = [Mode::Passage, Mode::Graph].map(|mode| balance.count(mode));
        assert_eq!(graph, 20, "the rare mode is never refused");
        assert!(passage as f64 <= 0.6 * (passage + graph) as f64 && passage >= 28, "{passage}");
        assert!(balance.admits(SampleTraits::default()));
        assert!(SampleBalance::new(1.0, 1.0).admits(searched(Mode::Hybrid, true)));
    }

    #[test]
    fn declined_samples_are_a_share_of_the_samples_and_not_of_the_lessons() {
        let mut balance = SampleBalance::new(1.0, 0.1);
        for at in 0..200 {
            let wanted = searched(Mode::Hypergraph, at % 2 == 0);
            if balance.admits(wanted) {
                balance.add(wanted);
            }
        }
        assert_eq!(balance.total - balance.declined, 100);
        assert!((10..=12).contains(&balance.declined), "{}", balance.declined);
    }
}
