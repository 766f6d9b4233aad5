//! Validation of merges before `tokenizers` sees them: its builder panics on some that do not fit the vocabulary.

use serde_json::Value;

/// Checks that both parts of every merge, and its result, are tokens. `prefix` is removed from the right part when
/// the two are joined (`continuing_subword_prefix`; empty for byte-level vocabularies).
///
/// # Errors
/// A message naming the first merge that does not fit.
pub(super) fn check<'m>(
    merges: impl IntoIterator<Item = (&'m str, &'m str)>,
    prefix: &str,
    knows: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let mut joined = String::new();
    for (left, right) in merges {
        joined.clear();
        joined.push_str(left);
        let rest = right.get(prefix.len()..);
        joined.push_str(rest.unwrap_or_default());
        if rest.is_none() || !knows(left) || !knows(right) || !knows(&joined) {
            return Err(format!("merge of {left:?} and {right:?} does not fit the vocabulary"));
        }
    }
    Ok(())
}

/// Checks the merges of a parsed `tokenizer.json`, if it has any, in both notations: `"a b"` and `["a", "b"]`.
pub(super) fn check_json(tokenizer: &Value) -> Result<(), String> {
    let model = &tokenizer["model"];
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else { return Ok(()) };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    // The library skips the header line of a `merges.txt` that was copied along.
    let merges = merges.iter().filter(|merge| !merge.as_str().is_some_and(|line| line.starts_with("#version")));
    let pairs: Option<Vec<_>> = merges.map(pair).collect();
    let pairs = pairs.ok_or("model.merges has an entry that is not two tokens")?;
    check(pairs, prefix, |token| vocab.contains_key(token))
}

fn pair(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(line) => line.split_once(' '),
        Value::Array(parts) => match parts.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fits(merges: &Value, prefix: &str) -> bool {
        let vocab = json!({ "a": 0, "b": 1, "ab": 2, "##b": 3, "ba": 4 });
        let model = json!({ "vocab": vocab, "merges": merges, "continuing_subword_prefix": prefix });
        check_json(&json!({ "model": model })).is_ok()
    }

    #[test]
    fn merges_must_stay_inside_the_vocabulary() {
        assert!(fits(&json!(["#version: 0.2", "a b", "b a"]), ""));
        assert!(fits(&json!([["a", "b"]]), ""));
        assert!(fits(&json!([["a", "##b"]]), "##"));
        for merges in [json!(["ab ab"]), json!([["a", "c"]]), json!(["c a"]), json!(["ab"]), json!([["a"]]), json!([7])]
        {
            assert!(!fits(&merges, ""), "{merges}");
        }
        // `b` is shorter than the prefix to remove from it.
        assert!(!fits(&json!([["a", "b"]]), "##"));
        assert!(check_json(&json!({ "model": { "type": "WordPiece", "vocab": {} } })).is_ok());
    }
}
