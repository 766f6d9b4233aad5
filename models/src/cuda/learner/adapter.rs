//! The adapter that is learnt, on the card: its values and gradients, and the products with them, all of it in `f32`.

use super::pass::Pass;
use crate::cuda::CudaError;
use crate::cuda::driver::{Driver, Matrix, Operands, Product, Target};
use crate::cuda::kernel::Span;
use crate::cuda::plan::{Carver, Place};
use crate::gradient::{Lora, Module, Pairs};

/// What is learnt, and where it lies in memory of its own.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) rank: usize,
    scale: f32,
    /// Per layer and module, where A and B lie among the values.
    pairs: Vec<Pairs>,
    /// All values and all gradients, in the order of the flat vectors.
    pub(super) values: Place<f32>,
    pub(super) gradients: Place<f32>,
    /// Bytes of both.
    pub(super) bytes: usize,
}

/// One projection's pair, on the card.
pub(super) struct Delta {
    module: Module,
    rank: usize,
    scale: f32,
    inn: usize,
    out: usize,
    /// A, of shape (rank, inn), and B, of shape (out, rank), and their gradients.
    values: [Span<f32>; 2],
    gradients: [Span<f32>; 2],
}

impl Adapter {
    pub(super) fn new(lora: &Lora, pairs: Vec<Pairs>, values: usize) -> Self {
        let ([values, gradients], bytes) = Self::places(values);
        Self { rank: lora.rank, scale: lora.scale(), pairs, values, gradients, bytes }
    }

    /// Where so many values and their gradients lie, and the bytes of both.
    pub(super) fn places(values: usize) -> ([Place<f32>; 2], usize) {
        let mut carver = Carver::default();
        let places = [carver.place(values), carver.place(values)];
        (places, carver.bytes())
    }

    /// The rank of each module's pair; 0 without one.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        let has = |module: Module| self.pairs.first().is_some_and(|pairs| pairs[module as usize].is_some());
        Module::ALL.map(|module| if has(module) { self.rank } else { 0 })
    }

    /// Whether a layer's projection has a pair.
    pub(super) fn has(&self, layer: usize, module: Module) -> bool {
        self.pairs[layer][module as usize].is_some()
    }
}

impl<D: Driver> Pass<'_, D> {
    /// A projection's pair, where there is one and it takes part.
    pub(super) fn delta(&self, layer: usize, module: Module) -> Option<Delta> {
        let (adapter, region) = self.adapter?;
        let [a, b] = adapter.pairs[layer][module as usize].as_ref()?;
        let part = |place: Place<f32>, range: &std::ops::Range<usize>| {
            self.driver.span(region, place.part(range.start, range.len()))
        };
        let [out, inn] = module.shape(self.config);
        Some(Delta {
            module,
            rank: adapter.rank,
            scale: adapter.scale,
            inn,
            out,
            values: [part(adapter.values, a), part(adapter.values, b)],
            gradients: [part(adapter.gradients, a), part(adapter.gradients, b)],
        })
    }

    /// `small = A x`, and if there is somewhere to put it, `to += scale · B small`. `x` has shape (tokens, in).
    pub(super) fn adapt(&self, delta: &Delta, x: Span<f32>, to: Option<Matrix<f32>>) -> Result<(), CudaError> {
        let Delta { rank, scale, inn, out, values: [a, b], .. } = *delta;
        let small = Matrix::new(self.small(delta.module), rank);
        let (x, a, b) = (Matrix::new(x, inn), Matrix::new(a, inn).transpose(), Matrix::new(b, rank).transpose());
        self.single([x, a], Target::Single(small), [self.tokens, inn, rank], 1.0)?;
        match to {
            Some(to) => self.single([small, b], Target::Sum(to), [self.tokens, rank, out], scale),
            None => Ok(()),
        }
    }

    /// From the gradient `dy` (tokens, out) of the output and the input `x` (tokens, in): adds those of A and B to the
    /// gradients, and that of the input to `to`. `small` holds `A x` still.
    ///
    /// With y = W x + s B A x: dh = s Bᵀ dy, dA = Σ dh xᵀ, dB = s Σ dy (A x)ᵀ, and the input gets Aᵀ dh.
    pub(super) fn learn(
        &self,
        delta: &Delta,
        dy: Matrix<f32>,
        x: Span<f32>,
        to: Option<Matrix<f32>>,
    ) -> Result<(), CudaError> {
        let Delta { rank, scale, inn, out, values: [a, b], gradients: [da, db], .. } = *delta;
        let small = Matrix::new(self.small(delta.module), rank);
        let dsmall = Matrix::new(self.work(self.room.back.small), rank);
        let (a, b, x) = (Matrix::new(a, inn), Matrix::new(b, rank), Matrix::new(x, inn));
        let (da, db) = (Target::Sum(Matrix::new(da, inn)), Target::Sum(Matrix::new(db, rank)));
        self.single([dy, b], Target::Single(dsmall), [self.tokens, out, rank], scale)?;
        self.single([dy.transpose(), small], db, [out, self.tokens, rank], scale)?;
        self.single([dsmall.transpose(), x], da, [rank, self.tokens, inn], 1.0)?;
        match to {
            Some(to) => self.single([dsmall, a], Target::Sum(to), [self.tokens, rank, inn], 1.0),
            None => Ok(()),
        }
    }

    /// A product of matrices in `f32`, of shape (rows, inner) and (inner, columns).
    fn single(
        &self,
        [left, right]: [Matrix<f32>; 2],
        target: Target,
        [rows, inner, columns]: [usize; 3],
        scale: f32,
    ) -> Result<(), CudaError> {
        let operands = Operands::Single(left, right);
        self.driver.multiply(&Product { operands, target, rows, inner, columns, scale })
    }

    fn small(&self, module: Module) -> Span<f32> {
        self.work(self.room.small[module as usize])
    }
}
