//! A build or commit that is killed at any point leaves the old index or the new one, and the vectors embedded so far.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corpora::{HashEmbed, files, numbered, open, replacing, write};
use waymark_index::{
    BuildOptions, BuildPhase, BuildProgress, Changes, CommitOptions, Corpus, Document, Embed, EmbedError, LiveIndex,
    OpenOptions, Query, Triple, build, commit,
};

const DIR: &str = "WAYMARK_TEST_CRASH_DIR";
const TASK: &str = "WAYMARK_TEST_CRASH_TASK";
const POINT: &str = "WAYMARK_TEST_CRASH_POINT";
const NOTES: &str = "WAYMARK_TEST_CRASH_NOTES";

/// Exit code of [`child`] if its task fails by itself with an error that names the place.
const NO_ROOM: i32 = 77;

/// Aborts the process at the n-th progress report, as `kill -9` would: nothing is flushed or dropped.
struct Dying(AtomicI64);

impl BuildProgress for Dying {
    fn update(&self, _: BuildPhase, _: u64, _: Option<u64>) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            let kill = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            panic!("still alive after {kill:?}");
        }
    }
}

/// Embedder that records every text in a file, if one is given.
struct Noting(Option<Mutex<File>>);

impl Embed for Noting {
    fn id(&self) -> &str {
        "hash-64"
    }

    fn dims(&self) -> usize {
        64
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        if let Some(notes) = &self.0 {
            let lines: String = texts.iter().map(|text| format!("{text:?}\n")).collect();
            notes.lock().unwrap().write_all(lines.as_bytes())?;
        }
        HashEmbed::default().embed(texts)
    }
}

/// Passages of an edition with their triples.
fn edition(count: usize, edition: &str) -> Vec<Document> {
    let stated = |(i, document): (usize, Document)| {
        let belongs = Triple::new(format!("Title{i}"), "belongs to", format!("{edition} edition"));
        let tells = Triple::new(format!("Title{i}"), "tells of", format!("topic{}", i % 5));
        Document { triples: Some(vec![belongs, tells]), ..document }
    };
    numbered(count, edition).into_iter().enumerate().map(stated).collect()
}

/// Process to be killed by the other tests; does nothing unless one of them starts it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point: i64 = std::env::var(POINT).unwrap().parse().unwrap();
    let notes = std::env::var(NOTES).ok().map(|path| File::options().append(true).create(true).open(path).unwrap());
    let embed = Noting(notes.map(Mutex::new));
    let dying = Dying(point.into());
    let dir = Path::new(&dir);
    let done = if std::env::var(TASK).unwrap() == "build" {
        let corpus = Corpus::from_documents("test", edition(22, "second"));
        build(corpus, &embed, dir, &BuildOptions { batch: 4, ..replacing() }, &dying).map(drop)
    } else if std::env::var(TASK).unwrap() == "merge" {
        let live = LiveIndex::open(dir, Arc::new(HashEmbed::default()), OpenOptions::default());
        live.and_then(|live| live.merge(&CommitOptions::default(), None)).map(drop)
    } else {
        let changes = Changes { delete: vec!["p0".to_owned()], ..Changes::upsert(edition(24, "second").split_off(1)) };
        let append_from = if std::env::var(TASK).unwrap() == "append" { 0 } else { 2048 };
        commit(dir, &embed, changes, &CommitOptions { batch: 4, append_from, ..CommitOptions::default() }, &dying)
            .map(drop)
    };
    if let Err(error) = done {
        assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");
        // A code of its own, because a panic ends the test harness with another one.
        std::process::exit(NO_ROOM);
    }
}

fn command(dir: &Path, task: &str, point: i64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child"]).env(DIR, dir).env(TASK, task).env(POINT, point.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(dir: &Path, task: &str, point: i64) -> Child {
    command(dir, task, point).spawn().unwrap()
}

/// Opens, verifies and searches the index in every mode. Returns its edition, which all of its content must have.
fn check(dir: &Path) -> &'static str {
    let index = open(dir).unwrap();
    let (edition, first, count) = match index.manifest().passages {
        20 => ("first", 0, 20),
        22 => ("second", 0, 22),
        // The commit adds passages up to p23 and removes p0.
        23 => ("second", 1, 24),
        other => panic!("no edition has {other} passages"),
    };
    let documents = index.documents(None, 100).unwrap().unwrap();
    assert_eq!(documents, self::edition(count, edition).split_off(first));
    for &mode in index.modes() {
        let hits = index.search(&Query::new("Title3 tells of number3", mode, 3)).unwrap().hits;
        assert!(hits.iter().all(|hit| hit.passage.text.contains(edition)), "{mode}: {hits:?}");
        assert!(hits.iter().any(|hit| hit.passage.id == "p3"), "{mode}: {hits:?}");
    }
    edition
}

/// Folder with an index of the first edition.
fn first() -> (tempfile::TempDir, std::path::PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, edition(20, "first"), &BuildOptions::default()).unwrap();
    (temp, dir)
}

/// Deterministic pseudorandom numbers.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Counts the editions found after `rounds` kills of `task`, alternating between kills at a random time and at a random
/// step.
fn killed(task: &str, rounds: u64) -> BTreeMap<&'static str, u64> {
    let (_temp, dir) = first();
    let started = Instant::now();
    // A point below 0 is never reached: the task runs to its end.
    assert!(start(&dir, task, -1).wait().unwrap().success());
    let whole = started.elapsed();
    assert_eq!(check(&dir), "second");
    // More steps than any task has; lowered below to those that were taken.
    let mut seen = BTreeMap::new();
    let mut state = 0x5eed;
    let mut steps = 140;
    for round in 0..rounds {
        if check(&dir) == "second" {
            write(&dir, edition(20, "first"), &replacing()).unwrap();
        }
        let by_step = round % 2 == 0;
        let point = if by_step { (random(&mut state) % steps) as i64 } else { -1 };
        let mut child = start(&dir, task, point);
        if !by_step {
            std::thread::sleep(whole.mul_f64((random(&mut state) % 1000) as f64 / 1000.0));
            child.kill().unwrap();
        }
        if child.wait().unwrap().success() && by_step {
            // The task has fewer steps.
            steps = point as u64 + 1;
        }
        *seen.entry(check(&dir)).or_insert(0) += 1;
    }
    write(&dir, edition(20, "first"), &replacing()).unwrap();
    let left = |file: &std::path::PathBuf| file.to_string_lossy().contains(".part") || file.ends_with(".embeddings");
    assert!(!files(&dir).iter().any(left), "the next build removes what killed ones left");
    seen
}

#[test]
fn a_build_killed_at_any_point_leaves_the_old_index_or_the_new_one() {
    let seen = killed("build", 100);
    assert!(seen["first"] >= 10 && seen["second"] >= 3, "{seen:?}");
}

#[test]
fn a_commit_killed_at_any_point_leaves_the_old_index_or_the_new_one() {
    let seen = killed("commit", 100);
    assert!(seen["first"] >= 10 && seen["second"] >= 3, "{seen:?}");
}

#[test]
fn an_appending_commit_killed_at_any_point_leaves_the_old_index_or_the_new_one() {
    let seen = killed("append", 100);
    assert!(seen["first"] >= 10 && seen["second"] >= 3, "{seen:?}");
}

#[test]
fn a_merge_killed_at_any_time_changes_nothing_or_all() {
    let (_temp, dir) = first();
    assert!(start(&dir, "append", -1).wait().unwrap().success());
    let copy = |from: &Path, to: &Path| {
        for file in files(from) {
            let target = to.join(file.strip_prefix(from).unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(file, target).unwrap();
        }
    };
    let mut state = 0xc0de;
    let mut whole = Duration::ZERO;
    let mut merged = 0;
    for round in 0..40 {
        let temp = tempfile::tempdir().unwrap();
        let to_merge = temp.path().join("index");
        copy(&dir, &to_merge);
        let started = Instant::now();
        let mut child = start(&to_merge, "merge", -1);
        if round == 0 {
            assert!(child.wait().unwrap().success());
            whole = started.elapsed();
        } else {
            // Up to twice the time of the last whole merge, so that about half of the kills come after its end.
            std::thread::sleep(whole.mul_f64((random(&mut state) % 1000) as f64 / 500.0));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(check(&to_merge), "second");
        let is_merged = open(&to_merge).unwrap().manifest().delta.is_none();
        assert!(is_merged || round > 0, "a merge that is not killed is whole");
        merged += u64::from(is_merged && round > 0);
        // The next merge removes what a killed one left, and a commit goes on from either state.
        let started = Instant::now();
        assert!(start(&to_merge, "merge", -1).wait().unwrap().success());
        if !is_merged {
            whole = started.elapsed();
        }
        assert!(!files(&to_merge).iter().any(|file| file.to_string_lossy().contains(".part")));
        assert_eq!(check(&to_merge), "second");
    }
    // Of the 39 killed ones.
    assert!((1..39).contains(&merged), "{merged}");
}

#[test]
fn what_a_killed_build_has_embedded_is_not_embedded_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let notes = temp.path().join("notes");
    let mut kills = 0;
    // Each build gets a few steps further than the one before, thanks to the vectors that one has embedded.
    for point in (24..).step_by(2) {
        let status = command(&dir, "build", point).env(NOTES, &notes).status().unwrap();
        if status.success() {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 10, "{kills}");
    let notes = fs::read_to_string(notes).unwrap();
    let texts: Vec<&str> = notes.lines().collect();
    let mut different = texts.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(texts.len(), different.len(), "some were embedded twice");
    // Passages, phrases and facts.
    let graph = open(&dir).unwrap().manifest().graph.clone().unwrap();
    assert_eq!(texts.len() as u64, 22 + graph.phrases + graph.facts);
    assert!(!dir.join(".embeddings").exists());
}

#[test]
fn a_file_that_cannot_be_written_whole_is_an_error_and_no_index() {
    for task in ["build", "commit", "append"] {
        let (_temp, dir) = first();
        // The journal is kept for the next build, and is not part of the index.
        let files =
            |dir: &Path| files(dir).into_iter().filter(|file| !file.ends_with(".embeddings")).collect::<Vec<_>>();
        let before = files(&dir);
        let mut failed = 0;
        // A limit on file sizes simulates a full disk: the system refuses to write beyond it.
        for blocks in [0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128] {
            let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" --exact child");
            let mut command = Command::new("sh");
            let program = std::env::current_exe().unwrap();
            command.args(["-c", &limited]).arg(program).env(DIR, &dir).env(TASK, task).env(POINT, "-1");
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            if status.success() {
                break;
            }
            assert_eq!(status.code(), Some(NO_ROOM), "the {task} ends with an error, at {blocks} blocks");
            assert_eq!((check(&dir), files(&dir)), ("first", before.clone()), "nothing is changed, nothing is left");
            failed += 1;
        }
        assert!(failed >= 4 && check(&dir) == "second");
    }
}
