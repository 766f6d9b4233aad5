//! Changes of an index from the command line while a server searches it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program::{ProgramRun, Serving, homeless, waymark};
use super::{CORPUS, index};

fn add(index: &str, file: &Path, lines: &str, flags: &[&str]) -> ProgramRun {
    fs::write(file, lines).unwrap();
    let args = ["index", "add", "--index", index, "--corpus", file.to_str().unwrap()];
    waymark(&[&args[..], flags].concat())
}

/// Searches until the server uses `snapshot`. Returns the IDs of the results.
fn found(url: &str, query: &str, snapshot: u64) -> Vec<String> {
    let client = reqwest::Client::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    loop {
        let sent = client.post(format!("{url}/v1/search")).json(&json!({"query": query, "k": 1})).send();
        let answer: Value = runtime.block_on(async { sent.await.unwrap().json().await.unwrap() });
        if answer["snapshot"] == snapshot {
            let hits = answer["hits"].as_array().unwrap();
            return hits.iter().map(|hit| hit["passage"]["id"].as_str().unwrap().to_owned()).collect();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "snapshot {snapshot} is never searched");
        std::thread::sleep(Duration::from_millis(20));
    }
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
    assert!(again.stdout.contains("snapshot 2, unchanged") && again.stdout.contains("1 unchanged"), "{}", again.stdout);

    fs::write(&file, "rhine\n\nnobody\n").unwrap();
    let removed = waymark(&["index", "remove", "--index", &index, "--id", "thames", "--ids", file.to_str().unwrap()]);
    assert!(removed.ok() && removed.stdout.contains("2 removed"), "{}{}", removed.stdout, removed.stderr);
    assert!(removed.stdout.contains("no document has the ID nobody"), "{}", removed.stdout);
    assert_eq!(found(&server.url, "river through Cologne", 3), ["seine"]);
    assert!(server.stop());
}

#[test]
fn a_document_without_triples_is_asked_of_whoever_found_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("corpus.jsonl");
    let triples = dir.path().join("triples.jsonl");
    let index = dir.path().join("corpus.index");
    let index = index.to_str().unwrap();
    let triples = triples.to_str().unwrap();
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
    let file = dir.path().join("corpus.jsonl");
    let index = dir.path().join("corpus.index");
    fs::write(&file, CORPUS).unwrap();
    let file = file.to_str().unwrap();
    let index = index.to_str().unwrap();
    let built = homeless(&["index", "build", "--embedder", "mock", "--corpus", file, "--out", index]);
    assert!(built.ok(), "{}", built.stderr);
    let added = homeless(&["index", "add", "--embedder", "mock", "--corpus", file, "--index", index]);
    assert!(added.ok() && added.stdout.contains("3 unchanged"), "{}{}", added.stdout, added.stderr);
    let removed = homeless(&["index", "remove", "--embedder", "mock", "--id", "seine", "--index", index]);
    assert!(removed.ok() && removed.stdout.contains("1 removed"), "{}{}", removed.stdout, removed.stderr);
}

#[test]
fn what_the_embedder_does_not_read_is_told_and_found_once_it_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let file = dir.path().join("guide.jsonl");
    let guide = |text: &str| json!({"id": "guide", "title": "Guide", "text": text}).to_string();
    // Longer than the 254 word pieces alone, so the fish come after what is read.
    let hours = "The museum opens at nine in the morning and closes at six in the evening. ".repeat(60);
    let fish = "Piranhas are freshwater fish with sharp teeth that swim in schools and eat meat, insects and seeds. ";
    let long = guide(&format!("{hours}\n\n{}", fish.repeat(9)));
    let passages = || {
        let info = waymark(&["index", "info", &index, "--json"]);
        serde_json::from_str::<Value>(&info.stdout).unwrap()["passages"].as_u64().unwrap()
    };
    let told = "1 passages exceed the embedder's limit of 254 word pieces";
    let added = add(&index, &file, &long, &[]);
    assert!(added.ok() && added.stdout.contains(told) && passages() == 4, "{}{}", added.stdout, added.stderr);
    assert!(added.stderr.contains("longer than the embedder reads"), "told before it is embedded: {}", added.stderr);
    let built = dir.path().join("guide.index");
    let build = ["index", "build", "--corpus", file.to_str().unwrap(), "--out", built.to_str().unwrap()];
    let built = waymark(&build);
    assert!(built.ok() && built.stdout.contains(told), "{}{}", built.stdout, built.stderr);

    let cut = add(&index, &file, &long, &["--chunk", "200"]);
    assert!(cut.ok() && cut.stdout.contains("1 removed"), "{}{}", cut.stdout, cut.stderr);
    assert!(!cut.stdout.contains("longer than"), "{}", cut.stdout);
    let chunks = passages() - 3;
    assert!(chunks > 4, "{chunks}");
    let search = ["search", "--index", &index, "--ranking", "dense", "--k", "1", "--json", "fish with sharp teeth"];
    let found: Value = serde_json::from_str(&waymark(&search).stdout).unwrap();
    let passage = &found["hits"][0]["passage"];
    assert!(passage["id"].as_str().unwrap().starts_with("guide#"), "{passage}");
    assert!(passage["text"].as_str().unwrap().contains("Piranhas"), "{passage}");

    let triples = dir.path().join("triples.jsonl");
    fs::write(&triples, "{\"id\":\"guide\",\"triples\":[[\"Piranhas\",\"are\",\"fish\"]]}\n").unwrap();
    let refused = add(&index, &file, &long, &["--chunk", "200", "--triples", triples.to_str().unwrap()]);
    assert!(!refused.ok() && refused.stderr.contains("--chunk splits records"), "{}", refused.stderr);
    let short = add(&index, &file, &guide("The museum is closed."), &["--chunk", "200"]);
    assert!(short.ok() && short.stdout.contains(&format!("{chunks} removed")), "{}{}", short.stdout, short.stderr);
}

#[test]
fn a_mirror_of_a_folder_loses_what_the_folder_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (docs, index) = (dir.path().join("docs"), dir.path().join("docs.index"));
    fs::create_dir(&docs).unwrap();
    for (name, text) in [("a.md", "The Seine flows through Paris."), ("b.md", "The Thames flows through London.")] {
        fs::write(docs.join(name), text).unwrap();
    }
    let corpus = docs.to_str().unwrap();
    let out = index.to_str().unwrap();
    let built = waymark(&["index", "build", "--embedder", "mock", "--corpus", corpus, "--out", out]);
    assert!(built.ok(), "{}", built.stderr);
    fs::remove_file(docs.join("b.md")).unwrap();
    let add = ["index", "add", "--embedder", "mock", "--index", out, "--corpus", corpus];
    for (flags, removed) in [(&[][..], "0 removed"), (&["--mirror"][..], "1 removed")] {
        let added = waymark(&[&add[..], flags].concat());
        assert!(added.ok() && added.stdout.contains(removed), "{}{}", added.stdout, added.stderr);
    }
    // A record that cannot be read would be taken for one that is not there.
    let refused = waymark(&[&add[..], &["--mirror", "--skip-bad"]].concat());
    assert!(!refused.ok() && refused.stderr.contains("--skip-bad"), "{}", refused.stderr);
}

#[test]
fn documents_are_listed_shown_and_suggested() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("rivers.csv");
    let index = dir.path().join("rivers.index");
    fs::write(&table, "key,title,body,length\nseine,Seine,It flows through Paris.,777\n").unwrap();
    let corpus = table.to_str().unwrap();
    let out = index.to_str().unwrap();
    let fields = ["--embedder", "mock", "--field", "id=key", "--field", "text=body"];
    let built = waymark(&[&["index", "build", "--corpus", corpus, "--out", out][..], &fields].concat());
    assert!(built.ok(), "{}", built.stderr);
    fs::write(&table, "key,title,body\nthames,Thames,It flows through London.\n").unwrap();
    let added = waymark(&[&["index", "add", "--corpus", corpus, "--index", out][..], &fields].concat());
    assert!(added.ok() && added.stdout.contains("\n  + thames\n"), "{}{}", added.stdout, added.stderr);
    assert!(added.stdout.contains("\n1 passages and ") && added.stdout.contains(", 2 and "), "{}", added.stdout);

    let first = waymark(&["index", "documents", out, "--limit", "1"]);
    assert!(first.ok() && first.stdout.starts_with("seine  Seine  It flows"), "{}{}", first.stdout, first.stderr);
    assert!(first.stdout.contains("1 of 2 documents; go on with --after seine"), "{}", first.stdout);
    let rest = waymark(&["index", "documents", out, "--after", "seine", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&rest.stdout).unwrap()["id"], "thames", "{}", rest.stderr);
    let shown = waymark(&["index", "show", out, "--id", "seine"]);
    assert!(shown.ok() && shown.stdout.contains("length") && shown.stdout.contains("777"), "{}", shown.stdout);
    assert!(shown.stdout.contains("It flows through Paris."), "{}", shown.stdout);
    let unknown = waymark(&["index", "show", out, "--id", "siene"]);
    assert!(!unknown.ok() && unknown.stderr.contains("near are seine"), "{}", unknown.stderr);
    let removed = waymark(&["index", "remove", "--embedder", "mock", "--index", out, "--id", "THAMES"]);
    assert!(removed.ok(), "{}", removed.stderr);
    assert!(removed.stdout.contains("no document has the ID THAMES: near are thames"), "{}", removed.stdout);
}

#[test]
fn files_that_are_not_read_are_counted_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    let index = dir.path().join("docs.index");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("a.html"), "<h1>Rivers</h1><p>The Seine flows through Paris.").unwrap();
    fs::write(docs.join("b.xlsx"), "PK").unwrap();
    let build = |corpus: &Path| {
        let corpus = corpus.to_str().unwrap();
        waymark(&["index", "build", "--embedder", "mock", "--corpus", corpus, "--out", index.to_str().unwrap()])
    };
    let built = build(&docs);
    assert!(built.ok() && built.stdout.contains("1 passages"), "{}{}", built.stdout, built.stderr);
    assert!(built.stdout.contains("skipped 1 files: 1 .xlsx") && built.stdout.contains("as CSV"), "{}", built.stdout);
    let refused = build(&docs.join("b.xlsx"));
    assert!(!refused.ok() && refused.stderr.contains("b.xlsx: a spreadsheet"), "{}", refused.stderr);
}

#[test]
fn without_a_terminal_the_log_says_how_far_the_work_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("corpus.jsonl");
    let index = dir.path().join("corpus.index");
    fs::write(&file, CORPUS).unwrap();
    let file = file.to_str().unwrap();
    let index = index.to_str().unwrap();
    let build = ["index", "build", "--embedder", "mock", "--corpus", file, "--out", index];
    let remove = ["index", "remove", "--embedder", "mock", "--index", index, "--id", "seine"];
    for args in [&build[..], &remove] {
        let run = waymark(args);
        assert!(run.ok(), "{}", run.stderr);
        for phase in ["reading", "embedding", "linking", "extracting", "sealing", "publishing"] {
            assert!(run.stderr.contains(&format!("indexing phase={phase}")), "{phase}: {}", run.stderr);
        }
        assert!(run.stderr.lines().all(|line| line.contains(" waymark")), "of this program alone: {}", run.stderr);
    }
    let quiet = waymark(&[&["--log", "warn"][..], &build, &["--replace"]].concat());
    assert!(quiet.ok() && !quiet.stderr.contains("indexing"), "{}", quiet.stderr);
}
