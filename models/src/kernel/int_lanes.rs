//! Sixteen 32-bit lanes for integer dot products, each lane an `i32` or a pair of `i16`.
//!
//! The counterpart of [`Lanes`] for integers: a kernel is written once over [`IntLanes`] and compiled for each
//! instruction set, inside a function that enables it. Integer sums are exact, so all implementations agree to
//! the last bit.

use super::lanes::{LANES, Lanes};

/// Sixteen lanes of 32 bits. A *pair* is two `i16` in one lane, the first one in the lower half.
///
/// # Safety
/// Every method may only be called where the implementation's instruction set is available; pointers must be valid
/// for sixteen values.
pub(super) trait IntLanes: Copy {
    /// Sixteen `f32` of the same instruction set.
    type Floats: Lanes;

    /// If `true`, [`dot_bytes`](Self::dot_bytes) is one instruction, and 16-bit numbers are multiplied faster as two
    /// bytes each.
    const BYTE_DOT: bool = false;
    /// If `true`, [`dot_unsigned`](Self::dot_unsigned) is one instruction, too.
    const UNSIGNED_BYTE_DOT: bool = false;

    /// Broadcasts a word to all lanes.
    unsafe fn splat(word: u32) -> Self;
    /// Loads sixteen words, of any alignment.
    unsafe fn load(from: *const u32) -> Self;
    /// Stores sixteen words, of any alignment.
    unsafe fn store(self, to: *mut u32);
    /// Bitwise conjunction.
    unsafe fn and(self, b: Self) -> Self;
    /// Bitwise disjunction.
    unsafe fn or(self, b: Self) -> Self;
    /// Shifts each lane right, filling with zeros; `count` is at most 31.
    unsafe fn right(self, count: u32) -> Self;
    /// Shifts each lane left; `count` is at most 31.
    unsafe fn left(self, count: u32) -> Self;
    /// Differences of pairs.
    unsafe fn sub_pairs(self, b: Self) -> Self;
    /// Products of pairs; each must fit an `i16`.
    unsafe fn mul_pairs(self, b: Self) -> Self;
    /// Lane-wise sum of `i32`.
    unsafe fn add(self, b: Self) -> Self;
    /// Lane-wise product of `i32`; it must fit an `i32`.
    unsafe fn mul(self, b: Self) -> Self;
    /// Replaces both numbers of each pair, which are below 16, by their entries in a table.
    unsafe fn look_up(self, table: &[i8; 16]) -> Self;
    /// Pairs of sixteen `i8` at `first` and sixteen at `second`.
    unsafe fn pair_bytes(first: *const i8, second: *const i8) -> Self;
    /// Bit `lane` of `first` and of `second`, moved to bit 4 of the pair's numbers.
    unsafe fn pair_bits(first: u16, second: u16) -> Self;
    /// Computes `sum + first · x.first + second · x.second` per lane.
    unsafe fn dot(self, x: Self, sum: Self) -> Self;
    /// Converts each lane from `i32`.
    unsafe fn floats(self) -> Self::Floats;
    /// Loads sixteen `i8`.
    unsafe fn signed_bytes(from: *const i8) -> Self;
    /// Loads sixteen `u8`.
    unsafe fn unsigned_bytes(from: *const u8) -> Self;

    /// Bitwise exclusive disjunction.
    #[inline(always)]
    unsafe fn xor(self, b: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { self.or(b).sub_pairs(self.and(b)) }
    }

    /// Quads of the low bytes of the pairs of `self` and `next`: bytes 0 and 2 of a lane come from `self`, 1 and 3 from
    /// `next`.
    #[inline(always)]
    unsafe fn low_bytes(self, next: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { self.and(Self::splat(LOW_BYTES)).or(next.and(Self::splat(LOW_BYTES)).left(8)) }
    }

    /// Quads of the high bytes of the pairs of `self` and `next`, in the order of [`low_bytes`](Self::low_bytes).
    #[inline(always)]
    unsafe fn high_bytes(self, next: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { self.right(8).and(Self::splat(LOW_BYTES)).or(next.and(Self::splat(!LOW_BYTES))) }
    }

    /// Computes `sum` plus the products of the four signed bytes of each lane with those of `x`.
    #[inline(always)]
    unsafe fn dot_bytes(self, x: Self, sum: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let odd = self.right(8).signed_low().dot(x.right(8).signed_low(), sum);
            self.signed_low().dot(x.signed_low(), odd)
        }
    }

    /// Computes `sum` plus the products of the four signed bytes of each lane with the unsigned ones of `x`.
    #[inline(always)]
    unsafe fn dot_unsigned(self, x: Self, sum: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mask = Self::splat(LOW_BYTES);
            let odd = self.right(8).signed_low().dot(x.right(8).and(mask), sum);
            self.signed_low().dot(x.and(mask), odd)
        }
    }

    /// Pairs of the signed low bytes of both numbers.
    #[inline(always)]
    unsafe fn signed_low(self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let sign = Self::splat(0x0080_0080);
            self.and(Self::splat(LOW_BYTES)).xor(sign).sub_pairs(sign)
        }
    }

    /// First number of each pair.
    #[inline(always)]
    unsafe fn first(self) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { self.dot(Self::splat(1), Self::splat(0)).floats() }
    }

    /// Second number of each pair.
    #[inline(always)]
    unsafe fn second(self) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { self.dot(Self::splat(1 << 16), Self::splat(0)).floats() }
    }
}

/// Low bytes of both numbers of a pair.
pub(super) const LOW_BYTES: u32 = 0x00ff_00ff;

/// Both `i16` of a word.
fn numbers(word: i32) -> [i32; 2] {
    [i32::from(word as i16), word >> 16]
}

/// Word of two `i16`.
fn pair(first: i32, second: i32) -> i32 {
    first & 0xffff | second << 16
}

/// Portable implementation, vectorized by the compiler for the target's baseline.
impl IntLanes for [i32; LANES] {
    type Floats = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        [word as i32; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const u32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }.map(|word| u32::from_le(word) as i32)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[u32; LANES]>().write_unaligned(self.map(|word| (word as u32).to_le())) }
    }
    #[inline(always)]
    unsafe fn and(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] & b[i])
    }
    #[inline(always)]
    unsafe fn or(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] | b[i])
    }
    #[inline(always)]
    unsafe fn right(self, count: u32) -> Self {
        self.map(|word| (word as u32 >> count) as i32)
    }
    #[inline(always)]
    unsafe fn left(self, count: u32) -> Self {
        self.map(|word| word << count)
    }
    #[inline(always)]
    unsafe fn sub_pairs(self, b: Self) -> Self {
        std::array::from_fn(|i| {
            let [first, second] = numbers(self[i]);
            let [less, other] = numbers(b[i]);
            pair(first - less, second - other)
        })
    }
    #[inline(always)]
    unsafe fn mul_pairs(self, b: Self) -> Self {
        std::array::from_fn(|i| {
            let [first, second] = numbers(self[i]);
            let [times, other] = numbers(b[i]);
            pair(first * times, second * other)
        })
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] * b[i])
    }
    #[inline(always)]
    unsafe fn look_up(self, table: &[i8; 16]) -> Self {
        let entry = |index: i32| i32::from(table[(index & 15) as usize]);
        self.map(|word| pair(entry(word), entry(word >> 16)))
    }
    #[inline(always)]
    unsafe fn pair_bytes(first: *const i8, second: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { (first.cast::<[i8; LANES]>().read(), second.cast::<[i8; LANES]>().read()) };
        std::array::from_fn(|i| pair(first[i].into(), second[i].into()))
    }
    #[inline(always)]
    unsafe fn pair_bits(first: u16, second: u16) -> Self {
        std::array::from_fn(|i| pair(i32::from(first >> i & 1) << 4, i32::from(second >> i & 1) << 4))
    }
    #[inline(always)]
    unsafe fn dot(self, x: Self, sum: Self) -> Self {
        std::array::from_fn(|i| {
            let [first, second] = numbers(self[i]);
            let [a, b] = numbers(x[i]);
            sum[i] + first * a + second * b
        })
    }
    #[inline(always)]
    unsafe fn floats(self) -> Self::Floats {
        self.map(|lane| lane as f32)
    }
    #[inline(always)]
    unsafe fn signed_bytes(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[i8; LANES]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn unsigned_bytes(from: *const u8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(i32::from)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Wide;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use super::IntLanes;

    /// Bit 0 of both numbers of a pair.
    const LANE: i32 = 0x1_0001;

    /// Returns its argument, without an instruction. The `asm!` hides the sum from the compiler, which would otherwise
    /// regroup the sums of several steps, which needs twice the registers of a tile and spills half of them.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn settled256(sum: __m256i) -> __m256i {
        let mut sum = sum;
        // SAFETY: no instruction.
        unsafe { asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
        sum
    }

    /// Computes `_mm512_dpwssd_epi32` in `asm!`, because LLVM would replace the instruction by a multiplication and an
    /// addition, which have less latency. Kernels with many independent sums are bound by the number of instructions
    /// instead.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dot512(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        let mut sum = sum;
        // SAFETY: the instruction only reads and writes the named registers.
        unsafe {
            asm!(
                "vpdpwssd {0}, {1}, {2}",
                inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }

    /// AVX2 implementation; needs `avx2`, `fma` and `f16c`.
    impl IntLanes for [__m256i; 2] {
        type Floats = [__m256; 2];

        #[inline(always)]
        unsafe fn splat(word: u32) -> Self {
            // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
            unsafe { [_mm256_set1_epi32(word as i32); 2] }
        }
        #[inline(always)]
        unsafe fn load(from: *const u32) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())] }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u32) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_si256(to.cast(), self[0]);
                _mm256_storeu_si256(to.add(8).cast(), self[1]);
            }
        }
        #[inline(always)]
        unsafe fn and(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_and_si256(self[0], b[0]), _mm256_and_si256(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn or(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_or_si256(self[0], b[0]), _mm256_or_si256(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn right(self, count: u32) -> Self {
            // SAFETY: as above.
            unsafe {
                let count = _mm_cvtsi32_si128(count as i32);
                [_mm256_srl_epi32(self[0], count), _mm256_srl_epi32(self[1], count)]
            }
        }
        #[inline(always)]
        unsafe fn left(self, count: u32) -> Self {
            // SAFETY: as above.
            unsafe {
                let count = _mm_cvtsi32_si128(count as i32);
                [_mm256_sll_epi32(self[0], count), _mm256_sll_epi32(self[1], count)]
            }
        }
        #[inline(always)]
        unsafe fn sub_pairs(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_sub_epi16(self[0], b[0]), _mm256_sub_epi16(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn mul_pairs(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_mullo_epi16(self[0], b[0]), _mm256_mullo_epi16(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_add_epi32(self[0], b[0]), _mm256_add_epi32(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_mullo_epi32(self[0], b[0]), _mm256_mullo_epi32(self[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn look_up(self, table: &[i8; 16]) -> Self {
            // SAFETY: as above.
            unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                // The upper byte of each number looks up entry 0 and is shifted out.
                let [low, high] = [_mm256_shuffle_epi8(table, self[0]), _mm256_shuffle_epi8(table, self[1])];
                let [low, high] = [_mm256_slli_epi16::<8>(low), _mm256_slli_epi16::<8>(high)];
                [_mm256_srai_epi16::<8>(low), _mm256_srai_epi16::<8>(high)]
            }
        }
        #[inline(always)]
        unsafe fn pair_bytes(first: *const i8, second: *const i8) -> Self {
            // SAFETY: as above.
            unsafe {
                let [first, second] = [Self::signed_bytes(first), Self::signed_bytes(second)];
                [
                    _mm256_blend_epi16::<0xaa>(first[0], _mm256_slli_epi32::<16>(second[0])),
                    _mm256_blend_epi16::<0xaa>(first[1], _mm256_slli_epi32::<16>(second[1])),
                ]
            }
        }
        #[inline(always)]
        unsafe fn pair_bits(first: u16, second: u16) -> Self {
            // SAFETY: as above.
            unsafe {
                // Lane i of either half keeps bit i or i + 8 of both words.
                let low = _mm256_setr_epi32(
                    LANE,
                    LANE << 1,
                    LANE << 2,
                    LANE << 3,
                    LANE << 4,
                    LANE << 5,
                    LANE << 6,
                    LANE << 7,
                );
                let high = _mm256_slli_epi32::<8>(low);
                let bits = _mm256_set1_epi32(i32::from(first) | i32::from(second) << 16);
                let sixteen = _mm256_set1_epi16(16);
                [
                    _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_and_si256(bits, low), low), sixteen),
                    _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_and_si256(bits, high), high), sixteen),
                ]
            }
        }
        #[inline(always)]
        unsafe fn dot(self, x: Self, sum: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                [
                    settled256(_mm256_add_epi32(sum[0], _mm256_madd_epi16(self[0], x[0]))),
                    settled256(_mm256_add_epi32(sum[1], _mm256_madd_epi16(self[1], x[1]))),
                ]
            }
        }
        #[inline(always)]
        unsafe fn floats(self) -> Self::Floats {
            // SAFETY: as above.
            unsafe { [_mm256_cvtepi32_ps(self[0]), _mm256_cvtepi32_ps(self[1])] }
        }
        #[inline(always)]
        unsafe fn signed_bytes(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe {
                let low = _mm_loadl_epi64(from.cast());
                let high = _mm_loadl_epi64(from.add(8).cast());
                [_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)]
            }
        }
        #[inline(always)]
        unsafe fn unsigned_bytes(from: *const u8) -> Self {
            // SAFETY: as above.
            unsafe {
                let low = _mm_loadl_epi64(from.cast());
                let high = _mm_loadl_epi64(from.add(8).cast());
                [_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)]
            }
        }
    }

    /// AVX-512 implementation; needs `avx512f`, `avx512bw` and `avx512vnni`.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Wide(__m512i);

    impl IntLanes for Wide {
        type Floats = __m512;

        #[inline(always)]
        unsafe fn splat(word: u32) -> Self {
            // SAFETY: in all methods of this implementation, the trait's requirements on the caller.
            unsafe { Self(_mm512_set1_epi32(word as i32)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u32) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_loadu_si512(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn and(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_and_si512(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn or(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_or_si512(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn right(self, count: u32) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_srl_epi32(self.0, _mm_cvtsi32_si128(count as i32))) }
        }
        #[inline(always)]
        unsafe fn left(self, count: u32) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(count as i32))) }
        }
        #[inline(always)]
        unsafe fn sub_pairs(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_sub_epi16(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn mul_pairs(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_mullo_epi16(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_add_epi32(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_mullo_epi32(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn look_up(self, table: &[i8; 16]) -> Self {
            // SAFETY: as above.
            unsafe {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
                // The upper byte of each number looks up entry 0 and is shifted out.
                Self(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(_mm512_shuffle_epi8(table, self.0))))
            }
        }
        #[inline(always)]
        unsafe fn pair_bytes(first: *const i8, second: *const i8) -> Self {
            // SAFETY: as above.
            unsafe {
                let first = _mm512_cvtepi8_epi32(_mm_loadu_si128(first.cast()));
                let second = _mm512_cvtepi8_epi32(_mm_loadu_si128(second.cast()));
                Self(_mm512_mask_blend_epi16(0xaaaa_aaaa, first, _mm512_slli_epi32::<16>(second)))
            }
        }
        #[inline(always)]
        unsafe fn pair_bits(first: u16, second: u16) -> Self {
            // SAFETY: as above.
            unsafe {
                let first = _mm512_maskz_set1_epi32(first, 1 << 4);
                Self(_mm512_or_si512(first, _mm512_maskz_set1_epi32(second, 1 << 20)))
            }
        }
        #[inline(always)]
        unsafe fn dot(self, x: Self, sum: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(dot512(sum.0, self.0, x.0)) }
        }
        #[inline(always)]
        unsafe fn floats(self) -> Self::Floats {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(self.0) }
        }
        #[inline(always)]
        unsafe fn signed_bytes(from: *const i8) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn unsigned_bytes(from: *const u8) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
        }
    }
}
