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
            // SAFETY: the CPU has both features.
            return unsafe { x86::products_vnni(query, codes, out) };
        }
        if has!("avx2") {
            // SAFETY: the CPU has the feature.
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

    /// Distance in bytes at which codes are prefetched: a few rows, whose products take as long as a read from memory.
    const AHEAD: usize = 4096;

    // The AVX-512 functions compute with registers in no closure: a closure that the standard library calls is not
    // inlined, because its caller does not have the features.

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn products_vnni(query: &QueryHalves, codes: &[i8], out: &mut Vec<Products>) {
        let stride = query.high.len();
        out.reserve(codes.len() / stride);
        // Four rows at a time share the additions across lanes.
        let groups = codes.chunks_exact(4 * stride);
        let rest = groups.remainder();
        for group in groups {
            let (first, last) = group.split_at(2 * stride);
            let (a, b) = first.split_at(stride);
            let (c, d) = last.split_at(stride);
            // One row after the other: memory is read twice as fast in order as from four rows at once.
            let a = row_products(query, a);
            let b = row_products(query, b);
            let c = row_products(query, c);
            let d = row_products(query, d);
            let high = add_lanes([a.0, b.0, c.0, d.0]);
            let low = add_lanes([a.1, b.1, c.1, d.1]);
            let products = [(high[0], low[0]), (high[1], low[1]), (high[2], low[2]), (high[3], low[3])];
            out.extend_from_slice(&products);
        }
        for row in rest.chunks_exact(stride) {
            let (high, low) = row_products(query, row);
            out.push((_mm512_reduce_add_epi32(high), _mm512_reduce_add_epi32(low)));
        }
    }

    /// Computes the products of a row by lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn row_products(query: &QueryHalves, row: &[i8]) -> (__m512i, __m512i) {
        let highs = query.high.as_chunks::<BLOCK>().0;
        let lows = query.low.as_chunks::<BLOCK>().0;
        let mut high_sum = _mm512_setzero_si512();
        let mut low_sum = _mm512_setzero_si512();
        for ((codes, high), low) in row.as_chunks::<BLOCK>().0.iter().zip(highs).zip(lows) {
            _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().wrapping_add(AHEAD));
            let codes = load(codes);
            high_sum = _mm512_dpbusd_epi32(high_sum, load(high), codes);
            low_sum = _mm512_dpbusd_epi32(low_sum, load(low), codes);
        }
        (high_sum, low_sum)
    }

    /// Loads a block of bytes, signed or not.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load<T: bytemuck::Pod>(block: &[T; BLOCK]) -> __m512i {
        const { assert!(size_of::<T>() == 1) };
        // SAFETY: the array has the 64 bytes that are read, and the load asks for no alignment.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    /// Sums the lanes of each register.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add_lanes(sums: [__m512i; 4]) -> [i32; 4] {
        let pairs = _mm256_hadd_epi32(
            _mm256_hadd_epi32(add_halves(sums[0]), add_halves(sums[1])),
            _mm256_hadd_epi32(add_halves(sums[2]), add_halves(sums[3])),
        );
        let sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        let mut lanes = [0_i32; 4];
        // SAFETY: the array has the 16 bytes that are stored, and the store asks for no alignment.
        unsafe { _mm_storeu_si128(lanes.as_mut_ptr().cast(), sums) };
        lanes
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add_halves(sum: __m512i) -> __m256i {
        _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum))
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
            blocks in 1_usize..4, rows in 0_usize..11, seed in any::<u64>(), extreme in any::<bool>(),
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
                // SAFETY: the CPU has the feature.
                unsafe { x86::products_avx2(&query, &codes, &mut found) };
                prop_assert_eq!(&found, &portable);
            }
        }
    }
}
