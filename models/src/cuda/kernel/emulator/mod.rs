//! The kernels' own sources on the processor: compiled by a host compiler against `card.h`, which gives CUDA's words their
//! meaning (see there), and launched through the same [`Launch`] as on a card. What it cannot show is speed, and what the
//! real memory model allows beyond the orders that are tried here.

#![allow(clippy::unwrap_used)]

mod build;
mod driver;
mod store;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use libloading::Library;

use super::check::Card;
use super::{Geometry, Kernel, KernelError, Launch};
use store::Store;

/// Bytes before and behind each piece of memory that nobody may write.
const ZONE: usize = 256;

/// Bytes of its memory where nothing else is said.
const MEMORY: usize = 1 << 30;

/// `emu_launch` in `card.cpp`.
type Run = unsafe extern "C" fn(*const c_char, u32, *const u32, u32, u32, *mut *mut c_void, u64) -> *const c_char;

pub(in crate::cuda) struct Emulator {
    library: Library,
    /// Width of heads.
    dim: u32,
    /// In which order blocks and warps run.
    seed: Cell<u64>,
    memory: RefCell<Vec<Vec<u128>>>,
    store: Arc<Store>,
}

impl Emulator {
    /// `None`, having said why, where kernels cannot be built.
    pub(in crate::cuda) fn new(dim: usize, seed: u64) -> Option<Self> {
        let path = build::library()?;
        // SAFETY: built by this test out of this crate's sources; it has no initialisers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let store = Arc::new(Store::new(MEMORY));
        Some(Self { library, dim: dim as u32, seed: Cell::new(seed), memory: RefCell::default(), store })
    }

    /// With memory of so many bytes.
    pub(in crate::cuda) fn with_memory(self, bytes: usize) -> Self {
        Self { store: Arc::new(Store::new(bytes)), ..self }
    }

    /// What is held of its memory.
    pub(in crate::cuda) fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// True while nobody has written beside any piece of memory.
    fn intact(&self) -> bool {
        let zone = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
        self.memory.borrow().iter().all(|piece| {
            let bytes: &[u8] = bytemuck::cast_slice(piece);
            zone(&bytes[..ZONE]) && zone(&bytes[bytes.len() - ZONE..])
        })
    }
}

impl Launch for Emulator {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        let failed = |reason: String| KernelError::Driver { kernel, reason };
        if geometry.shared > 48 * 1024 && geometry.shared > kernel.largest_shared() {
            return Err(failed(format!("{} bytes of shared memory were not asked for", geometry.shared)));
        }
        let name = CString::new(kernel.name()).unwrap();
        let seed = self.seed.replace(self.seed.get().wrapping_add(1));
        // SAFETY: the symbol has this type; the arguments are the caller's promise.
        let trouble = unsafe {
            let run = self.library.get::<Run>(b"emu_launch\0").unwrap();
            let (blocks, arguments) = (geometry.blocks.as_ptr(), arguments.as_mut_ptr());
            let message = run(name.as_ptr(), self.dim, blocks, geometry.threads, geometry.shared, arguments, seed);
            (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
        };
        trouble.map_or(Ok(()), |reason| Err(failed(reason)))
    }
}

impl Card for Emulator {
    fn upload(&self, bytes: &[u8]) -> Result<u64, String> {
        let mut piece = vec![u128::MAX; (2 * ZONE + bytes.len()).div_ceil(size_of::<u128>())];
        let inside: &mut [u8] = bytemuck::cast_slice_mut(&mut piece);
        inside[ZONE..][..bytes.len()].copy_from_slice(bytes);
        let address = inside[ZONE..].as_ptr().expose_provenance() as u64;
        self.memory.borrow_mut().push(piece);
        Ok(address)
    }

    fn wait(&self) -> Result<(), String> {
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
