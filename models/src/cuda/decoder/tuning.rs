//! Matrix multiplications of a decoder's steps, for the choice of algorithms.

use half::bf16;

use super::runner::StepRunner;
use crate::cuda::bucket::Buckets;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::SKINNY_ROWS;
use crate::cuda::plan::{MatrixLayout, Placement};

/// Number of layers whose weights take part in a measurement: more than fit into any cache together, so weights are
/// read from memory as in a step.
const LAYERS: usize = 16;

impl<D: Driver> StepRunner<D> {
    /// Returns the multiplications by cuBLAS of steps, in groups of the same shape with the weights of several layers,
    /// smaller steps first. Decode steps have the sizes of `buckets`; prefill steps have any size up to the limit, and take the
    /// algorithm of the next power of two.
    pub(super) fn products_by_shape(&self, buckets: &Buckets) -> Vec<Vec<MatMul>> {
        let mut sizes = buckets.sizes().to_vec();
        let largest = sizes.last().copied().unwrap_or(1);
        let powers = std::iter::successors(Some(largest.next_power_of_two()), |size| size.checked_mul(2));
        sizes.extend(powers.take_while(|size| *size < self.limits.tokens).filter(|size| *size > largest));
        sizes.push(self.limits.tokens);
        sizes.dedup();
        // Fewer rows are multiplied by a kernel of this crate.
        sizes.retain(|size| *size > SKINNY_ROWS);
        sizes.into_iter().flat_map(|rows| self.products_of(rows)).collect()
    }

    /// Returns the multiplications of a step with `rows` tokens.
    fn products_of(&self, rows: usize) -> Vec<Vec<MatMul>> {
        let config = &self.config;
        let buffers = &self.buffers;
        let q = config.q_width();
        let qkv = q + 2 * config.kv_width();
        let half = |place: Placement<bf16>, stride| MatMulTarget::Half(DeviceMatrix::new(self.work(place), stride));
        let stream = MatMulTarget::Sum(DeviceMatrix::new(self.work(buffers.stream), config.hidden));
        let product =
            |x: Placement<bf16>, weight: Placement<bf16>, inner: usize, columns: usize, target: MatMulTarget| {
                let x = DeviceMatrix::new(self.work(x), inner);
                let weight = DeviceMatrix::new(self.weight(weight), inner).transpose();
                MatMul { operands: MatMulOperands::Half(x, weight), target, rows, inner, columns, scale: 1.0 }
            };
        let mut groups = vec![Vec::new(); 4];
        for layer in self.weight_layout.layers.iter().take(LAYERS) {
            let gate_up = half(buffers.gate_up, 2 * config.ffn);
            let products = [
                (buffers.normed, layer.qkv, config.hidden, qkv, half(buffers.qkv, qkv)),
                (buffers.attended, layer.o, q, config.hidden, stream),
                (buffers.normed, layer.gate_up, config.hidden, 2 * config.ffn, gate_up),
                (buffers.activated, layer.down, config.ffn, config.hidden, stream),
            ];
            for (group, (x, matrix, inner, columns, target)) in groups.iter_mut().zip(products) {
                group.push(match matrix {
                    MatrixLayout::Half(weight) => product(x, weight, inner, columns, target),
                    MatrixLayout::Fp8 { values, scales } => {
                        self.product_in_fp8(rows, ((values, scales), columns, inner), target)
                    }
                });
            }
        }
        if rows <= self.limits.rows {
            let head = self.weight_layout.head.unwrap_or(self.weight_layout.embedding);
            let target = MatMulTarget::Single(DeviceMatrix::new(self.work(buffers.logits), config.vocab));
            groups.push(vec![product(buffers.normed, head, config.hidden, config.vocab, target)]);
        }
        groups
    }
}
