// Scheduler of the emulator. It follows `device.h`, the kernels, and a table of entry points `emu::ENTRIES`.

namespace emu {

thread_local Machine machine;

#if defined(__x86_64__)
// Saves the callee-saved registers on one stack and restores them from the other.
__asm__(
    ".text\n.globl emu_switch\n.hidden emu_switch\nemu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void fiber_main();

static void* prepare(unsigned char* stack) {
    // Prepare the stack as if `fiber_main` had been called: a return address, then six registers.
    void** top = (void**)((uintptr_t)(stack + STACK) / 16 * 16);
    *--top = nullptr;
    *--top = (void*)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}
#else
#error "the emulator's fibers are written for x86_64"
#endif

static void fiber_main() {
    machine.body(machine.arguments);
    Fiber* self = machine.self;
    if (!self->ordered) fail("a thread that did not wait for the launch before");
    self->done = true;
    machine.live--;
    Warp& warp = machine.warps[self->warp];
    warp.live--;
    if (warp.arrived) fail("a lane ended while its warp waits for it");
    if (machine.arrived) fail("a thread ended while its block waits for it");
    for (;;) emu_switch(&self->saved, machine.scheduler);
}

static uint64_t random(uint64_t& state) {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void shuffle_order(std::vector<uint32_t>& order, uint64_t& seed) {
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random(seed) % i]);
}

static bool run_block(std::vector<uint32_t>& order, uint64_t& seed) {
    Machine& m = machine;
    const uint32_t threads = m.block.x;
    m.blocks++;
    m.used = m.dynamic;
    memset(m.shared, 0xff, SHARED);
    m.live = threads;
    m.arrived = 0;
    m.warps.assign(threads / 32, Warp{});
    for (uint32_t i = 0; i < threads; i++) {
        Fiber& fiber = m.fibers[i];
        fiber.saved = prepare((unsigned char*)fiber.stack);
        fiber.thread = {i, 0, 0};
        fiber.warp = i / 32;
        fiber.lane = i % 32;
        fiber.waits = nullptr;
        fiber.done = false;
        fiber.ordered = false;
        fiber.copies.clear();
        fiber.groups = 0;
        m.warps[i / 32].live++;
    }
    shuffle_order(order, seed);
    while (m.live) {
        bool moved = false;
        for (uint32_t warp : order) {
            // Run one warp as far as it can go before any other: a legal but adversarial schedule.
            for (bool again = true; again;) {
                again = false;
                for (uint32_t i = warp * 32; i < warp * 32 + 32; i++) {
                    Fiber& fiber = m.fibers[i];
                    if (fiber.done || (fiber.waits && *fiber.waits == fiber.until)) continue;
                    m.self = &fiber;
                    emu_switch(&m.scheduler, fiber.saved);
                    if (m.trouble[0]) return false;
                    again = moved = true;
                }
            }
        }
        if (!moved) {
            snprintf(m.trouble, sizeof m.trouble, "threads wait for each other (block %u %u %u)", m.index.x, m.index.y, m.index.z);
            return false;
        }
    }
    return true;
}

}  // namespace emu

// Runs a kernel to completion. Calls `waited` once, when the threads of its first block have waited for the launch before.
// Returns null, or an error message.
extern "C" const char* emu_launch(
    const char* name, uint32_t dim, const uint32_t* grid, uint32_t threads, uint32_t shared, void** arguments, uint64_t seed,
    bool (*waited)(void*), void* context) {
    using namespace emu;
    Machine& m = machine;
    m.trouble[0] = 0;
    m.body = nullptr;
    for (const Entry& entry : ENTRIES) {
        if (!strcmp(entry.name, name) && (entry.dim == 0 || entry.dim == dim)) m.body = entry.body;
    }
    if (!m.body) return "no such kernel";
    if (threads == 0 || threads % 32 || threads > 1024) return "threads that are no whole warps";
    if (shared > SHARED) return "too much shared memory";
    if (grid[1] > 65535 || grid[2] > 65535) return "a grid too high or deep";
    m.grid = {grid[0], grid[1], grid[2]};
    m.block = {threads, 1, 1};
    m.arguments = arguments;
    m.dynamic = shared;
    m.waited = waited;
    m.context = context;
    m.ordered = 0;
    if (!m.shared) m.shared = (unsigned char*)aligned_alloc(256, (SHARED + 255) / 256 * 256);
    while (m.fibers.size() < threads) {
        m.fibers.push_back({});
        m.fibers.back().stack = aligned_alloc(64, STACK);
    }
    std::vector<uint32_t> blocks((size_t)grid[0] * grid[1] * grid[2]), warps(threads / 32);
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = (uint32_t)i;
    for (size_t i = 0; i < warps.size(); i++) warps[i] = (uint32_t)i;
    shuffle_order(blocks, seed);
    for (uint32_t i : blocks) {
        m.index = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        if (!run_block(warps, seed)) return m.trouble;
    }
    return nullptr;
}
