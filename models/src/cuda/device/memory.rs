//! Memory of the card, and memory of this machine that the card reads by itself.

use std::slice;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::hold::Hold;
use super::{Card, call};
use crate::cuda::CudaError;
use crate::cuda::image::Piece;
use crate::cuda::kernel::Span;
use crate::cuda::plan::Place;

/// One piece of the card's memory, taken at once and carved into [`Span`]s.
pub(crate) struct Region {
    address: u64,
    bytes: usize,
    hold: Arc<Hold>,
}

impl Region {
    /// Takes `bytes` bytes, which hold nothing in particular.
    pub(crate) fn take(card: &Card, bytes: usize) -> Result<Self, CudaError> {
        card.bind()?;
        // Never nothing: a driver refuses that.
        let bytes = bytes.max(256);
        // SAFETY: the context is bound; what comes back is freed once, by `drop`.
        let address = call("take memory of the card", unsafe { result::malloc_sync(bytes) })?;
        Ok(Self { address, bytes, hold: card.hold() })
    }

    /// The values at a place.
    pub(crate) fn span<T>(&self, place: Place<T>) -> Span<T> {
        assert!(place.end() <= self.bytes, "a place inside the region");
        // SAFETY: inside the region and aligned, since places begin at multiples of 256 bytes and regions do. That the
        // region outlives what uses the span is seen to by who owns both; contents are what the layout writes.
        unsafe { Span::new(self.address + place.first() as u64, place.len()) }
    }

    /// Fills it with one byte.
    pub(crate) fn fill(&self, card: &Card, byte: u8) -> Result<(), CudaError> {
        let stream = card.stream().cu_stream();
        // SAFETY: the whole region, which is there.
        call("clear memory of the card", unsafe { result::memset_d8_async(self.address, byte, self.bytes, stream) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: taken by `take`; the driver waits for what still uses it.
        self.hold.free(|| unsafe { result::free_sync(self.address) });
    }
}

/// Memory of this machine that never moves: the card copies from and to it while the processor does something else.
pub(crate) struct Pinned<T> {
    values: *mut T,
    len: usize,
    hold: Arc<Hold>,
}

// SAFETY: owned memory; a `T` that can be copied bytewise goes along.
unsafe impl<T: Copy + Send> Send for Pinned<T> {}

impl<T: Copy> Pinned<T> {
    /// Memory for `len` values, all of them `value`.
    pub(crate) fn filled(card: &Card, len: usize, value: T) -> Result<Self, CudaError> {
        card.bind()?;
        // SAFETY: freed once, by `drop`.
        let memory = unsafe { result::malloc_host(len.max(1) * size_of::<T>(), 0) };
        let values: *mut T = call("take pinned memory", memory)?.cast();
        for at in 0..len {
            // SAFETY: inside what was taken; page-aligned.
            unsafe { values.add(at).write(value) };
        }
        Ok(Self { values, len, hold: card.hold() })
    }

    pub(crate) fn values(&self) -> &[T] {
        // SAFETY: filled by `filled`; nothing on the card writes to it while it is read, since who asked for a copy waits
        // for it first.
        unsafe { slice::from_raw_parts(self.values, self.len) }
    }

    pub(crate) fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.values, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: taken by `filled`.
        self.hold.free(|| unsafe { result::free_host(self.values.cast()) });
    }
}

impl Card {
    /// Puts a copy to the card in line. `from` must stay as it is until the card is through: pinned memory that is written
    /// again only after the next wait, or anything that is followed by a wait at once.
    pub(crate) fn upload<T: Copy>(&self, from: &[T], to: Span<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "room for what is copied");
        // SAFETY: both sides are large enough; the caller keeps `from`.
        call("copy to the card", unsafe { result::memcpy_htod_async(to.address(), from, self.stream().cu_stream()) })
    }

    /// Puts copies of some pieces in line, each of which comes to the same place that it has in `from`. As for
    /// [`upload`](Self::upload), `from` must stay as it is.
    pub(crate) fn upload_pieces(&self, from: &[u8], pieces: &[Piece], to: Span<u8>) -> Result<(), CudaError> {
        for &Piece { first, width, pitch, rows } in pieces.iter().filter(|piece| piece.rows > 0) {
            let end = first + (rows - 1) * pitch + width;
            assert!(width <= pitch && end <= from.len() && end <= to.len(), "pieces inside what is copied");
            if rows == 1 {
                // SAFETY: inside both; the caller keeps `from`.
                call("copy to the card", unsafe {
                    let part = &from[first..end];
                    result::memcpy_htod_async(to.address() + first as u64, part, self.stream().cu_stream())
                })?;
                continue;
            }
            // SAFETY: numbers and addresses, of which nothing is a valid value as well.
            let mut copy: sys::CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
            copy.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
            copy.srcHost = from[first..].as_ptr().cast();
            copy.srcPitch = pitch;
            copy.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
            copy.dstDevice = to.address() + first as u64;
            copy.dstPitch = pitch;
            copy.WidthInBytes = width;
            copy.Height = rows;
            // SAFETY: as above.
            let copied = unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream().cu_stream()) };
            call("copy rows to the card", copied.result())?;
        }
        Ok(())
    }

    /// Puts a copy from the card in line; `to` holds it after the next wait.
    pub(crate) fn download<T: Copy>(&self, from: Span<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(to.len() <= from.len(), "something to copy from");
        // SAFETY: both sides are large enough; the caller waits before it looks.
        call("copy from the card", unsafe { result::memcpy_dtoh_async(to, from.address(), self.stream().cu_stream()) })
    }

    /// Sets values to zero, in line.
    pub(crate) fn clear(&self, to: Span<f32>) -> Result<(), CudaError> {
        let (bytes, stream) = (to.len() * size_of::<f32>(), self.stream().cu_stream());
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: all of it is there.
        call("clear memory of the card", unsafe { result::memset_d8_async(to.address(), 0, bytes, stream) })
    }

    /// Puts a copy within the card in line.
    pub(crate) fn copy<T: Copy>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "room for what is copied");
        let bytes = from.len() * size_of::<T>();
        // SAFETY: both sides are large enough.
        call("copy within the card", unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream().cu_stream())
        })
    }
}
