//! The fuzz targets without a fuzzer: every seed, everything that was found before, and random changes to both. The same
//! functions run for hours under libFuzzer (`fuzz/run`).
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub, missing_debug_implementations)]

#[path = "../../fuzz/src/lib.rs"]
mod target;

mod change;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use change::Change;

fn seeds_of(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// Runs a target on its seeds, then on `cases` changed ones.
fn run(name: &str, cases: u32) {
    let (_, target) = target::TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let seeds = seeds_of(name);
    for (path, seed) in &seeds {
        println!("{}", path.display());
        target(seed);
    }
    let inputs: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let changed = (prop::sample::select(inputs.clone()), prop::sample::select(inputs), change::changes());
    let random = prop::collection::vec(any::<u8>(), 0..200);
    let input = prop_oneof![
        9 => changed.prop_map(|(seed, other, changes)| Change::apply_all(seed, &other, &changes)),
        1 => random,
    ];
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&input, |input| {
        let shown = String::from_utf8_lossy(&input).into_owned();
        let ran = std::panic::catch_unwind(|| target(&input));
        ran.map_err(|_| TestCaseError::fail(format!("{name} panics on {input:?}, as text {shown:?}")))
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

macro_rules! targets {
    ($($name:ident: $cases:literal,)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), $cases);
        })*

        #[test]
        fn every_target_is_run_and_built() {
            let here = BTreeSet::from([$(stringify!($name).to_owned()),*]);
            let listed: BTreeSet<String> = target::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(here, listed);
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
            let stem = |entry: fs::DirEntry| entry.path().file_stem().unwrap().to_string_lossy().into_owned();
            let programs: BTreeSet<String> = fs::read_dir(folder).unwrap().map(|entry| stem(entry.unwrap())).collect();
            assert_eq!(here, programs);
            let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/Cargo.toml")).unwrap();
            assert!(here.iter().all(|name| manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\""))));
        }
    };
}

targets! {
    corpus: 200,
    gguf: 200,
    index: 60,
    openie: 200,
    protocol: 500,
    request: 150,
    safetensors: 200,
    stream: 20,
    template: 100,
    tokenizer: 100,
}
