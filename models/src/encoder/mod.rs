//! Encoders, which embedders and rerankers share.
//!
//! `model_kind`: encoder or decoder · `family`: BERT, RoBERTa and XLM-R, DistilBERT, MPNet, ModernBERT, NomicBERT,
//! GTE's own · `bert`, `modern`, `causal`: the layers · `config`, `config_file`, `rotary`, `text_length`, `shape`:
//! settings · `source`: files · `pieces`: texts and pairs of texts as word pieces · `output_rows`: rows that the last
//! layer computes

mod attention;
mod bert;
mod causal;
mod config;
mod config_file;
mod family;
#[cfg(test)]
pub(crate) mod fixture;
mod gate;
mod json_file;
mod linear;
mod model_kind;
mod modern;
mod norm;
mod output_rows;
mod pieces;
mod relative_bias;
mod rotary;
mod rotation;
mod shape;
mod source;
mod tensors;
mod text_length;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ModelError;
use crate::kernel::{ByteSupport, Team};
use crate::weights::Weights;
use bert::{Bert, EncoderBuffers};
use causal::CausalEncoder;
use modern::ModernBert;

pub(crate) use config::EncoderConfig;
pub(crate) use family::EncoderFamily;
pub(crate) use json_file::{parse, parse_present, read};
pub(crate) use model_kind::ModelKind;
pub(crate) use output_rows::OutputRows;
pub(crate) use pieces::{PieceSequence, PieceTokenizer};
pub(crate) use shape::BodyShape;
pub(crate) use source::BodySource;
pub(crate) use tensors::EncoderTensors;

/// Maximum number of word pieces per pass: enough to amortize reading the weights, and few enough to keep the
/// activations in the last-level cache.
const PASS_PIECES: usize = 1024;

/// Minimum number of rows per thread for row-wise functions.
const ROW_GRAIN: usize = 16;

/// Encoder on a thread team.
///
/// Shareable between threads: concurrent calls alternate pass by pass.
#[derive(Debug)]
pub(crate) struct Encoder {
    body: EncoderBody,
    hidden: usize,
    team: Arc<Team>,
    /// Held by the caller whose pass is next. Waiting for the buffers happens under this lock, so a long
    /// batch, which asks for them again at once, cannot overtake waiting callers.
    next: Mutex<()>,
    buffers: Mutex<EncoderBuffers>,
}

/// Arithmetic of an encoder's linear maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderArithmetic {
    /// Weights and activations in `f32`.
    Exact,
    /// Weights and activations rounded to bytes, in all encoder families except ModernBERT, on CPUs with instructions
    /// for products of bytes. Otherwise the same as [`Exact`](Self::Exact).
    Bytes,
}

/// Layers of an encoder.
#[derive(Debug)]
enum EncoderBody {
    Bert(Bert),
    Modern(ModernBert),
    Causal(Box<CausalEncoder>),
}

impl Encoder {
    /// Loads the layers of an encoder.
    pub(crate) fn load(
        config: &EncoderConfig,
        source: &EncoderTensors<'_>,
        team: Arc<Team>,
    ) -> Result<Self, ModelError> {
        let body = match &config.modern {
            Some(modern) => EncoderBody::Modern(ModernBert::load(config, modern, source)?),
            None => EncoderBody::Bert(Bert::load(config, source)?),
        };
        Ok(Self::of_body(body, config.hidden, team))
    }

    /// Loads the layers of a decoder that is used as an encoder.
    fn load_decoder(shape: &BodyShape, weights: &Weights, team: Arc<Team>) -> Result<Self, ModelError> {
        let body = CausalEncoder::load(shape.max_pieces, weights, Arc::clone(&team))?;
        Ok(Self::of_body(EncoderBody::Causal(Box::new(body)), shape.hidden, team))
    }

    fn of_body(body: EncoderBody, hidden: usize, team: Arc<Team>) -> Self {
        Encoder { body, hidden, team, next: Mutex::default(), buffers: Mutex::default() }
    }

    /// Threads that compute the encoder.
    pub(crate) fn team(&self) -> &Team {
        &self.team
    }

    /// Applies `read` to the output of the last layer for each sequence, row by row, and returns the results in order.
    /// `read` gets at least the wanted rows. A decoder computes all rows, whatever is wanted.
    ///
    /// # Errors
    /// If a step of an embedding decoder fails.
    pub(crate) fn run<T>(
        &self,
        arithmetic: EncoderArithmetic,
        wanted: OutputRows,
        sequences: &[PieceSequence],
        mut read: impl FnMut(&[f32]) -> T,
    ) -> Result<Vec<T>, ModelError> {
        let bytes = self.byte_support(arithmetic);
        let wanted = if matches!(self.body, EncoderBody::Causal(_)) { OutputRows::All } else { wanted };
        let mut results = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            let (pass, later) = rest.split_at(pass_len(rest));
            // Locked again for each pass, so a query waits for one pass of a long batch, not for all of it. A text
            // longer than the limit of a pass is a pass of its own.
            let mut buffers = self.turn();
            match &self.body {
                EncoderBody::Bert(body) => body.forward(&self.team, bytes, pass, wanted, &mut buffers),
                EncoderBody::Modern(body) => body.forward(&self.team, pass, wanted, &mut buffers),
                EncoderBody::Causal(body) => body.forward(pass, &mut buffers.hidden)?,
            }
            let mut rows = buffers.hidden.as_slice();
            for sequence in pass {
                let (own, later) = rows.split_at(wanted.count(sequence.len()) * self.hidden);
                results.push(read(own));
                rows = later;
            }
            rest = later;
        }
        Ok(results)
    }

    /// Converts the linear maps to bytes if needed, and returns the proof that the CPU can compute with them. `None`
    /// computes in `f32`. Takes no lock, so other callers can run passes meanwhile.
    fn byte_support(&self, arithmetic: EncoderArithmetic) -> Option<ByteSupport> {
        let EncoderBody::Bert(body) = &self.body else { return None };
        let support = ByteSupport::detect().filter(|_| arithmetic == EncoderArithmetic::Bytes)?;
        body.prepare_bytes().then_some(support)
    }

    /// Locks the buffers, after earlier callers have had their pass.
    fn turn(&self) -> MutexGuard<'_, EncoderBuffers> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of leading sequences that fit into one pass; at least one.
fn pass_len(sequences: &[PieceSequence]) -> usize {
    let mut pieces = 0;
    let fits = sequences.iter().take_while(|sequence| {
        pieces += sequence.len();
        pieces <= PASS_PIECES
    });
    // A sequence longer than the limit gets a pass of its own.
    fits.count().max(1)
}
