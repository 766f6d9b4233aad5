//! Title and key facts of a run, read from `run.toml`.

use toml::{Table, Value};

/// Keys to show; the page uses them as labels too.
const WANTED: [&str; 5] = ["command", "stage", "protocol", "base", "seed"];

/// Tables to search, in order: the top level, and tables that describe the whole run.
const PLACES: &[&[&str]] = &[&[], &["recipe"], &["recipe", "policy"]];

/// Title of a run and its facts by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReportFacts {
    pub(super) title: Option<String>,
    pub(super) facts: Vec<(&'static str, String)>,
}

impl ReportFacts {
    /// Reads the facts. A malformed `run.toml` gives no facts instead of an error, because a report without them is
    /// better than none.
    pub(super) fn read(text: &str) -> ReportFacts {
        let table = text.parse::<Table>().unwrap_or_default();
        let facts = WANTED.into_iter().filter_map(|name| Some((name, find(&table, name)?))).collect();
        ReportFacts { title: find(&table, "name"), facts }
    }
}

fn find(table: &Table, name: &str) -> Option<String> {
    let at = |place: &&[&str]| place.iter().try_fold(table, |table, name| table.get(*name)?.as_table());
    PLACES.iter().filter_map(at).find_map(|table| table.get(name).and_then(text))
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
    fn facts_are_found_in_nested_tables() {
        let facts = ReportFacts::read(
            "command = 'sft'\n[recipe]\nname = 'small'\nseed = 42\n[recipe.policy]\nprotocol = 'routerag'\nname = 'no'\n",
        );
        assert_eq!(facts.title.as_deref(), Some("small"));
        assert_eq!(facts.facts, [("command", "sft".into()), ("protocol", "routerag".into()), ("seed", "42".into())]);
        assert_eq!(ReportFacts::read("not = [toml"), ReportFacts { title: None, facts: vec![] });
    }
}
