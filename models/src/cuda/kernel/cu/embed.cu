// Embedding lookup: one block per token.

KERNEL(128, 1) embed(const u32* tokens, const bf16* table, float* stream, u32 width, u32 vocab) {
    after_previous();
    const u32 token = blockIdx.x, id = tokens[token];
    float* to = stream + (u64)token * width;
    for (u32 i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        // Padding, and ids outside the vocabulary.
        uint4 from = make_uint4(0, 0, 0, 0);
        if (id < vocab) from = load16(table + (u64)id * width + i);
        *(float4*)(to + i) = make_float4(low(from.x), high(from.x), low(from.y), high(from.y));
        *(float4*)(to + i + 4) = make_float4(low(from.z), high(from.z), low(from.w), high(from.w));
    }
}
