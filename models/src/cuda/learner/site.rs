//! Projections that share an input, side by side as the card has them: the base model's in `bf16`, adapters in `f32`.

use half::bf16;

use super::pass::Pass;
use crate::cuda::CudaError;
use crate::cuda::driver::{Driver, Matrix, Operands, Product, Target};
use crate::cuda::kernel::{Narrow, Span, Widen};
use crate::cuda::plan::Place;
use crate::gradient::Module;

/// Some projections of a layer, their weights stacked: shape (out, in).
#[derive(Debug, Clone, Copy)]
pub(super) struct Site {
    pub(super) layer: usize,
    pub(super) modules: &'static [Module],
    pub(super) weight: Place<bf16>,
}

/// Where a site's outputs go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    /// Replaced.
    Activation(Span<bf16>),
    /// Added to.
    Stream(Span<f32>),
}

impl<D: Driver> Pass<'_, D> {
    /// The products with the inputs `x` (tokens, in).
    pub(super) fn project(&self, site: Site, x: Span<bf16>, to: Output) -> Result<(), CudaError> {
        let [out, inn] = self.shape(site);
        let weight = Matrix::new(self.weight(site.weight), inn).transpose();
        let shape = [self.tokens, inn, out];
        match to {
            Output::Activation(y) if !self.adapted(site) => {
                self.half([Matrix::new(x, inn), weight], Target::Half(Matrix::new(y, out)), shape)
            }
            Output::Activation(y) => {
                let wide = Matrix::new(self.work(self.room.wide), out);
                self.half([Matrix::new(x, inn), weight], Target::Single(wide), shape)?;
                self.add(site, x, Some(wide))?;
                self.narrow(wide.values, y, self.tokens * out)
            }
            Output::Stream(y) => {
                let stream = Matrix::new(y, out);
                self.half([Matrix::new(x, inn), weight], Target::Sum(stream), shape)?;
                self.add(site, x, Some(stream))
            }
        }
    }

    /// What adapters make of the inputs, added to `to` where that is given; without it as far as the backward pass needs.
    pub(super) fn add(&self, site: Site, x: Span<bf16>, to: Option<Matrix<f32>>) -> Result<(), CudaError> {
        if !self.adapted(site) {
            return Ok(());
        }
        let x = self.widened(site, x)?;
        self.deltas(site, |delta, first| self.adapt(&delta, x, to.map(|to| to.from(first))))
    }

    /// From the gradient `dy` (tokens, out) of the outputs and the inputs `x`: that of the inputs goes to `to`, and what
    /// adapters learn is added to their gradients. `exact` is `dy` before it was rounded, where that is there.
    pub(super) fn project_back(
        &self,
        site: Site,
        (dy, exact): (Span<bf16>, Option<Span<f32>>),
        x: Span<bf16>,
        to: Option<Span<bf16>>,
    ) -> Result<(), CudaError> {
        let [out, inn] = self.shape(site);
        let operands = [Matrix::new(dy, out), Matrix::new(self.weight(site.weight), inn)];
        let shape = [self.tokens, out, inn];
        if !self.adapted(site) {
            return to.map_or(Ok(()), |to| self.half(operands, Target::Half(Matrix::new(to, inn)), shape));
        }
        let dx = to.map(|_| Matrix::new(self.work(self.room.back.x), inn));
        if let Some(dx) = dx {
            self.half(operands, Target::Single(dx), shape)?;
        }
        let dy = match exact {
            Some(exact) => exact,
            None => {
                let wide = self.work(self.room.wide);
                Widen { from: dy, to: wide, count: self.tokens * out }.launch(self.driver)?;
                wide
            }
        };
        let (dy, x) = (Matrix::new(dy, out), self.widened(site, x)?);
        self.deltas(site, |delta, first| self.learn(&delta, dy.from(first), x, dx))?;
        dx.zip(to).map_or(Ok(()), |(dx, to)| self.narrow(dx.values, to, self.tokens * inn))
    }

    /// Rounds the first `count` values.
    pub(super) fn narrow(&self, from: Span<f32>, to: Span<bf16>, count: usize) -> Result<(), CudaError> {
        Ok(Narrow { from, to, count }.launch(self.driver)?)
    }

    /// A product of matrices in `bf16`, of shape (rows, inner) and (inner, columns).
    pub(super) fn half(
        &self,
        [left, right]: [Matrix<bf16>; 2],
        target: Target,
        [rows, inner, columns]: [usize; 3],
    ) -> Result<(), CudaError> {
        let operands = Operands::Half(left, right);
        self.driver.multiply(&Product { operands, target, rows, inner, columns, scale: 1.0 })
    }

    /// Whether any of the projections has an adapter that takes part.
    pub(super) fn adapted(&self, site: Site) -> bool {
        self.adapter.is_some_and(|(adapter, _)| site.modules.iter().any(|&module| adapter.has(site.layer, module)))
    }

    /// Each adapter with the column at which its projection's outputs begin.
    fn deltas(
        &self,
        site: Site,
        each: impl Fn(super::adapter::Delta, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut first = 0;
        for &module in site.modules {
            if let Some(delta) = self.delta(site.layer, module) {
                each(delta, first)?;
            }
            first += module.shape(self.config)[0];
        }
        Ok(())
    }

    fn widened(&self, site: Site, x: Span<bf16>) -> Result<Span<f32>, CudaError> {
        let to = self.work(self.room.x);
        Widen { from: x, to, count: self.tokens * self.shape(site)[1] }.launch(self.driver)?;
        Ok(to)
    }

    /// Shape (out, in) of the stack.
    fn shape(&self, site: Site) -> [usize; 2] {
        let shapes = site.modules.iter().map(|module| module.shape(self.config));
        shapes.fold([0, 0], |[out, _], [more, inn]| [out + more, inn])
    }
}
