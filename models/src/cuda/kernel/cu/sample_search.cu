// Search of the cut in the whole vocabulary, by bisection over the bits of ranks: 32 passes or more by one block. For
// rows whose cut lies among more tokens than fit the list: thousands of equal logits, or a very large top-k with top-p.

// Cutoff: keeps ranks above `rank`, and tokens of exactly this rank up to `id`.
struct Cut {
    u32 rank, id;
    DEVICE_METHOD bool keeps(float x, u32 i) const {
        const u32 r = rank_of(x);
        return r > rank || (r == rank && i <= id);
    }
};

#define KEEP_ALL (Cut{0, NONE})

DEVICE u32 count_from(const Tokens& tokens, u32 vocab, Cut cut, u32 rank, const Room& room) {
    u32 n = 0;
    for (u32 i = threadIdx.x; i < vocab; i += SAMPLE_THREADS) {
        float x;
        n += tokens.get(i, x) && cut.keeps(x, i) && rank_of(x) >= rank;
    }
    return block_sum(n, room.counts);
}

DEVICE double weight_from(const Tokens& tokens, u32 vocab, Cut cut, u32 rank, const Room& room) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < vocab; i += SAMPLE_THREADS) {
        float x;
        if (tokens.get(i, x) && cut.keeps(x, i) && rank_of(x) >= rank) sum += expf(x);
    }
    return block_sum((double)sum, room.sums);
}

// Lowers `cut.id` so that only the `needed` lowest ids of exactly this rank remain, and all higher ranks.
DEVICE Cut among_equals(const Tokens& tokens, u32 vocab, Cut cut, u32 rank, u32 needed, const Room& room) {
    u32 below = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        u32 n = 0;
        for (u32 i = threadIdx.x; i < vocab; i += SAMPLE_THREADS) {
            float x;
            n += tokens.get(i, x) && cut.keeps(x, i) && rank_of(x) == rank && i < (below | bit);
        }
        if (block_sum(n, room.counts) < needed) below |= bit;
    }
    return Cut{rank, below};
}

// Cutoff of the `k` best tokens; there must be more than `k`.
DEVICE Cut best_by_count(const Tokens& tokens, u32 vocab, u32 k, const Room& room) {
    u32 rank = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if (count_from(tokens, vocab, KEEP_ALL, rank | bit, room) >= k) rank |= bit;
    }
    const u32 above = rank == NONE ? 0 : count_from(tokens, vocab, KEEP_ALL, rank + 1, room);
    return among_equals(tokens, vocab, KEEP_ALL, rank, k - above, room);
}

// Cutoff of the fewest best tokens that `cut` keeps with a total weight of `wanted`.
DEVICE Cut best_by_weight(const Tokens& tokens, u32 vocab, Cut cut, double wanted, const Room& room) {
    u32 rank = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if (weight_from(tokens, vocab, cut, rank | bit, room) >= wanted) rank |= bit;
    }
    // Rounding may leave the total slightly below `wanted`.
    if (rank == 0) return cut;
    const double above = weight_from(tokens, vocab, cut, rank + 1, room);
    const u32 equals = count_from(tokens, vocab, cut, rank, room) - count_from(tokens, vocab, cut, rank + 1, room);
    const double one = (double)expf(of_rank(rank));
    const double missing = (wanted - above) / one;
    u32 needed = missing >= (double)equals ? equals : missing > 1.0 ? (u32)missing : 1;
    while (needed < equals && above + needed * one < wanted) needed++;
    if (needed == equals) return Cut{rank, cut.rank == rank ? cut.id : NONE};
    return among_equals(tokens, vocab, cut, rank, needed, room);
}

DEVICE Cut search(const Tokens& tokens, u32 vocab, const SampleRow& row, const Selection& found, const Room& room) {
    Cut cut = found.by_count ? best_by_count(tokens, vocab, row.top_k, room) : KEEP_ALL;
    if (row.top_p < 1.0f) {
        const double mass = found.by_count ? weight_from(tokens, vocab, cut, 0, room) : found.mass;
        cut = best_by_weight(tokens, vocab, cut, (double)row.top_p * mass, room);
    }
    return cut;
}
