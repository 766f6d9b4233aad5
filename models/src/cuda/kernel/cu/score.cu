// Log-probability of a given token per row, and the gradient of its weighted negative: one block per row.

KERNEL(512, 1) score(const float* all, const u32* targets, float* logprobs, const float* weights, bf16* gradient, u32 vocab) {
    SHARED_ARRAY(float, maxima, 16);
    SHARED_ARRAY(double, sums, 16);
    const u32 target = targets[blockIdx.x];
    const float* logits = all + (u64)blockIdx.x * vocab;
    bf16* to = gradient + (u64)blockIdx.x * vocab;
    if (target >= vocab) {
        if (threadIdx.x == 0) logprobs[blockIdx.x] = 0.0f;
        if (gradient) {
            for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) to[i] = 0;
        }
        return;
    }
    float max = -infinity();
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) max = fmaxf(max, logits[i]);
    max = block_max(max, maxima);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) sum += expf(logits[i] - max);
    const double total = block_sum((double)sum, sums);
    if (threadIdx.x == 0) logprobs[blockIdx.x] = logits[target] - max - (float)log(total);
    if (!gradient) return;
    const float weight = weights[blockIdx.x], scale = (float)(1.0 / total);
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        to[i] = narrow(weight * (expf(logits[i] - max) * scale - (i == target ? 1.0f : 0.0f)));
    }
}
