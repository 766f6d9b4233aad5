// Sampling of the next token of each row, in four kernels that the stream runs one after the other:
//
//   sample_scan    applies penalties and biases; maximum and sum of each piece of the vocabulary
//   sample_weigh   weight of each piece, and a histogram of the row by distance from the best token
//   sample_gather  lists the tokens among which top-k or top-p cuts
//   sample_choose  sorts the list, cuts, and walks to the token that the draw falls on
//
// The vocabulary is split into 32 contiguous pieces, one block each, whatever the number of rows, so that results do
// not depend on the batch. The last kernel has one block per row. The order of filters, ties and the walk are those of
// the CPU sampler. Histograms count in integers, whose sums do not depend on the order of atomic additions.

#define SAMPLE_THREADS 512
#define SAMPLE_WARPS 16
#define PIECES 32
// One per thread.
#define BINS 512
#define BINS_PER_NAT 16.0f
#define CANDIDATES 8192
// The weight in a bin; the count stands above it.
#define WEIGHT_BITS 40

struct SampleRow {
    double draw;
    float temperature, top_p, min_p;
    u32 top_k, kind;
    // Words of the adjustments at which the mask and the list begin, and the length of the list.
    u32 mask, list, count;
    float repetition, frequency, presence;
    u32 padding;
};
#define MASKED 2u
// The host asserts the same sizes, in numbers, so that a change on one side alone does not compile.
static_assert(sizeof(SampleRow) == 56, "differs from the host's");

// Occurrences and bias of one token. `raw` receives the logit as it was.
struct Adjustment {
    u32 id, count;
    float bias, raw;
};
static_assert(sizeof(Adjustment) == 16, "differs from the host's");

struct PieceSummary {
    // Highest logit: as given, after penalties and biases, and within the mask.
    float raw, open, max;
    // Sum of exp(logit - raw).
    float sum;
    // Token with the highest logit within the mask, and whether a given logit is NaN or +∞.
    u32 best, broken;
};

struct RowScratch {
    PieceSummary pieces[PIECES];
    // Weight of each piece's tokens at or above the floor, and of those in better bins than the listed ones.
    double mass[PIECES], base[PIECES];
    u64 bins[BINS];
    u32 listed, padding;
    // Listed tokens, by key.
    u64 keys[CANDIDATES];
};
static_assert(sizeof(RowScratch) == 70920, "differs from the host's");

// Room for a value per warp, in shared memory.
struct Room {
    double* sums;
    u32* counts;
};

struct Span {
    u32 begin, end;
};

DEVICE u32 piece_size(u32 vocab) { return (vocab + PIECES * 32 - 1) / (PIECES * 32) * 32; }

DEVICE Span piece_span(u32 piece, u32 vocab) {
    const u32 size = piece_size(vocab), begin = smaller(piece * size, vocab);
    return Span{begin, smaller(begin + size, vocab)};
}

// Maps a float to an integer with the same order, -0 below +0.
DEVICE u32 rank_of(float x) {
    const u32 b = bits(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

DEVICE float of_rank(u32 rank) { return from_bits(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank); }

// Key of a token: ascending keys are descending logits, and ascending ids among equals.
DEVICE u64 key_of(float x, u32 id) { return (u64)~rank_of(x) << 32 | id; }

DEVICE float logit_of(u64 key) { return of_rank(~(u32)(key >> 32)); }

DEVICE bool allows(const u32* mask, u32 id) { return !mask || (mask[id / 32] >> id % 32 & 1); }

// The part of a row's distribution that min-p and the mask leave.
struct Tokens {
    const float* logits;
    const u32* mask;
    float max, scale, floor;
    DEVICE_METHOD bool get(u32 id, float& x) const {
        x = (logits[id] - max) * scale;
        return x >= floor && x > -infinity() && allows(mask, id);
    }
};

DEVICE Tokens tokens_of(const SampleRow& row, const float* logits, const u32* adjustments, float max) {
    const u32* mask = row.kind == MASKED ? adjustments + row.mask : nullptr;
    const float floor = row.min_p > 0.0f ? logf(row.min_p) : -infinity();
    return Tokens{logits, mask, max, 1.0f / row.temperature, floor};
}

DEVICE bool is_greedy(const SampleRow& row) { return row.temperature < 1e-5f; }
DEVICE bool is_cut(const SampleRow& row) { return row.top_k > 0 || row.top_p < 1.0f; }

struct RowSummary {
    float max;
    u32 best, status;
};

// Combines the pieces of a row, in every warp alike.
DEVICE RowSummary summarize(const RowScratch& scratch) {
    const PieceSummary mine = scratch.pieces[lane()];
    RowSummary row;
    row.max = warp_max(mine.max);
    row.best = mine.max == row.max ? mine.best : NONE;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) row.best = smaller(row.best, shuffle_xor(row.best, mask));
    const float raw = warp_max(mine.raw), open = warp_max(mine.open);
    const bool broken = votes(mine.broken != 0) != 0;
    const bool finite = open < infinity() && open > -infinity();
    row.status = broken ? 1 : raw == -infinity() ? 2 : !finite ? 1 : row.max == -infinity() ? 2 : 0;
    return row;
}
