//! Blocks of a packed matrix as plain floats.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::Isa;
use super::layout::{BLOCK, Form, PANEL};
use super::packed::Packed;
use super::quant::unpack;

/// Number of weights in a block: [`BLOCK`] inputs for the outputs of a panel.
pub(super) const BLOCK_LEN: usize = BLOCK * PANEL;

/// Unpacks to `to` the [`BLOCK`] inputs of a panel that begin at `block · BLOCK`, shape (inputs, [`PANEL`]). Inputs
/// beyond the last become zeros.
///
/// # Panics
/// If the matrix does not have the panel or the block, or `to` does not have [`BLOCK_LEN`] values.
pub(super) fn unpack_block(isa: Isa, w: &Packed, panel: usize, block: usize, to: &mut [f32]) {
    assert_eq!(to.len(), BLOCK_LEN, "a block of weights");
    let start = block * BLOCK;
    let (offset, skipped) = w.form().locate(start);
    let bytes = &w.panel(panel)[offset..];
    let (values, rest) = to.split_at_mut(BLOCK.min(w.inn() - start) * PANEL);
    rest.fill(0.0);
    match w.form() {
        Form::F32 => values.copy_from_slice(&bytemuck::cast_slice(bytes)[..values.len()]),
        Form::F16 => bytemuck::cast_slice::<u8, f16>(bytes)[..values.len()].convert_to_f32_slice(values),
        Form::Bf16 => bytemuck::cast_slice::<u8, bf16>(bytes)[..values.len()].convert_to_f32_slice(values),
        // SAFETY: `isa` names instructions that the CPU has; quantized rows are whole blocks, and the panel has this
        // block.
        Form::Block(_) | Form::Super(_) => unsafe {
            unpack(isa, w.form(), (bytes.as_ptr(), skipped), 1, values.as_mut_ptr());
        },
    }
}
