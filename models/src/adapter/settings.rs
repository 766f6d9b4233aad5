//! Settings of an adapter: `adapter_config.json`.

use std::fs;
use std::path::{Path, PathBuf};

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::ModelError;

/// Settings that change the computation in ways this crate does not implement. Each must be absent, null, false or
/// empty.
const REFUSED_SETTINGS: [&str; 12] = [
    "fan_in_fan_out",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "use_qalora",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "lora_ga_config",
    "ensure_weight_tying",
];

/// Settings that serving supports and training does not.
const SERVED_SETTINGS: [&str; 5] = ["use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias"];

/// Initializations that change the base model's weights, so the adapter alone does not describe what was
/// trained.
const REFUSED_INITIALIZATIONS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

pub(super) const WAY_OUT: &str =
    "merge the adapter into its base with PEFT's `merge_and_unload()` and serve the result";

/// Settings read from `adapter_config.json`.
pub(crate) struct AdapterSettings {
    /// Rank of modules that no pattern names.
    pub(crate) rank: usize,
    /// Factor applied to `B A x` in modules that no pattern names.
    pub(crate) scale: f32,
    alpha: f64,
    rank_stabilized: bool,
    /// Ranks of the modules whose names match.
    ranks: Vec<(Regex, usize)>,
    /// Alphas of the modules whose names match.
    alphas: Vec<(Regex, f64)>,
    /// If `true`, rows of the adapted weights have trained lengths (DoRA).
    pub(super) weight_decomposed: bool,
    /// Modules that are saved whole.
    pub(super) saved_modules: Vec<String>,
    /// First setting that serving supports and training does not, with its value. `None` if there is none.
    pub(super) untrained: Option<String>,
}

impl AdapterSettings {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting that would otherwise be ignored, [`ModelError::Corrupt`] for a value
    /// that makes no sense, and [`ModelError::Io`] for a file that cannot be read.
    pub(super) fn read(path: PathBuf) -> Result<Self, ModelError> {
        let text = fs::read_to_string(&path).map_err(ModelError::io("read", &path))?;
        let json: Value = serde_json::from_str(&text)
            .map_err(|error| ModelError::Corrupt { path: path.clone(), reason: format!("not valid json: {error}") })?;
        if let Some(what) = refusal(&json) {
            return Err(ModelError::Unsupported { path, what });
        }
        let corrupt = |reason: String| ModelError::Corrupt { path: path.clone(), reason };
        let rank = positive_rank(&json["r"]).ok_or_else(|| corrupt("no positive r".to_owned()))?;
        let alpha = finite_alpha(&json["lora_alpha"]).ok_or_else(|| corrupt("no finite lora_alpha".to_owned()))?;
        let rank_stabilized = json["use_rslora"] == Value::Bool(true);
        Ok(Self {
            rank,
            scale: scale(alpha, rank, rank_stabilized),
            alpha,
            rank_stabilized,
            ranks: patterns(&json, "rank_pattern", &path, positive_rank)?,
            alphas: patterns(&json, "alpha_pattern", &path, finite_alpha)?,
            weight_decomposed: json["use_dora"] == Value::Bool(true),
            saved_modules: names(&json["modules_to_save"]),
            untrained: untrained(&json),
        })
    }

    /// Rank and scale of a module such as `model.layers.0.self_attn.q_proj`.
    pub(super) fn of(&self, module: &str) -> (usize, f32) {
        let rank = first_match(&self.ranks, module).unwrap_or(self.rank);
        let alpha = first_match(&self.alphas, module).unwrap_or(self.alpha);
        (rank, scale(alpha, rank, self.rank_stabilized))
    }
}

fn positive_rank(value: &Value) -> Option<usize> {
    value.as_u64().filter(|&rank| rank > 0).and_then(|rank| usize::try_from(rank).ok())
}

fn finite_alpha(value: &Value) -> Option<f64> {
    value.as_f64().filter(|alpha| (*alpha as f32).is_finite())
}

/// Factor on the output of the B matrix.
fn scale(alpha: f64, rank: usize, rank_stabilized: bool) -> f32 {
    // Divided in f64 and rounded once, as Python does before the factor becomes a tensor.
    let divisor = if rank_stabilized { (rank as f64).sqrt() } else { rank as f64 };
    (alpha / divisor) as f32
}

/// Value of the first pattern that matches, as in PEFT's `get_pattern_key`.
fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, value)| *value)
}

/// Maximum number of patterns of a setting: several for each module of the largest models.
const MOST_PATTERNS: usize = 1024;

/// Maximum size of a compiled pattern, in bytes. A name takes a few thousand bytes, and every `\w` some hundred
/// thousand.
const PATTERN_BYTES: usize = 1 << 20;

/// Values by regular expression over the names of modules, in the order of the file.
fn patterns<T>(
    json: &Value,
    setting: &str,
    path: &Path,
    value: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(Regex, T)>, ModelError> {
    let fields = json[setting].as_object().into_iter().flatten();
    if fields.clone().count() > MOST_PATTERNS {
        let reason = format!("{setting} has more than {MOST_PATTERNS} patterns");
        return Err(ModelError::Corrupt { path: path.to_owned(), reason });
    }
    let pattern = |(key, found): (&String, &Value)| -> Result<(Regex, T), ModelError> {
        let regex =
            RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{key})$")).size_limit(PATTERN_BYTES).build().map_err(|_| {
                ModelError::Unsupported {
                    path: path.to_owned(),
                    what: format!(
                        "{setting} {key:?}, which is not a regular expression of the kind read here; {WAY_OUT}"
                    ),
                }
            })?;
        let value = value(found).ok_or_else(|| ModelError::Corrupt {
            path: path.to_owned(),
            reason: format!("{setting} {key:?}: {found} is not a usable number"),
        })?;
        Ok((regex, value))
    };
    fields.map(pattern).collect()
}

fn names(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Description of the first setting that would be ignored, if any.
fn refusal(json: &Value) -> Option<String> {
    if json["peft_type"] != "LORA" {
        return Some(format!("peft_type {}; only LORA is", json["peft_type"]));
    }
    // The field is `true` or a method's name, and some methods append a number (`pissa_niter_16`).
    let initialization = json["init_lora_weights"].as_str().unwrap_or_default();
    if REFUSED_INITIALIZATIONS.iter().any(|refused| initialization.starts_with(refused)) {
        return Some(format!("init_lora_weights \"{initialization}\"; save it converted to a plain adapter"));
    }
    let setting = REFUSED_SETTINGS.iter().find(|key| !neutral(&json[**key]))?;
    Some(format!("{setting} {}; {WAY_OUT}", json[*setting]))
}

/// First setting that serving supports and training does not, if any.
fn untrained(json: &Value) -> Option<String> {
    if !neutral(&json["bias"]) && json["bias"] != "none" {
        return Some(format!("bias {}", json["bias"]));
    }
    let setting = SERVED_SETTINGS.iter().find(|key| !neutral(&json[**key]))?;
    Some(format!("{setting} {}", json[*setting]))
}

fn neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
