//! Embeddings of the real MiniLM against what sentence-transformers gives (`scripts/parity/embedder.py`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pieces: usize,
    embedding: Vec<f32>,
}

fn fixture() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/embedder.json");
    serde_json::from_slice::<Fixture>(&std::fs::read(path).unwrap()).unwrap().cases
}

fn weights() -> Option<PathBuf> {
    std::env::var_os("WAYMARK_MINILM").map(PathBuf::from)
}

fn open() -> Option<Embedder> {
    let Some(dir) = weights() else {
        println!("skipped: no weights of all-MiniLM-L6-v2");
        return None;
    };
    Some(Embedder::open(&dir, Arc::new(Team::new(2))).unwrap())
}

#[test]
fn embeddings_agree_with_sentence_transformers() {
    let Some(embedder) = open() else { return };
    let cases = fixture();
    let texts: Vec<&str> = cases.iter().map(|case| &*case.text).collect();
    let embeddings = embedder.embed(&texts).unwrap();
    for (case, embedding) in cases.iter().zip(&embeddings) {
        assert_eq!(embedding.len(), embedder.dims());
        assert_eq!(embedder.count_tokens(&case.text), case.pieces, "pieces of {:?}", case.text);
        let cosine: f32 = embedding.iter().zip(&case.embedding).map(|(a, b)| a * b).sum();
        let apart = embedding.iter().zip(&case.embedding).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("cosine {cosine:.7}, greatest difference {apart:.1e}: {:.40}", case.text);
        assert!(cosine > 0.9999 && apart < 1e-5, "{:?}: cosine {cosine}, difference {apart}", case.text);
    }
}

#[test]
fn an_embedding_does_not_depend_on_its_company() {
    let Some(embedder) = open() else { return };
    let cases = fixture();
    let texts: Vec<&str> = cases.iter().map(|case| &*case.text).cycle().take(40).collect();
    let together = embedder.embed(&texts).unwrap();
    for (text, embedding) in texts.iter().zip(&together).take(cases.len()) {
        assert_eq!(&embedder.embed(&[text]).unwrap()[0], embedding, "{text:?}");
    }
    assert!(embedder.embed(&[]).unwrap().is_empty());
    std::thread::scope(|scope| {
        for text in &texts[..3] {
            scope.spawn(|| assert_eq!(embedder.embed(&[text]).unwrap().len(), 1));
        }
    });
}
