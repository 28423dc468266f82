// The text that every CUDA source begins with: types, and the functions and sums of the CPU, which give the same bits
// on the GPU (docs/arithmetic.md has the formulas).
//
// The compiler does not fuse multiplications with additions (NVRTC's -fmad=false): fused multiply-adds are written as
// __fmaf_rn. Division and square root are rounded correctly, and denormals are kept. No function of CUDA's mathematical
// library is called.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
// Declares a kernel for blocks of at most `threads` threads, a multiple of 32. The 1 requests only one resident block
// per multiprocessor, so that the compiler uses more registers rather than spilling them.
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads, 1) name(__VA_ARGS__)
// The same, with registers for two resident blocks per multiprocessor: one computes while the other waits.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
// NVRTC 13 spills registers there if two blocks must fit.
#define PAIRED_KERNEL(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
#else
#define PAIRED_KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads, 2) name(__VA_ARGS__)
#endif
// Declares an array in shared memory, one for each block of threads.
#define SHARED(type, name, count) __shared__ __align__(128) type name[count]
#endif

// Four neighbouring numbers.
struct Four {
    float of[4];
};

// load4 and store4 access four numbers by one instruction. The address is aligned to 16 bytes. It is in global memory,
// or that of an element of a shared array: &array[i], which a kernel holds as `auto`.
#ifndef EMULATED
DEVICE Four load4(const float* at) {
    float4 x = *(const float4*)at;
    return Four{{x.x, x.y, x.z, x.w}};
}
DEVICE void store4(float* at, Four x) { *(float4*)at = float4{x.of[0], x.of[1], x.of[2], x.of[3]}; }
#else
DEVICE Four load4(const float* at) {
    Four x;
    memcpy(&x, emulator::reach(at, sizeof x), sizeof x);
    return x;
}
DEVICE Four load4(emulator::Pointer<float> at) {
    Four x;
    memcpy(&x, at.reach(4, false), sizeof x);
    return x;
}
DEVICE void store4(float* at, Four x) { memcpy(emulator::reach(at, sizeof x), &x, sizeof x); }
DEVICE void store4(emulator::Pointer<float> at, Four x) { memcpy(at.reach(4, true), &x, sizeof x); }
#endif
// Whether load4 and store4 may use the address.
DEVICE bool aligned4(const float* at) { return (u64)at % 16 == 0; }

#define ALL_LANES 0xffffffffu
// Lanes of the CPU's vectors, in whose order a kernel sums a row.
#define LANES 16
// Rows of one panel of a weight matrix (matrix.rs).
#define PANEL 32

// Index of the thread along the grid's first dimension, over all blocks.
DEVICE u64 thread_of_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Index in memory of element (row, col) of a weight matrix stored in panels of 32 rows: [ceil(rows / 32)][cols][32].
DEVICE u64 panel_at(u64 cols, u64 row, u64 col) { return (row / PANEL * cols + col) * PANEL + row % PANEL; }

// The larger of a and b; if either is NaN, a.
DEVICE float larger(float a, float b) { return b > a ? b : a; }
// The smaller of a and b; if either is NaN, a.
DEVICE float smaller(float a, float b) { return b < a ? b : a; }

DEVICE float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
// Rounds to the nearest bf16, ties to even. NaN stays NaN.
DEVICE u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// e^x, if both e^x and e^-x are normal numbers (polynomial of Cephes expf).
DEVICE float exp_power(float x) {
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = __fmaf_rn(n, -0.6933594f, x);
    r = __fmaf_rn(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = __fmaf_rn(p, r, 1.3982e-3f);
    p = __fmaf_rn(p, r, 8.333452e-3f);
    p = __fmaf_rn(p, r, 4.1665796e-2f);
    p = __fmaf_rn(p, r, 1.6666665e-1f);
    p = __fmaf_rn(p, r, 5e-1f);
    float y = __fmaf_rn(p, r * r, r) + 1.0f;
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
}

#define EXP_UNDERFLOW -87.33f
#define EXP_OVERFLOW 88.72f

// e^x, but about 1e-38 instead of 0 for x below -87.33. Infinite above 88.72; NaN stays NaN.
DEVICE float exp_or_tiny(float x) {
    float e = exp_power(smaller(larger(x, EXP_UNDERFLOW), EXP_OVERFLOW));
    return x <= EXP_OVERFLOW ? e : x + __uint_as_float(0x7f800000u);
}

// e^x: 0 for x below -87.33, infinite above 88.72; NaN stays NaN.
DEVICE float exp_(float x) { return x < EXP_UNDERFLOW ? 0.0f : exp_or_tiny(x); }

// The logistic function 1 / (1 + e^-x).
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_or_tiny(0.0f - x)); }

// The natural logarithm of a positive normal number x (polynomial of Cephes logf).
DEVICE float ln_(float x) {
    u32 bits = __float_as_uint(x);
    float e = (float)((int)(bits >> 23) - 127), m = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
    bool large = 1.41421356f < m;
    m = large ? m * 0.5f : m;
    e = large ? e + 1.0f : e;
    float r = m - 1.0f, p = 7.0376836e-2f;
    p = __fmaf_rn(p, r, -1.151461e-1f);
    p = __fmaf_rn(p, r, 1.1676999e-1f);
    p = __fmaf_rn(p, r, -1.2420141e-1f);
    p = __fmaf_rn(p, r, 1.4249323e-1f);
    p = __fmaf_rn(p, r, -1.6668058e-1f);
    p = __fmaf_rn(p, r, 2.0000715e-1f);
    p = __fmaf_rn(p, r, -2.4999994e-1f);
    p = __fmaf_rn(p, r, 3.333333e-1f);
    float square = r * r, y = p * r * square;
    y = __fmaf_rn(e, -2.1219444e-4f, y);
    y = __fmaf_rn(square, -0.5f, y);
    y = y + r;
    return __fmaf_rn(e, 0.6933594f, y);
}

// The sum of x over 16 neighbouring lanes of a warp, in the order in which the CPU sums a vector: halves are folded
// onto each other, over distances of 8, 4, 2 and 1 lanes. All 16 lanes get the same bits, since addition commutes. All
// lanes of the warp must call this function.
DEVICE float sum_of_16(float x) {
    x = x + __shfl_xor_sync(ALL_LANES, x, 8);
    x = x + __shfl_xor_sync(ALL_LANES, x, 4);
    x = x + __shfl_xor_sync(ALL_LANES, x, 2);
    return x + __shfl_xor_sync(ALL_LANES, x, 1);
}

// The largest x of 16 neighbouring lanes of a warp. All lanes of the warp must call this function.
DEVICE float largest_of_16(float x) {
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 8));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 4));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 2));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 1));
    // Only lane 0 compared lower lanes with higher lanes, as the CPU does. The order decides the result for NaN and for
    // zeros of both signs, so all 16 lanes take the result of lane 0.
    return __shfl_sync(ALL_LANES, x, threadIdx.x % 32 / 16 * 16);
}

// Four random words of 32 bits.
struct Words {
    u32 of[4];
};

// The random words of key `key` and counter `c`: Philox4x32-10 (Salmon et al., SC 2011).
DEVICE Words philox(u64 key, Words c) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c.of[0]), low0 = 0xD2511F53u * c.of[0];
        u32 high1 = __umulhi(0xCD9E8D57u, c.of[2]), low1 = 0xCD9E8D57u * c.of[2];
        c = Words{{high1 ^ c.of[1] ^ k0, low1, high0 ^ c.of[3] ^ k1, low0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// Maps the upper 24 bits of a random word to a number in [0, 1).
DEVICE float unit(u32 word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }
