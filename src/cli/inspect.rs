//! `waymark inspect`: model files, and how to serve them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::Value;
use waymark_agent::{Policy, family_members};
use waymark_models::architecture::Experts;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::decoder::DecoderConfig;
use waymark_models::embedder::EmbedderSummary;
use waymark_models::layout::{ForeignLayout, GenerationDefaults, ModelLayout, adapter_base, weight_files};
use waymark_models::reranker::Reranker;
use waymark_models::weights::Weights;

/// Describes model files: what they are, what is missing, and how to serve or convert them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark inspect checkpoints/global_step_200
  waymark inspect models/bge-small-en-v1.5
  waymark inspect model.gguf")]
pub(crate) struct Args {
    /// Directory of a checkpoint, an adapter, a policy, an embedder or a reranker, or a file of weights.
    path: PathBuf,
}

/// Lines of the report: a name and a value.
type ReportLines = Vec<(&'static str, String)>;

impl Args {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let path = &self.path;
        if !path.exists() {
            bail!("{} does not exist: give a directory or a file", path.display());
        }
        let mut lines = match ModelLayout::of(path) {
            ModelLayout::Gguf(file) => model("GGUF", &file),
            ModelLayout::HuggingFace(dir) => encoder(&dir).unwrap_or_else(|| model("Hugging Face checkpoint", &dir)),
            ModelLayout::Adapter(dir) => adapter(&dir),
            ModelLayout::Foreign(ForeignLayout { name, remedy, .. }) => {
                vec![("format", format!("{name}, which is not served as it is")), ("convert", remedy)]
            }
            // A policy may name its base model instead of bringing it.
            ModelLayout::Unknown if holds_policy(path) => Vec::new(),
            ModelLayout::Unknown => bail!(
                "{}: neither a GGUF file, nor a directory with config.json and safetensors, nor a PEFT adapter, nor a policy",
                path.display()
            ),
        };
        lines.extend(policy(path));
        lines.push(("serve", serve(path)));
        let mut out = io::stdout().lock();
        for (name, value) in lines {
            writeln!(out, "{name:<15}{value}")?;
        }
        Ok(())
    }
}

/// Describes the weights of a whole model.
fn model(format: &str, path: &Path) -> ReportLines {
    let mut lines = vec![("format", format.to_owned()), ("files", weight_files(path).join(", "))];
    match Weights::open(path) {
        Ok(weights) => {
            let config = weights.config();
            let DecoderConfig { layers, hidden, heads, kv_heads, .. } = config;
            let shape = format!("{layers} layers, width {hidden}, {heads} heads, {kv_heads} of keys and values");
            lines.push(("architecture", format!("{}: {shape}", architecture(&weights, path))));
            lines.push(("parameters", config.parameters().to_string()));
            if let Some(Experts { count, per_token, .. }) = &config.architecture.experts {
                lines.push(("experts", format!("{count} in a layer, {per_token} per token")));
            }
            lines.push(("context", format!("{} tokens", config.context)));
            lines.push(("hash", weights.id()));
        }
        Err(error) => lines.push(("missing", error.to_string())),
    }
    match Checkpoint::open(path) {
        Ok(checkpoint) => {
            lines.push(("tokenizer", format!("{} tokens", checkpoint.tokenizer.vocab())));
            let template =
                if checkpoint.template.is_some() { "yes" } else { "none: messages are joined by line breaks" };
            lines.push(("chat template", template.to_owned()));
        }
        Err(error) => lines.push(("missing", error.to_string())),
    }
    let defaults = GenerationDefaults::read(if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) });
    if defaults != GenerationDefaults::default() {
        lines.push(("sampling", sampling(&defaults)));
    }
    // Weights and tokenizer may both name the same missing file.
    lines.dedup();
    lines
}

/// Describes an embedder or a reranker. `None` if the directory holds neither.
fn encoder(dir: &Path) -> Option<ReportLines> {
    let mut lines = vec![("format", "encoder".to_owned()), ("files", weight_files(dir).join(", "))];
    let summary = match EmbedderSummary::read(dir) {
        Ok(summary) => summary?,
        Err(error) => {
            lines.push(("problem", error.to_string()));
            return Some(lines);
        }
    };
    let EmbedderSummary { family, layers, dims, max_pieces, pooling, normalizes, prompts } = summary;
    lines.push(("architecture", format!("{family}: {layers} layers, width {dims}")));
    lines.push(("texts", format!("at most {max_pieces} pieces")));
    if !dir.join("tokenizer.json").exists() {
        lines.push(("missing", "tokenizer.json".to_owned()));
    }
    if is_classifier(dir) {
        if let Err(error) = Reranker::check(dir, family) {
            lines.push(("problem", error.to_string()));
        }
        return Some(lines);
    }
    lines.push(("pooling", if normalizes { format!("{pooling}, length 1") } else { pooling.to_owned() }));
    for (name, prompt) in [("query prompt", prompts.query), ("text prompt", prompts.document)] {
        if !prompt.is_empty() {
            lines.push((name, format!("{prompt:?}")));
        }
    }
    Some(lines)
}

/// Returns `true` if the directory holds a sequence classifier, as rerankers are.
fn is_classifier(dir: &Path) -> bool {
    let config = json(&dir.join("config.json"));
    let mut names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| name.ends_with("ForSequenceClassification"))
}

/// Returns the name of the model's family, as its files have it.
fn architecture(weights: &Weights, path: &Path) -> String {
    if let Some(gguf) = weights.gguf() {
        return gguf.architecture().unwrap_or("unknown").to_owned();
    }
    json(&path.join("config.json"))["model_type"].as_str().unwrap_or("unknown").to_owned()
}

fn sampling(defaults: &GenerationDefaults) -> String {
    if defaults.do_sample == Some(false) {
        return "greedy".to_owned();
    }
    let GenerationDefaults { temperature, top_p, top_k, min_p, repetition_penalty, .. } = *defaults;
    let numbers = [
        ("temperature", temperature.map(|value| value.to_string())),
        ("top_p", top_p.map(|value| value.to_string())),
        ("top_k", top_k.map(|value| value.to_string())),
        ("min_p", min_p.map(|value| value.to_string())),
        ("repetition_penalty", repetition_penalty.map(|value| value.to_string())),
    ];
    let given = numbers.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    given.collect::<Vec<_>>().join(", ")
}

/// Describes a PEFT adapter.
fn adapter(dir: &Path) -> ReportLines {
    let config = json(&dir.join("adapter_config.json"));
    let targets = match &config["target_modules"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        other => other.as_str().unwrap_or("unknown").to_owned(),
    };
    let kind = config["peft_type"].as_str().unwrap_or("unknown");
    let mut lines = vec![
        ("format", format!("PEFT adapter ({kind})")),
        ("base model", adapter_base(dir).unwrap_or_else(|| "not named".to_owned())),
        ("rank", format!("{}, alpha {}", config["r"], config["lora_alpha"])),
        ("targets", targets),
    ];
    let given = ADAPTER_SETTINGS.iter().filter(|setting| match &config[**setting] {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        value => value != "none",
    });
    let given: Vec<String> = given.map(|setting| format!("{setting} {}", config[*setting])).collect();
    if !given.is_empty() {
        lines.push(("settings", given.join(", ")));
    }
    lines
}

/// Settings of an adapter that change what it computes.
const ADAPTER_SETTINGS: [&str; 7] =
    ["use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias", "lora_bias"];

/// Describes the policy in a directory, or the one that a family recommends, if there is one.
fn policy(path: &Path) -> ReportLines {
    if !holds_policy(path) {
        return Vec::new();
    }
    let line = match Policy::open(path) {
        Ok(policy) => format!("{}, protocol {}", policy.name, policy.protocol.name()),
        Err(error) => error.to_string(),
    };
    let mut lines = vec![("policy", line)];
    let members = family_members(path);
    if !members.is_empty() {
        lines.insert(0, ("family of", members.join(", ")));
    }
    lines
}

/// Returns `true` if the directory holds a policy or a family of policies.
fn holds_policy(path: &Path) -> bool {
    path.join("policy.toml").is_file() || !family_members(path).is_empty()
}

/// Returns the command that serves what is at `path`, or what has to be done before.
fn serve(path: &Path) -> String {
    let place = path.display();
    if holds_policy(path) {
        return format!("waymark serve --policy {place} --index INDEX");
    }
    let layout = ModelLayout::of(path);
    if let ModelLayout::HuggingFace(dir) = &layout
        && let Some(command) = encoder_command(dir, path)
    {
        return command;
    }
    match layout {
        ModelLayout::Adapter(_) => format!(
            "write `name` and `protocol` into {place}/policy.toml, then: waymark serve --policy {place} --index INDEX"
        ),
        ModelLayout::Foreign(_) => "after the conversion: waymark inspect CONVERTED".to_owned(),
        _ => format!(
            "waymark serve --model {place} --protocol PROTOCOL --index INDEX, PROTOCOL one of {}",
            Policy::BUILTIN.join(", ")
        ),
    }
}

/// Returns the command that uses the embedder or the reranker in `dir`. `None` if it holds neither.
fn encoder_command(dir: &Path, path: &Path) -> Option<String> {
    let place = path.display();
    let repair = || format!("not with the problem above; after a repair: waymark inspect {place}");
    let Ok(summary) = EmbedderSummary::read(dir) else { return Some(repair()) };
    let family = summary?.family;
    if !is_classifier(dir) {
        return Some(format!("waymark index build --corpus CORPUS --out INDEX --embedder {place}"));
    }
    let checked = Reranker::check(dir, family);
    Some(checked.map_or_else(|_| repair(), |()| format!("waymark serve --index INDEX --reranker {place}")))
}

fn json(path: &Path) -> Value {
    std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
