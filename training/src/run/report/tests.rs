#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::run::MetricsRow;

fn run(rows: &[MetricsRow], facts: &str) -> String {
    let temp = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&temp.path().join("a <b> 'run'"), facts).unwrap();
    let mut metrics = MetricsFile::resume(&folder.metrics(), 0).unwrap();
    rows.iter().for_each(|row| metrics.append(row).unwrap());
    report(&folder).unwrap();
    fs::read_to_string(folder.report()).unwrap()
}

/// Checks that elements nest correctly and that no attribute or text breaks out, like an XML parser that knows HTML's
/// void elements.
fn assert_well_formed(html: &str) {
    let tag = regex::Regex::new(
        r"<(/?)([a-z][a-zA-Z0-9]*)((?:\s+[a-zA-Z][a-zA-Z0-9-]*='[^'<>]*')*)\s*(/?)>|<!doctype html>|<",
    )
    .unwrap();
    let mut open = Vec::new();
    for tag in tag.captures_iter(html) {
        let Some(name) = tag.get(2).map(|name| name.as_str()) else {
            assert_eq!(&tag[0], "<!doctype html>", "at {}", &html[tag.get(0).unwrap().start()..][..40]);
            continue;
        };
        if &tag[1] == "/" {
            assert_eq!(open.pop(), Some(name));
        } else if &tag[4] != "/" && name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn long_run() -> Vec<MetricsRow> {
    let mut rows = Vec::new();
    for step in 1..=900u64 {
        let (phase, x) = if step <= 600 { ("grpo1", step as f64) } else { ("grpo2", step as f64 / 2.0) };
        rows.push(
            MetricsRow::new(step, phase, 2.0 * step as f64)
                .with("reward", x / 900.0)
                .with("kl", if step == 77 { f64::NAN } else { 1e-3 * x })
                .with("searches_passage", 1.0)
                .with("searches_graph", x / 300.0),
        );
        if step % 100 == 0 {
            rows.push(
                MetricsRow::new(step, "eval", 2.0 * step as f64).with("popqa/em", x / 2e3).with("2wiki/f1", 0.25),
            );
        }
    }
    rows
}

#[test]
fn the_page_is_self_contained() {
    let html = run(&long_run(), "[recipe]\nname = 'small <&> beautiful'\nseed = 42\n");
    assert_well_formed(&html);
    for text in ["http:", "https:", "<script", "<link", "@import", "url(//"] {
        assert!(!html.contains(text), "{text}");
    }
    for text in [
        "<h1>small &lt;&amp;&gt; beautiful</h1>",
        "<dd>42</dd>",
        "grpo1 1–600, grpo2 601–900",
        "30 min 00 s",
        "first NaN at step 77",
    ] {
        assert!(html.contains(text), "{text}");
    }
    // There are tips, phases and an evaluation.
    assert!(html.contains("<h2>Evaluation</h2>") && html.contains("class='phase'") && html.contains(" · grpo2\n"));
    assert!(html.len() < 400_000, "{}", html.len());
}

#[test]
fn a_run_without_numbers_has_a_report() {
    let html = run(&[], "broken = [");
    assert_well_formed(&html);
    assert!(html.contains("No metrics yet") && html.contains("a &lt;b&gt; &#39;run&#39;"));
}

#[test]
fn directories_without_a_run_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    assert!(matches!(RunFolder::open(temp.path()), Err(RunError::Missing { .. })));
}

proptest! {
    /// Checks that arbitrary metrics give a well-formed page in which every coordinate is finite.
    #[test]
    fn arbitrary_metrics_give_a_well_formed_page(
        rows in prop::collection::vec((0u64..5, "[a-z<'&/_ ]{1,6}|eval", prop::collection::btree_map("[a-z/<'\"&_]{1,8}|loss|em|searches_graph", any::<f64>(), 0..4)), 0..12),
    ) {
        let mut step = 0;
        let rows = rows.into_iter().map(|(more, phase, values)| {
            step += more;
            MetricsRow { values, ..MetricsRow::new(step, phase, 1.0) }
        });
        let rows: Vec<_> = rows.filter(|row| !["step", "phase", "seconds"].iter().any(|name| row.values.contains_key(*name))).collect();
        let html = run(&rows, "");
        assert_well_formed(&html);
        let coordinate = regex::Regex::new(r" (?:x|y|x1|y1|cx|cy|width|height|d)='([^']*)'").unwrap();
        for found in coordinate.captures_iter(&html) {
            prop_assert!(!found[1].contains("NaN") && !found[1].contains("inf"), "{}", &found[0]);
        }
    }
}
