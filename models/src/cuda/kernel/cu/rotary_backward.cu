// Backpropagates gradients of queries and keys, in place, through rotation and norm per head to the projection's
// outputs. The lane layout is that of rotary.cu. `raw` holds the unmodified projection outputs, read only if there is a
// norm.
KERNEL(128, 1) rotary_backward(
    const u32* positions, const u32* rows, const bf16* raw, const float* bias, const float* q_norm, const float* k_norm,
    const float* table, bf16* gradient, u32 heads, u32 kv_heads, float eps) {
    after_previous();
    const u32 half = HEAD_DIM / 2;
    const u32 token = blockIdx.x;
    if (rows[token] == NONE) return;
    const u64 all = heads + 2 * kv_heads;
    const u32 i = lane() * 2;
    const bool active = i < half;
    const float* angles = table + (u64)positions[token] * HEAD_DIM;
    for (u32 head = warp(); head < heads + kv_heads; head += blockDim.x / 32) {
        bf16* at = gradient + (token * all + head) * HEAD_DIM;
        float2 x = make_float2(0.0f, 0.0f), y = x;
        if (active) {
            const u32 left = *(const u32*)(at + i), right = *(const u32*)(at + half + i);
            const float2 c = *(const float2*)(angles + i), s = *(const float2*)(angles + half + i);
            x = make_float2(low(left) * c.x + low(right) * s.x, high(left) * c.y + high(right) * s.y);
            y = make_float2(low(right) * c.x - low(left) * s.x, high(right) * c.y - high(left) * s.y);
        }
        const float* weight = head < heads ? q_norm : k_norm;
        if (weight) {
            float2 u = make_float2(0.0f, 0.0f), v = u;
            if (active) {
                const bf16* from = raw + (token * all + head) * HEAD_DIM;
                const u32 left = *(const u32*)(from + i), right = *(const u32*)(from + half + i);
                u = make_float2(low(left), high(left));
                v = make_float2(low(right), high(right));
                if (bias) {
                    const float* b = bias + head * HEAD_DIM;
                    u = make_float2(u.x + b[i], u.y + b[i + 1]);
                    v = make_float2(v.x + b[half + i], v.y + b[half + i + 1]);
                }
                x = make_float2(x.x * weight[i], x.y * weight[i + 1]);
                y = make_float2(y.x * weight[half + i], y.y * weight[half + i + 1]);
            }
            const float squares = warp_sum(u.x * u.x + u.y * u.y + v.x * v.x + v.y * v.y);
            const float along = warp_sum(u.x * x.x + u.y * x.y + v.x * y.x + v.y * y.y);
            const float scale = rsqrtf(squares / HEAD_DIM + eps);
            const float back = along / HEAD_DIM * scale * scale * scale;
            x = make_float2(scale * x.x - back * u.x, scale * x.y - back * u.y);
            y = make_float2(scale * y.x - back * v.x, scale * y.y - back * v.y);
        }
        if (active) {
            *(u32*)(at + i) = pack(x.x, x.y);
            *(u32*)(at + half + i) = pack(y.x, y.y);
        }
    }
}
