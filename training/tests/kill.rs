//! A run that is killed and started again ends in the same bytes as one that was left alone.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

const VOCAB: usize = 48;
const HIDDEN: usize = 64;
const FFN: usize = 96;

const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
policy = { protocol = "routerag" }
[adapter]
rank = 4
alpha = 8.0
targets = ["q_proj", "v_proj", "down_proj"]
seed = 1
[sft]
learning_rate = 1e-2
schedule = "cosine"
warmup = 0.1
epochs = 12
batch = 4
pack_tokens = 200
longest = 100
held_out = 0.2
validate_every = 7
save_every = 3
keep_last = 2
"#;

/// A random Llama with a vocabulary of words.
fn model(dir: &Path) {
    let config = json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "eos_token_id": 1
    });
    let vocab: serde_json::Map<_, _> = (0..VOCAB).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    let shapes = [
        ("model.embed_tokens", vec![VOCAB, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("model.layers.0.input_layernorm", vec![HIDDEN]),
        ("model.layers.0.post_attention_layernorm", vec![HIDDEN]),
        ("model.layers.0.self_attn.q_proj", vec![64, HIDDEN]),
        ("model.layers.0.self_attn.k_proj", vec![32, HIDDEN]),
        ("model.layers.0.self_attn.v_proj", vec![32, HIDDEN]),
        ("model.layers.0.self_attn.o_proj", vec![HIDDEN, 64]),
        ("model.layers.0.mlp.gate_proj", vec![FFN, HIDDEN]),
        ("model.layers.0.mlp.up_proj", vec![FFN, HIDDEN]),
        ("model.layers.0.mlp.down_proj", vec![HIDDEN, FFN]),
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut bytes = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product()).flat_map(|_| rng.random_range(-0.3f32..0.3).to_le_bytes()).collect()
    };
    let tensors: Vec<_> = shapes.iter().map(|(name, shape)| (format!("{name}.weight"), shape, bytes(shape))).collect();
    let views =
        tensors.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, (*shape).clone(), data).unwrap()));
    fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// Trajectories in which the policy says again what it was asked.
fn samples(path: &Path) {
    let lines = (0..40u32).map(|at| {
        let tokens: Vec<u32> = (0..20).chain([at, 3, at, 2]).collect();
        json!({
            "id": at.to_string(), "question_id": at.to_string(), "question": "", "golds": [], "supporting": [],
            "dataset": "", "protocol": "routerag", "seed": 0, "step": 0, "tokens": tokens,
            "origins": [["prompt", 22], ["policy", 2]], "prompt_tokens": 22, "text": "", "actions": [], "evidence": [],
            "answer": null, "finish": "stop",
            "usage": {"prompt_tokens": 22, "completion_tokens": 2, "reasoning_tokens": 0, "environment_tokens": 0,
                      "cached_tokens": 0},
            "timings": {"total": 0.0, "first_token": null, "generation": 0.0, "search": 0.0}
        })
        .to_string()
    });
    fs::write(path, lines.map(|line| line + "\n").collect::<String>()).unwrap();
}

/// A folder with all that a run begins with: a base model, trajectories and a recipe.
fn ready() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    model(dir);
    samples(&dir.join("samples.jsonl"));
    fs::write(dir.join("recipe.toml"), RECIPE.replace("BASE", dir.to_str().unwrap())).unwrap();
    temp
}

/// The latest checkpoint of a run, if there is one.
fn latest(run: &Path) -> Option<String> {
    let files = fs::read_dir(run.join("checkpoints")).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("step-")).max()
}

fn train(dir: &Path, out: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["sft", "--threads", "1", "--recipe"]).arg(dir.join("recipe.toml"));
    command.arg("--data").arg(dir.join("samples.jsonl")).arg("--out").arg(dir.join(out));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn killed_and_left_alone_end_in_the_same_bytes() {
    let temp = ready();
    let dir = temp.path();
    let output = train(dir, "whole").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Killed in the middle, each time some steps behind a checkpoint that it has just written.
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut killed = 0;
    for _ in 0..6 {
        let before = latest(&dir.join("killed"));
        let mut running = train(dir, "killed").spawn().unwrap();
        while latest(&dir.join("killed")) == before && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..40)));
        running.kill().unwrap();
        killed += usize::from(!running.wait().unwrap().success());
    }
    assert!(killed > 0, "no run was killed before its end");
    let left = latest(&dir.join("killed")).unwrap();
    let output = train(dir, "killed").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("killed {killed} times, for the last time behind {left}");

    let adapter = |run: &str| fs::read(dir.join(run).join("policy/adapter_model.safetensors")).unwrap();
    assert_eq!(adapter("whole"), adapter("killed"));
    let rows = |run: &str| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
        let timeless = |line: &str| {
            let mut row: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
            row.retain(|name, _| !["seconds", "step_seconds", "tokens_per_second"].contains(&name.as_str()));
            row.into()
        };
        text.lines().map(timeless).collect()
    };
    assert_eq!(rows("whole"), rows("killed"));
}

#[test]
fn another_recipe_does_not_go_on_with_a_run() {
    let temp = ready();
    let dir = temp.path();
    let short = ["--set", "sft.limit=4", "--set", "sft.epochs=1"];
    assert!(train(dir, "run").args(short).status().unwrap().success());
    let output = train(dir, "run").args(short).args(["--set", "sft.batch=2"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("batch = 4") && told.contains("batch = 2"), "{told}");
    assert!(
        train(dir, "other").args(["--set", "sft.epochs=0"]).output().unwrap().stderr.ends_with(b"must be at least 1\n")
    );
}

#[test]
fn samples_of_another_policy_are_refused_by_line() {
    let temp = ready();
    let dir = temp.path();
    let text = fs::read_to_string(dir.join("samples.jsonl")).unwrap();
    for (from, to, told) in [
        ("\"protocol\":\"routerag\"", "\"protocol\":\"search-r1\"", "line 3: it is of the protocol \"search-r1\""),
        ("\"tokens\":[0,", "\"tokens\":[48,", "line 3: token 48 is outside the base model's vocabulary of 48"),
    ] {
        let mut lines: Vec<String> = text.lines().map(|line| line.to_owned() + "\n").collect();
        assert!(lines[2].contains(from), "{}", lines[2]);
        lines[2] = lines[2].replace(from, to);
        fs::write(dir.join("samples.jsonl"), lines.concat()).unwrap();
        let output = train(dir, "run").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(told) && error.contains("samples.jsonl"), "{error}");
    }
    assert!(!dir.join("run").exists());
}

#[test]
fn a_policy_of_another_base_or_protocol_is_not_gone_on_with() {
    let temp = ready();
    let dir = temp.path();
    let short = ["--set", "sft.limit=4", "--set", "sft.epochs=1"];
    assert!(train(dir, "first").args(short).status().unwrap().success());
    let policy = dir.join("first/policy/policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    let on = |out: &str| train(dir, out).args(short).arg("--init").arg(dir.join("first")).output().unwrap();
    assert!(on("second").status.success());
    for (from, to, told) in [
        (format!("base = {:?}", dir.to_str().unwrap()), "base = \"other\"", "it belongs to the base model other"),
        ("protocol = \"routerag\"".to_owned(), "protocol = \"search-r1\"", "its protocol is search-r1"),
    ] {
        assert!(text.contains(&from), "{text}");
        fs::write(&policy, text.replacen(&from, to, 1)).unwrap();
        let output = on("third");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("--init") && error.contains(told), "{error}");
    }
}
