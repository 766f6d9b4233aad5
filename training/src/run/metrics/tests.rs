#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn file() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("metrics.jsonl");
    (temp, path)
}

fn steps(path: &Path) -> Vec<u64> {
    MetricsFile::read(path).unwrap().iter().map(|row| row.step).collect()
}

#[test]
fn rows_round_trip() {
    let (_temp, path) = file();
    assert!(MetricsFile::read(&path).unwrap().is_empty());
    let rows = [
        MetricsRow::new(1, "sft", 0.5).with("loss", 2.25).with("lr", 1e-6),
        MetricsRow::new(1, "eval", 0.75).with("f1/popqa", 0.125),
        MetricsRow::new(2, "sft", 1.0),
    ];
    let mut metrics = MetricsFile::resume(&path, 0).unwrap();
    rows.iter().for_each(|row| metrics.append(row).unwrap());
    metrics.sync().unwrap();
    assert_eq!(MetricsFile::read(&path).unwrap(), rows);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(r#"{"step":1,"phase":"sft","seconds":0.5,"loss":2.25"#), "{text}");
}

#[test]
fn values_that_are_not_finite_are_strings() {
    let (_temp, path) = file();
    let row = MetricsRow::new(1, "sft", 0.0).with("a", f64::NAN).with("b", f64::INFINITY).with("c", f64::NEG_INFINITY);
    MetricsFile::resume(&path, 0).unwrap().append(&row).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains(r#""a":"NaN","b":"inf","c":"-inf""#));
    let read = &MetricsFile::read(&path).unwrap()[0].values;
    assert!(read["a"].is_nan() && read["b"] == f64::INFINITY && read["c"] == f64::NEG_INFINITY);
}

#[test]
fn rows_after_the_resumed_step_are_dropped() {
    let (_temp, path) = file();
    let mut metrics = MetricsFile::resume(&path, 0).unwrap();
    for step in 1..=5 {
        metrics.append(&MetricsRow::new(step, "sft", 0.0)).unwrap();
        metrics.append(&MetricsRow::new(step, "eval", 0.0)).unwrap();
    }
    drop(metrics);
    let mut metrics = MetricsFile::resume(&path, 3).unwrap();
    assert_eq!(steps(&path), [1, 1, 2, 2, 3, 3]);
    assert!(matches!(metrics.append(&MetricsRow::new(2, "sft", 0.0)), Err(RunError::Order { step: 2, last: 3 })));
    metrics.append(&MetricsRow::new(4, "sft", 9.0)).unwrap();
    assert_eq!(steps(&path), [1, 1, 2, 2, 3, 3, 4]);
    drop(metrics);
    // After step 0 nothing is kept, not even measurements before the first step: the run starts again.
    for step in [0, 1] {
        MetricsFile::resume(&path, 0).unwrap().append(&MetricsRow::new(step, "eval", 0.0)).unwrap();
        assert_eq!(steps(&path), [step]);
    }
}

#[test]
fn unfinished_last_lines_are_dropped() {
    let (_temp, path) = file();
    let whole = "{\"step\":1,\"phase\":\"sft\",\"seconds\":1.0,\"loss\":2.5}\n";
    // The unfinished line would parse as a row, with 12 instead of 12.75.
    fs::write(&path, format!("{whole}{}", "{\"step\":2,\"phase\":\"sft\",\"seconds\":12")).unwrap();
    assert_eq!(steps(&path), [1]);
    let mut metrics = MetricsFile::resume(&path, 7).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    metrics.append(&MetricsRow::new(2, "sft", 12.75)).unwrap();
    assert_eq!(steps(&path), [1, 2]);
}

#[test]
fn invalid_finished_lines_are_errors() {
    let (_temp, path) = file();
    for line in ["{\"step\":2,", "[]", "{\"step\":2,\"phase\":\"a\",\"seconds\":1,\"x\":null}", ""] {
        let text = format!("{{\"step\":1,\"phase\":\"a\",\"seconds\":1}}\n{line}\n");
        fs::write(&path, &text).unwrap();
        let error = MetricsFile::read(&path).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl, line 2"), "{error}");
        // The file must stay as it is.
        assert!(MetricsFile::resume(&path, 0).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn field_names_are_reserved() {
    let (_temp, path) = file();
    let mut metrics = MetricsFile::resume(&path, 0).unwrap();
    for name in ["step", "phase", "seconds"] {
        let error = metrics.append(&MetricsRow::new(1, "sft", 0.0).with(name, 1.0)).unwrap_err();
        assert!(matches!(error, RunError::Reserved { .. }), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"");
}

proptest! {
    /// Checks that a run can be cut at any byte and resumed from any earlier checkpoint, and still ends with the same
    /// file.
    #[test]
    fn runs_cut_anywhere_resume_to_the_same_file(rows in 1u64..12, cut in 0.0f64..1.0, back in 0u64..4) {
        let (_temp, path) = file();
        let row = |step: u64| MetricsRow::new(step, "sft", step as f64 / 4.0).with("lo\"ss\n", 1.0 / step as f64);
        let mut metrics = MetricsFile::resume(&path, 0).unwrap();
        (1..=rows).for_each(|step| metrics.append(&row(step)).unwrap());
        let whole = fs::read(&path).unwrap();
        let cut = (whole.len() as f64 * cut) as usize;
        fs::write(&path, &whole[..cut]).unwrap();

        let there = MetricsFile::read(&path).unwrap().len() as u64;
        let step = there.saturating_sub(back);
        let mut metrics = MetricsFile::resume(&path, step).unwrap();
        prop_assert_eq!(MetricsFile::read(&path).unwrap().len() as u64, step);
        (step + 1..=rows).for_each(|step| metrics.append(&row(step)).unwrap());
        prop_assert_eq!(fs::read(&path).unwrap(), whole);
    }
}
