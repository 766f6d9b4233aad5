//! Cost of a commit to an index of real passages. Run with `cargo test --test committing -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;
#[path = "../../tests/outside/mod.rs"]
mod outside;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use corpora::{HashEmbed, document};
use waymark_index::openie::Builtin;
use waymark_index::{
    BuildOptions, BuildPhase, BuildProgress, Changes, CommitOptions, Corpus, CorpusOptions, LiveIndex, OpenOptions,
    build,
};

/// Recorder of the start of each phase, by wall clock and by CPU time.
struct Phases(Instant, f64, Mutex<Vec<(BuildPhase, [f64; 2])>>);

/// CPU seconds spent by this process. 0 if the system does not report it as Linux does.
fn spent() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse().unwrap_or(0.0)).sum::<f64>() / 100.0
}

impl Phases {
    fn new() -> Phases {
        Phases(Instant::now(), spent(), Mutex::default())
    }

    fn now(&self) -> [f64; 2] {
        [self.0.elapsed().as_secs_f64(), spent() - self.1]
    }

    /// Prints the time before the first phase, of each phase, and of the whole, in seconds.
    fn print(self, what: &str) {
        let whole = self.now();
        let phases = self.2.into_inner().unwrap();
        println!("{what}: {:.3} s, {:.2} s of CPU time", whole[0], whole[1]);
        let ends = phases.iter().map(|(_, begun)| *begun).chain([whole]);
        let mut begun = [0.0; 2];
        for (phase, end) in
            ["opening".to_owned()].into_iter().chain(phases.iter().map(|one| one.0.to_string())).zip(ends)
        {
            println!("  {phase:10} {:7.3} {:6.2}", end[0] - begun[0], end[1] - begun[1]);
            begun = end;
        }
    }
}

impl BuildProgress for Phases {
    fn update(&self, phase: BuildPhase, _: u64, _: Option<u64>) {
        let mut phases = self.2.lock().unwrap();
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, self.now()));
        }
    }
}

#[test]
#[ignore = "a measurement of minutes"]
fn one_document_into_2wiki() {
    let corpus = "2wiki/corpus.jsonl";
    let Some(data) = outside::data(&[corpus]) else { return };
    let temp = tempfile::tempdir().unwrap();
    let embed = HashEmbed::new(384);
    let corpus = Corpus::open(&data.join(corpus), &CorpusOptions::default()).unwrap();
    let phases = Phases::new();
    let options = BuildOptions { extract: Some(Arc::new(Builtin)), ..BuildOptions::default() };
    let report = build(corpus, &embed, temp.path(), &options, &phases).unwrap();
    phases.print("build");
    println!("{:?}", report.manifest.graph);
    let live = LiveIndex::open(temp.path(), Arc::new(embed), OpenOptions::default()).unwrap();
    let new = |text: &str| document("new", "Waymark", &format!("Waymark is a server written in {text}."));
    for (what, changes) in [
        ("add one", Changes::upsert([new("Rust")])),
        ("replace one", Changes::upsert([new("Zurich in 2026")])),
        ("remove one", Changes::delete(["new".to_owned()])),
    ] {
        let phases = Phases::new();
        live.commit(changes, &CommitOptions::default(), &phases).unwrap();
        phases.print(what);
    }
}
