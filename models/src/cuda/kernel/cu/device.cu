// Shared by all kernels: types, conversions, sums over a warp and a block, and tensor core instructions.
//
// Compiled by NVRTC for a GPU (sm_80 and later) without any header, and by a host compiler with EMULATED set, where the
// emulator defines the few primitives below that are not C++.

typedef unsigned short bf16;  // its bits
typedef unsigned int u32;
typedef unsigned long long u64;

#define NONE 0xffffffffu
// Number of tokens per block of the KV cache.
#define BLOCK 16
#define LOG2E 1.4426950408889634f

#ifndef EMULATED
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define SHARED_ARRAY(type, name, size) __shared__ __align__(16) type name[size]
#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]

DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE u32 bits(float x) { return __float_as_uint(x); }
DEVICE float from_bits(u32 x) { return __uint_as_float(x); }

template <typename T>
DEVICE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <typename T>
DEVICE T shuffle_up(T x, int delta) { return __shfl_up_sync(0xffffffffu, x, delta); }
template <typename T>
DEVICE T shuffle(T x, int from) { return __shfl_sync(0xffffffffu, x, from); }
DEVICE u32 votes(bool holds) { return __ballot_sync(0xffffffffu, holds); }

// Two floats rounded to bf16, `low` in the low half.
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Two values of bf16, each times 2^120.
DEVICE u32 times_2_120(u32 both) {
    u32 y;
    // Plus -0, which keeps the sign of a zero.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(both), "r"(0x7b807b80u), "r"(0x80008000u));
    return y;
}

// c += a · b for a of 16 × 16, b of 16 × 8. With g = lane / 4 and t = lane % 4, a lane holds
//   of a: rows g, g + 8, g, g + 8 at columns 2t, 2t, 2t + 8, 2t + 8, and the next column of each;
//   of b: rows 2t and 2t + 8, and the next row of each, at column g;
//   of c: row g at columns 2t, 2t + 1; row g + 8 at the same.
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transpose of an 8 × 8 matrix of bf16, of which each lane holds row g, columns 2t and 2t + 1.
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Vectorized loads and stores of sixteen and eight bytes.
DEVICE uint4 load16(const void* from) { return *(const uint4*)from; }
DEVICE uint2 load8(const void* from) { return *(const uint2*)from; }
DEVICE void store16(void* to, uint4 value) { *(uint4*)to = value; }
// Reads sixteen bytes that no kernel writes and that are used once, so that they take no place in the L1 cache.
DEVICE uint4 load_once(const void* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}
// Starts a copy of sixteen bytes to shared memory, which bypasses the L1 cache.
DEVICE void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
// Ends a group of this thread's copies, which may be empty.
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last LEFT groups of this thread's copies are under way. Other threads see the copies after a
// barrier.
template <int LEFT>
DEVICE void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
// 2^x, with results below 2^-126 flushed to zero.
DEVICE float exp2_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Bypasses the L1 cache, to read values written by other blocks of the same launch.
DEVICE float load_shared_by_blocks(const float* from) { return __ldcg(from); }
DEVICE float4 load_four_shared_by_blocks(const float* from) { return __ldcg((const float4*)from); }

// Lets the next launch start its blocks, and waits until all launches before this one are complete and their writes
// visible. From compute capability 9.0 on, a launch may start when all blocks of the one before have come here.
// Every thread of every kernel calls it first: before it, a kernel may only read what no kernel writes, and a block that
// left without it could complete its launch before the one before.
DEVICE void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
#endif

DEVICE float low(u32 both) { return from_bits(both << 16); }
DEVICE float high(u32 both) { return from_bits(both & 0xffff0000u); }
DEVICE float widen(bf16 x) { return from_bits((u32)x << 16); }
DEVICE bf16 narrow(float x) { return (bf16)pack(x, 0.0f); }

DEVICE u32 lane() { return threadIdx.x % 32; }
DEVICE u32 warp() { return threadIdx.x / 32; }
DEVICE u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

template <typename T>
DEVICE T warp_sum(T x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// Returns the sum over a block in every thread. `room` holds one value per warp and may be reused immediately.
template <typename T>
DEVICE T block_sum(T x, T* room) {
    x = warp_sum(x);
    if (lane() == 0) room[warp()] = x;
    __syncthreads();
    x = lane() < blockDim.x / 32 ? room[lane()] : (T)0;
    x = warp_sum(x);
    __syncthreads();
    return x;
}

DEVICE float block_max(float x, float* room) {
    x = warp_max(x);
    if (lane() == 0) room[warp()] = x;
    __syncthreads();
    x = warp_max(lane() < blockDim.x / 32 ? room[lane()] : -infinity());
    __syncthreads();
    return x;
}

// The same for integers.
DEVICE u32 block_largest(u32 x, u32* room) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
    if (lane() == 0) room[warp()] = x;
    __syncthreads();
    x = lane() < blockDim.x / 32 ? room[lane()] : 0;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
    __syncthreads();
    return x;
}
