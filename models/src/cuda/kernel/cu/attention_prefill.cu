// Prefill attention: tiles of 128 packed query rows, as in attention.cu, with keys and values in shared memory (the
// scheme of Dao 2023, arXiv:2307.08691).
//
// Each of the four warps has 32 rows, as two operands of sixteen, so that what it reads from shared memory serves two
// multiplications. Keys and values arrive in spans of 32 tokens by asynchronous copies, two spans ahead. Values keep the
// order of the cache, so that lanes read neighboring units of sixteen bytes. Keys of neighboring tokens start in
// different halves of the banks: by exchanging the halves of each 128 bytes in odd tokens, or by the pitch.
//
// Weights are 2^(score - base), with scaled scores and a base per row that follows the row's maximum only when that
// exceeds it by RISE: rescaling is rare, and without it lanes need not exchange their maxima.
//
// Continues attention.cu in the same translation unit.

#define TILE 128  // also the height of the tiles of attention_backward.cu
#define SPAN 32
#define SPANS 3
#define RISE 8.0f  // in the exponent: weights are at most 2^8
#define EXCHANGED (DIM % 64 == 0)
// A pitch of an odd number of 64 bytes separates neighboring tokens.
#define KEY_PITCH (EXCHANGED ? DIM : DIM / 32 * 32 + 32 * (DIM % 32 != 0))
#define SPAN_LEN (SPAN * (KEY_PITCH + DIM))
#define OUT_PITCH (DIM + 8)
static_assert(KEY_PITCH / 32 % 2 == 1 || EXCHANGED, "neighboring tokens must differ by an odd number of 64 bytes");
static_assert(2 * TILE * OUT_PITCH + 4 * TILE <= 2 * SPANS * SPAN_LEN, "the output takes the place of the spans");

// Running softmax state of a warp for rows 16 m + 8 r + g.
struct Rows {
    float o[2][2 * STEPS][4];
    float offset[2][2];  // -base, at first infinite
    float total[2][2];   // this lane's share
};

// Causal mask of a tile. The product of a token's distance from the chunk's start and the size of a group is compared
// with the packed row, so that nothing is divided or kept per row.
struct Mask {
    int start;  // position of the chunk's first token
    int group;
    int first;  // packed row at which the warp begins
    int last;   // packed row at which the chunk ends
    int end;    // number of tokens that some row of the tile sees

    DEVICE_METHOD bool sees(int row, int token) const { return (token - start) * group <= row; }
    // Packed row of this lane; rows beyond the chunk repeat its last one.
    DEVICE_METHOD int row(int m, int r) const { return (int)smaller(first + 16 * m + 8 * r + lane() / 4, last); }
};

// Copies keys and values of spans into shared memory: two warps per block of the cache. 32 bits suffice for indices, of
// which each stands for many bytes of the GPU's memory, and save registers.
struct Source {
    const u32* tables;
    u32 table;   // index of the row's first entry
    u32 blocks;  // number of entries that are read
    const bf16* cache;

    // Returns the index of this warp's block of span i.
    DEVICE_METHOD u32 find(u32 i) const { return tables[table + smaller(2 * i + warp() / 2, blocks - 1)]; }

    // Starts the copy of span i.
    DEVICE_METHOD void copy(u32 i, u32 block, bf16* span) const {
        const u32 turn = warp() / 2, thread = threadIdx.x % 64;
        // Tokens of a missing block are masked.
        if (2 * i + turn >= blocks) return;
        const bf16* from = cache + (u64)(block * gridDim.y + blockIdx.y) * (2 * BLOCK * DIM);
        // If halves are exchanged, 64 units are an even number of tokens: a thread's keys are all odd or all even.
        const u32 exchange = EXCHANGED ? thread / (DIM / 8) % 2 * 32 : 0;
        bf16* keys = span + turn * BLOCK * KEY_PITCH + (thread * 8 ^ exchange);
        bf16* values = span + SPAN * KEY_PITCH + turn * BLOCK * DIM + thread * 8 - BLOCK * DIM;
#pragma unroll
        for (u32 j = 0; j < DIM / 16; j++) {
            const u32 unit = j * 64 + thread;
            const u32 padding = KEY_PITCH > DIM ? unit / (DIM / 8) * (KEY_PITCH - DIM) : 0;
            copy16(j * 512 + (unit < 2 * DIM ? keys + padding : values), from + unit * 8);
        }
    }
};

// Scores of sixteen tokens of a span, from `first` on.
DEVICE void score(float (&s)[2][2][4], const u32 (&q)[2][2][2 * STEPS], const bf16* span, int first) {
    const int g = lane() / 4, t = lane() % 4, shift = EXCHANGED ? g % 2 * 4 : 0;
#pragma unroll
    for (int c = 0; c < (STEPS + 1) / 2; c++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const bf16* key = span + (first + 8 * n + g) * KEY_PITCH + 32 * c;
            if (c < WIDE) {
                const uint4 x = load16((const uint4*)key + t + (c % 2 ? -shift : shift));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const u32(&a)[2 * STEPS] = q[m][0], (&b)[2 * STEPS] = q[m][1];
                    mma(s[m][n], a[4 * c], b[4 * c], a[4 * c + 1], b[4 * c + 1], x.x, x.y);
                    mma(s[m][n], a[4 * c + 2], b[4 * c + 2], a[4 * c + 3], b[4 * c + 3], x.z, x.w);
                }
            } else {
                const uint2 x = load8(key + 4 * t);
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const u32(&a)[2 * STEPS] = q[m][0], (&b)[2 * STEPS] = q[m][1];
                    mma(s[m][n], a[4 * c], b[4 * c], a[4 * c + 1], b[4 * c + 1], x.x, x.y);
                }
            }
        }
    }
}

// Hides the tokens that a row does not see; the scores begin at token `from`.
DEVICE void hide(float (&s)[2][4], int r, const Mask& mask, int row, int from) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int token = from + 8 * n + 2 * (int)(lane() % 4) + i;
            if (!mask.sees(row, token)) s[n][2 * r + i] = -infinity();
        }
    }
}

// Returns this lane's largest score of a row.
DEVICE float largest(const float (&s)[2][4], int r) {
    return fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
}

// Raises the base of rows whose maximum exceeds it by more than RISE. Other rows keep theirs, so that a row's result does
// not depend on the rows beside it.
DEVICE void raise(Rows& rows, const float (&s)[2][2][4], float scale) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = largest(s[m], r);
            most = fmaxf(most, shuffle_xor(most, 1));
            most = fmaxf(most, shuffle_xor(most, 2));
            const float old = rows.offset[m][r];
            const float offset = most * scale + old > RISE ? -most * scale : old;
            // At first, 2^(finite - infinity) = 0.
            const float shrink = offset == old ? 1.0f : exp2_flushed(offset - old);
            rows.offset[m][r] = offset;
            rows.total[m][r] *= shrink;
#pragma unroll
            for (int j = 0; j < 2 * STEPS; j++) {
                rows.o[m][j][2 * r] *= shrink;
                rows.o[m][j][2 * r + 1] *= shrink;
            }
        }
    }
}

// Adds one span, whose first token is `from`, to the running softmax; `scale` is log2(e) / √dim.
template <bool HIDES>
DEVICE void add_span(
    Rows& rows, const u32 (&q)[2][2][2 * STEPS], const bf16* span, const Mask& mask, int from, float scale) {
#pragma unroll(HIDES ? 1 : SPAN / 16)
    for (int first = 0; first < SPAN; first += 16) {
        float s[2][2][4] = {};
        score(s, q, span, first);
        bool rises = false;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (HIDES) hide(s[m], r, mask, mask.row(m, r), from + first);
                rises |= largest(s[m], r) * scale + rows.offset[m][r] > RISE;
            }
        }
        if (votes(rises)) raise(rows, s, scale);
        u32 p[2][2][2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    const float a = exp2_flushed(s[m][n][2 * r] * scale + rows.offset[m][r]);
                    const float b = exp2_flushed(s[m][n][2 * r + 1] * scale + rows.offset[m][r]);
                    rows.total[m][r] += a + b;
                    p[m][n][r] = pack(a, b);
                }
            }
        }
        Values values;
        load_values(span + SPAN * KEY_PITCH + first * DIM - BLOCK * DIM, values);
        if (HIDES) {
            const int left = mask.end - from - first;
            clear_values(values, left > 0 ? left : 0);
        }
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const u32(&a)[2][2] = p[m];
                mma(rows.o[m][2 * j], a[0][0], a[0][1], a[1][0], a[1][1], values.x[j].x, values.x[j].y);
                mma(rows.o[m][2 * j + 1], a[0][0], a[0][1], a[1][0], a[1][1], values.x[j].z, values.x[j].w);
            }
        }
    }
}

// Place of a tile's results: packed row `at` is a head of the token `token + at / group`.
struct Target {
    u32 base;    // packed row at which the tile begins
    u32 packed;  // number of packed rows of the chunk
    u32 token;   // the chunk's first token
    u32 group;
    u32 head;  // first head of the group
    u32 heads;
};

// Writes outputs, through shared memory for stores of whole rows, and the logarithms of the rows' sums if `lse` is given.
DEVICE void write_out(const Rows& rows, bf16* room, const Target& target, bf16* out, float* lse) {
    const u32 g = lane() / 4, t = lane() % 4;
    float* logs = (float*)(room + TILE * OUT_PITCH);
    // Every warp is done with the last span.
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 at = warp() * 32 + 16 * m + 8 * r + g;
            const float total = whole(rows.total[m][r]), inverse = 1.0f / total;
            if (t == 0) logs[at] = log2f(total) - rows.offset[m][r];
            bf16* to = room + at * OUT_PITCH + 2 * t;
#pragma unroll
            for (int j = 0; j < 2 * STEPS; j++) {
                *(u32*)(to + 8 * j) = pack(rows.o[m][j][2 * r] * inverse, rows.o[m][j][2 * r + 1] * inverse);
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < TILE * DIM / 8; i += blockDim.x) {
        const u32 r = i / (DIM / 8), at = target.base + r, unit = i % (DIM / 8);
        if (at >= target.packed) return;
        const u64 place = (u64)(target.token + at / target.group) * target.heads + target.head + at % target.group;
        store16(out + place * DIM + unit * 8, load16(room + r * OUT_PITCH + unit * 8));
        if (lse && unit == 0) lse[place] = logs[r];
    }
}

// Prefill attention: one tile of a row's chunk and one key/value head.
KERNEL(128, DIM > 64 ? 2 : 3) attend_prefill(
    const u32* positions, const u32* first, const u32* context, const u32* tables, u32 table_stride, const u32* tiles,
    const bf16* qkv, u32 stride, const bf16* cache, bf16* out, float* lse, u32 heads) {
    after_previous();
    SHARED_ARRAY(bf16, spans, SPANS * SPAN_LEN);
    const u32 row = tiles[2 * blockIdx.x];
    if (row == NONE) return;
    const u32 kv_heads = gridDim.y, group = heads / kv_heads, head = blockIdx.y * group;
    const u32 token = first[row], start = positions[token];
    const u32 packed = (context[row] - start) * group, base = tiles[2 * blockIdx.x + 1] * TILE;
    if (base >= packed) return;
    const u32 end = start + smaller(base + TILE - 1, packed - 1) / group + 1;
    Mask mask;
    mask.start = (int)start;
    mask.group = (int)group;
    mask.first = (int)(base + warp() * 32);
    mask.last = (int)packed - 1;
    mask.end = (int)end;
    u32 q[2][2][2 * STEPS];
    Rows rows;
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 at = (u32)mask.row(m, r);
            load_dims(qkv + (u64)(token + at / group) * stride + (head + at % group) * DIM, q[m][r]);
            rows.offset[m][r] = infinity();
            rows.total[m][r] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) rows.o[m][j][0] = rows.o[m][j][1] = rows.o[m][j][2] = rows.o[m][j][3] = 0.0f;
    }
    const float scale = LOG2E * rsqrtf((float)DIM);
    const Source source = {tables, row * table_stride, (end + BLOCK - 1) / BLOCK, cache};
    const u32 count = (end + SPAN - 1) / SPAN;
    for (u32 i = 0; i < SPANS - 1; i++) {
        if (i < count) source.copy(i, source.find(i), spans + i * SPAN_LEN);
        close_copies();
    }
    for (u32 i = 0; i < count; i++) {
        const u32 next = i + SPANS - 1;
        const u32 block = source.find(next);
        // All groups but the last one, which is span i + 1.
        await_copies<SPANS - 2>();
        // Also: every warp is done with the previous span, whose place the next copy takes.
        __syncthreads();
        if (next < count) source.copy(next, block, spans + next % SPANS * SPAN_LEN);
        close_copies();
        const int from = (int)(i * SPAN);
        const bf16* span = spans + i % SPANS * SPAN_LEN;
        if (mask.first > mask.last || !mask.sees(mask.first + 31, from)) continue;
        if (mask.sees(mask.first, from + SPAN - 1)) {
            add_span<false>(rows, q, span, mask, from, scale);
        } else {
            add_span<true>(rows, q, span, mask, from, scale);
        }
    }
    const Target target = {base, packed, token, group, head, heads};
    write_out(rows, spans, target, out, lse);
}
