//! Unpacking of quantized panels to `f32`.

use super::{BlockAt, GROUPS, IntLanes, Lanes, QuantForm, STEPS, with_form};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::LANES;
use crate::kernel::layout::{BLOCK, Form, PANEL};

/// Blocks to unpack, and room for them.
#[derive(Clone, Copy)]
struct UnpackTask {
    from: *const u8,
    first: usize,
    count: usize,
    /// Index of the first vector of outputs.
    vector: usize,
    /// Number of vectors.
    vectors: usize,
    to: *mut f32,
}

/// Unpacks `count` blocks of a panel to `[input index][PANEL]` at `to`. The first one is block `first` after `from`.
///
/// # Safety
/// `from` must point at a super-block of a panel of the quantized `form` that has these blocks, `to` at room for them.
pub(in crate::kernel) unsafe fn unpack(
    isa: Isa,
    form: Form,
    (from, first): (*const u8, usize),
    count: usize,
    to: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { run(isa, form, UnpackTask { from, first, count, vector: 0, vectors: 2, to }) }
}

/// Unpacks block `index` of a panel for the sixteen outputs of `vector`.
///
/// # Panics
/// If the panel does not have the block or the form is not quantized.
pub(in crate::kernel) fn unpack_vector(form: Form, panel: &[u8], index: usize, vector: usize) -> [[f32; LANES]; BLOCK] {
    let mut values = [[0.0; LANES]; BLOCK];
    assert!(panel.len() >= form.panel_bytes((index + 1) * BLOCK) && vector < PANEL / LANES, "block of the panel");
    let to = values.as_mut_ptr().cast();
    let task = UnpackTask { from: panel.as_ptr(), first: index, count: 1, vector, vectors: 1, to };
    // SAFETY: the panel has the block, as asserted, and the array room for one vector of it.
    unsafe { run(Isa::best(), form, task) };
    values
}

/// Runs a task with the given instructions.
///
/// # Safety
/// The CPU must support `isa`; the task's pointers must cover its blocks.
unsafe fn run(isa: Isa, form: Form, task: UnpackTask) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        with_form!(form, W => match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => x86::avx2::<W>(task),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => task.run::<crate::kernel::neon::Ints, W>(),
            Isa::Portable => task.run::<[i32; LANES], W>(),
        }, unreachable!("plain floats are not unpacked"));
    }
}

impl UnpackTask {
    /// Unpacks all blocks.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`; the pointers must cover the blocks.
    #[inline(always)]
    unsafe fn run<L: IntLanes, W: QuantForm>(self) {
        for block in 0..self.count {
            let index = self.first + block;
            let at = BlockAt { from: self.from.wrapping_add(index / W::SUPER * W::BYTES), index: index % W::SUPER };
            for vector in 0..self.vectors {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let width = self.vectors * LANES;
                    let to = self.to.add(block * BLOCK * width + vector * LANES);
                    block_floats::<L, W>(at, self.vector + vector, to, width);
                }
            }
        }
    }
}

/// Unpacks one block for sixteen outputs, with `width` values per input index.
#[inline(always)]
unsafe fn block_floats<L: IntLanes, W: QuantForm>(at: BlockAt, vector: usize, to: *mut f32, width: usize) {
    for group in 0..GROUPS {
        let half = if W::HALVES { group / 2 } else { 0 };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let scale = W::scale::<L>(at, vector, half);
            let minimum = W::minimum::<L>(at, vector, half);
            for step in 0..STEPS {
                let pairs = W::pairs::<L>(at, vector, group, step as u32);
                let index = group * 8 + step;
                weight::<L, W>(pairs.first(), scale, minimum).store(to.add(index * width));
                weight::<L, W>(pairs.second(), scale, minimum).store(to.add((index + 4) * width));
            }
        }
    }
}

/// Value of a quant; the product is exact, so the result is the same with and without fused addition.
#[inline(always)]
unsafe fn weight<L: IntLanes, W: QuantForm>(quant: L::Floats, scale: L::Floats, minimum: L::Floats) -> L::Floats {
    // SAFETY: guaranteed by the caller.
    unsafe { if W::MIN { quant.fma(scale, minimum) } else { quant.mul(scale) } }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::__m256i;

    use super::{QuantForm, UnpackTask};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<W: QuantForm>(task: UnpackTask) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<[__m256i; 2], W>() }
    }
}
