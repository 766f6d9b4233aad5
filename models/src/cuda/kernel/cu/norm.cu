// RMS norm: one block per row. Threads keep their first sixteen values, and read any others twice.

#define NORM_THREADS 256
#define NORM_KEPT 4

DEVICE float square_sum(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }

DEVICE uint2 normed(float4 x, float4 weight, float scale) {
    return make_uint2(
        pack(x.x * scale * weight.x, x.y * scale * weight.y), pack(x.z * scale * weight.z, x.w * scale * weight.w));
}

KERNEL(NORM_THREADS, 1) rms_norm(const float* stream, const u32* index, const float* weight, bf16* out, u32 width, float eps) {
    SHARED_ARRAY(float, room, NORM_THREADS / 32);
    const u32 stride = 4 * NORM_THREADS, begin = 4 * threadIdx.x;
    float4 w[NORM_KEPT];
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        if (begin + k * stride < width) w[k] = *(const float4*)(weight + begin + k * stride);
    }
    after_previous();
    const u32 row = blockIdx.x;
    const u32 source = index ? index[row] : row;
    bf16* to = out + (u64)row * width;
    if (source == NONE) {
        for (u32 i = begin; i < width; i += stride) *(uint2*)(to + i) = make_uint2(0, 0);
        return;
    }
    const float* from = stream + (u64)source * width;
    float4 x[NORM_KEPT];
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        if (begin + k * stride < width) x[k] = *(const float4*)(from + begin + k * stride);
    }
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        if (begin + k * stride < width) squares += square_sum(x[k]);
    }
    for (u32 i = begin + NORM_KEPT * stride; i < width; i += stride) squares += square_sum(*(const float4*)(from + i));
    const float scale = rsqrtf(block_sum(squares, room) / (float)width + eps);
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        const u32 i = begin + k * stride;
        if (i < width) *(uint2*)(to + i) = normed(x[k], w[k], scale);
    }
    for (u32 i = begin + NORM_KEPT * stride; i < width; i += stride)
        *(uint2*)(to + i) = normed(*(const float4*)(from + i), *(const float4*)(weight + i), scale);
}
