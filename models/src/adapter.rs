//! LoRA adapters in the layout that PEFT saves: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapter changes a projection from `W · x` to `W · x + s · B · (A · x)`, with `s = alpha / r`, or `alpha / √r` for
//! rank-stabilised LoRA (Hu et al. 2021, Kalajdzievski 2023).

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{SafeTensors, TensorView};
use serde_json::Value;

use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::gradient::Module;
use crate::kernel::lowrank::{NarrowMatrix, WideMatrix};
use crate::weights::{decode, fused_part};

/// Sites in a layer: groups of projections that share their input, in the order of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// Queries, keys and values.
    Qkv,
    /// Attention's output projection.
    O,
    /// Gate and up projections.
    GateUp,
    /// Down projection.
    Down,
}

/// Number of sites in a layer.
pub(crate) const SITES: usize = 4;

/// Projections that an adapter may change: each with its site and its index among the site's projections.
const TARGETS: [(Module, Site, usize); 7] = [
    (Module::QProj, Site::Qkv, 0),
    (Module::KProj, Site::Qkv, 1),
    (Module::VProj, Site::Qkv, 2),
    (Module::OProj, Site::O, 0),
    (Module::GateProj, Site::GateUp, 0),
    (Module::UpProj, Site::GateUp, 1),
    (Module::DownProj, Site::Down, 0),
];

/// Settings that change the computation in ways this crate does not implement. Each must be absent, null, false or
/// empty.
const REFUSED_SETTINGS: [&str; 16] = [
    "use_dora",
    "modules_to_save",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "lora_bias",
    "use_qalora",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "lora_ga_config",
];

/// Initializations that change the base model's weights, so that the adapter alone does not describe what was
/// trained.
const REFUSED_INITIALIZATIONS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Parts of the names of experts and routers.
const EXPERT_PATHS: [&str; 4] = [".experts.", ".mlp.gate.", ".shared_expert", ".block_sparse_moe."];

const EXPERT_WAY_OUT: &str = ": adapters on experts and routers are not served; train with target_modules q_proj, k_proj, v_proj \
                              and o_proj, or merge the adapter into its base with PEFT's `merge_and_unload()`";

/// A loaded adapter.
#[derive(Debug)]
pub(crate) struct LoraAdapter {
    layers: Vec<[Option<SiteUpdate>; SITES]>,
}

/// Low-rank update of one site.
#[derive(Debug)]
pub(crate) struct SiteUpdate {
    /// Stacked A matrices of the site's projections, shape (sum of ranks, in).
    pub(crate) shrink: NarrowMatrix,
    /// B matrices of the site's projections.
    pub(crate) parts: Vec<ProjectionUpdate>,
}

impl SiteUpdate {
    fn bytes(&self) -> usize {
        self.shrink.bytes() + self.parts.iter().map(|part| part.expand.bytes()).sum::<usize>()
    }
}

/// B matrix of one projection.
#[derive(Debug)]
pub(crate) struct ProjectionUpdate {
    /// Index of the projection within its site.
    pub(crate) projection: usize,
    /// First row of the projection's A matrix in `shrink`.
    pub(crate) first: usize,
    /// B matrix, scaled by [`AdapterFactors::scale`].
    pub(crate) expand: WideMatrix,
}

impl LoraAdapter {
    /// Loads an adapter for a decoder with configuration `config`.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting or tensor that would otherwise be ignored, [`ModelError::Corrupt`]
    /// for a tensor that is missing or has the wrong shape, and [`ModelError::Io`] for a file that cannot be read.
    pub(crate) fn load(dir: &Path, config: &DecoderConfig) -> Result<Self, ModelError> {
        Ok(Self { layers: AdapterFactors::read(dir, config, |factors| factors.pack())? })
    }

    /// Size of the adapter's matrices, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().flatten().flatten().map(SiteUpdate::bytes).sum()
    }

    /// Update at `site` of layer `layer`. `None` if the adapter leaves the site unchanged.
    pub(crate) fn delta(&self, layer: usize, site: Site) -> Option<&SiteUpdate> {
        self.layers[layer][site as usize].as_ref()
    }
}

/// Low-rank update of one site as stored in the adapter's file.
#[derive(Debug)]
pub(crate) struct AdapterFactors {
    /// Number of columns of each A matrix.
    pub(crate) inn: usize,
    /// Number of rows of each A matrix.
    pub(crate) rank: usize,
    /// Factor applied to `B A x`.
    pub(crate) scale: f32,
    /// Stacked A matrices of the site's projections.
    pub(crate) a: Vec<f32>,
    /// Index of each projection within its site, with the projection's B matrix.
    pub(crate) parts: Vec<(usize, Vec<f32>)>,
}

impl AdapterFactors {
    /// Reads an adapter and collects the result of `keep` for every site, by layer.
    ///
    /// # Errors
    /// The same as for [`LoraAdapter::load`].
    pub(crate) fn read<T>(
        dir: &Path,
        config: &DecoderConfig,
        keep: impl Fn(Self) -> T,
    ) -> Result<Vec<[Option<T>; SITES]>, ModelError> {
        let (file, bytes) = AdapterSource::open(dir)?;
        let tensors = file.tensors(&bytes)?;
        let mut found = TensorPairs::new();
        for (name, tensor) in tensors.iter() {
            let (key, side) = file.place(name, config)?;
            found.entry(key).or_insert([None, None])[side] = Some(tensor);
        }
        let mut layers: Vec<[Option<T>; SITES]> = (0..config.layers).map(|_| Default::default()).collect();
        for (layer, sites) in layers.iter_mut().enumerate() {
            for site in [Site::Qkv, Site::O, Site::GateUp, Site::Down] {
                sites[site as usize] = file.factors(&found, layer, site, config)?.map(&keep);
            }
        }
        Ok(layers)
    }

    fn pack(self) -> SiteUpdate {
        let Self { inn, rank, scale, a, parts } = self;
        let part = |(index, (projection, b)): (usize, (usize, Vec<f32>))| ProjectionUpdate {
            projection,
            first: index * rank,
            expand: WideMatrix::new(&b, rank, scale),
        };
        SiteUpdate { shrink: NarrowMatrix::new(&a, inn), parts: parts.into_iter().enumerate().map(part).collect() }
    }
}

/// Tensors by layer and path of the projection in it, A before B.
type TensorPairs<'a> = BTreeMap<(usize, String), [Option<TensorView<'a>>; 2]>;

/// Adapter directory being read; names the file in error messages.
pub(crate) struct AdapterSource {
    pub(crate) path: PathBuf,
    pub(crate) settings: AdapterSettings,
}

impl AdapterSource {
    /// Reads the settings of the adapter in `dir` and the bytes of its tensors.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Vec<u8>), ModelError> {
        let settings = AdapterSettings::read(dir.join("adapter_config.json"))?;
        let path = dir.join("adapter_model.safetensors");
        let bytes = fs::read(&path).map_err(ModelError::io("read", &path))?;
        Ok((Self { path, settings }, bytes))
    }

    /// Parses `bytes` as a safetensors file.
    pub(crate) fn tensors<'a>(&self, bytes: &'a [u8]) -> Result<SafeTensors<'a>, ModelError> {
        SafeTensors::deserialize(bytes).map_err(|error| self.corrupt(format!("not a safetensors file: {error}")))
    }

    pub(crate) fn corrupt(&self, reason: String) -> ModelError {
        ModelError::Corrupt { path: self.path.clone(), reason }
    }

    /// Parses a tensor name such as `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight` into layer, path of
    /// the projection and side (A or B).
    fn place(&self, name: &str, config: &DecoderConfig) -> Result<((usize, String), usize), ModelError> {
        let layers = config.layers;
        let parse = || {
            let rest = name.strip_prefix("base_model.model.model.layers.")?;
            let (layer, rest) = rest.split_once('.')?;
            let (path, side) = match (rest.strip_suffix(".lora_A.weight"), rest.strip_suffix(".lora_B.weight")) {
                (Some(path), _) => (path, 0),
                (None, Some(path)) => (path, 1),
                (None, None) => return None,
            };
            let known = |(module, ..): &(Module, Site, usize)| {
                path == module.path() || fused(config, *module).is_some_and(|(fused, ..)| fused == path)
            };
            TARGETS.iter().any(known).then_some(((layer.parse().ok()?, path.to_owned()), side))
        };
        match parse() {
            // An adapter of a deeper model of the same family would otherwise load and quietly lose its last layers.
            Some(((layer, _), _)) if layer >= layers => {
                Err(self.corrupt(format!("tensor {name}: the base model has {layers} layers")))
            }
            // The path of an ordinary feed-forward block, which this layer does not have.
            Some(((layer, path), _)) if config.architecture.experts(layer).is_some() && path.starts_with("mlp.") => {
                let what = format!("tensor {name}, where layer {layer} of the base model has experts{EXPERT_WAY_OUT}");
                Err(ModelError::Unsupported { path: self.path.clone(), what })
            }
            Some(place) => Ok(place),
            None => {
                let way_out = if EXPERT_PATHS.iter().any(|path| name.contains(path)) { EXPERT_WAY_OUT } else { "" };
                let what = format!("tensor {name}{way_out}");
                Err(ModelError::Unsupported { path: self.path.clone(), what })
            }
        }
    }

    fn factors(
        &self,
        found: &TensorPairs<'_>,
        layer: usize,
        site: Site,
        config: &DecoderConfig,
    ) -> Result<Option<AdapterFactors>, ModelError> {
        let AdapterSettings { rank, scale } = self.settings;
        let mut stacked = Vec::new();
        let mut parts = Vec::new();
        let mut width = 0;
        for &(module, _, projection) in TARGETS.iter().filter(|(_, at, _)| *at == site) {
            let [out, inn] = module.shape(config);
            let own = (module.path().to_owned(), 0..out, out);
            let places = [Some(own), fused(config, module)].into_iter().flatten();
            let mut pairs = places.filter_map(|place| Some((found.get(&(layer, place.0.clone()))?, place)));
            let Some(([a, b], (path, rows, total))) = pairs.next() else { continue };
            if let Some((_, (other, ..))) = pairs.next() {
                return Err(
                    self.corrupt(format!("layer {layer} has adapters on {path} and on {other}, which holds it"))
                );
            }
            let name = format!("layer {layer} {path}");
            // All projections of a site have the same width.
            width = inn;
            stacked.extend(self.values(&format!("{name} lora_A"), a.as_ref(), &[rank, inn])?);
            let b = self.values(&format!("{name} lora_B"), b.as_ref(), &[total, rank])?;
            parts.push((projection, b[rows.start * rank..rows.end * rank].to_vec()));
        }
        Ok((!parts.is_empty()).then_some(AdapterFactors { inn: width, rank, scale, a: stacked, parts }))
    }

    /// Values of a tensor, after checking that the tensor exists, has the expected shape and holds only finite
    /// numbers.
    pub(crate) fn values(
        &self,
        name: &str,
        tensor: Option<&TensorView<'_>>,
        shape: &[usize],
    ) -> Result<Vec<f32>, ModelError> {
        let tensor = tensor.ok_or_else(|| self.corrupt(format!("{name} is missing")))?;
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(self.corrupt(format!("{name}: shape {found:?}, expected {shape:?} for this base model")));
        }
        let Some(values) = decode(tensor.dtype(), tensor.data()) else {
            let what = format!("{name} of type {:?}", tensor.dtype());
            return Err(ModelError::Unsupported { path: self.path.clone(), what });
        };
        // One NaN in an adapter spoils every row of its batch that uses it; the first is named while the file is known.
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(self.corrupt(format!("{name}: value {at} is {}; train the adapter again", values[at]))),
            None => Ok(values),
        }
    }
}

/// Path of the fused projection that holds `module` in families that fuse, with the rows of `module` in it and their total
/// number.
fn fused(config: &DecoderConfig, module: Module) -> Option<(String, Range<usize>, usize)> {
    let part = fused_part(config.architecture.family(), config, &format!("{}.weight", module.path()))?;
    Some((part.name.strip_suffix(".weight")?.to_owned(), part.rows, part.total))
}

/// Settings read from `adapter_config.json`.
pub(crate) struct AdapterSettings {
    pub(crate) rank: usize,
    /// Factor applied to `B A x`.
    pub(crate) scale: f32,
}

impl AdapterSettings {
    fn read(path: PathBuf) -> Result<Self, ModelError> {
        let text = fs::read_to_string(&path).map_err(ModelError::io("read", &path))?;
        let json: Value = serde_json::from_str(&text)
            .map_err(|error| ModelError::Corrupt { path: path.clone(), reason: format!("not valid json: {error}") })?;
        if let Some(what) = refusal(&json) {
            return Err(ModelError::Unsupported { path, what });
        }
        let missing = |field: &str| ModelError::Corrupt { path: path.clone(), reason: format!("no positive {field}") };
        let rank = json["r"].as_u64().filter(|&rank| rank > 0).ok_or_else(|| missing("r"))? as usize;
        let alpha = json["lora_alpha"].as_f64().ok_or_else(|| missing("lora_alpha"))?;
        // Divided in f64 and rounded once, as Python does before the factor becomes a tensor.
        let divisor = if json["use_rslora"] == Value::Bool(true) { (rank as f64).sqrt() } else { rank as f64 };
        Ok(Self { rank, scale: (alpha / divisor) as f32 })
    }
}

/// Description of the first setting that would be ignored, if any.
fn refusal(json: &Value) -> Option<String> {
    if json["peft_type"] != "LORA" {
        return Some(format!("peft_type {}; only LORA is", json["peft_type"]));
    }
    if !neutral(&json["bias"]) && json["bias"] != "none" {
        return Some(format!("bias {}; train with bias \"none\"", json["bias"]));
    }
    // The field is `true` or a method's name, and some methods append a number (`pissa_niter_16`).
    let initialization = json["init_lora_weights"].as_str().unwrap_or_default();
    if REFUSED_INITIALIZATIONS.iter().any(|refused| initialization.starts_with(refused)) {
        return Some(format!("init_lora_weights \"{initialization}\"; save it converted to a plain adapter"));
    }
    let setting = REFUSED_SETTINGS.iter().find(|key| !neutral(&json[**key]))?;
    let value = &json[*setting];
    Some(format!(
        "{setting} {value}; merge the adapter into its base with PEFT's `merge_and_unload()` and serve the result"
    ))
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
