// SiLU(gate) · up: eight values per thread, one row per block in y.

DEVICE float silu_times(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

DEVICE u32 silu_pair(u32 gate, u32 up) {
    return pack(silu_times(low(gate), low(up)), silu_times(high(gate), high(up)));
}

KERNEL(256, 1) silu_mul(const bf16* gate_up, bf16* out, u32 width) {
    after_previous();
    const u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= width) return;
    const bf16* row = gate_up + (u64)blockIdx.y * 2 * width;
    const uint4 gate = load16(row + i), up = load16(row + width + i);
    const uint4 y = make_uint4(silu_pair(gate.x, up.x), silu_pair(gate.y, up.y), silu_pair(gate.z, up.z), silu_pair(gate.w, up.w));
    store16(out + (u64)blockIdx.y * width + i, y);
}
