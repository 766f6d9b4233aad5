// Backward pass of attention, with probabilities recomputed from the forward pass's log-sums (Dao et al. 2022,
// arXiv:2205.14135, §B.2). With P the probabilities, dP = dO · Vᵀ and δ = Σ dO ∘ O per row: dS = P ∘ (dP − δ) / √dim,
// dQ = dS · K, dK = dSᵀ · Q, dV = Pᵀ · dO. Two kernels, one over query rows and one over key blocks, so that no atomics
// are needed.
//
// Continues attention.cu in the same translation unit. The left operand of one multiplication is the right operand of
// another, and vice versa: registers of a warp are transposed as 8 × 8 matrices (`movmatrix`).

// Computes δ: one warp per token and head.
KERNEL(128, 1) attend_delta(const bf16* out, const bf16* gradient, float* delta, u32 count) {
    after_previous();
    const u32 at = blockIdx.x * 4 + warp();
    if (at >= count) return;
    float sum = 0.0f;
    for (u32 i = lane() * 2; i < DIM; i += 64) {
        const u32 a = *(const u32*)(out + (u64)at * DIM + i), b = *(const u32*)(gradient + (u64)at * DIM + i);
        sum += low(a) * low(b) + high(a) * high(b);
    }
    sum = warp_sum(sum);
    if (lane() == 0) delta[at] = sum;
}

// Dims 16 s + 2t, 16 s + 2t + 1 in register 2 s, and those eight further on in 2 s + 1: the order of the mma fragments,
// unlike in the forward pass.
DEVICE void load_plain(const bf16* row, u32 (&to)[2 * STEPS]) {
    const u32 t = lane() % 4;
#pragma unroll
    for (int s = 0; s < 2 * STEPS; s++) to[s] = *(const u32*)(row + 8 * s + 2 * t);
}

// Position of the column pair of product j, computed with operands of `load_dims`, after transposition.
DEVICE u32 dims_of(int j) {
    const u32 t = lane() % 4;
    return j < 4 * WIDE ? 32 * (j / 4) + 8 * t + 2 * (j % 4) : 32 * WIDE + 4 * t + 2 * (j - 4 * WIDE);
}

// Query gradients of one tile, of which each of eight warps has sixteen rows.
KERNEL(256, 1) attend_backward_queries(
    const u32* first, const u32* context, const u32* tables, u32 table_stride, const u32* tiles, const bf16* qkv, u32 stride,
    const bf16* cache, const bf16* gradient, const float* lse, const float* delta, bf16* qkv_gradient, u32 heads) {
    after_previous();
    const u32 row = tiles[2 * blockIdx.x];
    if (row == NONE) return;
    const u32 kv_heads = gridDim.y, group = heads / kv_heads, head = blockIdx.y * group;
    const u32 token = first[row], packed = context[row] * group;
    const u32 base = tiles[2 * blockIdx.x + 1] * TILE + warp() * 16;
    if (base >= packed) return;
    const u32 g = lane() / 4;
    u32 q[2][2 * STEPS], d[2][2 * STEPS];
    int limits[2];
    float sums[2], deltas[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 at = smaller(base + g + 8 * r, packed - 1);
        const u64 place = (u64)(token + at / group) * heads + head + at % group;
        load_dims(qkv + (u64)(token + at / group) * stride + (head + at % group) * DIM, q[r]);
        load_plain(gradient + place * DIM, d[r]);
        limits[r] = (int)(at / group) + 1;
        sums[r] = lse[place];
        deltas[r] = delta[place];
    }
    const float root = rsqrtf((float)DIM), scale = LOG2E * root;
    const u32 end = smaller(base + 15, packed - 1) / group + 1;
    const u32* table = tables + (u64)row * table_stride;
    float o[2 * STEPS][4];
#pragma unroll
    for (int j = 0; j < 2 * STEPS; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
    for (u32 from = 0; from < end; from += BLOCK) {
        const bf16* share = cache + ((u64)table[from / BLOCK] * kv_heads + blockIdx.y) * (2 * BLOCK * DIM);
        Keys keys;
        load_keys(share, keys);
        float s[2][4] = {}, p[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma(s[n], q[0][2 * k], q[1][2 * k], q[0][2 * k + 1], q[1][2 * k + 1], keys.x[n][2 * k], keys.x[n][2 * k + 1]);
            }
        }
        Values values;
        load_values(share, values);
        if (from + BLOCK > end) clear_values(values, end - from);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const uint4 v = values.x[k];
            mma(p[0], d[0][2 * k], d[1][2 * k], d[0][2 * k + 1], d[1][2 * k + 1], transpose(v.x), transpose(v.z));
            mma(p[1], d[0][2 * k], d[1][2 * k], d[0][2 * k + 1], d[1][2 * k + 1], transpose(v.y), transpose(v.w));
        }
        u32 slopes[2][2];
        const int column = (int)from + 2 * (int)(lane() % 4);
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float slope[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const bool seen = column + 8 * n + i < limits[r];
                    const float weight = exp2f(s[n][2 * r + i] * scale - sums[r]);
                    slope[i] = seen ? weight * (p[n][2 * r + i] - deltas[r]) * root : 0.0f;
                }
                slopes[n][r] = pack(slope[0], slope[1]);
            }
        }
        // Zeroes keys beyond the context: 0 · NaN is NaN.
        const u32 early = from + g < end ? NONE : 0, late = from + g + 8 < end ? NONE : 0;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            mma(o[j], slopes[0][0], slopes[0][1], slopes[1][0], slopes[1][1], transpose(keys.x[0][j] & early), transpose(keys.x[1][j] & late));
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 at = base + g + 8 * r;
        if (at >= packed) continue;
        bf16* to = qkv_gradient + (u64)(token + at / group) * stride + (head + at % group) * DIM;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) *(u32*)(to + dims_of(j)) = pack(o[j][2 * r], o[j][2 * r + 1]);
    }
}

// Accumulates one warp's share of the gradients of a block of sixteen keys (KEYS), or of their values, over every
// `step`-th tile of sixteen packed query rows. Keys and values are separate, since the sums of both do not fit into
// registers.
template <bool KEYS>
DEVICE void pull(
    float (&sum)[2 * STEPS][4], u32 base, u32 step, u32 token, u32 length, u32 from, const bf16* share, const bf16* qkv,
    u32 stride, const bf16* gradient, const float* lse, const float* delta, u32 heads, u32 head, u32 group) {
    const u32 g = lane() / 4, t = lane() % 4, packed = length * group;
    const float root = rsqrtf((float)DIM), scale = LOG2E * root;
#pragma unroll
    for (int j = 0; j < 2 * STEPS; j++) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.0f;
    Keys keys;
    load_keys(share, keys);
    for (; base < packed; base += step) {
        u32 q[2][2 * STEPS], d[2][2 * STEPS];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const u32 at = smaller(base + g + 8 * n, packed - 1);
            load_dims(qkv + (u64)(token + at / group) * stride + (head + at % group) * DIM, q[n]);
            load_plain(gradient + ((u64)(token + at / group) * heads + head + at % group) * DIM, d[n]);
        }
        float s[2][4] = {}, p[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma(s[n], keys.x[0][2 * k], keys.x[1][2 * k], keys.x[0][2 * k + 1], keys.x[1][2 * k + 1], q[n][2 * k], q[n][2 * k + 1]);
            }
            if (KEYS) {
                const uint4 v = load16(share + BLOCK * DIM + (k * 32 + lane()) * 8);
                const u32 a = transpose(v.x), b = transpose(v.y), c = transpose(v.z), e = transpose(v.w);
#pragma unroll
                for (int n = 0; n < 2; n++) mma(p[n], a, b, c, e, d[n][2 * k], d[n][2 * k + 1]);
            }
        }
        // Here rows are tokens g and g + 8, and columns are query rows.
        u32 weights[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float pair[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 at = base + 8 * n + 2 * t + i, query = at / group;
                const u64 place = (u64)(token + smaller(query, length - 1)) * heads + head + at % group;
                const float all = lse[place], offset = KEYS ? delta[place] : 0.0f;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const bool seen = at < packed && from + g + 8 * r <= query;
                    const float weight = exp2f(s[n][2 * r + i] * scale - all);
                    const float slope = KEYS ? weight * (p[n][2 * r + i] - offset) * root : weight;
                    pair[r][i] = seen ? slope : 0.0f;
                }
            }
            weights[n][0] = pack(pair[0][0], pair[0][1]);
            weights[n][1] = pack(pair[1][0], pair[1][1]);
        }
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            const u32 early = transpose(KEYS ? q[0][j] : d[0][j]), late = transpose(KEYS ? q[1][j] : d[1][j]);
            mma(sum[j], weights[0][0], weights[0][1], weights[1][0], weights[1][1], early, late);
        }
    }
}

// Key and value gradients of one block of sixteen tokens of a row: two warps for the keys, two for the values.
KERNEL(128, 2) attend_backward_keys(
    const u32* first, const u32* context, const u32* tables, u32 table_stride, const u32* blocks, const bf16* qkv, u32 stride,
    const bf16* cache, const bf16* gradient, const float* lse, const float* delta, bf16* qkv_gradient, u32 heads) {
    after_previous();
    const u32 PITCH = DIM + 4;
    SHARED_ARRAY(float, room, 2 * 16 * (DIM + 4));
    const u32 row = blocks[2 * blockIdx.x];
    if (row == NONE) return;
    const u32 kv_heads = gridDim.y, group = heads / kv_heads, head = blockIdx.y * group;
    const u32 token = first[row], length = context[row];
    const u32 from = blocks[2 * blockIdx.x + 1] * BLOCK, tokens = smaller(BLOCK, length - from);
    const bf16* share =
        cache + ((u64)tables[(u64)row * table_stride + from / BLOCK] * kv_heads + blockIdx.y) * (2 * BLOCK * DIM);
    const u32 g = lane() / 4, t = lane() % 4;
    // No query before the block's first token attends to it.
    const u32 base = (from * group / 16 + warp() % 2) * 16;
    float sum[2 * STEPS][4];
    const bool values = warp() >= 2;
    if (values) {
        pull<false>(sum, base, 32, token, length, from, share, qkv, stride, gradient, lse, delta, heads, head, group);
    } else {
        pull<true>(sum, base, 32, token, length, from, share, qkv, stride, gradient, lse, delta, heads, head, group);
    }
    // Sums over the warps in a fixed order.
    for (u32 turn = 0; turn < 2; turn++) {
        if (warp() % 2 == turn) {
#pragma unroll
            for (int j = 0; j < 2 * STEPS; j++) {
                const u32 at = values ? 8 * j + 2 * t : dims_of(j);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float* place = room + (16 * values + g + i / 2 * 8) * PITCH + at + i % 2;
                    *place = turn == 0 ? sum[j][i] : *place + sum[j][i];
                }
            }
        }
        __syncthreads();
    }
    bf16* to = qkv_gradient + (u64)(token + from) * stride + (heads + blockIdx.y) * DIM;
    for (u32 i = threadIdx.x; i < tokens * DIM; i += blockDim.x) {
        const u32 r = i / DIM, at = i % DIM;
        to[(u64)r * stride + at] = narrow(room[r * PITCH + at]);
        to[(u64)r * stride + kv_heads * DIM + at] = narrow(room[(16 + r) * PITCH + at]);
    }
}
