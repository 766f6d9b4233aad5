//! Weights in `e4m3` with one scale per row.
//!
//! A format with an exponent of its own has the same relative error at every magnitude, at most 1/16 of a value of
//! normal size, so one scale per row is enough: it only has to keep the row's largest value in range, and values
//! down to 2⁻¹³ of it stay normal. Scales are powers of two, so a weight times its scale is a `bf16` exactly, except
//! in rows without a value of 2⁻¹¹⁶ or more: the kernels that read `e4m3` and a multiplication of dequantized weights
//! multiply the same numbers.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Largest finite value of `e4m3`.
const LARGEST: f32 = 448.0;

/// Exponent of the smallest normal value of `e4m3`.
const SMALLEST_EXPONENT: i32 = -6;

/// Number of values per thread.
const PER_THREAD: usize = 16;

/// Threads per block.
const THREADS: u32 = 256;

/// Quantizes one row to `to`, of the same length, whose order of bytes is that of `cu/fp8.cu`, and returns its scale.
/// `None`, with nothing written, if a value is not finite: `e4m3` has no infinities, and the kernels read its NaN as a
/// number. The length is a multiple of 4.
pub fn quantize_row(row: &[bf16], to: &mut [u8]) -> Option<f32> {
    if !row.iter().all(|value| value.is_finite()) {
        return None;
    }
    let largest = row.iter().map(|value| value.to_f32().abs()).fold(0.0, f32::max);
    let scale = scale(largest);
    let inverse = scale.recip();
    for (to, value) in to.iter_mut().zip(row) {
        *to = encode(value.to_f32() * inverse);
    }
    for four in to.chunks_exact_mut(4) {
        four.swap(1, 2);
    }
    Some(scale)
}

/// Returns the smallest power of two by which this value can be divided without exceeding the range.
fn scale(largest: f32) -> f32 {
    if largest <= 0.0 {
        return 1.0;
    }
    // 448 is 1.75 · 2⁸: a value with a larger mantissa needs one more power.
    let bits = largest.to_bits();
    let exponent = (bits >> 23) as i32 - 127 - 8 + i32::from(bits & 0x7f_ffff > 0x60_0000);
    // Normal, as its inverse is, so the product with the inverse is exact.
    power_of_two(exponent.max(-126))
}

/// Returns a power of two that is a normal number. Faster than `powi`, for each weight of a decoder.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Rounds a number to the nearest `e4m3`, ties to even; beyond the range to the largest value.
fn encode(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let size = value.abs().min(LARGEST);
    // The exponent field; zero and subnormal numbers are far below the smallest exponent.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(SMALLEST_EXPONENT);
    // Three bits of mantissa: units of 2^(exponent − 3), eight to sixteen of them for a normal value.
    let units = (size * power_of_two(3 - exponent)).round_ties_even() as i32;
    sign | (((exponent + 7) << 3) + units - 8) as u8
}

/// Returns the value of an `e4m3` that is not NaN.
pub fn decode(bits: u8) -> f32 {
    let exponent = i32::from(bits >> 3 & 15);
    let mantissa = f32::from(bits & 7) / 8.0;
    let size = match exponent {
        0 => mantissa * 2f32.powi(SMALLEST_EXPONENT),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 != 0 { -size } else { size }
}

/// Returns the index of the byte that holds value `at` of a row.
pub fn byte_of(at: usize) -> usize {
    at / 4 * 4 + [0, 2, 1, 3][at % 4]
}

/// Rounds a tensor of a checkpoint in `bf16` to numbers that `e4m3` holds exactly, if the tensor is a matrix of a layer,
/// with rows of `inner` values. Rows with a value that is not finite stay as they are.
pub fn round_layer_matrix(name: &str, inner: usize, values: &mut [u8]) {
    if !name.ends_with("_proj.weight") {
        return;
    }
    let mut bytes = vec![0; inner];
    for row in values.chunks_exact_mut(2 * inner) {
        let halves: Vec<bf16> = row.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]])).collect();
        let Some(scale) = quantize_row(&halves, &mut bytes) else { continue };
        for (at, value) in row.chunks_exact_mut(2).enumerate() {
            let rounded = bf16::from_f32(decode(bytes[byte_of(at)]) * scale);
            value.copy_from_slice(&rounded.to_le_bytes());
        }
    }
}

/// Conversion of weights from `e4m3` to `bf16`, exactly.
#[derive(Debug, Clone, Copy)]
pub struct DequantizeFp8 {
    /// Weights of shape (rows, inner).
    pub values: DeviceSlice<u8>,
    /// Scales of shape (rows).
    pub scales: DeviceSlice<f32>,
    /// Output of shape (rows, inner). Written.
    pub to: DeviceSlice<bf16>,
    /// Number of rows.
    pub rows: usize,
    /// Number of values of a row, a multiple of 16.
    pub inner: usize,
}

impl DequantizeFp8 {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let Self { values, scales, to, rows, inner } = self;
        let kernel = CudaKernel::DequantizeFp8;
        kernel.demand(inner.is_multiple_of(PER_THREAD), || format!("rows of {inner}: expected a multiple of 16"))?;
        let count = rows * inner;
        kernel.fits("values", values, count)?;
        kernel.fits("scales", scales, *rows)?;
        kernel.fits("to", to, count)?;
        let threads = u32::try_from(count / PER_THREAD).ok().filter(|&threads| threads <= u32::MAX - THREADS);
        let Some(threads) = threads else {
            let what = format!("{count} values: expected fewer than 2³⁶");
            return Err(KernelError::Shape { kernel, what });
        };
        let per_row = (inner / PER_THREAD) as u32;
        let arguments = LaunchArguments::new().slice(values).slice(scales).slice(to).int(threads).int(per_row);
        let geometry = Geometry { blocks: [threads.div_ceil(THREADS), 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `dequantize_fp8`; sizes were checked.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_value_is_encoded_as_itself() {
        for bits in (0..=255).filter(|bits| bits & 0x7f != 0x7f) {
            assert_eq!(encode(decode(bits)), bits, "{}", decode(bits));
        }
        assert_eq!((decode(1), decode(8), decode(0x7e)), (2f32.powi(-9), 2f32.powi(-6), 448.0));
    }

    #[test]
    fn values_are_rounded_to_the_nearest_with_ties_to_even() {
        for low in 0..0x7e {
            let middle = (decode(low) + decode(low + 1)) / 2.0;
            let even = low + low % 2;
            assert_eq!(encode(middle), even, "between {} and {}", decode(low), decode(low + 1));
            assert_eq!((encode(middle * 1.001), encode(middle * 0.999)), (low + 1, low), "{middle}");
        }
        assert_eq!((encode(1e9), encode(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn a_row_keeps_its_largest_value_in_range_and_its_error_small() {
        for largest in [1e-30, 0.02, 1.0, 447.9, 448.0, 448.1, 900.0, 3e38] {
            let row: Vec<bf16> = (0..64).map(|i| bf16::from_f32(largest * ((i as f32 - 31.0) / 32.0))).collect();
            let mut bytes = [0; 64];
            let scale = quantize_row(&row, &mut bytes).unwrap();
            assert_eq!(scale.to_bits() << 9, 0, "a power of two: {scale}");
            for (at, value) in row.iter().enumerate() {
                let found = decode(bytes[byte_of(at)]) * scale;
                assert!((found - value.to_f32()).abs() <= value.to_f32().abs() / 16.0, "{value} became {found}");
                assert_eq!(bf16::from_f32(found).to_f32(), found, "exact in bf16");
            }
        }
        let mut bytes = [1; 4];
        assert_eq!(quantize_row(&[bf16::ZERO; 4], &mut bytes), Some(1.0));
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn rounding_a_matrix_again_changes_nothing() {
        let values = |largest: f32| (0..64).map(move |i| bf16::from_f32(largest * ((i as f32 - 31.0) / 32.0)));
        let mut bytes: Vec<u8> =
            [0.02, 447.0, 900.0].into_iter().flat_map(values).flat_map(bf16::to_le_bytes).collect();
        let given = bytes.clone();
        round_layer_matrix("model.norm.weight", 64, &mut bytes);
        assert_eq!(bytes, given);
        round_layer_matrix("model.layers.0.mlp.up_proj.weight", 64, &mut bytes);
        assert_ne!(bytes, given);
        let once = bytes.clone();
        round_layer_matrix("model.layers.0.mlp.up_proj.weight", 64, &mut bytes);
        assert_eq!(bytes, once);
    }

    #[test]
    fn a_row_with_a_value_that_is_not_finite_is_refused() {
        for broken in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
            let mut bytes = [1; 4];
            assert_eq!(quantize_row(&[bf16::ONE, broken, bf16::ONE, bf16::ONE], &mut bytes), None, "{broken}");
            assert_eq!(bytes, [1; 4]);
        }
    }
}
