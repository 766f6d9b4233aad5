//! Kernel emulator: the CUDA sources run on the CPU, compiled by a host compiler against `device.h`, which implements
//! the CUDA primitives, and launched through the same [`Launch`] trait as on a GPU. The emulator cannot show speed, nor
//! effects of the memory model beyond the schedules that are tried.

#![allow(clippy::unwrap_used)]

mod build;
mod driver;
mod launch_order;
mod memory;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use libloading::Library;

use super::check::CheckDevice;
use super::{CudaKernel, Geometry, KernelError, Launch};
use launch_order::LaunchOrder;
use memory::EmulatorMemory;

/// Bytes of the guard zones before and after each buffer.
const ZONE: usize = 256;

/// Default memory size in bytes.
const MEMORY: usize = 1 << 30;

/// Signature of `emu_launch` in `device.cpp`.
type Run = unsafe extern "C" fn(
    *const c_char,
    u32,
    *const u32,
    u32,
    u32,
    *mut *mut c_void,
    u64,
    extern "C" fn(*const Emulator) -> bool,
    *const Emulator,
) -> *const c_char;

pub(in crate::cuda) struct Emulator {
    library: Library,
    /// Head width.
    dim: u32,
    /// Seed of the order in which blocks and warps run.
    seed: Cell<u64>,
    memory: RefCell<Vec<Vec<u128>>>,
    order: RefCell<LaunchOrder>,
    store: Arc<EmulatorMemory>,
    /// If `true`, the emulator multiplies operands in `e4m3`, as a GPU with such an algorithm does.
    fp8: bool,
}

impl Emulator {
    /// Creates an emulator. Returns `None`, with a message on standard error, when the kernels cannot be compiled.
    pub(in crate::cuda) fn new(dim: usize, seed: u64) -> Option<Self> {
        let path = build::library()?;
        // SAFETY: built by this test from this crate's sources, without initializers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let store = Arc::new(EmulatorMemory::new(MEMORY));
        let seed = Cell::new(seed);
        let memory = RefCell::default();
        Some(Self { library, dim: dim as u32, seed, memory, order: RefCell::default(), store, fp8: true })
    }

    /// Sets the memory size in bytes.
    pub(in crate::cuda) fn with_memory(self, bytes: usize) -> Self {
        Self { store: Arc::new(EmulatorMemory::new(bytes)), ..self }
    }

    /// Emulates a GPU without multiplication of operands in `e4m3`.
    pub(in crate::cuda) fn without_fp8(self) -> Self {
        Self { fp8: false, ..self }
    }

    /// Returns the memory counters.
    pub(in crate::cuda) fn memory(&self) -> Arc<EmulatorMemory> {
        Arc::clone(&self.store)
    }

    /// Returns `true` if no guard zone was written to.
    fn intact(&self) -> bool {
        let zone = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
        self.memory.borrow().iter().all(|piece| {
            let bytes: &[u8] = bytemuck::cast_slice(piece);
            zone(&bytes[..ZONE]) && zone(&bytes[bytes.len() - ZONE..])
        })
    }
}

/// Shows what earlier launches wrote to a launch that has waited for them. Returns `false` if it wrote before that.
extern "C" fn waited(emulator: *const Emulator) -> bool {
    // SAFETY: `launch` passes itself and runs until the kernel has ended.
    let emulator = unsafe { &*emulator };
    emulator.order.borrow_mut().waited(&mut emulator.memory.borrow_mut())
}

impl Launch for Emulator {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        let failed = |reason: String| KernelError::Driver { kernel, reason };
        if geometry.shared > 48 * 1024 && geometry.shared > kernel.largest_shared() {
            return Err(failed(format!("{} bytes of shared memory were not enabled for this kernel", geometry.shared)));
        }
        let name = CString::new(kernel.name()).unwrap();
        let seed = self.seed.replace(self.seed.get().wrapping_add(1));
        self.order.borrow_mut().begin(&mut self.memory.borrow_mut());
        // SAFETY: the symbol has this type; the caller promises valid arguments.
        let trouble = unsafe {
            let run = self.library.get::<Run>(b"emu_launch\0").unwrap();
            let blocks = geometry.blocks.as_ptr();
            let arguments = arguments.as_mut_ptr();
            let Geometry { threads, shared, .. } = geometry;
            let message = run(name.as_ptr(), self.dim, blocks, threads, shared, arguments, seed, waited, self);
            (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
        };
        self.order.borrow_mut().end(&mut self.memory.borrow_mut());
        trouble.map_or(Ok(()), |reason| Err(failed(reason)))
    }
}

impl CheckDevice for Emulator {
    fn upload(&self, bytes: &[u8]) -> Result<u64, String> {
        let mut piece = vec![u128::MAX; (2 * ZONE + bytes.len()).div_ceil(size_of::<u128>())];
        let inside: &mut [u8] = bytemuck::cast_slice_mut(&mut piece);
        inside[ZONE..][..bytes.len()].copy_from_slice(bytes);
        let address = inside[ZONE..].as_ptr().expose_provenance() as u64;
        self.memory.borrow_mut().push(piece);
        Ok(address)
    }

    fn reserve(&self, bytes: usize) -> Result<u64, String> {
        self.upload(&vec![0xff; bytes])
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.wait()?;
        let mut memory = self.memory.borrow_mut();
        let inside = |piece: &&mut Vec<u128>| {
            let start = piece.as_ptr().addr() as u64;
            (start..start + size_of_val(piece.as_slice()) as u64).contains(&address)
        };
        let piece = memory.iter_mut().find(inside).ok_or("no such memory")?;
        let at = (address - piece.as_ptr().addr() as u64) as usize;
        let all: &mut [u8] = bytemuck::cast_slice_mut(piece);
        all[at..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn wait(&self) -> Result<(), String> {
        self.order.borrow_mut().settle();
        if self.intact() { Ok(()) } else { Err("a kernel wrote outside its memory".to_owned()) }
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.wait()?;
        let memory = self.memory.borrow();
        let inside = |piece: &&Vec<u128>| {
            let start = piece.as_ptr().addr() as u64;
            (start..start + size_of_val(piece.as_slice()) as u64).contains(&address)
        };
        let piece = memory.iter().find(inside).ok_or("no such memory")?;
        let all: &[u8] = bytemuck::cast_slice(piece);
        bytes.copy_from_slice(&all[(address - piece.as_ptr().addr() as u64) as usize..][..bytes.len()]);
        Ok(())
    }

    fn release(&self) -> Result<(), String> {
        let waited = self.wait();
        self.memory.borrow_mut().clear();
        waited
    }
}
