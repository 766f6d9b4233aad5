#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use super::*;

/// A card that writes down what it is asked, and fails where it is told to.
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

impl Line for &Fake {
    type Graph = u32;
    type Error = String;

    fn launch(&self) -> Result<(), String> {
        self.ask("launch")
    }

    fn record(&self) -> Result<u32, String> {
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

fn key(rows: usize) -> Key {
    Key { rows, lora: None }
}

#[test]
fn a_size_is_recorded_once_and_then_replayed() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    for _ in 0..3 {
        graphs.run(key(4), &&card).unwrap();
    }
    assert_eq!(card.take(), ["launch", "record", "replay", "replay"]);
    graphs.run(key(8), &&card).unwrap();
    assert_eq!(card.take(), ["launch", "record"]);
    assert_eq!(graphs.tally(), GraphUse { recorded: 2, refused: 0 });
}

#[test]
fn what_cannot_be_recorded_is_launched_and_not_tried_again() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    graphs.run(key(1), &&card).unwrap();
    card.refuses.replace(vec!["record"]);
    for _ in 0..3 {
        graphs.run(key(4), &&card).unwrap();
    }
    graphs.run(key(1), &&card).unwrap();
    assert_eq!(card.take(), ["launch", "record", "launch", "record", "launch", "launch", "replay"]);
    assert_eq!(graphs.tally(), GraphUse { recorded: 1, refused: 1 });
}

#[test]
fn what_cannot_be_replayed_is_launched() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    graphs.run(key(4), &&card).unwrap();
    card.refuses.replace(vec!["replay"]);
    graphs.run(key(4), &&card).unwrap();
    graphs.run(key(4), &&card).unwrap();
    assert_eq!(card.take(), ["launch", "record", "replay", "launch", "launch"]);
    assert_eq!(graphs.tally(), GraphUse { recorded: 1, refused: 1 });
}

#[test]
fn a_lost_card_is_no_matter_of_recording() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    card.lost.set(true);
    assert!(graphs.run(key(4), &&card).is_err());
    card.lost.set(false);
    graphs.run(key(4), &&card).unwrap();
    card.lost.set(true);
    assert_eq!(graphs.run(key(4), &&card).unwrap_err(), "no launch");
}

#[test]
fn warming_makes_what_is_missing_until_its_time_is_over() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    graphs.run(key(2), &&card).unwrap();
    let (keys, line) = ([1, 2, 4, 8].map(key), |_: Key| Ok(&card));
    assert_eq!(graphs.warm(&keys, Duration::ZERO, line), Ok(3));
    assert_eq!(graphs.tally().recorded, 1);
    assert_eq!(graphs.warm(&keys, Duration::from_secs(3600), line), Ok(0));
    assert_eq!(graphs.tally().recorded, 4);
    card.take();
    assert_eq!(graphs.warm(&keys, Duration::from_secs(3600), line), Ok(0));
    for key in keys {
        graphs.run(key, &&card).unwrap();
    }
    assert_eq!(card.take(), ["replay"; 4]);
}

#[test]
fn other_grids_of_adapters_are_other_recordings() {
    let (card, mut graphs) = (Fake::default(), Graphs::new(true));
    let adapted = |stride| Key { rows: 4, lora: Some(Grid { tiles: 4, stride }) };
    for key in [key(4), adapted(48), adapted(96), adapted(48)] {
        graphs.run(key, &&card).unwrap();
    }
    assert_eq!(graphs.tally().recorded, 3);
    graphs.retain(|key| key.lora.is_none_or(|grid| grid.stride == 96));
    card.take();
    for key in [key(4), adapted(96), adapted(48)] {
        graphs.run(key, &&card).unwrap();
    }
    assert_eq!(card.take(), ["replay", "replay", "launch", "record"]);
}
