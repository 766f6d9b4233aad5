//! A checkpoint on its way to the card.

use half::bf16;

use super::driver::Driver;
use crate::cuda::CudaError;
use crate::cuda::checkpoint::{self, Bring};
use crate::cuda::plan::{Place, WeightPlaces};
use crate::weights::Weights;

/// Takes memory for the weights and copies them there.
pub(super) fn load<D: Driver>(driver: &D, weights: &Weights, places: &WeightPlaces) -> Result<D::Region, CudaError> {
    let region = driver.take(places.bytes)?;
    let config = weights.config();
    let mut porter = Porter { driver, weights, region: &region, values: Vec::new() };
    checkpoint::bring(config, places, config.context, &mut porter)?;
    Ok(region)
}

struct Porter<'a, D: Driver> {
    driver: &'a D,
    weights: &'a Weights,
    region: &'a D::Region,
    /// Staging, used again.
    values: Vec<bf16>,
}

impl<D: Driver> Bring for Porter<'_, D> {
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: Place<bf16>) -> Result<(), CudaError> {
        let mut at = 0;
        for (name, out) in named {
            checkpoint::half(self.weights, name, &[*out, inn], &mut self.values)?;
            self.driver.upload(&self.values, self.driver.span(self.region, place.part(at, out * inn)))?;
            at += out * inn;
        }
        Ok(())
    }

    fn vectors(&mut self, named: &[(String, usize)], _: f32, place: Place<f32>) -> Result<(), CudaError> {
        self.values(&checkpoint::vectors(self.weights, named)?, place)
    }

    fn values(&mut self, values: &[f32], place: Place<f32>) -> Result<(), CudaError> {
        self.driver.upload(values, self.driver.span(self.region, place))
    }
}
