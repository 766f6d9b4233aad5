//! Adapters prepared for a decoder: low-rank updates, factors on rows, and biases.

use std::path::Path;

use super::DecoderConfig;
use super::layer::DecoderLayer;
use super::lora_vocabulary::{EmbeddingUpdate, HeadUpdate};
use crate::ModelError;
use crate::adapter::{AdapterFactors, AdapterModules, AdapterSource, FactorPart, SITES, Site};
use crate::kernel::arithmetic::Matrix;
use crate::kernel::lowrank::{NarrowMatrix, WideMatrix};
use crate::kernel::{Packed, Team, axpy, dot};

/// Number of rows per thread that justifies a parallel region.
const GRAIN: usize = 64;

/// A loaded adapter.
#[derive(Debug)]
pub(crate) struct LoraAdapter {
    layers: Vec<[Option<SiteUpdate>; SITES]>,
    pub(super) embedding: Option<EmbeddingUpdate>,
    pub(super) head: Option<HeadUpdate>,
    /// If `true`, some numbers were computed from the base's weights and are valid only for those weights.
    bound_to_base: bool,
}

/// Update of one site.
#[derive(Debug)]
pub(crate) struct SiteUpdate {
    /// Stacked A matrices of the site's projections, shape (sum of ranks, in).
    pub(crate) shrink: NarrowMatrix,
    /// Updates of the site's projections.
    pub(crate) parts: Vec<ProjectionUpdate>,
}

/// Update of one projection: `y` becomes `gain · y + B A x + offset`.
#[derive(Debug)]
pub(crate) struct ProjectionUpdate {
    /// Index of the projection within its site.
    pub(crate) projection: usize,
    /// First row of the projection's A matrix in `shrink`.
    pub(crate) first: usize,
    /// B matrix with all factors. `None` if only a bias is replaced.
    pub(crate) expand: Option<WideMatrix>,
    /// Factors on the outputs of the base (DoRA). `None` if all are 1.
    pub(crate) gain: Option<Vec<f32>>,
    /// Sum of all biases of the adapter, minus the base's bias if the adapter replaces it. `None` if there are none.
    pub(crate) offset: Option<Vec<f32>>,
}

/// Base model that an adapter is prepared for.
pub(super) struct AdapterBase<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) team: &'a Team,
    pub(super) layers: &'a [DecoderLayer],
    pub(super) embedding: &'a Packed,
    pub(super) head: &'a Packed,
}

/// Reads row `row` of a matrix into a buffer.
pub(super) type ReadRow<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

impl LoraAdapter {
    /// Loads an adapter for a decoder.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting or tensor that would otherwise be ignored, [`ModelError::Corrupt`]
    /// for a tensor that is missing or has the wrong shape, and [`ModelError::Io`] for a file that cannot be read.
    pub(super) fn load(dir: &Path, base: &AdapterBase<'_>) -> Result<Self, ModelError> {
        let (source, bytes) = AdapterSource::open_served(dir)?;
        let tensors = source.tensors(&bytes)?;
        let modules = AdapterModules::new(&source, &tensors, base.config)?;
        let mut bound_to_base = false;
        let mut layers = Vec::with_capacity(base.layers.len());
        for index in 0..base.layers.len() {
            let mut sites: [Option<SiteUpdate>; SITES] = Default::default();
            for site in Site::ALL {
                let Some(factors) = modules.site(index, site)? else { continue };
                bound_to_base |= factors.parts.iter().any(|part| part.magnitude.is_some() || part.bias.is_some());
                sites[site as usize] = Some(site_update(base, index, site, factors)?);
            }
            layers.push(sites);
        }
        let [embedding, head] = [modules.embedding()?, modules.head()?];
        for update in [&embedding, &head].into_iter().flatten() {
            let decomposed = update.factors.as_ref().is_some_and(|part| part.magnitude.is_some());
            // A saved matrix that equals the base's is dropped below, so the adapter then depends on the base.
            bound_to_base |= decomposed || update.weight.is_some();
        }
        let embedding = embedding.map(|update| EmbeddingUpdate::new(update, base));
        let head = head.map(|update| HeadUpdate::new(update, base)).transpose()?;
        Ok(Self { layers, embedding, head, bound_to_base })
    }

    /// Size of the adapter's matrices, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let layers: usize = self.layers.iter().flatten().flatten().map(SiteUpdate::bytes).sum();
        let embedding = self.embedding.as_ref().map_or(0, EmbeddingUpdate::bytes);
        layers + embedding + self.head.as_ref().map_or(0, HeadUpdate::bytes)
    }

    /// Update at `site` of layer `layer`. `None` if the adapter leaves the site unchanged.
    pub(super) fn delta(&self, layer: usize, site: Site) -> Option<&SiteUpdate> {
        self.layers[layer][site as usize].as_ref()
    }

    /// Returns `true` if the adapter is valid only for the weights that it was loaded with.
    pub(super) fn is_bound_to_base(&self) -> bool {
        self.bound_to_base
    }
}

impl SiteUpdate {
    /// Prepares the updates of projections that share their input. `gains` has an entry per part, `bias` returns the
    /// base's bias of a projection, and every bias of the adapter is multiplied by `factor`.
    pub(super) fn new(
        factors: AdapterFactors,
        gains: Vec<Option<Vec<f32>>>,
        bias: &dyn Fn(usize) -> Vec<f32>,
        factor: f32,
    ) -> Self {
        let AdapterFactors { inn, parts } = factors;
        let stacked: Vec<f32> = parts.iter().flat_map(|part| part.a.iter().copied()).collect();
        let mut first = 0;
        let mut updates = Vec::with_capacity(parts.len());
        for (part, gain) in parts.into_iter().zip(gains) {
            let rank = part.rank;
            updates.push(projection_update(part, first, gain, bias, factor));
            first += rank;
        }
        Self { shrink: NarrowMatrix::new(&stacked, inn), parts: updates }
    }

    /// Returns `true` if the update multiplies outputs of the base.
    pub(super) fn rescales(&self) -> bool {
        self.parts.iter().any(|part| part.gain.is_some())
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let vector = |values: &Option<Vec<f32>>| values.as_ref().map_or(0, |values| size_of_val(values.as_slice()));
        let part = |part: &ProjectionUpdate| {
            part.expand.as_ref().map_or(0, WideMatrix::bytes) + vector(&part.gain) + vector(&part.offset)
        };
        self.shrink.bytes() + self.parts.iter().map(part).sum::<usize>()
    }
}

/// Prepares the update of one projection, whose A begins at row `first` of the stack.
fn projection_update(
    part: FactorPart,
    first: usize,
    gain: Option<Vec<f32>>,
    bias: &dyn Fn(usize) -> Vec<f32>,
    factor: f32,
) -> ProjectionUpdate {
    let FactorPart { projection, rank, scale, mut b, output_bias, bias: replaced, .. } = part;
    if let Some(gain) = &gain {
        b.chunks_exact_mut(rank.max(1))
            .zip(gain)
            .for_each(|(row, gain)| row.iter_mut().for_each(|value| *value *= gain));
    }
    let mut offset = output_bias.map(|values| values.iter().map(|value| value * scale).collect::<Vec<_>>());
    if let Some(replaced) = replaced {
        let base = bias(projection);
        // A projection without a bias has one of zeros.
        let difference = replaced.iter().enumerate().map(|(at, value)| value - base.get(at).unwrap_or(&0.0));
        let before = offset.unwrap_or_else(|| vec![0.0; replaced.len()]);
        offset = Some(difference.zip(before).map(|(difference, before)| difference + before).collect());
    }
    if let Some(offset) = &mut offset {
        offset.iter_mut().for_each(|value| *value *= factor);
    }
    let expand = (rank > 0).then(|| WideMatrix::new(&b, rank, scale));
    ProjectionUpdate { projection, first, expand, gain, offset }
}

/// Prepares the update of a site of a layer.
fn site_update(
    base: &AdapterBase<'_>,
    index: usize,
    site: Site,
    factors: AdapterFactors,
) -> Result<SiteUpdate, ModelError> {
    let layer = &base.layers[index];
    let gain = |part: &FactorPart| -> Result<Option<Vec<f32>>, ModelError> {
        if part.magnitude.is_none() {
            return Ok(None);
        }
        let place = layer.projection(site, part.projection);
        let (matrix, first) = place.ok_or_else(|| ModelError::Input(format!("layer {index} has no {site:?}")))?;
        gains(base.team, part, factors.inn, &|row, into: &mut [f32]| read_row(matrix, first + row, into))
    };
    let gains = factors.parts.iter().map(gain).collect::<Result<Vec<_>, _>>()?;
    let bias = |projection: usize| layer.projection_bias(base.config, site, projection).to_vec();
    // The outputs of `O` and `Down` are added to the residual stream with a factor. The decoder multiplies the inputs
    // of these sites by it, which does not scale the biases.
    let factor = match site {
        Site::O | Site::Down => base.config.architecture.residual_scale,
        Site::Qkv | Site::GateUp => 1.0,
    };
    Ok(SiteUpdate::new(factors, gains, &bias, factor))
}

/// Factors on the outputs of the base: the trained lengths of the rows of `W + s B A`, divided by their actual lengths.
/// `None` if `part` has no trained lengths.
pub(super) fn gains(
    team: &Team,
    part: &FactorPart,
    inn: usize,
    read: ReadRow<'_>,
) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(mut values) = part.magnitude.clone() else { return Ok(None) };
    team.rows(&mut values, 1, GRAIN, &|first, share| {
        let mut row = vec![0.0; inn];
        for (index, value) in share.iter_mut().enumerate() {
            let out = first + index;
            read(out, &mut row);
            let b = &part.b[out * part.rank..][..part.rank];
            b.iter().zip(part.a.chunks_exact(inn)).for_each(|(b, a)| axpy(&mut row, b * part.scale, a));
            *value /= dot(&row, &row).sqrt();
        }
    });
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(ModelError::Input(format!("a DoRA adapter on a projection whose row {at} has the length 0"))),
        None => Ok(Some(values)),
    }
}

/// Writes a row of a matrix to `into` as `f32`.
fn read_row(matrix: &Matrix, row: usize, into: &mut [f32]) {
    match matrix {
        Matrix::Exact(packed) | Matrix::Integer(packed) => packed.row_f32(row, into),
        Matrix::Rounded(rounded) => rounded.row_f32(row, into),
    }
}
