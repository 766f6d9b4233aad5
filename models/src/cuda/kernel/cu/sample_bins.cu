// Histogram of a row by distance from the best token, and the list of the tokens among which the cut lies.

// The last bin holds everything beyond 32 nats.
DEVICE u32 bin_of(float x) {
    const float bin = -x * BINS_PER_NAT;
    return bin < (float)(BINS - 1) ? (u32)bin : BINS - 1;
}

// Upper edge of a bin, relative to which its weights are counted: a weight far from the best token is as exact as one
// near it.
DEVICE float edge_of(u32 bin) { return (float)bin / BINS_PER_NAT; }

// Units of weight per bin and piece: even a piece with all its tokens at the edge stays below 2³².
DEVICE float units(u32 vocab) { return 2147483648.0f / (float)piece_size(vocab); }

KERNEL(SAMPLE_THREADS, 1)
sample_weigh(const float* all, const SampleRow* rows, const u32* adjustments, RowScratch* scratch, u32 vocab) {
    after_previous();
    SHARED_ARRAY(double, sums, SAMPLE_WARPS);
    SHARED_ARRAY(u32, counts, BINS);
    SHARED_ARRAY(u32, weights, BINS);
    const SampleRow row = rows[blockIdx.x];
    if (row.kind == 0 || is_greedy(row)) return;
    RowScratch& to = scratch[blockIdx.x];
    const RowSummary summary = summarize(to);
    if (summary.status != 0) return;
    const Tokens tokens = tokens_of(row, all + (u64)blockIdx.x * vocab, adjustments, summary.max);
    const Span span = piece_span(blockIdx.y, vocab);
    const bool cut = is_cut(row);
    const float unit = units(vocab);
    counts[threadIdx.x] = 0;
    weights[threadIdx.x] = 0;
    __syncthreads();
    float sum = 0.0f;
    for (u32 i = span.begin + threadIdx.x; i < span.end; i += SAMPLE_THREADS) {
        float x;
        if (!tokens.get(i, x)) continue;
        sum += expf(x);
        if (cut) {
            const u32 bin = bin_of(x);
            atomicAdd(&counts[bin], 1u);
            atomicAdd(&weights[bin], (u32)(expf(x + edge_of(bin)) * unit + 0.5f));
        }
    }
    const double mass = block_sum((double)sum, sums);
    if (threadIdx.x == 0) to.mass[blockIdx.y] = mass;
    const u32 count = counts[threadIdx.x];
    if (count > 0) atomicAdd(&to.bins[threadIdx.x], (u64)count << WEIGHT_BITS | weights[threadIdx.x]);
}

// The cut of a row, as far as the histogram tells.
struct Selection {
    // If `true`, the cut lies within the bins `first` to `last`, and all better bins are kept.
    bool cuts;
    // If `true`, top-k keeps fewer tokens than min-p and the mask.
    bool by_count;
    u32 first, last;
    // Number of tokens in these bins, and how many of them top-k keeps.
    u32 size, needed;
    // Total weight before the cut.
    double mass;
};

// Inclusive sums over the threads of a block, in order.
template <typename T>
DEVICE T block_scan(T x, T* room) {
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
        const T other = shuffle_up(x, delta);
        if (lane() >= delta) x += other;
    }
    if (lane() == 31) room[warp()] = x;
    __syncthreads();
    T before = 0;
    for (u32 w = 0; w < warp(); w++) before += room[w];
    __syncthreads();
    return before + x;
}

// Lowest thread of the block for which `holds`, or NONE.
DEVICE u32 first_thread(bool holds, u32* room) {
    const u32 all = votes(holds);
    if (lane() == 0) room[warp()] = all ? warp() * 32 + __ffs(all) - 1 : NONE;
    __syncthreads();
    u32 low = room[lane() % SAMPLE_WARPS];
#pragma unroll
    for (int mask = SAMPLE_WARPS / 2; mask > 0; mask /= 2) low = smaller(low, shuffle_xor(low, mask));
    __syncthreads();
    return low;
}

// Returns the same in every thread of the block.
DEVICE Selection select(const SampleRow& row, const RowScratch& scratch, u32 vocab, const Room& room) {
    const u64 bin = scratch.bins[threadIdx.x];
    const u32 count = (u32)(bin >> WEIGHT_BITS);
    const u64 units_here = bin & (((u64)1 << WEIGHT_BITS) - 1);
    const double weight = (double)units_here / (double)units(vocab) * (double)expf(-edge_of(threadIdx.x));
    const u32 counted = block_scan(count, room.counts);
    const double weighed = block_scan(weight, room.sums);
    const u32 all = block_sum(count, room.counts);
    Selection found;
    found.mass = warp_sum(scratch.mass[lane()]);
    found.by_count = row.top_k > 0 && row.top_k < all;
    const bool heavy = row.top_p < 1.0f && weighed >= (double)row.top_p * found.mass;
    // The sums of two neighbors may differ by rounding even if the bin between them is empty.
    found.last = first_thread(count > 0 && (found.by_count ? counted >= row.top_k : heavy), room.counts);
    found.cuts = found.last != NONE;
    // Top-p after top-k needs the weight of exactly the k best: all of them are listed.
    found.first = found.by_count && row.top_p < 1.0f ? 0 : found.last;
    const u32 before = block_sum(threadIdx.x < found.first ? count : 0, room.counts);
    found.size = block_sum(threadIdx.x >= found.first && threadIdx.x <= found.last ? count : 0, room.counts);
    found.needed = found.by_count ? row.top_k - before : found.size;
    return found;
}

KERNEL(SAMPLE_THREADS, 1)
sample_gather(const float* all, const SampleRow* rows, const u32* adjustments, RowScratch* scratch, u32 vocab) {
    after_previous();
    SHARED_ARRAY(double, sums, SAMPLE_WARPS);
    SHARED_ARRAY(u32, counts, SAMPLE_WARPS);
    const SampleRow row = rows[blockIdx.x];
    if (row.kind == 0 || is_greedy(row) || !is_cut(row)) return;
    RowScratch& to = scratch[blockIdx.x];
    const RowSummary summary = summarize(to);
    if (summary.status != 0) return;
    const Selection found = select(row, to, vocab, Room{sums, counts});
    if (!found.cuts || found.size > CANDIDATES) return;
    const Tokens tokens = tokens_of(row, all + (u64)blockIdx.x * vocab, adjustments, summary.max);
    const Span span = piece_span(blockIdx.y, vocab);
    float sum = 0.0f;
    for (u32 start = span.begin + warp() * 32; start < span.end; start += SAMPLE_THREADS) {
        const u32 i = start + lane();
        float x = 0.0f;
        const bool possible = i < span.end && tokens.get(i, x);
        const u32 bin = possible ? bin_of(x) : BINS;
        if (bin < found.first) sum += expf(x);
        const bool listed = bin >= found.first && bin <= found.last;
        const u32 lanes = votes(listed);
        if (lanes == 0) continue;
        // Places depend on which warp is first; the list is sorted later.
        u32 place = 0;
        if (lane() == 0) place = atomicAdd(&to.listed, (u32)__popc(lanes));
        place = shuffle(place, 0) + __popc(lanes & ((1u << lane()) - 1));
        if (listed) to.keys[place] = key_of(x, i);
    }
    const double base = block_sum((double)sum, sums);
    if (threadIdx.x == 0) to.base[blockIdx.y] = base;
}
