#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;

use super::*;

fn write(documents: &[Document]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("passages.bin");
    let mut writer = StoreWriter::create(&path).unwrap();
    documents.iter().for_each(|document| writer.add(document).unwrap());
    writer.finish().unwrap();
    (dir, path)
}

fn document(id: String, title: String, text: String, note: Option<String>) -> Document {
    let metadata = note.map(|note| [("note".to_owned(), note.into())].into_iter().collect());
    Document { id, title, text, triples: None, metadata }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_stored_comes_back(rows in prop::collection::btree_map(".{0,6}", (".*", ".*", prop::option::of(".*")), 0..20), absent in ".{0,6}") {
        // Not in the order of the IDs.
        let documents: Vec<_> = rows.clone().into_iter().rev().map(|(id, (a, b, c))| document(id, a, b, c)).collect();
        let (_dir, path) = write(&documents);
        let store = PassageStore::open(&path).unwrap();
        prop_assert_eq!(store.len(), documents.len());
        let mut found = BTreeMap::new();
        for (number, document) in (0..).zip(&documents) {
            prop_assert_eq!(&store.document(number).unwrap(), document);
            prop_assert_eq!(store.content(number).unwrap(), document.content());
            prop_assert_eq!(store.passage(number).unwrap().text, document.text.clone());
            let texts = document.id.len() + document.title.len() + document.text.len();
            prop_assert!(store.bytes(number).unwrap() >= texts as u64);
            found.insert(document.id.clone(), store.find(&document.id).unwrap());
            prop_assert_eq!(found[&document.id], Some(number));
        }
        prop_assert_eq!(store.find(&absent).unwrap().is_some(), rows.contains_key(&absent));
        for prefix in ["", absent.as_str(), absent.get(..1).unwrap_or("a")] {
            let expected: Vec<u32> = rows.keys().filter(|id| id.starts_with(prefix)).filter_map(|id| found[id]).collect();
            prop_assert_eq!(store.with_prefix(prefix).unwrap(), expected);
        }
        prop_assert!(store.document(u32::try_from(documents.len()).unwrap()).is_err());
    }
}

#[test]
fn no_damage_makes_it_panic() {
    let documents: Vec<_> = (0..5)
        .map(|i| document(format!("id{i}"), format!("title {i}"), "text".repeat(i + 1), Some("n".into())))
        .collect();
    let (_dir, path) = write(&documents);
    let whole = fs::read(&path).unwrap();
    let read_all = || -> Result<(), IndexError> {
        let store = PassageStore::open(&path)?;
        (0..6).for_each(|number| drop(store.document(number)));
        documents.iter().for_each(|document| drop(store.find(&document.id)));
        Ok(())
    };
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = read_all().unwrap_err().to_string();
        assert!(error.contains("passages.bin"), "{error}");
    }
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes).unwrap();
            let _ = read_all();
        }
    }
}
