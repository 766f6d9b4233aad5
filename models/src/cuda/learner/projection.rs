//! Projections that share an input, computed together: the base model in `bf16`, adapters in `f32`.

use half::bf16;

use super::pass::LearnerPass;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::{DeviceSlice, NarrowToBf16, WidenToF32};
use crate::cuda::plan::Placement;
use crate::gradient::Module;

/// Projections of a layer with stacked weights of shape (out, in).
#[derive(Debug, Clone, Copy)]
pub(super) struct ProjectionSite {
    pub(super) layer: usize,
    pub(super) modules: &'static [Module],
    pub(super) weight: Placement<bf16>,
}

/// Destination of a site's outputs.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProjectionOutput {
    /// Overwritten.
    Activation(DeviceSlice<bf16>),
    /// Added to.
    Stream(DeviceSlice<f32>),
}

impl<D: Driver> LearnerPass<'_, D> {
    /// Multiplies the inputs `x` (tokens, in) by the weights and adds the adapters' contribution.
    pub(super) fn project(
        &self,
        site: ProjectionSite,
        x: DeviceSlice<bf16>,
        to: ProjectionOutput,
    ) -> Result<(), CudaError> {
        let [out, inn] = self.shape(site);
        let weight = DeviceMatrix::new(self.weight(site.weight), inn).transpose();
        let shape = [self.tokens, inn, out];
        match to {
            ProjectionOutput::Activation(y) if !self.adapted(site) => self.matmul_bf16(
                [DeviceMatrix::new(x, inn), weight],
                MatMulTarget::Half(DeviceMatrix::new(y, out)),
                shape,
            ),
            ProjectionOutput::Activation(y) => {
                // Base model and adapter are summed in f32 and rounded once.
                let wide = DeviceMatrix::new(self.work(self.buffers.wide), out);
                self.matmul_bf16([DeviceMatrix::new(x, inn), weight], MatMulTarget::Single(wide), shape)?;
                self.add_lora(site, x, Some(wide))?;
                self.narrow(wide.values, y, self.tokens * out)
            }
            ProjectionOutput::Stream(y) => {
                let stream = DeviceMatrix::new(y, out);
                self.matmul_bf16([DeviceMatrix::new(x, inn), weight], MatMulTarget::Sum(stream), shape)?;
                self.add_lora(site, x, Some(stream))
            }
        }
    }

    /// Adds the adapters' contribution for the inputs to `to`. `None` computes only the intermediate values that the
    /// backward pass needs.
    pub(super) fn add_lora(
        &self,
        site: ProjectionSite,
        x: DeviceSlice<bf16>,
        to: Option<DeviceMatrix<f32>>,
    ) -> Result<(), CudaError> {
        if !self.adapted(site) {
            return Ok(());
        }
        let x = self.widened(site, x)?;
        self.for_each_pair(site, |pair, first| self.lora_forward(&pair, x, to.map(|to| to.from(first))))
    }

    /// Backpropagates the output gradient `dy` (tokens, out) for the inputs `x`: writes the input gradient to `to` and
    /// adds to the adapters' gradients. `exact` is `dy` before rounding, if available.
    pub(super) fn project_backward(
        &self,
        site: ProjectionSite,
        (dy, exact): (DeviceSlice<bf16>, Option<DeviceSlice<f32>>),
        x: DeviceSlice<bf16>,
        to: Option<DeviceSlice<bf16>>,
    ) -> Result<(), CudaError> {
        let [out, inn] = self.shape(site);
        let operands = [DeviceMatrix::new(dy, out), DeviceMatrix::new(self.weight(site.weight), inn)];
        let shape = [self.tokens, out, inn];
        if !self.adapted(site) {
            return to.map_or(Ok(()), |to| {
                self.matmul_bf16(operands, MatMulTarget::Half(DeviceMatrix::new(to, inn)), shape)
            });
        }
        // The gradients through base model and adapter are summed in f32 and rounded once.
        let dx = to.map(|_| DeviceMatrix::new(self.work(self.buffers.back.x), inn));
        if let Some(dx) = dx {
            self.matmul_bf16(operands, MatMulTarget::Single(dx), shape)?;
        }
        let dy = match exact {
            Some(exact) => exact,
            None => {
                let wide = self.work(self.buffers.wide);
                WidenToF32 { from: dy, to: wide, count: self.tokens * out }.launch(self.driver)?;
                wide
            }
        };
        let dy = DeviceMatrix::new(dy, out);
        let x = self.widened(site, x)?;
        self.for_each_pair(site, |pair, first| self.lora_backward(&pair, dy.from(first), x, dx))?;
        dx.zip(to).map_or(Ok(()), |(dx, to)| self.narrow(dx.values, to, self.tokens * inn))
    }

    /// Rounds the first `count` values to `bf16`.
    pub(super) fn narrow(&self, from: DeviceSlice<f32>, to: DeviceSlice<bf16>, count: usize) -> Result<(), CudaError> {
        Ok(NarrowToBf16 { from, to, count }.launch(self.driver)?)
    }

    /// Multiplies `bf16` matrices of shapes (rows, inner) and (inner, columns).
    pub(super) fn matmul_bf16(
        &self,
        [left, right]: [DeviceMatrix<bf16>; 2],
        target: MatMulTarget,
        [rows, inner, columns]: [usize; 3],
    ) -> Result<(), CudaError> {
        let operands = MatMulOperands::Half(left, right);
        self.driver.multiply(&MatMul { operands, target, rows, inner, columns, scale: 1.0 })
    }

    /// Returns `true` if any of the projections has an active adapter.
    pub(super) fn adapted(&self, site: ProjectionSite) -> bool {
        self.adapter.is_some_and(|(adapter, _)| site.modules.iter().any(|&module| adapter.has(site.layer, module)))
    }

    /// Calls `each` with every adapter and the first output column of its projection.
    fn for_each_pair(
        &self,
        site: ProjectionSite,
        each: impl Fn(super::adapter::LoraPair, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut first = 0;
        for &module in site.modules {
            if let Some(pair) = self.lora_pair(site.layer, module) {
                each(pair, first)?;
            }
            first += module.shape(self.config)[0];
        }
        Ok(())
    }

    fn widened(&self, site: ProjectionSite, x: DeviceSlice<bf16>) -> Result<DeviceSlice<f32>, CudaError> {
        let to = self.work(self.buffers.x);
        WidenToF32 { from: x, to, count: self.tokens * self.shape(site)[1] }.launch(self.driver)?;
        Ok(to)
    }

    /// Returns the shape (out, in) of the stacked weights.
    fn shape(&self, site: ProjectionSite) -> [usize; 2] {
        let shapes = site.modules.iter().map(|module| module.shape(self.config));
        shapes.fold([0, 0], |[out, _], [more, inn]| [out + more, inn])
    }
}
