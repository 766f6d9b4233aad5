//! What `run.toml` says, as far as a title and a line of facts need it.

use toml::{Table, Value};

/// What to look for; the page calls it so too.
const WANTED: [&str; 5] = ["command", "stage", "protocol", "base", "seed"];

/// Where to look, from the first to the last: the top, and tables that describe the run as a whole.
const PLACES: &[&[&str]] = &[&[], &["recipe"], &["recipe", "policy"]];

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
        let facts = WANTED.into_iter().filter_map(|name| Some((name, find(&table, name)?))).collect();
        Facts { title: find(&table, "name"), facts }
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
    fn facts_are_found_where_they_are() {
        let facts = Facts::read(
            "command = 'sft'\n[recipe]\nname = 'small'\nseed = 42\n[recipe.policy]\nprotocol = 'routerag'\nname = 'no'\n",
        );
        assert_eq!(facts.title.as_deref(), Some("small"));
        assert_eq!(facts.facts, [("command", "sft".into()), ("protocol", "routerag".into()), ("seed", "42".into())]);
        assert_eq!(Facts::read("not = [toml"), Facts { title: None, facts: vec![] });
    }
}
