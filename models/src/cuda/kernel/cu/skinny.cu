// Products of few rows with a weight matrix, y = x · Wᵀ, bound by the time of reading W from memory.
//
// A block computes sixteen columns of y for up to sixteen rows of x. Sixteen warps share the terms of the sums: step s
// belongs to warp s % 16, so that neighboring warps read neighboring bytes of the same rows of W. The left operand of the
// tensor cores is sixteen rows of W, the right one eight rows of x. Both are read sixteen bytes at a time in the same
// permuted order of summation, as in lora.cu. The order depends on the number of terms alone: a row of y has the same
// bits whatever the other rows are, however many there are, and whatever is done with the sums.
//
// Each lane copies the weights that it will use into shared memory, several units of sixteen bytes ahead, in a ring of
// its own: many reads are under way without a register for each, the first ones even before the launch before ends,
// and no lane waits for another one.

// Number of warps that share the terms.
#define SKINNY_WARPS 16
#define SKINNY_THREADS (32 * SKINNY_WARPS)
// Number of units in a lane's ring; the host reserves the memory.
#define SKINNY_RING 8
// Number of units whose factors are read at a time, with sixteen rows of x; with eight rows, twice as many.
#define SKINNY_TURN 4
// The sums take the place of the weights: for each warp, two parts of sixteen rows and columns.
static_assert(SKINNY_THREADS * SKINNY_RING * 16 == 65536 && SKINNY_WARPS * 2 * 256 * 4 <= 65536, "the host reserves 65,536 bytes");
// Values of `target`.
#define TO_HALF 0
#define TO_SINGLE 1

// Weights in bf16: eight values per lane in a step.
struct HalfWeights {
    static const u32 VALUES = 8;
    const bf16* at;

    DEVICE_METHOD const void* place(u64 from) const { return at + from; }
    DEVICE_METHOD float scale(u32) const { return 1.0f; }
    static DEVICE_METHOD void unpack(uint4 from, u32* pairs) {
        pairs[0] = from.x, pairs[1] = from.y, pairs[2] = from.z, pairs[3] = from.w;
    }
};

// Weights in e4m3 with one scale per row, a power of two: sixteen values per lane in a step.
struct Fp8Weights {
    static const u32 VALUES = 16;
    const unsigned char* at;
    const float* scales;

    DEVICE_METHOD const void* place(u64 from) const { return at + from; }
    DEVICE_METHOD float scale(u32 row) const { return scales[row]; }
    static DEVICE_METHOD void unpack(uint4 from, u32* pairs) {
        unpack_fp8(from.x, pairs), unpack_fp8(from.y, pairs + 2), unpack_fp8(from.z, pairs + 4), unpack_fp8(from.w, pairs + 6);
    }
};

// The weights of a lane: two rows in each part, and its places in the steps of its warp.
template <typename Weights, int PARTS>
struct SkinnyLane {
    static constexpr u32 STEPS_AHEAD = SKINNY_RING / (2 * PARTS);
    Weights weights;
    u64 left[PARTS][2];
    u32 inner;
    uint4* ring;

    DEVICE_METHOD SkinnyLane(Weights weights, unsigned char* room, u32 column, u32 inner, u32 columns)
        : weights(weights), inner(inner), ring((uint4*)room + threadIdx.x) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                left[p][h] = ((u64)p * columns + smaller(column + lane() / 4 + 8 * h, columns - 1)) * inner;
        }
    }

    // First of the terms of this lane in step n of its warp.
    static DEVICE_METHOD u32 term(u32 n) { return ((warp() + n * SKINNY_WARPS) * 4 + lane() % 4) * Weights::VALUES; }

    DEVICE_METHOD uint4* place(u32 n, int p, int h) const {
        return ring + ((n % STEPS_AHEAD * PARTS + p) * 2 + h) * SKINNY_THREADS;
    }

    // Starts to copy the weights of a step.
    DEVICE_METHOD void copy(u32 n) const {
        const u32 i = term(n);
        if (i < inner) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
#pragma unroll
                for (int h = 0; h < 2; h++) copy16(place(n, p, h), weights.place(left[p][h] + i));
            }
        }
        close_copies();
    }

    // Weights of a step that was copied; zeros beyond the last term.
    DEVICE_METHOD uint4 read(u32 n, int p, int h) const {
        return term(n) < inner ? load16(place(n, p, h)) : make_uint4(0, 0, 0, 0);
    }
};

// Eight values of a row of x per pair of registers; zeros beyond the last term.
template <int VALUES>
DEVICE void skinny_factors(u32 (&y)[VALUES / 2], const bf16* row, u32 i, u32 inner) {
#pragma unroll
    for (int e = 0; e < VALUES / 8; e++) {
        const uint4 eight = i < inner ? load16(row + i + 8 * e) : make_uint4(0, 0, 0, 0);
        y[4 * e] = eight.x, y[4 * e + 1] = eight.y, y[4 * e + 2] = eight.z, y[4 * e + 3] = eight.w;
    }
}

// Adds a warp's share of the terms to sums of sixteen columns from `column` on in each part of the weights, and of
// TILES · 8 rows. Rows and columns beyond the last repeat it, and their sums are not used.
template <typename Weights, int PARTS, int TILES>
DEVICE void skinny_sums(
    float (&c)[PARTS][TILES][4], const SkinnyLane<Weights, PARTS>& mine, const bf16* x, u32 rows, u32 inner) {
    constexpr u32 VALUES = Weights::VALUES, STEP = 2 * PARTS * VALUES / 8;
    constexpr u32 UNITS = TILES == 1 ? 2 * SKINNY_TURN : SKINNY_TURN, TURN = UNITS > STEP ? UNITS / STEP : 1;
    constexpr u32 AHEAD = SkinnyLane<Weights, PARTS>::STEPS_AHEAD;
    for (u32 n = 0; (warp() + n * SKINNY_WARPS) * 4 * VALUES < inner; n += TURN) {
        u32 y[TURN][TILES][VALUES / 2];
#pragma unroll
        for (int s = 0; s < TURN; s++) {
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                const bf16* row = x + (u64)smaller(8 * r + lane() / 4, rows - 1) * inner;
                skinny_factors<VALUES>(y[s][r], row, mine.term(n + s), inner);
            }
        }
#pragma unroll
        for (int s = 0; s < TURN; s++) {
            await_copies<AHEAD - 1>();
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                u32 upper[VALUES / 2], lower[VALUES / 2];
                Weights::unpack(mine.read(n + s, p, 0), upper);
                Weights::unpack(mine.read(n + s, p, 1), lower);
#pragma unroll
                for (int r = 0; r < TILES; r++) {
#pragma unroll
                    for (int e = 0; e < VALUES / 2; e += 2)
                        mma(c[p][r], upper[e], lower[e], upper[e + 1], lower[e + 1], y[s][r][e], y[s][r][e + 1]);
                }
            }
            mine.copy(n + s + AHEAD);
        }
    }
}

// Writes the sums of all warps to shared memory: [warp][part][row][column], sixteen rows and columns.
template <typename Weights, int PARTS, int TILES>
DEVICE void skinny_share(
    float* room, const SkinnyLane<Weights, PARTS>& mine, const bf16* x, u32 rows, u32 inner) {
    float c[PARTS][TILES][4] = {};
    skinny_sums<Weights, PARTS, TILES>(c, mine, x, rows, inner);
    const u32 g = lane() / 4, t = lane() % 4;
    // The sums take the place of the weights.
    await_copies<0>();
    __syncthreads();
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

// Computes a block's sixteen columns and rows; afterwards each of the first 256 threads returns the sum at row
// threadIdx.x / 16 and column threadIdx.x % 16 of each part.
template <typename Weights, int PARTS>
DEVICE void skinny_block(
    float (&sums)[PARTS], unsigned char* room, const bf16* x, Weights weights, u32 column, u32 rows, u32 inner, u32 columns) {
    const SkinnyLane<Weights, PARTS> mine(weights, room, column, inner, columns);
    // Weights are no launch's output.
    for (u32 n = 0; n < mine.STEPS_AHEAD; n++) mine.copy(n);
    after_previous();
    float* shares = (float*)room;
    if (rows <= 8) skinny_share<Weights, PARTS, 1>(shares, mine, x, rows, inner);
    else skinny_share<Weights, PARTS, 2>(shares, mine, x, rows, inner);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        sums[p] = 0.0f;
        // Rows from the eighth on were not written for fewer rows.
        if (threadIdx.x / 16 >= rows) continue;
        for (u32 w = 0; w < SKINNY_WARPS; w++) sums[p] += shares[(w * PARTS + p) * 256 + threadIdx.x];
    }
}

// y = x · Wᵀ, or added to y in f32 (any other `target`).
template <typename Weights>
DEVICE void skinny_product(
    unsigned char* room, const bf16* x, Weights weights, void* y, u32 target, u32 rows, u32 inner, u32 columns) {
    const u32 first = blockIdx.x * 16, column = blockIdx.y * 16;
    float sums[1];
    skinny_block<Weights, 1>(sums, room, x + (u64)first * inner, weights, column, smaller(rows - first, 16), inner, columns);
    const u32 row = first + threadIdx.x / 16, at = column + threadIdx.x % 16;
    if (threadIdx.x >= 256 || row >= rows || at >= columns) return;
    const u64 place = (u64)row * columns + at;
    const float sum = sums[0] * weights.scale(at);
    if (target == TO_HALF) ((bf16*)y)[place] = narrow(sum);
    else if (target == TO_SINGLE) ((float*)y)[place] = sum;
    else ((float*)y)[place] += sum;
}

// y = silu(x · Gᵀ) · (x · Uᵀ) for G above U in one matrix, with both products rounded to bf16 as `silu_mul` gets them.
template <typename Weights>
DEVICE void skinny_gated(
    unsigned char* room, const bf16* x, Weights weights, bf16* y, u32 rows, u32 inner, u32 columns) {
    const u32 first = blockIdx.x * 16, column = blockIdx.y * 16;
    float sums[2];
    skinny_block<Weights, 2>(sums, room, x + (u64)first * inner, weights, column, smaller(rows - first, 16), inner, columns);
    const u32 row = first + threadIdx.x / 16, at = column + threadIdx.x % 16;
    if (threadIdx.x >= 256 || row >= rows || at >= columns) return;
    const float gate = sums[0] * weights.scale(at), up = sums[1] * weights.scale(columns + at);
    y[(u64)row * columns + at] = narrow(silu_times(widen(narrow(gate)), widen(narrow(up))));
}

KERNEL(SKINNY_THREADS, 2) skinny(
    const bf16* x, const bf16* weights, void* y, u32 target, u32 rows, u32 inner, u32 columns) {
    SHARED_BYTES(room);
    skinny_product(room, x, HalfWeights{weights}, y, target, rows, inner, columns);
}

KERNEL(SKINNY_THREADS, 2) skinny_silu(const bf16* x, const bf16* weights, bf16* y, u32 rows, u32 inner, u32 columns) {
    SHARED_BYTES(room);
    skinny_gated(room, x, HalfWeights{weights}, y, rows, inner, columns);
}

KERNEL(SKINNY_THREADS, 2) skinny_fp8(
    const bf16* x, const unsigned char* weights, const float* scales, void* y, u32 target, u32 rows, u32 inner,
    u32 columns) {
    SHARED_BYTES(room);
    skinny_product(room, x, Fp8Weights{weights, scales}, y, target, rows, inner, columns);
}

KERNEL(SKINNY_THREADS, 2) skinny_silu_fp8(
    const bf16* x, const unsigned char* weights, const float* scales, bf16* y, u32 rows, u32 inner, u32 columns) {
    SHARED_BYTES(room);
    skinny_gated(room, x, Fp8Weights{weights, scales}, y, rows, inner, columns);
}
