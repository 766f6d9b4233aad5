// The choice of a row's token, by one block.

// Sorts `size` keys, a power of two, ascending (Batcher's bitonic sort).
DEVICE void sort(u64* keys, u32 size) {
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < size / 2; pair += SAMPLE_THREADS) {
                const u32 a = 2 * pair - (pair & (step - 1)), b = a + step;
                const u64 low = keys[a], high = keys[b];
                if ((low > high) == ((a & run) == 0)) keys[a] = high, keys[b] = low;
            }
        }
    }
    __syncthreads();
}

// Number of the first keys that together weigh share · total + weight; at least 1, at most `size`. The total is that of
// all `size` keys.
DEVICE u32 shortest(const u64* keys, u32 size, double share, double weight, const Room& room) {
    const u32 each = (size + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
    const u32 begin = smaller(threadIdx.x * each, size), end = smaller(begin + each, size);
    double mine = 0.0;
    for (u32 i = begin; i < end; i++) mine += (double)expf(logit_of(keys[i]));
    const double through = block_scan(mine, room.sums);
    const double wanted = share * block_sum(mine, room.sums) + weight;
    const u32 chunk = first_thread(end > begin && through >= wanted, room.counts);
    if (chunk == NONE) return size;
    // Every thread walks the same few keys.
    if (threadIdx.x == chunk) room.sums[0] = through - mine;
    __syncthreads();
    double sum = room.sums[0];
    __syncthreads();
    const u32 last = smaller((chunk + 1) * each, size);
    u32 at = chunk * each;
    while (at < last && (sum += (double)expf(logit_of(keys[at]))) < wanted) at++;
    return smaller(at, last - 1) + 1;
}

// Cuts among the listed tokens and adds the kept ones to the weight of their pieces.
DEVICE Cut cut_list(u64* keys, const RowScratch& scratch, const SampleRow& row, const Selection& found, u32 vocab, double* weights, const Room& room) {
    u32 size = 32;
    while (size < found.size) size *= 2;
    for (u32 i = threadIdx.x; i < size; i += SAMPLE_THREADS) keys[i] = i < found.size ? scratch.keys[i] : ~(u64)0;
    sort(keys, size);
    u32 kept = found.needed;
    if (row.top_p < 1.0f) {
        const double base = warp_sum(scratch.base[lane()]);
        kept = found.by_count ? shortest(keys, kept, row.top_p, 0.0, room)
                              : shortest(keys, kept, 0.0, (double)row.top_p * found.mass - base, room);
    }
    for (u32 piece = warp(); piece < PIECES; piece += SAMPLE_WARPS) {
        const Span span = piece_span(piece, vocab);
        double sum = 0.0;
        for (u32 i = lane(); i < kept; i += 32) {
            const u32 id = (u32)keys[i];
            if (id >= span.begin && id < span.end) sum += (double)expf(logit_of(keys[i]));
        }
        sum = warp_sum(sum);
        if (lane() == 0) weights[piece] = scratch.base[piece] + sum;
    }
    const u64 last = keys[kept - 1];
    __syncthreads();
    return Cut{~(u32)(last >> 32), (u32)last};
}

// Returns the token at `left` of the kept weight of a span, walking by id. Falls back to the last kept token when
// rounding leaves a remainder, and to `best` when there is none.
DEVICE u32 walk(const Tokens& tokens, Cut cut, Span span, double left, u32 best, u32* chosen_id, const Room& room) {
    const u32 run = (span.end - span.begin + SAMPLE_WARPS * 32 - 1) / (SAMPLE_WARPS * 32) * 32;
    const u32 begin = smaller(span.begin + warp() * run, span.end), end = smaller(begin + run, span.end);
    float sum = 0.0f;
    for (u32 i = begin + lane(); i < end; i += 32) {
        float x;
        if (tokens.get(i, x) && cut.keeps(x, i)) sum += expf(x);
    }
    const double mine = warp_sum((double)sum);
    if (lane() == 0) room.sums[warp()] = mine;
    if (threadIdx.x == 0) *chosen_id = best;
    __syncthreads();
    u32 chosen = 0, last = 0;
    for (u32 w = 0; w < SAMPLE_WARPS; w++) {
        if (room.sums[w] > 0.0) last = w;
    }
    while (chosen < last && left >= room.sums[chosen]) left -= room.sums[chosen++];
    if (warp() == chosen) {
        u32 id = best;
        bool done = false;
        for (u32 i = begin; i < end && !done; i += 32) {
            const u32 mine = i + lane();
            float x = 0.0f;
            const bool kept = mine < end && tokens.get(mine, x) && cut.keeps(x, mine);
            const double weight = kept ? (double)expf(x) : 0.0;
            double before = weight;
#pragma unroll
            for (int delta = 1; delta < 32; delta *= 2) {
                const double other = shuffle_up(before, delta);
                if (lane() >= delta) before += other;
            }
            const u32 hit = votes(weight > 0.0 && left < before);
            const u32 possible = votes(weight > 0.0);
            if (possible) id = shuffle(mine, hit ? __ffs(hit) - 1 : 31 - __clz(possible));
            left -= shuffle(before, 31);
            done = hit != 0;
        }
        if (lane() == 0) *chosen_id = id;
    }
    __syncthreads();
    return *chosen_id;
}

// The logit of a token as it was given.
DEVICE float raw_logit(const float* logits, const Adjustment* list, u32 count, u32 id, const Room& room) {
    bool here = false;
    if (threadIdx.x == 0) room.sums[0] = (double)logits[id];
    __syncthreads();
    for (u32 i = threadIdx.x; i < count && !here; i += SAMPLE_THREADS) {
        here = list[i].id == id;
        if (here) room.sums[0] = (double)list[i].raw;
    }
    __syncthreads();
    return (float)room.sums[0];
}

DEVICE u32 choose(const Tokens& tokens, const RowScratch& scratch, const SampleRow& row, u32 vocab, u32 best, u64* keys, double* weights, u32* id, const Room& room) {
    if (threadIdx.x < PIECES) weights[threadIdx.x] = scratch.mass[threadIdx.x];
    __syncthreads();
    Cut cut = KEEP_ALL;
    if (is_cut(row)) {
        const Selection found = select(row, scratch, vocab, room);
        if (found.cuts && found.size <= CANDIDATES) cut = cut_list(keys, scratch, row, found, vocab, weights, room);
        if (found.cuts && found.size > CANDIDATES) {
            cut = search(tokens, vocab, row, found, room);
            const double total = weight_from(tokens, vocab, cut, 0, room);
            return walk(tokens, cut, Span{0, vocab}, row.draw * total, best, id, room);
        }
    }
    double total = 0.0;
    u32 last = 0;
    for (u32 piece = 0; piece < PIECES; piece++) {
        total += weights[piece];
        if (weights[piece] > 0.0) last = piece;
    }
    double left = row.draw * total;
    u32 piece = 0;
    while (piece < last && left >= weights[piece]) left -= weights[piece++];
    return walk(tokens, cut, piece_span(piece, vocab), left, best, id, room);
}

KERNEL(SAMPLE_THREADS, 1)
sample_choose(const float* all, const SampleRow* rows, const u32* adjustments, const RowScratch* scratch, u32* ids, float* logprobs, u32* status, u32 vocab) {
    after_previous();
    SHARED_BYTES(list);
    SHARED_ARRAY(double, sums, SAMPLE_WARPS);
    SHARED_ARRAY(double, weights, PIECES);
    SHARED_ARRAY(u32, counts, SAMPLE_WARPS);
    SHARED_ARRAY(u32, chosen, 1);
    const SampleRow row = rows[blockIdx.x];
    if (row.kind == 0) return;
    const Room room = {sums, counts};
    const RowScratch& from = scratch[blockIdx.x];
    const RowSummary summary = summarize(from);
    if (summary.status != 0) {
        if (threadIdx.x == 0) ids[blockIdx.x] = 0, logprobs[blockIdx.x] = -infinity(), status[blockIdx.x] = summary.status;
        return;
    }
    const float* logits = all + (u64)blockIdx.x * vocab;
    u32 id = summary.best;
    if (!is_greedy(row)) {
        const Tokens tokens = tokens_of(row, logits, adjustments, summary.max);
        id = choose(tokens, from, row, vocab, id, (u64*)list, weights, chosen, room);
    }
    const PieceSummary piece = from.pieces[lane()];
    const float raw = warp_max(piece.raw);
    const double part = piece.sum > 0.0f ? (double)piece.sum * (double)expf(piece.raw - raw) : 0.0;
    const float log_sum = raw + (float)log(warp_sum(part));
    const float logit = raw_logit(logits, (const Adjustment*)(adjustments + row.list), row.count, id, room);
    if (threadIdx.x == 0) ids[blockIdx.x] = id, logprobs[blockIdx.x] = logit - log_sum, status[blockIdx.x] = 0;
}
