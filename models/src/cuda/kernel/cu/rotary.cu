// Bias, norm per head and rotation; queries in place, keys and values into the KV cache. One warp per token and head. A
// lane holds two neighboring values of each half of its head.

// Offset of a value within its head's share of a block: the order in which `attention.cu` reads values.
DEVICE u32 value_place(u32 token, u32 at) {
    const u32 lane = at % 8 * 4 + token % 8 / 2;
    const u32 slot = token / 8 * 2 + token % 2;
    return BLOCK * HEAD_DIM + ((at / 16 * 32 + lane) * 2 + at / 8 % 2) * 4 + slot;
}

KERNEL(128, 1) rotary(
    const u32* positions, const u32* rows, const u32* tables, u32 stride, bf16* qkv, const float* bias,
    const float* q_norm, const float* k_norm, const float* table, bf16* cache, u32 heads, u32 kv_heads, float eps) {
    after_previous();
    const u32 half = HEAD_DIM / 2;
    const u32 all = heads + 2 * kv_heads, head = blockIdx.y * (blockDim.x / 32) + warp();
    if (head >= all) return;
    const u32 i = lane() * 2;
    const bool active = i < half;
    // Reads that do not depend on each other come first, so that they overlap.
    const u32 token = blockIdx.x, row = rows[token], position = positions[token];
    bf16* at = qkv + ((u64)token * all + head) * HEAD_DIM;
    u32 left = 0, right = 0;
    if (active) {
        left = *(const u32*)(at + i);
        right = *(const u32*)(at + half + i);
    }
    if (row == NONE) return;
    const u32 slot = position % BLOCK;
    const u64 block = tables[(u64)row * stride + position / BLOCK];
    float2 cosine = make_float2(0.0f, 0.0f), sine = cosine;
    if (active) {
        cosine = *(const float2*)(table + (u64)position * HEAD_DIM + i);
        sine = *(const float2*)(table + (u64)position * HEAD_DIM + half + i);
    }
    float2 x = make_float2(low(left), high(left)), y = make_float2(low(right), high(right));
    if (active && bias) {
        const float* b = bias + head * HEAD_DIM;
        x = make_float2(x.x + b[i], x.y + b[i + 1]);
        y = make_float2(y.x + b[half + i], y.y + b[half + i + 1]);
    }
    const bool is_value = head >= heads + kv_heads;
    if (!is_value) {
        const float* weight = head < heads ? q_norm : k_norm;
        if (weight) {
            const float squares = warp_sum(x.x * x.x + x.y * x.y + y.x * y.x + y.y * y.y);
            const float scale = rsqrtf(squares / HEAD_DIM + eps);
            if (active) {
                x = make_float2(x.x * scale * weight[i], x.y * scale * weight[i + 1]);
                y = make_float2(y.x * scale * weight[half + i], y.y * scale * weight[half + i + 1]);
            }
        }
        const float2 u = make_float2(x.x * cosine.x - y.x * sine.x, x.y * cosine.y - y.y * sine.y);
        y = make_float2(y.x * cosine.x + x.x * sine.x, y.y * cosine.y + x.y * sine.y);
        x = u;
    }
    if (!active) return;
    if (head < heads) {
        *(u32*)(at + i) = pack(x.x, x.y);
        *(u32*)(at + half + i) = pack(y.x, y.y);
        return;
    }
    const u32 kv_head = (head - heads) % kv_heads;
    bf16* place = cache + (block * kv_heads + kv_head) * (2 * BLOCK * HEAD_DIM);
    if (is_value) {
        place[value_place(slot, i)] = narrow(x.x);
        place[value_place(slot, i + 1)] = narrow(x.y);
        place[value_place(slot, half + i)] = narrow(y.x);
        place[value_place(slot, half + i + 1)] = narrow(y.y);
    } else {
        *(u32*)(place + slot * HEAD_DIM + i) = pack(x.x, x.y);
        *(u32*)(place + slot * HEAD_DIM + half + i) = pack(y.x, y.y);
    }
}
