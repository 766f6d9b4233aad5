//! What a commit takes on real passages. `cargo test --test committing -- --ignored --nocapture` measures it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use corpora::{HashEmbed, document};
use waymark_index::openie::Builtin;
use waymark_index::{
    BuildOptions, BuildProgress, Changes, CommitOptions, Corpus, CorpusOptions, LiveIndex, OpenOptions, Phase, build,
};

/// Notes when each phase begins.
struct Phases(Instant, Mutex<Vec<(Phase, f64)>>);

impl Phases {
    fn new() -> Phases {
        Phases(Instant::now(), Mutex::default())
    }

    /// What lay before the first phase, each phase, and the whole, in seconds.
    fn print(self, what: &str) {
        let (whole, phases) = (self.0.elapsed().as_secs_f64(), self.1.into_inner().unwrap());
        let ends = phases.iter().skip(1).map(|(_, begun)| *begun).chain([whole]);
        let shares: Vec<String> =
            phases.iter().zip(ends).map(|((phase, begun), end)| format!("{phase} {:.3}", end - begun)).collect();
        println!("{what}: {whole:.3} s; opening {:.3}, {}", phases[0].1, shares.join(", "));
    }
}

impl BuildProgress for Phases {
    fn update(&self, phase: Phase, _: u64, _: Option<u64>) {
        let mut phases = self.1.lock().unwrap();
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, self.0.elapsed().as_secs_f64()));
        }
    }
}

#[test]
#[ignore = "a measurement of minutes"]
fn one_document_into_2wiki() {
    let root = std::env::var("WAYMARK_DATA")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data").to_owned());
    let corpus = PathBuf::from(root).join("2wiki/corpus.jsonl");
    if !corpus.is_file() {
        println!("skipped: {} is absent", corpus.display());
        return;
    }
    let (temp, embed) = (tempfile::tempdir().unwrap(), HashEmbed::new(384));
    let corpus = Corpus::open(&corpus, &CorpusOptions::default()).unwrap();
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
