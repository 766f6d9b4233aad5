#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::fs;

use super::*;

fn corpus(name: &str, content: impl AsRef<[u8]>, skip_bad: bool) -> (tempfile::TempDir, Corpus) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    let corpus = Corpus::open(&path, &CorpusOptions { skip_bad, ..CorpusOptions::default() }).unwrap();
    (dir, corpus)
}

fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<Document>, IndexError> {
    corpus(name, content, false).1.collect()
}

fn failure(name: &str, content: impl AsRef<[u8]>) -> String {
    read(name, content).unwrap_err().to_string()
}

#[test]
fn lines_keep_every_other_key_as_metadata() {
    let documents = read(
        "c.jsonl",
        "\u{feff}{\"id\":\"a\",\"title\":\"T\",\"text\":\"x\",\"source\":[\"s\"],\"metadata\":{\"year\":1}}\r\n\r\n{\"id\":7,\"text\":\"y\"}",
    )
    .unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0].metadata.as_ref().unwrap()["source"][0], "s");
    assert_eq!(documents[0].metadata.as_ref().unwrap()["year"], 1);
    assert_eq!(documents[0].content(), "T\nx");
    assert_eq!((documents[1].id.as_str(), documents[1].content()), ("7", "y".to_owned()));
    assert_eq!(documents[1].metadata, None);
}

#[test]
fn a_broken_line_is_named() {
    let good = "{\"id\":\"a\",\"title\":\"\",\"text\":\"x\"}\n";
    for (bad, expected) in [
        ("{\"id\":\"b\",\"text\":\"x\"", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("{\"text\":\"x\"}", "field `id` is missing"),
        ("{\"id\":\"\",\"text\":\"x\"}", "field `id` is empty"),
        ("{\"id\":[],\"text\":\"x\"}", "field `id` is neither"),
        ("{\"id\":\"b\"}", "field `text` is missing"),
        ("{\"id\":\"b\",\"text\":\" \"}", "field `text` is empty"),
        ("{\"id\":\"b\",\"text\":1}", "field `text` is not a string"),
        ("{\"id\":\"b\",\"text\":\"x\",\"metadata\":1}", "field `metadata` is not an object"),
    ] {
        let message = failure("c.jsonl", format!("{good}\n{bad}\n"));
        assert!(message.contains("c.jsonl:3: ") && message.contains(expected), "{message}");
        assert!(message.contains("--skip-bad"), "{message}");
    }
}

#[test]
fn invalid_utf8_is_named_by_line() {
    let message = failure("c.jsonl", b"{\"id\":\"a\",\"text\":\"x\"}\n{\"id\":\"b\",\"text\":\"\xff\"}\n");
    assert!(message.contains("c.jsonl:2: invalid UTF-8"), "{message}");
    let message = failure("c.md", b"one\ntwo \xff\n");
    assert!(message.contains("c.md:2: invalid UTF-8"), "{message}");
}

#[test]
fn bad_records_are_counted_when_skipped() {
    let content =
        b"nonsense\n{\"id\":\"a\",\"text\":\"x\"}\n{\"id\":\"b\",\"text\":\"\xff\"}\n{\"id\":\"c\",\"text\":\"y\"}\n";
    let (_dir, mut corpus) = corpus("c.jsonl", content, true);
    let ids: Vec<_> = corpus.by_ref().map(|document| document.unwrap().id).collect();
    assert_eq!(ids, ["a", "c"]);
    assert_eq!(corpus.skipped(), 2);
}

#[test]
fn duplicate_ids_are_refused_with_both_lines() {
    let message = failure("c.jsonl", "{\"id\":\"a\",\"text\":\"x\"}\n\n{\"id\":\"a\",\"text\":\"y\"}\n");
    assert!(message.contains("c.jsonl:1") && message.contains("c.jsonl:3"), "{message}");
}

#[test]
fn an_empty_corpus_is_refused() {
    for (name, content) in [("c.jsonl", ""), ("c.jsonl", "\n \r\n"), ("c.json", "[]"), ("c.txt", ""), ("c.md", " \n")] {
        let message = failure(name, content);
        assert!(message.ends_with("holds no passages (0 records skipped)"), "{message}");
    }
    let (_dir, mut corpus) = corpus("c.jsonl", "nonsense\n", true);
    let message = corpus.next().unwrap().unwrap_err().to_string();
    assert!(message.contains("1 records skipped"), "{message}");
    assert!(corpus.next().is_none());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("corpus.jsonl"), "{\"id\":\"a\",\"text\":\"x\"}\n").unwrap();
    let first = Corpus::open(dir.path(), &CorpusOptions::default()).unwrap().next().unwrap();
    let message = first.unwrap_err().to_string();
    assert!(message.contains("only Markdown and text files") && message.contains("JSONL"), "{message}");
}

#[test]
fn a_list_is_read_with_ids_from_its_content() {
    let content = "\u{feff} [ {\"title\":\"A]\\\"}\",\"text\":\"x {\\\\\",\"idx\":0},\n {\"title\":\"B\",\"text\":\"y\",\"n\":{\"m\":[{}]}} ,{\"title\":\"B\",\"text\":\"y\"}]\n";
    let (_dir, mut corpus) = corpus("c.json", content, false);
    let documents: Vec<_> = corpus.by_ref().map(Result::unwrap).collect();
    assert_eq!(documents.len(), 2, "the same passage twice is one passage");
    assert_eq!(corpus.collapsed(), 1);
    assert_eq!(documents[0].title, "A]\"}");
    assert_eq!(documents[0].metadata.as_ref().unwrap()["idx"], 0);
    assert!(documents[1].id.starts_with("chunk-") && documents[0].id != documents[1].id);
    // The order of keys, other keys and the file do not change the ID.
    let again = read("other.json", "[{\"text\":\"y\",\"title\":\"B\"}]").unwrap();
    assert_eq!(again[0].id, documents[1].id);
}

#[test]
fn a_broken_list_is_named_by_line() {
    for (content, line, expected) in [
        ("[{\"text\":\"x\"},\n{\"text\":}]", 2, "not a JSON object"),
        ("[{\"text\":\"x\"}\n{\"text\":\"y\"}]", 2, "comma"),
        ("[\n\n{\"text\":\"x\"", 3, "not closed"),
        ("[{\"text\":\"x\"},", 1, "not closed"),
        ("[{\"text\":\"x\"},\n]", 2, "not an object"),
        ("[{\"text\":\"x\"}]\n]", 2, "follows the end"),
        ("[1]", 1, "not an object"),
        ("[", 1, "not closed"),
    ] {
        let message = failure("c.json", content);
        assert!(message.contains(&format!("c.json:{line}: ")) && message.contains(expected), "{content}: {message}");
    }
}

#[test]
fn a_folder_is_cut_into_chunks_with_stable_ids() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("b/.hidden")).unwrap();
    let long = "A sentence of some length about nothing at all. ".repeat(60);
    fs::write(dir.path().join("b/long.txt"), &long).unwrap();
    fs::write(dir.path().join("a.md"), "\u{feff}intro\n\n# The Title\n\nSome text.\n").unwrap();
    fs::write(dir.path().join("b/.hidden/c.md"), "not read").unwrap();
    fs::write(dir.path().join("b/table.csv"), "not read").unwrap();
    let options = CorpusOptions::default();
    let read = || Corpus::open(dir.path(), &options).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let documents = read();
    assert_eq!(documents, read());
    assert_eq!(documents[0].title, "The Title");
    assert_eq!(documents[0].id, "a.md#1");
    assert_eq!(documents.last().unwrap().title, "long");
    assert_eq!(documents[1].id, "b/long.txt#1");
    assert!(documents.len() > 3 && documents.iter().all(|d| d.text.chars().count() <= 1000));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let joined: Vec<_> = documents[1..].iter().flat_map(|d| words(&d.text)).collect();
    assert_eq!(joined, words(&long), "nothing is lost and nothing doubled");
}

#[test]
fn every_chunk_of_a_file_knows_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let options = CorpusOptions { chunk: Some(12), ..CorpusOptions::default() };
    for name in ["long.txt", "long.md"] {
        let path = dir.path().join(name);
        let lines = (1..=500).map(|line| format!("word{line}\n{}", "\n".repeat(line % 3)));
        let text = format!("\u{feff}\n{}", lines.collect::<String>());
        fs::write(&path, &text).unwrap();
        let record = |found| if let CorpusItem::Record(record) = found { Some(record) } else { None };
        let found = folder::read(&path, &options).unwrap().map(Result::unwrap);
        let records: Vec<CorpusRecord> = found.filter_map(record).collect();
        assert!(records.len() > 300, "{}", records.len());
        for CorpusRecord { location, document, .. } in records {
            let word = document.text.lines().next().unwrap();
            let line = 1 + text.lines().position(|line| line == word).unwrap() as u64;
            assert_eq!((location.line, &*location.file), (line, path.as_path()), "{word}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_is_read_as_the_file() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(dir.path().join("a.txt"), "Some text.").unwrap();
    symlink("../a.txt", folder.join("linked.txt")).unwrap();
    // Links to folders are not followed: this one leads around in a circle.
    symlink("..", folder.join("round")).unwrap();
    for path in [folder.join("linked.txt"), folder] {
        let corpus = Corpus::open(&path, &CorpusOptions::default()).unwrap();
        let ids: Vec<String> = corpus.map(|document| document.unwrap().id).collect();
        assert_eq!(ids, ["linked.txt#1"], "{}", path.display());
    }
}

#[test]
fn a_missing_corpus_is_named() {
    let error = Corpus::open(Path::new("no/such/file.jsonl"), &CorpusOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no/such/file.jsonl"), "{error}");
}

/// Ten sentences of 27 characters and a space.
fn long_text() -> String {
    (0..10).map(|number| format!("Sentence {number} tells of a city. ")).collect()
}

#[test]
fn records_are_cut_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let text = long_text();
    let record = |id: &str, text: &str| format!("{{\"id\":\"{id}\",\"title\":\"T\",\"text\":\"{text}\",\"year\":1}}\n");
    let path = dir.path().join("c.jsonl");
    let fits = &text[..60];
    fs::write(&path, [record("a", &text), record("b", fits), record("c", &format!("{fits} "))].concat()).unwrap();
    let read = |chunk| {
        let mut corpus = Corpus::open(&path, &CorpusOptions { chunk, ..CorpusOptions::default() }).unwrap();
        let documents = corpus.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        assert!(!corpus.is_prose());
        (documents, corpus.take_chunked())
    };
    let (whole, chunked) = read(None);
    assert_eq!((whole.len(), chunked), (3, Vec::new()), "nothing is cut and nothing said of it");
    let (documents, chunked) = read(Some(60));
    let (pieces, rest) = documents.split_at(documents.len() - 2);
    assert_eq!(rest, &whole[1..], "what fits stays as it is, white space around it aside");
    for (piece, number) in pieces.iter().zip(1..) {
        assert_eq!(piece.id, format!("a#{number}"));
        assert_eq!((piece.title.as_str(), &piece.metadata), ("T", &whole[0].metadata));
        assert!(piece.text.chars().count() <= 60);
    }
    let joined: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
    assert_eq!(joined.join(" "), text.trim(), "nothing is lost and nothing doubled");
    let said = [("a", pieces.len() as u64), ("b", 0), ("c", 0)].map(|(name, count)| (name.to_owned(), count));
    assert_eq!(chunked, said);
}

#[test]
fn a_passage_that_is_there_twice_is_cut_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.json");
    let record = format!("{{\"title\":\"T\",\"text\":\"{}\"}}", long_text());
    fs::write(&path, format!("[{record},{record}]")).unwrap();
    let mut corpus = Corpus::open(&path, &CorpusOptions { chunk: Some(100), ..CorpusOptions::default() }).unwrap();
    let documents = corpus.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    assert!(documents.len() > 2 && documents[0].id.starts_with("chunk-") && documents[0].id.ends_with("#1"));
    assert_eq!(corpus.collapsed(), documents.len() as u64);
}

#[test]
fn triples_of_a_record_that_would_be_cut_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.jsonl");
    let record = |triples: &str| format!("{{\"id\":\"a\",\"text\":\"{}\",\"triples\":{triples}}}\n", long_text());
    let first = |triples: &str, skip_bad| {
        fs::write(&path, record(triples)).unwrap();
        Corpus::open(&path, &CorpusOptions { chunk: Some(60), skip_bad }).unwrap().next().unwrap()
    };
    for skip_bad in [false, true] {
        let message = first("[[\"s\",\"r\",\"o\"]]", skip_bad).unwrap_err().to_string();
        assert!(message.contains("c.jsonl:1: \"a\" has more than 60") && message.contains("--chunk"), "{message}");
    }
    assert_eq!(first("[]", false).unwrap().triples, Some(Vec::new()), "that it states nothing holds of each chunk");
}
