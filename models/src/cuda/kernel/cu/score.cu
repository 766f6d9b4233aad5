// Scores of target tokens, and the gradient of logits from the derivatives of a loss with respect to them: one block
// per row.

// Per row: log-probability of the target, entropy, and logarithm of the softmax denominator, in nats.
KERNEL(512, 1) score(const float* all, const u32* targets, float* scores, u32 vocab) {
    after_previous();
    SHARED_ARRAY(float, maxima, 16);
    SHARED_ARRAY(double, sums, 16);
    const u32 target = targets[blockIdx.x];
    const float* logits = all + (u64)blockIdx.x * vocab;
    float* to = scores + 3 * blockIdx.x;
    if (target >= vocab) {
        if (threadIdx.x < 3) to[threadIdx.x] = 0.0f;
        return;
    }
    float max = -infinity();
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) max = fmaxf(max, logits[i]);
    max = block_max(max, maxima);
    float sum = 0.0f, weighted = 0.0f;
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        const float x = logits[i] - max, weight = expf(x);
        sum += weight;
        // A token of probability zero adds nothing: 0 · ∞ is NaN.
        if (weight != 0.0f) weighted += weight * x;
    }
    const double total = block_sum((double)sum, sums), mean = block_sum((double)weighted, sums) / total;
    if (threadIdx.x == 0) {
        const double normaliser = (double)max + log(total);
        to[0] = (float)((double)logits[target] - normaliser);
        to[1] = (float)(log(total) - mean);
        to[2] = (float)normaliser;
    }
}

// d logits = a · (onehot − p) − b · p ∘ (ln p + H), with the slopes a along the log-probability and b along the entropy
// H.
KERNEL(512, 1) score_backward(
    const float* all, const u32* targets, const float* scores, const float* slopes, bf16* gradient, u32 vocab) {
    after_previous();
    const u32 target = targets[blockIdx.x];
    const float* logits = all + (u64)blockIdx.x * vocab;
    bf16* to = gradient + (u64)blockIdx.x * vocab;
    if (target >= vocab) {
        for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) to[i] = 0;
        return;
    }
    const float entropy = scores[3 * blockIdx.x + 1], normaliser = scores[3 * blockIdx.x + 2];
    const float a = slopes[2 * blockIdx.x], b = slopes[2 * blockIdx.x + 1];
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        const float x = logits[i] - normaliser, p = expf(x);
        const float slope = p != 0.0f ? -p * (a + b * (x + entropy)) : 0.0f;
        to[i] = narrow(i == target ? slope + a : slope);
    }
}
