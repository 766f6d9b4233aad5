//! Success of the modes of search by kind of question: which mode to teach for which kind.

use std::collections::BTreeMap;
use std::fmt;

use waymark_index::Mode;

use crate::reward::ExactMatch;
use crate::sample::Sample;

/// Minimum number of trajectories that begin in a mode, for each of at least two modes, to choose one for a kind.
pub const MIN_TRAJECTORIES: usize = 8;

/// Trajectories of one kind of question whose first search had the same mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeRecord {
    /// Number of trajectories.
    pub tried: usize,
    /// Number of them with a right answer.
    pub right: usize,
    /// Number of them whose first search showed a supporting passage.
    pub found: usize,
}

/// Records of all modes by kind of question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModeTable {
    kinds: BTreeMap<String, Vec<(Mode, ModeRecord)>>,
}

impl ModeRecord {
    fn add(&mut self, sample: &Sample) {
        let shown = sample.evidence.first().map_or(&[][..], |search| &search.passages);
        self.tried += 1;
        self.right += usize::from(ExactMatch::of_sample(sample) > 0.0);
        self.found += usize::from(shown.iter().any(|(id, _)| sample.supporting.contains(id)));
    }

    fn share(count: usize, of: usize) -> f64 {
        if of == 0 { 0.0 } else { count as f64 / of as f64 }
    }

    /// Share of right answers.
    pub fn success(&self) -> f64 {
        ModeRecord::share(self.right, self.tried)
    }

    /// Share of first searches that showed a supporting passage.
    pub fn recall(&self) -> f64 {
        ModeRecord::share(self.found, self.tried)
    }
}

impl ModeTable {
    /// Counts trajectories by the kind of their question and the mode of their first search. Those without a kind or
    /// without a search are left out.
    pub fn of(samples: &[Sample]) -> ModeTable {
        let mut table = ModeTable::default();
        for sample in samples {
            let (Some(kind), Some(mode)) = (&sample.kind, sample.first_mode()) else { continue };
            table.record(kind, mode).add(sample);
        }
        table
    }

    fn record(&mut self, kind: &str, mode: Mode) -> &mut ModeRecord {
        let modes = self.kinds.entry(kind.to_owned()).or_insert_with(|| {
            // In the order of `Mode::ALL`, so that the cheaper of two equal modes comes first.
            Mode::ALL.iter().map(|&mode| (mode, ModeRecord::default())).collect()
        });
        let at = Mode::ALL.iter().position(|&other| other == mode).unwrap_or_default();
        &mut modes[at].1
    }

    /// Mode whose trajectories answer questions of `kind` rightly most often. Ties go to the mode that shows a
    /// supporting passage more often, then to the cheapest. `None` if fewer than two modes were tried often enough.
    pub fn best(&self, kind: &str) -> Option<Mode> {
        let modes = self.kinds.get(kind)?.iter();
        let tried: Vec<_> = modes.filter(|(_, record)| record.tried >= MIN_TRAJECTORIES).collect();
        let score = |record: &ModeRecord| (record.success(), record.recall());
        let mut best = *tried.first()?;
        for &candidate in &tried {
            if score(&candidate.1) > score(&best.1) {
                best = candidate;
            }
        }
        (tried.len() > 1).then_some(best.0)
    }

    /// Returns `true` if the first search of the trajectory has the best mode for its kind of question.
    pub fn agrees(&self, sample: &Sample) -> bool {
        let best = sample.kind.as_deref().and_then(|kind| self.best(kind));
        best.is_some() && best == sample.first_mode()
    }
}

impl fmt::Display for ModeTable {
    /// A Markdown table: for each kind and mode the trajectories, right answers and found supports in percent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| kind | mode | trajectories | right | support found first | taught |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (kind, modes) in &self.kinds {
            let best = self.best(kind);
            for (mode, record) in modes.iter().filter(|(_, record)| record.tried > 0) {
                let [right, found] = [record.success(), record.recall()].map(|share| share * 100.0);
                let taught = if best == Some(*mode) { "yes" } else { "" };
                writeln!(f, "| {kind} | {mode} | {} | {right:.1} % | {found:.1} % | {taught} |", record.tried)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::tests::searched;

    fn samples(kind: &str, mode: Mode, right: usize, of: usize) -> Vec<Sample> {
        let sample = |at: usize| Sample {
            kind: Some(kind.to_owned()),
            golds: vec!["Paris".to_owned()],
            answer: Some(if at < right { "Paris" } else { "Rome" }.to_owned()),
            ..searched("", &[(mode, 0.1)])
        };
        (0..of).map(sample).collect()
    }

    #[test]
    fn the_mode_with_most_right_answers_is_taught() {
        let all = [
            samples("occupation", Mode::Passage, 4, 10),
            samples("occupation", Mode::Graph, 7, 10),
            samples("place of birth", Mode::Passage, 5, 10),
            samples("place of birth", Mode::Hybrid, 5, 10),
            // One lucky trajectory decides nothing.
            samples("place of birth", Mode::Graph, 1, 1),
            samples("director", Mode::Graph, 9, 9),
        ];
        let table = ModeTable::of(&all.concat());
        assert_eq!(table.best("occupation"), Some(Mode::Graph));
        assert_eq!(table.best("place of birth"), Some(Mode::Passage), "the cheaper of equal modes");
        assert_eq!(table.best("director"), None, "no other mode was tried");
        assert_eq!(table.best("unknown"), None);
        assert!(table.agrees(&all[1][0]) && !table.agrees(&all[0][0]) && !table.agrees(&all[5][0]));
        let shown = table.to_string();
        assert!(shown.contains("| occupation | graph | 10 | 70.0 % | 0.0 % | yes |"), "{shown}");
    }
}
