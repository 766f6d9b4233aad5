//! Grammars over the byte vocabulary: every text sampled from allowed tokens fulfills the schema.
#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use waymark_models::grammar::{GrammarError, GrammarWriter, Json, OutputForm, Vocabulary};
use waymark_models::tokenizer::{Specials, Tokenizer};

const EOS: u32 = 257;

fn vocabulary() -> Vocabulary {
    Vocabulary::new(&Tokenizer::bytes().table(), &[EOS]).unwrap()
}

/// Writes the text token by token. The error holds the accepted part.
fn write(writer: &mut GrammarWriter, text: &str) -> Result<(), String> {
    for (at, id) in Tokenizer::bytes().encode(text, Specials::Literal).unwrap().into_iter().enumerate() {
        if !writer.allowed().unwrap().allows(id) {
            return Err(text[..at].to_owned());
        }
        writer.accept(id).unwrap();
    }
    Ok(())
}

/// Returns `true` if the text can end here and cannot continue.
fn ends(writer: &mut GrammarWriter) -> bool {
    let mask = writer.allowed().unwrap();
    mask.allows(EOS) && (0..EOS).all(|id| !mask.allows(id))
}

#[test]
fn an_object_is_an_object() {
    let grammar = vocabulary().compile(&Json::Object).unwrap();
    let mut writer = grammar.begin();
    assert!(!writer.complete().unwrap());
    write(&mut writer, "{\"a\": [1, {\"b\": \"\u{e9}\\n\"}], \"c\": null\n}").unwrap();
    assert!(writer.complete().unwrap() && ends(&mut writer));
    for (text, fits) in [("[1]", ""), ("hello", ""), ("{a", "{"), ("{\"a\"}", "{\"a\""), ("{\"a\": 01", "{\"a\": 0")] {
        assert_eq!(write(&mut grammar.begin(), text), Err(fits.to_owned()), "{text}");
    }
}

#[test]
fn white_space_does_not_go_on_for_ever() {
    let grammar = vocabulary().compile(&Json::Object).unwrap();
    let text = format!("{{{}\"a\": 1}}", " ".repeat(40));
    assert_eq!(write(&mut grammar.begin(), &text), Err(format!("{{{}", " ".repeat(16))));
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["poet", "painter"]},
            "alive": {"type": "boolean"},
            "tags": {"type": "array", "items": {"const": "x"}, "maxItems": 3},
        },
        "required": ["name", "age", "kind", "alive", "tags"],
        "additionalProperties": false,
    })
}

#[test]
fn whatever_is_drawn_fulfills_the_schema() {
    let tokenizer = Tokenizer::bytes();
    let grammar = vocabulary().compile(&Json::Schema(person())).unwrap();
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut writer = grammar.begin();
        let mut ids = Vec::new();
        loop {
            let mask = writer.allowed().unwrap();
            let allowed: Vec<u32> = (0..mask.len() as u32).filter(|&id| mask.allows(id)).collect();
            let id = allowed[rng.random_range(0..allowed.len())];
            if id == EOS {
                break;
            }
            writer.accept(id).unwrap();
            ids.push(id);
            assert!(ids.len() < 2000);
        }
        let value: Value = serde_json::from_str(&tokenizer.decode(&ids)).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 5, "{value}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 5);
        assert!((0..=120).contains(&value["age"].as_i64().unwrap()));
        assert!(["poet", "painter"].contains(&value["kind"].as_str().unwrap()) && value["alive"].is_boolean());
        assert!(value["tags"].as_array().unwrap().iter().all(|tag| tag == "x"));
    }
}

#[test]
fn schemas_that_cannot_be_followed_are_refused_in_time() {
    let vocabulary = vocabulary();
    let wide: Value = (0..3000).map(|n| (format!("property{n}"), json!({"type": "string"}))).collect();
    for schema in [
        json!({"type": "nonsense"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "integer", "minimum": 5, "maximum": 1}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!({"not": {"type": "string"}}),
        json!({"type": "object", "properties": wide}),
        json!({"enum": []}),
        json!([]),
    ] {
        let started = Instant::now();
        let refused = vocabulary.compile(&Json::Schema(schema.clone()));
        assert!(matches!(refused, Err(GrammarError::Schema(_))), "{schema} gave {refused:?}");
        let message = refused.unwrap_err().to_string();
        assert!(!message.is_empty() && !message.contains('\n') && message.len() < 400, "{message}");
        // Generous, for slow machines under load; without the limits, some of these would take minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{schema}");
    }
    assert!(vocabulary.compile(&Json::Object).is_ok(), "none of this harms the next one");
}

#[test]
fn a_pattern_may_be_heavy_but_no_token_is() {
    let started = Instant::now();
    let schema = json!({"type": "string", "pattern": "((a{1,500}){1,500}b){1,500}"});
    let Ok(grammar) = vocabulary().compile(&Json::Schema(schema)) else { return };
    let mut writer = grammar.begin();
    for byte in std::iter::once(b'"').chain([b'a'; 60]) {
        // Giving up is a valid outcome; running for minutes is not.
        if !writer.allowed().is_ok_and(|mask| mask.allows(u32::from(byte))) {
            break;
        }
        writer.accept(u32::from(byte)).unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

/// Returns a schema of about 60 KB whose definitions form a chain. `link` returns a schema that contains a reference.
fn chain(link: impl Fn(Value) -> Value) -> OutputForm {
    let mut definitions = Map::new();
    let mut bytes = 0;
    while bytes < 60_000 {
        let next = format!("#/$defs/a{}", definitions.len() + 1);
        let definition = link(json!({ "$ref": next }));
        bytes += definition.to_string().len() + 10;
        definitions.insert(format!("a{}", definitions.len()), definition);
    }
    definitions.insert(format!("a{}", definitions.len()), json!({"type": "string"}));
    Json::Schema(json!({"$ref": "#/$defs/a0", "$defs": definitions})).into()
}

/// Returns a Lark grammar of about 60 KB in which each name refers to the next one.
fn names(prefix: &str) -> OutputForm {
    let mut grammar = format!("start:{prefix}0\n");
    let mut count = 0;
    while grammar.len() < 60_000 {
        grammar += &format!("{prefix}{count}:{prefix}{}\n", count + 1);
        count += 1;
    }
    grammar += &format!("{prefix}{count}:\"x\"\n");
    OutputForm::Lark(grammar)
}

#[test]
fn forms_of_the_maximum_size_need_no_large_stack() {
    let condition = format!("{}true{}", "not(".repeat(12_000), ")".repeat(12_000));
    let forms = [
        chain(|next| next),
        chain(|next| json!({"type": "array", "items": next})),
        chain(|next| json!({"anyOf": [next, {"type": "null"}]})),
        chain(|next| json!({ "allOf": [next] })),
        names("a"),
        names("A"),
        OutputForm::Lark(format!("start: a::0\na::_: \"x\" %if {condition}\n")),
        OutputForm::Regex(format!("{}a{}", "(".repeat(30_000), ")".repeat(30_000))),
    ];
    let compile = || {
        let vocabulary = vocabulary();
        for form in &forms {
            // Any result will do: a stack overflow ends the process.
            let _ = vocabulary.compile_form(form).map(|grammar| grammar.begin().allowed());
        }
    };
    thread::scope(|scope| {
        // The stack size of the threads that the server compiles on.
        let builder = thread::Builder::new().stack_size(2 << 20);
        builder.spawn_scoped(scope, compile).unwrap().join().unwrap();
    });
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    let table = Tokenizer::bytes().table();
    assert!(matches!(Vocabulary::new(&table, &[]), Err(GrammarError::Vocabulary(_))));
    assert!(matches!(Vocabulary::new(&table, &[100_000]), Err(GrammarError::Vocabulary(_))));
}

#[test]
fn texts_follow_an_expression_a_choice_or_a_grammar() {
    let vocabulary = vocabulary();
    for (form, whole, broken, kept) in [
        (OutputForm::Regex("[0-9]{4}-(0[1-9]|1[0-2])/?".into()), "1808-12/", "1808-13", "1808-1"),
        (OutputForm::Choice(vec!["a.b".into(), "a/c (d)".into(), "\u{e9}".into()]), "a/c (d)", "aab", "a"),
        (OutputForm::Choice(vec!["yes".into(), "yes, but".into()]), "yes, but", "yes, and", "yes, "),
        (OutputForm::Lark("start: word (\", \" word)*\nword: /[a-z]+/".into()), "faust, tell", "faust; tell", "faust"),
    ] {
        let grammar = vocabulary.compile_form(&form).unwrap();
        let mut writer = grammar.begin();
        write(&mut writer, whole).unwrap();
        assert!(writer.complete().unwrap(), "{form:?}");
        assert_eq!(write(&mut grammar.begin(), broken), Err(kept.to_owned()), "{form:?}");
    }
    for form in [
        OutputForm::Regex("(".into()),
        OutputForm::Lark("start: unknown".into()),
        OutputForm::Lark("word: \"a\"".into()),
        OutputForm::Lark(String::new()),
    ] {
        assert!(matches!(vocabulary.compile_form(&form), Err(GrammarError::Schema(_))), "{form:?}");
    }
}
