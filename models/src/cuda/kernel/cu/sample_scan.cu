// Penalties, biases, and the maximum and sum of each piece of the vocabulary.

// Highest value of a block with the lowest index that has it, as rank and inverted index.
DEVICE u64 block_best(u64 best, double* room) {
    u64* keys = (u64*)room;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        const u64 other = shuffle_xor(best, mask);
        best = other > best ? other : best;
    }
    if (lane() == 0) keys[warp()] = best;
    __syncthreads();
    best = keys[lane() % SAMPLE_WARPS];
#pragma unroll
    for (int mask = SAMPLE_WARPS / 2; mask > 0; mask /= 2) {
        const u64 other = shuffle_xor(best, mask);
        best = other > best ? other : best;
    }
    __syncthreads();
    return best;
}

// +0 and -0 are equal, so that the lower id wins.
DEVICE u64 candidate(float x, u32 id) { return (u64)rank_of(x + 0.0f) << 32 | (u32)~id; }

// Penalties and bias in the order of the CPU sampler. The intrinsics keep the compiler from fusing a product and a sum,
// which would round differently.
DEVICE float adjusted(float x, const Adjustment& token, const SampleRow& row) {
    if (token.count > 0) {
        x = x > 0.0f ? __fdiv_rn(x, row.repetition) : __fmul_rn(x, row.repetition);
        x = __fsub_rn(x, __fadd_rn(__fmul_rn(row.frequency, (float)token.count), row.presence));
    }
    return __fadd_rn(x, token.bias);
}

KERNEL(SAMPLE_THREADS, 1)
sample_scan(float* all, const SampleRow* rows, u32* adjustments, RowScratch* scratch, u32 vocab) {
    after_previous();
    SHARED_ARRAY(double, sums, SAMPLE_WARPS);
    SHARED_ARRAY(u32, counts, SAMPLE_WARPS);
    const SampleRow row = rows[blockIdx.x];
    if (row.kind == 0) return;
    RowScratch& to = scratch[blockIdx.x];
    if (blockIdx.y == 0) {
        to.bins[threadIdx.x] = 0;
        if (threadIdx.x == 0) to.listed = 0;
    }
    float* logits = all + (u64)blockIdx.x * vocab;
    const Span span = piece_span(blockIdx.y, vocab);
    const u64 nothing = candidate(-infinity(), NONE);
    u64 best = nothing;
    bool broken = false;
    for (u32 i = span.begin + threadIdx.x; i < span.end; i += SAMPLE_THREADS) {
        const float x = logits[i];
        broken |= !(x < infinity());
        const u64 mine = candidate(x, i);
        if (x > -infinity() && mine > best) best = mine;
    }
    best = block_best(best, sums);
    PieceSummary piece;
    piece.raw = piece.open = piece.max = of_rank((u32)(best >> 32));
    piece.best = ~(u32)best;
    piece.broken = block_sum((u32)broken, counts);
    float sum = 0.0f;
    if (piece.raw > -infinity()) {
        for (u32 i = span.begin + threadIdx.x; i < span.end; i += SAMPLE_THREADS) sum += expf(logits[i] - piece.raw);
    }
    piece.sum = (float)block_sum((double)sum, sums);
    if (row.kind == MASKED || row.count > 0) {
        Adjustment* list = (Adjustment*)(adjustments + row.list);
        for (u32 i = threadIdx.x; i < row.count; i += SAMPLE_THREADS) {
            const u32 id = list[i].id;
            if (id < span.begin || id >= span.end) continue;
            // Only now, since the block of the token's piece writes to the entry.
            const Adjustment token = list[i];
            list[i].raw = logits[id];
            logits[id] = adjusted(logits[id], token, row);
        }
        __syncthreads();
        const u32* mask = row.kind == MASKED ? adjustments + row.mask : nullptr;
        u64 open = nothing;
        best = nothing;
        for (u32 i = span.begin + threadIdx.x; i < span.end; i += SAMPLE_THREADS) {
            const float x = logits[i];
            const u64 mine = candidate(x, i);
            if (x > -infinity() && mine > open) open = mine;
            if (x > -infinity() && mine > best && allows(mask, i)) best = mine;
        }
        piece.open = of_rank((u32)(block_best(open, sums) >> 32));
        best = block_best(best, sums);
        piece.max = of_rank((u32)(best >> 32));
        piece.best = ~(u32)best;
    }
    if (threadIdx.x == 0) to.pieces[blockIdx.y] = piece;
}
