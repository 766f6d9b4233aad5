//! One record of ten megabytes with extracted triples: built in a time and a memory that its length asks for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corpora::{HashEmbed, document};
use waymark_index::openie::Builtin;
use waymark_index::{BuildOptions, BuildPhase, BuildProgress, Corpus, Index, Mode, Query, build};

const LENGTH: usize = 10_000_000;

/// Start of each phase.
struct Phases(Instant, Mutex<Vec<(BuildPhase, Duration)>>);

impl BuildProgress for Phases {
    fn update(&self, phase: BuildPhase, _: u64, _: Option<u64>) {
        let mut phases = self.1.lock().unwrap();
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, self.0.elapsed()));
        }
    }
}

/// Largest memory of this process in MiB, which runs no other test. 0 where the system does not tell.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1024
}

#[test]
fn one_record_of_ten_megabytes_takes_no_more_than_its_length_asks_for() {
    let mut text = String::with_capacity(LENGTH + 200);
    for number in 0.. {
        if text.len() >= LENGTH {
            break;
        }
        let other = number / 7;
        write!(text, "Its harbor at Port K{number} lies near Lake B{other}, and the mayor, Ann C{other}, founded the ")
            .unwrap();
        write!(text, "college in {}. ", 1800 + number % 200).unwrap();
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let options = BuildOptions { extract: Some(Arc::new(Builtin)), ..BuildOptions::default() };
    let phases = Phases(Instant::now(), Mutex::default());
    let corpus = Corpus::from_documents("test", vec![document("whole", "Marvin Bay", &text)]);
    let report = build(corpus, &HashEmbed::default(), &dir, &options, &phases).unwrap();
    let took = phases.0.elapsed();
    let graph = report.manifest.graph.unwrap();
    println!("{took:.1?}, {} MiB, {} phrases, {} facts", peak(), graph.phrases, graph.facts);
    phases.1.lock().unwrap().iter().for_each(|(phase, started)| println!("{phase} from {started:.1?}"));
    assert!(graph.phrases > 20_000 && graph.facts > 20_000, "{graph:?}");
    // Half a minute on an idle machine; a step that compares all pairs of triples would take hours.
    assert!(took < Duration::from_secs(1800), "{took:?}");
    assert!(peak() < 1000, "{} MiB", peak());
    let index = Index::open(&dir, Arc::new(HashEmbed::default())).unwrap();
    let found = index.search(&Query::new("Where is Port K17?", Mode::Graph, 1)).unwrap();
    assert_eq!(found.hits[0].passage.id, "whole");
}
