// Causal attention over the paged cache on the tensor cores, with a running softmax (Milakov and Gimelshein 2018,
// arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
//
// Query rows are packed: the heads of a group at consecutive positions, head fastest. One read of keys and values thus
// serves the whole group. In decoding, the warps of a block share up to sixteen rows and split the context; in prefill
// (attention_prefill.cu), each warp has its own rows.
//
// Keys and values are loaded sixteen bytes per lane, in decoding from memory directly into registers, as operands of the
// mma instructions:
//  * Scores sum over dims, in any order: the lane that would hold dims 2t, 2t + 1, 2t + 8, 2t + 9 of two steps takes dims
//    8t .. 8t + 7 instead, of queries and keys alike. (Eight bytes where the width leaves sixteen dims.)
//  * Values are stored in the cache in the order of the lanes (`value_place` in rotary.cu).
//  * The registers of the scores have the layout that the probabilities need in the second multiplication.
// In decoding, keys of the next block of sixteen tokens are loaded before the softmax of the current one, values before
// its scores.

#define DIM HEAD_DIM
#define STEPS (DIM / 16)
#define WIDE (DIM / 32)

// Sixteen rows of an operand that is summed over dims: registers 2 s and 2 s + 1 belong to step s.
DEVICE void load_dims(const bf16* row, u32 (&to)[2 * STEPS]) {
    const u32 t = lane() % 4;
#pragma unroll
    for (int c = 0; c < WIDE; c++) {
        const uint4 x = load16(row + 32 * c + 8 * t);
        to[4 * c] = x.x, to[4 * c + 1] = x.y, to[4 * c + 2] = x.z, to[4 * c + 3] = x.w;
    }
    if (DIM % 32) {
        const uint2 x = load8(row + 32 * WIDE + 4 * t);
        to[2 * STEPS - 2] = x.x, to[2 * STEPS - 1] = x.y;
    }
}

struct Keys {
    u32 x[2][2 * STEPS];  // tokens g and g + 8
};

struct Values {
    uint4 x[STEPS];  // per sixteen dims: operands of two mma instructions
};

// Running softmax state of a warp for rows g and g + 8.
struct Seen {
    float o[2 * STEPS][4];
    float most[2];
    float total[2];  // this lane's share
};

DEVICE void load_keys(const bf16* share, Keys& keys) {
    const u32 g = lane() / 4;
    load_dims(share + g * DIM, keys.x[0]);
    load_dims(share + (g + 8) * DIM, keys.x[1]);
}

DEVICE void load_values(const bf16* share, Values& values) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) values.x[s] = load16(share + BLOCK * DIM + (s * 32 + lane()) * 8);
}

// Zeroes tokens from `end` on: a block may hold anything there, and 0 · NaN is NaN.
DEVICE void clear_values(Values& values, u32 end) {
    const u32 t = 2 * (lane() % 4);
    const u32 early = (t < end ? 0xffffu : 0u) | (t + 1 < end ? 0xffff0000u : 0u);
    const u32 late = (t + 8 < end ? 0xffffu : 0u) | (t + 9 < end ? 0xffff0000u : 0u);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint4& x = values.x[s];
        x.x &= early, x.y &= late, x.z &= early, x.w &= late;
    }
}

// Adds one block of sixteen tokens to the running softmax. `limits` is the number of tokens of the block that rows g
// and g + 8 may see (anything above 16 means all); `scale` is log2(e) / √dim.
DEVICE void look(Seen& seen, const u32 (&q)[2][2 * STEPS], const Keys& keys, const Values& values, const int (&limits)[2], float scale) {
    float s[2][4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(s[n], q[0][2 * k], q[1][2 * k], q[0][2 * k + 1], q[1][2 * k + 1], keys.x[n][2 * k], keys.x[n][2 * k + 1]);
        }
    }
    const int column = 2 * (lane() % 4);
    u32 p[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = seen.most[r];
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& x = s[n][2 * r + i];
                x = column + 8 * n + i < limits[r] ? x * scale : -infinity();
                most = fmaxf(most, x);
            }
        }
        most = fmaxf(most, shuffle_xor(most, 1));
        most = fmaxf(most, shuffle_xor(most, 2));
        // A row without any visible token: any finite number will do in place of -∞.
        const float base = most == -infinity() ? 0.0f : most;
        const float shrink = exp2f(seen.most[r] - base);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float a = exp2f(s[n][2 * r] - base), b = exp2f(s[n][2 * r + 1] - base);
            sum += a + b;
            p[n][r] = pack(a, b);
        }
        seen.most[r] = most;
        seen.total[r] = seen.total[r] * shrink + sum;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            seen.o[j][2 * r] *= shrink;
            seen.o[j][2 * r + 1] *= shrink;
        }
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        mma(seen.o[2 * j], p[0][0], p[0][1], p[1][0], p[1][1], values.x[j].x, values.x[j].y);
        mma(seen.o[2 * j + 1], p[0][0], p[0][1], p[1][0], p[1][1], values.x[j].z, values.x[j].w);
    }
}

// Processes the blocks `from, from + step, …` below `until` of a row's table. `limits` count from position 0; no row
// sees beyond `end`.
DEVICE void walk(
    Seen& seen, const u32 (&q)[2][2 * STEPS], const bf16* cache, const u32* table, u32 kv_heads, u32 from, u32 until,
    u32 step, const int (&limits)[2], u32 end) {
#pragma unroll
    for (int j = 0; j < 2 * STEPS; j++) seen.o[j][0] = seen.o[j][1] = seen.o[j][2] = seen.o[j][3] = 0.0f;
    seen.most[0] = seen.most[1] = -infinity();
    seen.total[0] = seen.total[1] = 0.0f;
    if (from >= until) return;
    const float scale = LOG2E * rsqrtf((float)DIM);
    const u64 share = 2 * BLOCK * DIM, size = share * kv_heads;
    // Each lane holds the index of one of the next 32 blocks.
    const u32 count = (until - from + step - 1) / step;
    u32 known = table[from + smaller(lane(), count - 1) * step];
    const bf16* head = cache + blockIdx.y * share;
    const bf16* now = head + (u64)shuffle(known, 0) * size;
    Keys keys;
    load_keys(now, keys);
    for (u32 i = 0; i < count; i++) {
        const u32 first = (from + i * step) * BLOCK;
        Values values;
        load_values(now, values);
        if (first + BLOCK > end) clear_values(values, end - first);
        Keys next = keys;
        if (i + 1 < count) {
            if ((i + 1) % 32 == 0) known = table[from + smaller(i + 1 + lane(), count - 1) * step];
            now = head + (u64)shuffle(known, (i + 1) % 32) * size;
            load_keys(now, next);
        }
        const int here[2] = {limits[0] - (int)first, limits[1] - (int)first};
        look(seen, q, keys, values, here, scale);
        keys = next;
    }
}

// Sums the lanes' shares of a row's total, in each of its four lanes.
DEVICE float whole(float share) {
    share += shuffle_xor(share, 1);
    return share + shuffle_xor(share, 2);
}

// Maximum number of parts of a context; kernel/attention.rs has the same.
#define MAX_SPLITS 64
// Values of a part's sum, its highest score and total, and two that keep the next one aligned.
#define PART (DIM + 4)

DEVICE void add_scaled(float4& sum, float4 x, float scale) {
    sum.x += x.x * scale, sum.y += x.y * scale, sum.z += x.z * scale, sum.w += x.w * scale;
}

DEVICE void store_scaled(bf16* to, float4 x, float scale) {
    *(uint2*)to = make_uint2(pack(x.x * scale, x.y * scale), pack(x.z * scale, x.w * scale));
}

// Weights of the shares of sixteen rows, [row][share], and what they add up to.
struct Shares {
    float* weights;
    float* highs;
    float* totals;
};

// Writes a warp's sums to shared memory, [warp][row][dim], and their highest scores and totals, [warp][row][2].
DEVICE void share_sums(const Seen& seen, float* parts, float* sums) {
    const u32 g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 at = warp() * 16 + g + 8 * r;
        const float total = whole(seen.total[r]);
        if (t == 0) sums[2 * at] = seen.most[r], sums[2 * at + 1] = total;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            *(float2*)(parts + at * PART + 8 * j + 2 * t) = make_float2(seen.o[j][2 * r], seen.o[j][2 * r + 1]);
        }
    }
}

// Computes the weights of the warps' shares of a row, in one thread.
DEVICE void weigh_warps(const float* sums, const Shares& shares, u32 r) {
    float high = -infinity(), total = 0.0f;
#pragma unroll
    for (u32 w = 0; w < 4; w++) high = fmaxf(high, sums[2 * (w * 16 + r)]);
#pragma unroll
    for (u32 w = 0; w < 4; w++) {
        // A warp without a block has a maximum of -∞, so its weight exp2(-∞) is 0.
        const float weight = exp2f(sums[2 * (w * 16 + r)] - high);
        shares.weights[r * MAX_SPLITS + w] = weight;
        total += sums[2 * (w * 16 + r) + 1] * weight;
    }
    shares.highs[r] = high, shares.totals[r] = total;
}

// Computes the weights of a row's parts, in one warp: a lane has two parts.
DEVICE void weigh_parts(const float* ends, const Shares& shares, u32 r, u32 count) {
    float highest[2], share[2];
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        const u32 part = lane() + 32 * k;
        const float* place = ends + smaller(part, count - 1) * PART;
        highest[k] = part < count ? load_shared_by_blocks(place) : -infinity();
        share[k] = load_shared_by_blocks(place + 1);
    }
    const float high = warp_max(fmaxf(highest[0], highest[1]));
    float total = 0.0f;
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        const float weight = exp2f(highest[k] - high);
        shares.weights[r * MAX_SPLITS + lane() + 32 * k] = weight;
        total += share[k] * weight;
    }
    total = warp_sum(total);
    if (lane() == 0) shares.totals[r] = total;
}

// Returns true in the block that is the last of `count` to arrive, which then sees what the others wrote.
DEVICE bool arrives_last(u32* counter, u32* last, u32 count) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last[0] = atomicAdd(counter, 1u) + 1 == count;
        if (last[0]) *counter = 0;
    }
    __syncthreads();
    if (!last[0]) return false;
    __threadfence();
    return true;
}

// Adds up the parts of a context, always in the same order.
DEVICE void combine_parts(const float* places, const Shares& shares, bf16* to, u32 group, u32 splits, u32 count) {
    for (u32 r = warp(); r < group; r += blockDim.x / 32) weigh_parts(places + r * splits * PART + DIM, shares, r, count);
    __syncthreads();
    for (u32 i = threadIdx.x * 4; i < group * DIM; i += blockDim.x * 4) {
        const u32 r = i / DIM, at = i % DIM;
        const float* from = places + r * splits * PART + at;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (u32 part = 0; part < count; part++)
            add_scaled(sum, load_four_shared_by_blocks(from + part * PART), shares.weights[r * MAX_SPLITS + part]);
        store_scaled(to + i, sum, 1.0f / shares.totals[r]);
    }
}

// Decode attention: one row of the batch, one key/value head, one part of the context.
KERNEL(128, 2) attend_decode(
    const u32* first, const u32* context, const u32* tables, u32 table_stride, const bf16* qkv, u32 stride,
    const bf16* cache, float* workspace, u32* arrived, bf16* out, u32 heads) {
    after_previous();
    SHARED_ARRAY(float, parts, 4 * 16 * PART);
    SHARED_ARRAY(float, sums, 4 * 16 * 2);
    // First of the warps' shares of a row, then of all parts of the context.
    SHARED_ARRAY(float, weights, 16 * MAX_SPLITS);
    SHARED_ARRAY(float, highs, 16);
    SHARED_ARRAY(float, totals, 16);
    SHARED_ARRAY(u32, last, 1);
    const u32 row = blockIdx.z, kv_heads = gridDim.y, splits = gridDim.x, group = heads / kv_heads;
    const u32 length = context[row], token = first[row], head = blockIdx.y * group;
    if (length == 0) {
        if (blockIdx.x == 0 && token != NONE) {
            for (u32 i = threadIdx.x; i < group * DIM; i += blockDim.x) out[((u64)token * heads + head) * DIM + i] = 0;
        }
        return;
    }
    // Parts have at least 128 tokens: the number of parts depends on the row's length alone.
    const u32 blocks = (length + BLOCK - 1) / BLOCK;
    const u32 most = smaller(splits, (blocks + 7) / 8);
    const u32 each = (blocks + most - 1) / most;
    const u32 count = (blocks + each - 1) / each;
    if (blockIdx.x >= count) return;

    u32 q[2][2 * STEPS];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Rows beyond the group repeat its last row; their results are not used.
        load_dims(qkv + (u64)token * stride + (head + smaller(lane() / 4 + 8 * r, group - 1)) * DIM, q[r]);
    }
    const int limits[2] = {(int)length, (int)length};
    Seen seen;
    const u32 begin = blockIdx.x * each, until = smaller(begin + each, blocks);
    walk(seen, q, cache, tables + (u64)row * table_stride, kv_heads, begin + warp(), until, blockDim.x / 32, limits, length);
    const Shares shares = {weights, highs, totals};
    share_sums(seen, parts, sums);
    __syncthreads();
    if (threadIdx.x < 16) weigh_warps(sums, shares, threadIdx.x);
    __syncthreads();
    bf16* to = out + ((u64)token * heads + head) * DIM;
    float* places = workspace + ((u64)row * heads + head) * splits * PART;
    for (u32 i = threadIdx.x * 4; i < group * DIM; i += blockDim.x * 4) {
        const u32 r = i / DIM, at = i % DIM;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 w = 0; w < 4; w++)
            add_scaled(sum, *(const float4*)(parts + (w * 16 + r) * PART + at), weights[r * MAX_SPLITS + w]);
        if (count == 1) {
            store_scaled(to + i, sum, 1.0f / totals[r]);
        } else {
            float* place = places + (r * splits + blockIdx.x) * PART;
            *(float4*)(place + at) = sum;
            if (at == 0) place[DIM] = highs[r], place[DIM + 1] = totals[r];
        }
    }
    if (count > 1 && arrives_last(arrived + row * kv_heads + blockIdx.y, last, count))
        combine_parts(places, shares, to, group, splits, count);
}
