// A GPU emulated on the CPU: enough of CUDA C++ for this crate's kernels to compile with a host compiler and run as the
// language defines them. Every thread of a block is a fiber; fibers switch at barriers and at warp-wide operations.
// Shared memory starts as NaN, and warps and blocks run in an order derived from the seed. Errors that a GPU would not
// detect or survive (part of a warp at a shuffle, a misaligned load, too much shared memory) stop the launch with a
// message.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define EMULATED 1
#define KERNEL(threads, blocks) static void
#define DEVICE static inline
#define DEVICE_METHOD inline
#define SHARED_ARRAY(type, name, size)                 \
    static thread_local emu::Slot slot_##name;         \
    type* name = emu::shared<type>(slot_##name, size)
#define SHARED_BYTES(name) unsigned char* name = emu::dynamic_shared()

struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct dim3 { uint32_t x, y, z; };
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emu {

constexpr size_t SHARED = 227 * 1024, STATIC = 48 * 1024, STACK = 64 * 1024;

// Values exchanged between lanes. Two per warp: a fast lane may already be at the next exchange.
struct Exchange {
    uint64_t word[32];
    uint32_t a[32][4], b[32][2];
};

struct Warp {
    uint32_t live = 0, arrived = 0, generation = 0, kind = 0;
    Exchange exchange[2];
};

// An asynchronous copy to shared memory that has not landed.
struct Copy {
    void* to;
    const void* from;
    uint32_t group;
};

struct Fiber {
    void* stack = nullptr;
    void* saved = nullptr;
    dim3 thread{};
    uint32_t warp = 0, lane = 0;
    // Blocked while `*waits == until`.
    const uint32_t* waits = nullptr;
    uint32_t until = 0;
    bool done = false;
    // The thread has waited for the launch before.
    bool ordered = false;
    std::vector<Copy> copies{};
    uint32_t groups = 0;  // groups of copies that were closed
};

struct Slot {
    uint64_t block = 0;
    void* place = nullptr;
};

struct Machine {
    dim3 grid{}, block{}, index{};
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Fiber* self = nullptr;
    void* scheduler = nullptr;
    void (*body)(void**) = nullptr;
    void** arguments = nullptr;
    unsigned char* shared = nullptr;
    size_t dynamic = 0, used = 0;
    uint64_t blocks = 0;  // ever run
    uint64_t copies = 0;  // ever started
    uint32_t live = 0, arrived = 0, generation = 0;
    // Called when all threads of the first block have waited for the launch before; null after that.
    bool (*waited)(void*) = nullptr;
    void* context = nullptr;
    uint32_t ordered = 0, waits = 0;
    char trouble[256] = {};
};

extern thread_local Machine machine;
extern "C" void emu_switch(void** save, void* load);

inline void fail(const char* what) {
    if (!machine.trouble[0]) {
        const Fiber& f = *machine.self;
        snprintf(machine.trouble, sizeof machine.trouble, "%s (block %u %u %u, thread %u)", what, machine.index.x,
                 machine.index.y, machine.index.z, f.thread.x);
    }
    // Never resume this thread; the launch ends.
    for (;;) emu_switch(&machine.self->saved, machine.scheduler);
}

inline void wait(const uint32_t& generation) {
    Fiber* self = machine.self;
    self->waits = &generation;
    self->until = generation;
    emu_switch(&self->saved, machine.scheduler);
    self->waits = nullptr;
}

// Synchronizes all lanes of a warp at the same kind of operation, and returns the exchanged values; `show` stores the
// caller's value.
template <typename Show>
inline const Exchange& together(uint32_t kind, Show show) {
    Warp& warp = machine.warps[machine.self->warp];
    if (warp.live != 32) fail("a warp without all of its lanes");
    Exchange& exchange = warp.exchange[warp.generation % 2];
    if (warp.arrived == 0) warp.kind = kind;
    if (warp.kind != kind) fail("lanes of a warp at different places");
    show(exchange, machine.self->lane);
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait(warp.generation);
    }
    return exchange;
}

template <typename T>
inline T exchange(T x, uint32_t kind, uint32_t from) {
    static_assert(sizeof(T) <= 8);
    const Exchange& all = together(kind, [&](Exchange& to, uint32_t lane) { memcpy(&to.word[lane], &x, sizeof x); });
    memcpy(&x, &all.word[from], sizeof x);
    return x;
}

inline void barrier() {
    if (machine.live != machine.block.x) fail("a barrier that some threads do not reach");
    if (++machine.arrived == machine.live) {
        machine.arrived = 0;
        machine.generation++;
    } else {
        wait(machine.generation);
    }
}

// Waits for the launch before. Threads of the first block of a launch wait for each other here as well: until the last of
// them has come, memory shows none of what earlier launches wrote.
inline void await_previous() {
    Machine& m = machine;
    if (m.self->ordered) return;
    m.self->ordered = true;
    if (!m.waited) return;
    if (++m.ordered < m.block.x) return wait(m.waits);
    m.waits++;
    bool (*waited)(void*) = m.waited;
    m.waited = nullptr;
    if (!waited(m.context)) fail("memory was written before a wait for the launch before");
}

inline unsigned char* dynamic_shared() { return machine.shared; }

template <typename T>
inline T* shared(Slot& slot, size_t size) {
    if (slot.block != machine.blocks) {
        machine.used = (machine.used + 15) / 16 * 16;
        slot = {machine.blocks, machine.shared + machine.used};
        machine.used += size * sizeof(T);
        if (machine.used > SHARED || machine.used - machine.dynamic > STATIC) fail("too much shared memory");
    }
    return (T*)slot.place;
}

template <typename T>
inline const T& aligned(const void* at) {
    if ((uintptr_t)at % sizeof(T)) fail("an access off its alignment");
    return *(const T*)at;
}

template <typename... A, size_t... I>
inline void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}

template <typename... A>
inline void call(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
}

struct Entry {
    const char* name;
    uint32_t dim;  // 0: the same for all
    void (*body)(void**);
};

}  // namespace emu

#define threadIdx (emu::machine.self->thread)
#define blockIdx (emu::machine.index)
#define blockDim (emu::machine.block)
#define gridDim (emu::machine.grid)

static inline void __syncthreads() { emu::barrier(); }
static inline void __threadfence() {}
static inline int __ffs(uint32_t x) { return __builtin_ffs((int)x); }
static inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline uint32_t atomicAdd(uint32_t* at, uint32_t x) { return (*at += x) - x; }
static inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long x) { return (*at += x) - x; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }

static inline float infinity() { return INFINITY; }
static inline uint32_t bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float from_bits(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
template <typename T>
static inline T shuffle_xor(T x, int mask) { return emu::exchange(x, 1, emu::machine.self->lane ^ mask); }
template <typename T>
static inline T shuffle_up(T x, int delta) {
    const uint32_t lane = emu::machine.self->lane;
    return emu::exchange(x, 2, lane < (uint32_t)delta ? lane : lane - delta);
}
template <typename T>
static inline T shuffle(T x, int from) { return emu::exchange(x, 3, from % 32); }
static inline uint32_t votes(bool holds) {
    const emu::Exchange& all = emu::together(4, [&](emu::Exchange& to, uint32_t lane) { to.word[lane] = holds; });
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(all.word[i] & 1) << i;
    return bits;
}

// Round to nearest, ties to even; NaN stays NaN.
static inline uint32_t round_bf16(float x) {
    const uint32_t b = bits(x);
    return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
static inline uint32_t pack(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }

static inline float half_of(uint32_t both, int i) { return from_bits(i ? both & 0xffff0000u : both << 16); }

static inline uint32_t times_2_120(uint32_t both) {
    return pack(half_of(both, 0) * 0x1p120f, half_of(both, 1) * 0x1p120f);
}

// Implements mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16") with sums in double.
static inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const emu::Exchange& all = emu::together(5, [&](emu::Exchange& to, uint32_t lane) {
        to.a[lane][0] = a0, to.a[lane][1] = a1, to.a[lane][2] = a2, to.a[lane][3] = a3;
        to.b[lane][0] = b0, to.b[lane][1] = b1;
    });
    const uint32_t lane = emu::machine.self->lane, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        const uint32_t row = g + i / 2 * 8, column = 2 * t + i % 2;
        double sum = c[i];
        for (uint32_t k = 0; k < 16; k++) {
            // Column k of `a` belongs to lane k % 8 / 2; registers 0, 1 have k < 8, odd registers the lower rows.
            const uint32_t a = all.a[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
            const uint32_t b = all.b[column * 4 + k % 8 / 2][k / 8];
            sum += (double)half_of(a, k % 2) * half_of(b, k % 2);
        }
        c[i] = (float)sum;
    }
}

// Implements movmatrix.m8n8.trans: element i of row r belongs to lane 4 r + i / 2.
static inline uint32_t transpose(uint32_t x) {
    const emu::Exchange& all = emu::together(6, [&](emu::Exchange& to, uint32_t lane) { to.word[lane] = x; });
    const uint32_t lane = emu::machine.self->lane, column = lane / 4, row = lane % 4 * 2;
    const auto element = [&](uint32_t r) { return (uint32_t)all.word[4 * r + column / 2] >> 16 * (column % 2) & 0xffff; };
    return element(row) | element(row + 1) << 16;
}

static inline uint4 load16(const void* from) { return emu::aligned<uint4>(from); }
static inline uint4 load_once(const void* from) { return emu::aligned<uint4>(from); }
static inline uint2 load8(const void* from) { return emu::aligned<uint2>(from); }
static inline void store16(void* to, uint4 value) { const_cast<uint4&>(emu::aligned<uint4>(to)) = value; }
// A copy lands at once or, as often, only when it is awaited: a result depends on neither, unless an access lacks a wait
// or a barrier.
static inline void copy16(void* to, const void* from) {
    emu::aligned<uint4>(to);
    emu::aligned<uint4>(from);
    if (emu::machine.copies++ * 0x9e3779b97f4a7c15ull >> 63) {
        memcpy(to, from, 16);
    } else {
        emu::Fiber& self = *emu::machine.self;
        self.copies.push_back({to, from, self.groups});
    }
}
static inline void close_copies() { emu::machine.self->groups++; }
template <int LEFT>
static inline void await_copies() {
    emu::Fiber& self = *emu::machine.self;
    std::vector<emu::Copy> left;
    for (const emu::Copy& copy : self.copies) {
        if (copy.group + LEFT < self.groups) {
            memcpy(copy.to, copy.from, 16);
        } else {
            left.push_back(copy);
        }
    }
    self.copies = left;
}
static inline float exp2_flushed(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
static inline float load_shared_by_blocks(const float* from) { return *from; }
static inline float4 load_four_shared_by_blocks(const float* from) { return emu::aligned<float4>(from); }
static inline void after_previous() { emu::await_previous(); }
