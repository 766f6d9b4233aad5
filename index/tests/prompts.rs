//! Texts are embedded behind the prompts that an index was built with.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::sync::{Arc, Mutex};

use corpora::{HashEmbed, document};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Corpus, Document, Embed, EmbedError, Index, LiveIndex, Manifest, Mode,
    OpenOptions, Prompts, Query, Ranking, Triple, build,
};

/// Embedder that notes the texts, and recommends prompts.
#[derive(Debug, Default)]
struct Prompted {
    texts: Mutex<Vec<String>>,
    prompts: Prompts,
}

impl Prompted {
    fn new(query: &str, document: &str) -> Prompted {
        let prompts = Prompts { query: query.to_owned(), document: document.to_owned() };
        Prompted { prompts, ..Prompted::default() }
    }

    /// Takes the texts noted so far.
    fn noted(&self) -> Vec<String> {
        std::mem::take(&mut self.texts.lock().unwrap())
    }
}

impl Embed for Prompted {
    fn id(&self) -> &str {
        "prompted"
    }

    fn dims(&self) -> usize {
        HashEmbed::default().dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.texts.lock().unwrap().extend(texts.iter().map(|&text| text.to_owned()));
        HashEmbed::default().embed(texts)
    }

    fn prompts(&self) -> Prompts {
        self.prompts.clone()
    }
}

fn some(id: &str) -> Document {
    let triples = vec![Triple::new(id, "lies on", "the river")];
    Document { triples: Some(triples), ..document(id, id, &format!("The city {id} lies on the river.")) }
}

fn corpus() -> Corpus {
    Corpus::from_documents("test", vec![some("one"), some("two")])
}

#[test]
fn an_index_keeps_the_prompts_that_it_was_built_with() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let e5 = Prompted::new("query: ", "passage: ");
    build(corpus(), &e5, &dir, &BuildOptions::default(), &()).unwrap();
    let noted = e5.noted();
    // Passages, phrases and facts.
    assert!(noted.len() >= 7 && noted.iter().all(|text| text.starts_with("passage: ")), "{noted:?}");
    assert_eq!(Manifest::read(&dir).unwrap().embedder.prompts, e5.prompts);

    // The same model without its file of prompts.
    let bare = Arc::new(Prompted::default());
    let live = LiveIndex::open(&dir, Arc::clone(&bare) as _, OpenOptions::default()).unwrap();
    for append_from in [0, 1000] {
        let id = format!("new{append_from}");
        let options = CommitOptions { append_from, ..CommitOptions::default() };
        live.commit(Changes::upsert([some(&id)]), &options, &()).unwrap();
        let noted = bare.noted();
        assert!(!noted.is_empty() && noted.iter().all(|text| text.starts_with("passage: ")), "{noted:?}");
    }
    for mode in [Mode::Passage, Mode::Graph, Mode::Kag] {
        live.current().search(&Query::new("which city", mode, 1).ranking(Ranking::Dense)).unwrap();
        let noted = bare.noted();
        assert!(!noted.is_empty() && noted.iter().all(|text| text.starts_with("query: ")), "{mode}: {noted:?}");
    }
    assert_eq!(live.current().manifest().embedder.prompts, e5.prompts);
}

#[test]
fn what_was_prepared_behind_another_prompt_is_embedded_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let embed = Arc::new(Prompted::default());
    build(corpus(), embed.as_ref(), &dir, &BuildOptions::default(), &()).unwrap();
    let live = LiveIndex::open(&dir, Arc::clone(&embed) as _, OpenOptions::default()).unwrap();
    let prepare = |id: &str| {
        let changes = Changes::upsert([some(id)]);
        let prepared = live.prepare(&changes, 8, &|| true).unwrap().unwrap();
        assert!(!prepared.is_empty());
        (changes, Arc::new(prepared))
    };
    let prepared = [(0, prepare("three")), (1000, prepare("four"))];
    let prompts = Some(Prompts { document: "passage: ".to_owned(), ..Prompts::default() });
    let again = BuildOptions { replace: true, prompts, ..BuildOptions::default() };
    build(corpus(), embed.as_ref(), &dir, &again, &()).unwrap();
    embed.noted();
    for (append_from, (changes, prepared)) in prepared {
        let options = CommitOptions { append_from, prepared: vec![prepared], ..CommitOptions::default() };
        live.commit(changes, &options, &()).unwrap();
        // Passage, phrase and fact.
        let noted = embed.noted();
        assert!(noted.len() >= 3 && noted.iter().all(|text| text.starts_with("passage: ")), "{noted:?}");
    }
}

#[test]
fn other_prompts_embed_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let embed = Arc::new(Prompted::new("query: ", "passage: "));
    let prompts = Some(Prompts::default());
    build(corpus(), embed.as_ref(), &dir, &BuildOptions { prompts: prompts.clone(), ..BuildOptions::default() }, &())
        .unwrap();
    let noted = embed.noted();
    assert!(!noted.is_empty() && noted.iter().all(|text| !text.starts_with("passage: ")), "{noted:?}");
    let index = Index::open(&dir, Arc::clone(&embed) as _).unwrap();
    index.search(&Query::new("which city", Mode::Passage, 1)).unwrap();
    assert_eq!(embed.noted(), ["which city"]);

    let again = BuildOptions { replace: true, prompts, ..BuildOptions::default() };
    build(corpus(), embed.as_ref(), &dir, &again, &()).unwrap();
    assert!(embed.noted().is_empty(), "the same prompts give the same vectors");
    build(corpus(), embed.as_ref(), &dir, &BuildOptions { prompts: None, ..again }, &()).unwrap();
    assert_eq!(embed.noted().len(), noted.len());
}
