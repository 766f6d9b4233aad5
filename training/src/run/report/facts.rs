//! What `run.toml` says, as far as a title and a line of facts need it.

use toml::{Table, Value};

/// What to look for, under which names, and how the page calls it.
const WANTED: &[(&str, &[&str])] = &[
    ("system", &["system"]),
    ("base", &["base", "model"]),
    ("seed", &["seed"]),
    ("stage", &["stage"]),
    ("started from", &["init"]),
    ("began", &["started"]),
];

/// Where to look, from the first to the last: the top, and tables that describe the run as a whole.
const PLACES: &[&str] = &["run", "recipe"];

/// The title of a run and its facts by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) title: Option<String>,
    pub(super) facts: Vec<(&'static str, String)>,
}

impl Facts {
    /// Reads them leniently: a report of a run whose `run.toml` somebody broke is better than none.
    pub(super) fn read(text: &str) -> Facts {
        let table = text.parse::<Table>().unwrap_or_default();
        let find = |names: &[&str]| names.iter().find_map(|name| find(&table, name));
        let facts = WANTED.iter().filter_map(|&(label, names)| Some((label, find(names)?))).collect();
        Facts { title: find(&["name"]), facts }
    }
}

fn find(table: &Table, name: &str) -> Option<String> {
    let nested = || PLACES.iter().find_map(|place| table.get(*place)?.as_table()?.get(name).and_then(text));
    table.get(name).and_then(text).or_else(nested)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Datetime(time) => Some(time.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_where_they_are() {
        let facts = Facts::read("seed = 42\n[recipe]\nname = 'small'\nseed = 1\n[run]\nbase = 'SmolLM2'\n");
        assert_eq!(facts.title.as_deref(), Some("small"));
        assert_eq!(facts.facts, [("base", "SmolLM2".to_owned()), ("seed", "42".to_owned())]);
        assert_eq!(Facts::read("not = [toml"), Facts { title: None, facts: vec![] });
    }
}
