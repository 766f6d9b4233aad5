//! Tests of descriptions and jobs.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use waymark_index::{BuildOptions, Corpus, Document, build};
use waymark_runtime::embedding::Embedding;
use waymark_runtime::evaluate::EpisodeRow;

use super::inputs::{Inputs, hash_path};
use super::jobs::{JobKind, Layout, jobs};
use super::results::ArmResults;
use super::{EndpointOutcome, Experiment, ExperimentReport, ExperimentRun, RunnerOptions, StageKind};
use crate::recipe::Recipe;
use crate::traps::TrapTable;

const TEXT: &str = r#"
name = "two"
claim = "Stage 2 keeps exact match."
seeds = [1, 2]
[[training]]
questions = "train.jsonl"
index = "index"
[[evaluation]]
name = "2wiki"
questions = "2wiki/questions.jsonl"
index = "2wiki.index"
[[stage]]
name = "sft"
kind = "sft"
recipe = "recipe.toml"
data = ["samples.jsonl"]
[[stage]]
name = "one"
kind = "grpo"
recipe = "recipe.toml"
init = "sft"
part = 1
[[stage]]
name = "two"
kind = "grpo"
recipe = "recipe.toml"
set = ["grpo.group=4"]
init = "one"
reference = "sft"
part = 2
[[stage]]
name = "unused"
kind = "sft"
recipe = "recipe.toml"
data = ["samples.jsonl"]
[[arm]]
name = "stage1"
stage = "one"
[[arm]]
name = "stage2"
stage = "two"
[[arm]]
name = "rag"
policy = "passage-rag"
k = 5
[[endpoint]]
metric = "em"
arm = "stage2"
against = "stage1"
at_least = -0.01
"#;

fn parse(text: &str) -> Result<Experiment, String> {
    Experiment::parse(text, Path::new("two.toml")).map_err(|error| error.to_string())
}

#[test]
fn stages_that_several_arms_need_run_once_per_seed() {
    let experiment = parse(TEXT).unwrap();
    let layout = Layout::new("out".into());
    let jobs = jobs(&experiment, &layout);
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "train-sft-seed1",
            "train-sft-seed2",
            "train-one-seed1",
            "train-one-seed2",
            "train-two-seed1",
            "train-two-seed2",
            "eval-stage1-seed1",
            "eval-stage1-seed2",
            "eval-stage2-seed1",
            "eval-stage2-seed2",
            "eval-rag",
        ]
    );
    let args = |place: usize| -> Vec<String> {
        jobs[place].args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    };
    assert_eq!(
        args(5),
        [
            "grpo",
            "--recipe=recipe.toml",
            "--set=grpo.group=4",
            "--set=seed=2",
            "--init=out/runs/one-seed2",
            "--reference=out/runs/sft-seed2",
            "--stage=2",
            "--questions=train.jsonl",
            "--index=index",
        ]
    );
    assert!(args(8).contains(&"--policy=out/runs/two-seed1/policy".to_owned()));
    assert!(args(10).contains(&"--k=5".to_owned()) && args(10).contains(&"--policy=passage-rag".to_owned()));
    assert!(matches!(&jobs[10].kind, JobKind::Evaluation(dir) if dir.ends_with("evaluations/rag")));
}

/// Otherwise the runs of all seeds would begin from the same adapter, and their errors would be too small.
#[test]
fn an_adapter_that_is_begun_for_each_seed_begins_from_that_seed() {
    let seeds = |text: &str| -> Vec<String> {
        let experiment = parse(text).unwrap();
        let mut layout = Layout::new("out".into());
        experiment.stage.iter().for_each(|stage| layout.add_base(stage, "base"));
        let jobs = jobs(&experiment, &layout);
        let args = jobs.iter().flat_map(|job| &job.args).map(|arg| arg.to_string_lossy().into_owned());
        args.filter(|arg| arg.starts_with("--set=adapter.seed=")).collect()
    };
    assert_eq!(seeds(TEXT), ["--set=adapter.seed=1", "--set=adapter.seed=2"], "later stages continue that of `sft`");
    let first = |line: &str| TEXT.replacen("kind = \"sft\"", &format!("kind = \"sft\"\n{line}"), 1);
    assert_eq!(seeds(&first("set = [\"adapter.seed=5\"]")), ["--set=adapter.seed=5"; 2]);
    let table = "set = ['adapter={rank=4,alpha=8.0,targets=[\"q_proj\"],seed=7}']";
    assert!(seeds(&first(table)).is_empty(), "fixed within a table");
    let table = "set = ['adapter={rank=4,alpha=8.0,targets=[\"q_proj\"]}']";
    assert_eq!(seeds(&first(table)), ["--set=adapter.seed=1", "--set=adapter.seed=2"]);
    assert!(seeds(&first("seed = 7")).is_empty(), "trained once");
    assert!(seeds(&first("policy = \"policies/first\"")).is_empty());
}

/// Otherwise policies would be evaluated in another arithmetic than the one in which their steps were chosen.
#[test]
fn evaluations_have_the_arithmetic_of_the_recipes_unless_the_description_names_another() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let path = dir.join("one.toml");
    let passed = |head: &str, set: &str| -> (Vec<String>, String) {
        let stage = format!("kind = \"grpo\"\n{set}");
        std::fs::write(&path, format!("{head}{}", with_stage(dir, &stage, "plain"))).unwrap();
        let options = RunnerOptions { dir: dir.join("out"), program: "train".into(), host_args: Vec::new() };
        let run = ExperimentRun::open(&path, options).unwrap();
        let jobs = jobs(&run.experiment, &Layout::new("out".into()));
        let args = jobs.iter().flat_map(|job| &job.args).map(|arg| arg.to_string_lossy().into_owned());
        let args = args.filter(|arg| arg.starts_with("--arithmetic=")).collect();
        let report = ExperimentReport {
            experiment: run.experiment,
            inputs: String::new(),
            arms: Vec::new(),
            oracle: Vec::new(),
            endpoints: Vec::new(),
            holds: None,
        };
        (args, report.markdown())
    };
    let (args, report) = passed("", "");
    assert_eq!(args, ["--arithmetic=bf16"; 2], "the recipe trains in bf16");
    assert!(report.contains("Arithmetic of the evaluations: bf16."), "{report}");
    assert_eq!(passed("arithmetic = \"f32\"\n", "").0, ["--arithmetic=f32"; 2]);
    let (args, report) = passed("", "set = [\"arithmetic=f32\"]");
    assert!(args.is_empty() && report.contains("on a CPU f32"), "{args:?}, {report}");
}

/// Later commands open the embedder that the index names, unless they are given another one.
#[test]
fn an_embedder_is_passed_on_only_if_the_description_names_it() {
    let passed = |text: &str| -> Vec<String> {
        let jobs = jobs(&parse(text).unwrap(), &Layout::new("out".into()));
        let args = jobs.iter().flat_map(|job| &job.args).map(|arg| arg.to_string_lossy().into_owned());
        args.filter(|arg| arg.starts_with("--embedder")).collect()
    };
    assert!(passed(TEXT).is_empty());
    let named = TEXT.replacen("seeds = [1, 2]", "seeds = [1, 2]\nembedder = \"bge-small-en-v1.5\"", 1);
    // Four trainings on rewards and five evaluations search.
    assert_eq!(passed(&named), ["--embedder=bge-small-en-v1.5"; 9]);
}

#[test]
fn a_shared_stage_runs_once() {
    let shared = TEXT.replacen("kind = \"sft\"", "kind = \"sft\"\nseed = 7", 1);
    let experiment = parse(&shared).unwrap();
    let jobs = jobs(&experiment, &Layout::new("out".into()));
    let names: Vec<&str> = jobs.iter().take(2).map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["train-sft", "train-one-seed1"]);
    assert!(jobs[0].args.contains(&"--set=seed=7".into()));
    assert!(jobs[2].args.contains(&"--init=out/runs/sft".into()), "{:?}", jobs[2]);
}

#[test]
fn a_stage_may_start_from_a_policy() {
    let text = TEXT.replacen("kind = \"sft\"", "kind = \"sft\"\npolicy = \"policies/first\"", 1);
    let jobs = jobs(&parse(&text).unwrap(), &Layout::new("out".into()));
    assert!(jobs[0].args.contains(&"--init=policies/first".into()), "{:?}", jobs[0]);
}

#[test]
fn refusals_name_the_field() {
    for (from, to, field, reason) in [
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds", "listed twice"),
        ("seeds = [1, 2]", "seeds = []", "seeds", "expected 1 to"),
        ("seeds = [1, 2]", "seed = [1]", "seed", "unknown field"),
        ("name = \"2wiki\"", "name = \"wiki\"", "evaluation[0].name", "\"2wiki\""),
        ("name = \"stage1\"", "name = \"stage 1\"", "arm[0].name", "invalid name"),
        ("name = \"stage1\"", "name = \"a-seed1\"", "arm[0].name", "is kept for the seeds"),
        ("name = \"stage1\"", "name = \"stage2\"", "arm[1].name", "used twice"),
        ("init = \"one\"", "init = \"two\"", "stage[2].init", "no earlier stage"),
        ("init = \"one\"", "init = \"one\"\npolicy = \"p\"", "stage[2].policy", "conflicts with `init`"),
        ("part = 2", "part = 2\nseed = 3", "stage[2].seed", "trained for each seed"),
        ("part = 2", "part = -2", "stage[2].part", "invalid value"),
        ("data = [\"samples.jsonl\"]", "part = 1", "stage[0].part", "`grpo` only"),
        ("data = [\"samples.jsonl\"]", "", "stage[0].data", "needs trajectories"),
        ("set = [\"grpo.group=4\"]", "set = [\"seed=4\"]", "stage[2].set[0]", "the seed comes from"),
        ("stage = \"one\"", "stage = \"none\"", "arm[0].stage", "is no stage"),
        ("stage = \"one\"", "", "arm[0]", "needs a `stage` or a `policy`"),
        ("policy = \"passage-rag\"", "policy = \"--help\"", "arm[2].policy", "invalid policy"),
        ("policy = \"passage-rag\"", "policy = \"plain\"\nstage = \"one\"", "arm[2].policy", "conflicts"),
        ("k = 5", "k = 0", "arm[2].k", "from 1 to"),
        ("k = 5", "mode = \"psychic\"", "arm[2].mode", "psychic"),
        ("metric = \"em\"", "metric = \"luck\"", "endpoint[0].metric", "luck"),
        ("against = \"stage1\"", "against = \"stage2\"", "endpoint[0].against", "itself"),
        ("against = \"stage1\"", "against = \"x\"", "endpoint[0].against", "is no arm"),
        ("at_least = -0.01", "", "endpoint[0].at_least", "needs a bar"),
        ("at_least = -0.01", "at_least = nan", "endpoint[0].at_least", "finite"),
        ("at_least = -0.01", "at_most = inf", "endpoint[0].at_most", "finite"),
        ("at_least = -0.01", "at_least = 0.0\nat_most = 0.0", "endpoint[0].at_most", "conflicts"),
        ("at_least = -0.01", "at_least = 0.0\nsets = [\"x\"]", "endpoint[0].sets", "is no evaluation set"),
        ("at_least = -0.01", "at_least = 0.0\nsets = [\"2wiki\", \"2wiki\"]", "endpoint[0].sets", "listed twice"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let message = parse(&TEXT.replacen(from, to, 1)).unwrap_err();
        assert!(message.starts_with(&format!("two.toml: {field}: ")) && message.contains(reason), "{to}: {message}");
    }
    let alone = TEXT.split("[[endpoint]]").next().unwrap();
    assert!(parse(alone).unwrap_err().contains("two.toml: endpoint: 0 entries"));
    assert!(parse("name = ").unwrap_err().starts_with("two.toml: "));
}

#[test]
fn descriptions_round_trip() {
    for text in [TEXT.to_owned(), format!("embedder = \"mock\"\n{TEXT}")] {
        let experiment = parse(&text).unwrap();
        assert_eq!(parse(&toml::to_string(&experiment).unwrap()).unwrap(), experiment);
    }
}

#[test]
fn committed_experiments_are_valid() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments"));
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let experiment = Experiment::open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Some(experiment.name.as_str()), path.file_stem().and_then(|name| name.to_str()));
        read += 1;
    }
    assert!(read > 0);
}

/// Opens the recipes of all stages with their overrides, which a run would do before its first job.
#[tokio::test]
async fn stages_of_committed_experiments_have_valid_recipes_without_traps() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut stages = 0;
    for entry in std::fs::read_dir(root.join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        for stage in &Experiment::open(&path).unwrap().stage {
            let told = format!("{}, {}", path.display(), stage.name);
            let recipe = Recipe::open(&root.join(&stage.recipe), &stage.set);
            let recipe = recipe.unwrap_or_else(|error| panic!("{told}: {error}"));
            let section = match stage.kind {
                StageKind::Sft => recipe.sft.is_some(),
                StageKind::Grpo => recipe.grpo.is_some(),
                StageKind::Dpo => recipe.dpo.is_some(),
            };
            assert!(section, "{told}");
            if stage.kind != StageKind::Sft {
                let table = TrapTable::of(&recipe).await.unwrap();
                table.check().unwrap_or_else(|error| panic!("{told}: {error}\n{table}"));
            }
            stages += 1;
        }
    }
    assert!(stages > 20, "{stages}");
}

/// Description of an experiment over the files in `dir`, with the lines `stage` in a stage and a policy for an arm.
/// `RECIPE` in the lines becomes the path of the stage's recipe.
fn with_stage(dir: &Path, stage: &str, policy: &str) -> String {
    let dir = dir.display();
    let text = format!(
        r#"
name = "one"
claim = "Training helps."
embedder = "mock"
[[training]]
questions = "{dir}/train.jsonl"
validation = "{dir}/held_out.jsonl"
index = "{dir}/index"
[[evaluation]]
name = "words"
questions = "{dir}/words.jsonl"
index = "{dir}/index"
[[stage]]
name = "trained"
recipe = "RECIPE"
{stage}
[[arm]]
name = "own"
stage = "trained"
[[arm]]
name = "fixed"
policy = "{policy}"
[[endpoint]]
metric = "em"
arm = "own"
against = "fixed"
at_least = 0.0
"#
    );
    text.replace("RECIPE", concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/routerag-smollm2.toml"))
}

/// Writes files of one question each, and an index.
fn ready(dir: &Path) {
    for name in ["train", "held_out", "words"] {
        let line = format!("{{\"question\": \"What is in {name}?\", \"answers\": [\"b\"]}}\n");
        std::fs::write(dir.join(format!("{name}.jsonl")), line).unwrap();
    }
    let document = |name: &str| Document {
        id: name.to_owned(),
        title: name.to_owned(),
        text: format!("{name} is a word"),
        triples: None,
        metadata: None,
    };
    let corpus = Corpus::from_documents("words", ["w1", "w2"].map(document).to_vec());
    build(corpus, &Embedding::Mock, &dir.join("index"), &BuildOptions::default(), &()).unwrap();
}

/// Opens the experiment with this description. Returns the message of the error.
fn opened(dir: &Path, description: &str) -> Result<(), String> {
    let path = dir.join("one.toml");
    std::fs::write(&path, description).unwrap();
    let options = RunnerOptions { dir: dir.join("out"), program: "train".into(), host_args: Vec::new() };
    ExperimentRun::open(&path, options).map(drop).map_err(|error| error.to_string())
}

/// Otherwise the mistake would show after hours, when the trainer refuses its questions, or in the report.
#[test]
fn questions_that_a_stage_or_an_endpoint_cannot_use_are_refused_before_the_first_job() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let text = with_stage(dir, "kind = \"grpo\"", "plain");
    assert_eq!(opened(dir, &text), Ok(()));
    let validation = format!("validation = \"{}/held_out.jsonl\"\n", dir.display());
    assert!(text.contains(&validation));
    let aside = text.replace(&validation, "");
    let supported = "kind = \"grpo\"\nset = ['grpo.stages=[{steps=1,reward={path_router={}}}]']";
    for (text, field, reason) in [
        (aside.clone(), "stage[0].recipe", "is more than a quarter of the 1 questions"),
        (aside.replace("kind = \"grpo\"", "kind = \"grpo\"\nset = [\"grpo.validation=0\"]"), "", ""),
        (text.replace("held_out.jsonl", "train.jsonl"), "stage[0].recipe", "is a training question too"),
        (with_stage(dir, supported, "plain"), "stage[0].recipe", "uses supporting passages"),
        (text.replace("metric = \"em\"", "metric = \"support_f1\""), "endpoint[0].metric", "the set words"),
    ] {
        match opened(dir, &text) {
            Ok(()) => assert!(reason.is_empty(), "{text}"),
            Err(message) => {
                let names = !reason.is_empty() && message.contains(&format!(": {field}: "));
                assert!(names && message.contains(reason), "{message}");
            }
        }
    }
}

/// Otherwise the mistake would show after hours, when the trainer refuses its arguments.
#[test]
fn stages_and_arms_that_cannot_run_are_refused_before_the_first_job() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let open = |stage: &str, policy: &str| opened(dir, &with_stage(dir, stage, policy));
    std::fs::create_dir(dir.join("policy")).unwrap();
    std::fs::write(dir.join("policy/policy.toml"), "name = \"own\"\nprotocol = \"plain\"\n").unwrap();
    for policy in ["plain", "passage-rag", dir.join("policy").to_str().unwrap()] {
        assert_eq!(open("kind = \"grpo\"\npart = 2", policy), Ok(()));
    }
    let late = "[[stage]]\nname = \"late\"\nkind = \"grpo\"\nrecipe = \"RECIPE\"\nreference = \"trained\"";
    let unused = format!("kind = \"grpo\"\n{late}\nset = [\"grpo.loss.kl=0.0\"]");
    for (stage, policy, field, reason) in [
        ("kind = \"grpo\"\npart = 5", "plain", "stage[0].part", "the recipe has 2 stages"),
        ("kind = \"dpo\"", "plain", "stage[0].recipe", "no section [dpo]"),
        ("kind = \"grpo\"\nset = [\"grpo.validation=0\"]", "plain", "stage[0].recipe", "grpo.validation = 0"),
        (unused.as_str(), "plain", "stage[1].reference", "uses no reference"),
        ("kind = \"grpo\"", "polcies/typo", "arm[1].policy", "unknown policy \"polcies/typo\""),
        ("kind = \"grpo\"", dir.join("index").to_str().unwrap(), "arm[1].policy", "policy.toml"),
    ] {
        let message = open(stage, policy).unwrap_err();
        assert!(message.contains(&format!(": {field}: ")) && message.contains(reason), "{stage}: {message}");
    }
}

/// Otherwise the report would call a mode forced that no search had.
#[test]
fn search_options_that_an_arm_ignores_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    std::fs::write(dir.join("samples.jsonl"), "").unwrap();
    let data = format!("kind = \"sft\"\ndata = [\"{}/samples.jsonl\"]", dir.display());
    let silent = format!("{data}\nset = [\"policy.budget.turns=0\"]");
    let mode = "mode = \"graph\"";
    for (stage, arm, option, field) in [
        (&data, "policy = \"passage-rag\"", mode, "arm[1].mode"),
        (&data, "policy = \"plain\"", mode, "arm[1].mode"),
        (&data, "policy = \"no-retrieval\"", "k = 5", "arm[1].k"),
        (&silent, "stage = \"trained\"", mode, "arm[0].mode"),
        (&silent, "stage = \"trained\"", "k = 5", "arm[0].k"),
        (&data, "policy = \"passage-rag\"", "k = 5", ""),
        (&data, "policy = \"ircot\"", mode, ""),
        (&data, "stage = \"trained\"", mode, ""),
        (&data, "policy = \"ircot\"", "mode = \"hypergraph\"", "arm[1].mode"),
        (&data, "policy = \"search-o1\"", "mode = \"triples\"", "arm[1].mode"),
        (&data, "stage = \"trained\"", "mode = \"kag\"", "arm[0].mode"),
        (&data, "policy = \"tearag\"", "mode = \"kag\"", ""),
    ] {
        let policy = arm.strip_prefix("policy = ").map_or("plain", |name| name.trim_matches('"'));
        let text = with_stage(dir, stage, policy);
        assert!(text.contains(arm), "{text}");
        match opened(dir, &text.replace(arm, &format!("{arm}\n{option}"))) {
            Ok(()) => assert!(field.is_empty(), "{arm}, {option}"),
            Err(message) => {
                let named = !field.is_empty() && message.contains(&format!(": {field}: "));
                assert!(named && message.contains("remove it"), "{message}");
            }
        }
    }
}

/// Otherwise an arm would pass a bar on its cost by failing.
#[test]
fn failed_episodes_make_no_arm_cheaper() {
    let text = TEXT.replace("metric = \"em\"", "metric = \"cost\"").replace("at_least = -0.01", "at_most = -0.2");
    let experiment = parse(&text).unwrap();
    let row = |id: usize| EpisodeRow { id: id.to_string(), cost: 1.0, ..EpisodeRow::default() };
    let failed = |id: usize| EpisodeRow { cost: 0.0, error: Some("too long".to_owned()), ..row(id) };
    let arm = |name: &str, rows: Vec<EpisodeRow>| ArmResults {
        name: name.to_owned(),
        seeds: vec![(None, BTreeMap::from([("2wiki".to_owned(), rows)]))],
    };
    let outcome = |rows: Vec<EpisodeRow>| {
        let results = [arm("stage1", (0..4).map(row).collect()), arm("stage2", rows)];
        EndpointOutcome::of(&experiment, &experiment.endpoint[0], &results).unwrap()
    };
    let half = outcome((0..4).map(|id| if id % 2 == 0 { row(id) } else { failed(id) }).collect());
    assert_eq!((half.difference, half.questions, half.passed), (Some(0.0), 2, false));
    let none = outcome((0..4).map(failed).collect());
    assert_eq!((none.difference, none.interval, none.passed), (None, None, false));
}

/// Otherwise arms evaluated before and after the change would be compared as if they had one model.
#[test]
fn a_base_model_that_changes_is_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let text = with_stage(dir, "kind = \"grpo\"", "plain");
    let path = dir.join("one.toml");
    let inputs = |model: &str| {
        let named = format!("embedder = \"mock\"\nmodel = \"{model}\"");
        std::fs::write(&path, text.replace("embedder = \"mock\"", &named)).unwrap();
        Inputs::of(&Experiment::open(&path).unwrap(), &path).unwrap()
    };
    std::fs::create_dir(dir.join("checkpoint")).unwrap();
    for (model, weights, settled) in
        [("model.gguf", "model.gguf", "file.json"), ("checkpoint", "checkpoint/model.safetensors", "directory.json")]
    {
        let model = dir.join(model).display().to_string();
        let settled = dir.join(settled);
        std::fs::write(dir.join(weights), "first").unwrap();
        for _ in 0..2 {
            inputs(&model).settle(dir, &settled).unwrap();
        }
        std::fs::write(dir.join(weights), "other").unwrap();
        let message = inputs(&model).settle(dir, &settled).unwrap_err().to_string();
        assert!(message.contains(&format!("the model {model} differs")), "{message}");

        // As an earlier version wrote them.
        let mut older = inputs(&model);
        assert!(older.inputs.remove(&format!("the model {model}")).is_some());
        let settled = dir.join("older.json");
        std::fs::write(&settled, serde_json::to_string(&older).unwrap()).unwrap();
        inputs(&model).settle(dir, &settled).unwrap();
    }
    let named = inputs("smollm2-135m-instruct");
    assert!(named.inputs.keys().all(|name| !name.starts_with("the model ")), "{named:?}");
}

/// Inputs of an experiment with the directory `policy` as an arm, which has these contents of `README.md` and weights.
fn with_policy(dir: &Path, readme: &str, weights: &str) -> Inputs {
    let policy = dir.join("policy");
    std::fs::create_dir_all(&policy).unwrap();
    std::fs::write(policy.join("policy.toml"), "name = \"own\"\nprotocol = \"plain\"\n").unwrap();
    std::fs::write(policy.join("adapter_model.safetensors"), weights).unwrap();
    std::fs::write(policy.join("README.md"), readme).unwrap();
    let path = dir.join("one.toml");
    std::fs::write(&path, with_stage(dir, "kind = \"grpo\"", policy.to_str().unwrap())).unwrap();
    Inputs::of(&Experiment::open(&path).unwrap(), &path).unwrap()
}

/// Otherwise the report, which becomes the README of a policy, would change the hash that it quotes.
#[test]
fn the_readme_of_a_policy_is_no_input_but_its_weights_are() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let path = dir.join("inputs.json");
    let settle = |readme: &str, weights: &str| {
        let inputs = with_policy(dir, readme, weights);
        inputs.settle(dir, &path).map(|()| inputs.hash()).map_err(|error| error.to_string())
    };
    let hash = settle("", "first").unwrap();
    assert_eq!(settle("the claim holds", "first"), Ok(hash));
    let message = settle("", "other").unwrap_err();
    let name = format!("the policy {}", dir.join("policy").display());
    assert!(message.contains(&format!("{name} differs")), "{message}");

    // As an earlier version wrote them.
    let write_older = |inputs: &Inputs| {
        let policy = dir.join("policy");
        let mut older = inputs.clone();
        assert!(older.inputs.remove(&name).is_some());
        older.inputs.insert(policy.display().to_string(), hash_path(&policy).unwrap());
        std::fs::write(&path, serde_json::to_string(&older).unwrap()).unwrap();
    };
    write_older(&with_policy(dir, "", "first"));
    settle("", "first").unwrap();
    settle("the claim holds", "first").unwrap();
    write_older(&with_policy(dir, "", "first"));
    let message = settle("the claim holds", "first").unwrap_err();
    assert!(message.contains(&format!("{name} (an earlier version hashed all its files")), "{message}");
}

/// Otherwise some runs of a stage would begin from its recipe's adapter seed, and others from their own.
#[test]
fn an_experiment_that_began_with_one_adapter_for_all_seeds_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    ready(dir);
    let path = dir.join("inputs.json");
    let mut inputs = with_policy(dir, "", "first");
    inputs.settle(dir, &path).unwrap();
    inputs.seed_adapters();
    let message = inputs.settle(dir, &path).unwrap_err().to_string();
    assert!(message.contains("the seed of new adapters (that of the run"), "{message}");
}

proptest! {
    /// Any change of bytes gives a description or an error, never a panic; what is accepted has jobs.
    #[test]
    fn damaged_descriptions_never_panic(changes in proptest::collection::vec((0..TEXT.len(), any::<char>()), 1..8)) {
        let mut chars: Vec<char> = TEXT.chars().collect();
        for (at, char) in changes {
            chars[at] = char;
        }
        let text: String = chars.into_iter().collect();
        if let Ok(experiment) = parse(&text) {
            let jobs = jobs(&experiment, &Layout::new("out".into()));
            prop_assert!(!jobs.is_empty());
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        drop(parse(&text));
    }

    /// Lines in any order and number.
    #[test]
    fn shuffled_lines_never_panic(lines in proptest::sample::subsequence(TEXT.lines().collect::<Vec<_>>(), 0..TEXT.lines().count()).prop_shuffle()) {
        drop(parse(&lines.join("\n")));
    }
}
