//! Tiles of AMX: registers of up to 16 rows of 64 bytes, and instructions that multiply two of them.
//!
//! Rust has no stable intrinsics for tiles, so they are programmed in assembly. Neither the compiler nor the standard
//! library uses tiles: they stay what [`Tiles`] made of them.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

use bytemuck::Pod;

use super::layout::PANEL;

/// Proof that the CPU has AMX for bytes and bf16, besides the instructions of AVX-512, and that the operating system
/// lets this process use tiles; only [`TileSupport::detect`] creates one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileSupport(());

impl TileSupport {
    /// Looks for the instructions and asks for the permission, once per process.
    pub(crate) fn detect() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        USABLE.get_or_init(|| has_instructions() && ask_permission()).then_some(Self(()))
    }
}

fn has_instructions() -> bool {
    use std::arch::is_x86_feature_detected as has;
    /// AMX-BF16, AMX-TILE and AMX-INT8 in EDX of leaf 7.
    const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let vectors = has!("avx512f") && has!("avx512bw") && has!("avx512bf16") && has!("avx512vnni");
    vectors && std::arch::x86_64::__cpuid_count(7, 0).edx & NEEDED == NEEDED
}

/// Asks Linux for the permission to use tiles, which it grants per process. Other systems are not asked.
fn ask_permission() -> bool {
    #[cfg(target_os = "linux")]
    {
        /// `ARCH_REQ_XCOMP_PERM`.
        const REQUEST: libc::c_int = 0x1023;
        /// `XFEATURE_XTILEDATA`.
        const TILE_DATA: libc::c_ulong = 18;
        // SAFETY: the call takes numbers only. It fails on kernels that do not know it.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Maximum number of rows of a tile, and of 32-bit words in a row.
pub(super) const TILE: usize = 16;

/// Configuration of this thread's tiles, until it is dropped.
pub(super) struct Tiles {
    /// Configurations belong to a thread.
    _thread: PhantomData<*const ()>,
}

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Layout {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row of each tile; those of tiles that do not exist are zero.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Number of tiles.
const TILES: usize = 8;

impl Tiles {
    /// Configures tiles for the product of a panel: 0 to 3 hold sums, of two tiles of rows and two vectors of a panel; 4
    /// and 5 rows of `words` words; 6 and 7 weights. Where the second tile of rows has none, its tiles do not exist.
    fn for_panel(support: TileSupport, rows: [usize; 2], words: usize) -> Self {
        let [first, second] = rows.map(|rows| [rows, TILE]);
        let x = rows.map(|rows| [rows, words]);
        Self::configure(support, [first, first, second, second, x[0], x[1], [words, TILE], [words, TILE]])
    }

    /// Configures tiles for products of byte planes: 0 to 2 hold sums; 3 and 4 the planes of `rows` rows with `words`
    /// words; 5 and 6 those of the weights.
    pub(super) fn for_planes(support: TileSupport, rows: usize, words: usize) -> Self {
        let sums = [rows, TILE];
        let x = [rows, words];
        let weights = [words, TILE];
        Self::configure(support, [sums, sums, sums, x, x, weights, weights, [0, 0]])
    }

    /// Configures tiles of the given numbers of rows and of words per row.
    fn configure(_: TileSupport, shapes: [[usize; 2]; TILES]) -> Self {
        let mut layout = Layout { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, [rows, words]) in shapes.into_iter().enumerate().filter(|(_, [rows, _])| *rows > 0) {
            assert!(rows <= TILE && (1..=TILE).contains(&words), "tile of {rows} rows with {words} words");
            layout.rows[tile] = rows as u8;
            layout.row_bytes[tile] = 4 * words as u16;
        }
        // SAFETY: the proof's existence means that the CPU has tiles and the process may use them; the layout is valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const layout, options(nostack, readonly)) };
        Self { _thread: PhantomData }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: as for `configure`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Instruction that multiplies rows with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TileDot {
    /// Pairs of bf16 values, added up in `f32`.
    Bf16,
    /// Quads of unsigned bytes in rows and signed ones in weights, added up in `i32`.
    Bytes,
}

/// Operands of a multiplication with a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelProduct {
    /// First row, [`stride`](Self::stride) words before the next one.
    x: *const u32,
    stride: usize,
    /// Number of rows.
    rows: usize,
    /// First words of a panel's outputs; a panel has [`PANEL`] words per word of a row.
    panel: *const u32,
    /// Number of words of a row to multiply.
    words: usize,
    /// Sums of the first row, [`PANEL`] words per row.
    sums: *mut u32,
}

impl PanelProduct {
    /// Product of rows that are `stride` words apart, with as many words as the panel has, and as many rows as the sums
    /// have, which are `f32` or `i32`.
    pub(super) fn new<S: Pod>(x: &[u32], stride: usize, panel: &[u32], sums: &mut [S]) -> Self {
        const { assert!(size_of::<S>() == size_of::<u32>()) };
        Self {
            x: x.as_ptr(),
            stride,
            rows: sums.len() / PANEL,
            panel: panel.as_ptr(),
            words: panel.len() / PANEL,
            sums: sums.as_mut_ptr().cast(),
        }
    }

    /// Adds the products to the sums. The order of additions does not depend on the number of rows.
    ///
    /// # Safety
    /// The pointers must cover the elements that the fields name.
    pub(super) unsafe fn add(self, support: TileSupport, dot: TileDot) {
        let whole = self.words / TILE;
        let rest = self.words % TILE;
        // SAFETY: guaranteed by the caller, also of the words after the whole tiles.
        unsafe {
            if whole > 0 {
                self.add_steps(support, dot, whole, TILE);
            }
            if rest > 0 {
                let x = self.x.add(whole * TILE);
                let panel = self.panel.add(whole * TILE * PANEL);
                Self { x, panel, ..self }.add_steps(support, dot, 1, rest);
            }
        }
    }

    /// Adds the products with `steps` times `words` words.
    ///
    /// # Safety
    /// The same as for [`add`](Self::add).
    unsafe fn add_steps(self, support: TileSupport, dot: TileDot, steps: usize, words: usize) {
        let pairs = self.rows / (2 * TILE);
        let rest = self.rows % (2 * TILE);
        // SAFETY: guaranteed by the caller, also of the rows after the pairs of whole tiles.
        unsafe {
            if pairs > 0 {
                let tiles = Tiles::for_panel(support, [TILE; 2], words);
                for first in (0..pairs).map(|pair| pair * 2 * TILE) {
                    self.skip_rows(first).add_both(&tiles, dot, steps, TILE);
                }
            }
            let rest_of = self.skip_rows(pairs * 2 * TILE);
            match rest {
                0 => {}
                1..=TILE => {
                    let tiles = Tiles::for_panel(support, [rest, 0], words);
                    rest_of.add_one(&tiles, dot, steps);
                }
                _ => {
                    let first = rest.div_ceil(2);
                    let tiles = Tiles::for_panel(support, [first, rest - first], words);
                    rest_of.add_both(&tiles, dot, steps, first);
                }
            }
        }
    }

    /// The product without the first `count` rows.
    ///
    /// # Safety
    /// There must be so many rows.
    unsafe fn skip_rows(self, count: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self { x: self.x.add(count * self.stride), sums: self.sums.add(count * PANEL), ..self } }
    }
}

/// Bytes between words of a panel.
const PANEL_BYTES: usize = PANEL * size_of::<u32>();

/// Assembly that multiplies one tile of rows with both vectors of a panel, step by step.
macro_rules! one_tile {
    ($instruction:literal, $product:expr, $steps:expr) => {
        asm!(
            "tileloadd tmm0, [{sums} + {line}*1]",
            "tileloadd tmm1, [{sums} + {line}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tileloadd tmm6, [{panel} + {line}*1]",
            "tileloadd tmm7, [{panel} + {line}*1 + 64]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            concat!($instruction, " tmm1, tmm4, tmm7"),
            "add {x}, 64",
            "add {panel}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {line}*1], tmm0",
            "tilestored [{sums} + {line}*1 + 64], tmm1",
            sums = in(reg) $product.sums,
            line = in(reg) PANEL_BYTES,
            x = inout(reg) $product.x => _,
            stride = in(reg) $product.stride * size_of::<u32>(),
            panel = inout(reg) $product.panel => _,
            step = const TILE * PANEL_BYTES,
            steps = inout(reg) $steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Assembly that multiplies two tiles of rows, the second one `$first` rows after the first.
macro_rules! two_tiles {
    ($instruction:literal, $product:expr, $steps:expr, $first:expr) => {
        asm!(
            "tileloadd tmm0, [{sums} + {line}*1]",
            "tileloadd tmm1, [{sums} + {line}*1 + 64]",
            "tileloadd tmm2, [{others} + {line}*1]",
            "tileloadd tmm3, [{others} + {line}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tileloadd tmm6, [{panel} + {line}*1]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{panel} + {line}*1 + 64]",
            concat!($instruction, " tmm1, tmm4, tmm7"),
            "tileloadd tmm5, [{next} + {stride}*1]",
            concat!($instruction, " tmm2, tmm5, tmm6"),
            concat!($instruction, " tmm3, tmm5, tmm7"),
            "add {x}, 64",
            "add {next}, 64",
            "add {panel}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {line}*1], tmm0",
            "tilestored [{sums} + {line}*1 + 64], tmm1",
            "tilestored [{others} + {line}*1], tmm2",
            "tilestored [{others} + {line}*1 + 64], tmm3",
            sums = in(reg) $product.sums,
            others = in(reg) $product.skip_rows($first).sums,
            line = in(reg) PANEL_BYTES,
            x = inout(reg) $product.x => _,
            next = inout(reg) $product.skip_rows($first).x => _,
            stride = in(reg) $product.stride * size_of::<u32>(),
            panel = inout(reg) $product.panel => _,
            step = const TILE * PANEL_BYTES,
            steps = inout(reg) $steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl PanelProduct {
    /// Multiplies the first tile of rows.
    ///
    /// # Safety
    /// The same as for [`add`](Self::add), and the tiles must be configured for these rows and words.
    unsafe fn add_one(self, _: &Tiles, dot: TileDot, steps: usize) {
        // SAFETY: guaranteed by the caller; `Tiles` proves that the CPU has the instructions.
        unsafe {
            match dot {
                TileDot::Bf16 => one_tile!("tdpbf16ps", self, steps),
                TileDot::Bytes => one_tile!("tdpbusd", self, steps),
            }
        }
    }

    /// Multiplies two tiles of rows, the second of which begins with row `first`.
    ///
    /// # Safety
    /// The same as for [`add_one`](Self::add_one).
    unsafe fn add_both(self, _: &Tiles, dot: TileDot, steps: usize, first: usize) {
        // SAFETY: guaranteed by the caller; `Tiles` proves that the CPU has the instructions.
        unsafe {
            match dot {
                TileDot::Bf16 => two_tiles!("tdpbf16ps", self, steps, first),
                TileDot::Bytes => two_tiles!("tdpbusd", self, steps, first),
            }
        }
    }
}

/// Operands whose numbers are divided into planes of low and high bytes.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    /// High and low bytes of the rows, as many words per row as the tiles are configured for.
    pub(super) x: [*const u32; 2],
    /// High and low bytes of the weights of sixteen outputs, [`PANEL`] words per word of a row.
    pub(super) weights: [*const u32; 2],
}

/// Sums of products of planes, sixteen per row: of high bytes with high ones, of high with low ones in both orders, of low
/// with low ones. Where weights have a single plane, of high bytes and of low ones.
#[repr(align(64))]
pub(super) struct PlaneSums([[i32; TILE * TILE]; 3]);

impl PlaneSums {
    pub(super) fn new() -> Self {
        Self([[0; TILE * TILE]; 3])
    }

    /// Sums of the first row in plane `plane`; those of the next row follow.
    #[inline(always)]
    pub(super) fn plane(&self, plane: usize) -> *const i32 {
        self.0[plane].as_ptr()
    }
}

/// Products of planes: `WIDE` ones with weights of 16 bits, others with weights of signed bytes, whose single plane counts
/// as low bytes, eight words per row. Loading, multiplying and storing are apart, so that a caller can load the next
/// operands before it stores the sums: loads after stores would wait for them.
impl Tiles {
    /// Loads operands.
    ///
    /// # Safety
    /// The pointers must cover what the tiles, which [`for_planes`](Self::for_planes) configured, are configured for.
    #[inline(always)]
    pub(super) unsafe fn load_planes<const WIDE: bool>(&mut self, planes: Planes) {
        let words = if WIDE { TILE } else { TILE / 2 };
        // SAFETY: guaranteed by the caller; `Tiles` proves that the CPU has the instructions.
        unsafe {
            asm!(
                "tileloadd tmm3, [{high} + {row}*1]",
                "tileloadd tmm6, [{weights} + {panel}*1]",
                "tileloadd tmm4, [{low} + {row}*1]",
                high = in(reg) planes.x[0],
                low = in(reg) planes.x[1],
                weights = in(reg) planes.weights[1],
                row = in(reg) words * size_of::<u32>(),
                panel = in(reg) PANEL_BYTES,
                out("tmm3") _, out("tmm4") _, out("tmm6") _,
                options(nostack, preserves_flags, readonly),
            );
            if WIDE {
                asm!(
                    "tileloadd tmm5, [{weights} + {panel}*1]",
                    weights = in(reg) planes.weights[0],
                    panel = in(reg) PANEL_BYTES,
                    out("tmm5") _,
                    options(nostack, preserves_flags, readonly),
                );
            }
        }
    }

    /// Multiplies the operands that were loaded last.
    ///
    /// # Safety
    /// The tiles must be configured for planes.
    #[inline(always)]
    pub(super) unsafe fn multiply_planes<const WIDE: bool>(&mut self) {
        // SAFETY: guaranteed by the caller; `Tiles` proves that the CPU has the instructions.
        unsafe {
            if WIDE {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tdpbssd tmm0, tmm3, tmm5",
                    "tdpbsud tmm1, tmm3, tmm6",
                    "tdpbuud tmm2, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm5",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _,
                    options(nostack, preserves_flags),
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tdpbssd tmm0, tmm3, tmm6",
                    "tdpbusd tmm1, tmm4, tmm6",
                    out("tmm0") _, out("tmm1") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// Stores the sums of the last multiplication.
    ///
    /// # Safety
    /// The tiles must be configured for planes.
    #[inline(always)]
    pub(super) unsafe fn store_planes<const WIDE: bool>(&mut self, sums: &mut PlaneSums) {
        // SAFETY: guaranteed by the caller; `Tiles` proves that the CPU has the instructions; each plane has room for a
        // tile.
        unsafe {
            asm!(
                "tilestored [{sums} + {line}*1], tmm0",
                "tilestored [{sums} + {line}*1 + 1024], tmm1",
                sums = in(reg) &raw mut sums.0,
                line = in(reg) TILE * size_of::<u32>(),
                options(nostack, preserves_flags),
            );
            if WIDE {
                asm!(
                    "tilestored [{sums} + {line}*1 + 2048], tmm2",
                    sums = in(reg) &raw mut sums.0,
                    line = in(reg) TILE * size_of::<u32>(),
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_shapes_are_multiplied_exactly() {
        let Some(support) = TileSupport::detect() else { return };
        for rows in [1, 2, 15, 16, 17, 31, 32, 33, 70] {
            for words in [1, 3, 16, 17, 40] {
                let stride = words + 2;
                let bytes = |len: usize, seed: usize| -> Vec<u8> {
                    (0..4 * len).map(|at| (((at * 73 + seed) * 151) >> 3) as u8).collect()
                };
                let x = bytes(rows * stride, rows);
                let panel = bytes(words * PANEL, words);
                let mut sums = vec![7_u32; rows * PANEL];
                let [x_from, panel_from] = [&x, &panel].map(|bytes| bytes.as_ptr().cast());
                let sums_from = sums.as_mut_ptr();
                let product = PanelProduct { x: x_from, stride, rows, panel: panel_from, words, sums: sums_from };
                // SAFETY: the vectors cover rows and words.
                unsafe { product.add(support, TileDot::Bytes) };
                for (at, &sum) in sums.iter().enumerate() {
                    let terms = (0..4 * words).map(|k| {
                        let weight = panel[(k / 4 * PANEL + at % PANEL) * 4 + k % 4] as i8;
                        i32::from(x[at / PANEL * stride * 4 + k]) * i32::from(weight)
                    });
                    assert_eq!(sum.cast_signed(), 7 + terms.sum::<i32>(), "{rows} rows, {words} words, sum {at}");
                }
            }
        }
    }
}
