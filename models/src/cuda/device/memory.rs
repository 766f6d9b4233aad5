//! Device memory, and pinned host memory.

use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::ContextHandle;
use super::{Gpu, call};
use crate::cuda::CudaError;
use crate::cuda::kernel::DeviceSlice;
use crate::cuda::plan::Placement;
use crate::cuda::step_layout::CopyRect;

/// One allocation of device memory, carved into [`DeviceSlice`]s.
pub(crate) struct DeviceRegion {
    address: u64,
    bytes: usize,
    hold: Arc<ContextHandle>,
}

impl DeviceRegion {
    /// Allocates `bytes` uninitialized bytes.
    pub(crate) fn allocate(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        gpu.bind()?;
        // The driver refuses allocations of zero bytes.
        let bytes = bytes.max(256);
        // SAFETY: the context is bound; the memory is freed once, by `drop`.
        let address = call("cannot allocate device memory", unsafe { result::malloc_sync(bytes) })?;
        Ok(Self { address, bytes, hold: gpu.hold() })
    }

    /// Returns the slice at a placement.
    pub(crate) fn slice<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        assert!(place.end() <= self.bytes, "placement ends at byte {}, the region has {}", place.end(), self.bytes);
        // SAFETY: the slice is inside the region, and aligned, since placements and regions begin at multiples of 256
        // bytes. The owner of the region keeps it alive while the slice is used, and writes valid indices.
        unsafe { DeviceSlice::new(self.address + place.first() as u64, place.len()) }
    }

    /// Fills the region with one byte value.
    pub(crate) fn fill(&self, gpu: &Gpu, byte: u8) -> Result<(), CudaError> {
        let stream = gpu.stream();
        // SAFETY: exactly the allocated region.
        call("cannot fill device memory", unsafe { result::memset_d8_async(self.address, byte, self.bytes, stream) })
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate`; the driver waits for work that still uses the memory.
        self.hold.free(|| unsafe { result::free_sync(self.address) });
    }
}

/// Pinned (page-locked) host memory, which the GPU can copy from and to asynchronously.
pub(crate) struct PinnedBuffer<T> {
    values: *mut T,
    len: usize,
    hold: Arc<ContextHandle>,
}

// SAFETY: owned memory of bytewise copyable values.
unsafe impl<T: Copy + Send> Send for PinnedBuffer<T> {}

impl<T: Copy> PinnedBuffer<T> {
    /// Allocates `len` values, all of them `value`.
    pub(crate) fn filled(gpu: &Gpu, len: usize, value: T) -> Result<Self, CudaError> {
        gpu.bind()?;
        // SAFETY: freed once, by `drop`.
        let memory = unsafe { result::malloc_host(len.max(1) * size_of::<T>(), 0) };
        let values: *mut T = call("cannot allocate pinned host memory", memory)?.cast();
        for at in 0..len {
            // SAFETY: inside the allocation, which is page-aligned.
            unsafe { values.add(at).write(value) };
        }
        Ok(Self { values, len, hold: gpu.hold() })
    }

    pub(crate) fn values(&self) -> &[T] {
        // SAFETY: initialized by `filled`. The caller waits for copies from the GPU into this buffer before reading it.
        unsafe { slice::from_raw_parts(self.values, self.len) }
    }

    pub(crate) fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `values`, and `&mut self` excludes other borrows.
        unsafe { slice::from_raw_parts_mut(self.values, self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `filled`.
        self.hold.free(|| unsafe { result::free_host(self.values.cast()) });
    }
}

/// Describes a copy of `rows` rows of `width` bytes, which begin `pitch` bytes apart on both sides.
// Written out: some fields are enumerations without a zero, so the struct cannot begin as zeros.
fn copy_of_rows(from: *const u8, to: u64, width: usize, pitch: usize, rows: usize) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.cast(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        srcPitch: pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: to,
        dstArray: ptr::null_mut(),
        dstPitch: pitch,
        WidthInBytes: width,
        Height: rows,
    }
}

impl Gpu {
    /// Enqueues a copy to the GPU. `from` must not change until the copy is done: use pinned memory that is written
    /// again only after the next wait, or wait immediately.
    pub(crate) fn upload<T: Copy>(&self, from: &[T], to: DeviceSlice<T>) -> Result<(), CudaError> {
        assert!(
            from.len() <= to.len(),
            "the destination of a copy is too small: {} values for {}",
            to.len(),
            from.len()
        );
        // SAFETY: both sides are large enough; the caller leaves `from` unchanged until the copy is done.
        call("cannot copy to the GPU", unsafe { result::memcpy_htod_async(to.address(), from, self.stream()) })
    }

    /// Enqueues copies of pieces of `from` to the same offsets in `to`. As for [`upload`](Self::upload), `from` must
    /// not change until the copies are done.
    pub(crate) fn upload_pieces(&self, from: &[u8], pieces: &[CopyRect], to: DeviceSlice<u8>) -> Result<(), CudaError> {
        for &CopyRect { first, width, pitch, rows } in pieces.iter().filter(|piece| piece.rows > 0) {
            let end = first + (rows - 1) * pitch + width;
            assert!(
                width <= pitch && end <= from.len() && end <= to.len(),
                "a copied piece ends at byte {end}, beyond its buffer"
            );
            if rows == 1 {
                // SAFETY: the piece is inside both buffers; the caller leaves `from` unchanged until the copy is done.
                call("cannot copy to the GPU", unsafe {
                    let part = &from[first..end];
                    result::memcpy_htod_async(to.address() + first as u64, part, self.stream())
                })?;
                continue;
            }
            let copy = copy_of_rows(from[first..].as_ptr(), to.address() + first as u64, width, pitch, rows);
            // SAFETY: as for a single row.
            let copied = unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream()) };
            call("cannot copy rows to the GPU", copied.result())?;
        }
        Ok(())
    }

    /// Enqueues a copy from the GPU. `to` is valid after the next wait.
    pub(crate) fn download<T: Copy>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(to.len() <= from.len(), "the source of a copy is too small: {} values for {}", from.len(), to.len());
        // SAFETY: both sides are large enough; the caller waits before reading `to`.
        call("cannot copy from the GPU", unsafe { result::memcpy_dtoh_async(to, from.address(), self.stream()) })
    }

    /// Enqueues setting values to zero.
    pub(crate) fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError> {
        let bytes = to.len() * size_of::<f32>();
        let stream = self.stream();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: exactly the memory of the slice.
        call("cannot fill device memory", unsafe { result::memset_d8_async(to.address(), 0, bytes, stream) })
    }

    /// Enqueues a copy within device memory.
    pub(crate) fn copy<T: Copy>(&self, from: DeviceSlice<T>, to: DeviceSlice<T>) -> Result<(), CudaError> {
        assert!(
            from.len() <= to.len(),
            "the destination of a copy is too small: {} values for {}",
            to.len(),
            from.len()
        );
        let bytes = from.len() * size_of::<T>();
        // SAFETY: both sides are large enough.
        call("cannot copy within device memory", unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream())
        })
    }
}
