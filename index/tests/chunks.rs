//! Chunked texts: chunks left over after a change, and texts longer than the embedder reads.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use corpora::{HashEmbed, document, numbered, open, small_index};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, CommitReport, Corpus, CorpusOptions, Embed, EmbedError, IndexError, build,
    commit,
};

fn options(chunk: Option<usize>) -> CorpusOptions {
    CorpusOptions { chunk, skip_bad: true, ..CorpusOptions::default() }
}

fn built(out: &Path, corpus: &Path, options: &CorpusOptions) {
    let corpus = Corpus::open(corpus, options).unwrap();
    build(corpus, &HashEmbed::default(), out, &BuildOptions::default(), &()).unwrap();
}

fn added(dir: &Path, corpus: &Path, options: &CorpusOptions) -> CommitReport {
    let changes = Changes::corpus(&mut Corpus::open(corpus, options).unwrap()).unwrap();
    commit(dir, &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap()
}

fn ids(dir: &Path) -> Vec<String> {
    let documents = open(dir).unwrap().documents(None, 100).unwrap().unwrap();
    documents.into_iter().map(|document| document.id).collect()
}

/// `count` sentences of one line each.
fn sentences(count: usize) -> String {
    (0..count).map(|number| format!("Sentence {number} tells of a city.\n")).collect()
}

#[test]
fn chunks_that_a_file_no_longer_has_are_gone() {
    let temp = tempfile::tempdir().unwrap();
    let corpus = temp.path().join("docs");
    let living = temp.path().join("living");
    let options = options(Some(60));
    fs::create_dir(&corpus).unwrap();
    let write = |name: &str, text: &[u8]| fs::write(corpus.join(name), text).unwrap();
    write("emptied.md", sentences(4).as_bytes());
    write("guide.md", sentences(10).as_bytes());
    write("other.txt", sentences(6).as_bytes());
    built(&living, &corpus, &options);
    let before = ids(&living);
    assert!(before.iter().filter(|id| id.starts_with("guide.md#")).count() > 4, "{before:?}");

    write("emptied.md", b"");
    write("guide.md", sentences(4).as_bytes());
    let report = added(&living, &corpus, &options);
    let fresh = temp.path().join("fresh");
    built(&fresh, &corpus, &options);
    assert_eq!(ids(&living), ids(&fresh));
    assert_eq!(report.removed as usize, before.len() - ids(&fresh).len());

    // The content of an unreadable file is unknown, and so is the reason why a file is missing.
    write("guide.md", b"\xff");
    fs::remove_file(corpus.join("other.txt")).unwrap();
    write("new.txt", b"A new text.");
    let report = added(&living, &corpus, &options);
    assert_eq!((report.added, report.removed), (1, 0));
    assert_eq!(ids(&living), [ids(&fresh), vec!["new.txt#1".to_owned()]].concat());
}

#[test]
fn a_record_is_there_whole_or_in_chunks() {
    let temp = tempfile::tempdir().unwrap();
    let corpus = temp.path().join("corpus.jsonl");
    let living = temp.path().join("living");
    let write = |count| {
        let lines = [("a", 1), ("guide", count), ("z", 1)]
            .map(|(id, count)| format!("{{\"id\":\"{id}\",\"text\":\"{}\"}}\n", sentences(count).replace('\n', " ")));
        fs::write(&corpus, lines.concat()).unwrap();
    };
    write(10);
    built(&living, &corpus, &options(None));
    assert_eq!(ids(&living), ["a", "guide", "z"]);

    // Split into many chunks, then into fewer, then not at all.
    for count in [10, 4, 1] {
        write(count);
        let removed = added(&living, &corpus, &options(Some(60))).removed;
        let fresh = temp.path().join(format!("fresh-{count}"));
        built(&fresh, &corpus, &options(Some(60)));
        let mut left = ids(&living);
        let mut right = ids(&fresh);
        left.sort();
        right.sort();
        assert_eq!(left, right);
        assert!(removed > 0 && right.contains(&"guide".to_owned()) == (count == 1), "{right:?}");
    }
}

#[test]
fn what_is_put_in_is_never_removed() {
    let (_temp, dir) = small_index(3);
    let given = ["p0#1", "p0#2", "p0#3"].map(|id| document(id, "", &format!("the text of {id}")));
    commit(&dir, &HashEmbed::default(), Changes::upsert(given.clone()), &CommitOptions::default(), &()).unwrap();
    let [_, second, _] = given;
    let changes = Changes { chunked: vec![("p0".to_owned(), 0)], ..Changes::upsert([second]) };
    let report = commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap();
    assert_eq!((report.unchanged, report.removed), (1, 2));
    assert_eq!(ids(&dir), ["p0", "p1", "p2", "p0#2"]);
}

#[test]
fn chunks_behind_a_gap_are_gone_and_what_is_no_chunk_stays() {
    let (_temp, dir) = small_index(2);
    let given = ["p0#1", "p0#2", "p0#4", "p0#04", "p0#+9", "p0#x", "p0#4#9", "p1#7"];
    let given = given.map(|id| document(id, "", &format!("the text of {id}")));
    let done = |changes| commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap();
    done(Changes::upsert(given.clone()));
    let [first, ..] = given;
    let report = done(Changes { chunked: vec![("p0".to_owned(), 1)], ..Changes::upsert([first]) });
    assert_eq!((report.unchanged, report.removed), (1, 3), "with the whole");
    assert_eq!(ids(&dir), ["p1", "p0#1", "p0#04", "p0#+9", "p0#x", "p0#4#9", "p1#7"]);
}

#[test]
fn a_mirror_holds_what_is_put_in_and_nothing_else() {
    let (_temp, dir) = small_index(5);
    let mirror = |count| Changes { mirror: true, ..Changes::upsert(numbered(count, "first")) };
    let done = |changes| commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &());
    let report = done(mirror(2)).unwrap();
    assert_eq!((report.unchanged, report.removed), (2, 3));
    assert_eq!(ids(&dir), ["p0", "p1"]);
    assert!(matches!(done(mirror(0)), Err(IndexError::Emptied { .. })));
}

/// Embedder with a given rule for texts that it does not read to their end.
struct Reader(HashEmbed, fn(&str) -> bool);

impl Embed for Reader {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn dims(&self) -> usize {
        self.0.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.0.embed(texts)
    }

    fn cuts(&self, text: &str) -> bool {
        (self.1)(text)
    }
}

/// Embedder that reads five words of a text.
fn short() -> Reader {
    Reader(HashEmbed::default(), |text| text.split_whitespace().count() > 5)
}

/// Embedder that cannot tell how much of a text it reads.
fn broken() -> Reader {
    Reader(HashEmbed::default(), |_| panic!("its tokenizer is broken"))
}

#[test]
fn a_commit_that_breaks_off_where_it_counts_them_publishes_nothing() {
    let (_temp, dir) = small_index(2);
    let embed = broken();
    let changes = Changes::upsert([document("x", "", "a text")]);
    let broken = || commit(&dir, &embed, changes, &CommitOptions::default(), &());
    assert!(catch_unwind(AssertUnwindSafe(broken)).is_err());
    let index = open(&dir).unwrap();
    assert_eq!((index.manifest().snapshot, index.manifest().passages), (1, 2));
}

#[test]
fn passages_that_are_not_read_to_their_end_are_counted() {
    let temp = tempfile::tempdir().unwrap();
    let embed = short();
    let short = document("short", "Title", "one two three four");
    let long = |id: &str| document(id, "Title", "one two three four five");
    let corpus = || Corpus::from_documents("test", vec![short.clone(), long("a"), long("b")]);
    // Also if every vector is in the journal already.
    for options in [BuildOptions::default(), corpora::replacing()] {
        assert_eq!(build(corpus(), &embed, temp.path(), &options, &()).unwrap().cut, 2);
    }

    let done = |changes| commit(temp.path(), &embed, changes, &CommitOptions::default(), &()).unwrap();
    let replaced = document("short", "Title", "one two three four again");
    let report = done(Changes::upsert([replaced, long("c"), long("a"), document("d", "", "one two")]));
    assert_eq!((report.added, report.replaced, report.unchanged, report.cut), (2, 1, 1, 2), "of those that came alone");
    assert_eq!(done(Changes::delete(["a".to_owned()])).cut, 0);
}
