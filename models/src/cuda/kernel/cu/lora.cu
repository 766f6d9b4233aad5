// LoRA: multiplication by an adapter's factors, for tiles of at most sixteen tokens with the same adapter. As in
// attention.cu, both operands are read sixteen bytes at a time in the same permuted order of summation.

struct Factors {
    u64 a;
    u64 b[3];
    u32 first[3];
    u32 rank;
    u32 stacked;
    u32 padding;
};

struct LoraTile {
    u32 adapter;
    u32 first;
    u32 count;
};

// Shrink: sixteen columns of `small` for one tile, with the inputs split among eight warps.
KERNEL(256, 1) lora_shrink(
    const Factors* all, const LoraTile* tiles, const u32* order, const bf16* x, float* small, u32 stride, u32 inn) {
    after_previous();
    SHARED_ARRAY(float, parts, 8 * 256);
    const LoraTile tile = tiles[blockIdx.y];
    if (tile.adapter == NONE) return;
    const Factors factors = all[tile.adapter];
    const u32 column = blockIdx.x * 16;
    if (factors.a == 0 || column >= factors.stacked) return;
    const u32 g = lane() / 4, t = lane() % 4;
    // Rows beyond the tile repeat its last row and are not written.
    const bf16* upper = x + (u64)order[tile.first + smaller(g, tile.count - 1)] * inn;
    const bf16* lower = x + (u64)order[tile.first + smaller(g + 8, tile.count - 1)] * inn;
    const bf16* left = (const bf16*)factors.a + (u64)(column + g) * inn;
    const bf16* right = left + (u64)8 * inn;
    float c[2][4] = {};
    const u32 wide = inn / 32;
    for (u32 k = warp(); k < wide; k += 8) {
        const u32 i = 32 * k + 8 * t;
        const uint4 a = load16(upper + i), b = load16(lower + i), l = load16(left + i), r = load16(right + i);
        mma(c[0], a.x, b.x, a.y, b.y, l.x, l.y);
        mma(c[1], a.x, b.x, a.y, b.y, r.x, r.y);
        mma(c[0], a.z, b.z, a.w, b.w, l.z, l.w);
        mma(c[1], a.z, b.z, a.w, b.w, r.z, r.w);
    }
    if (inn % 32 && warp() == wide % 8) {
        const u32 i = 32 * wide + 4 * t;
        const uint2 a = load8(upper + i), b = load8(lower + i), l = load8(left + i), r = load8(right + i);
        mma(c[0], a.x, b.x, a.y, b.y, l.x, l.y);
        mma(c[1], a.x, b.x, a.y, b.y, r.x, r.y);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) parts[warp() * 256 + (g + i / 2 * 8) * 16 + 8 * n + 2 * t + i % 2] = c[n][i];
    }
    __syncthreads();
    const u32 row = threadIdx.x / 16;
    if (row >= tile.count) return;
    float sum = 0.0f;
    for (u32 w = 0; w < 8; w++) sum += parts[w * 256 + threadIdx.x];
    small[(u64)order[tile.first + row] * stride + column + threadIdx.x % 16] = sum;
}

DEVICE void add_pair(bf16* to, float a, float b) {
    const u32 old = *(const u32*)to;
    *(u32*)to = pack(low(old) + a, high(old) + b);
}

DEVICE void add_pair(float* to, float a, float b) {
    const float2 old = *(const float2*)to;
    *(float2*)to = make_float2(old.x + a, old.y + b);
}

// Four neighboring values of `small` as two registers of a left operand.
DEVICE uint2 small_four(const float* from) {
    const float4 x = *(const float4*)from;
    return make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

// Expand: sixteen output columns per warp.
template <typename T>
DEVICE void expand(
    const Factors* all, const LoraTile* tiles, const u32* order, const float* small, u32 stride, T* y, u32 end0,
    u32 end1, u32 end2) {
    const LoraTile tile = tiles[blockIdx.y];
    if (tile.adapter == NONE) return;
    const u32 column = blockIdx.x * 128 + warp() * 16;
    if (column >= end2) return;
    const u32 projection = column < end0 ? 0 : column < end1 ? 1 : 2;
    const u32 begin = projection == 0 ? 0 : projection == 1 ? end0 : end1;
    const Factors* factors = all + tile.adapter;
    const bf16* b = (const bf16*)factors->b[projection];
    if (factors->a == 0 || !b) return;
    const u32 rank = factors->rank, first = factors->first[projection];
    const u32 g = lane() / 4, t = lane() % 4;
    const float* upper = small + (u64)order[tile.first + smaller(g, tile.count - 1)] * stride + first;
    const float* lower = small + (u64)order[tile.first + smaller(g + 8, tile.count - 1)] * stride + first;
    const bf16* left = b + (u64)(column - begin + g) * rank;
    const bf16* right = left + (u64)8 * rank;
    float c[2][4] = {};
    for (u32 k = 0; k + 32 <= rank; k += 32) {
        const u32 i = k + 8 * t;
        const uint4 l = load16(left + i), r = load16(right + i);
        const uint2 a = small_four(upper + i), b = small_four(lower + i);
        const uint2 d = small_four(upper + i + 4), e = small_four(lower + i + 4);
        mma(c[0], a.x, b.x, a.y, b.y, l.x, l.y);
        mma(c[1], a.x, b.x, a.y, b.y, r.x, r.y);
        mma(c[0], d.x, e.x, d.y, e.y, l.z, l.w);
        mma(c[1], d.x, e.x, d.y, e.y, r.z, r.w);
    }
    if (rank % 32) {
        const u32 i = rank / 32 * 32 + 4 * t;
        const uint2 l = load8(left + i), r = load8(right + i);
        const uint2 a = small_four(upper + i), b = small_four(lower + i);
        mma(c[0], a.x, b.x, a.y, b.y, l.x, l.y);
        mma(c[1], a.x, b.x, a.y, b.y, r.x, r.y);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (g + 8 * r >= tile.count) continue;
        T* to = y + (u64)order[tile.first + g + 8 * r] * end2 + column + 2 * t;
        add_pair(to, c[0][2 * r], c[0][2 * r + 1]);
        add_pair(to + 8, c[1][2 * r], c[1][2 * r + 1]);
    }
}

KERNEL(256, 1) lora_expand(
    const Factors* all, const LoraTile* tiles, const u32* order, const float* small, u32 stride, bf16* y, u32 end0,
    u32 end1, u32 end2) {
    after_previous();
    expand(all, tiles, order, small, stride, y, end0, end1, end2);
}

KERNEL(256, 1) lora_expand_stream(
    const Factors* all, const LoraTile* tiles, const u32* order, const float* small, u32 stride, float* y, u32 end0,
    u32 end1, u32 end2) {
    after_previous();
    expand(all, tiles, order, small, stride, y, end0, end1, end2);
}
