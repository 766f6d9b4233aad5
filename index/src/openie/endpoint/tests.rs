#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::complete::{CompleteError, ModelMessage, ModelReply};
use crate::evidence::Passage;
use crate::triple::Triple;

/// Model with scripted replies.
#[derive(Debug, Default)]
struct Scripted {
    /// Replies to give before the correct one, by a word of the passage.
    first: Mutex<HashMap<&'static str, Vec<Result<ModelReply, CompleteError>>>>,
    calls: AtomicU32,
    at_once: AtomicU32,
    most_at_once: AtomicU32,
}

impl Scripted {
    fn new(first: &[(&'static str, Vec<Result<ModelReply, CompleteError>>)]) -> Arc<Scripted> {
        Arc::new(Scripted { first: Mutex::new(first.iter().cloned().collect()), ..Scripted::default() })
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Complete for Scripted {
    fn model(&self) -> &'static str {
        "scripted"
    }

    fn complete(&self, messages: &[ModelMessage], _: u32) -> Result<ModelReply, CompleteError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let now = 1 + self.at_once.fetch_add(1, Ordering::SeqCst);
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        // Long enough for calls to overlap.
        std::thread::sleep(Duration::from_millis(2));
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        let question = &messages.last().unwrap().content;
        let mut first = self.first.lock().unwrap();
        let script = first.iter_mut().find(|(word, script)| question.contains(**word) && !script.is_empty());
        if let Some((_, script)) = script {
            return script.remove(0);
        }
        if !messages[0].content.contains("statements") {
            return reply(&format!("{{\"named_entities\": [{:?}, {:?}]}}", question.lines().next().unwrap(), "x"));
        }
        let title = question.lines().nth(2).unwrap();
        // The second triple is malformed, and has to be left out without an error.
        reply(&format!("{{\"triples\": [[{title:?}, \"is\", \"x\"], [1, 2]]}}"))
    }
}

fn reply(text: &str) -> Result<ModelReply, CompleteError> {
    Ok(ModelReply { text: text.to_owned(), cut: false })
}

fn cut(text: &str) -> Result<ModelReply, CompleteError> {
    Ok(ModelReply { text: text.to_owned(), cut: true })
}

fn busy() -> Result<ModelReply, CompleteError> {
    Err(CompleteError::Transient { message: "busy".into(), after: Some(Duration::from_millis(1)) })
}

fn corpus(count: usize) -> Vec<Passage> {
    titled((0..count).map(|number| format!("t{number:03}")))
}

fn titled(titles: impl IntoIterator<Item = String>) -> Vec<Passage> {
    let titles = titles.into_iter().enumerate();
    titles.map(|(number, title)| Passage { id: number.to_string(), title, text: "Some text.".into() }).collect()
}

fn options() -> EndpointOptions {
    let first_wait = Duration::from_millis(1);
    let longest_wait = Duration::from_millis(4);
    EndpointOptions { concurrency: 4, attempts: 3, first_wait, longest_wait, ..EndpointOptions::default() }
}

fn extract(endpoint: &Endpoint, corpus: &dyn Passages) -> Result<Vec<Vec<Triple>>, IndexError> {
    let mut all = vec![None; corpus.len()];
    let numbers: Vec<u32> = (0..corpus.len() as u32).collect();
    endpoint.extract(corpus, &numbers, &mut |number, triples| {
        assert!(all[number as usize].replace(triples).is_none(), "{number} came twice");
        Ok(())
    })?;
    Ok(all.into_iter().map(Option::unwrap).collect())
}

#[test]
fn every_passage_is_asked_about_once_and_several_at_a_time() {
    let model = Scripted::new(&[]);
    let endpoint = Endpoint::new(model.clone(), options());
    let all = extract(&endpoint, &corpus(40)).unwrap();
    for (number, triples) in all.iter().enumerate() {
        assert_eq!(*triples, [Triple::new(format!("t{number:03}"), "is", "x")]);
    }
    // Two calls per passage: its names, then its triples.
    assert_eq!(model.calls(), 80);
    let most = model.most_at_once.load(Ordering::SeqCst);
    assert!((2..=4).contains(&most), "{most} at once");
    assert_eq!(endpoint.report(), EndpointReport { passages: 40, ..EndpointReport::default() });
    assert_eq!(endpoint.id(), "endpoint scripted");
}

#[test]
fn passages_of_the_same_text_are_paid_for_once() {
    let model = Scripted::new(&[]);
    let corpus = titled(["t000", "t001", "t000", "t000"].map(str::to_owned));
    let endpoint = Endpoint::new(model.clone(), options());
    let triples = |title: &str| vec![Triple::new(title, "is", "x")];
    let all = extract(&endpoint, &corpus).unwrap();
    assert_eq!(all, ["t000", "t001", "t000", "t000"].map(triples));
    assert_eq!((model.calls(), endpoint.report().passages), (4, 4));

    let rejected = [("t000", vec![Err(CompleteError::Rejected("too long".into()))])];
    let endpoint = Endpoint::new(Scripted::new(&rejected), EndpointOptions { tolerated: 3, ..options() });
    let all = extract(&endpoint, &corpus).unwrap();
    assert!(all[0].is_empty() && all[2].is_empty() && all[3].is_empty() && all[1] == triples("t001"));
    let report = endpoint.report();
    assert_eq!((report.passages, report.failed), (4, 3));
}

#[test]
fn what_may_pass_is_tried_again() {
    let model = Scripted::new(&[
        ("t001", vec![busy(), busy()]),
        ("t002", vec![reply("I cannot do that.")]),
        ("t003", vec![reply("{\"named_entities\": []}"), cut("{\"triples\": [[\"a\", \"b\", \"c\"], [\"d\", \"e")]),
        ("t004", vec![reply("{\"named_entities\": []}"), reply("{\"triples\": []}")]),
    ]);
    let endpoint = Endpoint::new(model, options());
    let all = extract(&endpoint, &corpus(5)).unwrap();
    assert_eq!(all[1], [Triple::new("t001", "is", "x")]);
    assert_eq!(all[2], [Triple::new("t002", "is", "x")]);
    assert_eq!(all[3], [Triple::new("a", "b", "c")]);
    assert!(all[4].is_empty());
    let expected = EndpointReport { passages: 5, mended: 1, empty: 1, retries: 3, ..EndpointReport::default() };
    assert_eq!(endpoint.report(), expected);
}

#[test]
fn what_fails_for_good_is_counted_and_never_taken_for_nothing() {
    let script = [
        ("t001", vec![busy(), busy(), busy()]),
        ("t002", vec![reply("no"), reply("no")]),
        ("t003", vec![Err(CompleteError::Rejected("too long".into()))]),
    ];
    let endpoint = Endpoint::new(Scripted::new(&script), EndpointOptions { tolerated: 3, ..options() });
    let all = extract(&endpoint, &corpus(6)).unwrap();
    assert!(all[1].is_empty() && all[2].is_empty() && all[3].is_empty() && !all[4].is_empty());
    let report = endpoint.report();
    assert_eq!((report.failed, report.empty, report.retries), (3, 0, 3));
    assert!(report.first_failure.is_some());

    let endpoint = Endpoint::new(Scripted::new(&script), EndpointOptions { tolerated: 2, ..options() });
    let message = extract(&endpoint, &corpus(6)).unwrap_err().to_string();
    assert!(message.contains("3 passages failed, 2 may") && message.contains("scripted"), "{message}");
}

#[test]
fn a_refusal_stops_at_once() {
    let refused = || Err(CompleteError::Refused("the key is wrong".into()));
    let model = Scripted::new(&[("t000", vec![refused(); 1000])]);
    let endpoint = Endpoint::new(model.clone(), EndpointOptions { concurrency: 1, tolerated: 99, ..options() });
    let message = extract(&endpoint, &corpus(50)).unwrap_err().to_string();
    assert!(message.contains("the key is wrong"), "{message}");
    assert!(model.calls() < 20, "{}", model.calls());
}

#[test]
fn an_endpoint_that_is_down_is_not_asked_about_everything() {
    let model = Scripted::new(&[("t", vec![busy(); 10_000])]);
    let endpoint = Endpoint::new(model.clone(), EndpointOptions { tolerated: 1_000, ..options() });
    let message = extract(&endpoint, &corpus(200)).unwrap_err().to_string();
    assert!(message.contains("busy"), "{message}");
    assert!(model.calls() < 150, "{}", model.calls());
}

#[test]
fn what_is_in_the_journal_is_not_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("openie.jsonl");
    let options = EndpointOptions { journal: Some(journal.clone()), ..options() };
    let broken = [("t003", vec![reply("no"), reply("no")])];
    let first = Endpoint::new(Scripted::new(&broken), options.clone());
    let message = extract(&first, &corpus(6)).unwrap_err().to_string();
    assert!(message.contains("kept for the next try"), "{message}");

    let model = Scripted::new(&[]);
    let second = Endpoint::new(model.clone(), options);
    let all = extract(&second, &corpus(8)).unwrap();
    assert_eq!(all[5], [Triple::new("t005", "is", "x")]);
    assert_eq!((model.calls(), second.report().reused, second.report().passages), (6, 5, 8));

    let imported = crate::openie::Imported::open(&journal).unwrap();
    let numbers: Vec<u32> = (0..8).collect();
    imported
        .extract(&corpus(8), &numbers, &mut |number, triples| {
            assert_eq!(triples, all[number as usize]);
            Ok(())
        })
        .unwrap();
    assert_eq!(imported.report().missing, 0);
}

#[test]
fn a_sink_that_fails_ends_it() {
    let model = Scripted::new(&[]);
    let endpoint = Endpoint::new(model.clone(), options());
    let numbers: Vec<u32> = (0..100).collect();
    let failed = endpoint.extract(&corpus(100), &numbers, &mut |_, _| Err(IndexError::TooLarge { limit: 1 }));
    assert!(matches!(failed, Err(IndexError::TooLarge { .. })));
    // Those at work when the sink fails may still end.
    assert!(model.calls() < 60, "{}", model.calls());
}
