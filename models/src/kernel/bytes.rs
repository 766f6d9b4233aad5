//! Linear maps with weights in bytes, multiplied with activations rounded to bytes.
//!
//! Used on request for embedding many texts. With many rows, a multiplication takes about 0.3 of the time of
//! [`super::matmul()`] on CPUs that multiply bytes: AVX512-VNNI, where it was measured, FEAT_DotProd or FEAT_I8MM. AMX is
//! faster still.
//!
//! The weights of an output share a scale; the activations of a row a scale and a zero point. Sums of products of bytes
//! are exact, so a row's result depends neither on its batch nor on the number of threads.

use std::fmt;

use super::byte_dot::{ByteScale, ByteSupport, CHUNK};
use super::elementwise::{fma, versions};
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;
use super::layout::PANEL;
use super::matmul_output::{Finish, MatmulOutput};
use super::packed::{CacheLine, Packed};
use super::team::{Base, Team, share};

/// Number of activation rows per unit of work: rounded, they stay in the second-level cache from panel to panel.
const ROWS: usize = 96;

/// Largest weight in bytes. Its negative is the smallest.
const LARGEST: f32 = 127.0;

/// A linear map `y = x · Wᵀ + bias`, with W of shape (out, in) in bytes.
///
/// Outputs are grouped in panels as in `layout`. Per four input indices, a panel has one `u32` for each of its
/// outputs, the first index in the lowest byte. `in` is padded with zeros to a multiple of four.
pub(crate) struct ByteLinear {
    out: usize,
    inn: usize,
    lines: Box<[CacheLine]>,
    /// Weight that a byte of 1 stands for, per output, padded to whole panels.
    steps: Vec<f32>,
    /// Sum of the weights of each output.
    sums: Vec<f32>,
    biases: Vec<f32>,
}

/// Operation applied to a result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ByteFinish {
    /// Overwrites y.
    Set,
    /// Adds to y.
    Add,
    /// Overwrites y with the function's output.
    Map(fn(&mut [f32])),
}

impl ByteLinear {
    /// Maximum number of inputs: the sum of so many products of the largest bytes fits an `i32`.
    pub(crate) const MOST_INPUTS: usize = i32::MAX as usize / (255 * LARGEST as usize);

    /// Converts a linear map, rounding each weight to the nearest of 255 values.
    ///
    /// # Panics
    /// If there is not one bias per output, or there are more than [`MOST_INPUTS`](Self::MOST_INPUTS) inputs.
    pub(crate) fn of(w: &Packed, bias: &[f32]) -> Self {
        assert_eq!(bias.len(), w.out(), "biases");
        assert!(w.inn() <= Self::MOST_INPUTS, "{} inputs are too many for bytes", w.inn());
        let panels = w.out().div_ceil(PANEL);
        let quads = w.inn().div_ceil(4);
        let mut lines = vec![CacheLine([0; 64]); panels * quads * PANEL / 16];
        let bytes = bytemuck::cast_slice_mut::<CacheLine, i8>(&mut lines);
        let [mut steps, mut sums, mut biases] = [(); 3].map(|()| vec![0.0; panels * PANEL]);
        biases[..w.out()].copy_from_slice(bias);
        let mut row = vec![0.0; w.inn()];
        for out in 0..w.out() {
            w.row_f32(out, &mut row);
            let largest = row.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
            let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
            let panel = &mut bytes[out / PANEL * quads * PANEL * 4..];
            let mut sum = 0;
            for (index, weight) in row.iter().enumerate() {
                let byte = (weight * inverse).round() as i8;
                panel[(index / 4 * PANEL + out % PANEL) * 4 + index % 4] = byte;
                sum += i32::from(byte);
            }
            // A weight that is not finite makes its output not finite.
            steps[out] = row.iter().fold(largest / LARGEST, |step, weight| step + 0.0 * weight);
            sums[out] = steps[out] * sum as f32;
        }
        Self { out: w.out(), inn: w.inn(), lines: lines.into(), steps, sums, biases }
    }

    /// Applies the map to x of shape (m, in), for y of shape (m, out), both row-major.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    pub(crate) fn apply(
        &self,
        support: ByteSupport,
        team: &Team,
        x: &[f32],
        m: usize,
        y: &mut [f32],
        finish: ByteFinish,
    ) {
        assert_eq!(x.len(), m * self.inn, "activations of shape ({m}, {})", self.inn);
        assert_eq!(y.len(), m * self.out, "result of shape ({m}, {})", self.out);
        let stored = if matches!(finish, ByteFinish::Add) { Finish::Add } else { Finish::Set };
        let target = MatmulOutput { y: Base(y.as_mut_ptr()), out: self.out, finish: stored };
        let map = if let ByteFinish::Map(map) = finish { Some(map) } else { None };
        ByteTask { x, m, w: self, support, map, target }.run(team);
    }

    /// Number of `u32` values of a panel.
    fn panel_len(&self) -> usize {
        self.inn.div_ceil(4) * PANEL
    }

    /// Values of a panel, which begins at a cache line.
    fn panel(&self, panel: usize) -> &[u32] {
        let len = self.panel_len();
        &bytemuck::cast_slice(&self.lines)[panel * len..][..len]
    }
}

struct ByteTask<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a ByteLinear,
    support: ByteSupport,
    map: Option<fn(&mut [f32])>,
    target: MatmulOutput<'a>,
}

impl ByteTask<'_> {
    /// Computes the whole result in units of one panel of outputs times up to [`ROWS`] rows. A thread visits all
    /// panels before it moves on to other rows, so it rounds those rows once.
    fn run(&self, team: &Team) {
        let panels = self.w.out.div_ceil(PANEL);
        let groups = self.m.div_ceil(ROWS);
        let quads = self.w.inn.div_ceil(4);
        // Room for the rounded rows of a whole group.
        let len = self.m.div_ceil(groups.max(1)) * quads;
        team.sweep(groups * panels, &|claims| {
            let mut memory = team.floats(claims.worker(), len);
            let rounded = memory.free().words(len);
            let mut scales = [ByteScale { zero: 0.0, step: 0.0 }; ROWS];
            let mut sums = [0; ROWS * PANEL];
            let mut values = [0.0; ROWS * PANEL];
            let mut current = None;
            for unit in claims {
                let group = unit / panels;
                let panel = unit % panels;
                let rows = share(self.m, group, groups);
                if current != Some(group) {
                    let x = &self.x[rows.start * self.w.inn..rows.end * self.w.inn];
                    let places = rounded.chunks_exact_mut(quads.max(1)).zip(&mut scales);
                    let rounding = x.chunks_exact(self.w.inn.max(1)).zip(places);
                    rounding.for_each(|(row, (to, scale))| *scale = self.support.round(row, to));
                    current = Some(group);
                }
                rows.clone().for_each(|row| self.target.prefetch(row, panel));
                let sums = &mut sums[..rows.len() * PANEL];
                sums.fill(0);
                let chunks = quads.div_ceil(CHUNK);
                for chunk in (0..chunks).map(|chunk| share(quads, chunk, chunks)) {
                    let weights = &self.w.panel(panel)[chunk.start * PANEL..chunk.end * PANEL];
                    self.support.multiply(&rounded[chunk.start..], quads, weights, sums);
                }
                let values = &mut values[..rows.len() * PANEL];
                self.convert(panel, &scales, sums, values);
                // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
                unsafe { self.target.take(rows.start, panel, values) };
            }
        });
    }

    /// Converts the sums of a panel to results.
    fn convert(&self, panel: usize, scales: &[ByteScale], sums: &[i32], values: &mut [f32]) {
        let outputs = panel * PANEL..(panel + 1) * PANEL;
        let ByteLinear { steps, sums: totals, biases, .. } = self.w;
        results(scales, sums, [steps, totals, biases].map(|values| &values[outputs.clone()]), values);
        if let Some(map) = self.map {
            map(values);
        }
    }
}

versions! {
    /// Computes results from sums of products of bytes, of shape (rows, [`PANEL`]), with the steps, the sums of weights
    /// and the biases of the outputs.
    fn results(scales: &[ByteScale], sums: &[i32], outputs: [&[f32]; 3], values: &mut [f32]) = results_body;
}

#[inline(always)]
fn results_body<const FUSED: bool>(scales: &[ByteScale], sums: &[i32], outputs: [&[f32]; 3], values: &mut [f32]) {
    let [steps, totals, biases] = outputs.map(|values| &values[..PANEL]);
    let rows = sums.chunks_exact(PANEL).zip(values.chunks_exact_mut(PANEL));
    for (scale, (sums, values)) in scales.iter().zip(rows) {
        for at in 0..PANEL {
            let rest = fma::<FUSED>(scale.zero, totals[at], biases[at]);
            values[at] = fma::<FUSED>(scale.step * steps[at], sums[at] as f32, rest);
        }
    }
}

impl fmt::Debug for ByteLinear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteLinear({} × {}, {} bytes)", self.out, self.inn, size_of_val(&*self.lines))
    }
}
