//! The time that each phase of a build takes.

use std::sync::Mutex;
use std::time::Instant;

use waymark_index::{BuildPhase, BuildProgress};

/// Notes when each phase begins.
#[derive(Debug, Default)]
pub struct Phases(Mutex<Vec<(BuildPhase, Instant)>>);

impl Phases {
    /// The phases in order, with the seconds of each up to the next or to now.
    pub fn seconds(&self) -> Vec<(BuildPhase, f64)> {
        let begun = self.0.lock().unwrap();
        let ends = begun.iter().skip(1).map(|(_, instant)| *instant).chain([Instant::now()]);
        begun.iter().zip(ends).map(|((phase, begin), end)| (*phase, (end - *begin).as_secs_f64())).collect()
    }
}

impl BuildProgress for Phases {
    fn update(&self, phase: BuildPhase, _: u64, _: Option<u64>) {
        let mut begun = self.0.lock().unwrap();
        if begun.last().is_none_or(|(last, _)| *last != phase) {
            begun.push((phase, Instant::now()));
        }
    }
}
