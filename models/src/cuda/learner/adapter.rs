//! The trained adapter on the device: its values and gradients, and the matrix multiplications with them, all in `f32`.

use super::pass::LearnerPass;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::DeviceSlice;
use crate::cuda::plan::{Placement, PlacementAllocator};
use crate::gradient::{Lora, Module, Pairs};

/// A trained adapter and its placements in its own memory region.
#[derive(Debug)]
pub(super) struct LearnerAdapter {
    pub(super) rank: usize,
    scale: f32,
    /// Ranges of A and B among the values, per layer and module.
    pairs: Vec<Pairs>,
    /// All values and all gradients, in the order of the flat vectors.
    pub(super) values: Placement<f32>,
    pub(super) gradients: Placement<f32>,
    /// Total bytes of values and gradients.
    pub(super) bytes: usize,
}

/// A and B of one projection, on the device.
pub(super) struct LoraPair {
    module: Module,
    rank: usize,
    scale: f32,
    inn: usize,
    out: usize,
    /// A of shape (rank, inn) and B of shape (out, rank), and their gradients.
    values: [DeviceSlice<f32>; 2],
    gradients: [DeviceSlice<f32>; 2],
}

impl LearnerAdapter {
    pub(super) fn new(lora: &Lora, pairs: Vec<Pairs>, values: usize) -> Self {
        let ([values, gradients], bytes) = Self::places(values);
        Self { rank: lora.rank, scale: lora.scale(), pairs, values, gradients, bytes }
    }

    /// Lays out this number of values and their gradients. Also returns the total bytes.
    pub(super) fn places(values: usize) -> ([Placement<f32>; 2], usize) {
        let mut allocator = PlacementAllocator::default();
        let places = [allocator.place(values), allocator.place(values)];
        (places, allocator.bytes())
    }

    /// Returns the rank of each module's pair; 0 for modules without one.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        let has = |module: Module| self.pairs.first().is_some_and(|pairs| pairs[module as usize].is_some());
        Module::ALL.map(|module| if has(module) { self.rank } else { 0 })
    }

    /// Returns `true` if a layer's projection has a pair.
    pub(super) fn has(&self, layer: usize, module: Module) -> bool {
        self.pairs[layer][module as usize].is_some()
    }
}

impl<D: Driver> LearnerPass<'_, D> {
    /// Returns a projection's pair. `None` when it has none or the pass runs the base model alone.
    pub(super) fn lora_pair(&self, layer: usize, module: Module) -> Option<LoraPair> {
        let (adapter, region) = self.adapter?;
        let [a, b] = adapter.pairs[layer][module as usize].as_ref()?;
        let part = |place: Placement<f32>, range: &std::ops::Range<usize>| {
            self.driver.slice(region, place.part(range.start, range.len()))
        };
        let [out, inn] = module.shape(self.config);
        Some(LoraPair {
            module,
            rank: adapter.rank,
            scale: adapter.scale,
            inn,
            out,
            values: [part(adapter.values, a), part(adapter.values, b)],
            gradients: [part(adapter.gradients, a), part(adapter.gradients, b)],
        })
    }

    /// Computes `small = A x` and, if `to` is given, `to += scale · B small`. `x` has shape (tokens, in).
    pub(super) fn lora_forward(
        &self,
        pair: &LoraPair,
        x: DeviceSlice<f32>,
        to: Option<DeviceMatrix<f32>>,
    ) -> Result<(), CudaError> {
        let LoraPair { rank, scale, inn, out, values: [a, b], .. } = *pair;
        let small = DeviceMatrix::new(self.small(pair.module), rank);
        let (x, a, b) =
            (DeviceMatrix::new(x, inn), DeviceMatrix::new(a, inn).transpose(), DeviceMatrix::new(b, rank).transpose());
        self.matmul_f32([x, a], MatMulTarget::Single(small), [self.tokens, inn, rank], 1.0)?;
        match to {
            Some(to) => self.matmul_f32([small, b], MatMulTarget::Sum(to), [self.tokens, rank, out], scale),
            None => Ok(()),
        }
    }

    /// Backpropagates the output gradient `dy` (tokens, out) for the input `x` (tokens, in): adds to the gradients of A
    /// and B, and to the input gradient `to`. `small` must still hold `A x`.
    ///
    /// With y = W x + s B A x: dh = s Bᵀ dy, dA = Σ dh xᵀ, dB = s Σ dy (A x)ᵀ, and dx += Aᵀ dh.
    pub(super) fn lora_backward(
        &self,
        pair: &LoraPair,
        dy: DeviceMatrix<f32>,
        x: DeviceSlice<f32>,
        to: Option<DeviceMatrix<f32>>,
    ) -> Result<(), CudaError> {
        let LoraPair { rank, scale, inn, out, values: [a, b], gradients: [da, db], .. } = *pair;
        let small = DeviceMatrix::new(self.small(pair.module), rank);
        let dsmall = DeviceMatrix::new(self.work(self.buffers.back.small), rank);
        let a = DeviceMatrix::new(a, inn);
        let b = DeviceMatrix::new(b, rank);
        let x = DeviceMatrix::new(x, inn);
        let da = MatMulTarget::Sum(DeviceMatrix::new(da, inn));
        let db = MatMulTarget::Sum(DeviceMatrix::new(db, rank));
        self.matmul_f32([dy, b], MatMulTarget::Single(dsmall), [self.tokens, out, rank], scale)?;
        self.matmul_f32([dy.transpose(), small], db, [out, self.tokens, rank], scale)?;
        self.matmul_f32([dsmall.transpose(), x], da, [rank, self.tokens, inn], 1.0)?;
        match to {
            Some(to) => self.matmul_f32([dsmall, a], MatMulTarget::Sum(to), [self.tokens, rank, inn], 1.0),
            None => Ok(()),
        }
    }

    /// Multiplies `f32` matrices of shapes (rows, inner) and (inner, columns).
    fn matmul_f32(
        &self,
        [left, right]: [DeviceMatrix<f32>; 2],
        target: MatMulTarget,
        [rows, inner, columns]: [usize; 3],
        scale: f32,
    ) -> Result<(), CudaError> {
        let operands = MatMulOperands::Single(left, right);
        self.driver.multiply(&MatMul { operands, target, rows, inner, columns, scale })
    }

    fn small(&self, module: Module) -> DeviceSlice<f32> {
        self.work(self.buffers.small[module as usize])
    }
}
