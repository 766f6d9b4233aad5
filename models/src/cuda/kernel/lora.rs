//! Adapters at work: `y += B · (A · x)` for groups of tokens, each group with its own adapter.
//!
//! Tokens are ordered by adapter and cut into tiles of at most sixteen ([`lora_tiles`]), one `mma` tile; a tile reads its
//! adapter's factors once. Factors are `bf16`, B with the scale `alpha / r` multiplied in (as in [`crate::adapter`]), sums
//! are `f32`. A rank is padded with zeros to a multiple of 16. A matrices of a site's projections are stacked.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, NONE, Span};

/// Threads in a block.
const THREADS: u32 = 256;

/// Columns of an output that one block expands: sixteen per warp.
const COLUMNS: u32 = 128;

/// What one adapter has at one site of one layer, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Factors {
    /// Address of the stacked A matrices, `bf16`, shape (`stacked`, in), 16-byte aligned. 0: nothing at this site.
    pub a: u64,
    /// Address of each projection's B, scaled, `bf16`, shape (out, `rank`), 16-byte aligned. 0: not changed.
    pub b: [u64; 3],
    /// Which row of the stack each projection's A begins at.
    pub first: [u32; 3],
    /// Columns of each B: the adapter's rank, padded to a multiple of 16.
    pub rank: u32,
    /// Rows of `a`.
    pub stacked: u32,
    /// Keeps the size a multiple of eight.
    pub padding: u32,
}

/// Up to sixteen tokens of one adapter, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct LoraTile {
    /// The adapter: index of its [`Factors`]; [`NONE`] for padding.
    pub adapter: u32,
    /// Place of its first token in the order.
    pub first: u32,
    /// Tokens, 1 to 16.
    pub count: u32,
}

/// Orders tokens by adapter and cuts the order into tiles: `adapters` names each token's, or [`NONE`]. Returns tiles and
/// the order they refer to. There are never more tiles than tokens, nor than tokens / 16 and adapters together.
pub fn lora_tiles(adapters: &[u32]) -> (Vec<LoraTile>, Vec<u32>) {
    let mut order: Vec<u32> = (0..adapters.len() as u32).filter(|&token| adapters[token as usize] != NONE).collect();
    order.sort_by_key(|&token| adapters[token as usize]);
    let mut tiles: Vec<LoraTile> = Vec::new();
    for (place, &token) in (0..).zip(&order) {
        let adapter = adapters[token as usize];
        match tiles.last_mut() {
            Some(tile) if tile.adapter == adapter && tile.count < 16 => tile.count += 1,
            _ => tiles.push(LoraTile { adapter, first: place, count: 1 }),
        }
    }
    (tiles, order)
}

/// `small = A · x` for the tokens of all tiles.
#[derive(Debug, Clone, Copy)]
pub struct LoraShrink {
    /// Per adapter, those of this layer and site.
    pub factors: Span<Factors>,
    /// Shape (tiles).
    pub tiles: Span<LoraTile>,
    /// Tokens, ordered by adapter.
    pub order: Span<u32>,
    /// Inputs, shape (tokens, `inn`).
    pub x: Span<bf16>,
    /// Shape (tokens, `stride`), at the tokens' own places. Written up to each adapter's `stacked`.
    pub small: Span<f32>,
    /// Values from one token to the next in `small`: the largest `stacked` of all adapters, a multiple of 16.
    pub stride: u32,
    /// Tiles in the grid.
    pub count: u32,
    /// Width of the inputs, a multiple of 16.
    pub inn: u32,
}

impl LoraShrink {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::LoraShrink;
        kernel.demand(self.inn.is_multiple_of(16), || format!("inputs of width {} are no multiple of 16", self.inn))?;
        kernel
            .demand(self.stride.is_multiple_of(16), || format!("a stride of {} is no multiple of 16", self.stride))?;
        kernel.fits("tiles", &self.tiles, self.count as usize)?;
        let arguments = Arguments::new()
            .span(&self.factors)
            .span(&self.tiles)
            .span(&self.order)
            .span(&self.x)
            .span(&self.small)
            .int(self.stride)
            .int(self.inn);
        let geometry = Geometry { blocks: [self.stride / 16, self.count, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `lora_shrink`; what indices name is promised by their spans.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

/// What [`LoraExpand`] adds to.
#[derive(Debug, Clone, Copy)]
pub enum LoraOut {
    /// A projection's output.
    Activation(Span<bf16>),
    /// The residual stream.
    Stream(Span<f32>),
}

/// `y += B · small` for the tokens of all tiles and up to three projections side by side.
#[derive(Debug, Clone, Copy)]
pub struct LoraExpand {
    /// Per adapter, those of this layer and site.
    pub factors: Span<Factors>,
    /// Shape (tiles).
    pub tiles: Span<LoraTile>,
    /// Tokens, ordered by adapter.
    pub order: Span<u32>,
    /// What [`LoraShrink`] wrote.
    pub small: Span<f32>,
    /// Values from one token to the next in `small`.
    pub stride: u32,
    /// Outputs of all projections side by side, shape (tokens, `ends[2]`). Added to.
    pub y: LoraOut,
    /// Tiles in the grid.
    pub count: u32,
    /// After which column each projection ends, multiples of 16; where there are fewer than three, the last repeats.
    pub ends: [u32; 3],
}

impl LoraExpand {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let (kernel, arguments) = match &self.y {
            LoraOut::Activation(y) => (Kernel::LoraExpand, self.arguments(y)),
            LoraOut::Stream(y) => (Kernel::LoraExpandStream, self.arguments(y)),
        };
        let ends = self.ends;
        let ordered = ends.iter().all(|end| end.is_multiple_of(16)) && ends.is_sorted();
        kernel.demand(ordered, || format!("columns {ends:?} are not rising multiples of 16"))?;
        kernel.fits("tiles", &self.tiles, self.count as usize)?;
        let geometry = Geometry { blocks: [ends[2].div_ceil(COLUMNS), self.count, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `lora_expand`; what indices name is promised by their spans.
        unsafe { arguments.launch(on, kernel, geometry) }
    }

    fn arguments<T>(&self, y: &Span<T>) -> Arguments {
        Arguments::new()
            .span(&self.factors)
            .span(&self.tiles)
            .span(&self.order)
            .span(&self.small)
            .int(self.stride)
            .span(y)
            .int(self.ends[0])
            .int(self.ends[1])
            .int(self.ends[2])
    }
}
