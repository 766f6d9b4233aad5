//! Rounding to `e4m3`.

use crate::cuda::kernel::fp8;

/// Rounds a row to multiples of its scale that `e4m3` holds, ties to even, and returns it with its scale, the smallest
/// power of two from 2⁻¹²⁶ on that keeps the largest value in range, or 1 for zeros. The scale is NaN, and the values
/// have no meaning, if a value is not finite.
pub fn quantize(row: &[f64]) -> (Vec<f64>, f64) {
    if !row.iter().all(|x| x.is_finite()) {
        return (row.to_vec(), f64::NAN);
    }
    let sizes: Vec<f64> = (0..=0x7e).map(|bits| f64::from(fp8::decode(bits))).collect();
    let largest = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let mut scale = 1.0;
    while largest / scale > sizes[0x7e] {
        scale *= 2.0;
    }
    while largest > 0.0 && scale > 2f64.powi(-126) && largest / (scale / 2.0) <= sizes[0x7e] {
        scale /= 2.0;
    }
    let nearest = |x: f64| {
        let above = sizes.partition_point(|size| *size < x).min(0x7e);
        let below = above.saturating_sub(1);
        let [to_above, to_below] = [sizes[above] - x, x - sizes[below]];
        let up = to_above < to_below || to_above == to_below && above % 2 == 0;
        if up { sizes[above] } else { sizes[below] }
    };
    (row.iter().map(|x| (nearest(x.abs() / scale) * scale).copysign(*x)).collect(), scale)
}
