//! The fuzz targets without a fuzzer: every seed, everything that was found before, and random changes to both. The
//! same functions run for hours under libFuzzer (`fuzz/run`).
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub, missing_debug_implementations)]

#[path = "../../fuzz/src/lib.rs"]
mod target;

mod change;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        // A failing target then shows which seed it was.
        println!("{}", path.display());
        target(seed);
    }
    let inputs: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    // Random bytes seldom pass the first check of a format; changed seeds reach the code behind it.
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
    checkpoint: 100,
    corpus: 200,
    embedder: 100,
    gguf: 200,
    index: 60,
    openie: 200,
    protocol: 500,
    request: 150,
    responses: 150,
    safetensors: 200,
    stream: 20,
    template: 100,
    tokenizer: 100,
}

/// Seeds that a target refuses at once would lead it nowhere.
#[test]
fn the_made_seeds_are_good() {
    use waymark_index::{Corpus, CorpusOptions};
    use waymark_models::checkpoint::Checkpoint;
    use waymark_models::decoder::Decoder;
    use waymark_models::kernel::Team;
    use waymark_models::tokenizer::Tokenizer;
    use waymark_models::weights::Weights;

    let seed = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let checkpoint = Checkpoint::open(&seed("gguf/made-llama")).unwrap();
    Decoder::load(&checkpoint.weights, Team::new(1).into()).unwrap();
    assert!(checkpoint.template.is_some() && checkpoint.tokenizer.is_control(6));
    let folder = tempfile::tempdir().unwrap();
    let halves = |name: &str| {
        let bytes = fs::read(seed(name)).unwrap();
        let at = bytes.iter().position(|&byte| byte == 0).unwrap();
        (bytes[..at].to_vec(), bytes[at + 1..].to_vec())
    };
    for name in ["safetensors/made-checkpoint", "safetensors/made-yarn"] {
        let (config, tensors) = halves(name);
        fs::write(folder.path().join("config.json"), config).unwrap();
        fs::write(folder.path().join("model.safetensors"), tensors).unwrap();
        let mut decoder = Decoder::load(&Weights::open(folder.path()).unwrap(), Team::new(1).into()).unwrap();
        let (config, tensors) = halves("safetensors/made-adapter");
        fs::write(folder.path().join("adapter_config.json"), config).unwrap();
        fs::write(folder.path().join("adapter_model.safetensors"), tensors).unwrap();
        decoder.load_adapter(folder.path()).unwrap();
    }
    for name in ["tokenizer/made-bpe", "tokenizer/made-wordpiece"] {
        fs::write(folder.path().join("tokenizer.json"), halves(name).0).unwrap();
        assert!(Tokenizer::from_file(&folder.path().join("tokenizer.json")).unwrap().vocab() > 3, "{name}");
    }
    for name in ["checkpoint/made-whole", "checkpoint/made-sharded"] {
        let checkpoint = target::checkpoint::opened(&fs::read(seed(name)).unwrap()).unwrap();
        Decoder::load(&checkpoint.weights, Team::new(1).into()).unwrap();
        assert!(checkpoint.template.is_some() && checkpoint.eos.contains(&6), "{name}");
    }
    for name in ["whole", "layerless", "modernbert", "nomic-bert", "gte", "qwen3"] {
        let name = format!("embedder/made-{name}");
        let embedder = target::embedder::opened(&fs::read(seed(&name)).unwrap()).unwrap();
        let vectors = embedder.embed(&["a"]).unwrap();
        assert_eq!((vectors.len(), vectors[0].len()), (1, embedder.dims()), "{name}");
    }
    for name in ["docx", "gzip", "parquet", "pdf", "zstandard"] {
        let path = target::corpus::written(&fs::read(seed(&format!("corpus/made-{name}"))).unwrap()).unwrap();
        let documents: Result<Vec<_>, _> = Corpus::open(&path, &CorpusOptions::default()).unwrap().collect();
        assert_eq!(documents.unwrap().len(), 1, "{name}");
    }
}

/// Crates without coverage lead libFuzzer nowhere.
#[test]
fn every_crate_of_ours_is_compiled_with_coverage() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let flags = |name: &str| {
        let wrapper =
            Command::new("bash").arg(folder.join("instrument")).arg("echo").env("CARGO_CRATE_NAME", name).output();
        String::from_utf8(wrapper.unwrap().stdout).unwrap()
    };
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]\n").unwrap();
    let (dependencies, _) = dependencies.split_once("\n[").unwrap();
    let mut crates: Vec<String> =
        dependencies.lines().filter_map(|line| Some(line.split_once(" = ")?.0.replace('-', "_"))).collect();
    crates.push("waymark_fuzz".to_owned());
    assert!(crates.iter().any(|name| name == "waymark_agent"), "{crates:?}");
    for name in crates {
        let ours = name.starts_with("waymark");
        assert_eq!(flags(&name).contains("sanitizer-coverage-inline-8bit-counters"), ours, "{name}");
    }
}

/// Seeds of requests that are there to be refused.
const REFUSED: [&str; 13] = [
    "chat-refused",
    "commit",
    "deep",
    "detokenize",
    "document",
    "not-utf8",
    "numbers",
    "policies",
    "response",
    "responses-items",
    "trace",
    "vector-store-batch",
    "vector-store-file",
];

#[test]
fn requests_are_answered_but_for_those_that_are_there_to_be_refused() {
    let mut refused = Vec::new();
    for (path, seed) in seeds_of("request") {
        let (status, text) = target::request::answered(&seed).unwrap();
        assert!(!text.contains("not_configured") && !text.contains("fixed_policies"), "{}: {text}", path.display());
        if !status.is_success() {
            refused.push((path.file_name().unwrap().to_string_lossy().into_owned(), text));
        }
    }
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, REFUSED, "{refused:#?}");
}

#[test]
fn every_route_that_takes_a_body_is_fuzzed() {
    let document = serde_json::to_value(waymark::api::document()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    let paths: Vec<&String> =
        paths.filter(|(_, item)| item["post"]["requestBody"].is_object()).map(|(path, _)| path).collect();
    assert!(paths.len() > 10, "{paths:?}");
    let posted = target::request::ROUTES.iter().filter(|(method, _)| method.as_str() == "POST");
    let fuzzed: BTreeSet<&str> = posted.map(|(_, path)| *path).collect();
    let missing: Vec<_> = paths.into_iter().filter(|path| !fuzzed.contains(path.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} are not fuzzed");
}
