//! Time spent in each phase of a build.

use std::sync::Mutex;
use std::time::Instant;

use waymark_index::{BuildPhase, BuildProgress};

/// Recorder of the start of each phase.
#[derive(Debug, Default)]
pub struct Phases(Mutex<Vec<(BuildPhase, Instant)>>);

impl Phases {
    /// Returns the phases in order, with the duration of each in seconds.
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
