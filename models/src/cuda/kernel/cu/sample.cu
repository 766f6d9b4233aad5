// Samples the next token of a row, one block per row. The order of filters, ties and the walk are those of the CPU
// sampler.
//
// The vocabulary is split into 16 contiguous runs, one per warp, so that gathered tokens and sums stay in the order of
// ids. Tokens that top-k, top-p and min-p can keep are within some nats of the best one: these candidates are gathered
// into shared memory, in order. If there are too many, they are read from global memory every time, which is slower but
// gives the same result. The cutoff among the candidates is found by bisection over the bits of the scaled logit's
// order-preserving integer: 32 counts.

#define SAMPLE_THREADS 512
#define RUNS 16
#define CANDIDATES 8192
#define WINDOWS 4

struct SampleRow {
    double draw;
    float temperature, top_p, min_p;
    u32 top_k, kind, padding;
};

// Maps a float to an integer with the same order, -0 below +0.
DEVICE u32 rank_of(float x) {
    const u32 b = bits(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

// Candidate tokens: the whole vocabulary at or above a bound, or a list. Items are in the order of ids.
struct Whole {
    const float* logits;
    float max, scale, bound;
    u32 size;
    DEVICE_METHOD bool get(u32 i, float& x, u32& id) const {
        x = (logits[i] - max) * scale;
        id = i;
        return x >= bound && x > -infinity();
    }
};

struct Listed {
    const float* scaled;
    const u32* ids;
    u32 size;
    DEVICE_METHOD bool get(u32 i, float& x, u32& id) const {
        x = scaled[i];
        id = ids[i];
        return true;
    }
};

// Cutoff: keeps ranks above `rank`, and tokens of exactly this rank up to `id`.
struct Cut {
    u32 rank, id;
    DEVICE_METHOD bool keeps(float x, u32 i) const {
        const u32 r = rank_of(x);
        return r > rank || (r == rank && i <= id);
    }
};

struct Room {
    double* sums;  // one per warp
    u32* counts;   // one per warp
    u32* found;    // 2
};

template <typename Source>
DEVICE u32 count_from(const Source& source, Cut cut, u32 rank, const Room& room) {
    u32 n = 0;
    for (u32 i = threadIdx.x; i < source.size; i += SAMPLE_THREADS) {
        float x;
        u32 id;
        n += source.get(i, x, id) && cut.keeps(x, id) && rank_of(x) >= rank;
    }
    return block_sum(n, room.counts);
}

template <typename Source>
DEVICE double weight_from(const Source& source, Cut cut, u32 rank, const Room& room) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < source.size; i += SAMPLE_THREADS) {
        float x;
        u32 id;
        if (source.get(i, x, id) && cut.keeps(x, id) && rank_of(x) >= rank) sum += expf(x);
    }
    return block_sum((double)sum, room.sums);
}

// Lowers `cut.id` so that only the `needed` lowest ids of exactly this rank remain, and all higher ranks.
template <typename Source>
DEVICE Cut among_equals(const Source& source, Cut cut, u32 rank, u32 needed, const Room& room) {
    u32 below = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        u32 n = 0;
        for (u32 i = threadIdx.x; i < source.size; i += SAMPLE_THREADS) {
            float x;
            u32 id;
            n += source.get(i, x, id) && cut.keeps(x, id) && rank_of(x) == rank && id < (below | bit);
        }
        if (block_sum(n, room.counts) < needed) below |= bit;
    }
    return Cut{rank, below};
}

// Cutoff of the `k` best tokens that `cut` keeps; there must be more than `k`.
template <typename Source>
DEVICE Cut best_by_count(const Source& source, Cut cut, u32 k, const Room& room) {
    u32 rank = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if (count_from(source, cut, rank | bit, room) >= k) rank |= bit;
    }
    const u32 above = rank == NONE ? 0 : count_from(source, cut, rank + 1, room);
    return among_equals(source, cut, rank, k - above, room);
}

// Cutoff of the fewest best tokens that `cut` keeps with a total weight of `wanted`.
template <typename Source>
DEVICE Cut best_by_weight(const Source& source, Cut cut, double wanted, const Room& room) {
    u32 rank = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if (weight_from(source, cut, rank | bit, room) >= wanted) rank |= bit;
    }
    // Rounding may leave the total slightly below `wanted`.
    if (rank == 0) return cut;
    const double above = weight_from(source, cut, rank + 1, room);
    const u32 equals = count_from(source, cut, rank, room) - count_from(source, cut, rank + 1, room);
    const double one = (double)expf(from_bits(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank));
    const double missing = (wanted - above) / one;
    u32 needed = missing >= (double)equals ? equals : missing > 1.0 ? (u32)missing : 1;
    while (needed < equals && above + needed * one < wanted) needed++;
    if (needed == equals) return Cut{rank, cut.rank == rank ? cut.id : NONE};
    return among_equals(source, cut, rank, needed, room);
}

// Returns the token at `draw` of the kept weight, walking by id. Falls back to `best` when rounding leaves a remainder
// at the end.
template <typename Source>
DEVICE u32 pick(const Source& source, Cut cut, double draw, u32 best, const Room& room) {
    const u32 run = (source.size + RUNS * 32 - 1) / (RUNS * 32) * 32;
    const u32 begin = smaller(warp() * run, source.size), end = smaller(begin + run, source.size);
    float sum = 0.0f;
    for (u32 i = begin + lane(); i < end; i += 32) {
        float x;
        u32 id;
        if (source.get(i, x, id) && cut.keeps(x, id)) sum += expf(x);
    }
    const double mine = warp_sum((double)sum);
    if (lane() == 0) room.sums[warp()] = mine;
    if (threadIdx.x == 0) room.found[0] = best;
    __syncthreads();
    double total = 0.0;
    for (u32 w = 0; w < RUNS; w++) total += room.sums[w];
    double left = draw * total;
    u32 chosen = 0;
    while (chosen < RUNS && left >= room.sums[chosen]) left -= room.sums[chosen++];
    if (warp() == chosen) {
        u32 last = best;
        bool done = false;
        for (u32 i = begin; i < end && !done; i += 32) {
            float x = 0.0f;
            u32 id = 0;
            const bool kept = i + lane() < end && source.get(i + lane(), x, id) && cut.keeps(x, id);
            const double weight = kept ? (double)expf(x) : 0.0;
            double before = weight;
#pragma unroll
            for (int delta = 1; delta < 32; delta *= 2) {
                const double other = shuffle_up(before, delta);
                if (lane() >= delta) before += other;
            }
            const u32 hit = votes(weight > 0.0 && left < before);
            const u32 possible = votes(weight > 0.0);
            // The first token that the draw reaches; the last possible one is the fallback when rounding says that none
            // is reached.
            if (possible) last = shuffle(id, hit ? __ffs(hit) - 1 : 31 - __clz(possible));
            left -= shuffle(before, 31);
            done = hit != 0;
        }
        if (lane() == 0) room.found[0] = last;
    }
    __syncthreads();
    return room.found[0];
}

// Top-k, top-p and the draw.
template <typename Source>
DEVICE u32 choose(const Source& source, const SampleRow& row, u32 size, double wanted, u32 best, const Room& room) {
    Cut cut = {0, NONE};
    if (row.top_k > 0 && row.top_k < size) cut = best_by_count(source, cut, row.top_k, room);
    if (row.top_p < 1.0f) {
        if (row.top_k > 0) wanted = (double)row.top_p * weight_from(source, cut, 0, room);
        cut = best_by_weight(source, cut, wanted, room);
    }
    return pick(source, cut, row.draw, best, room);
}

// Calls `each` with the index and value of each of a thread's logits, in order. Several are loaded at once to hide
// latency: a single block processes a row.
template <typename Each>
DEVICE void walk(const float* logits, u32 vocab, Each each) {
    constexpr u32 AT_ONCE = 8;
    u32 i = threadIdx.x;
    for (; i + (AT_ONCE - 1) * SAMPLE_THREADS < vocab; i += AT_ONCE * SAMPLE_THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) x[n] = logits[i + n * SAMPLE_THREADS];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) each(i + n * SAMPLE_THREADS, x[n]);
    }
    for (; i < vocab; i += SAMPLE_THREADS) each(i, logits[i]);
}

// Finds the highest logit and the lowest id that has it. Returns false in all threads when a logit is NaN or +∞.
DEVICE bool highest(const float* logits, u32 vocab, float& max, u32& best, const Room& room) {
    float x = -infinity();
    u32 id = NONE;
    bool broken = false;
    walk(logits, vocab, [&](u32 i, float y) {
        broken |= !(y < infinity());
        if (y > x) x = y, id = i;
    });
    max = block_max(x, (float*)room.sums);
    const u32 mine = x == max ? id : NONE;
    u32 low = mine;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) low = smaller(low, shuffle_xor(low, mask));
    if (lane() == 0) room.counts[warp()] = low;
    __syncthreads();
    low = lane() < RUNS ? room.counts[lane()] : NONE;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) low = smaller(low, shuffle_xor(low, mask));
    __syncthreads();
    best = low;
    return block_sum((u32)broken, room.counts) == 0;
}

// Candidate sets by distance from the best logit.
struct Spread {
    double mass;  // total weight of tokens at or above the floor
    float bound;  // lower bound of the candidates
    u32 size;     // number of candidates
};

DEVICE float window(u32 i) { return i == 0 ? -5.0f : i == 1 ? -10.0f : i == 2 ? -20.0f : -40.0f; }

DEVICE Spread spread(const float* logits, u32 vocab, float max, float scale, float floor, const SampleRow& row, const Room& room) {
    float weights[WINDOWS + 1] = {};
    u32 counts[WINDOWS + 1] = {};
    walk(logits, vocab, [&](u32, float logit) {
        const float x = (logit - max) * scale;
        if (!(x >= floor && x > -infinity())) return;
        const float weight = expf(x);
#pragma unroll
        for (u32 w = 0; w <= WINDOWS; w++) {
            if (w == WINDOWS || x >= window(w)) weights[w] += weight, counts[w]++;
        }
    });
    Spread found;
    found.mass = block_sum((double)weights[WINDOWS], room.sums);
    found.size = block_sum(counts[WINDOWS], room.counts);
    found.bound = floor;
    const double wanted = (double)row.top_p * found.mass;
#pragma unroll
    for (u32 w = 0; w < WINDOWS; w++) {
        const u32 size = block_sum(counts[w], room.counts);
        const double weight = block_sum((double)weights[w], room.sums);
        const bool enough = row.top_k > 0 ? size >= row.top_k : row.top_p < 1.0f && weight >= wanted;
        if (found.bound == floor && floor < window(w) && enough) found.bound = window(w), found.size = size;
    }
    return found;
}

// Writes the items of `source` into a list, in order. The caller knows their number.
DEVICE void gather(const Whole& source, float* scaled, u32* ids, const Room& room) {
    const u32 run = (source.size + RUNS * 32 - 1) / (RUNS * 32) * 32;
    const u32 begin = smaller(warp() * run, source.size), end = smaller(begin + run, source.size);
    u32 at = 0;
    // Two passes: count, then write.
    for (int pass = 0; pass < 2; pass++) {
        u32 n = 0;
        for (u32 i = begin; i < end; i += 32) {
            float x = 0.0f;
            u32 id = 0;
            const bool kept = i + lane() < end && source.get(i + lane(), x, id);
            const u32 all = votes(kept);
            if (pass == 1 && kept) {
                const u32 place = at + n + __popc(all & ((1u << lane()) - 1));
                scaled[place] = x;
                ids[place] = id;
            }
            n += __popc(all);
        }
        if (pass == 0) {
            if (lane() == 0) room.counts[warp()] = n;
            __syncthreads();
            for (u32 w = 0; w < warp(); w++) at += room.counts[w];
        }
    }
    __syncthreads();
}

KERNEL(SAMPLE_THREADS, 1) sample(const float* all, const SampleRow* rows, u32* ids, float* logprobs, u32* status, u32 vocab) {
    SHARED_BYTES(list);
    SHARED_ARRAY(double, sums, RUNS);
    SHARED_ARRAY(u32, counts, RUNS);
    SHARED_ARRAY(u32, found, 2);
    const SampleRow row = rows[blockIdx.x];
    if (row.kind == 0) return;
    const Room room = {sums, counts, found};
    const float* logits = all + (u64)blockIdx.x * vocab;
    float max;
    u32 best;
    const bool sound = highest(logits, vocab, max, best, room);
    if (!sound || max == -infinity()) {
        if (threadIdx.x == 0) ids[blockIdx.x] = 0, logprobs[blockIdx.x] = -infinity(), status[blockIdx.x] = sound ? 2 : 1;
        return;
    }
    float sum = 0.0f;
    walk(logits, vocab, [&](u32, float logit) { sum += expf(logit - max); });
    const float log_sum = max + (float)log(block_sum((double)sum, sums));
    u32 id = best;
    if (row.temperature >= 1e-5f) {
        const float scale = 1.0f / row.temperature;
        const float floor = row.min_p > 0.0f ? logf(row.min_p) : -infinity();
        Whole whole = {logits, max, scale, floor, vocab};
        if (row.top_k == 0 && row.top_p >= 1.0f) {
            id = pick(whole, Cut{0, NONE}, row.draw, best, room);
        } else {
            const Spread wide = spread(logits, vocab, max, scale, floor, row, room);
            const double wanted = (double)row.top_p * wide.mass;
            whole.bound = wide.bound;
            if (wide.size <= CANDIDATES) {
                float* scaled = (float*)list;
                u32* places = (u32*)(list + CANDIDATES * 4);
                gather(whole, scaled, places, room);
                id = choose(Listed{scaled, places, wide.size}, row, wide.size, wanted, best, room);
            } else {
                id = choose(whole, row, wide.size, wanted, best, room);
            }
        }
    }
    if (threadIdx.x == 0) ids[blockIdx.x] = id, logprobs[blockIdx.x] = logits[id] - log_sum, status[blockIdx.x] = 0;
}
