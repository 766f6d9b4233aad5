//! Mapped files that are cut off while an index is open: searches fail by name, and the process and other indexes go
//! on.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use corpora::{HashEmbed, numbered, write};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Document, IndexError, LiveIndex, Mode, OpenOptions, Query, Triple,
    catch_mapped_faults,
};

/// Number of documents: enough for files of many pages.
const COUNT: usize = 3_000;

fn documents() -> Vec<Document> {
    let stated = |i: usize| vec![Triple::new(format!("Title{i}"), "tells of", format!("topic{}", i % 300))];
    let documents = numbered(COUNT, "first").into_iter().enumerate();
    documents.map(|(i, document)| Document { triples: Some(stated(i)), ..document }).collect()
}

/// Opens an index for searches of its vector graph.
fn open(dir: &Path) -> LiveIndex {
    let options = OpenOptions { exact_below: 0, ..OpenOptions::default() };
    LiveIndex::open(dir, Arc::new(HashEmbed::default()), options).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Searches in every mode. Returns the errors.
fn errors(live: &LiveIndex) -> Vec<IndexError> {
    let found = Mode::ALL.into_iter().flat_map(|mode| {
        let queries = (0..40).map(move |i| Query::new(format!("number{} topic{i} edition", i * 70), mode, 50));
        queries.map(|query| live.current().search(&query))
    });
    found.filter_map(Result::err).collect()
}

#[test]
fn a_file_that_is_cut_off_fails_the_searches_of_its_index_and_of_no_other() {
    catch_mapped_faults().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let whole = temp.path().join("whole");
    write(&whole, documents(), &BuildOptions::default()).unwrap();
    let other = open(&whole);
    let manifest = other.current().manifest().clone();
    // A fault in the vector graph stops the thread: see below.
    let large = manifest.files.iter().filter(|(name, sum)| sum.bytes > 16_384 && !name.ends_with(".usearch"));
    let mut cut_off = Vec::new();
    for (name, _) in large {
        let dir = temp.path().join(format!("copy-{}", cut_off.len()));
        copy(&whole, &dir);
        let live = open(&dir);
        assert_eq!((errors(&live).len(), live.damage()), (0, None), "{name}");
        File::options().write(true).open(dir.join(name)).unwrap().set_len(4096).unwrap();
        let failed = errors(&live);
        // Some files are not read after they were opened.
        if failed.is_empty() {
            continue;
        }
        cut_off.push(name.clone());
        for error in &failed {
            assert!(matches!(error, IndexError::Corrupt { file, .. } if file.ends_with(name)), "{name}: {error}");
        }
        assert!(live.damage().unwrap().contains(name.as_str()) && live.state().damaged, "{name}");
        assert!(live.current().passage("p0").is_err() && live.current().documents(None, 1).is_err());
        let refused = live.commit(Changes::upsert(numbered(1, "second")), &CommitOptions::default(), &());
        assert!(refused.unwrap_err().to_string().contains("damaged"));
        assert_eq!(errors(&other).len(), 0, "{name}");
    }
    let read = |part: &str| cut_off.iter().any(|name| name.ends_with(part));
    assert!(["/passages.bin", "-1/vectors.bin"].into_iter().all(read), "{cut_off:?}");
    assert!(cut_off.iter().any(|name| name.contains("/lexical/")), "{cut_off:?}");
}

#[test]
fn threads_that_fault_together_all_go_on() {
    catch_mapped_faults().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents(), &BuildOptions::default()).unwrap();
    let live = open(&dir);
    let file = live.current().manifest().files.keys().find(|name| name.ends_with("-1/vectors.bin")).cloned().unwrap();
    let path: PathBuf = dir.join(&file);
    File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    let together = Barrier::new(8);
    std::thread::scope(|scope| {
        for i in 0..8 {
            let live = &live;
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let query = Query::new(format!("number{}", i * 300), Mode::Passage, 20);
                live.current().search(&query).unwrap_err();
            });
        }
    });
    let repaired = {
        fs::remove_dir_all(&dir).unwrap();
        write(&dir, documents(), &BuildOptions::default()).unwrap();
        open(&dir)
    };
    assert_eq!(repaired.damage(), None, "an index that is opened again is judged anew");
    assert_eq!(errors(&repaired).len(), 0);
}

#[test]
fn a_vector_graph_that_is_cut_off_stops_the_threads_that_read_it_and_no_other() {
    catch_mapped_faults().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents(), &BuildOptions::default()).unwrap();
    let live = Arc::new(open(&dir));
    File::options().write(true).open(dir.join("snapshot-1/vectors.usearch")).unwrap().set_len(4096).unwrap();
    let reading = Arc::clone(&live);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let query = Query::new("number7", Mode::Passage, 20);
        let found = reading.current().search(&query);
        done.send(found.is_ok()).unwrap();
    });
    let started = Instant::now();
    while live.damage().is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "the fault is not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(live.damage().unwrap().contains("vectors.usearch"));
    let refused = live.current().search(&Query::new("number8", Mode::Passage, 20)).unwrap_err();
    assert!(refused.to_string().contains("vectors.usearch is damaged"), "{refused}");
    let found = ended.recv_timeout(Duration::from_secs(1));
    assert_eq!(found, Err(RecvTimeoutError::Timeout), "the search goes no further");
}

#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    // The signal of one process must not be seen by the other tests, so a child dies of it.
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["--exact", "dies_of_a_foreign_mapping", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
    assert_eq!(signal, Some(7), "SIGBUS: {child:?}");
}

#[test]
#[ignore = "ends the process: started by another test"]
fn dies_of_a_foreign_mapping() {
    catch_mapped_faults().unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: the file is cut off on purpose, and reading it ends the process.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    file.set_len(0).unwrap();
    println!("{}", map[5000]);
}
