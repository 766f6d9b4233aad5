//! Export of an index, and search in an index built from the export.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use corpora::{HashEmbed, document, open, small_index, write};
use waymark_index::openie::{Builtin, Imported};
use waymark_index::{BuildOptions, Changes, CommitOptions, Contents, Document, Extract, IndexError, Triple, commit};

fn taken(dir: &Path, all_triples: bool) -> Vec<Document> {
    Contents::open(dir).unwrap().documents(all_triples).map(Result::unwrap).collect()
}

/// Three documents: one with triples and metadata, one with triples in the imported file, one with neither.
fn documents() -> Vec<Document> {
    let page = serde_json::json!({"page": 7, "of": {"book": null}});
    let seine = Document {
        triples: Some(vec![Triple::new("Seine", "flows through", "Paris")]),
        metadata: page.as_object().cloned(),
        ..document("seine", "Seine", "The Seine is a river that flows through Paris.")
    };
    let louvre = document("louvre", "Louvre", "The Louvre is a museum in Paris.");
    vec![seine, louvre, document("rhine", "Rhine", "The Rhine is a river that flows through Cologne.")]
}

#[test]
fn triples_that_nobody_would_find_again_are_taken_along() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("triples.jsonl");
    fs::write(&file, "{\"id\":\"louvre\",\"triples\":[[\"Louvre\",\"is in\",\"Paris\"]]}\n").unwrap();
    let imported: Arc<dyn Extract> = Arc::new(Imported::open(&file).unwrap());
    let told = |documents: Vec<Document>| documents.into_iter().map(|d| d.triples.map(|t| t.len())).collect::<Vec<_>>();
    let none: Option<Arc<dyn Extract>> = None;
    for (name, extract, kept) in [
        ("none", none, [Some(1), None, None]),
        ("builtin", Some(Arc::new(Builtin) as Arc<dyn Extract>), [Some(1), None, None]),
        ("import", Some(imported), [Some(1), Some(1), Some(0)]),
    ] {
        let dir = temp.path().join(name);
        write(&dir, documents(), &BuildOptions { extract, ..BuildOptions::default() }).unwrap();
        assert_eq!(told(taken(&dir, false)), kept, "{name}");
        let all = told(taken(&dir, true));
        let found = all[2].is_some_and(|triples| triples > 0);
        assert!(if name == "builtin" { found } else { all == kept }, "{name}: {all:?}");
    }
}

#[test]
fn documents_are_as_they_came_in_the_order_of_the_index() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), documents(), &BuildOptions::default()).unwrap();
    assert_eq!(taken(temp.path(), false), documents());
    let before = Contents::open(temp.path()).unwrap();
    let changes = Changes { delete: vec!["louvre".to_owned()], ..Changes::upsert([document("a", "", "Later.")]) };
    commit(temp.path(), &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap();
    let index = open(temp.path()).unwrap();
    assert_eq!(taken(temp.path(), false), index.documents(None, 9).unwrap().unwrap());
    assert_eq!(before.documents(false).count(), 3, "a snapshot that was opened stays as it was");
}

#[test]
fn an_index_can_be_left_whose_vectors_are_lost_but_not_one_whose_passages_are() {
    let (_temp, dir) = small_index(5);
    let whole = taken(&dir, false);
    for (name, readable) in [("vectors.bin", true), ("vectors.usearch", true), ("passages.bin", false)] {
        let file = dir.join("snapshot-1").join(name);
        let mut bytes = fs::read(&file).unwrap();
        bytes[0] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(open(&dir).is_err(), "{name}");
        match Contents::open(&dir) {
            Ok(contents) => {
                assert!(readable, "{name}");
                assert_eq!(contents.documents(false).map(Result::unwrap).collect::<Vec<_>>(), whole);
            }
            Err(error) => assert!(!readable && matches!(error, IndexError::Corrupt { .. }), "{name}: {error}"),
        }
    }
}
