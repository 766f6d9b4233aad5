//! Weight matrices repacked at load time for the matrix multiplication, in their compact checkpoint format.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::GgmlKind;
use super::lanes::LANES;
use super::layout::{BLOCK, Bits, BlockForm, Form, PANEL, SuperForm, bhalf_at, half_at};
use super::quant::unpack_vector;
use crate::ModelError;

/// A weight matrix W of shape (out, in), for `y = x · Wᵀ`.
///
/// Stored in the checkpoint's format (32 to 2 bits per weight), only reordered; see [`super::matmul()`].
pub struct Packed {
    out: usize,
    inn: usize,
    form: Form,
    lines: Box<[CacheLine]>,
}

/// A cache line as unit of memory, so every panel and every block part is aligned to one.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct CacheLine(pub(super) [u8; 64]);

impl Packed {
    /// Packs `f32` weights, row-major (out, in), without loss.
    ///
    /// # Panics
    /// If `w` does not have `out · inn` values.
    pub fn from_f32(w: &[f32], out: usize, inn: usize) -> Self {
        assert_eq!(w.len(), out * inn, "weights of shape ({out}, {inn})");
        let mut packed = Self::empty(out, inn, Form::F32);
        if inn > 0 {
            let rows: Vec<&[u8]> = w.chunks_exact(inn).map(bytemuck::cast_slice).collect();
            packed.fill(GgmlKind::F32, &rows);
        }
        packed
    }

    /// Packs the transpose of `f32` weights: `w` is row-major (inn, out), and the result has shape (out, inn).
    ///
    /// # Panics
    /// If `w` does not have `inn · out` values.
    pub fn from_f32_transposed(w: &[f32], out: usize, inn: usize) -> Self {
        assert_eq!(w.len(), out * inn, "transposed weights of shape ({inn}, {out})");
        let mut packed = Self::empty(out, inn, Form::F32);
        if w.is_empty() {
            return packed;
        }
        let values = bytemuck::cast_slice_mut::<CacheLine, f32>(&mut packed.lines);
        for (panel, to) in values.chunks_exact_mut(inn * PANEL).enumerate() {
            let first = panel * PANEL;
            let width = PANEL.min(out - first);
            for (row, to) in w.chunks_exact(out).zip(to.chunks_exact_mut(PANEL)) {
                to[..width].copy_from_slice(&row[first..first + width]);
            }
        }
        packed
    }

    /// Packs a tensor of a GGUF or safetensors file: `bytes` holds `out` rows of `inn` weights in GGML's layout of
    /// `kind`, little-endian. The weights keep their size within 4 %, besides padding to whole panels of 32 rows.
    ///
    /// # Errors
    /// [`ModelError::Input`] when `inn` is not a multiple of the kind's block, and when `bytes` has the wrong length.
    pub fn from_ggml(kind: GgmlKind, bytes: &[u8], out: usize, inn: usize) -> Result<Self, ModelError> {
        Self::stacked(kind, &[bytes], out, inn)
    }

    /// Packs tensors of the same kind and width, one below the other, like [`from_ggml`](Self::from_ggml).
    ///
    /// # Errors
    /// The same as for [`from_ggml`](Self::from_ggml); each tensor must be whole rows.
    pub(crate) fn stacked(kind: GgmlKind, parts: &[&[u8]], out: usize, inn: usize) -> Result<Self, ModelError> {
        if !inn.is_multiple_of(kind.block_size()) {
            return Err(ModelError::Input(format!("{kind:?} weights need rows of whole blocks, not {inn} values")));
        }
        let expected = out * inn / kind.block_size() * kind.type_size();
        let found: usize = parts.iter().map(|part| part.len()).sum();
        let row_bytes = inn / kind.block_size() * kind.type_size();
        if found != expected || row_bytes > 0 && !parts.iter().all(|part| part.len().is_multiple_of(row_bytes)) {
            return Err(ModelError::Input(format!(
                "{kind:?} weights of shape ({out}, {inn}) need {expected} bytes, not {found}"
            )));
        }
        let mut packed = Self::empty(out, inn, Self::form_of(kind));
        if row_bytes > 0 {
            let rows: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks_exact(row_bytes)).collect();
            packed.fill(kind, &rows);
        }
        Ok(packed)
    }

    /// Packs all rows, panel by panel.
    fn fill(&mut self, kind: GgmlKind, rows: &[&[u8]]) {
        let Self { inn, form, .. } = *self;
        // Packs a few blocks of all rows of a panel at a time, so their destination stays in the first-level
        // cache.
        let blocks = (BLOCK / kind.block_size()).max(1);
        let place = form.panel_bytes(blocks * kind.block_size());
        let panels = bytemuck::cast_slice_mut::<CacheLine, u8>(&mut self.lines).chunks_exact_mut(form.panel_bytes(inn));
        for (rows, panel) in rows.chunks(PANEL).zip(panels) {
            for (index, to) in panel.chunks_mut(place).enumerate() {
                for (lane, row) in rows.iter().enumerate() {
                    let from = &row[index * blocks * kind.type_size()..];
                    let from = &from[..from.len().min(blocks * kind.type_size())];
                    pack_blocks(form, kind, from, to, lane);
                }
            }
        }
    }

    fn form_of(kind: GgmlKind) -> Form {
        let block = |bits, min| Form::Block(BlockForm { bits, min });
        match kind {
            GgmlKind::F32 => Form::F32,
            GgmlKind::F16 => Form::F16,
            GgmlKind::BF16 => Form::Bf16,
            // GGML's `_0` types are symmetric around zero; its `_1` types store a minimum per block.
            GgmlKind::Q4_0 => block(Bits::Four, false),
            GgmlKind::Q4_1 => block(Bits::Four, true),
            GgmlKind::Q5_0 => block(Bits::Five, false),
            GgmlKind::Q5_1 => block(Bits::Five, true),
            GgmlKind::Q8_0 => block(Bits::Eight, false),
            GgmlKind::Q2K => Form::Super(SuperForm::Q2K),
            GgmlKind::Q3K => Form::Super(SuperForm::Q3K),
            GgmlKind::Q4K => Form::Super(SuperForm::Q4K),
            GgmlKind::Q5K => Form::Super(SuperForm::Q5K),
            GgmlKind::Q6K => Form::Super(SuperForm::Q6K),
            GgmlKind::Iq4Nl => Form::Super(SuperForm::Iq4Nl),
            GgmlKind::Iq4Xs => Form::Super(SuperForm::Iq4Xs),
        }
    }

    fn empty(out: usize, inn: usize, form: Form) -> Self {
        let bytes = out.div_ceil(PANEL) * form.panel_bytes(inn);
        // Zeros in the padding of the last panel add nothing to any sum, so kernels need no tail case.
        Self { out, inn, form, lines: vec![CacheLine([0; 64]); bytes.div_ceil(64)].into() }
    }

    /// Number of outputs: rows of W.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Number of inputs: columns of W.
    pub fn inn(&self) -> usize {
        self.inn
    }

    /// Size of the packed weights, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Writes row `row` of W to `into` as `f32`, for embedding lookups in a tied matrix.
    ///
    /// # Panics
    /// If there is no such row, or `into` does not have `inn` values.
    pub fn row_f32(&self, row: usize, into: &mut [f32]) {
        assert!(row < self.out && into.len() == self.inn, "row {row} of shape ({}, {})", self.out, self.inn);
        let panel = self.panel(row / PANEL);
        let lane = row % PANEL;
        match self.form {
            Form::F32 => {
                let values = panel.chunks_exact(PANEL * 4).map(|at| &at[lane * 4..lane * 4 + 4]);
                into.iter_mut().zip(values).for_each(|(to, at)| *to = f32::from_le_bytes([at[0], at[1], at[2], at[3]]));
            }
            Form::F16 | Form::Bf16 => {
                let value = if self.form == Form::F16 { half_at } else { bhalf_at };
                into.iter_mut().zip(panel.chunks_exact(PANEL * 2)).for_each(|(to, at)| *to = value(at, lane));
            }
            Form::Block(_) | Form::Super(_) => {
                for (index, to) in into.chunks_exact_mut(BLOCK).enumerate() {
                    let values = unpack_vector(self.form, panel, index, lane / LANES);
                    to.iter_mut().zip(values).for_each(|(to, values)| *to = values[lane % LANES]);
                }
            }
        }
    }

    /// Returns `true` if the weights are small integers with scales.
    pub(crate) fn is_quantized(&self) -> bool {
        matches!(self.form, Form::Block(_) | Form::Super(_))
    }

    /// Storage form of the weights.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Number of panels; the last one is padded with zeros.
    pub(crate) fn panels(&self) -> usize {
        self.out.div_ceil(PANEL)
    }

    /// Bytes of one panel, aligned to 64 in all forms. In F32, a panel has 128 · `inn` bytes.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        let size = self.form.panel_bytes(self.inn);
        &bytemuck::cast_slice(&self.lines)[panel * size..][..size]
    }
}

/// Moves blocks of a row from GGML's layout into lane `lane` of a part of a panel.
fn pack_blocks(form: Form, kind: GgmlKind, row: &[u8], part: &mut [u8], lane: usize) {
    let blocks = row.chunks_exact(kind.type_size());
    let places = part.chunks_exact_mut(form.panel_bytes(kind.block_size()));
    match form {
        Form::F32 | Form::F16 | Form::Bf16 => {
            let size = kind.type_size();
            blocks.zip(places).for_each(|(value, to)| to[lane * size..][..size].copy_from_slice(value));
        }
        Form::Block(block) => blocks.zip(places).for_each(|(from, to)| block.pack(from, to, lane)),
        Form::Super(block) => blocks.zip(places).for_each(|(from, to)| block.pack(from, to, lane)),
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} × {}, {:?}, {} bytes)", self.out, self.inn, self.form, self.bytes())
    }
}
