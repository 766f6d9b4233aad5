//! [`Driver`] of a GPU.

use std::time::Duration;

use bytemuck::Pod;

use super::{DeviceClock, Driver, MatMul};
use crate::cuda::CudaError;
use crate::cuda::algorithms::AlgorithmFile;
use crate::cuda::device::{Blas, DeviceRegion, Gpu, GpuEvent};
use crate::cuda::kernel::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};
use crate::cuda::plan::Placement;

/// A GPU with its cuBLAS handle.
pub(crate) struct GpuDriver {
    // Fields drop in order: the cuBLAS handle uses the stream of the GPU.
    blas: Blas,
    gpu: Gpu,
}

impl GpuDriver {
    /// Creates the cuBLAS handle.
    pub(crate) fn new(gpu: Gpu) -> Result<Self, CudaError> {
        Ok(Self { blas: Blas::new(&gpu)?, gpu })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Chooses algorithms for groups of matrix multiplications of the same shape, where `file` has none. Computes the
    /// products, so their targets have to be memory without meaning.
    pub(crate) fn tune(&mut self, groups: &[Vec<MatMul>], file: Option<&AlgorithmFile>) -> Result<(), CudaError> {
        if groups.iter().flatten().all(MatMul::fits) {
            self.blas.tune(&self.gpu, groups, file)?;
        }
        Ok(())
    }
}

impl Launch for GpuDriver {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut std::ffi::c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.launch(kernel, geometry, arguments) }
    }
}

impl Driver for GpuDriver {
    type Region = DeviceRegion;

    fn bind(&self) -> Result<(), CudaError> {
        self.gpu.bind()
    }

    fn free_memory(&self) -> Result<usize, CudaError> {
        self.gpu.free_memory()
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceRegion, CudaError> {
        DeviceRegion::allocate(&self.gpu, bytes)
    }

    fn slice<T>(&self, region: &DeviceRegion, place: Placement<T>) -> DeviceSlice<T> {
        region.slice(place)
    }

    fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError> {
        self.gpu.clear(to)
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], DeviceSlice<T>)]) -> Result<(), CudaError> {
        for &(from, to) in pieces {
            self.gpu.upload(from, to)?;
        }
        self.gpu.synchronize()
    }

    fn download<T: Pod>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError> {
        // Waits under the time limit first: a copy into pageable memory blocks in the driver until the GPU gets to it.
        self.gpu.synchronize()?;
        self.gpu.download(from, to)?;
        self.gpu.synchronize()
    }

    fn copy<T: Pod>(&self, from: DeviceSlice<T>, to: DeviceSlice<T>) -> Result<(), CudaError> {
        self.gpu.copy(from, to)
    }

    fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        self.blas.multiply(product)
    }

    fn takes_fp8(&self, product: &MatMul) -> bool {
        self.blas.takes_fp8(product)
    }

    fn multiply_fp8(&self, product: &MatMul) -> Result<bool, CudaError> {
        self.blas.multiply_fp8(product)
    }
}

impl DeviceClock for GpuDriver {
    type Mark = GpuEvent;

    fn mark(&self) -> Result<GpuEvent, CudaError> {
        let event = GpuEvent::new(&self.gpu)?;
        event.record(&self.gpu)?;
        Ok(event)
    }

    fn pause(&self, time: Duration) -> Result<(), CudaError> {
        self.gpu.pause(time)
    }

    fn reached(&self, mark: &GpuEvent) -> Result<bool, CudaError> {
        mark.reached()
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.gpu.synchronize()
    }

    fn seconds(&self, from: &GpuEvent, to: &GpuEvent) -> Result<f64, CudaError> {
        from.seconds_to(to)
    }
}
