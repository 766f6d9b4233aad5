// Weights in e4m3 (Micikevicius et al. 2022, arXiv:2209.05433): a sign, four bits of exponent with a bias of 7, three of
// mantissa. Of four neighboring values, the second and third byte are exchanged, so that values 0 and 1, and 2 and 3, are
// two halves of a register apart.

// Two pairs of bf16 of four values.
DEVICE void unpack_fp8(u32 four, u32* pairs) {
    // The bits of a value at the same place of a bf16 mean 2⁻¹²⁰ times as much, subnormal values included: the bias of a
    // bf16 is 127.
    pairs[0] = times_2_120((four << 8 & 0x80008000u) | (four << 4 & 0x07f007f0u));
    pairs[1] = times_2_120((four & 0x80008000u) | (four >> 4 & 0x07f007f0u));
}

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
