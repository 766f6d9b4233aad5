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
fn a_title_that_is_too_long_is_named_with_its_document() {
    let record = |length| format!("{{\"id\":\"a\",\"title\":\"{}\",\"text\":\"x\"}}\n", "t".repeat(length));
    assert_eq!(read("c.jsonl", record(LARGEST_TITLE)).unwrap()[0].title.len(), LARGEST_TITLE);
    let message = failure("c.jsonl", record(LARGEST_TITLE + 1));
    assert!(message.contains("c.jsonl:1: the title of \"a\" has 16385 bytes: expected at most 16384"), "{message}");
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
    fs::write(dir.path().join("photo.PNG"), "no text").unwrap();
    let first = Corpus::open(dir.path(), &CorpusOptions::default()).unwrap().next().unwrap();
    let message = first.unwrap_err().to_string();
    assert!(message.contains("photo.PNG: an image") && message.contains("JSONL"), "{message}");
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
    let read = || {
        let mut corpus = Corpus::open(dir.path(), &options).unwrap();
        let documents = corpus.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(corpus.skipped_files().by_type, [(".csv".to_owned(), 1)].into());
        documents
    };
    let documents = read();
    assert_eq!(documents, read());
    assert_eq!((documents[0].title.as_str(), documents[1].title.as_str()), ("The Title", "The Title"));
    assert_eq!((documents[0].id.as_str(), documents[1].id.as_str()), ("a.md#1", "a.md#2"));
    assert_eq!((documents[0].text.as_str(), documents[1].text.as_str()), ("intro", "Some text."));
    assert_eq!(documents.last().unwrap().title, "long");
    assert_eq!(documents[2].id, "b/long.txt#1");
    assert!(documents.len() > 3 && documents.iter().all(|d| d.text.chars().count() <= 1000));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let joined: Vec<_> = documents[2..].iter().flat_map(|d| words(&d.text)).collect();
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
        let chunker = Chunker { size: options.chunk, ..Chunker::default() };
        let (records, _) = chunker.prose(&prose::read(&path, name.to_owned(), &options.limits).unwrap()).unwrap();
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
        Corpus::open(&path, &CorpusOptions { chunk: Some(60), skip_bad, ..CorpusOptions::default() })
            .unwrap()
            .next()
            .unwrap()
    };
    for skip_bad in [false, true] {
        let message = first("[[\"s\",\"r\",\"o\"]]", skip_bad).unwrap_err().to_string();
        assert!(message.contains("c.jsonl:1: \"a\" has more than 60") && message.contains("--chunk"), "{message}");
    }
    assert_eq!(first("[]", false).unwrap().triples, Some(Vec::new()), "that it states nothing holds of each chunk");
}

/// Options with assignments of fields.
fn assigned(fields: &[&str]) -> CorpusOptions {
    let fields = FieldMap::parse(fields.iter().copied()).unwrap();
    CorpusOptions { fields, ..CorpusOptions::default() }
}

fn assigned_read(name: &str, content: &str, fields: &[&str]) -> Result<Vec<Document>, IndexError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    Corpus::open(&path, &assigned(fields))?.collect()
}

#[test]
fn records_of_other_projects_are_read_as_they_are() {
    let search_r1 = r#"{"id": "0", "contents": "\"Mona Lisa\"\nA painting in the Louvre."}"#;
    let [document] = &read("wiki.jsonl", search_r1).unwrap()[..] else { panic!("one document") };
    assert_eq!((document.title.as_str(), document.text.as_str()), ("Mona Lisa", "A painting in the Louvre."));
    assert_eq!(document.metadata, None);
    let beir = r#"{"_id": "4983", "title": "T", "text": "x", "metadata": {"url": "u"}}"#;
    let [document] = &read("corpus.jsonl", beir).unwrap()[..] else { panic!("one document") };
    assert_eq!((document.id.as_str(), &document.metadata.as_ref().unwrap()["url"]), ("4983", &"u".into()));
    let plain = r#"{"id": 1, "contents": "No title\nin this one."}"#;
    assert_eq!(read("c.jsonl", plain).unwrap()[0].text, "No title\nin this one.");
}

#[test]
fn fields_are_taken_by_the_given_names() {
    let line = r#"{"key":"a","body":"x","text":"other","about":{"year":1}}"#;
    let found = assigned_read("c.jsonl", line, &["id=key", "text=body", "metadata=about"]).unwrap();
    assert_eq!((found[0].id.as_str(), found[0].text.as_str()), ("a", "x"));
    assert_eq!(serde_json::json!(found[0].metadata), serde_json::json!({"year": 1, "text": "other"}));
    let found = assigned_read("c.jsonl", line, &["id=", "text=body"]).unwrap();
    assert!(found[0].id.starts_with("chunk-") && found[0].metadata.as_ref().unwrap()["key"] == "a");
    let message = assigned_read("c.jsonl", line, &["id=key", "text=missing"]).unwrap_err().to_string();
    assert!(message.contains("field `missing` is missing"), "{message}");
}

#[test]
fn missing_ids_are_derived_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.jsonl");
    fs::write(&path, "{\"text\":\"x\"}\n{\"id\":\"a\",\"text\":\"y\"}\n").unwrap();
    let options = CorpusOptions { fields: FieldMap::default().with_derived_ids(), ..CorpusOptions::default() };
    let documents: Vec<Document> = Corpus::open(&path, &options).unwrap().collect::<Result<_, _>>().unwrap();
    assert!(documents[0].id.starts_with("chunk-"), "{}", documents[0].id);
    assert_eq!((documents[1].id.as_str(), &documents[1].metadata), ("a", &None));
}

#[test]
fn tables_are_read_by_their_header() {
    let csv = "id,title,text,year,metadata\n1,T,\"a, \"\"b\"\"\nc\",1901,\"{\"\"x\"\": 2}\"\n2,,d,,\n";
    let documents = read("c.csv", csv).unwrap();
    assert_eq!((documents[0].id.as_str(), documents[0].text.as_str()), ("1", "a, \"b\"\nc"));
    assert_eq!(serde_json::json!(documents[0].metadata), serde_json::json!({"x": 2, "year": "1901"}));
    assert_eq!((documents[1].title.as_str(), &documents[1].metadata), ("", &None));
    let tsv = assigned_read("c.tsv", "\u{feff}key\tbody\nk\tone, two\n", &["text=body", "id=key"]).unwrap();
    assert_eq!((tsv[0].id.as_str(), tsv[0].text.as_str()), ("k", "one, two"));
    assert!(read("c.csv", "text\nx\n").unwrap()[0].id.starts_with("chunk-"));
    let message = failure("c.csv", "text,id\nx,1\ny\nz,3\n");
    assert!(message.contains("c.csv:3: the row has 1 cells instead of 2"), "{message}");
    let (_dir, mut corpus) = corpus("c.csv", "text,id\nx,1\ny\nz,3\n", true);
    assert_eq!(corpus.by_ref().map(|document| document.unwrap().id).collect::<Vec<_>>(), ["1", "3"]);
    assert_eq!(corpus.skipped(), 1);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.csv"), "key,body\n1,x\n").unwrap();
    let message = Corpus::open(&dir.path().join("c.csv"), &CorpusOptions::default()).unwrap_err().to_string();
    assert!(message.contains("no column `text` among key, body") && message.contains("--field text="), "{message}");
}

#[test]
fn cells_of_a_table_are_json_in_the_column_of_the_metadata_alone() {
    let csv = "id,text,about,metadata\n1,\"{\"\"a\"\": 1}\",\"{\"\"year\"\": 2}\",\"[3]\"\n";
    let found = assigned_read("c.csv", csv, &["metadata=about"]).unwrap();
    assert_eq!(found[0].text, "{\"a\": 1}");
    assert_eq!(serde_json::json!(found[0].metadata), serde_json::json!({"year": 2, "metadata": "[3]"}));
    for field in ["text=metadata", "title=metadata", "id=metadata"] {
        let found = assigned_read("c.csv", csv, &[field]).unwrap();
        let Document { id, title, text, .. } = &found[0];
        assert!([id, title, text].into_iter().any(|part| part == "[3]"), "{field}: {found:?}");
    }
}

#[test]
fn files_of_other_types_say_so() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content, expected) in [
        ("a.xlsx", "PK", "a spreadsheet: export its sheets as CSV"),
        ("a.arrow", "ARROW1", "to_parquet"),
        ("a.tar.gz", "x", "unpack it"),
        ("a.foo", "x", "the extension .foo is not known (files read are JSONL"),
        ("README", "x", "without a known extension"),
        ("a.parquet.gz", "x", "decompress it"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let error = Corpus::open(&path, &CorpusOptions::default()).unwrap_err();
        assert!(matches!(error, IndexError::UnsupportedFile { .. }), "{error}");
        assert!(error.to_string().contains(expected) && error.to_string().contains(name), "{error}");
    }
    // The content tells JSON without an extension of its own.
    fs::write(dir.path().join("corpus"), "{\"id\":1,\"text\":\"x\"}\n").unwrap();
    assert_eq!(Corpus::open(&dir.path().join("corpus"), &CorpusOptions::default()).unwrap().count(), 1);
}

#[test]
fn a_folder_is_read_by_the_types_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
    write("a.html", b"<title>Page</title><h1>Page</h1><h2>Sub</h2><p>The Seine.</p>");
    write("b.jsonl", b"{\"id\":\"b\",\"text\":\"x\"}\n");
    write("c.json", b"{\n\"text\": \"settings, no records\"}");
    write("d.json", b"[{\"text\":\"y\"}]");
    write("e.png", b"\x89PNG");
    write("f.txt.gz", &gzip("The Thames."));
    write("g.pdf", b"no PDF");
    let open = |skip_bad| Corpus::open(dir.path(), &CorpusOptions { skip_bad, ..CorpusOptions::default() }).unwrap();
    let message = open(false).find_map(Result::err).unwrap().to_string();
    assert!(message.contains("g.pdf:1: the PDF file cannot be read"), "{message}");
    let mut corpus = open(true);
    let documents: Vec<Document> = corpus.by_ref().map(Result::unwrap).collect();
    let ids: Vec<&str> = documents.iter().map(|document| document.id.as_str()).collect();
    assert_eq!([&ids[..2], &ids[3..]].concat(), ["a.html#1", "b", "f.txt.gz#1"]);
    assert_eq!((documents[0].title.as_str(), documents[0].text.as_str()), ("Page", "Sub\n\nThe Seine."));
    assert_eq!(serde_json::json!(documents[0].metadata), serde_json::json!({"headings": "Page > Sub"}));
    assert_eq!((documents[3].title.as_str(), documents[3].text.as_str()), ("f", "The Thames."));
    assert_eq!(corpus.skipped(), 1);
    let skipped = corpus.skipped_files();
    assert_eq!(skipped.by_type, [(".json".to_owned(), 1), (".png".to_owned(), 1)].into());
    assert!(skipped.first[0].0.ends_with("c.json") && skipped.first[1].1.contains("an image"), "{skipped:?}");
}

#[test]
fn a_file_that_expands_beyond_its_limit_is_refused() {
    const LIMIT: usize = 1 << 18;
    let dir = tempfile::tempdir().unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    // None of them gives documents whose size could be counted.
    for (name, content) in [
        ("lines.jsonl.zst", ruzstd::encoding::compress_to_vec("\n".repeat(2 * LIMIT).as_bytes(), level)),
        ("list.json.gz", gzip(&format!("[{}", " ".repeat(2 * LIMIT)))),
        ("table.csv.gz", gzip(&format!("text\n{}", "again\n".repeat(LIMIT / 3)))),
        ("text.txt.gz", gzip(&"word ".repeat(LIMIT / 2))),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let limits = ReadLimits { bytes: Some(LIMIT as u64), go_on: None };
        let corpus = Corpus::open(&path, &CorpusOptions { limits, ..CorpusOptions::default() }).unwrap();
        let error = corpus.collect::<Result<Vec<_>, _>>().unwrap_err();
        assert!(matches!(error, IndexError::UnsupportedFile { .. }), "{error}");
        assert!(error.to_string().contains("more than 262144 bytes, decompressed"), "{error}");
    }
}

#[test]
fn a_reading_ends_between_records_that_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.csv");
    // Less than a block of the file, so that only the records are counted.
    fs::write(&path, format!("text\n{}", "again\n".repeat(1000))).unwrap();
    let (limits, count) = read_limits::tests::steps(500);
    let mut corpus = Corpus::open(&path, &CorpusOptions { limits, ..CorpusOptions::default() }).unwrap();
    assert_eq!(corpus.next().unwrap().unwrap().text, "again");
    let error = corpus.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("was ended"), "{error}");
    assert_eq!((count.load(std::sync::atomic::Ordering::SeqCst), corpus.next().is_none()), (501, true));
}

fn gzip(text: &str) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn of_a_data_set_the_documents_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(dir.path().join(name), content).unwrap();
    let ids = || {
        let corpus = Corpus::open(dir.path(), &CorpusOptions::default()).unwrap();
        corpus.map(|document| document.unwrap().id).collect::<Vec<_>>()
    };
    write("README.md", "A card.");
    write("corpus.jsonl", "{\"_id\":\"d1\",\"text\":\"x\"}\n");
    assert_eq!(ids(), ["README.md#1", "d1"]);
    write("dataset_info.json", "{\"features\": {\"text\": {}}}");
    assert_eq!(ids(), ["d1"], "of a Hugging Face data set");
    fs::create_dir(dir.path().join("notes")).unwrap();
    write("notes/README.md", "A note.");
    write("notes.txt", "Another one.");
    assert_eq!(ids(), ["d1", "notes/README.md#1", "notes.txt#1"], "texts that are no card");
    fs::remove_dir_all(dir.path().join("notes")).unwrap();
    fs::remove_file(dir.path().join("notes.txt")).unwrap();
    fs::remove_file(dir.path().join("dataset_info.json")).unwrap();
    write("queries.jsonl", "{\"_id\":\"q1\",\"text\":\"x?\"}\n");
    assert_eq!(ids(), ["d1"], "of a BEIR data set");
}

#[test]
fn a_record_with_large_metadata_is_not_split() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("corpus.jsonl");
    let text = "A sentence about rivers. ".repeat(20);
    let line =
        |id: &str, note: usize| serde_json::json!({"id": id, "text": text, "note": "x".repeat(note)}).to_string();
    fs::write(&path, format!("{}\n{}\n", line("small", 60_000), line("large", 70_000))).unwrap();
    let read = |chunk, skip_bad| {
        let corpus = Corpus::open(&path, &CorpusOptions { chunk, skip_bad, ..CorpusOptions::default() }).unwrap();
        corpus.collect::<Result<Vec<Document>, IndexError>>()
    };
    assert_eq!(read(None, false).unwrap().len(), 2, "whole, nothing is copied");
    let refused = read(Some(100), false).unwrap_err().to_string();
    assert!(refused.contains("corpus.jsonl:2") && refused.contains("\"large\""), "{refused}");
    let kept = read(Some(100), true).unwrap();
    assert!(kept.len() > 3 && kept.iter().all(|document| document.id.starts_with("small#")));
}
