//! Memory of packed weights.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use super::packed::CacheLine;

#[cfg(any(target_os = "linux", test))]
/// Size in bytes from which memory is mapped in huge pages: one such page.
const HUGE_PAGE: usize = 2 << 20;

/// Cache lines of zeros, to be filled with weights.
///
/// Large ones lie in huge pages where the system has them. A step of decoding reads all weights once: with small pages
/// it would miss the translation buffer every 4 KiB, where the hardware prefetcher stops too.
pub(super) enum WeightMemory {
    Allocated(Box<[CacheLine]>),
    Mapped(MmapMut),
}

impl WeightMemory {
    /// Memory of at least `bytes` bytes in whole cache lines.
    pub(super) fn zeroed(bytes: usize) -> Self {
        let lines = bytes.div_ceil(size_of::<CacheLine>());
        // Where mapping fails, the allocator may still have memory, or reports in its own way that there is none.
        Self::mapped(lines).unwrap_or_else(|| Self::Allocated(vec![CacheLine([0; 64]); lines].into()))
    }

    #[cfg(target_os = "linux")]
    fn mapped(lines: usize) -> Option<Self> {
        let bytes = lines * size_of::<CacheLine>();
        if bytes < HUGE_PAGE {
            return None;
        }
        let memory = MmapMut::map_anon(bytes).ok()?;
        if let Err(error) = memory.advise(memmap2::Advice::HugePage) {
            tracing::debug!(%error, "no huge pages for weights");
        }
        Some(Self::Mapped(memory))
    }

    #[cfg(not(target_os = "linux"))]
    fn mapped(_: usize) -> Option<Self> {
        None
    }
}

impl Deref for WeightMemory {
    type Target = [CacheLine];

    fn deref(&self) -> &[CacheLine] {
        match self {
            Self::Allocated(lines) => lines,
            Self::Mapped(memory) => bytemuck::cast_slice(memory),
        }
    }
}

impl DerefMut for WeightMemory {
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        match self {
            Self::Allocated(lines) => lines,
            Self::Mapped(memory) => bytemuck::cast_slice_mut(memory),
        }
    }
}

impl fmt::Debug for WeightMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightMemory({} bytes)", size_of_val(&**self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zero_aligned_and_writable() {
        for bytes in [0, 1, 64, 65, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 100] {
            let mut memory = WeightMemory::zeroed(bytes);
            assert_eq!(memory.len(), bytes.div_ceil(64), "{bytes} bytes");
            assert!(memory.iter().all(|line| line.0 == [0; 64]));
            assert!(memory.as_ptr().addr().is_multiple_of(64));
            memory.iter_mut().for_each(|line| line.0 = [7; 64]);
            assert!(memory.iter().all(|line| line.0 == [7; 64]));
        }
    }
}
