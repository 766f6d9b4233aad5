// Products of few rows with a weight matrix, y = x · Wᵀ, bound by the time of reading W from memory.
//
// A block computes sixteen columns of y for up to sixteen rows of x. Eight warps share the terms of the sums: step s
// belongs to warp s % 8, so that neighboring warps read neighboring bytes of the same rows of W. The left operand of the
// tensor cores is sixteen rows of W, the right one eight rows of x. Both are read sixteen bytes at a time in the same
// permuted order of summation, as in lora.cu. The order depends on the number of terms alone: a row of y has the same
// bits whatever the other rows are, however many there are, and whatever is done with the sums.

// Number of warps that share the terms, and of steps whose weights a warp reads before it uses them.
#define SKINNY_WARPS 8
#define SKINNY_AHEAD 4
// Bytes of a block's weights that are prefetched before the sums begin, in lines per thread.
#define SKINNY_LINES 8
// Values of `target`.
#define TO_HALF 0
#define TO_SINGLE 1

// Weights in bf16: eight values per lane in a step, and 64 in a line of memory.
struct HalfWeights {
    static const u32 VALUES = 8, LINE = 64;
    const bf16* at;

    DEVICE_METHOD const void* place(u64 from) const { return at + from; }
    DEVICE_METHOD float scale(u32) const { return 1.0f; }
    static DEVICE_METHOD void unpack(uint4 from, u32* pairs) {
        pairs[0] = from.x, pairs[1] = from.y, pairs[2] = from.z, pairs[3] = from.w;
    }
};

// Weights in e4m3 with one scale per row, a power of two: sixteen values per lane in a step, and 128 in a line of memory.
struct Fp8Weights {
    static const u32 VALUES = 16, LINE = 128;
    const unsigned char* at;
    const float* scales;

    DEVICE_METHOD const void* place(u64 from) const { return at + from; }
    DEVICE_METHOD float scale(u32 row) const { return scales[row]; }
    static DEVICE_METHOD void unpack(uint4 from, u32* pairs) {
        unpack_fp8(from.x, pairs), unpack_fp8(from.y, pairs + 2), unpack_fp8(from.z, pairs + 4), unpack_fp8(from.w, pairs + 6);
    }
};

// Prefetches the beginning of a block's weights. They are no launch's output, so the reads overlap the launch before.
template <typename Weights, int PARTS>
DEVICE void skinny_prefetch(Weights weights, u32 column, u32 inner, u32 columns) {
    const u32 lines = (inner + Weights::LINE - 1) / Weights::LINE, all = PARTS * 16 * lines;
#pragma unroll
    for (int n = 0; n < SKINNY_LINES; n++) {
        const u32 l = n * blockDim.x + threadIdx.x;
        // The first lines of all rows come first, as they are used.
        const u32 row = l % (PARTS * 16), line = l / (PARTS * 16), at = column + row % 16;
        if (l < all && at < columns) prefetch(weights.place(((u64)(row / 16) * columns + at) * inner + line * Weights::LINE));
    }
}

// Adds a warp's share of the terms to sums of sixteen columns from `column` on in each part of the weights, and of
// TILES · 8 rows. Rows and columns beyond the last repeat it, and their sums are not used.
template <typename Weights, int PARTS, int TILES>
DEVICE void skinny_sums(
    float (&c)[PARTS][TILES][4], const bf16* x, Weights weights, u32 column, u32 rows, u32 inner, u32 columns) {
    const u32 VALUES = Weights::VALUES, AHEAD = SKINNY_AHEAD / PARTS;
    const u32 g = lane() / 4, t = lane() % 4;
    u64 left[PARTS][2];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        left[p][0] = ((u64)p * columns + smaller(column + g, columns - 1)) * inner;
        left[p][1] = ((u64)p * columns + smaller(column + g + 8, columns - 1)) * inner;
    }
    for (u32 step = warp(); step * 4 * VALUES < inner; step += SKINNY_WARPS * AHEAD) {
        uint4 w[AHEAD][PARTS][2];
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const u32 i = ((step + s * SKINNY_WARPS) * 4 + t) * VALUES;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
#pragma unroll
                for (int h = 0; h < 2; h++)
                    w[s][p][h] = i < inner ? load_once(weights.place(left[p][h] + i)) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const u32 i = ((step + s * SKINNY_WARPS) * 4 + t) * VALUES;
            u32 y[TILES][VALUES / 2];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const bf16* row = x + (u64)smaller(8 * n + g, rows - 1) * inner + i;
#pragma unroll
                for (int e = 0; e < VALUES / 8; e++) {
                    const uint4 eight = i < inner ? load16(row + 8 * e) : make_uint4(0, 0, 0, 0);
                    y[n][4 * e] = eight.x, y[n][4 * e + 1] = eight.y, y[n][4 * e + 2] = eight.z, y[n][4 * e + 3] = eight.w;
                }
            }
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                u32 upper[VALUES / 2], lower[VALUES / 2];
                Weights::unpack(w[s][p][0], upper);
                Weights::unpack(w[s][p][1], lower);
#pragma unroll
                for (int n = 0; n < TILES; n++) {
#pragma unroll
                    for (int e = 0; e < VALUES / 2; e += 2)
                        mma(c[p][n], upper[e], lower[e], upper[e + 1], lower[e + 1], y[n][e], y[n][e + 1]);
                }
            }
        }
    }
}

// Writes the sums of all warps to shared memory: [warp][part][row][column], sixteen rows and columns.
template <typename Weights, int PARTS, int TILES>
DEVICE void skinny_share(
    float* room, const bf16* x, Weights weights, u32 column, u32 rows, u32 inner, u32 columns) {
    float c[PARTS][TILES][4] = {};
    skinny_sums<Weights, PARTS, TILES>(c, x, weights, column, rows, inner, columns);
    const u32 g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                room[(warp() * PARTS + p) * 256 + (8 * n + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c[p][n][i];
        }
    }
}

// Computes a block's sixteen columns and rows; afterwards each thread returns the sum at row threadIdx.x / 16 and column
// threadIdx.x % 16 of each part.
template <typename Weights, int PARTS>
DEVICE void skinny_block(
    float (&sums)[PARTS], float* room, const bf16* x, Weights weights, u32 column, u32 rows, u32 inner, u32 columns) {
    skinny_prefetch<Weights, PARTS>(weights, column, inner, columns);
    after_previous();
    if (rows <= 8) skinny_share<Weights, PARTS, 1>(room, x, weights, column, rows, inner, columns);
    else skinny_share<Weights, PARTS, 2>(room, x, weights, column, rows, inner, columns);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        sums[p] = 0.0f;
        // Rows from the eighth on were not written for fewer rows.
        if (threadIdx.x / 16 >= rows) continue;
        for (u32 w = 0; w < SKINNY_WARPS; w++) sums[p] += room[(w * PARTS + p) * 256 + threadIdx.x];
    }
}

// y = x · Wᵀ, or added to y in f32 (any other `target`).
template <typename Weights>
DEVICE void skinny_product(
    float* room, const bf16* x, Weights weights, void* y, u32 target, u32 rows, u32 inner, u32 columns) {
    const u32 first = blockIdx.x * 16, column = blockIdx.y * 16;
    float sums[1];
    skinny_block<Weights, 1>(sums, room, x + (u64)first * inner, weights, column, smaller(rows - first, 16), inner, columns);
    const u32 row = first + threadIdx.x / 16, at = column + threadIdx.x % 16;
    if (row >= rows || at >= columns) return;
    const u64 place = (u64)row * columns + at;
    const float sum = sums[0] * weights.scale(at);
    if (target == TO_HALF) ((bf16*)y)[place] = narrow(sum);
    else if (target == TO_SINGLE) ((float*)y)[place] = sum;
    else ((float*)y)[place] += sum;
}

// y = silu(x · Gᵀ) · (x · Uᵀ) for G above U in one matrix, with both products rounded to bf16 as `silu_mul` gets them.
template <typename Weights>
DEVICE void skinny_gated(
    float* room, const bf16* x, Weights weights, bf16* y, u32 rows, u32 inner, u32 columns) {
    const u32 first = blockIdx.x * 16, column = blockIdx.y * 16;
    float sums[2];
    skinny_block<Weights, 2>(sums, room, x + (u64)first * inner, weights, column, smaller(rows - first, 16), inner, columns);
    const u32 row = first + threadIdx.x / 16, at = column + threadIdx.x % 16;
    if (row >= rows || at >= columns) return;
    const float gate = sums[0] * weights.scale(at), up = sums[1] * weights.scale(columns + at);
    y[(u64)row * columns + at] = narrow(silu_times(widen(narrow(gate)), widen(narrow(up))));
}

KERNEL(256, 2) skinny(
    const bf16* x, const bf16* weights, void* y, u32 target, u32 rows, u32 inner, u32 columns) {
    SHARED_ARRAY(float, room, SKINNY_WARPS * 256);
    skinny_product(room, x, HalfWeights{weights}, y, target, rows, inner, columns);
}

KERNEL(256, 2) skinny_silu(const bf16* x, const bf16* weights, bf16* y, u32 rows, u32 inner, u32 columns) {
    SHARED_ARRAY(float, room, SKINNY_WARPS * 512);
    skinny_gated(room, x, HalfWeights{weights}, y, rows, inner, columns);
}

KERNEL(256, 2) skinny_fp8(
    const bf16* x, const unsigned char* weights, const float* scales, void* y, u32 target, u32 rows, u32 inner,
    u32 columns) {
    SHARED_ARRAY(float, room, SKINNY_WARPS * 256);
    skinny_product(room, x, Fp8Weights{weights, scales}, y, target, rows, inner, columns);
}

KERNEL(256, 2) skinny_silu_fp8(
    const bf16* x, const unsigned char* weights, const float* scales, bf16* y, u32 rows, u32 inner, u32 columns) {
    SHARED_ARRAY(float, room, SKINNY_WARPS * 512);
    skinny_gated(room, x, Fp8Weights{weights, scales}, y, rows, inner, columns);
}
