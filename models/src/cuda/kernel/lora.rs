//! LoRA for mixed batches: `y += B · (A · x)` for groups of tokens, each group with its own adapter.
//!
//! Tokens are ordered by adapter and cut into tiles of at most sixteen ([`lora_tiles`]), one `mma` tile; a tile reads
//! its adapter's factors once. Factors are `bf16`, with the scale `alpha / r` multiplied into B (as in
//! [`crate::adapter`]); sums are `f32`. Ranks are padded with zeros to a multiple of 16. The A matrices of a site's
//! projections are stacked.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch, NONE, RowIndex};

/// Threads per block.
const THREADS: u32 = 256;

/// Output columns per block of the expand kernel: sixteen per warp.
const COLUMNS: u32 = 128;

/// Factors of one adapter at one site of one layer, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct LoraFactors {
    /// Address of the stacked A matrices: `bf16`, shape (`stacked`, in), 16-byte aligned. 0 when the adapter does not
    /// modify the site.
    pub a: u64,
    /// Address of each projection's B, scaled: `bf16`, shape (out, `rank`), 16-byte aligned. 0 when the adapter does
    /// not modify the projection.
    pub b: [u64; 3],
    /// First row of each projection's A in the stack.
    pub first: [u32; 3],
    /// Number of columns of each B: the adapter's largest rank at this site, padded to a multiple of 16.
    pub rank: u32,
    /// Number of rows of `a`.
    pub stacked: u32,
    /// Padding to a multiple of eight bytes.
    pub padding: u32,
}

/// Up to sixteen tokens with the same adapter, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct LoraTile {
    /// Index of the adapter's [`LoraFactors`]; [`NONE`] for padding.
    pub adapter: u32,
    /// Index of the tile's first token in the order.
    pub first: u32,
    /// Number of tokens, 1 to 16.
    pub count: u32,
}

/// Orders tokens by adapter and cuts the order into tiles. `adapters` holds each token's adapter, or [`NONE`]. Returns
/// the tiles and the order. There are at most as many tiles as tokens, and at most tokens / 16 plus the number of
/// adapters.
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

/// LoRA shrink: `small = A · x` for the tokens of all tiles.
#[derive(Debug, Clone, Copy)]
pub struct LoraShrink {
    /// Factors of this layer and site, per adapter.
    pub factors: DeviceSlice<LoraFactors>,
    /// Tiles, shape (tiles).
    pub tiles: DeviceSlice<LoraTile>,
    /// Tokens, ordered by adapter.
    pub order: RowIndex,
    /// Inputs of shape (tokens, `inn`).
    pub x: DeviceSlice<bf16>,
    /// Output of shape (tokens, `stride`), indexed by token. Each row is written up to its adapter's `stacked`.
    pub small: DeviceSlice<f32>,
    /// Number of values from one token to the next in `small`: at least the largest `stacked` of all adapters, and a
    /// multiple of 16.
    pub stride: u32,
    /// Number of tiles in the grid.
    pub count: u32,
    /// Width of the inputs, a multiple of 16.
    pub inn: u32,
}

impl LoraShrink {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::LoraShrink;
        kernel
            .demand(self.inn.is_multiple_of(16), || format!("input width {}: expected a multiple of 16", self.inn))?;
        kernel.demand(self.stride.is_multiple_of(16), || {
            format!("a stride of {}: expected a multiple of 16", self.stride)
        })?;
        kernel.fits("tiles", &self.tiles, self.count as usize)?;
        kernel.fits("factors", &self.factors, 1)?;
        kernel.fits("x", &self.x, self.order.bound * self.inn as usize)?;
        kernel.fits("small", &self.small, self.order.bound * self.stride as usize)?;
        let arguments = LaunchArguments::new()
            .slice(&self.factors)
            .slice(&self.tiles)
            .slice(&self.order.rows)
            .slice(&self.x)
            .slice(&self.small)
            .int(self.stride)
            .int(self.inn);
        let geometry = Geometry { blocks: [self.stride / 16, self.count, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `lora_shrink`. Sizes were checked against the bound of the tokens, which holds, as
        // tiles and factors are valid, by the contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}

/// Destination of [`LoraExpand`].
#[derive(Debug, Clone, Copy)]
pub enum LoraOut {
    /// Output of a projection.
    Activation(DeviceSlice<bf16>),
    /// Residual stream.
    Stream(DeviceSlice<f32>),
}

/// LoRA expand: `y += B · small` for the tokens of all tiles and up to three projections side by side.
#[derive(Debug, Clone, Copy)]
pub struct LoraExpand {
    /// Factors of this layer and site, per adapter.
    pub factors: DeviceSlice<LoraFactors>,
    /// Tiles, shape (tiles).
    pub tiles: DeviceSlice<LoraTile>,
    /// Tokens, ordered by adapter.
    pub order: RowIndex,
    /// Output of [`LoraShrink`].
    pub small: DeviceSlice<f32>,
    /// Number of values from one token to the next in `small`.
    pub stride: u32,
    /// Outputs of all projections side by side, shape (tokens, `ends[2]`). Added to.
    pub y: LoraOut,
    /// Number of tiles in the grid.
    pub count: u32,
    /// End column of each projection, multiples of 16; with fewer than three projections the last end repeats.
    pub ends: [u32; 3],
}

impl LoraExpand {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        match &self.y {
            LoraOut::Activation(y) => self.launch_into(CudaKernel::LoraExpand, y, on),
            LoraOut::Stream(y) => self.launch_into(CudaKernel::LoraExpandStream, y, on),
        }
    }

    fn launch_into<T>(&self, kernel: CudaKernel, y: &DeviceSlice<T>, on: &dyn Launch) -> Result<(), KernelError> {
        let ends = self.ends;
        let ordered = ends.iter().all(|end| end.is_multiple_of(16)) && ends.is_sorted();
        kernel.demand(ordered, || format!("end columns {ends:?}: expected ascending multiples of 16"))?;
        kernel.fits("tiles", &self.tiles, self.count as usize)?;
        kernel.fits("factors", &self.factors, 1)?;
        kernel.fits("small", &self.small, self.order.bound * self.stride as usize)?;
        kernel.fits("y", y, self.order.bound * ends[2] as usize)?;
        let arguments = self.arguments(y);
        let geometry = Geometry { blocks: [ends[2].div_ceil(COLUMNS), self.count, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `lora_expand`. Sizes were checked against the bound of the tokens, which holds, as
        // tiles and factors are valid, by the contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, geometry) }
    }

    fn arguments<T>(&self, y: &DeviceSlice<T>) -> LaunchArguments {
        LaunchArguments::new()
            .slice(&self.factors)
            .slice(&self.tiles)
            .slice(&self.order.rows)
            .slice(&self.small)
            .int(self.stride)
            .slice(y)
            .int(self.ends[0])
            .int(self.ends[1])
            .int(self.ends[2])
    }
}
