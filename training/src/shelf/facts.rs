//! What samples were made by: a file beside theirs, by which the next process knows whether it may go on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::ShelfError;
use crate::run::durable;

/// Differences that are told.
const TOLD: usize = 4;

/// Where the facts of `samples.jsonl` lie: in `samples.facts.toml`.
pub(super) fn beside(samples: &Path) -> PathBuf {
    samples.with_extension("facts.toml")
}

/// Checks that `samples`, if there are any, were made by `facts`. Whether there are any.
///
/// # Errors
/// [`ShelfError::Unknown`] where nothing says what made them, [`ShelfError::Changed`] where it was something else, and
/// what the file system refuses.
pub(super) fn check(samples: &Path, facts: &Table) -> Result<bool, ShelfError> {
    let path = beside(samples);
    if !fs::metadata(samples).is_ok_and(|file| file.len() > 0) {
        return Ok(false);
    }
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ShelfError::Unknown { path: samples.to_owned() });
        }
        text => text.map_err(ShelfError::io(&path))?,
    };
    let before: Table = toml::from_str(&text).map_err(|error| ShelfError::Facts { path, reason: error.to_string() })?;
    let mut differs = differences(&before, facts);
    if differs.is_empty() {
        return Ok(true);
    }
    let more = differs.len().saturating_sub(TOLD);
    differs.truncate(TOLD);
    if more > 0 {
        differs.push(format!("and {more} more"));
    }
    Err(ShelfError::Changed { path: samples.to_owned(), differs: differs.join("; ") })
}

/// [Checks](check), and writes the facts down where nothing was made yet.
///
/// # Errors
/// Those of the check, and what the file system refuses.
pub(super) fn hold(samples: &Path, facts: &Table) -> Result<(), ShelfError> {
    if check(samples, facts)? {
        return Ok(());
    }
    let path = beside(samples);
    let text =
        toml::to_string(facts).map_err(|error| ShelfError::Facts { path: path.clone(), reason: error.to_string() })?;
    Ok(durable::write(&path, text.as_bytes())?)
}

/// What is not the same in two tables, field by field.
fn differences(before: &Table, now: &Table) -> Vec<String> {
    let (before, now) = (flat(before), flat(now));
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let told = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
    let differs = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
    differs.map(|name| format!("{name} was {}, now it is {}", told(before.get(name)), told(now.get(name)))).collect()
}

/// The fields of a table, those of tables in it by their whole names.
fn flat(table: &Table) -> BTreeMap<String, String> {
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
    fn what_differs_is_named() {
        let before = facts("seed = 1\n[recipe]\nlist = [{ a = 1 }, { a = 2 }]\n[x]\ny = \"z\"");
        let now = facts("seed = 2\n[recipe]\nlist = [{ a = 1 }, { a = 3 }]");
        let told =
            ["recipe.list.2.a was 2, now it is 3", "seed was 1, now it is 2", "x.y was \"z\", now it is nothing"];
        assert_eq!(differences(&before, &now), told);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn samples_go_on_under_their_own_facts_alone() {
        let dir = tempfile::tempdir().unwrap();
        let samples = dir.path().join("samples.jsonl");
        let (one, two) = (facts("seed = 1"), facts("seed = 2"));
        hold(&samples, &one).unwrap();
        // Nothing is made yet.
        hold(&samples, &two).unwrap();
        fs::write(&samples, "x\n").unwrap();
        hold(&samples, &two).unwrap();
        let error = hold(&samples, &one).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("seed was 2, now it is 1"), "{error}");
        fs::remove_file(beside(&samples)).unwrap();
        let error = hold(&samples, &two).unwrap_err();
        assert!(matches!(error, ShelfError::Unknown { .. }), "{error}");
    }
}
