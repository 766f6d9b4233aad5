// RMS norm: one block per row, two passes, the second of which hits the L1 cache.

KERNEL(256, 1) rms_norm(const float* stream, const u32* index, const float* weight, bf16* out, u32 width, float eps) {
    SHARED_ARRAY(float, room, 8);
    const u32 row = blockIdx.x;
    const u32 source = index ? index[row] : row;
    bf16* to = out + (u64)row * width;
    if (source == NONE) {
        for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) *(uint2*)(to + i) = make_uint2(0, 0);
        return;
    }
    const float* from = stream + (u64)source * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const float4 x = *(const float4*)(from + i);
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    const float scale = rsqrtf(block_sum(squares, room) / (float)width + eps);
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const float4 x = *(const float4*)(from + i);
        const float4 w = *(const float4*)(weight + i);
        *(uint2*)(to + i) = make_uint2(pack(x.x * scale * w.x, x.y * scale * w.y), pack(x.z * scale * w.z, x.w * scale * w.w));
    }
}
