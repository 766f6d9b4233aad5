//! A build that is killed at any point leaves the old index or the new one.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use corpora::{HashEmbed, files, numbered, open, replacing, small_index, write};
use waymark_index::{BuildOptions, BuildProgress, Corpus, Mode, Phase, Query, build};

const DIR: &str = "WAYMARK_TEST_CRASH_DIR";
const POINT: &str = "WAYMARK_TEST_CRASH_POINT";

/// What [`child`] ends with when the build fails by itself, with an error that says where.
const NO_ROOM: i32 = 77;

/// Ends the process at the n-th time that progress is told, as `kill -9` would: nothing is flushed or dropped.
struct Dying(std::sync::atomic::AtomicI64);

impl BuildProgress for Dying {
    fn update(&self, _: Phase, _: u64, _: Option<u64>) {
        if self.0.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            let kill = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            panic!("still alive after {kill:?}");
        }
    }
}

/// Not a test by itself: the process that is killed. Does nothing unless the other tests here start it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point: i64 = std::env::var(POINT).unwrap().parse().unwrap();
    let corpus = Corpus::from_documents("test", numbered(40, "second"));
    let options = BuildOptions { batch: 16, ..replacing() };
    let built = build(corpus, &HashEmbed::default(), Path::new(&dir), &options, &Dying(point.into()));
    if let Err(error) = built {
        assert!(error.to_string().contains("snapshot-") || error.to_string().contains("index"), "{error}");
        std::process::exit(NO_ROOM);
    }
}

fn start(dir: &Path, point: i64) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child"]).env(DIR, dir).env(POINT, point.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Opens, checks and searches the index; says which edition it is.
fn check(dir: &Path) -> &'static str {
    let index = open(dir).unwrap();
    let edition = if index.manifest().passages == 40 { "second" } else { "first" };
    for i in 0..index.manifest().passages {
        let document = index.passage(&format!("p{i}")).unwrap().unwrap();
        assert!(document.text.contains(edition), "{}", document.text);
    }
    let hits = index.search(&Query::new("number3", Mode::Passage, 1)).unwrap().hits;
    assert!(hits[0].passage.id == "p3" && hits[0].passage.text.contains(edition));
    edition
}

#[test]
fn a_build_killed_at_each_step_leaves_the_old_index_or_the_new_one() {
    let (_temp, dir) = small_index(20);
    let mut seen = Vec::new();
    // Every step would take long for what it shows; each phase is met several times over.
    for point in (0..400).filter(|point| point % 5 == 0 || *point > 60) {
        let status = start(&dir, point).wait().unwrap();
        seen.push(check(&dir));
        if status.success() {
            assert!(point > 60, "the build has more steps than that");
            break;
        }
        if seen.last() == Some(&"second") {
            write(&dir, numbered(20, "first"), &replacing()).unwrap();
        }
    }
    assert!(seen.contains(&"first") && seen.iter().filter(|edition| **edition == "second").count() >= 2, "{seen:?}");
    write(&dir, numbered(20, "first"), &replacing()).unwrap();
    let left = files(&dir).into_iter().filter(|file| file.to_string_lossy().contains(".part")).count();
    assert_eq!(left, 0, "the next build removes what killed ones left");
}

#[test]
fn a_build_killed_at_any_moment_leaves_the_old_index_or_the_new_one() {
    let (_temp, dir) = small_index(20);
    for round in 0..12_u64 {
        let mut child = start(&dir, -1);
        std::thread::sleep(Duration::from_millis(round * 7919 % 60));
        child.kill().unwrap();
        child.wait().unwrap();
        if check(&dir) == "second" {
            write(&dir, numbered(20, "first"), &replacing()).unwrap();
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_whole_is_an_error_and_no_index() {
    let (_temp, dir) = small_index(20);
    // What was embedded is kept for the next build, and is no part of the index.
    let files = |dir: &Path| files(dir).into_iter().filter(|file| !file.ends_with(".embeddings")).collect::<Vec<_>>();
    let before = files(&dir);
    let mut failed = 0;
    // A limit on the size of files stands in for a full disk: the system refuses to write beyond it.
    for blocks in [0, 1, 2, 4, 8, 16, 24, 30, 40] {
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" --exact child");
        let mut command = Command::new("sh");
        command.args(["-c", &limited]).arg(std::env::current_exe().unwrap()).env(DIR, &dir).env(POINT, "-1");
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        if status.success() {
            assert_eq!(check(&dir), "second");
            break;
        }
        assert_eq!(status.code(), Some(NO_ROOM), "the build ends with an error, at {blocks} blocks");
        assert_eq!((check(&dir), files(&dir)), ("first", before.clone()), "nothing is changed, nothing is left");
        failed += 1;
    }
    assert!(failed >= 4);
}
