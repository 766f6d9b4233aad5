//! An index is changed from the command line while a server searches it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::program::{Run, Serving, homeless, waymark};
use super::{CORPUS, index};

fn add(index: &str, file: &Path, lines: &str, flags: &[&str]) -> Run {
    fs::write(file, lines).unwrap();
    let args = ["index", "add", "--index", index, "--corpus", file.to_str().unwrap()];
    waymark(&[&args[..], flags].concat())
}

/// Asks the server until it searches `snapshot`; gives the ids that it found.
fn found(url: &str, query: &str, snapshot: u64) -> Vec<String> {
    let client = reqwest::Client::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..500 {
        let sent = client.post(format!("{url}/v1/search")).json(&json!({"query": query, "k": 1})).send();
        let answer: Value = runtime.block_on(async { sent.await.unwrap().json().await.unwrap() });
        if answer["snapshot"] == snapshot {
            let hits = answer["hits"].as_array().unwrap();
            return hits.iter().map(|hit| hit["passage"]["id"].as_str().unwrap().to_owned()).collect();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("snapshot {snapshot} is never searched");
}

#[test]
fn documents_are_added_and_removed_while_a_server_searches() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let server = Serving::start(&["--mock", "--index", &index]);
    let file = dir.path().join("new.jsonl");
    let rhine = r#"{"id":"rhine","title":"Rhine","text":"The Rhine is a river that flows through Cologne."}"#;

    let added = add(&index, &file, rhine, &[]);
    assert!(added.ok(), "{}", added.stderr);
    assert!(added.stdout.contains("4 passages, snapshot 2") && added.stdout.contains("1 added"), "{}", added.stdout);
    assert_eq!(found(&server.url, "river through Cologne", 2), ["rhine"]);
    let again = add(&index, &file, rhine, &[]);
    assert!(again.stdout.contains("snapshot 2, as before") && again.stdout.contains("1 unchanged"), "{}", again.stdout);

    fs::write(&file, "rhine\n\nnobody\n").unwrap();
    let removed = waymark(&["index", "remove", "--index", &index, "--id", "thames", "--ids", file.to_str().unwrap()]);
    assert!(removed.ok() && removed.stdout.contains("2 removed"), "{}{}", removed.stdout, removed.stderr);
    assert!(removed.stdout.contains("no document has the id nobody"), "{}", removed.stdout);
    assert_eq!(found(&server.url, "river through Cologne", 3), ["seine"]);
    assert!(server.stop());
}

#[test]
fn a_document_without_triples_is_asked_of_whoever_found_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("corpus.jsonl");
    let triples = dir.path().join("triples.jsonl");
    let index = dir.path().join("corpus.index");
    let (index, triples) = (index.to_str().unwrap(), triples.to_str().unwrap());
    fs::write(&file, CORPUS).unwrap();
    fs::write(triples, "{\"id\":\"seine\",\"triples\":[[\"Seine\",\"flows through\",\"Paris\"]]}\n").unwrap();
    let build = ["index", "build", "--corpus", file.to_str().unwrap(), "--out", index, "--triples", triples];
    assert!(waymark(&build).ok());

    let rhine = r#"{"id":"rhine","title":"Rhine","text":"The Rhine is a river."}"#;
    let refused = add(index, &file, rhine, &[]);
    assert!(!refused.ok() && refused.stderr.contains("import triples.jsonl"), "{}", refused.stderr);
    let info = || waymark(&["index", "info", index, "--json"]).stdout;
    for (flag, source) in [("none", "import triples.jsonl"), ("builtin", "import triples.jsonl and builtin")] {
        let done = add(index, &file, &rhine.replace("Rhine is", &format!("Rhine ({flag}) is")), &["--triples", flag]);
        assert!(done.ok(), "{}", done.stderr);
        let manifest: Value = serde_json::from_str(&info()).unwrap();
        assert_eq!(manifest["graph"]["source"], source);
    }
}

#[test]
fn an_index_without_weights_needs_no_folder_for_downloads() {
    let dir = tempfile::tempdir().unwrap();
    let (file, index) = (dir.path().join("corpus.jsonl"), dir.path().join("corpus.index"));
    fs::write(&file, CORPUS).unwrap();
    let (file, index) = (file.to_str().unwrap(), index.to_str().unwrap());
    let built = homeless(&["index", "build", "--embedder", "mock", "--corpus", file, "--out", index]);
    assert!(built.ok(), "{}", built.stderr);
    let added = homeless(&["index", "add", "--embedder", "mock", "--corpus", file, "--index", index]);
    assert!(added.ok() && added.stdout.contains("3 unchanged"), "{}{}", added.stdout, added.stderr);
    let removed = homeless(&["index", "remove", "--embedder", "mock", "--id", "seine", "--index", index]);
    assert!(removed.ok() && removed.stdout.contains("1 removed"), "{}{}", removed.stdout, removed.stderr);
}
