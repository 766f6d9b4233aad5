//! Directories of embedders with pseudo-random weights, and the vectors that are expected of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde::Deserialize;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

#[derive(Deserialize)]
pub(crate) struct Fixture {
    /// Shapes of the tensors by name.
    pub(crate) tensors: BTreeMap<String, Vec<usize>>,
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    /// `text`, or the prompt that goes before the text: `query` or `document`.
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) embedding: Vec<f32>,
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(name)
}

/// Numbers of a tensor, as `numbers` in the script draws them.
fn numbers(state: &mut u64, name: &str, shape: &[usize]) -> Vec<u8> {
    let (scale, center) = match shape {
        [_] => (0.25, if name.ends_with("weight") { 1.0 } else { 0.0 }),
        _ if name.contains("embed") || name.contains("relative") => (1.0, 0.0),
        _ => (0.25, 0.0),
    };
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (0..shape.iter().product()).flat_map(|_| ((scale * next() + center) as f32).to_le_bytes()).collect()
}

/// Copies the directory of a fixture and adds the weights.
pub(crate) fn whole(name: &str) -> (tempfile::TempDir, Fixture) {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(name), dir.path());
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    let expected: Fixture = serde_json::from_str(&text).unwrap();
    let mut state = 7;
    let bytes: Vec<_> = expected.tensors.iter().map(|(name, shape)| numbers(&mut state, name, shape)).collect();
    let views = expected
        .tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(dir.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    (dir, expected)
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let from = entry.path();
        let to = to.join(entry.file_name());
        if from.is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}

/// Texts of the cases, with the prompts of the directory before them.
pub(crate) fn texts(embedder: &Embedder, cases: &[Case]) -> Vec<String> {
    let prompts = embedder.prompts();
    let prompt = |case: &Case| match case.kind.as_str() {
        "query" => prompts.query.clone(),
        "document" => prompts.document.clone(),
        _ => String::new(),
    };
    cases.iter().map(|case| prompt(case) + &case.text).collect()
}

pub(crate) fn embedder(dir: &Path) -> Embedder {
    Embedder::open(dir, Arc::new(Team::new(2))).unwrap()
}

pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
