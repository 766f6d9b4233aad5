//! Integer dot products of one query with many rows of codes, the same on every CPU.

/// Bytes to which rows are padded: one AVX-512 register.
pub(super) const BLOCK: usize = 64;

/// High and low halves of a query's numbers, each from 0 to 127. The sum of two products of such a half with a code
/// fits the 16 bits in which AVX2 adds pairs.
#[derive(Debug)]
pub(super) struct QueryHalves {
    pub(super) high: Vec<u8>,
    pub(super) low: Vec<u8>,
}

/// Dot products of a row's codes with the high and the low halves.
pub(super) type Products = (i32, i32);

/// Computes the dot products of every row in `codes`, as long as the halves, into `out`.
pub(super) fn products(query: &QueryHalves, codes: &[i8], out: &mut Vec<Products>) {
    let stride = query.high.len();
    debug_assert!(stride.is_multiple_of(BLOCK) && stride == query.low.len() && codes.len().is_multiple_of(stride));
    out.clear();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512vnni") {
            // SAFETY: the processor has both features.
            return unsafe { x86::products_vnni(query, codes, out) };
        }
        if has!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { x86::products_avx2(query, codes, out) };
        }
    }
    products_portable(query, codes, out);
}

fn products_portable(query: &QueryHalves, codes: &[i8], out: &mut Vec<Products>) {
    let product = |half: &[u8], row: &[i8]| half.iter().zip(row).map(|(&q, &c)| i32::from(q) * i32::from(c)).sum();
    let rows = codes.chunks_exact(query.high.len());
    out.extend(rows.map(|row| (product(&query.high, row), product(&query.low, row))));
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Products, QueryHalves};

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn products_vnni(query: &QueryHalves, codes: &[i8], out: &mut Vec<Products>) {
        let highs = query.high.as_chunks::<BLOCK>().0;
        let lows = query.low.as_chunks::<BLOCK>().0;
        out.extend(codes.chunks_exact(query.high.len()).map(|row| {
            let mut high_sum = _mm512_setzero_si512();
            let mut low_sum = _mm512_setzero_si512();
            for ((code, high), low) in row.as_chunks::<BLOCK>().0.iter().zip(highs).zip(lows) {
                // SAFETY: each is an array of 64 bytes, and the loads ask for no alignment.
                let [code, high, low] = unsafe {
                    [
                        _mm512_loadu_si512(code.as_ptr().cast()),
                        _mm512_loadu_si512(high.as_ptr().cast()),
                        _mm512_loadu_si512(low.as_ptr().cast()),
                    ]
                };
                high_sum = _mm512_dpbusd_epi32(high_sum, high, code);
                low_sum = _mm512_dpbusd_epi32(low_sum, low, code);
            }
            (_mm512_reduce_add_epi32(high_sum), _mm512_reduce_add_epi32(low_sum))
        }));
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn products_avx2(query: &QueryHalves, codes: &[i8], out: &mut Vec<Products>) {
        let highs = query.high.as_chunks::<32>().0;
        let lows = query.low.as_chunks::<32>().0;
        let ones = _mm256_set1_epi16(1);
        out.extend(codes.chunks_exact(query.high.len()).map(|row| {
            let mut high_sum = _mm256_setzero_si256();
            let mut low_sum = _mm256_setzero_si256();
            for ((code, high), low) in row.as_chunks::<32>().0.iter().zip(highs).zip(lows) {
                // SAFETY: each is an array of 32 bytes, and the loads ask for no alignment.
                let [code, high, low] = unsafe {
                    [
                        _mm256_loadu_si256(code.as_ptr().cast()),
                        _mm256_loadu_si256(high.as_ptr().cast()),
                        _mm256_loadu_si256(low.as_ptr().cast()),
                    ]
                };
                // Sums of two products fit 16 bits, since no half exceeds 127.
                let pairs = |half| _mm256_madd_epi16(_mm256_maddubs_epi16(half, code), ones);
                high_sum = _mm256_add_epi32(high_sum, pairs(high));
                low_sum = _mm256_add_epi32(low_sum, pairs(low));
            }
            (add_up(high_sum), add_up(low_sum))
        }));
    }

    #[target_feature(enable = "avx2")]
    fn add_up(sum: __m256i) -> i32 {
        let mut lanes = [0_i32; 8];
        // SAFETY: the array has the 32 bytes that are stored, and the store asks for no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        lanes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_processor_gives_the_same(
            blocks in 1_usize..4, rows in 0_usize..5, seed in any::<u64>(), extreme in any::<bool>(),
        ) {
            let mut state = seed | 1;
            let mut next = |limit: u64, most: i64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if extreme { most } else { (state >> 20).wrapping_rem(limit).cast_signed() }
            };
            let stride = blocks * BLOCK;
            let mut half = || (0..stride).map(|_| next(128, 127) as u8).collect::<Vec<_>>();
            let query = QueryHalves { high: half(), low: half() };
            let codes: Vec<i8> = (0..rows * stride).map(|_| (next(255, 254) - 127) as i8).collect();
            let mut portable = Vec::new();
            let mut found = Vec::new();
            products_portable(&query, &codes, &mut portable);
            products(&query, &codes, &mut found);
            prop_assert_eq!(&found, &portable);
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                found.clear();
                // SAFETY: the processor has the feature.
                unsafe { x86::products_avx2(&query, &codes, &mut found) };
                prop_assert_eq!(&found, &portable);
            }
        }
    }
}
