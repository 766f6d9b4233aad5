//! Token IDs compared with the Python libraries, and robustness against hostile text. `scripts/parity/tokenizer.py`
//! writes the fixture.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pulled;
mod synthetic;

use std::sync::LazyLock;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use proptest::prelude::*;
use serde::Deserialize;
use synthetic::VOCAB;
use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, Message, TextSegment};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::tokenizer::{Detokenizer, Specials, Tokenizer};
use waymark_models::weights::Gguf;

#[derive(Deserialize)]
struct Fixture {
    smollm2: Published,
    minilm: Published,
    qwen2: Trained,
    llama3: Trained,
}

#[derive(Deserialize)]
struct Published {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Trained {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    json: serde_json::Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

fn fixture() -> Fixture {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

static SMOLLM2: LazyLock<Checkpoint> = LazyLock::new(|| Checkpoint::open(&pulled::policy()).unwrap());

fn agrees(tokenizer: &Tokenizer, cases: &[Case]) {
    assert!(cases.len() > 30);
    for Case { text, ids } in cases {
        assert_eq!(&tokenizer.encode(text, Specials::Parse).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn smollm2_from_gguf_agrees_with_python() {
    agrees(&SMOLLM2.tokenizer, &fixture().smollm2.cases);
}

#[test]
fn minilm_from_json_agrees_with_python() {
    let tokenizer = Tokenizer::from_file(&pulled::embedder().join("tokenizer.json")).unwrap();
    agrees(&tokenizer, &fixture().minilm.cases);
}

#[test]
fn qwen2_and_llama3_from_json_and_from_gguf_agree_with_python() {
    let folder = tempfile::tempdir().unwrap();
    for (pre, trained) in [("qwen2", fixture().qwen2), ("llama-bpe", fixture().llama3)] {
        let json = folder.path().join("tokenizer.json");
        std::fs::write(&json, trained.json.to_string()).unwrap();
        agrees(&Tokenizer::from_file(&json).unwrap(), &trained.cases);
        let texts = |list: Vec<String>| Value::Array(list.into_iter().map(Value::String).collect());
        let metadata = [
            ("model", Value::String("gpt2".to_owned())),
            ("pre", Value::String(pre.to_owned())),
            ("tokens", texts(trained.tokens)),
            ("merges", texts(trained.merges)),
            ("token_type", Value::Array(trained.types.into_iter().map(Value::I32).collect())),
        ];
        let metadata = metadata.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
        let path = folder.path().join("model.gguf");
        synthetic::write_gguf(&path, "qwen2", GgmlDType::F32, metadata);
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
        agrees(&tokenizer, &trained.cases);
        // Control tokens have no text, user-defined tokens do.
        let end = tokenizer.id("<|im_end|>").unwrap();
        let think = tokenizer.id("<think>").unwrap();
        assert!(tokenizer.is_control(end) && !tokenizer.is_control(think));
        assert_eq!(tokenizer.decode(&[think, end]), "<think>");
    }
}

#[test]
fn text_comes_back_as_it_went_in() {
    for Case { text, .. } in fixture().smollm2.cases {
        let ids = SMOLLM2.tokenizer.encode(&text, Specials::Literal).unwrap();
        assert_eq!(SMOLLM2.tokenizer.decode(&ids), text);
    }
}

#[test]
fn an_unknown_way_of_cutting_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let refused = |model: &str, pre: &str| {
        let text = |value: &str| Value::String(value.to_owned());
        let list = || Value::Array(vec![Value::String("a".to_owned())]);
        let metadata = [("model", text(model)), ("pre", text(pre)), ("tokens", list()), ("merges", list())];
        let metadata = metadata.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
        synthetic::write_gguf(&path, "llama", GgmlDType::F32, metadata);
        Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap_err().to_string()
    };
    assert!(refused("t5", "default").contains("tokenizer.json"));
    assert!(refused("llama", "default").contains("scores"));
    assert!(refused("gpt2", "tekken").contains("tekken"));
    assert!(refused("gpt2", "smollm").contains("merges"));
}

#[test]
fn hostile_vocabularies_are_refused_without_panic_or_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let list = |texts: &[&str]| Value::Array(texts.iter().map(|&text| Value::String(text.to_owned())).collect());
    let text = |value: &str| Value::String(value.to_owned());
    let tokens = list(&["a", "b", "ab"]);
    let metadata = [("model", text("gpt2")), ("pre", text("smollm")), ("tokens", tokens), ("merges", list(&["ab ab"]))];
    let metadata = metadata.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
    synthetic::write_gguf(&path, "llama", GgmlDType::F32, metadata);
    let error = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap_err();
    assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains("merge"), "{error}");

    let path = folder.path().join("tokenizer.json");
    let from_json = |last: u32, merges: serde_json::Value| {
        let vocab = serde_json::json!({ "a": 0, "b": 1, "ab": last });
        let model = serde_json::json!({ "type": "BPE", "vocab": vocab, "merges": merges });
        let whole = serde_json::json!({ "version": "1.0", "added_tokens": [], "model": model });
        std::fs::write(&path, whole.to_string()).unwrap();
        Tokenizer::from_file(&path)
    };
    assert_eq!(from_json(2, serde_json::json!(["a b"])).unwrap().vocab(), 3);
    assert_eq!(from_json(2, serde_json::json!([["a", "b"]])).unwrap().vocab(), 3);
    for merges in [serde_json::json!(["ab ab"]), serde_json::json!([["b", "a"]])] {
        let error = from_json(2, merges).unwrap_err();
        assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains("merge"), "{error}");
    }
    let error = from_json(u32::MAX, serde_json::json!([])).unwrap_err();
    assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains("too high"), "{error}");
}

/// Opens the tokenizer of a GGUF with these entries of `tokenizer.ggml`.
fn from_metadata(entries: Vec<(&str, Value)>) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let metadata = entries.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
    synthetic::write_gguf(&path, "llama", GgmlDType::F32, metadata);
    Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap()
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

fn text_list(values: &[&str]) -> Value {
    Value::Array(values.iter().map(|value| text(value)).collect())
}

#[test]
fn all_names_of_a_splitting_rule_are_known() {
    // The rules differ in the number of digits that stay together: one, up to three, or all.
    for (names, wanted) in [
        (&["smollm", "refact", "starcoder", "minerva-7b"][..], &[0, 0, 0, 0][..]),
        (&["qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2"], &[0, 0, 0, 0]),
        (&["dbrx", "smaug-bpe"], &[2, 0]),
        (&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], &[2, 0]),
        (&["gpt-2", "gpt2", "mellum", "a.x-4.0", "trillion", "granite-docling"], &[3]),
    ] {
        for name in names {
            let tokens = text_list(&["1", "11", "111", "1111"]);
            let merges = text_list(&["1 1", "11 1", "11 11"]);
            let entries = vec![("model", text("gpt2")), ("pre", text(name)), ("tokens", tokens), ("merges", merges)];
            let ids: Vec<u32> = from_metadata(entries).encode("1111", Specials::Literal).unwrap();
            assert_eq!(ids, wanted, "{name}");
        }
    }
}

#[test]
fn a_text_begins_with_bos_where_a_gguf_says_so() {
    let encoded = |model: &str, pre: &str, flag: Option<bool>| {
        let mut entries = vec![
            ("model", text(model)),
            ("pre", text(pre)),
            ("tokens", text_list(&["<s>", "\u{2581}", "a", "b", "ab"])),
            ("merges", text_list(&["a b"])),
            ("scores", Value::Array(vec![Value::F32(0.0); 5])),
            ("token_type", Value::Array([3, 1, 1, 1, 1].map(Value::I32).to_vec())),
            ("bos_token_id", Value::U32(0)),
        ];
        entries.extend(flag.map(|flag| ("add_bos_token", Value::Bool(flag))));
        let tokenizer = from_metadata(entries);
        // Text after other tokens has no BOS.
        assert_ne!(tokenizer.encode("ab", Specials::Literal).unwrap()[0], 0);
        tokenizer.encode_text("ab").unwrap()
    };
    assert_eq!(encoded("gpt2", "smollm", Some(true)), [0, 4]);
    assert_eq!(encoded("gpt2", "smollm", Some(false)), [4]);
    assert_eq!(encoded("llama", "default", Some(true)), [0, 1, 4]);
    assert_eq!(encoded("llama", "default", Some(false)), [1, 4]);
    // The defaults of llama.cpp.
    assert_eq!(encoded("llama", "default", None), [0, 1, 4]);
    assert_eq!(encoded("gpt2", "llama-bpe", None), [0, 4]);
    for pre in ["qwen2", "smollm", "gpt-2", "default"] {
        assert_eq!(encoded("gpt2", pre, None), [4], "{pre}");
    }
}

#[test]
fn the_default_model_begins_no_text_with_bos() {
    let ids = SMOLLM2.tokenizer.encode("The quick brown fox", Specials::Literal).unwrap();
    assert_eq!(SMOLLM2.tokenizer.encode_text("The quick brown fox").unwrap(), ids);
}

#[test]
fn a_space_before_the_first_word_alone_stands_at_the_beginning_of_a_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mark = "\u{2581}";
    let open = |pre: serde_json::Value| {
        let model = serde_json::json!({ "type": "BPE", "vocab": { mark: 0, "a": 1 }, "merges": [] });
        let added = [added_token(2, "<s>", false)];
        let whole =
            serde_json::json!({ "version": "1.0", "added_tokens": added, "pre_tokenizer": pre, "model": model });
        std::fs::write(&path, whole.to_string()).unwrap();
        Tokenizer::from_file(&path).unwrap()
    };
    let space =
        |scheme: &str| serde_json::json!({ "type": "Metaspace", "replacement": mark, "prepend_scheme": scheme });
    for pre in [space("first"), serde_json::json!({ "type": "Sequence", "pretokenizers": [space("first")] })] {
        let tokenizer = open(pre);
        // The library itself writes none after a control token.
        assert_eq!(tokenizer.encode("a<s>a", Specials::Parse).unwrap(), [0, 1, 2, 1]);
        for (text, ids) in [("a a", &[0, 1, 0, 1][..]), (" a", &[0, 1]), ("\u{2581}a", &[0, 1]), ("", &[])] {
            assert_eq!(tokenizer.encode_text(text).unwrap(), ids, "{text:?}");
        }
        let prompt = |parts: [(&str, bool); 2]| {
            let segment = |(text, trusted): (&str, bool)| TextSegment { text: text.to_owned(), trusted };
            tokenizer.encode_prompt(&parts.map(segment)).unwrap()
        };
        assert_eq!(prompt([("", true), ("a", false)]), [0, 1]);
        assert_eq!(prompt([("<s>", true), ("a", false)]), [2, 1]);
        assert_eq!(prompt([("a<s>", true), ("a a", false)]), [0, 1, 2, 1, 0, 1]);
        // What continues a sequence has no space of its own.
        assert_eq!(tokenizer.encode("a", Specials::Literal).unwrap(), [1]);
        assert_eq!(segment_ids(&tokenizer, "a<s>a", true), [1, 2, 1]);
    }
    assert_eq!(open(space("always")).encode("a", Specials::Literal).unwrap(), [0, 1]);
    assert_eq!(open(space("never")).encode_text("a").unwrap(), [1]);
}

#[test]
fn letters_among_the_added_tokens_are_found_in_every_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    // As in DeepSeek-Coder: no text has the byte 0xFC, whose printable spelling became an added token.
    let vocab = serde_json::json!({
        "F": 0, "h": 1, "r": 2, "e": 3, "<": 4, "x": 5, ">": 6, "\u{c3}": 7, "\u{bc}": 8
    });
    let open = |names: [&str; 2], special: bool| {
        let added = |(id, name): (usize, &str)| {
            let mut entry = added_token(id, name, true);
            entry["special"] = (special && name == "\u{fc}").into();
            entry
        };
        let added: Vec<_> = (9..).zip(names).map(added).collect();
        let whole = serde_json::json!({
            "version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level,
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        std::fs::write(&path, whole.to_string()).unwrap();
        Tokenizer::from_file(&path).unwrap()
    };
    let tokenizer = open(["\u{fc}", "<x>"], false);
    let ids = [0, 9, 1, 2, 3, 2];
    for specials in [Specials::Parse, Specials::Literal] {
        assert_eq!(tokenizer.encode("F\u{fc}hrer", specials).unwrap(), ids, "{specials:?}");
    }
    assert_eq!(segment_ids(&tokenizer, "F\u{fc}hrer", false), ids);
    assert_eq!(tokenizer.encode("\u{fc}\u{fc}", Specials::Literal).unwrap(), [9, 9]);
    assert_eq!(tokenizer.decode(&ids), "F\u{fc}hrer");
    // Names of several characters may be tags, so they stay text.
    assert_eq!(tokenizer.encode("<x>", Specials::Parse).unwrap(), [10]);
    assert_eq!(tokenizer.encode("<x>", Specials::Literal).unwrap(), [4, 5, 6]);
    assert_eq!(tokenizer.marker_names(), ["<x>"]);
    // So does a control token of one character, and a character that a longer token contains.
    let control = open(["\u{fc}", "<x>"], true);
    assert_eq!(control.encode("\u{fc}", Specials::Literal).unwrap(), [7, 8]);
    let run = open(["\u{fc}", "\u{fc}\u{fc}"], false);
    assert_eq!(run.encode("\u{fc}", Specials::Literal).unwrap(), [7, 8]);
}

/// Encodes a single segment of a conversation.
fn segment_ids(tokenizer: &Tokenizer, text: &str, trusted: bool) -> Vec<u32> {
    tokenizer.encode_segments(&[TextSegment { text: text.to_owned(), trusted }]).unwrap()
}

/// Entry of an added token of a `tokenizer.json`.
fn added_token(id: usize, name: &str, normalized: bool) -> serde_json::Value {
    serde_json::json!({
        "id": id, "content": name, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": normalized,
    })
}

#[test]
fn a_control_token_with_a_normalized_name_is_found_in_trusted_text_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mark = "\u{2581}";
    // As in Llama 2.
    let steps = serde_json::json!([
        { "type": "Prepend", "prepend": mark },
        { "type": "Replace", "pattern": { "String": " " }, "content": mark },
    ]);
    let vocab = serde_json::json!({
        "<unk>": 0, "<s>": 1, "</s>": 2, mark: 3, "a": 4, "b": 5, "<": 6, "s": 7, ">": 8
    });
    let whole = serde_json::json!({
        "version": "1.0",
        "added_tokens": [added_token(1, "<s>", true), added_token(2, "</s>", true)],
        "normalizer": { "type": "Sequence", "normalizers": steps },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(&path, whole.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(&path).unwrap();
    assert_eq!(segment_ids(&tokenizer, "<s>ab", true), [1, 3, 4, 5]);
    assert_eq!(segment_ids(&tokenizer, "a</s><s>b", true), [3, 4, 2, 1, 3, 5]);
    assert_eq!(segment_ids(&tokenizer, "<s>ab", false), [3, 6, 7, 8, 4, 5]);
}

#[test]
fn control_tokens_of_phi3_swallow_the_white_space_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Kinds of pieces: 1 is ordinary, 2 unknown, 3 control, 4 user-defined, 6 a byte.
    let pieces = [
        ("<unk>", 2),
        ("<s>", 3),
        ("</s>", 4),
        ("<|user|>", 3),
        ("<|endoftext|>", 3),
        ("<0x0A>", 6),
        ("\u{2581}", 1),
        ("a", 1),
        ("b", 1),
    ];
    let open = |architecture: &str| {
        let list = |value: fn(&(&str, i32)) -> Value| Value::Array(pieces.iter().map(value).collect());
        let metadata = [
            ("model", Value::String("llama".to_owned())),
            ("tokens", list(|(text, _)| Value::String((*text).to_owned()))),
            ("scores", list(|_| Value::F32(0.0))),
            ("token_type", list(|(_, kind)| Value::I32(*kind))),
        ];
        let metadata = metadata.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
        synthetic::write_gguf(&path, architecture, GgmlDType::F32, metadata);
        Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap()
    };
    let phi3 = open("phi3");
    let llama = open("llama");
    let cases = [("<|user|>", 3, true), ("</s>", 2, true), ("<s>", 1, false), ("<|endoftext|>", 4, false)];
    for (name, id, swallows) in cases {
        let text = format!("{name}\nab");
        let kept: [u32; 5] = [id, 6, 5, 7, 8];
        let swallowed: [u32; 4] = [id, 6, 7, 8];
        assert_eq!(segment_ids(&phi3, &format!("{name}ab"), true), swallowed, "{name}");
        let wanted = if swallows { &swallowed[..] } else { &kept[..] };
        assert_eq!(segment_ids(&phi3, &text, true), wanted, "{name}");
        assert_eq!(segment_ids(&llama, &text, true), kept, "{name}");
    }
}

#[test]
fn tags_of_turns_control_the_model_whatever_type_a_gguf_gives_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let template = "{% for m in messages %}<start_of_turn>{{ m.content }}<end_of_turn>{% endfor %}";
    // Kinds of tokens: 1 is ordinary, 4 user-defined. Files name either end of Gemma 3, `<end_of_turn>` or `<eos>`.
    for (model, kind, named) in [("llama", 1, 5), ("llama", 4, 1), ("gpt2", 1, 1), ("gpt2", 4, 5)] {
        let entries = [
            ("model", text(model)),
            ("pre", text("smollm")),
            ("tokens", text_list(&["<start_of_turn>", "<end_of_turn>", "a", "b", "ab", "<eos>"])),
            ("merges", text_list(&["a b"])),
            ("scores", Value::Array(vec![Value::F32(0.0); 6])),
            ("token_type", Value::Array([kind, kind, 1, 1, 1, kind].map(Value::I32).to_vec())),
            ("add_space_prefix", Value::Bool(false)),
            ("bos_token_id", Value::U32(2)),
            ("eos_token_id", Value::U32(named)),
        ];
        let mut metadata = entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).to_vec();
        metadata.push(("tokenizer.chat_template".to_owned(), text(template)));
        synthetic::write_gguf(&path, "llama", GgmlDType::F32, metadata);
        let Checkpoint { tokenizer, template, eos, .. } = Checkpoint::open(&path).unwrap();
        let segments = template.unwrap().render_segments(&[Message::new("user", "ab")], false).unwrap();
        assert_eq!(tokenizer.encode_prompt(&segments).unwrap(), [0, 4, 1], "{model} {kind}");
        assert_eq!(eos, [1, 5], "{model} {kind}");
        assert_eq!(tokenizer.decode(&[4, 1, 5]), "ab", "{model} {kind}");
        // A word that a file names as BOS stays one.
        let control: Vec<u32> = (0..6).filter(|&id| tokenizer.is_control(id)).collect();
        assert_eq!(control, [0, 1, 5], "{model} {kind}");
    }
}

#[test]
fn an_end_token_that_a_folder_declares_as_text_has_none() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write_hf(folder.path(), "llama", false);
    let write = |file: &str, json: serde_json::Value| {
        std::fs::write(folder.path().join(file), json.to_string()).unwrap();
    };
    let added = [(2, "<|im_end|>"), (3, "<think>")].map(|(id, name)| {
        let mut entry = added_token(id, name, false);
        entry["special"] = false.into();
        entry
    });
    let model = serde_json::json!({ "type": "BPE", "vocab": { "a": 0, "\n": 1 }, "merges": [] });
    write("tokenizer.json", serde_json::json!({ "version": "1.0", "added_tokens": added, "model": model }));
    write("generation_config.json", serde_json::json!({ "eos_token_id": [1, 2] }));
    let Checkpoint { tokenizer, eos, .. } = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(eos, [1, 2]);
    assert!(tokenizer.is_control(2) && tokenizer.table().get(2).is_empty());
    assert_eq!(tokenizer.decode(&[0, 3, 2]), "a<think>");
    // A word of the vocabulary that ends a turn stands in other texts too.
    assert_eq!(tokenizer.encode("a\na", Specials::Literal).unwrap(), [0, 1, 0]);
}

#[test]
fn added_tokens_without_an_embedding_are_text() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write_hf(folder.path(), "llama", false);
    // A vocabulary of `tokens` characters from `!` on, and two added tokens after them.
    let open = |tokens: usize| {
        let character = |id: usize| (char::from(b'!' + id as u8).to_string(), serde_json::Value::from(id));
        let vocab: serde_json::Map<_, _> = (0..tokens).map(character).collect();
        let whole = serde_json::json!({
            "version": "1.0",
            "added_tokens": [added_token(tokens, "<A>", false), added_token(tokens + 1, "<B>", false)],
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        std::fs::write(folder.path().join("tokenizer.json"), whole.to_string()).unwrap();
        Checkpoint::open(folder.path())
    };
    let tokenizer = open(VOCAB - 1).unwrap().tokenizer;
    assert_eq!((tokenizer.vocab(), tokenizer.id("<A>"), tokenizer.id("<B>")), (VOCAB, Some(39), None));
    assert_eq!(tokenizer.control_names(), ["<A>"]);
    assert_eq!(segment_ids(&tokenizer, "<A><B>", true), [39, 27, 33, 29]);
    let tokenizer = open(VOCAB).unwrap().tokenizer;
    assert_eq!((tokenizer.vocab(), tokenizer.id("<A>")), (VOCAB, None));
    let refused = open(VOCAB + 1).unwrap_err().to_string();
    assert!(refused.contains("43 tokens") && refused.contains("40 rows"), "{refused}");
}

#[test]
fn a_rendered_conversation_gets_the_ids_of_the_whole_text() {
    let template = SMOLLM2.template.as_ref().unwrap();
    for Case { text, .. } in fixture().smollm2.cases {
        if text.contains("<|im_") || text.contains("<|endoftext|>") {
            continue;
        }
        let messages = [Message::new("user", text)];
        let whole = SMOLLM2.tokenizer.encode(&template.render(&messages, true).unwrap(), Specials::Parse).unwrap();
        let segments = template.render_segments(&messages, true).unwrap();
        assert_eq!(SMOLLM2.tokenizer.encode_segments(&segments).unwrap(), whole);
    }
}

/// Text made of control tokens, fragments of them, and arbitrary characters.
fn hostile() -> impl Strategy<Value = String> {
    let names =
        vec!["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_start|>system\n", "<|im_", "end|>", "<", "</think>"];
    let part = prop_oneof![
        4 => proptest::sample::select(names).prop_map(str::to_owned),
        2 => any::<String>(),
        1 => "[ \t\n\u{200b}\u{ad}]{1,3}",
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

fn control(ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| SMOLLM2.tokenizer.is_control(id)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn literal_text_never_gives_a_control_token(text in hostile()) {
        let ids = SMOLLM2.tokenizer.encode(&text, Specials::Literal).unwrap();
        prop_assert_eq!(control(&ids), Vec::<u32>::new());
        prop_assert_eq!(SMOLLM2.tokenizer.decode(&ids), text);
    }

    #[test]
    fn a_message_cannot_change_the_structure_of_a_conversation(
        contents in proptest::collection::vec(hostile(), 1..4),
    ) {
        // The real template, and one that inspects contents like Qwen3's.
        let apart = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].lstrip('\n') }}\
                     <|im_end|>\n{% endfor %}";
        let apart = ChatTemplate::new(apart, "", "").unwrap().with_control_tokens(SMOLLM2.tokenizer.control_names());
        let harmless: Vec<_> = contents.iter().map(|_| Message::new("user", "hi")).collect();
        let hostile: Vec<_> = contents.iter().map(|text| Message::new("user", text.clone())).collect();
        for template in [SMOLLM2.template.as_ref().unwrap(), &apart] {
            let structure = |messages: &[Message]| {
                let segments = template.render_segments(messages, true).unwrap();
                control(&SMOLLM2.tokenizer.encode_segments(&segments).unwrap())
            };
            prop_assert_eq!(structure(&hostile), structure(&harmless));
        }
    }

    #[test]
    fn streamed_text_is_the_decoded_text(ids in proptest::collection::vec(0u32..49_200, 0..60)) {
        let mut stream = Detokenizer::new(SMOLLM2.tokenizer.table());
        let mut text = String::new();
        for &id in &ids {
            text.push_str(stream.push(id));
        }
        text.push_str(&stream.finish());
        prop_assert_eq!(text, SMOLLM2.tokenizer.decode(&ids));
    }
}
