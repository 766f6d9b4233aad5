//! Where a card's weights come from.

use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::ModelError;
use crate::cuda::CudaError;
use crate::cuda::device::{Card, Region};
use crate::cuda::plan::{Place, WeightPlaces};
use crate::decoder::DecoderConfig;
use crate::decoder::tensor::{vector, view};
use crate::kernel::rope::Rope;
use crate::weights::{GgmlKind, TensorView, Weights};

/// Where weights come from.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A checkpoint; quantised matrices are unpacked and rounded to `bf16`.
    Checkpoint(&'a Weights),
    /// Numbers without meaning in a given shape, to measure with: matrices are normal with a standard deviation of
    /// `1 / √hidden`, so that activations keep their size, and norms are one.
    Random {
        /// The shape.
        config: &'a DecoderConfig,
        /// Where the numbers start.
        seed: u64,
    },
}

impl Source<'_> {
    /// The decoder the weights are for.
    pub fn config(&self) -> &DecoderConfig {
        match self {
            Self::Checkpoint(weights) => weights.config(),
            Self::Random { config, .. } => config,
        }
    }
}

/// Values of a pattern that random matrices are made of: enough that no cache of a card holds them.
const PATTERN: usize = 1 << 24;

/// Copies weights to their places.
pub(super) struct Loader<'a> {
    source: Source<'a>,
    card: &'a Card,
    region: &'a Region,
    /// Random numbers on the card, where they are wanted, and how many matrices were made of them.
    pattern: Option<(Region, usize)>,
    /// Staging, used again.
    values: Vec<bf16>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(source: Source<'a>, card: &'a Card, region: &'a Region) -> Result<Self, CudaError> {
        let pattern = match source {
            Source::Checkpoint(_) => None,
            Source::Random { config, seed } => Some((pattern(card, seed, config.hidden)?, 0)),
        };
        Ok(Self { source, card, region, pattern, values: Vec::new() })
    }

    /// Copies everything.
    pub(super) fn load(mut self, places: &WeightPlaces, context: usize) -> Result<(), CudaError> {
        let config = self.source.config().clone();
        let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
        self.matrices(&[("model.embed_tokens.weight".to_owned(), config.vocab)], hidden, places.embedding)?;
        for (index, layer) in places.layers.iter().enumerate() {
            let name = |rest: &str| format!("model.layers.{index}.{rest}");
            let qkv = [("q", q), ("k", kv), ("v", kv)];
            let projections = qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj.weight")), out));
            self.vectors(&[(name("input_layernorm.weight"), hidden)], 1.0, layer.attention_norm)?;
            self.matrices(&projections, hidden, layer.qkv)?;
            if let Some(bias) = layer.bias {
                let biases = qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj.bias")), out));
                self.vectors(&biases, 0.0, bias)?;
            }
            for (part, place) in ["q", "k"].into_iter().zip(layer.head_norms.into_iter().flatten()) {
                self.vectors(&[(name(&format!("self_attn.{part}_norm.weight")), config.head_dim)], 1.0, place)?;
            }
            self.matrices(&[(name("self_attn.o_proj.weight"), hidden)], q, layer.o)?;
            self.vectors(&[(name("post_attention_layernorm.weight"), hidden)], 1.0, layer.ffn_norm)?;
            let gate_up = ["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj.weight")), config.ffn));
            self.matrices(&gate_up, hidden, layer.gate_up)?;
            self.matrices(&[(name("mlp.down_proj.weight"), hidden)], config.ffn, layer.down)?;
        }
        self.vectors(&[("model.norm.weight".to_owned(), hidden)], 1.0, places.norm)?;
        if let Some(head) = places.head {
            self.matrices(&[("lm_head.weight".to_owned(), config.vocab)], hidden, head)?;
        }
        let mut rope = Rope::new(config.head_dim, config.rope_base, &config.rope_scaling);
        rope.reserve(context);
        self.put(&rope.table()[..context * config.head_dim], places.rotary)
    }

    /// Copies, and waits until what was copied from is free again.
    fn put<T: Copy>(&self, values: &[T], place: Place<T>) -> Result<(), CudaError> {
        self.card.upload(values, self.region.span(place))?;
        self.card.synchronize()
    }

    /// Matrices with `inn` columns each, one below the other.
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: Place<bf16>) -> Result<(), CudaError> {
        let Source::Checkpoint(weights) = self.source else { return self.random(place) };
        let mut at = 0;
        for (name, out) in named {
            let tensor = view(weights, name, &[*out, inn])?;
            self.half(&tensor)?;
            self.put(&self.values, place.part(at, out * inn))?;
            at += out * inn;
        }
        Ok(())
    }

    /// A tensor's values in `bf16`, into the staging memory.
    fn half(&mut self, tensor: &TensorView<'_>) -> Result<(), ModelError> {
        self.values.clear();
        if tensor.kind == GgmlKind::BF16 {
            let pairs = tensor.bytes.chunks_exact(2);
            self.values.extend(pairs.map(|pair| bf16::from_le_bytes([pair[0], pair[1]])));
            return Ok(());
        }
        self.values.extend(tensor.to_f32()?.into_iter().map(bf16::from_f32));
        Ok(())
    }

    /// Vectors, one behind the other; where numbers are random, all of them `value`.
    fn vectors(&self, named: &[(String, usize)], value: f32, place: Place<f32>) -> Result<(), CudaError> {
        let Source::Checkpoint(weights) = self.source else { return self.put(&vec![value; place.len()], place) };
        let parts = named.iter().map(|(name, len)| vector(weights, name, *len)).collect::<Result<Vec<_>, _>>()?;
        self.put(&parts.concat(), place)
    }

    /// Fills a matrix with pieces of the pattern, each time from another beginning.
    fn random(&mut self, place: Place<bf16>) -> Result<(), CudaError> {
        let Some((pattern, made)) = &mut self.pattern else { return Ok(()) };
        *made += 1;
        // Odd steps through a power of two come to every even place before they repeat.
        let mut from = *made * 2_654_435 % (PATTERN / 2) * 2;
        let mut at = 0;
        while at < place.len() {
            let len = (PATTERN - from).min(place.len() - at);
            let piece = pattern.span::<bf16>(Place::new(0, PATTERN)).slice(from, len);
            let (Some(piece), to) = (piece, self.region.span(place.part(at, len))) else { break };
            self.card.copy(piece, to)?;
            at += len;
            from = 0;
        }
        Ok(())
    }
}

/// Normal numbers on the card.
fn pattern(card: &Card, seed: u64, hidden: usize) -> Result<Region, CudaError> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let deviation = 1.0 / (hidden as f32).sqrt();
    // The sum of twelve uniform numbers, close enough to a normal one (Irwin and Hall): four bytes each of three words.
    let mut normal = || {
        let words = [random.next_u32(), random.next_u32(), random.next_u32()];
        let sum: u32 = words.iter().flat_map(|word| word.to_le_bytes()).map(u32::from).sum();
        bf16::from_f32((sum as f32 - 12.0 * 127.5) / 256.0 * deviation)
    };
    let values: Vec<bf16> = (0..PATTERN).map(|_| normal()).collect();
    let region = Region::take(card, PATTERN * size_of::<bf16>())?;
    card.upload(&values, region.span(Place::new(0, PATTERN)))?;
    card.synchronize()?;
    Ok(region)
}
