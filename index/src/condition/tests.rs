#![allow(clippy::unwrap_used)]
use std::cell::Cell;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::error::IndexError;

fn condition(value: Value) -> Condition {
    serde_json::from_value(value).unwrap()
}

fn compare(kind: &str, key: &str, value: &Value) -> Condition {
    condition(json!({"type": kind, "key": key, "value": value}))
}

fn metadata() -> Map<String, Value> {
    let metadata = json!({"year": 1901, "title": "Faust", "open": true, "day": "2024-05-01", "tags": ["a"], "none": null,
                          "large": 9_007_199_254_740_993_u64});
    metadata.as_object().cloned().unwrap()
}

#[test]
fn a_comparison_is_of_values_of_one_kind() {
    let holds = |key: &str, value: Value| {
        let kinds = ["eq", "ne", "gt", "gte", "lt", "lte"];
        let fit = kinds.iter().filter(|kind| compare(kind, key, &value).matches(&metadata()));
        fit.copied().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(holds("year", json!(1901)), "eq gte lte");
    assert_eq!(holds("year", json!(1901.0)), "eq gte lte");
    assert_eq!(holds("year", json!(1900.5)), "ne gt gte");
    assert_eq!(holds("year", json!(2000)), "ne lt lte");
    assert_eq!(holds("day", json!("2024-04-30")), "ne gt gte");
    assert_eq!(holds("large", json!(9_007_199_254_740_992_u64)), "ne gt gte");
    for (key, value) in [("year", json!("1901")), ("absent", json!(1)), ("tags", json!("a")), ("none", json!(0))] {
        assert_eq!(holds(key, value), "ne", "{key}");
    }
    for (kind, value, fits) in [("eq", true, true), ("eq", false, false), ("ne", true, false), ("ne", false, true)] {
        assert_eq!(compare(kind, "open", &json!(value)).matches(&metadata()), fits, "{kind} {value}");
    }
}

#[test]
fn lists_and_compounds_are_made_of_comparisons() {
    let holds = |kind: &str, key: &str, values: Value| compare(kind, key, &values).matches(&metadata());
    assert!(holds("in", "year", json!([1900, 1901])) && !holds("nin", "year", json!([1900, 1901])));
    assert!(!holds("in", "year", json!(["1901"])) && holds("nin", "year", json!(["1901"])));
    assert!(!holds("in", "absent", json!([1])) && holds("nin", "absent", json!([1])));
    assert!(!holds("in", "year", json!([])) && holds("nin", "year", json!([])));
    let (yes, no) =
        (json!({"type": "eq", "key": "open", "value": true}), json!({"type": "lt", "key": "year", "value": 0}));
    let compound = |kind, parts: [&Value; 2]| condition(json!({"type": kind, "filters": parts})).matches(&metadata());
    assert_eq!([[&yes, &yes], [&yes, &no], [&no, &no]].map(|parts| compound("and", parts)), [true, false, false]);
    assert_eq!([[&yes, &yes], [&yes, &no], [&no, &no]].map(|parts| compound("or", parts)), [true, true, false]);
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let leaf = json!({"type": "eq", "key": "a", "value": 1});
    let nested = |levels| (0..levels).fold(leaf.clone(), |inner, _| json!({"type": "and", "filters": [inner]}));
    for (written, why) in [
        (json!({"type": "like", "key": "a", "value": "b"}), "unknown variant `like`"),
        (json!({"type": "eq", "key": "a", "value": 1, "color": 1}), "unknown field `color`"),
        (json!({"key": "a", "value": 1}), "missing field `type`"),
        (json!({"type": "eq", "value": 1}), "missing field `key`"),
        (json!({"type": "eq", "key": "a"}), "missing field `value`"),
        (json!({"type": "eq", "key": "a", "value": null}), "missing field `value`"),
        (json!({"type": "and"}), "missing field `filters`"),
        (json!({"type": "and", "filters": []}), "one of `filters` at least"),
        (json!({"type": "or", "filters": [leaf], "key": "a"}), "neither `key`"),
        (json!({"type": "eq", "key": "a", "value": 1, "filters": [leaf]}), "only of the type `and`"),
        (json!({"type": "eq", "key": "a", "value": [1]}), "a string, a number or a boolean"),
        (json!({"type": "gt", "key": "a", "value": true}), "have no order"),
        (json!({"type": "in", "key": "a", "value": 1}), "is a list"),
        (json!({"type": "in", "key": "a", "value": [[1]]}), "a list of strings"),
        (json!({"type": "in", "key": "a", "value": vec![1; 1001]}), "more than 1000 values"),
        // A list without values still counts.
        (
            json!({"type": "and", "filters": vec![json!({"type": "nin", "key": "a", "value": []}); 1001]}),
            "more than 1000",
        ),
        (nested(9), "deeper than 8 levels"),
    ] {
        let error = serde_json::from_value::<Condition>(written).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    condition(nested(8));
    condition(json!({"type": "in", "key": "a", "value": vec![1; 1000]}));
}

#[test]
fn what_was_selected_is_remembered_for_a_while() {
    let selections = Selections::default();
    let made = Cell::new(0);
    let ask = |year: usize| {
        let before = made.get();
        let condition = Arc::new(compare("eq", "year", &json!(year)));
        let select = || {
            made.set(made.get() + 1);
            let mut allowed = AllowedPassages::none(64);
            allowed.insert(year as u32);
            Ok(allowed)
        };
        assert!(selections.get(&condition, select).unwrap().numbers().eq([year as u32]));
        made.get() - before
    };
    assert_eq!((0..8).map(ask).collect::<Vec<_>>(), [1; 8]);
    // The additional set evicts 1, because 0 was used more recently.
    assert_eq!([0, 9, 0, 1].map(ask), [0, 1, 0, 1]);
    let failing = || Err(IndexError::Deadline { stage: "it" });
    assert!(selections.get(&Arc::new(compare("eq", "a", &json!(1))), failing).is_err());
}

fn conditions() -> impl Strategy<Value = Condition> {
    let value = prop_oneof![any::<i8>().prop_map(|n| json!(n)), "[ab]{0,2}".prop_map(|text| json!(text))];
    let kind = prop::sample::select(vec!["eq", "ne", "gt", "gte", "lt", "lte"]);
    let leaf = (kind, "[abc]", value.clone()).prop_map(|(kind, key, value)| compare(kind, &key, &value));
    let list = (any::<bool>(), "[abc]", prop::collection::vec(value, 0..3));
    let list = list.prop_map(|(within, key, values)| Condition::Among { key, values, within });
    prop_oneof![leaf, list].prop_recursive(3, 12, 3, |inner| {
        let parts = prop::collection::vec(inner, 1..3);
        prop_oneof![parts.clone().prop_map(Condition::All), parts.prop_map(Condition::Any)]
    })
}

proptest! {
    #[test]
    fn a_condition_reads_back_as_it_was_written(condition in conditions()) {
        let written = serde_json::to_value(&condition).unwrap();
        prop_assert_eq!(serde_json::from_value::<Condition>(written).unwrap(), condition);
    }

    #[test]
    fn a_set_holds_what_was_put_in(numbers in prop::collection::btree_set(0_u32..200, 0..40)) {
        let mut allowed = AllowedPassages::none(200);
        numbers.iter().chain(&numbers).for_each(|&number| allowed.insert(number));
        prop_assert_eq!(allowed.len(), numbers.len());
        prop_assert!(allowed.numbers().eq(numbers.iter().copied()));
        prop_assert!((0..300).all(|number| allowed.contains(number) == numbers.contains(&number)));
    }
}
