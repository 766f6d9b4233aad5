//! The typed client for Python, which the wheel carries, names what the interface has.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::program::waymark;

/// Returns the names of the fields of a `TypedDict`, and the `Literal` of its `type` if it has one.
fn fields<'a>(source: &'a str, class: &str) -> (BTreeSet<&'a str>, Option<&'a str>) {
    let begin = source.find(&format!("class {class}(TypedDict):")).unwrap_or_else(|| panic!("no class {class}"));
    let body = source[begin..].split("\n\n\n").next().unwrap();
    let lines = body.lines().skip(1).filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    let literal = body.split("type: Literal[\"").nth(1).and_then(|rest| rest.split('"').next());
    (lines.map(|(name, _)| name).filter(|name| !name.contains(' ')).collect(), literal)
}

fn properties(schema: &Value) -> BTreeSet<&str> {
    schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_python_client_has_every_event_and_field() {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/package/python/waymark");
    let events = fs::read_to_string(format!("{package}/events.py")).unwrap();
    let rollouts = fs::read_to_string(format!("{package}/rollouts.py")).unwrap();
    let interface: Value = serde_json::from_str(&waymark(&["openapi", "--json"]).stdout).unwrap();
    let schemas = &interface["components"]["schemas"];

    let kinds = schemas["AgentEvent"]["oneOf"].as_array().unwrap();
    for kind in kinds {
        let name = kind["properties"]["type"]["enum"][0].as_str().unwrap();
        let class: String = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        let (named, literal) = fields(&events, &class);
        assert_eq!((named, literal), (properties(kind), Some(name)));
        assert!(events.contains(&format!("    | {class}\n")) || name == "started", "{class} is missing in Event");
    }
    for (source, class, schema) in [
        (&events, "Usage", "EpisodeUsage"),
        (&events, "Citation", "AgentCitation"),
        (&events, "Passage", "Passage"),
        (&events, "Hit", "Hit"),
        (&events, "Token", "TokenLogprob"),
        (&rollouts, "Question", "RolloutQuestion"),
        (&rollouts, "Trajectory", "RolloutTrajectory"),
        (&rollouts, "Failure", "RolloutFailure"),
        (&rollouts, "RolloutBatch", "RolloutBatch"),
    ] {
        assert_eq!(fields(source, class).0, properties(&schemas[schema]), "{class}");
    }
}
