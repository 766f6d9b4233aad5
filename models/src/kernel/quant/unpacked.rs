//! A few blocks of a panel, unpacked to pairs of integers and `f32` units, for many rows of activations.

use std::mem::MaybeUninit;

use super::{BlockAt, GROUPS, IntLanes, Lanes, PAIRS, QUADS, QuantForm, STEPS};
use crate::kernel::layout::PANEL;

/// Maximum number of blocks unpacked at once: 19 KiB, which fit the first-level cache with the rows of a tile. Equals
/// the number of blocks in a super-block.
pub(super) const CHUNK: usize = 8;

/// Unpacked blocks for all outputs of a panel.
#[repr(C, align(64))]
struct Chunk {
    /// Quants, multiplied by their factors; in lanes with [`IntLanes::BYTE_DOT`], quads of quants and then the factors,
    /// two for each block.
    pairs: [u32; CHUNK * PAIRS * PANEL],
    /// Unit of each block. If two blocks share a scale, only the first one's unit is read.
    units: [f32; CHUNK * PANEL],
    /// Minima, of halves or of blocks.
    minima: [f32; CHUNK * 2 * PANEL],
}

/// Size of the quads, or of a plane of bytes.
const PLANE: usize = CHUNK * QUADS * PANEL * size_of::<u32>();
/// Offset of the factors after the quads, in bytes.
const FACTORS: usize = PLANE;
/// Offset of the high bytes after the low ones, in bytes.
pub(super) const HIGH_BYTES: usize = PLANE;
const _: () = assert!(FACTORS + CHUNK * 2 * PANEL * size_of::<u32>() <= std::mem::offset_of!(Chunk, units));

/// Working memory for unpacked blocks, written before it is read and too large to clear in every region.
pub(super) struct Scratch(MaybeUninit<Chunk>);

/// The form of unpacked blocks; `SHARED`, `HALVES` and `MIN` as in [`QuantForm`].
#[derive(Clone, Copy)]
pub(super) struct Unpacked<const SHARED: usize, const HALVES: bool, const MIN: bool>;

impl Scratch {
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Address of the blocks, as [`Unpacked`] reads them.
    pub(super) fn from(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    /// Unpacks `count` blocks. The first one is block `first` after `from`.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`, `count` must be at most [`CHUNK`], the blocks must lie in a
    /// panel of form `W`, and the first must be the first of a super-block.
    #[inline(always)]
    pub(super) unsafe fn fill<L: IntLanes, W: QuantForm>(&mut self, from: *const u8, first: usize, count: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.fill_as::<L, W, false>(from, first, count) }
    }

    /// Unpacks blocks like [`fill`](Self::fill), to planes of bytes in the place of the pairs: first the low bytes, or the
    /// signed bytes of forms without factors; after those of a chunk, at [`HIGH_BYTES`], the high bytes.
    ///
    /// # Safety
    /// The same as for [`fill`](Self::fill).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn fill_planes<L: IntLanes, W: QuantForm>(
        &mut self,
        from: *const u8,
        first: usize,
        count: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.fill_as::<L, W, true>(from, first, count) }
    }

    /// Unpacks blocks, to `PLANES` of bytes or to what the lanes multiply.
    #[inline(always)]
    unsafe fn fill_as<L: IntLanes, W: QuantForm, const PLANES: bool>(
        &mut self,
        from: *const u8,
        first: usize,
        count: usize,
    ) {
        for block in 0..count {
            let at = BlockAt::of::<W>(from, first + block);
            at.prefetch::<W>();
            for vector in 0..2 {
                // SAFETY: guaranteed by the caller; a chunk has room for two vectors per pair, block and half.
                unsafe { self.fill_vector::<L, W, PLANES>(at, block, vector) };
            }
        }
    }

    /// Unpacks one block for sixteen outputs.
    ///
    /// # Safety
    /// The same as for [`fill`](Self::fill).
    #[inline(always)]
    unsafe fn fill_vector<L: IntLanes, W: QuantForm, const PLANES: bool>(
        &mut self,
        at: BlockAt,
        block: usize,
        vector: usize,
    ) {
        // SAFETY: guaranteed by the caller. The memory may be uninitialized, so no reference to it is created.
        unsafe {
            let to = self.0.as_mut_ptr();
            let pairs = (&raw mut (*to).pairs).cast::<u32>();
            if L::BYTE_DOT || PLANES && W::FOLDED {
                fill_quads::<L, W>(at, pairs, block, vector);
            } else {
                fill_pairs::<L, W, PLANES>(at, pairs, block, vector);
            }
            let units = (&raw mut (*to).units).cast::<f32>();
            W::unit::<L>(at, vector).store(units.add(block * PANEL + vector * 16));
            if W::MIN {
                let minima = (&raw mut (*to).minima).cast::<f32>();
                for half in 0..if W::HALVES { 2 } else { 1 } {
                    let index = if W::HALVES { block * 2 + half } else { block };
                    W::minimum::<L>(at, vector, half).store(minima.add(index * PANEL + vector * 16));
                }
            }
        }
    }
}

/// Unpacks the quants of one block for sixteen outputs, multiplied by their factors.
///
/// # Safety
/// The same as for [`Scratch::fill`], with room for a chunk at `to`.
#[inline(always)]
unsafe fn fill_pairs<L: IntLanes, W: QuantForm, const PLANES: bool>(
    at: BlockAt,
    to: *mut u32,
    block: usize,
    vector: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut factors = L::splat(0);
        for group in 0..GROUPS {
            if !W::FOLDED && (group == 0 || W::HALVES && group == GROUPS / 2) {
                let each = W::factors::<L>(at, vector, group / 2);
                factors = each.left(16).or(each.and(L::splat(0xffff)));
            }
            for first in (0..STEPS).step_by(2) {
                let mut pair = W::pairs::<L>(at, vector, group, first as u32);
                let mut next = W::pairs::<L>(at, vector, group, first as u32 + 1);
                if !W::FOLDED {
                    pair = pair.mul_pairs(factors);
                    next = next.mul_pairs(factors);
                }
                let index = group * STEPS + first;
                if PLANES {
                    let to = to.add((block * QUADS + index / 2) * PANEL + vector * 16);
                    pair.low_bytes(next).store(to);
                    pair.high_bytes(next).store(to.byte_add(HIGH_BYTES));
                } else {
                    let to = to.add((block * PAIRS + index) * PANEL + vector * 16);
                    pair.store(to);
                    next.store(to.add(PANEL));
                }
            }
        }
    }
}

/// Unpacks the quants of one block for sixteen outputs as signed bytes, and their factors.
///
/// # Safety
/// The same as for [`fill_pairs`].
#[inline(always)]
unsafe fn fill_quads<L: IntLanes, W: QuantForm>(at: BlockAt, to: *mut u32, block: usize, vector: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for quad in 0..QUADS {
            W::quads::<L>(at, vector, quad).store(to.add((block * QUADS + quad) * PANEL + vector * 16));
        }
        if !W::FOLDED {
            let factors = to.byte_add(FACTORS);
            for half in 0..2 {
                W::factors::<L>(at, vector, half).store(factors.add((block * 2 + half) * PANEL + vector * 16));
            }
        }
    }
}

impl<const SHARED: usize, const HALVES: bool, const MIN: bool> QuantForm for Unpacked<SHARED, HALVES, MIN> {
    const SUPER: usize = CHUNK;
    const BYTES: usize = size_of::<Chunk>();
    const HALVES: bool = HALVES;
    const MIN: bool = MIN;
    const SHARED: usize = SHARED;
    const FOLDED: bool = true;
    const STREAMED: bool = false;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(at.word(0, PAIRS, group * STEPS + step as usize, vector)) }
    }

    #[inline(always)]
    unsafe fn quads<L: IntLanes>(at: BlockAt, vector: usize, quad: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(at.word(0, QUADS, quad, vector)) }
    }

    /// Factors for lanes with quads. For other lanes, they are multiplied into the quants.
    #[inline(always)]
    unsafe fn factors<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(at.word(FACTORS, 2, half, vector)) }
    }

    #[inline(always)]
    unsafe fn unit<L: IntLanes>(at: BlockAt, vector: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { L::Floats::load(at.word(std::mem::offset_of!(Chunk, units), 1, 0, vector).cast()) }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        let each = if HALVES { 2 } else { 1 };
        // SAFETY: guaranteed by the caller. Minima are uninitialized in forms without them.
        unsafe {
            if MIN {
                L::Floats::load(at.word(std::mem::offset_of!(Chunk, minima), each, half, vector).cast())
            } else {
                L::Floats::splat(0.0)
            }
        }
    }
}
