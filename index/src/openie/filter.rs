//! Filters out malformed triples.

use std::collections::HashSet;

use serde_json::Value;

use crate::python;
use crate::triple::Triple;

/// Keeps lists of exactly three parts, formatted as Python's `str()` does, without repetitions (HippoRAG's
/// `filter_invalid_triples`).
pub(crate) fn valid_triples(found: &[Value]) -> Vec<Triple> {
    let mut seen = HashSet::new();
    let triples = found.iter().filter_map(|value| match value.as_array()?.as_slice() {
        [subject, relation, object] => {
            Some(Triple::new(python::show(subject), python::show(relation), python::show(object)))
        }
        _ => None,
    });
    triples.filter(|triple| seen.insert(triple.clone())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::golden::cases;

    #[test]
    fn keeps_what_hipporag_keeps() {
        for case in cases::<Value>("hippo_text_utils", "filter_invalid_triples") {
            let kept: Vec<[String; 3]> =
                valid_triples(case["in"].as_array().unwrap()).into_iter().map(Into::into).collect();
            assert_eq!(serde_json::to_value(kept).unwrap(), case["out"], "{case}");
        }
    }

    #[test]
    fn what_is_no_list_of_three_is_dropped() {
        let found = serde_json::json!(["abc", 3, null, {"a": 1}, [], ["x", ["y"], 1.0]]);
        assert_eq!(valid_triples(found.as_array().unwrap()), [Triple::new("x", "['y']", "1.0")]);
    }
}
