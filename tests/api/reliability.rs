//! `docs/reliability.md` names a test for every class of failure. All tests that it names exist, and none is ignored.

use std::collections::BTreeSet;
use std::path::Path;

/// Failure classes of the table.
const CLASSES: usize = 27;

#[test]
fn every_class_has_a_test_that_exists_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/reliability.md")).unwrap();
    let mut classes = BTreeSet::new();
    for row in text.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit()) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [class, _, proof] = cells[..] else { panic!("three columns: {row}") };
        assert!(classes.insert(class.parse::<usize>().unwrap()), "class {class} stands there twice");
        assert!(named(proof).next().is_some() || proof.starts_with("Does not apply"), "class {class} has no proof");
    }
    assert_eq!(classes, (1..=CLASSES).collect());
    for name in text.lines().flat_map(named) {
        exists(root, name);
    }
}

/// Returns the tests that a line names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|name| name.contains(".rs::"))
}

/// Checks that a test exists and is not ignored. It is named by its file and its function.
fn exists(root: &Path, name: &str) {
    let (file, function) = name.split_once("::").unwrap();
    let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let at = source.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{file} has no test {function}"));
    let before = &source[..at];
    let head = &before[before.rfind("\n\n").unwrap_or(0)..];
    // Within `proptest!` the attribute stands right above the function as well.
    assert!(head.contains("#[test]") || head.contains("#[tokio::test"), "{name} is no test");
    assert!(!head.contains("#[ignore"), "{name} is ignored");
}
