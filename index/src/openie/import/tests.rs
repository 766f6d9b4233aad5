#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;

fn corpus(passages: &[(&str, &str, &str)]) -> Vec<Passage> {
    let passage = |&(id, title, text): &(&str, &str, &str)| Passage {
        id: id.to_owned(),
        title: title.to_owned(),
        text: text.to_owned(),
    };
    passages.iter().map(passage).collect()
}

fn extract(source: &Imported, corpus: &dyn Passages) -> Result<Vec<Vec<Triple>>, IndexError> {
    let mut all = vec![Vec::new(); corpus.len()];
    let numbers: Vec<u32> = (0..corpus.len() as u32).collect();
    source.extract(corpus, &numbers, &mut |number, triples| {
        all[number as usize] = triples;
        Ok(())
    })?;
    Ok(all)
}

fn file(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("openie.json");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn error(text: &str) -> String {
    let (_dir, path) = file(text);
    let imported = Imported::open(&path);
    imported.map(|_| ()).unwrap_err().to_string().rsplit_once("openie.json:").unwrap().1.to_owned()
}

#[test]
fn hipporag_files_match_by_passage_whatever_their_idx() {
    let text = json!({"avg_ent_chars": 8.25, "meta": {"docs": "]}"}, "docs": [
        {"idx": "chunk-0", "passage": "Ann\nAnn \"knows\" {Bob}.", "extracted_entities": ["Ann"],
         "extracted_triples": [["Ann", "knows", "Bob"], ["Ann", "knows", "Bob"], ["Ann", "knows"], ["Ann", "is", 7]]},
        {"idx": 17, "passage": "\nNo title here.", "extracted_entities": [], "extracted_triples": []},
        {"idx": 18, "passage": "Gone\nNobody has this.", "extracted_entities": [], "extracted_triples": []},
    ]});
    for text in [text.to_string(), serde_json::to_string_pretty(&text).unwrap()] {
        let (_dir, path) = file(&text);
        let source = Imported::open(&path).unwrap();
        let corpus = corpus(&[
            ("1", "Ann", "Ann \"knows\" {Bob}."),
            ("2", "", "No title here."),
            ("3", "New", "Not in the file."),
        ]);
        let all = extract(&source, &corpus).unwrap();
        assert_eq!(all[0], [Triple::new("Ann", "knows", "Bob"), Triple::new("Ann", "is", "7")]);
        assert!(all[1].is_empty() && all[2].is_empty());
        assert_eq!(source.id(), "import openie.json");
        let expected =
            ImportReport { records: 3, replaced: 0, dropped: 2, passages: 3, missing: 1, empty: 1, unmatched: 1 };
        assert_eq!(source.report(), expected);
    }
}

#[test]
fn jsonl_matches_by_id_and_the_later_record_counts() {
    let (_dir, path) = file(
        "\u{feff}{\"id\": \"a\", \"entities\": [], \"triples\": [[\"old\", \"is\", \"old\"]]}\r\n\n\
         {\"id\": 7, \"triples\": [[\"x\", \"y\", \"z\"]]}\n{\"id\": \"a\", \"triples\": [[\"new\", \"is\", \"new\"]]}",
    );
    let source = Imported::open(&path).unwrap();
    let all = extract(&source, &corpus(&[("7", "T", "t"), ("a", "U", "u")])).unwrap();
    assert_eq!(all, [[Triple::new("x", "y", "z")], [Triple::new("new", "is", "new")]]);
    let expected = ImportReport { records: 3, replaced: 1, passages: 2, ..ImportReport::default() };
    assert_eq!(source.report(), expected);
}

#[test]
fn mistakes_are_named_with_their_line_record_and_field() {
    let good = r#"{"id": "a", "triples": []}"#;
    for (text, expected) in [
        ("", "1: the file is empty"),
        ("plain", "1: neither HippoRAG's"),
        (r#"{"docs": 3}"#, "1: field `docs` is not a list"),
        ("{\"docs\": [\n{\"passage\": \"x\", \"extracted_triples\": []}", "2: the list is not closed"),
        ("{\"docs\": [\n{\"passage\": \"x\", \"extra", "2: the record that begins here does not end"),
        ("{\"docs\": [\n7]}", "2: a record is not an object"),
        ("{\"docs\": [{\"passage\": \"x\", \"extracted_triples\": []} {}]}", "1: a comma or `]` is missing"),
        (&format!("{good}\n{{\"id\": [], \"triples\": []}}"), "2: record 2: field `id` is neither"),
        (&format!("{good}\n{{\"id\": \"b\"}}"), "2: record 2: field `triples` is missing"),
        (&format!("{good}\n{{\"id\": \"b\", \"triples\": {{}}}}"), "2: record 2: field `triples` is not a list"),
        (&format!("{good}\n\n{{\"name\": 1}}"), "3: record 2: there is neither `id`"),
        (&format!("{good}\n{{\"id\" \"b\"}}"), "2: record 2: broken JSON: expected `:`"),
        (&format!("{good}\nnull"), "2: a record is not an object"),
        (r#"{"docs": [{"passage": 1, "extracted_triples": []}]}"#, "1: record 1: field `passage` is not a string"),
    ] {
        let message = error(text);
        assert!(message.starts_with(expected), "{text}: {message}");
    }
}

#[test]
fn a_file_for_another_corpus_is_refused() {
    let (_dir, path) = file("{\"id\": \"a\", \"triples\": []}");
    let source = Imported::open(&path).unwrap();
    let message = extract(&source, &corpus(&[("b", "Title", "t")])).unwrap_err().to_string();
    assert!(message.contains("none of the 1 records") && message.contains("\"b\""), "{message}");
}

#[test]
fn a_file_that_changes_on_the_way_is_noticed() {
    let (_dir, path) = file("{\"id\": \"a\", \"triples\": [[\"a\",\"b\",\"c\"]]}");
    let source = Imported::open(&path).unwrap();
    std::fs::write(&path, "{\"id\": \"b\", \"triples\": [[\"a\",\"b\",\"c\"]]}").unwrap();
    let message = extract(&source, &corpus(&[("a", "", "t")])).unwrap_err().to_string();
    assert!(message.contains("was changed"), "{message}");
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(
        records in proptest::collection::vec((".{1,20}", proptest::collection::vec([".{0,9}", ".{0,9}", ".{0,9}"], 0..4)), 1..8),
        form in 0..3,
    ) {
        let text = match form {
            0 => records.iter().enumerate().map(|(id, (_, triples))| json!({"id": id, "triples": triples}).to_string() + "\n").collect(),
            1 => json!({"docs": records.iter().enumerate().map(|(id, (text, triples))| {
                json!({"passage": format!("{id}\n{text}"), "extracted_triples": triples})
            }).collect::<Vec<_>>()}).to_string(),
            _ => serde_json::to_string_pretty(&records.iter().enumerate().map(|(id, (text, triples))| {
                json!({"passage": format!("{id}\n{text}"), "extracted_triples": triples})
            }).collect::<Vec<_>>()).unwrap(),
        };
        let (_dir, path) = file(&text);
        let source = Imported::open(&path).unwrap();
        let passages = records.iter().enumerate().map(|(id, (text, _))| {
            Passage { id: id.to_string(), title: id.to_string(), text: text.clone() }
        });
        let all = extract(&source, &passages.collect::<Vec<_>>()).unwrap();
        for (found, (_, written)) in all.iter().zip(&records) {
            let mut expected: Vec<Triple> = Vec::new();
            for triple in written.iter().cloned().map(Triple::from) {
                if !expected.contains(&triple) {
                    expected.push(triple);
                }
            }
            prop_assert_eq!(found, &expected);
        }
    }

    #[test]
    fn no_file_makes_it_panic(text in "[\\[\\]{}\",:a-z0-9\\\\ \n]{0,80}") {
        let (_dir, path) = file(&text);
        if let Ok(source) = Imported::open(&path) {
            // No match is an error of its own, which is fine here.
            let _ = extract(&source, &corpus(&[("a", "", "b")]));
        }
    }
}

#[test]
fn the_real_file_is_read_whole() {
    let file = "musique_train/openie.jsonl";
    let Some(data) = crate::golden::data(&[file]) else { return };
    let path = data.join(file);
    let lines = std::fs::read_to_string(&path).unwrap().lines().count() as u64;
    let report = Imported::open(&path).unwrap().report();
    assert_eq!((report.records, report.replaced, report.unmatched), (lines, 0, lines));
}
