// Weights and activations in e4m3 (Micikevicius et al. 2022, arXiv:2209.05433): a sign, four bits of exponent with a bias
// of 7, three of mantissa. Of four neighboring values, the second and third byte are exchanged, so that values 0 and 1, and
// 2 and 3, are two halves of a register apart.

// Two pairs of bf16 of four values.
DEVICE void unpack_fp8(u32 four, u32* pairs) {
    // The bits of a value at the same place of a bf16 mean 2⁻¹²⁰ times as much, subnormal values included: the bias of a
    // bf16 is 127.
    pairs[0] = times_2_120((four << 8 & 0x80008000u) | (four << 4 & 0x07f007f0u));
    pairs[1] = times_2_120((four & 0x80008000u) | (four >> 4 & 0x07f007f0u));
}

// The e4m3 nearest to a number, ties to even; beyond the range the largest value.
DEVICE u32 round_fp8(float x) {
    const float size = fminf(from_bits(bits(x) & 0x7fffffffu), 448.0f);
    // The exponent's field: numbers below 2⁻⁶ have the units of 2⁻⁶.
    const u32 exponent = larger(bits(size) >> 23, 121);
    // Three bits of mantissa: units of 2^(exponent − 3), eight to sixteen of them for a normal value.
    const u32 units = (u32)rintf(size * from_bits((257 - exponent) << 23));
    return (bits(x) >> 24 & 0x80u) + (exponent - 120) * 8 + units - 8;
}

// Four values of e4m3, from two pairs of bf16.
DEVICE u32 pack_fp8(u32 first, u32 second, float scale) {
    return round_fp8(low(first) * scale) | round_fp8(low(second) * scale) << 8 | round_fp8(high(first) * scale) << 16 |
           round_fp8(high(second) * scale) << 24;
}

// The larger magnitude of a pair of bf16, as the bits of a float: above those of any number for infinities and NaN.
DEVICE u32 pair_magnitude(u32 pair) { return larger(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u); }

DEVICE u32 scale_pair(u32 pair, float scale) { return pack(low(pair) * scale, high(pair) * scale); }

// Weights as bf16, which holds them exactly since scales are powers of two: sixteen values per thread, all of one row.
KERNEL(256, 1) dequantize_fp8(const unsigned char* from, const float* scales, bf16* to, u32 sixteens, u32 per_row) {
    after_previous();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= sixteens) return;
    const uint4 x = load_once(from + (u64)i * 16);
    const float scale = scales[i / per_row];
    u32 p[8];
    unpack_fp8(x.x, p), unpack_fp8(x.y, p + 2), unpack_fp8(x.z, p + 4), unpack_fp8(x.w, p + 6);
#pragma unroll
    for (int e = 0; e < 8; e++) p[e] = scale_pair(p[e], scale);
    store16(to + (u64)i * 16, make_uint4(p[0], p[1], p[2], p[3]));
    store16(to + (u64)i * 16 + 8, make_uint4(p[4], p[5], p[6], p[7]));
}

// Activations as e4m3 with one scale per row, the smallest power of two that keeps the row in range: one row per block.
// A row with a value that is not finite has NaN as its scale, and so are all products with it.
KERNEL(512, 2) quantize_fp8(const bf16* from, unsigned char* to, float* scales, u32 width) {
    SHARED_ARRAY(u32, room, 16);
    after_previous();
    const u64 first = (u64)blockIdx.x * width;
    u32 largest = 0;
    for (u32 i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        const uint4 x = load16(from + first + i);
        largest = larger(largest, larger(larger(pair_magnitude(x.x), pair_magnitude(x.y)), larger(pair_magnitude(x.z), pair_magnitude(x.w))));
    }
    largest = block_largest(largest, room);
    // 448 is 1.75 · 2⁸: a value with a larger mantissa needs one more power. The scale is normal, and so is its inverse.
    const u32 power = (largest >> 23) + ((largest & 0x7fffffu) > 0x600000u);
    const u32 exponent = largest == 0 ? 127 : power > 9 ? power - 8 : 1;
    if (threadIdx.x == 0) scales[blockIdx.x] = from_bits(largest < 0x7f800000u ? exponent << 23 : 0x7fc00000u);
    const float inverse = from_bits((254 - exponent) << 23);
    for (u32 i = threadIdx.x * 16; i < width; i += blockDim.x * 16) {
        const uint4 x = load16(from + first + i), y = load16(from + first + i + 8);
        store16(to + first + i, make_uint4(pack_fp8(x.x, x.y, inverse), pack_fp8(x.z, x.w, inverse), pack_fp8(y.x, y.y, inverse), pack_fp8(y.z, y.w, inverse)));
    }
}
