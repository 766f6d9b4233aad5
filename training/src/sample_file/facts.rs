//! Facts of a sample file: the settings that produced its samples, stored in a file next to it. A later process may
//! append only with the same facts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::SampleFileError;
use crate::run::{RunError, durable, respelled};

/// Maximum number of differences in an error message.
const MAX_DIFFERENCES: usize = 4;

/// Path of the facts of `samples`: `samples.facts.toml` for `samples.jsonl`.
pub(super) fn facts_path(samples: &Path) -> PathBuf {
    samples.with_extension("facts.toml")
}

/// Checks that existing samples were produced with `facts`. Returns `true` if the file holds samples.
///
/// # Errors
/// [`SampleFileError::Unknown`] if the file of facts is missing, [`SampleFileError::Changed`] if the facts differ, or
/// an I/O error.
pub(super) fn check(samples: &Path, facts: &Table) -> Result<bool, SampleFileError> {
    let path = facts_path(samples);
    // An empty file has no samples that other facts could have produced.
    if !fs::metadata(samples).is_ok_and(|file| file.len() > 0) {
        return Ok(false);
    }
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(SampleFileError::Unknown { path: samples.to_owned() });
        }
        text => text.map_err(RunError::io("read", &path))?,
    };
    let before: Table = toml::from_str(&respelled(&text))
        .map_err(|error| SampleFileError::Facts { path, reason: error.to_string() })?;
    let mut differs = differences(&before, facts);
    if differs.is_empty() {
        return Ok(true);
    }
    let more = differs.len().saturating_sub(MAX_DIFFERENCES);
    differs.truncate(MAX_DIFFERENCES);
    if more > 0 {
        differs.push(format!("and {more} more"));
    }
    Err(SampleFileError::Changed { path: samples.to_owned(), differs: differs.join("; ") })
}

/// Runs [`check`] and stores the facts if the file holds no samples yet.
///
/// # Errors
/// The errors of [`check`], and I/O errors.
pub(super) fn check_or_store(samples: &Path, facts: &Table) -> Result<(), SampleFileError> {
    if check(samples, facts)? {
        return Ok(());
    }
    let path = facts_path(samples);
    let text = toml::to_string(facts)
        .map_err(|error| SampleFileError::Facts { path: path.clone(), reason: error.to_string() })?;
    Ok(durable::write(&path, text.as_bytes())?)
}

/// Lists the fields that differ between two tables.
fn differences(before: &Table, now: &Table) -> Vec<String> {
    let before = flatten(before);
    let now = flatten(now);
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
    let differs = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
    differs.map(|name| format!("{name} was {}, now it is {}", shown(before.get(name)), shown(now.get(name)))).collect()
}

/// Flattens a table: nested fields get dotted names.
fn flatten(table: &Table) -> BTreeMap<String, String> {
    fn add(name: String, value: &Value, all: &mut BTreeMap<String, String>) {
        match value {
            Value::Table(table) => table.iter().for_each(|(key, value)| add(format!("{name}.{key}"), value, all)),
            Value::Array(list) => list.iter().zip(1..).for_each(|(value, at)| add(format!("{name}.{at}"), value, all)),
            _ => drop(all.insert(name, value.to_string())),
        }
    }
    let mut all = BTreeMap::new();
    table.iter().for_each(|(key, value)| add(key.clone(), value, &mut all));
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn facts(text: &str) -> Table {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn differing_facts_are_named() {
        let before = facts("seed = 1\n[recipe]\nlist = [{ a = 1 }, { a = 2 }]\n[x]\ny = \"z\"");
        let now = facts("seed = 2\n[recipe]\nlist = [{ a = 1 }, { a = 3 }]");
        let message =
            ["recipe.list.2.a was 2, now it is 3", "seed was 1, now it is 2", "x.y was \"z\", now it is nothing"];
        assert_eq!(differences(&before, &now), message);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn samples_are_appended_only_with_equal_facts() {
        let dir = tempfile::tempdir().unwrap();
        let samples = dir.path().join("samples.jsonl");
        let one = facts("seed = 1");
        let two = facts("seed = 2");
        check_or_store(&samples, &one).unwrap();
        // The file of samples does not exist yet.
        check_or_store(&samples, &two).unwrap();
        fs::write(&samples, "x\n").unwrap();
        check_or_store(&samples, &two).unwrap();
        let error = check_or_store(&samples, &one).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("seed was 2, now it is 1"), "{error}");
        let earlier = facts("[retrieval]\ngraph = \"graph_r1\"\n");
        fs::write(facts_path(&samples), toml::to_string(&earlier).unwrap()).unwrap();
        check_or_store(&samples, &facts("[retrieval]\ngraph = \"graphrag_r1\"\n")).unwrap();
        fs::remove_file(facts_path(&samples)).unwrap();
        let error = check_or_store(&samples, &two).unwrap_err();
        assert!(matches!(error, SampleFileError::Unknown { .. }), "{error}");
    }
}
