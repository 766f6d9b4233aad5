//! Tensors of an adapter, by the module that they change.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::tensor::{SafeTensors, TensorView};

use super::settings::WAY_OUT;
use super::{AdapterSource, EMBEDDING, HEAD, Site, TARGETS};
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::gradient::Module;
use crate::kernel::Packed;
use crate::weights::{fused_part, kind_of};

/// Parts of tensor names that mark experts and routers.
const EXPERT_PATHS: [&str; 4] = [".experts.", ".mlp.gate.", ".shared_expert", ".block_sparse_moe."];

const EXPERT_WAY_OUT: &str = ": adapters on experts and routers are not served; train with target_modules q_proj, k_proj, v_proj \
                              and o_proj, or merge the adapter into its base with PEFT's `merge_and_unload()`";

/// Role of a tensor in its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TensorRole {
    A,
    B,
    /// Bias on the output of B (`lora_bias`).
    OutputBias,
    /// Lengths of the rows of the adapted weight (DoRA).
    Magnitude,
    /// Bias that replaces the base's.
    Bias,
    /// Matrix that replaces the base's.
    Weight,
}

/// Suffixes of tensor names, with their roles. A suffix comes before any shorter suffix that it ends with.
const SUFFIXES: [(&str, TensorRole); 11] = [
    (".lora_A.weight", TensorRole::A),
    (".lora_B.weight", TensorRole::B),
    (".lora_B.bias", TensorRole::OutputBias),
    (".lora_magnitude_vector.weight", TensorRole::Magnitude),
    (".lora_magnitude_vector", TensorRole::Magnitude),
    (".lora_embedding_A", TensorRole::A),
    (".lora_embedding_B", TensorRole::B),
    (".base_layer.weight", TensorRole::Weight),
    (".base_layer.bias", TensorRole::Bias),
    (".weight", TensorRole::Weight),
    (".bias", TensorRole::Bias),
];

/// Low-rank update of one site as stored in the adapter's file.
#[derive(Debug)]
pub(crate) struct AdapterFactors {
    /// Number of columns of each A matrix.
    pub(crate) inn: usize,
    /// Updates of the site's projections.
    pub(crate) parts: Vec<FactorPart>,
}

/// Update of one projection as stored in the adapter's file.
#[derive(Debug)]
pub(crate) struct FactorPart {
    /// Index of the projection within its site.
    pub(crate) projection: usize,
    /// Number of rows of A. 0 if only a bias is replaced.
    pub(crate) rank: usize,
    /// Factor applied to `B A x`.
    pub(crate) scale: f32,
    /// A matrix, shape (rank, in).
    pub(crate) a: Vec<f32>,
    /// B matrix, shape (out, rank).
    pub(crate) b: Vec<f32>,
    /// Trained lengths of the rows of `W + s B A` (DoRA). `None` keeps the sum as it is.
    pub(crate) magnitude: Option<Vec<f32>>,
    /// Bias on the output of B, to be scaled like the output.
    pub(crate) output_bias: Option<Vec<f32>>,
    /// Bias that replaces the base's. `None` keeps the base's bias.
    pub(crate) bias: Option<Vec<f32>>,
}

/// Update of the embedding or of the output projection.
#[derive(Debug)]
pub(crate) struct VocabularyFactors {
    /// Matrix that replaces the base's, shape (vocabulary, hidden). `None` keeps the base's matrix.
    pub(crate) weight: Option<Packed>,
    /// Low-rank update. `None` if there is none.
    pub(crate) factors: Option<FactorPart>,
}

/// Tensors of an adapter, by module.
pub(crate) struct AdapterModules<'a> {
    source: &'a AdapterSource,
    config: &'a DecoderConfig,
    tensors: BTreeMap<(String, TensorRole), TensorView<'a>>,
}

impl<'a> AdapterModules<'a> {
    /// Sorts the tensors of an adapter by module.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a tensor or a saved module that would otherwise be ignored, and
    /// [`ModelError::Corrupt`] for a tensor of a layer that the base model lacks, for two tensors with the same role,
    /// and for a saved module without a tensor.
    pub(crate) fn new(
        source: &'a AdapterSource,
        file: &SafeTensors<'a>,
        config: &'a DecoderConfig,
    ) -> Result<Self, ModelError> {
        let mut modules = Self { source, config, tensors: BTreeMap::new() };
        for (name, tensor) in file.tensors() {
            let place = modules.place(&name)?;
            if modules.tensors.insert(place, tensor).is_some() {
                return Err(source.corrupt(format!("tensor {name} is there twice, under two names")));
            }
        }
        for saved in &source.settings.saved_modules {
            let Some(module) =
                [EMBEDDING, HEAD].into_iter().find(|module| module.rsplit('.').next() == Some(saved.as_str()))
            else {
                let known = "embed_tokens and lm_head are served";
                return Err(source.unsupported(format!("modules_to_save {saved:?}, where {known}; {WAY_OUT}")));
            };
            if modules.get(module, TensorRole::Weight).is_none() {
                return Err(source.corrupt(format!("modules_to_save names {saved}, whose weight is missing")));
            }
        }
        Ok(modules)
    }

    /// Update of a site of a layer. `None` if the adapter leaves it unchanged.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] for tensors that are missing, contradictory, not finite or of the wrong shape, and
    /// [`ModelError::Unsupported`] for an unknown element type.
    pub(crate) fn site(&self, layer: usize, site: Site) -> Result<Option<AdapterFactors>, ModelError> {
        let mut parts = Vec::new();
        let mut width = 0;
        for &(module, _, projection) in TARGETS.iter().filter(|(_, at, _)| *at == site) {
            let [out, inn] = module.shape(self.config);
            // All projections of a site have the same width.
            width = inn;
            let own = (module.path().to_owned(), 0..out, out);
            let places = [Some(own), fused(self.config, module)].into_iter().flatten();
            let mut found = places.filter(|(path, ..)| self.has(&in_layer(layer, path)));
            let Some((path, rows, total)) = found.next() else { continue };
            if let Some((other, ..)) = found.next() {
                let reason = format!("layer {layer} has adapters on {path} and on {other}, which holds it");
                return Err(self.source.corrupt(reason));
            }
            parts.push(self.part(&in_layer(layer, &path), projection, rows, [total, inn])?);
        }
        Ok((!parts.is_empty()).then_some(AdapterFactors { inn: width, parts }))
    }

    /// Update of the embedding. The A matrix has one column per token, and a replacement matrix has one row per token.
    /// `None` if there is no update.
    ///
    /// # Errors
    /// The same as for [`site`](Self::site), and [`ModelError::Unsupported`] for DoRA.
    pub(crate) fn embedding(&self) -> Result<Option<VocabularyFactors>, ModelError> {
        let DecoderConfig { vocab, hidden, .. } = *self.config;
        let update = self.vocabulary(EMBEDDING, [hidden, vocab])?;
        let decomposed =
            |update: &VocabularyFactors| update.factors.as_ref().is_some_and(|factors| factors.magnitude.is_some());
        if update.as_ref().is_some_and(decomposed) {
            return Err(self.source.unsupported(format!("use_dora on embed_tokens; {WAY_OUT}")));
        }
        Ok(update)
    }

    /// Update of the output projection. `None` if there is none.
    ///
    /// # Errors
    /// The same as for [`site`](Self::site).
    pub(crate) fn head(&self) -> Result<Option<VocabularyFactors>, ModelError> {
        self.vocabulary(HEAD, [self.config.vocab, self.config.hidden])
    }

    fn vocabulary(&self, module: &str, shape: [usize; 2]) -> Result<Option<VocabularyFactors>, ModelError> {
        let weight = self.get(module, TensorRole::Weight).map(|tensor| self.matrix(module, tensor)).transpose()?;
        let factors = self.adapts(module).then(|| self.part(module, 0, 0..shape[0], shape)).transpose()?;
        Ok((weight.is_some() || factors.is_some()).then_some(VocabularyFactors { weight, factors }))
    }

    /// Matrix of the shape (vocabulary, hidden), as precise as it was saved.
    fn matrix(&self, module: &str, tensor: &TensorView<'_>) -> Result<Packed, ModelError> {
        let DecoderConfig { vocab, hidden, .. } = *self.config;
        let name = format!("{module}.weight");
        let values = self.source.values(&name, Some(tensor), &[vocab, hidden])?;
        match kind_of(tensor.dtype()) {
            Some(kind) => Packed::from_ggml(kind, tensor.data(), vocab, hidden),
            None => Ok(Packed::from_f32(&values, vocab, hidden)),
        }
    }

    /// Update of the projection with index `projection` in its site. `module` has shape `[total, inn]`, and the
    /// projection occupies its `rows`.
    fn part(
        &self,
        module: &str,
        projection: usize,
        rows: Range<usize>,
        [total, inn]: [usize; 2],
    ) -> Result<FactorPart, ModelError> {
        let settings = &self.source.settings;
        let adapted = self.adapts(module);
        let (rank, scale) = if adapted { settings.of(module) } else { (0, 0.0) };
        if !scale.is_finite() {
            return Err(self.source.corrupt(format!("{module}: the scale of rank {rank} is {scale}")));
        }
        let of = |role: TensorRole, shape: &[usize]| {
            self.source.values(&format!("{module} {}", role.name()), self.get(module, role), shape)
        };
        let vector = |role: TensorRole| -> Result<Option<Vec<f32>>, ModelError> {
            let found = self.get(module, role).map(|_| of(role, &[total])).transpose()?;
            Ok(found.map(|values| values[rows.clone()].to_vec()))
        };
        let magnitude = vector(TensorRole::Magnitude)?;
        if adapted && settings.weight_decomposed != magnitude.is_some() {
            let found = if magnitude.is_some() { "has" } else { "lacks" };
            let use_dora = settings.weight_decomposed;
            return Err(self
                .source
                .corrupt(format!("{module} {found} a magnitude vector, but use_dora is {use_dora}")));
        }
        let (a, b) = match adapted {
            true => (of(TensorRole::A, &[rank, inn])?, of(TensorRole::B, &[total, rank])?),
            false => (Vec::new(), Vec::new()),
        };
        let b = b.get(rows.start * rank..rows.end * rank).unwrap_or_default().to_vec();
        let output_bias = vector(TensorRole::OutputBias)?;
        Ok(FactorPart { projection, rank, scale, a, b, magnitude, output_bias, bias: vector(TensorRole::Bias)? })
    }

    fn get(&self, module: &str, role: TensorRole) -> Option<&TensorView<'a>> {
        self.tensors.get(&(module.to_owned(), role))
    }

    /// Returns `true` if there is a low-rank update of `module`.
    fn adapts(&self, module: &str) -> bool {
        [TensorRole::A, TensorRole::B, TensorRole::OutputBias, TensorRole::Magnitude]
            .into_iter()
            .any(|role| self.get(module, role).is_some())
    }

    fn has(&self, module: &str) -> bool {
        self.tensors.range((module.to_owned(), TensorRole::A)..).next().is_some_and(|((found, _), _)| found == module)
    }

    /// Parses a tensor name such as `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight` into module and
    /// role.
    fn place(&self, name: &str) -> Result<(String, TensorRole), ModelError> {
        let parse = || {
            let rest = name.strip_prefix("base_model.model.")?;
            let role = |(suffix, role): &(&str, TensorRole)| Some((rest.strip_suffix(suffix)?.to_owned(), *role));
            SUFFIXES.iter().find_map(role)
        };
        let unsupported = || {
            let experts = EXPERT_PATHS.iter().any(|path| name.contains(path));
            let way_out = if experts { EXPERT_WAY_OUT.to_owned() } else { format!("; {WAY_OUT}") };
            self.source.unsupported(format!("tensor {name}{way_out}"))
        };
        let (module, role) = parse().ok_or_else(unsupported)?;
        let served = match (module.as_str(), role) {
            (EMBEDDING, TensorRole::A | TensorRole::B | TensorRole::Magnitude | TensorRole::Weight) => true,
            (
                HEAD,
                TensorRole::A | TensorRole::B | TensorRole::Magnitude | TensorRole::OutputBias | TensorRole::Weight,
            ) => true,
            (_, TensorRole::Weight) => false,
            _ => self.in_some_layer(&module, name)?,
        };
        if served { Ok((module, role)) } else { Err(unsupported()) }
    }

    /// Returns `true` if `module` is the path of a projection that an adapter may change. Errors contain the tensor's
    /// `name`.
    fn in_some_layer(&self, module: &str, name: &str) -> Result<bool, ModelError> {
        let layers = self.config.layers;
        let parsed = module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let Some((Ok(layer), path)) = parsed.map(|(layer, path)| (layer.parse::<usize>(), path)) else {
            return Ok(false);
        };
        let known = |(module, ..): &(Module, Site, usize)| {
            path == module.path() || fused(self.config, *module).is_some_and(|(fused, ..)| fused == path)
        };
        if !TARGETS.iter().any(known) {
            return Ok(false);
        }
        // An adapter of a deeper model of the same family would otherwise load and quietly lose its last layers.
        if layer >= layers {
            return Err(self.source.corrupt(format!("tensor {name}: the base model has {layers} layers")));
        }
        // The path belongs to an ordinary feed-forward block, but this layer has experts.
        if self.config.architecture.experts(layer).is_some() && path.starts_with("mlp.") {
            let what = format!("tensor {name}, where layer {layer} of the base model has experts{EXPERT_WAY_OUT}");
            return Err(self.source.unsupported(what));
        }
        // Lookups format the layer number, so a tensor of layer `01` would be stored but never found.
        Ok(module == in_layer(layer, path))
    }
}

impl TensorRole {
    /// Name of the tensor in error messages.
    fn name(self) -> &'static str {
        match self {
            Self::A => "lora_A",
            Self::B => "lora_B",
            Self::OutputBias => "lora_B.bias",
            Self::Magnitude => "lora_magnitude_vector",
            Self::Bias => "bias",
            Self::Weight => "weight",
        }
    }
}

fn in_layer(layer: usize, path: &str) -> String {
    format!("model.layers.{layer}.{path}")
}

/// Path of the fused projection that holds `module`, the rows of `module` in it, and its total number of rows. `None`
/// if the family does not fuse `module`.
fn fused(config: &DecoderConfig, module: Module) -> Option<(String, Range<usize>, usize)> {
    let part = fused_part(config.architecture.family(), config, &format!("{}.weight", module.path()))?;
    Some((part.name.strip_suffix(".weight")?.to_owned(), part.rows, part.total))
}
