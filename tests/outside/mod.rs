//! Access to test data outside the repository: golden vectors produced by the reference programs, and real data. Each
//! crate includes this module with `#[path = "…/tests/outside/mod.rs"] mod outside;`.
//!
//! `WAYMARK_GOLDEN` and `WAYMARK_DATA` name the folders, relative to the root of the workspace. The defaults are
//! `../shared/golden` and `../shared/data`. A default folder may be absent, and a named one may lack files, and sections
//! and cases of golden vectors: tests without data report that they are skipped. Any other problem is a failure.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Stems of the golden files that some test reads.
const STEMS: [&str; 19] = [
    "action_parsing",
    "agent_loop_searchr1_routerag",
    "batch_balance_order",
    "derived_formulas",
    "em_f1",
    "graphr1_tool_calls",
    "grpo_advantages",
    "hippo_text_utils",
    "hipporag_graph_search",
    "lr_schedule",
    "passages2string",
    "policy_loss",
    "ppr",
    "recognition_memory",
    "rewards_graphr1",
    "rewards_r1searcher",
    "rewards_searchr1_routerag",
    "routerag_stage2_efficiency",
    "rrf_raggym",
];

/// Root of the workspace, from any of its crates.
fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").is_file()).expect("a workspace has a Cargo.lock")
}

/// Prints past the test harness, which hides the output of passing tests.
fn skipped(why: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// Returns the folder `named` by the environment, or else the `usual` one, which may be absent.
fn find(named: Option<&OsStr>, usual: &str) -> Result<Option<PathBuf>, String> {
    // Set to nothing means not set: so a variable can be turned off for one command.
    let named = named.filter(|named| !named.is_empty());
    let folder = named.map_or_else(|| root().join("../shared").join(usual), |named| root().join(named));
    match std::fs::read_dir(&folder) {
        Ok(_) => Ok(Some(folder)),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", folder.display())),
    }
}

fn folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable);
    let found = find(named.as_deref(), usual).unwrap_or_else(|error| panic!("{variable}: {error}"));
    if found.is_none() {
        skipped(format_args!("{variable} is not set, and there is no `../shared/{usual}`"));
    }
    found
}

/// Returns the folder of real data. `None` if any of `files` is missing.
pub fn data(files: &[&str]) -> Option<PathBuf> {
    let folder = folder("WAYMARK_DATA", "data")?;
    for path in files.iter().map(|file| folder.join(file)) {
        match File::open(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                skipped(format_args!("{} is not there", path.display()));
                return None;
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    Some(folder)
}

/// Reads all cases of a section from the files of a stem. Empty if there is no such file, or if a folder named by the
/// environment has no case of the section.
pub fn cases<T: DeserializeOwned>(stem: &str, section: &str) -> Vec<T> {
    let mut all = Vec::new();
    for (path, mut sections) in read::<Map<String, Value>>(stem) {
        all.extend(parsed_cases::<T>(&path, section, sections.remove(section), is_named()));
    }
    all
}

/// Returns the cases of a section. Only a folder `named` by the environment may have none.
fn parsed_cases<T: DeserializeOwned>(path: &Path, section: &str, cases: Option<Value>, named: bool) -> Vec<T> {
    let path = path.display();
    let Some(cases) = cases else {
        lacking(format_args!("{path} has no section {section}"), named);
        return Vec::new();
    };
    let cases: Vec<T> = serde_json::from_value(cases).unwrap_or_else(|error| panic!("{path}, {section}: {error}"));
    if cases.is_empty() {
        lacking(format_args!("{path}: {section} is empty"), named);
    }
    cases
}

/// Fails with `problem` unless vectors were `found`. A folder named by the environment may hold any part of the vectors,
/// so that the problem is only reported there.
pub fn require(found: bool, problem: Arguments<'_>) {
    if !found {
        lacking(problem, is_named());
    }
}

fn lacking(problem: Arguments<'_>, named: bool) {
    assert!(named, "{problem}");
    skipped(problem);
}

/// Returns `true` if the environment names the folder of golden vectors.
fn is_named() -> bool {
    std::env::var_os("WAYMARK_GOLDEN").is_some_and(|named| !named.is_empty())
}

/// Reads the files of a stem. Empty if there is no such file.
pub fn vectors<T: DeserializeOwned>(stem: &str) -> Vec<T> {
    read::<T>(stem).into_iter().map(|(_, vectors)| vectors).collect()
}

/// Returns the fields whose names are `prefix` and a parameter, by that parameter.
pub fn by_parameter<'a>(fields: &'a Map<String, Value>, prefix: &str) -> Vec<(&'a str, &'a Value)> {
    let found: Vec<_> = fields.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value))).collect();
    require(!found.is_empty(), format_args!("no field is called {prefix}…: {fields:?}"));
    found
}

/// Checks for golden files that no test reads. In a folder named by the environment, they are only reported.
pub fn unread() -> Vec<PathBuf> {
    let mut paths = folder("WAYMARK_GOLDEN", "golden").map_or_else(Vec::new, |folder| listed(&folder));
    paths.retain(|path| stem_of(path).is_none());
    if is_named() {
        paths.drain(..).for_each(|path| skipped(format_args!("{} is read by no test", path.display())));
    }
    paths
}

fn read<T: DeserializeOwned>(stem: &str) -> Vec<(PathBuf, T)> {
    assert!(STEMS.contains(&stem), "{stem} is not on the list");
    let Some(folder) = folder("WAYMARK_GOLDEN", "golden") else { return Vec::new() };
    let mut paths = listed(&folder);
    paths.retain(|path| stem_of(path) == Some(stem));
    if paths.is_empty() {
        skipped(format_args!("{} is not there", folder.join(stem).with_extension("json").display()));
    }
    let parsed = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let vectors: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, vectors)
    };
    paths.into_iter().map(parsed).collect()
}

fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries: io::Result<Vec<PathBuf>> =
        std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    let mut paths = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

/// Returns the stem of a file; several files can share one: `em_f1.json` and, say, `em_f1.more.json` or `em_f1-2.json`.
fn stem_of(path: &Path) -> Option<&'static str> {
    let name = path.file_stem()?.to_str()?;
    let begins = |stem: &&'static str| {
        let rest = name.strip_prefix(*stem);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '_']))
    };
    STEMS.into_iter().filter(begins).max_by_key(|stem| stem.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_named_must_be_there() {
        let error = find(Some(OsStr::new("nowhere")), "golden").unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
        assert!(find(Some(OsStr::new("Cargo.lock")), "golden").is_err(), "a file is no folder");
        assert_eq!(find(None, "nowhere"), Ok(None));
        assert_eq!(find(Some(OsStr::new("")), "nowhere"), Ok(None));
    }

    /// This runs in every crate that has the module.
    #[test]
    fn a_relative_folder_is_the_same_for_every_crate() {
        let demo = find(Some(OsStr::new("demo")), "golden").unwrap().unwrap();
        assert!(demo.join("corpus.jsonl").is_file(), "{}", demo.display());
    }

    #[test]
    fn a_named_folder_may_lack_cases() {
        let path = Path::new("hippo_text_utils.json");
        for cases in [None, Some(Value::Array(Vec::new()))] {
            let found: Vec<Value> = parsed_cases(path, "filter_invalid_triples", cases, true);
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    #[should_panic(expected = "has no section filter_invalid_triples")]
    fn a_default_folder_lacks_no_section() {
        let _: Vec<Value> = parsed_cases(Path::new("hippo_text_utils.json"), "filter_invalid_triples", None, false);
    }

    #[test]
    #[should_panic(expected = "filter_invalid_triples is empty")]
    fn a_default_folder_has_cases_in_every_section() {
        let none = Some(Value::Array(Vec::new()));
        let _: Vec<Value> = parsed_cases(Path::new("hippo_text_utils.json"), "filter_invalid_triples", none, false);
    }

    #[test]
    fn a_file_belongs_to_the_stem_its_name_begins_with() {
        for (name, stem) in [
            ("em_f1.json", Some("em_f1")),
            ("em_f1.more.json", Some("em_f1")),
            ("em_f1-2.json", Some("em_f1")),
            ("em_f1_more.json", Some("em_f1")),
            ("em_f12.json", None),
            ("more_em_f1.json", None),
        ] {
            assert_eq!(stem_of(Path::new(name)), stem, "{name}");
        }
    }
}
