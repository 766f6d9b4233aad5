//! Tensor types of GGML that this crate reads.

/// Element type or quantization of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgmlKind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Bf16.
    BF16,
    /// 4 bits with a scale per 32.
    Q4_0,
    /// 4 bits with a scale and a minimum per 32.
    Q4_1,
    /// 5 bits with a scale per 32.
    Q5_0,
    /// 5 bits with a scale and a minimum per 32.
    Q5_1,
    /// 8 bits with a scale per 32.
    Q8_0,
    /// 2 bits in super-blocks of 256.
    Q2K,
    /// 3 bits in super-blocks of 256.
    Q3K,
    /// 4 bits in super-blocks of 256.
    Q4K,
    /// 5 bits in super-blocks of 256.
    Q5K,
    /// 6 bits in super-blocks of 256.
    Q6K,
    /// 4 bits that index a table, with a scale per 32.
    Iq4Nl,
    /// 4 bits that index a table, in super-blocks of 256.
    Iq4Xs,
}

impl GgmlKind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// Number of values that are stored together.
    pub fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
        }
    }

    /// Size of a block in bytes.
    pub fn type_size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
        }
    }
}
