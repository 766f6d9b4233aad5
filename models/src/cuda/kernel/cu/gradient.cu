// Backward kernels of operations other than matrix multiplication. Weights of norms and biases are not trained.

// Input gradient of an RMS norm: stream_gradient += r · (w ∘ dy) − x · r³ · mean(w ∘ dy ∘ x), with r = 1 / √(mean(x²) +
// eps). With an index, row i of the gradient belongs to row index[i] of the stream; no index may repeat within a
// launch.
KERNEL(256, 1) rms_norm_backward(
    const float* stream, const u32* index, const float* weight, const bf16* gradient, float* stream_gradient, u32 width,
    float eps) {
    after_previous();
    SHARED_ARRAY(float, room, 8);
    const u32 source = index ? index[blockIdx.x] : blockIdx.x;
    if (source == NONE) return;
    const u64 row = (u64)source * width;
    gradient += (u64)blockIdx.x * width;
    float squares = 0.0f, along = 0.0f;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const float4 x = *(const float4*)(stream + row + i), w = *(const float4*)(weight + i);
        const uint2 d = load8(gradient + i);
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        along += x.x * w.x * low(d.x) + x.y * w.y * high(d.x) + x.z * w.z * low(d.y) + x.w * w.w * high(d.y);
    }
    const float scale = rsqrtf(block_sum(squares, room) / (float)width + eps);
    const float back = block_sum(along, room) / (float)width * scale * scale * scale;
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const float4 x = *(const float4*)(stream + row + i), w = *(const float4*)(weight + i);
        const uint2 d = load8(gradient + i);
        float4* to = (float4*)(stream_gradient + row + i);
        const float4 old = *to;
        *to = make_float4(
            old.x + scale * w.x * low(d.x) - back * x.x, old.y + scale * w.y * high(d.x) - back * x.y,
            old.z + scale * w.z * low(d.y) - back * x.z, old.w + scale * w.w * high(d.y) - back * x.w);
    }
}

// Derivatives of gate · σ(gate) · up with respect to gate and up.
DEVICE float2 silu_slopes(float gate, float up, float d) {
    const float sigma = 1.0f / (1.0f + expf(-gate));
    return make_float2(d * up * sigma * (1.0f + gate * (1.0f - sigma)), d * gate * sigma);
}

DEVICE uint2 silu_slope_pair(u32 gate, u32 up, u32 d) {
    const float2 a = silu_slopes(low(gate), low(up), low(d)), b = silu_slopes(high(gate), high(up), high(d));
    return make_uint2(pack(a.x, b.x), pack(a.y, b.y));
}

KERNEL(256, 1) silu_mul_backward(const bf16* gate_up, const bf16* gradient, bf16* gate_up_gradient, u32 width) {
    after_previous();
    const u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= width) return;
    const u64 row = (u64)blockIdx.y * 2 * width + i;
    const uint4 gate = load16(gate_up + row), up = load16(gate_up + row + width);
    const uint4 d = load16(gradient + (u64)blockIdx.y * width + i);
    const uint2 x = silu_slope_pair(gate.x, up.x, d.x), y = silu_slope_pair(gate.y, up.y, d.y);
    const uint2 z = silu_slope_pair(gate.z, up.z, d.z), w = silu_slope_pair(gate.w, up.w, d.w);
    store16(gate_up_gradient + row, make_uint4(x.x, y.x, z.x, w.x));
    store16(gate_up_gradient + row + width, make_uint4(x.y, y.y, z.y, w.y));
}
