#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use super::*;

/// A step that logs calls and fails on request.
#[derive(Default)]
struct Fake {
    done: RefCell<Vec<&'static str>>,
    refuses: RefCell<Vec<&'static str>>,
    lost: Cell<bool>,
}

impl Fake {
    fn ask(&self, what: &'static str) -> Result<(), String> {
        self.done.borrow_mut().push(what);
        if self.lost.get() || self.refuses.borrow().contains(&what) { Err(format!("no {what}")) } else { Ok(()) }
    }

    fn take(&self) -> Vec<&'static str> {
        self.done.take()
    }
}

impl GraphStep for &Fake {
    type Graph = u32;
    type Error = String;

    fn launch(&self) -> Result<(), String> {
        self.ask("launch")
    }

    fn capture(&self) -> Result<u32, String> {
        self.ask("record").map(|()| 7)
    }

    fn replay(&self, graph: &u32) -> Result<(), String> {
        assert_eq!(*graph, 7);
        self.ask("replay")
    }

    fn settle(&self) -> Result<(), String> {
        if self.lost.get() { Err("gone".to_owned()) } else { Ok(()) }
    }
}

fn key(rows: usize) -> GraphKey {
    GraphKey { rows, lora: None }
}

#[test]
fn a_size_is_recorded_once_and_then_replayed() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    for _ in 0..3 {
        graphs.run(key(4), &&step).unwrap();
    }
    assert_eq!(step.take(), ["launch", "record", "replay", "replay"]);
    graphs.run(key(8), &&step).unwrap();
    assert_eq!(step.take(), ["launch", "record"]);
    assert_eq!(graphs.counts(), GraphUse { recorded: 2, refused: 0 });
}

#[test]
fn what_cannot_be_recorded_is_launched_and_not_tried_again() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    graphs.run(key(1), &&step).unwrap();
    step.refuses.replace(vec!["record"]);
    for _ in 0..3 {
        graphs.run(key(4), &&step).unwrap();
    }
    graphs.run(key(1), &&step).unwrap();
    assert_eq!(step.take(), ["launch", "record", "launch", "record", "launch", "launch", "replay"]);
    assert_eq!(graphs.counts(), GraphUse { recorded: 1, refused: 1 });
}

#[test]
fn what_cannot_be_replayed_is_launched() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    graphs.run(key(4), &&step).unwrap();
    step.refuses.replace(vec!["replay"]);
    graphs.run(key(4), &&step).unwrap();
    graphs.run(key(4), &&step).unwrap();
    assert_eq!(step.take(), ["launch", "record", "replay", "launch", "launch"]);
    assert_eq!(graphs.counts(), GraphUse { recorded: 1, refused: 1 });
}

#[test]
fn a_lost_card_is_no_matter_of_recording() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    step.lost.set(true);
    assert!(graphs.run(key(4), &&step).is_err());
    step.lost.set(false);
    graphs.run(key(4), &&step).unwrap();
    step.lost.set(true);
    assert_eq!(graphs.run(key(4), &&step).unwrap_err(), "no launch");
}

#[test]
fn warming_makes_what_is_missing_until_its_time_is_over() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    graphs.run(key(2), &&step).unwrap();
    let keys = [1, 2, 4, 8].map(key);
    let line = |_: GraphKey| Ok(&step);
    assert_eq!(graphs.capture_missing(&keys, Duration::ZERO, line), Ok(3));
    assert_eq!(graphs.counts().recorded, 1);
    assert_eq!(graphs.capture_missing(&keys, Duration::from_secs(3600), line), Ok(0));
    assert_eq!(graphs.counts().recorded, 4);
    step.take();
    assert_eq!(graphs.capture_missing(&keys, Duration::from_secs(3600), line), Ok(0));
    for key in keys {
        graphs.run(key, &&step).unwrap();
    }
    assert_eq!(step.take(), ["replay"; 4]);
}

#[test]
fn other_grids_of_adapters_are_other_recordings() {
    let step = Fake::default();
    let mut graphs = GraphCache::new(true);
    let adapted = |stride| GraphKey { rows: 4, lora: Some(LoraGrid { tiles: 4, stride }) };
    for key in [key(4), adapted(48), adapted(96), adapted(48)] {
        graphs.run(key, &&step).unwrap();
    }
    assert_eq!(graphs.counts().recorded, 3);
    graphs.retain(|key| key.lora.is_none_or(|grid| grid.stride == 96));
    step.take();
    for key in [key(4), adapted(96), adapted(48)] {
        graphs.run(key, &&step).unwrap();
    }
    assert_eq!(step.take(), ["replay", "replay", "launch", "record"]);
}
