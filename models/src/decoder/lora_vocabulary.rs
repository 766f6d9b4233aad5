//! Adapters on the embedding and on the output projection.

use super::lora_update::{AdapterBase, SiteUpdate, gains};
use crate::ModelError;
use crate::adapter::{AdapterFactors, FactorPart, VocabularyFactors};
use crate::kernel::{Packed, axpy, scale};

/// Update of the embedding.
#[derive(Debug)]
pub(super) struct EmbeddingUpdate {
    /// Matrix that replaces the base's. `None` keeps the base's.
    weight: Option<Packed>,
    /// Low-rank update. `None` if there is none.
    factors: Option<EmbeddingFactors>,
}

/// Low-rank update of the rows of an embedding.
#[derive(Debug)]
struct EmbeddingFactors {
    rank: usize,
    /// Coordinates of each token, scaled, shape (vocabulary, rank).
    tokens: Vec<f32>,
    /// Directions of the coordinates, shape (rank, hidden).
    directions: Vec<f32>,
}

/// Update of the output projection.
#[derive(Debug)]
pub(super) struct HeadUpdate {
    /// Matrix that replaces the base's. `None` keeps the base's.
    pub(super) weight: Option<Packed>,
    /// Update of the outputs. `None` if there is none.
    pub(super) update: Option<SiteUpdate>,
}

impl EmbeddingUpdate {
    /// Prepares an update.
    pub(super) fn new(update: VocabularyFactors, base: &AdapterBase<'_>) -> Self {
        let weight = update.weight.filter(|weight| !equal(weight, base.embedding));
        Self { weight, factors: update.factors.map(|part| EmbeddingFactors::new(&part)) }
    }

    /// Applies the update to `row`, the embedding of `token`.
    pub(super) fn apply(&self, token: usize, row: &mut [f32]) {
        if let Some(weight) = &self.weight {
            weight.row_f32(token, row);
        }
        if let Some(EmbeddingFactors { rank, tokens, directions }) = &self.factors {
            let coordinates = &tokens[token * rank..][..*rank];
            let width = row.len();
            coordinates.iter().zip(directions.chunks_exact(width)).for_each(|(a, b)| axpy(row, *a, b));
        }
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let factors = self.factors.as_ref().map_or(0, |factors| factors.tokens.len() + factors.directions.len());
        self.weight.as_ref().map_or(0, Packed::bytes) + factors * size_of::<f32>()
    }
}

impl EmbeddingFactors {
    fn new(part: &FactorPart) -> Self {
        let rank = part.rank;
        let mut tokens = transposed(&part.a, part.a.len() / rank.max(1));
        scale(&mut tokens, part.scale);
        Self { rank, tokens, directions: transposed(&part.b, rank) }
    }
}

impl HeadUpdate {
    /// Prepares an update.
    ///
    /// # Errors
    /// [`ModelError::Input`] for trained lengths on a matrix with a row of length 0.
    pub(super) fn new(update: VocabularyFactors, base: &AdapterBase<'_>) -> Result<Self, ModelError> {
        let weight = update.weight.filter(|weight| !equal(weight, base.head));
        let inn = base.config.hidden;
        let prepare = |part: FactorPart| -> Result<SiteUpdate, ModelError> {
            let rows = weight.as_ref().unwrap_or(base.head);
            let gain = gains(base.team, &part, inn, &|row, into| rows.row_f32(row, into))?;
            let factors = AdapterFactors { inn, parts: vec![part] };
            // The decoder multiplies the hidden states by the factor on logits, which does not scale the biases.
            let factor = base.config.architecture.logit_scale;
            Ok(SiteUpdate::new(factors, vec![gain], &|_| Vec::new(), factor))
        };
        let update = update.factors.map(prepare).transpose()?;
        Ok(Self { weight, update })
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.weight.as_ref().map_or(0, Packed::bytes) + self.update.as_ref().map_or(0, SiteUpdate::bytes)
    }
}

/// Transpose of a matrix with rows of `columns` values.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

/// Returns `true` if both matrices have the same values. PEFT saves the base matrix along with an adapted embedding.
fn equal(a: &Packed, b: &Packed) -> bool {
    let [mut left, mut right] = [vec![0.0; a.inn()], vec![0.0; b.inn()]];
    (a.out(), a.inn()) == (b.out(), b.inn())
        && (0..a.out()).all(|row| {
            a.row_f32(row, &mut left);
            b.row_f32(row, &mut right);
            left == right
        })
}
