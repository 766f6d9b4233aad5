//! Statistics of the built samples.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use waymark_engine::Origin;
use waymark_index::Mode;

use crate::sample::Sample;

/// Modes whose searches are counted.
const MODES: [Mode; 6] = [Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Hypergraph, Mode::Triples, Mode::Kag];

/// Statistics of one data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatasetStats {
    /// Number of trajectories.
    pub samples: usize,
    /// Number of turns, including answers.
    pub turns: usize,
    /// Number of searches by passage, by graph, by both, by the facts of the hypergraph, by graph with triples, and by
    /// passages and triples in one ranking.
    pub modes: [usize; 6],
    /// Number of trajectories with more than one search.
    pub several: usize,
    /// Number of trajectories that end in a guess.
    pub guessed: usize,
    /// Number of trajectories that end with the statement that nothing was found.
    pub declined: usize,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Number of tokens written by the policy.
    pub policy: usize,
    /// Number of tokens injected by the environment.
    pub environment: usize,
}

/// Statistics of a build.
#[derive(Debug, Clone, Default)]
pub struct BuildStats {
    /// Statistics by data set.
    pub rows: BTreeMap<String, DatasetStats>,
    /// Number of dropped lessons, by data set and reason.
    pub dropped: BTreeMap<String, BTreeMap<&'static str, usize>>,
}

impl BuildStats {
    /// Adds a sample.
    pub fn add(&mut self, sample: &Sample) {
        let row = self.rows.entry(sample.dataset.clone()).or_default();
        row.samples += 1;
        row.turns += sample.actions.len();
        row.several += usize::from(sample.evidence.len() > 1);
        row.guessed += usize::from(sample.guessed);
        row.declined += usize::from(!sample.without.is_empty());
        row.prompt += sample.count(Origin::Prompt);
        row.policy += sample.count(Origin::Policy);
        row.environment += sample.count(Origin::Environment);
        for found in &sample.evidence {
            if let Some(place) = MODES.iter().position(|mode| *mode == found.mode) {
                row.modes[place] += 1;
            }
        }
    }

    /// Adds dropped lessons.
    pub fn drop(&mut self, dataset: &str, why: &'static str, count: usize) {
        *self.dropped.entry(dataset.to_owned()).or_default().entry(why).or_default() += count;
    }
}

impl fmt::Display for BuildStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "samples",
            "turns",
            "passage",
            "graph",
            "hybrid",
            "facts",
            "triples",
            "kag",
            "several",
            "guessed",
            "declined",
            "prompt",
            "policy",
            "environment",
        ];
        writeln!(f, "{:<16}{}", "", head.map(|name| format!("{name:>12}")).concat())?;
        for (name, row) in &self.rows {
            let per = |count: usize| format!("{:.1}", count as f64 / row.samples.max(1) as f64);
            let modes = row.modes.map(|count| count.to_string());
            let ends = [row.several, row.guessed, row.declined].map(|count| count.to_string());
            let cells: Vec<String> =
                [row.samples.to_string(), per(row.turns)].into_iter().chain(modes).chain(ends).collect();
            let tokens = [per(row.prompt), per(row.policy), per(row.environment)];
            let line = cells.iter().chain(&tokens).fold(String::new(), |mut line, cell| {
                let _ = write!(line, "{cell:>12}");
                line
            });
            writeln!(f, "{name:<16}{line}")?;
        }
        for (name, reasons) in &self.dropped {
            let told: Vec<String> = reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
            writeln!(f, "{name:<16}dropped: {}", told.join("; "))?;
        }
        Ok(())
    }
}
