//! A policy with the fingerprint that the trainer wrote, over an engine elsewhere.

use std::path::Path;
use std::sync::Arc;

use waymark_models::gradient::{Learner, Tune};
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_runtime::fingerprint;
use waymark_training::policy_writer::{self, BaseModel, TrainingRecord};
use waymark_training::recipe::Recipe;

use super::base::{SMALL, model};
use super::program::{Serving, waymark};

/// Writes a policy as a training run of all weights does. Its weights are those of the base model in `base` times
/// `factor`, and every second weight is also multiplied by `second`. Returns its directory and that of its weights.
fn trained(root: &Path, name: &str, factor: f32, second: f32) -> [String; 2] {
    let base = root.join("base");
    let weights = Weights::open(&base).unwrap();
    let recipe = format!(
        "name = \"mine\"\nbase = {base:?}\nseed = 1\n[policy]\nprotocol = \"plain\"\n[policy.budget]\nturn_tokens = 4\n\
         sampled_tokens = 4\n"
    );
    let recipe = Recipe::parse(&recipe, Path::new("recipe.toml"), &[]).unwrap();
    let mut learner = Learner::load(&weights, Arc::new(Team::new(1)), &Tune::Full).unwrap();
    learner.change(|values, _| {
        values.iter_mut().for_each(|value| *value *= factor);
        values.iter_mut().step_by(2).for_each(|value| *value *= second);
    });
    let id = weights.id();
    let probe = fingerprint::probe(&Tokenizer::from_file(&base.join("tokenizer.json")).unwrap()).unwrap();
    let base = BaseModel { path: &base, id: &id, probe: &probe };
    let dir = root.join(name);
    policy_writer::write(&dir, &learner, &recipe, &TrainingRecord::default(), base).unwrap();
    policy_writer::add_fingerprint(&dir, &mut learner, base).unwrap();
    [dir.clone(), dir.join("model")].map(|path| path.to_str().unwrap().to_owned())
}

#[test]
fn an_engine_with_the_trained_weights_is_used_and_one_with_others_is_refused() {
    let root = tempfile::tempdir().unwrap();
    model(&root.path().join("base"), 6);
    let [policy, weights] = trained(root.path(), "trained", 4.0, 1.0);
    let [_, changed] = trained(root.path(), "changed", 4.0, -1.0);
    let loops = |engine: &Serving| {
        let engine = format!("waymark={}", engine.url);
        let flags = ["--engine", &engine, "--model", &weights, "--policy", &policy].map(str::to_owned);
        flags.into_iter().chain(SMALL.map(str::to_owned)).collect::<Vec<_>>()
    };
    let engine = Serving::start(&[&["--model", &weights][..], &SMALL].concat());
    let flags = loops(&engine);
    let server = Serving::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let asked = waymark(&["ask", "--url", &server.url, "--policy-name", "mine", "w1 w2"]);
    assert!(asked.ok(), "{}", asked.stderr);

    let other = Serving::start(&[&["--model", &changed][..], &SMALL].concat());
    let flags = loops(&other);
    let refused =
        waymark(&[&["serve", "--port", "0"][..], &flags.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    assert!(!refused.ok() && refused.stderr.contains("not those of the policy mine"), "{}", refused.stderr);
}
