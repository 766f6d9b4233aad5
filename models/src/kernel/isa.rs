//! Instruction set of the kernels, selected at run time.

#[cfg(target_arch = "x86_64")]
use super::amx::TileSupport;

/// Instruction sets with dedicated kernels, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// AVX-512 F, BW, DQ and VL, with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Plain loops, vectorized by the compiler for the target's baseline.
    Portable,
}

impl Isa {
    /// Best instruction set that this CPU supports. Cheap: the standard library caches the feature detection.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                    return Self::Avx512;
                }
                return Self::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self::Neon;
        }
        Self::Portable
    }

    /// All instruction sets that this CPU supports, for tests that force each path.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        match Self::best() {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => vec![Self::Avx512, Self::Avx2, Self::Portable],
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => vec![Self::Avx2, Self::Portable],
            #[cfg(target_arch = "aarch64")]
            Self::Neon => vec![Self::Neon, Self::Portable],
            Self::Portable => vec![Self::Portable],
        }
    }
}

/// Returns the name of the instruction set that the kernels use on this CPU: `AVX-512 with AMX`, `AVX-512`, `AVX2`, `NEON`
/// or `portable`.
pub fn instruction_set() -> &'static str {
    match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if TileSupport::detect().is_some() => "AVX-512 with AMX",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "AVX2",
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => "NEON",
        Isa::Portable => "portable",
    }
}
