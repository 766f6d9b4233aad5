//! Working memory of a thread, divided into buffers.

use std::sync::MutexGuard;

use super::packed::CacheLine;

/// Working memory of one thread of a [`Team`](super::Team), kept from region to region. Its content is arbitrary.
pub(crate) struct WorkerMemory<'a>(MutexGuard<'a, Vec<CacheLine>>);

/// The part of a thread's memory that is not divided into buffers yet.
pub(crate) struct FreeMemory<'a>(&'a mut [f32]);

impl<'a> WorkerMemory<'a> {
    pub(super) fn new(lines: MutexGuard<'a, Vec<CacheLine>>) -> Self {
        Self(lines)
    }

    /// All of the memory.
    pub(crate) fn free(&mut self) -> FreeMemory<'_> {
        FreeMemory(bytemuck::cast_slice_mut(&mut self.0))
    }
}

impl<'a> FreeMemory<'a> {
    /// Takes a buffer of `len` values.
    ///
    /// # Panics
    /// If fewer are left.
    pub(crate) fn floats(&mut self, len: usize) -> &'a mut [f32] {
        let (buffer, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        buffer
    }

    /// Takes a buffer of `len` words.
    ///
    /// # Panics
    /// If fewer are left.
    pub(crate) fn words(&mut self, len: usize) -> &'a mut [u32] {
        bytemuck::cast_slice_mut(self.floats(len))
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::Team;

    #[test]
    fn buffers_are_disjoint_and_kept() {
        let team = Team::new(2);
        for (before, after) in [(0.0, 1.0), (1.0, 2.0)] {
            team.sweep(0, &|claims| {
                let mut memory = team.floats(claims.worker(), 21);
                let mut free = memory.free();
                let buffers = [free.floats(16), free.floats(5)];
                for (buffer, factor) in buffers.into_iter().zip([1.0, 3.0]) {
                    assert!(buffer.iter().all(|&found| found == factor * before));
                    buffer.fill(factor * after);
                }
            });
        }
    }
}
