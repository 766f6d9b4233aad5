//! Folder of an index: refusals, detection of damage, survival of failures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;

use corpora::{Failing, HashEmbed, document, files, numbered, open, replacing, small_index, write};
use waymark_index::{
    BuildOptions, BuildPhase, BuildProgress, Changes, CommitOptions, Corpus, CorpusOptions, Document, Index,
    IndexError, Mode, OpenOptions, Query, Triple, build, commit,
};

/// Folder with an index that has a graph.
fn whole_index(count: usize) -> (tempfile::TempDir, PathBuf) {
    let stated = |i: usize| vec![Triple::new(format!("Title{i}"), "tells of", format!("topic{}", i % 3))];
    let documents = numbered(count, "first").into_iter().enumerate();
    let documents = documents.map(|(i, document)| Document { triples: Some(stated(i)), ..document }).collect();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents, &BuildOptions::default()).unwrap();
    (temp, dir)
}

fn edition(index: &Index) -> String {
    let hits = index.search(&Query::new("number1 edition", Mode::Passage, 1)).unwrap().hits;
    hits[0].passage.text.clone()
}

#[test]
fn an_index_is_replaced_only_when_that_is_asked_for() {
    let (_temp, dir) = small_index(5);
    let before = files(&dir);
    let error = write(&dir, numbered(6, "second"), &BuildOptions::default()).unwrap_err();
    assert!(matches!(error, IndexError::Exists { .. }) && error.to_string().contains("--replace"), "{error}");
    assert_eq!(files(&dir), before);

    let old = open(&dir).unwrap();
    let report = write(&dir, numbered(6, "second"), &replacing()).unwrap();
    assert_eq!((report.manifest.snapshot, report.manifest.passages), (2, 6));
    let new = open(&dir).unwrap();
    assert!(edition(&new).contains("second") && new.manifest().snapshot == 2);
    assert!(edition(&old).contains("first"), "a reader keeps the snapshot it opened");
    assert!(files(&dir).iter().all(|file| !file.to_string_lossy().contains("snapshot-1")));
}

#[test]
fn a_folder_with_something_else_in_it_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("thesis.txt"), "years of work").unwrap();
    fs::write(temp.path().join("manifest.json"), "{\"name\": \"something else\"}").unwrap();
    let error = write(temp.path(), numbered(3, "first"), &replacing()).unwrap_err();
    assert!(matches!(error, IndexError::Foreign { .. }), "{error}");
    assert_eq!(files(temp.path()).len(), 2);
    let file = temp.path().join("thesis.txt");
    assert!(matches!(write(&file, numbered(3, "first"), &replacing()), Err(IndexError::Io { .. })));
}

#[test]
fn a_second_writer_is_refused() {
    struct Meanwhile<'a>(&'a Path, Mutex<Option<IndexError>>);
    impl BuildProgress for Meanwhile<'_> {
        fn update(&self, phase: BuildPhase, _: u64, _: Option<u64>) {
            let mut error = self.1.lock().unwrap();
            if phase == BuildPhase::Linking && error.is_none() {
                *error = write(self.0, numbered(3, "second"), &replacing()).err();
            }
        }
    }
    let temp = tempfile::tempdir().unwrap();
    let mut meanwhile = Meanwhile(temp.path(), Mutex::new(None));
    let corpus = Corpus::from_documents("test", numbered(3, "first"));
    build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &meanwhile).unwrap();
    assert!(matches!(meanwhile.1.get_mut().unwrap().take(), Some(IndexError::Locked { .. })));
    assert!(edition(&open(temp.path()).unwrap()).contains("first"));

    // A second writer is also refused while a commit is running.
    let changes = Changes::upsert([document("p1", "Title1", "number1 of the edition that was committed")]);
    commit(temp.path(), &HashEmbed::default(), changes, &CommitOptions::default(), &meanwhile).unwrap();
    assert!(matches!(meanwhile.1.get_mut().unwrap().take(), Some(IndexError::Locked { .. })));
    assert!(edition(&open(temp.path()).unwrap()).contains("committed"));
}

#[test]
fn a_build_that_fails_changes_nothing() {
    let (temp, dir) = small_index(5);
    let before = files(&dir);
    let corpus = Corpus::from_documents("test", numbered(5, "second"));
    let error = build(corpus, &Failing("out of memory"), &dir, &replacing(), &()).unwrap_err().to_string();
    assert!(error.contains("out of memory") && error.contains("Title0"), "{error}");

    let path = temp.path().join("bad.jsonl");
    fs::write(&path, "{\"id\":\"a\",\"text\":\"x\"}\n{\"id\":\"a\",\"text\":\"x\"}\n").unwrap();
    let corpus = Corpus::open(&path, &CorpusOptions::default()).unwrap();
    assert!(matches!(
        build(corpus, &HashEmbed::default(), &dir, &replacing(), &()),
        Err(IndexError::DuplicateId { .. })
    ));
    assert!(matches!(write(&dir, vec![], &replacing()), Err(IndexError::EmptyCorpus { .. })));
    assert_eq!(files(&dir), before);
    assert!(edition(&open(&dir).unwrap()).contains("first"));
}

#[test]
fn skipped_records_are_reported() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("corpus.jsonl");
    fs::write(&path, "{\"id\":\"a\",\"text\":\"number1\"}\nbroken\n").unwrap();
    let corpus = Corpus::open(&path, &CorpusOptions { skip_bad: true, ..CorpusOptions::default() }).unwrap();
    let out = temp.path().join("index");
    let report = build(corpus, &HashEmbed::default(), &out, &BuildOptions::default(), &()).unwrap();
    assert_eq!((report.skipped, report.manifest.passages, report.manifest.corpus.as_str()), (1, 1, "corpus"));
}

#[test]
fn a_flipped_byte_in_any_file_is_noticed() {
    let (_temp, dir) = whole_index(5);
    let all = files(&dir);
    assert!(all.len() >= 18, "{all:?}");
    for path in all.iter().filter(|path| !path.ends_with(".waymark.lock")) {
        let whole = fs::read(path).unwrap();
        let places = [0, whole.len() / 3, whole.len() / 2, whole.len() - 1];
        // Nothing outside the manifest stores its checksum, so every byte is tested.
        let everywhere: Vec<_> =
            if path.ends_with("manifest.json") { (0..whole.len()).collect() } else { places.to_vec() };
        for place in everywhere {
            // 0x20 changes the case of a letter, after which JSON is still valid.
            for flip in [0x01, 0x20] {
                let mut bytes = whole.clone();
                bytes[place] ^= flip;
                fs::write(path, bytes).unwrap();
                let error = open(&dir).expect_err("the change is noticed");
                let named = error.to_string().contains(path.file_name().unwrap().to_str().unwrap());
                assert!(named || matches!(error, IndexError::Version { .. }), "{}: {error}", path.display());
            }
        }
        fs::write(path, whole).unwrap();
    }
    open(&dir).unwrap();
}

#[test]
fn truncated_and_missing_files_are_named() {
    let (_temp, dir) = whole_index(5);
    for path in files(&dir).iter().filter(|path| !path.ends_with(".waymark.lock")) {
        let whole = fs::read(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        for length in [0, whole.len() / 2, whole.len() - 1] {
            fs::write(path, &whole[..length]).unwrap();
            for verify in [true, false] {
                let options = OpenOptions { verify, ..OpenOptions::default() };
                let error = Index::open_with(&dir, Arc::new(HashEmbed::default()), &options).unwrap_err().to_string();
                assert!(error.contains(name), "{name}: {error}");
            }
        }
        fs::remove_file(path).unwrap();
        let error = open(&dir).unwrap_err();
        assert!(error.to_string().contains(name), "{name}: {error}");
        fs::write(path, whole).unwrap();
    }
    open(&dir).unwrap();
}

#[test]
fn another_format_another_embedder_or_no_index_is_refused_with_what_to_do() {
    let (temp, dir) = small_index(5);
    let error = open(&temp.path().join("absent")).unwrap_err();
    assert!(
        matches!(error, IndexError::NoIndex { .. }) && error.to_string().contains("waymark index build"),
        "{error}"
    );

    for (id, dims) in [("other", 64), ("hash-64", 32)] {
        let error = Index::open(&dir, Arc::new(HashEmbed { id, dims })).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, IndexError::Embedder { .. }) && text.contains(id) && text.contains("build it again"));
        assert!(text.contains("waymark index export"), "{text}");
    }
    // The embedder is checked before the files are read.
    let store = dir.join("snapshot-1/passages.bin");
    let whole = fs::read(&store).unwrap();
    fs::write(&store, "damaged").unwrap();
    let other = Index::open(&dir, Arc::new(HashEmbed { id: "other", dims: 64 }));
    assert!(matches!(other, Err(IndexError::Embedder { .. })), "{other:?}");
    fs::write(&store, whole).unwrap();

    let path = dir.join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    let current = format!("\"format\": {}", waymark_index::FORMAT);
    // Programs of format 1 do not have the command.
    for (format, exported) in [(1, false), (99, true)] {
        fs::write(&path, manifest.replace(&current, &format!("\"format\": {format}"))).unwrap();
        let error = open(&dir).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, IndexError::Version { found, .. } if found == format) && text.contains("again"),
            "{text}"
        );
        assert_eq!(text.contains("waymark index export"), exported, "{text}");
    }

    write(&dir, numbered(5, "second"), &replacing()).unwrap();
    let index = open(&dir).unwrap();
    assert!(edition(&index).contains("second"));
    assert_eq!(index.manifest().snapshot, 2, "no snapshot number is used twice, even over an unreadable manifest");
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_searched_and_not_written() {
    use std::os::unix::fs::PermissionsExt;
    let (_temp, dir) = small_index(5);
    let set = |mode| {
        for entry in walkdir::WalkDir::new(&dir).contents_first(mode == 0o555) {
            let entry = entry.unwrap();
            let mode = if entry.file_type().is_dir() { mode } else { mode & 0o666 };
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o555);
    let index = open(&dir).unwrap();
    assert!(edition(&index).contains("first"));
    // The superuser can write anywhere; for everyone else the error must name the folder.
    if fs::write(dir.join("probe"), "").is_err() {
        let error = write(&dir, numbered(5, "second"), &replacing()).unwrap_err();
        assert!(matches!(error, IndexError::Io { .. }), "{error}");
        let changes = Changes::delete(["p1".to_owned()]);
        let error = commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap_err();
        assert!(matches!(error, IndexError::Io { .. }), "{error}");
    } else {
        eprintln!("skipped: this user can write into a read-only folder");
    }
    set(0o755);
}

#[test]
fn progress_goes_through_all_phases_to_the_end() {
    #[derive(Default)]
    struct Seen(Mutex<Vec<(BuildPhase, u64, Option<u64>)>>);
    impl BuildProgress for Seen {
        fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
            self.0.lock().unwrap().push((phase, done, total));
        }
    }
    let temp = tempfile::tempdir().unwrap();
    let seen = Seen::default();
    let corpus = Corpus::from_documents("test", numbered(70, "first"));
    build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &seen).unwrap();
    let seen = seen.0.into_inner().unwrap();
    for phase in
        [BuildPhase::Reading, BuildPhase::Embedding, BuildPhase::Linking, BuildPhase::Sealing, BuildPhase::Publishing]
    {
        let most = seen.iter().filter(|update| update.0 == phase).max_by_key(|update| update.1).unwrap();
        let last = seen.iter().rfind(|update| update.0 == phase).unwrap();
        assert!(most.2 == Some(most.1) || last.2 == Some(last.1), "{phase}: {most:?}");
    }
}

#[test]
fn the_same_corpus_gives_the_same_answers_every_time() {
    let options = BuildOptions { threads: 1, ..BuildOptions::default() };
    let answers: Vec<_> = (0..2)
        .map(|_| {
            let temp = tempfile::tempdir().unwrap();
            let mut documents = numbered(200, "first");
            // Two passages of equal rank, whose order must not change either.
            documents.push(document("twin", "Title3", &documents[3].text.clone()));
            write(temp.path(), documents, &options).unwrap();
            let open_options = OpenOptions { exact_below: 0, ..OpenOptions::default() };
            let index = Index::open_with(temp.path(), Arc::new(HashEmbed::default()), &open_options).unwrap();
            let search = |i| index.search(&Query::new(format!("number{i} topic{}", i % 5), Mode::Passage, 5)).unwrap();
            (0..20).map(search).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(answers[0], answers[1]);
}
