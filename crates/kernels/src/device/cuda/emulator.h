// Runs CUDA kernels on the CPU, for tests: each thread of a block is a fiber, and blocks run one after the other.
//
// The emulator is stricter than hardware:
// - Shared memory is NaN when a block begins. An access must be ordered after other threads' writes, and a write also
//   after their reads, by __syncthreads or (within a warp) by __syncwarp. Otherwise it is an error, even if the threads
//   happened to run in a harmless order.
// - All threads of a block must meet at the same __syncthreads, and all lanes of a warp at the same shuffle. Waiting
//   for ever is an error.
// - The schedule chooses the order of blocks, warps and threads: 0 is ascending, 1 is descending, any other number is
//   random with that seed.
// - Memory outside an allocation is not mapped. Touching it ends the launch with an error that names the thread.
// - An access must be aligned to its type, and load4 and store4 to 16 bytes, in global and shared memory.
// - The arguments of a launch must have the types that the kernel declares.
//
// emulator_shared.h has shared memory, emulator_mma.h tensor cores.
//
// Not modelled: blocks that run at the same time, caches, and the order in which other threads see writes to global
// memory.
#pragma once
#define EMULATED 1
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

namespace emulator {

struct Dimensions {
    unsigned x, y, z;
};

// What a fiber does: not started, can run, waits at __syncthreads, waits for other lanes of its warp, has ended.
enum class State : uint8_t { New, Ready, AtBarrier, InWarp, Done };

// One emulated thread. `site` is the source line at which it waits.
struct Fiber {
    void* stack_pointer;
    char* stack;
    State state;
    unsigned site;
};

// One emulated warp: the lanes that have arrived at a shuffle or __syncwarp (a bit each), its source line, the number
// of __syncwarp so far, and the data of each lane.
struct Warp {
    uint32_t arrived;
    unsigned site;
    unsigned epoch;
    void* lanes[32];
};

// An access to shared memory: its thread and warp, and how many barriers the block and the warp had passed by then.
// SEVERAL stands for more than one thread or warp.
struct Access {
    static constexpr uint16_t NOBODY = 0xffff, SEVERAL = 0xfffe;
    uint16_t thread, warp;
    uint32_t block_epoch, warp_epoch;
};

// The last write and the last reads of GRANULE bytes of shared memory.
struct Cell {
    Access write, read;
};

// The arguments of a launch, laid out as the struct `Launch` of emulated.rs.
struct Launch {
    unsigned grid[3];
    unsigned threads;
    unsigned schedule;
    unsigned seconds;
    // If not 0, only this many blocks run, the last ones of the grid.
    unsigned last_blocks;
    // Parameters of the tensor cores (device/cuda/tensor_core.rs): bits after the binary point of an aligned term,
    // products that one step adds, and the exponent assigned to a term of 0.
    unsigned fraction, depth;
    int zero;
    void** arguments;
    char* error;
    size_t error_bytes;
    uint64_t fault;
};

// A registered kernel. `signature` has a letter for the type of each argument; `call` unpacks the arguments.
struct Kernel {
    const char* name;
    const char* signature;
    unsigned threads;
    void (*function)();
    void (*call)(void (*)(), void**);
};

// Accesses to shared memory are recorded for each GRANULE bytes.
static constexpr unsigned STACK = 128 << 10, SHARED_BYTES = 48 << 10, GRANULE = 4, WARP = 32;

static std::vector<Kernel>& kernels() {
    static std::vector<Kernel> all;
    return all;
}

// The state of the current launch. The host runs one launch at a time.
static struct {
    Dimensions thread, block, block_size, grid;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char*> stacks;
    void* host;
    unsigned current, live, at_barrier, barrier_site, epoch;
    unsigned shared_used, launch;
    bool failed;
    Launch* of;
    const Kernel* kernel;
    sigjmp_buf out;
    uint32_t random;
    alignas(128) char shared[SHARED_BYTES];
    Cell cells[SHARED_BYTES / GRANULE];
} now;

// Switches stacks: saves registers and the stack pointer to *from, and resumes what was saved at `to`.
extern "C" void emulator_switch(void** from, void* to);
#if defined(__x86_64__)
asm(".text\n.local emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(".text\n.local emulator_switch\n.type emulator_switch,%function\nemulator_switch:\n"
    "sub sp,sp,#176\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#176\nret\n");
#else
#error "the CUDA emulator switches stacks on x86-64 and aarch64"
#endif

// Puts the current thread into a state, and switches to the scheduler.
static void leave(State state) {
    Fiber& me = now.fibers[now.current];
    me.state = state;
    emulator_switch(&me.stack_pointer, now.host);
}

// Ends the launch with an error, whose message is printed as by printf.
[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    char what[400];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(now.of->error, now.of->error_bytes, "kernel %s, block (%u, %u, %u), thread %u: %s", now.kernel->name,
             now.block.x, now.block.y, now.block.z, now.current, what);
    now.failed = true;
    for (;;) leave(State::Done);
}

static void release_barrier() {
    now.at_barrier = 0;
    now.epoch++;
    for (Fiber& f : now.fibers)
        if (f.state == State::AtBarrier) f.state = State::Ready;
}

// __syncthreads of source line `site`.
static void barrier(unsigned site) {
    if (now.at_barrier && now.barrier_site != site)
        fail("waits at __syncthreads of line %u, others at that of line %u", site, now.barrier_site);
    now.barrier_site = site;
    if (++now.at_barrier == now.live) return release_barrier();
    now.fibers[now.current].site = site;
    leave(State::AtBarrier);
}

// Lets all lanes of a warp meet at source line `site`. Each lane shows its data `mine`. The last lane to arrive runs
// `work` on the warp, then all lanes continue.
template <class Work>
static void collective(uint32_t lanes, unsigned site, void* mine, Work work) {
    unsigned lane = now.current % WARP;
    Warp& warp = now.warps[now.current / WARP];
    if (lanes != 0xffffffffu) fail("line %u: lanes %08x, but shuffles are of whole warps", site, lanes);
    if (warp.arrived && warp.site != site)
        fail("lane %u is at line %u, others of its warp at line %u", lane, site, warp.site);
    warp.site = site;
    warp.lanes[lane] = mine;
    warp.arrived |= 1u << lane;
    if (warp.arrived == 0xffffffffu) {
        work(warp);
        warp.arrived = 0;
        unsigned first = now.current / WARP * WARP;
        for (unsigned i = first; i < first + WARP; i++)
            if (now.fibers[i].state == State::InWarp) now.fibers[i].state = State::Ready;
        return;
    }
    now.fibers[now.current].site = site;
    leave(State::InWarp);
}

// A warp shuffle: returns the `value` of lane `from`.
template <class T>
static T shuffle(uint32_t lanes, T value, unsigned site, unsigned from) {
    struct Lane {
        T value, result;
        unsigned from;
    } me = {value, value, from % WARP};
    collective(lanes, site, &me, [](Warp& warp) {
        for (void* lane : warp.lanes) ((Lane*)lane)->result = ((Lane*)warp.lanes[((Lane*)lane)->from])->value;
    });
    return me.result;
}

// The code that a fiber runs: the kernel, for one thread.
extern "C" void emulator_thread() {
    now.kernel->call(now.kernel->function, now.of->arguments);
    Fiber& me = now.fibers[now.current];
    now.live--;
    if (now.live && now.at_barrier == now.live) release_barrier();
    for (;;) leave(State::Done);
    (void)me;
}

// Gives a fiber a stack, prepared so that switching to it calls emulator_thread.
static void start(Fiber& fiber) {
    if (now.stacks.empty()) {
        void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) fail("no memory for the stack of a thread");
        mprotect(stack, 4096, PROT_NONE);
        now.stacks.push_back((char*)stack);
    }
    fiber.stack = now.stacks.back();
    now.stacks.pop_back();
    void** top = (void**)(fiber.stack + STACK - 64);
#if defined(__x86_64__)
    *--top = nullptr;
    *--top = (void*)emulator_thread;
    for (int i = 0; i < SAVED; i++) *--top = nullptr;
#else
    top -= 22;
    memset(top, 0, 176);
    top[11] = (void*)emulator_thread;
#endif
    fiber.stack_pointer = top;
}

// Runs one thread until it waits or ends. False if it could not run.
static bool advance(unsigned i) {
    Fiber& fiber = now.fibers[i];
    if (fiber.state != State::New && fiber.state != State::Ready) return false;
    now.current = i;
    now.thread = {i % now.block_size.x, i / now.block_size.x, 0};
    if (fiber.state == State::New) start(fiber);
    fiber.state = State::Ready;
    emulator_switch(&now.host, fiber.stack_pointer);
    if (fiber.state == State::Done && !now.failed) now.stacks.push_back(fiber.stack);
    return true;
}

static uint32_t random_below(uint32_t n) {
    now.random = now.random * 1664525u + 1013904223u;
    return (uint64_t)(now.random >> 8) * n >> 24;
}

// Reports a thread that waits for ever.
static void deadlock() {
    for (unsigned i = 0; i < now.fibers.size(); i++) {
        State state = now.fibers[i].state;
        if (state != State::AtBarrier && state != State::InWarp) continue;
        now.current = i;
        snprintf(now.of->error, now.of->error_bytes,
                 "kernel %s, block (%u, %u, %u), thread %u: waits for ever in line %u for threads that wait elsewhere or "
                 "ended",
                 now.kernel->name, now.block.x, now.block.y, now.block.z, i, now.fibers[i].site);
        now.failed = true;
        return;
    }
}

// Runs the threads of one block to their end, in the order of the schedule.
static void run_block(unsigned threads, std::vector<unsigned>& order) {
    for (Fiber& f : now.fibers) f.state = State::New;
    for (Warp& w : now.warps) w.arrived = w.epoch = 0;
    now.live = threads;
    now.at_barrier = now.epoch = 0;
    memset(now.shared, 0xff, now.shared_used);
    for (unsigned i = 0; i < now.shared_used / GRANULE; i++) now.cells[i].write.thread = now.cells[i].read.thread = Access::NOBODY;
    unsigned warps = threads / WARP, schedule = now.of->schedule;
    while (now.live && !now.failed) {
        bool any = false;
        if (schedule < 2) {
            // Each warp runs until all of its lanes wait or have ended, then the next warp.
            for (unsigned k = 0; k < warps; k++) {
                unsigned warp = schedule == 0 ? k : warps - 1 - k;
                for (bool moved = true; moved && !now.failed;) {
                    moved = false;
                    for (unsigned l = 0; l < WARP && !now.failed; l++)
                        moved |= advance(warp * WARP + (schedule == 0 ? l : WARP - 1 - l));
                    any |= moved;
                }
            }
        } else {
            for (unsigned i = threads - 1; i > 0; i--) std::swap(order[i], order[random_below(i + 1)]);
            for (unsigned i = 0; i < threads && !now.failed; i++) any |= advance(order[i]);
        }
        if (!any && now.live && !now.failed) deadlock();
    }
}

static void on_signal(int signal, siginfo_t* info, void*) {
    now.of->fault = signal == SIGSEGV || signal == SIGBUS ? (uint64_t)info->si_addr : 0;
    siglongjmp(now.out, signal);
}

// Runs all blocks of a launch. Returns 1 if the launch failed.
static int run(Launch* of, const Kernel* kernel) {
    unsigned threads = of->threads;
    now.of = of;
    now.kernel = kernel;
    now.failed = false;
    now.launch++;
    now.shared_used = 0;
    now.random = of->schedule * 2654435761u + 1;
    now.block_size = {threads, 1, 1};
    now.grid = {of->grid[0], of->grid[1], of->grid[2]};
    now.fibers.assign(threads, Fiber{});
    now.warps.assign(threads / WARP, Warp{});
    // The sizes of shared arrays are not known before the first block runs, so all shared memory becomes NaN.
    memset(now.shared, 0xff, sizeof now.shared);
    for (Cell& cell : now.cells) cell.write.thread = cell.read.thread = Access::NOBODY;
    uint64_t count = (uint64_t)of->grid[0] * of->grid[1] * of->grid[2];
    uint64_t skipped = of->last_blocks && of->last_blocks < count ? count - of->last_blocks : 0;
    std::vector<unsigned> order(threads);
    std::vector<uint64_t> blocks(count - skipped);
    for (unsigned i = 0; i < threads; i++) order[i] = i;
    for (uint64_t i = 0; i < blocks.size(); i++) blocks[i] = skipped + (of->schedule == 1 ? blocks.size() - 1 - i : i);
    if (of->schedule > 1)
        for (unsigned i = blocks.size() - 1; i > 0; i--) std::swap(blocks[i], blocks[random_below(i + 1)]);
    for (uint64_t block : blocks) {
        uint64_t plane = block / now.grid.x;
        now.block = {(unsigned)(block % now.grid.x), (unsigned)(plane % now.grid.y), (unsigned)(plane / now.grid.y)};
        run_block(threads, order);
        if (now.failed) return 1;
    }
    return 0;
}

extern "C" int emulator_launch(unsigned index, Launch* of) {
    const Kernel* kernel = &kernels()[index];
    if (of->threads % WARP || of->threads == 0 || of->threads > kernel->threads) {
        snprintf(of->error, of->error_bytes, "kernel %s: %u threads; it takes whole warps, at most %u threads", kernel->name,
                 of->threads, kernel->threads);
        return 1;
    }
    // Code that checks alignment (compiler options in emulated.rs) raises SIGILL or, on aarch64, SIGTRAP.
    const int signals[] = {SIGSEGV, SIGBUS, SIGVTALRM, SIGILL, SIGTRAP}, handled = sizeof signals / sizeof *signals;
    struct sigaction ours = {}, before[handled];
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < handled; i++) sigaction(signals[i], &ours, &before[i]);
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGVTALRM;
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    timer_t timer;
    struct itimerspec limit = {};
    limit.it_value.tv_sec = of->seconds;
    bool timed = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &limit, nullptr) == 0;
    int result;
    int signal = sigsetjmp(now.out, 1);
    if (signal == 0) {
        result = run(of, kernel);
    } else {
        const char* what = signal == SIGVTALRM                      ? "did not end in time"
                           : signal == SIGILL || signal == SIGTRAP ? "touched memory at an address that is not aligned to its type"
                                                                    : "touched memory outside an allocation";
        snprintf(of->error, of->error_bytes, "kernel %s, block (%u, %u, %u), thread %u: %s", kernel->name, now.block.x,
                 now.block.y, now.block.z, now.current, what);
        result = 2;
    }
    if (timed) timer_delete(timer);
    for (int i = 0; i < handled; i++) sigaction(signals[i], &before[i], nullptr);
    return result;
}

extern "C" int emulator_find(const char* name) {
    for (unsigned i = 0; i < kernels().size(); i++)
        if (!strcmp(kernels()[i].name, name)) return i;
    return -1;
}

extern "C" const char* emulator_signature(unsigned index) { return kernels()[index].signature; }

// Allocates device memory that ends at an unreadable page of the host, with another such page before it. Bytes between
// those pages that are not part of the allocation are filled with a pattern, which emulator_free checks. An allocation
// contains NaN; one of at least SPARSE bytes contains 0, so that the host's memory is not used before a write.
static constexpr unsigned PAGE = 4096, UNTOUCHED = 0xa5;
static constexpr size_t SPARSE = 1 << 30;
extern "C" void* emulator_allocate(size_t bytes) {
    size_t used = (bytes + 15) / 16 * 16, pages = (used + PAGE - 1) / PAGE * PAGE;
    char* start = (char*)mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    if (mprotect(start + PAGE, pages, PROT_READ | PROT_WRITE)) return munmap(start, pages + 2 * PAGE), nullptr;
    char* at = start + PAGE + pages - used;
    memset(start + PAGE, UNTOUCHED, pages - used);
    if (bytes < SPARSE) memset(at, 0xff, bytes);
    memset(at + bytes, UNTOUCHED, used - bytes);
    return at;
}

// Fills device memory with zeros, without using the host's memory for whole pages.
extern "C" void emulator_clear(void* memory, size_t bytes) {
    char *at = (char*)memory, *end = at + bytes;
    char *first = (char*)(((uintptr_t)at + PAGE - 1) / PAGE * PAGE), *last = (char*)((uintptr_t)end / PAGE * PAGE);
    if (first >= last || madvise(first, last - first, MADV_DONTNEED)) return (void)memset(at, 0, bytes);
    memset(at, 0, first - at);
    memset(last, 0, end - last);
}

// Frees device memory. Returns whether nothing was written beside the allocation.
extern "C" int emulator_free(void* memory, size_t bytes) {
    size_t used = (bytes + 15) / 16 * 16, pages = (used + PAGE - 1) / PAGE * PAGE;
    char *at = (char*)memory, *start = at - (pages - used) - PAGE;
    bool whole = true;
    for (char* p = start + PAGE; p < at; p++) whole &= (unsigned char)*p == UNTOUCHED;
    for (char* p = at + bytes; p < at + used; p++) whole &= (unsigned char)*p == UNTOUCHED;
    munmap(start, pages + 2 * PAGE);
    return whole;
}

// The letter of an argument's type in a kernel's signature.
template <class T>
constexpr char kind(T*) { return 'p'; }
constexpr char kind(float) { return 'f'; }
constexpr char kind(unsigned) { return 'u'; }
constexpr char kind(unsigned long long) { return 'l'; }
constexpr char kind(double) { return 'd'; }

template <class... A, size_t... I>
void call_with(void (*function)(A...), void** arguments, std::index_sequence<I...>) {
    function(*(A*)arguments[I]...);
}

template <class... A>
struct Registered {
    static void call(void (*function)(), void** arguments) {
        call_with((void (*)(A...))function, arguments, std::index_sequence_for<A...>());
    }
};

struct Register {
    template <class... A>
    Register(const char* name, unsigned threads, void (*function)(A...)) {
        static const char signature[] = {kind(A{})..., 0};
        kernels().push_back({name, signature, threads, (void (*)())function, Registered<A...>::call});
    }
};

}  // namespace emulator

#define threadIdx (emulator::now.thread)
#define blockIdx (emulator::now.block)
#define blockDim (emulator::now.block_size)
#define gridDim (emulator::now.grid)
#define __syncthreads() emulator::barrier(__LINE__)
#define __syncwarp() \
    emulator::collective(0xffffffffu, __LINE__, nullptr, [](emulator::Warp& warp) { warp.epoch++; })
#define __shfl_xor_sync(lanes, value, mask) emulator::shuffle(lanes, value, __LINE__, threadIdx.x ^ (mask))
#define __shfl_sync(lanes, value, from) emulator::shuffle(lanes, value, __LINE__, from)

#define DEVICE static inline
#define DEVICE_METHOD inline
#define KERNEL(name, threads, ...)                                                    \
    static void name(__VA_ARGS__);                                                    \
    static emulator::Register registered_##name(#name, threads, name);                \
    static void name(__VA_ARGS__)
#define PAIRED_KERNEL KERNEL

static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline double __hiloint2double(int high, int low) {
    uint64_t bits = (uint64_t)(uint32_t)high << 32 | (uint32_t)low;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
