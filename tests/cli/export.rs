//! `waymark index export`: an exported index can be rebuilt with equal results.

use std::fs;

use serde_json::{Value, json};

use super::CORPUS;
use super::program::{homeless, waymark};

/// Document with its own triples and metadata.
const RHINE: &str = r#"{"id":"rhine","title":"Rhine","text":"The Rhine is a river that flows through Cologne.","page":7,"triples":[["Rhine","flows through","Cologne"]]}"#;

/// Returns the results of a question in several modes, without the snapshot number.
fn answers(index: &str) -> Vec<Value> {
    let search = |mode: &&str| {
        let run =
            waymark(&["search", "--embedder", "mock", "--index", index, "--mode", mode, "--json", "a river in Paris"]);
        assert!(run.ok(), "{}", run.stderr);
        let mut evidence: Value = serde_json::from_str(&run.stdout).unwrap();
        evidence["snapshot"] = Value::Null;
        evidence
    };
    ["passage", "graph", "kag"].iter().map(search).collect()
}

#[test]
fn an_index_of_what_was_exported_answers_as_the_one_that_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let corpus = place("corpus.jsonl");
    let more = place("more.jsonl");
    let stated = place("triples.jsonl");
    fs::write(&corpus, CORPUS).unwrap();
    fs::write(&more, RHINE).unwrap();
    fs::write(&stated, "{\"id\":\"louvre\",\"triples\":[[\"Louvre\",\"is in\",\"Paris\"]]}\n").unwrap();
    for (number, triples, again, kept) in
        [(1, "builtin", "builtin", Value::Null), (2, &*stated, "none", json!([["Louvre", "is in", "Paris"]]))]
    {
        let (index, out, new) =
            (place(&format!("{number}.index")), place(&format!("{number}.jsonl")), place(&format!("{number}.new")));
        let build =
            ["index", "build", "--embedder", "mock", "--corpus", &corpus, "--out", &index, "--triples", triples];
        let add = ["index", "add", "--embedder", "mock", "--index", &index, "--corpus", &more];
        let remove = ["index", "remove", "--embedder", "mock", "--index", &index, "--id", "thames"];
        for args in [&build[..], &add, &remove] {
            let run = waymark(args);
            assert!(run.ok(), "{}", run.stderr);
        }

        // No variable names a folder for weights, because none are needed.
        let exported = homeless(&["index", "export", &index, "--out", &out]);
        assert!(exported.ok() && exported.stdout.is_empty(), "{}", exported.stderr);
        assert!(exported.stderr.contains("3 documents, snapshot 3"), "{}", exported.stderr);
        let lines: Vec<Value> =
            fs::read_to_string(&out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap();
        assert_eq!((lines.len(), &of("louvre")["triples"]), (3, &kept));
        assert_eq!(of("rhine")["triples"], json!([["Rhine", "flows through", "Cologne"]]));
        assert_eq!(of("rhine")["metadata"], json!({"page": 7}));

        let told = format!("waymark index build --corpus {out} --out DIR --triples {again}");
        assert!(exported.stderr.contains(&told), "{}", exported.stderr);
        let build = ["index", "build", "--embedder", "mock", "--corpus", &out, "--out", &new, "--triples", again];
        let built = waymark(&build);
        assert!(built.ok(), "{}", built.stderr);
        assert_eq!(answers(&new), answers(&index), "{triples}");

        let all = waymark(&["index", "export", &index, "--all-triples"]);
        assert!(all.ok() && all.stderr.contains("--out DIR --triples none"), "{}", all.stderr);
        let lines: Vec<Value> = all.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line["triples"].is_array()), "{}", all.stdout);
    }
}

#[test]
fn a_file_is_replaced_by_a_whole_export_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (corpus, index, out) = (place("corpus.jsonl"), place("corpus.index"), place("out.jsonl"));
    fs::write(&corpus, CORPUS).unwrap();
    let built = waymark(&["index", "build", "--embedder", "mock", "--corpus", &corpus, "--out", &index]);
    assert!(built.ok(), "{}", built.stderr);
    let names = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };

    fs::write(&out, "what was there").unwrap();
    let export = ["index", "export", &index, "--out", &out];
    let exported = waymark(&export);
    assert!(exported.ok(), "{}", exported.stderr);
    let written = fs::read_to_string(&out).unwrap();
    assert_eq!(written, waymark(&export[..3]).stdout);
    assert_eq!(names(), ["corpus.index", "corpus.jsonl", "out.jsonl"]);

    let folder = waymark(&["index", "export", &index, "--out", dir.path().to_str().unwrap()]);
    assert!(!folder.ok() && folder.stderr.contains("not a regular file"), "{}", folder.stderr);

    for name in ["out.txt", "out.MD"] {
        let text = waymark(&["index", "export", &index, "--out", &place(name)]);
        assert!(!text.ok() && text.stderr.contains("use the extension .jsonl"), "{}", text.stderr);
    }

    fs::write(dir.path().join("corpus.index/snapshot-1/passages.bin"), "damaged").unwrap();
    let refused = waymark(&export);
    assert!(!refused.ok() && refused.stderr.contains("passages.bin"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&out).unwrap(), written);
    assert_eq!(names(), ["corpus.index", "corpus.jsonl", "out.jsonl"]);
}
