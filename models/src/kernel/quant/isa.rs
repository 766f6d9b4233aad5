//! Instruction sets of the integer kernels.

use super::QuantForm;
use super::activations;
#[cfg(target_arch = "x86_64")]
use super::planes::FEWEST_ROWS;
use super::tile::{Tile, TileRows};
use super::unpacked::{Scratch, Unpacked};
#[cfg(target_arch = "x86_64")]
use crate::kernel::amx::TileSupport;
#[cfg(test)]
use crate::kernel::int_lanes::IntLanes;
use crate::kernel::lanes::LANES;
#[cfg(test)]
use crate::kernel::same_lanes::delegate_lanes;

/// An instruction set that this CPU has: only [`IntegerIsa::best`] and [`IntegerIsa::available`] create one.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernel) struct IntegerIsa(Kind);

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// AMX for many rows, and AVX-512 with VNNI for few.
    #[cfg(target_arch = "x86_64")]
    Tiles(TileSupport),
    /// AVX-512 with VNNI. Without VNNI, AVX-512 multiplies integers hardly faster than AVX2.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// AVX2 with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with products of bytes, signed with signed and unsigned ones.
    #[cfg(target_arch = "aarch64")]
    NeonMixed,
    /// NEON with products of signed bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Portable lanes that multiply byte by byte, as those of NEON do with products of bytes.
    #[cfg(test)]
    PortableQuads,
    #[cfg(test)]
    PortableMixed,
    Portable,
}

/// Calls a kernel with the lanes of the instruction set, inside a function that enables it.
macro_rules! dispatch {
    ($self:ident, $name:ident::<$($generic:ty),*>($($argument:expr),*)) => {
        match $self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Tiles(_) | Kind::Vnni => x86::vnni::$name::<$($generic),*>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => x86::avx_vnni::$name::<$($generic),*>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::avx2::$name::<$($generic),*>($($argument),*),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonMixed => arm::neon_mixed::$name::<$($generic),*>($($argument),*),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => arm::neon_dot::$name::<$($generic),*>($($argument),*),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => arm::neon::$name::<$($generic),*>($($argument),*),
            #[cfg(test)]
            Kind::PortableQuads => portable_quads::$name::<$($generic),*>($($argument),*),
            #[cfg(test)]
            Kind::PortableMixed => portable_mixed::$name::<$($generic),*>($($argument),*),
            Kind::Portable => portable::$name::<$($generic),*>($($argument),*),
        }
    };
}

impl IntegerIsa {
    /// Best instruction set that this CPU supports. Cheap: the standard library caches the feature detection.
    pub(in crate::kernel) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(kind) = x86::available().next() {
            return Self(kind);
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(kind) = arm::available().next() {
            return Self(kind);
        }
        Self(Kind::Portable)
    }

    /// All instruction sets that this CPU supports, for tests that force each.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let kinds = x86::available();
        #[cfg(target_arch = "aarch64")]
        let kinds = arm::available();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let kinds = std::iter::empty();
        kinds.chain([Kind::PortableMixed, Kind::PortableQuads, Kind::Portable]).map(Self).collect()
    }

    /// Pairs of instruction sets with the same `f32` lanes. The first of each pair multiplies byte by byte.
    #[cfg(test)]
    pub(super) fn with_quads() -> Vec<[Self; 2]> {
        let portable = [Kind::PortableMixed, Kind::PortableQuads].map(|kind| [Self(kind), Self(Kind::Portable)]);
        #[cfg(target_arch = "aarch64")]
        let others =
            arm::available().filter(|kind| !matches!(kind, Kind::Neon)).map(|kind| [Self(kind), Self(Kind::Neon)]);
        #[cfg(not(target_arch = "aarch64"))]
        let others = std::iter::empty();
        others.chain(portable).collect()
    }

    /// AMX, if it multiplies groups of `count` rows faster than vectors do.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tiles(self, count: usize) -> Option<TileSupport> {
        match self.0 {
            Kind::Tiles(support) if count >= FEWEST_ROWS => Some(support),
            _ => None,
        }
    }

    /// Maximum numbers of rows of a tile.
    pub(super) fn tile_rows(self) -> TileRows {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Tiles(_) | Kind::Vnni => TileRows::of::<x86::Wide>(),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonMixed | Kind::NeonDot => TileRows::of::<arm::DotLanes<false>>(),
            #[cfg(test)]
            Kind::PortableMixed | Kind::PortableQuads => TileRows::of::<PortableQuads<false>>(),
            _ => TileRows::of::<[i32; LANES]>(),
        }
    }

    /// Maximum size of a group's rounded rows in bytes: they should stay in the second-level cache from panel to panel,
    /// which has 2 MiB on CPUs with AMX.
    pub(super) fn group_bytes(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Tiles(_) => 1536 * 1024,
            _ => 768 * 1024,
        }
    }

    /// Rounds the rows of a tile; see [`activations::round`].
    pub(super) fn round<W: QuantForm>(self, x: &[f32], rows: usize, to: &mut [u32]) {
        // SAFETY: the CPU has the instructions.
        unsafe { dispatch!(self, round::<W>(x, rows, to)) }
    }

    /// Computes [`Tile::few`].
    ///
    /// # Safety
    /// The same as for [`Tile::few`], except for the instruction set.
    pub(super) unsafe fn few<W: QuantForm>(self, tile: Tile, rows: usize) {
        // SAFETY: guaranteed by the caller; the CPU has the instructions.
        unsafe { dispatch!(self, few::<W>(tile, rows)) }
    }

    /// Computes [`Tile::many`] with unpacked weights.
    ///
    /// # Safety
    /// The same as for [`Tile::many`], except for the instruction set.
    pub(super) unsafe fn many<const SHARED: usize, const HALVES: bool, const MIN: bool>(self, tile: Tile, rows: usize) {
        // SAFETY: guaranteed by the caller; the CPU has the instructions.
        unsafe { dispatch!(self, many::<Unpacked<SHARED, HALVES, MIN>>(tile, rows)) }
    }

    /// Computes [`Scratch::fill`].
    ///
    /// # Safety
    /// The same as for [`Scratch::fill`], except for the instruction set.
    pub(super) unsafe fn fill<W: QuantForm>(self, to: &mut Scratch, from: *const u8, first: usize, count: usize) {
        // SAFETY: guaranteed by the caller; the CPU has the instructions.
        unsafe { dispatch!(self, fill::<W>(to, from, first, count)) }
    }
}

/// Defines the kernels for one type of lanes.
macro_rules! kernels {
    ($module:ident, $lanes:ty $(, $features:literal)?) => {
        pub(super) mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn few<W: QuantForm>(tile: Tile, rows: usize) {
                // SAFETY: guaranteed by the caller.
                unsafe { tile.few::<$lanes, W>(rows) }
            }

            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn many<W: QuantForm>(tile: Tile, rows: usize) {
                // SAFETY: guaranteed by the caller.
                unsafe { tile.many::<$lanes, W>(rows) }
            }

            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn round<W: QuantForm>(x: &[f32], rows: usize, to: &mut [u32]) {
                // SAFETY: guaranteed by the caller.
                unsafe { activations::round::<$lanes, W>(x, rows, to) }
            }

            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn fill<W: QuantForm>(
                to: &mut Scratch,
                from: *const u8,
                first: usize,
                count: usize,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe { to.fill::<$lanes, W>(from, first, count) }
            }
        }
    };
}

kernels!(portable, [i32; LANES]);
#[cfg(test)]
kernels!(portable_quads, PortableQuads<false>);
#[cfg(test)]
kernels!(portable_mixed, PortableQuads<true>);

/// Portable lanes that multiply byte by byte.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct PortableQuads<const MIXED: bool>([i32; LANES]);

#[cfg(test)]
impl<const MIXED: bool> IntLanes for PortableQuads<MIXED> {
    delegate_lanes!(never, [i32; LANES]);

    const BYTE_DOT: bool = true;
    const UNSIGNED_BYTE_DOT: bool = MIXED;

    #[inline(never)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self(self.0.dot(x.0, sum.0)) }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Kind, QuantForm, Scratch, Tile, activations};
    use crate::kernel::neon::Ints;
    pub(super) use crate::kernel::neon::dot_lanes::DotLanes;

    /// Instruction sets that this CPU supports, best first.
    pub(super) fn available() -> impl Iterator<Item = Kind> {
        use std::arch::is_aarch64_feature_detected as has;
        let dot = has!("dotprod");
        let kinds = [(Kind::NeonMixed, dot && has!("i8mm")), (Kind::NeonDot, dot), (Kind::Neon, has!("neon"))];
        kinds.into_iter().filter(|(_, present)| *present).map(|(kind, _)| kind)
    }

    kernels!(neon, Ints);
    kernels!(neon_dot, DotLanes<false>, "dotprod");
    kernels!(neon_mixed, DotLanes<true>, "dotprod,i8mm");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::__m256i;

    use super::{Kind, QuantForm, Scratch, Tile, TileSupport, activations};
    use crate::kernel::avx_vnni::AvxVnni;
    pub(super) use crate::kernel::int_lanes::Wide;
    use crate::kernel::isa::Isa;

    /// Instruction sets that this CPU supports, best first.
    pub(super) fn available() -> impl Iterator<Item = Kind> {
        use std::arch::is_x86_feature_detected as has;
        let isa = Isa::best();
        let vnni = isa == Isa::Avx512 && has!("avx512vnni");
        let narrow = isa != Isa::Portable;
        let kinds = [(Kind::Vnni, vnni), (Kind::AvxVnni, narrow && has!("avxvnni")), (Kind::Avx2, narrow)];
        let vectors = kinds.into_iter().filter(|(_, present)| *present).map(|(kind, _)| kind);
        TileSupport::detect().filter(|_| vnni).map(Kind::Tiles).into_iter().chain(vectors)
    }

    kernels!(avx2, [__m256i; 2], "avx2,fma,f16c");
    kernels!(avx_vnni, AvxVnni, "avx2,fma,f16c,avxvnni");
    kernels!(vnni, Wide, "avx512f,avx512bw,avx512vnni");
}
