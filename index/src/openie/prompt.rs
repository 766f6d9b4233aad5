//! Prompts for a language model: the two steps of HippoRAG's open information extraction, named entities and then
//! triples, in our own wording.

use serde_json::{Value, json};

use crate::complete::{ModelMessage, ModelRole};

/// Version of the prompts. Must increase with every change, so that answers to older prompts are not reused.
pub(super) const VERSION: u32 = 1;

const ENTITIES_TASK: &str = "\
You read passages of an encyclopaedia and list what they name. List every named entity of the passage: people, groups, \
places, works, organisations, events, products, titles, dates, quantities. Write each one as the passage writes it, in \
full, and list it once. Reply with one JSON object and nothing else: {\"named_entities\": [\"…\", \"…\"]}";

const TRIPLES_TASK: &str = "\
You turn passages into statements for a knowledge graph. A statement is a list of three strings: subject, relation, \
object. State everything that the passage says, one fact to a statement, and nothing that it does not say. Let the \
subject or the object, better both, be among the named entities that you are given. Put the name itself where the \
passage has a pronoun or a short form of it. Keep relations short: a verb or a few words. Reply with one JSON object and \
nothing else: {\"triples\": [[\"subject\", \"relation\", \"object\"], …]}";

const EXAMPLE: &str = "\
Forth Bridge
The Forth Bridge is a cantilever railway bridge across the Firth of Forth, 14 km west of Edinburgh. It was designed by \
John Fowler and Benjamin Baker and opened on 4 March 1890. UNESCO made it a World Heritage Site in 2015.";

fn example_entities() -> Value {
    json!({"named_entities": [
        "Forth Bridge", "Firth of Forth", "14 km", "Edinburgh", "John Fowler", "Benjamin Baker", "4 March 1890",
        "UNESCO", "World Heritage Site", "2015"
    ]})
}

fn example_triples() -> Value {
    json!({"triples": [
        ["Forth Bridge", "is a", "cantilever railway bridge"],
        ["Forth Bridge", "crosses", "Firth of Forth"],
        ["Forth Bridge", "lies 14 km west of", "Edinburgh"],
        ["Forth Bridge", "designed by", "John Fowler"],
        ["Forth Bridge", "designed by", "Benjamin Baker"],
        ["Forth Bridge", "opened on", "4 March 1890"],
        ["UNESCO", "made a World Heritage Site", "Forth Bridge"],
        ["Forth Bridge", "became a World Heritage Site in", "2015"]
    ]})
}

/// Prompt for the named entities of `passage`.
pub(super) fn entities(passage: &str) -> Vec<ModelMessage> {
    vec![
        ModelMessage::new(ModelRole::System, ENTITIES_TASK),
        ModelMessage::new(ModelRole::User, EXAMPLE),
        ModelMessage::new(ModelRole::Assistant, example_entities().to_string()),
        ModelMessage::new(ModelRole::User, passage),
    ]
}

/// Prompt for the triples of `passage`, which names `entities`.
pub(super) fn triples(passage: &str, entities: &[String]) -> Vec<ModelMessage> {
    vec![
        ModelMessage::new(ModelRole::System, TRIPLES_TASK),
        ModelMessage::new(ModelRole::User, triples_question(EXAMPLE, &example_entities())),
        ModelMessage::new(ModelRole::Assistant, example_triples().to_string()),
        ModelMessage::new(ModelRole::User, triples_question(passage, &json!({"named_entities": entities}))),
    ]
}

fn triples_question(passage: &str, entities: &Value) -> String {
    format!("Passage:\n```\n{passage}\n```\n\nNamed entities:\n{entities}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::openie::reply::ReplyList;

    #[test]
    fn the_examples_are_replies_that_can_be_read() {
        let entities = ReplyList::Entities.read(&entities("x")[2].content, false).unwrap();
        assert!(entities.iter().all(|entity| EXAMPLE.contains(entity.as_str().unwrap())));
        let found = ReplyList::Triples.read(&triples("x", &[])[2].content, false).unwrap();
        assert_eq!(super::super::filter::valid_triples(&found).len(), found.len());
    }

    #[test]
    fn the_passage_and_its_entities_are_asked_about() {
        let messages = triples("A \"quoted\" passage", &["A \"b\"".to_owned()]);
        let question = &messages.last().unwrap().content;
        assert!(question.contains("A \"quoted\" passage") && question.contains(r#"{"named_entities":["A \"b\""]}"#));
    }
}
