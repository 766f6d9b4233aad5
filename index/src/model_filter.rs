//! Recognition memory (HippoRAG 2): a language model selects the facts that help to answer a question.
//!
//! The messages have the fields of HippoRAG's (`[[ ## question ## ]]` and so on), so that replies have the same form;
//! the wording is ours.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::{Value, json};

use crate::complete::{Complete, ModelMessage, ModelRole};
use crate::filter::{FactFilter, FilterError};
use crate::options::GraphOptions;
use crate::python;

/// Maximum number of tokens in a reply, as in HippoRAG.
const MAX_TOKENS: u32 = 512;

const TASK: &str = "\
You decide which facts help to answer a question. You are given a question and a list of facts that were found for it, \
each a list of subject, relation and object. Many of them only look alike. Choose those, up to four, that the answer or \
a step on the way to it rests on, most important first. Take them over word for word and add none of your own. If none \
helps, give an empty list.

The input has two fields: `question`, a text, and `fact_before_filter`, the facts as JSON. The output has one: \
`fact_after_filter`, the chosen facts as JSON of the same form.

All of it is laid out like this:

[[ ## question ## ]]
{question}

[[ ## fact_before_filter ## ]]
{fact_before_filter}

[[ ## fact_after_filter ## ]]
{fact_after_filter}

[[ ## completed ## ]]";

/// [`FactFilter`] that asks a language model.
///
/// An unreadable reply keeps no fact, as in HippoRAG, and the search falls back to ranking by similarity. An
/// unreachable model is an error, unless [`ModelFilter::falling_back`] allows it.
#[derive(Debug)]
pub struct ModelFilter {
    complete: Arc<dyn Complete>,
    falls_back: bool,
}

impl ModelFilter {
    /// Builds a filter that asks `complete`.
    pub fn new(complete: Arc<dyn Complete>) -> ModelFilter {
        ModelFilter { complete, falls_back: false }
    }

    /// Keeps no fact if the model is unreachable, as HippoRAG does, so that the search ranks passages by similarity.
    #[must_use]
    pub fn falling_back(mut self) -> ModelFilter {
        self.falls_back = true;
        self
    }
}

impl FactFilter for ModelFilter {
    fn keep(&self, query: &str, candidates: &[[&str; 3]]) -> Result<Vec<usize>, FilterError> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        match self.complete.complete(&messages(query, candidates), MAX_TOKENS) {
            Ok(reply) => Ok(kept(&reply.text, candidates)),
            Err(error) if self.falls_back => {
                tracing::warn!(%error, "keeping no facts: the fact filter is unreachable");
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Messages of the task, two examples, and the question.
fn messages(query: &str, candidates: &[[&str; 3]]) -> Vec<ModelMessage> {
    let bridge = [
        ["forth bridge", "designed by", "benjamin baker"],
        ["benjamin baker", "was born in", "frome"],
        ["forth road bridge", "designed by", "mott hay and anderson"],
        ["forth bridge", "opened on", "4 march 1890"],
        ["bridge", "crosses", "firth of forth"],
    ];
    let museum = [["louvre", "is a", "museum"], ["prado", "lies in", "madrid"]];
    let example = |question: &str, facts: &[[&str; 3]], chosen: &[[&str; 3]]| {
        let reply = format!("[[ ## fact_after_filter ## ]]\n{}\n\n[[ ## completed ## ]]", json!({"fact": chosen}));
        [ModelMessage::new(ModelRole::User, ask(question, facts)), ModelMessage::new(ModelRole::Assistant, reply)]
    };
    // The second example keeps nothing, so that a model sees that this is an answer too.
    let mut messages = vec![ModelMessage::new(ModelRole::System, TASK)];
    messages.extend(example("Where was the designer of the Forth Bridge born?", &bridge, &bridge[..2]));
    messages.extend(example("Who composed the opera that opened La Scala?", &museum, &[]));
    messages.push(ModelMessage::new(ModelRole::User, ask(query, candidates)));
    messages
}

fn ask(question: &str, facts: &[[&str; 3]]) -> String {
    format!(
        "[[ ## question ## ]]\n{question}\n\n[[ ## fact_before_filter ## ]]\n{}\n\n\
         Begin your reply with `[[ ## fact_after_filter ## ]]`, then give the JSON, and end with `[[ ## completed ## ]]`.",
        json!({"fact": facts})
    )
}

/// Returns the indices of the candidates that a reply names. Each fact in the reply stands for the candidate most like
/// it, by `difflib` over Python's notation of both (HippoRAG's `DSPyFilter.rerank`). The search keeps the first
/// `linking_top_k` of them, which may be more than there are candidates.
fn kept(reply: &str, candidates: &[[&str; 3]]) -> Vec<usize> {
    let written: Vec<String> = candidates.iter().map(|fact| python::tuple(fact)).collect();
    // No search keeps more than these, and an endpoint that ignores `MAX_TOKENS` may write a million.
    let facts = facts(reply).into_iter().take(GraphOptions::MOST_LINKED);
    let mut places: Vec<usize> = facts.filter_map(|fact| python::closest(&python::show(&fact), &written)).collect();
    // Python's `index` returns the first of equal candidates.
    for place in &mut places {
        *place = written.iter().position(|text| *text == written[*place]).unwrap_or(*place);
    }
    places
}

static FIELD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\[\[ ## (\w+) ## \]\]").ok());

/// Returns the facts in the last readable field `fact_after_filter` of a reply. Empty if there is none.
fn facts(reply: &str) -> Vec<Value> {
    // Lines before the first header belong to no field.
    let mut fields: Vec<(&str, Vec<&str>)> = vec![("", Vec::new())];
    for line in lines(reply) {
        let header = FIELD.as_ref().and_then(|field| field.captures(line.trim()));
        match header.and_then(|header| header.get(1)) {
            Some(name) => fields.push((name.as_str(), Vec::new())),
            None => fields.last_mut().into_iter().for_each(|(_, lines)| lines.push(line)),
        }
    }
    let mut facts = Vec::new();
    for (_, lines) in fields.iter().filter(|(name, _)| *name == "fact_after_filter") {
        let text = lines.join("\n");
        let text = text.trim();
        let value = serde_json::from_str::<Value>(text).ok().or_else(|| python::literal(text));
        if let Some(found) = value.as_ref().and_then(fact_list) {
            facts = found;
        }
    }
    facts
}

/// Returns the value under `fact` if it is a list of lists of strings.
fn fact_list(value: &Value) -> Option<Vec<Value>> {
    let list = value.get("fact")?.as_array()?;
    let strings = |fact: &Value| fact.as_array().is_some_and(|parts| parts.iter().all(Value::is_string));
    list.iter().all(strings).then(|| list.clone())
}

/// Splits like Python's `str.splitlines`.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let Some(end) = rest.find(ends) else { return Some(std::mem::take(&mut rest)) };
        let (line, tail) = rest.split_at(end);
        let length = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        rest = &tail[length..];
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::Mutex;

    use super::*;
    use crate::complete::{CompleteError, ModelReply};
    use crate::golden::cases;

    #[test]
    fn replies_keep_what_they_keep_in_hipporag() {
        for case in cases::<Value>("recognition_memory", "cases") {
            let triples: Vec<[String; 3]> = serde_json::from_value(case["candidates"].clone()).unwrap();
            let candidates: Vec<[&str; 3]> = triples.iter().map(|fact| fact.each_ref().map(String::as_str)).collect();
            let places = kept(case["llm_response"].as_str().unwrap(), &candidates);
            let indices: Vec<&Value> = places.iter().map(|&place| &case["candidate_indices"][place]).collect();
            assert_eq!(json!(indices), case["kept_indices"], "{case}");
            let facts: Vec<[&str; 3]> = places.iter().map(|&place| candidates[place]).collect();
            assert_eq!(json!(facts), case["kept"], "{case}");
        }
    }

    const CANDIDATES: [[&str; 3]; 3] = [["a", "b", "c"], ["erik hort", "birthplace is", "montebello"], ["a", "b", "c"]];

    const NONE: [usize; 0] = [];

    fn reply(field: &str) -> String {
        format!("[[ ## fact_after_filter ## ]]\n{field}\n[[ ## completed ## ]]")
    }

    #[test]
    fn facts_are_mapped_to_the_candidates_most_like_them() {
        for (field, expected) in [
            (r#"{"fact": [["Erik Hort", "birthplace", "Montebello"]]}"#, vec![1]),
            ("{'fact': (('a', 'b', 'c'),), 'more': None}", vec![0]),
            (r#"{"fact": [["a", "b"], []]}"#, vec![0, 1]),
            (r#"{"fact": [["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"]]}"#, vec![0, 0, 0, 0]),
            (r#"{"fact": [["a", "b", 1]]}"#, vec![]),
            (r#"[["a", "b", "c"]]"#, vec![]),
            (r#"{"fact": [["a", "b", "c"]"#, vec![]),
        ] {
            assert_eq!(kept(&reply(field), &CANDIDATES), expected, "{field}");
        }
    }

    #[test]
    fn no_more_facts_are_compared_than_a_search_may_keep() {
        let many = vec![r#"["a", "b", "c"]"#; 10 * GraphOptions::MOST_LINKED].join(", ");
        let places = kept(&reply(&format!(r#"{{"fact": [{many}]}}"#)), &CANDIDATES);
        assert_eq!(places, [0; GraphOptions::MOST_LINKED]);
    }

    #[test]
    fn the_last_readable_field_counts_and_text_beside_a_marker_is_lost() {
        let good = reply(r#"{"fact": [["a", "b", "c"]]}"#);
        assert_eq!(kept(&format!("{good}\n{}", reply("broken")), &CANDIDATES), [0]);
        assert_eq!(kept(&format!("{good}\r\n{}", reply("{\"fact\": []}")), &CANDIDATES), NONE);
        assert_eq!(kept("[[ ## fact_after_filter ## ]] {\"fact\": [[\"a\", \"b\", \"c\"]]}", &CANDIDATES), NONE);
        assert_eq!(kept(&good.replace('\n', "\u{2028}"), &CANDIDATES), [0]);
    }

    #[derive(Debug)]
    struct Says(Result<String, CompleteError>, Mutex<Vec<ModelMessage>>);

    impl Complete for Says {
        fn model(&self) -> &'static str {
            "says"
        }

        fn complete(&self, messages: &[ModelMessage], _: u32) -> Result<ModelReply, CompleteError> {
            messages.clone_into(&mut self.1.lock().unwrap());
            self.0.clone().map(|text| ModelReply { text, cut: false })
        }
    }

    #[test]
    fn the_question_and_its_facts_are_asked_about() {
        let model = Arc::new(Says(Ok(reply(r#"{"fact": [["a", "b", "c"]]}"#)), Mutex::default()));
        assert_eq!(ModelFilter::new(model.clone()).keep("Who \"is\" a?", &CANDIDATES).unwrap(), [0]);
        let asked = model.1.lock().unwrap().clone();
        let last = &asked.last().unwrap().content;
        assert!(last.contains("[[ ## question ## ]]\nWho \"is\" a?\n"), "{last}");
        assert!(last.contains(r#"{"fact":[["a","b","c"],["erik hort","birthplace is","montebello"],"#), "{last}");
        let examples = asked.iter().filter(|message| message.role == ModelRole::Assistant);
        let chosen: Vec<usize> = examples.map(|message| facts(&message.content).len()).collect();
        assert_eq!(chosen, [2, 0]);
    }

    #[test]
    fn a_model_that_is_away_is_an_error_unless_it_may_be() {
        let away = CompleteError::Transient { message: "connection refused".into(), after: None };
        let model = Arc::new(Says(Err(away), Mutex::default()));
        let error = ModelFilter::new(model.clone()).keep("q", &CANDIDATES).unwrap_err();
        assert!(error.to_string().contains("connection refused"));
        assert_eq!(ModelFilter::new(model.clone()).falling_back().keep("q", &CANDIDATES).unwrap(), NONE);
        assert_eq!(ModelFilter::new(model).keep("q", &[]).unwrap(), NONE);
    }
}
