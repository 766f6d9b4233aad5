// Conversion between bf16 and f32: eight values per thread.

KERNEL(256, 1) widen(const bf16* from, float* to, u32 eights) {
    after_previous();
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= eights) return;
    const uint4 x = load16(from + 8 * i);
    *(float4*)(to + 8 * i) = make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
    *(float4*)(to + 8 * i + 4) = make_float4(low(x.z), high(x.z), low(x.w), high(x.w));
}

KERNEL(256, 1) narrow_all(const float* from, bf16* to, u32 eights) {
    after_previous();
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= eights) return;
    const float4 x = *(const float4*)(from + 8 * i), y = *(const float4*)(from + 8 * i + 4);
    store16(to + 8 * i, make_uint4(pack(x.x, x.y), pack(x.z, x.w), pack(y.x, y.y), pack(y.z, y.w)));
}
