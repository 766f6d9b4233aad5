//! Checkpoints as named tensors: memory-mapped GGUF and safetensors files under the same names, and the weights of
//! a learner.

mod experts;
mod fused;
mod gguf;
mod hf;
mod mapped_file;
mod memory_weights;
mod random_checkpoint;
mod tensor_view;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub(crate) use fused::part as fused_part;
pub use gguf::Gguf;
pub use hf::Safetensors;
pub(crate) use hf::ShardIndex;
pub(crate) use mapped_file::Map;
pub use random_checkpoint::{write_random, write_random_with};
pub use tensor_view::TensorView;
pub(crate) use tensor_view::{GgmlKind, decode, kind_of};

use crate::ModelError;
use crate::architecture::{DecoderConfig, Family};

/// Weights and configuration of a decoder.
#[derive(Debug)]
pub struct Weights {
    source: WeightsSource,
    config: DecoderConfig,
    id: [u8; 16],
}

#[derive(Debug)]
enum WeightsSource {
    Gguf(Gguf),
    Safetensors(Safetensors),
    Memory(memory_weights::MemoryWeights),
}

/// Use of the projection of a decoder's output to the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputProjection {
    /// Loaded, or replaced by the embedding if the two are tied.
    Needed,
    /// Neither required nor loaded.
    Unused,
}

impl Weights {
    /// Opens a GGUF file, a `.safetensors` file next to its `config.json`, or a directory of either kind.
    ///
    /// # Errors
    /// [`ModelError`] naming the file and its defect.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::open_with(path, OutputProjection::Needed)
    }

    /// Opens the layers of a checkpoint like [`open`](Self::open). An output projection may be missing, and is not
    /// loaded.
    pub(crate) fn open_body(path: &Path) -> Result<Self, ModelError> {
        Self::open_with(path, OutputProjection::Unused)
    }

    /// Reads the configuration of [`open_body`](Self::open_body) from the `config.json` in `dir` alone. Features that
    /// only the tensors reveal, such as biases, count as absent.
    pub(crate) fn body_config(dir: &Path) -> Result<DecoderConfig, ModelError> {
        let file = dir.join("config.json");
        let bytes = std::fs::read(&file).map_err(ModelError::io("read", &file))?;
        hf::read_config(&file, &bytes, &Safetensors::none(dir), OutputProjection::Unused)
    }

    fn open_with(path: &Path, projection: OutputProjection) -> Result<Self, ModelError> {
        let mut hash = Sha256::new();
        let (source, mut config) = match gguf_at(path) {
            Some(file) => {
                let gguf = Gguf::open(&file)?;
                let config = gguf.config()?;
                gguf.identify(&mut hash);
                (WeightsSource::Gguf(gguf), config)
            }
            None => {
                let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
                let tensors = Safetensors::open(path)?;
                let file = folder.join("config.json");
                let bytes = std::fs::read(&file).map_err(ModelError::io("read", &file))?;
                let config = hf::read_config(&file, &bytes, &tensors, projection)?;
                tensors.identify(&mut hash);
                hash.update(&bytes);
                (WeightsSource::Safetensors(tensors), config)
            }
        };
        // A decoder with a tied projection loads no other matrix for it.
        config.tied_embeddings |= projection == OutputProjection::Unused;
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finalize()[..16]);
        Ok(Self { source, config, id })
    }

    /// Configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Identifier of the content: half of a SHA-256 over each file's size, header and 64 samples of its data, and
    /// over `config.json` if there is one; for weights in memory, over 64 samples of their values. Distinguishes models
    /// and fine-tuned versions, which change nearly every weight. Files that differ only between the samples share an
    /// ID, so it is not a checksum.
    pub fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// First 64 bits of [`id`](Self::id), for cache keys.
    pub fn generation(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.id;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Tensor by its name in the Hugging Face checkpoint, such as `model.layers.0.self_attn.q_proj.weight`.
    /// Projections that the checkpoint fuses appear separately, under the names that Llama has, and norms include the
    /// constant that some families leave out.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let family = self.family();
        if let Some(part) = fused::part(family, &self.config, name) {
            return part.of(self.stored(&part.name)?, name);
        }
        let view = match self.stacked(name) {
            Some(stacked) => stacked.of(self.stored(&stacked.name)?, name)?,
            None => self.stored(name)?,
        };
        match &self.source {
            WeightsSource::Safetensors(_) if family.norm_offset != 0.0 && name.ends_with("norm.weight") => {
                view.plus(family.norm_offset)
            }
            _ => Ok(view),
        }
    }

    /// Tensor as the source has it.
    fn stored(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        match &self.source {
            WeightsSource::Gguf(gguf) => gguf.tensor(name),
            WeightsSource::Safetensors(tensors) => tensors.tensor(&self.renamed(tensors, name)),
            WeightsSource::Memory(tensors) => tensors.tensor(name),
        }
    }

    /// Name of a tensor in a Hugging Face checkpoint. Experts of Mixtral have the names of Qwen in memory, and some
    /// tools save them under these.
    fn renamed<'n>(&self, tensors: &Safetensors, name: &'n str) -> Cow<'n, str> {
        if tensors.has(name) { Cow::Borrowed(name) } else { experts::renamed(self.family().experts, name) }
    }

    /// Location of the tensor `name` in a stacked tensor of experts. `None` for other tensors, and if experts are not
    /// stacked.
    fn stacked(&self, name: &str) -> Option<experts::StackedExpert> {
        match &self.source {
            WeightsSource::Gguf(_) => experts::stacked(&self.config, name),
            WeightsSource::Safetensors(tensors) => {
                experts::merged(&self.config, name).filter(|place| tensors.has(&place.name))
            }
            WeightsSource::Memory(_) => None,
        }
    }

    /// Family of the model. In memory, tensors have the names and values of Llama's layout.
    fn family(&self) -> &'static Family {
        match &self.source {
            WeightsSource::Memory(_) => Family::llama(),
            WeightsSource::Gguf(_) | WeightsSource::Safetensors(_) => self.config.architecture.family(),
        }
    }

    /// Returns `true` if there is a tensor with this name.
    pub fn has(&self, name: &str) -> bool {
        let part = fused::part(self.family(), &self.config, name);
        let stacked = self.stacked(name);
        let place = part.as_ref().map(|part| part.name.as_str()).or(stacked.as_ref().map(|place| place.name.as_str()));
        let name = place.unwrap_or(name);
        match &self.source {
            WeightsSource::Gguf(gguf) => gguf.has(name),
            WeightsSource::Safetensors(tensors) => tensors.has(&self.renamed(tensors, name)),
            WeightsSource::Memory(tensors) => tensors.has(name),
        }
    }

    /// Returns `true` if most bytes of the first layer's matrices are in super-blocks of 256 values (K-quants, IQ4_XS).
    pub fn has_super_blocks(&self) -> bool {
        const MATRICES: [&str; 10] = [
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "mlp.experts.gate_proj",
            "mlp.experts.up_proj",
            "mlp.experts.down_proj",
        ];
        let names = MATRICES.map(|matrix| format!("model.layers.0.{matrix}.weight"));
        let mut all = 0;
        let mut blocked = 0;
        for tensor in names.iter().filter(|name| self.has(name)).filter_map(|name| self.tensor(name).ok()) {
            all += tensor.bytes.len();
            if tensor.kind.block_size() == 256 {
                blocked += tensor.bytes.len();
            }
        }
        blocked * 2 > all
    }

    /// Lets the system take back the memory of tensors that were read; they are read again on the next access.
    pub(crate) fn release(&self) {
        match &self.source {
            WeightsSource::Gguf(gguf) => gguf.release(),
            WeightsSource::Safetensors(tensors) => tensors.release(),
            WeightsSource::Memory(_) => {}
        }
    }

    /// GGUF file behind the weights, with its metadata. `None` for other sources.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            WeightsSource::Gguf(gguf) => Some(gguf),
            WeightsSource::Safetensors(_) | WeightsSource::Memory(_) => None,
        }
    }
}

/// GGUF file that a path denotes: the path itself unless it ends in `.safetensors`, or the only GGUF file in a
/// directory without a Hugging Face checkpoint. A `config.json` alone does not make one: repositories of GGUF files
/// often have it.
fn gguf_at(path: &Path) -> Option<PathBuf> {
    let has_end = |path: &Path, end: &str| path.extension().is_some_and(|extension| extension == end);
    if !path.is_dir() {
        return (!has_end(path, "safetensors")).then(|| path.to_owned());
    }
    let has = |name: &str| path.join(name).is_file();
    if has("config.json") && (has("model.safetensors") || has(ShardIndex::FILE)) {
        return None;
    }
    let files = std::fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = files.filter(|file| has_end(file, "gguf")).collect();
    if files.len() == 1 { files.pop() } else { None }
}
