// What every kernel begins with: types, and the functions and sums of the CPU, to the bit (docs/arithmetic.md).
//
// Products and sums are not contracted (NVRTC's -fmad=false): a fused multiply-add is written out as __fmaf_rn. Division
// and square roots are rounded correctly, denormals are kept; no function of CUDA's mathematical library is called.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
// A kernel for blocks of at most `threads` threads, whole warps of them. One block on a processor is enough: the compiler
// shall rather use registers than spill them so that more fit.
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads, 1) name(__VA_ARGS__)
// An array that the threads of a block share.
#define SHARED(type, name, count) __shared__ __align__(128) type name[count]
#endif

#define ALL_LANES 0xffffffffu
// Lanes of the CPU's vectors, and rows of a panel of a matrix.
#define LANES 16
#define PANEL 32

// The thread's number in the grid's first dimension.
DEVICE u64 thread_of_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Where element (row, col) of a matrix with `cols` inputs lies: [ceil(N / 32)][K][32].
DEVICE u64 panel_at(u64 cols, u64 row, u64 col) { return (row / PANEL * cols + col) * PANEL + row % PANEL; }

// b > a ? b : a: if either is NaN, a.
DEVICE float larger(float a, float b) { return b > a ? b : a; }
DEVICE float smaller(float a, float b) { return b < a ? b : a; }

DEVICE float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
// The nearest, ties to even; NaN stays NaN.
DEVICE u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// e^x where it and its inverse are normal numbers (Cephes expf).
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

DEVICE float exp_or_tiny(float x) {
    float e = exp_power(smaller(larger(x, EXP_UNDERFLOW), EXP_OVERFLOW));
    return x <= EXP_OVERFLOW ? e : x + __uint_as_float(0x7f800000u);
}

// e^x: 0 below -87.33, infinite above 88.72, NaN kept.
DEVICE float exp_(float x) { return x < EXP_UNDERFLOW ? 0.0f : exp_or_tiny(x); }

// 1 / (1 + e^-x)
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_or_tiny(0.0f - x)); }

// ln x of a positive normal number (Cephes logf).
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

// A sum of 16 neighbouring lanes, in the order of the CPU's vectors: halves folded onto each other, 8, 4, 2, 1. Each of
// the lanes gets it: addition commutes, so all of them form the same tree. All lanes of the warp call it.
DEVICE float sum_of_16(float x) {
    x = x + __shfl_xor_sync(ALL_LANES, x, 8);
    x = x + __shfl_xor_sync(ALL_LANES, x, 4);
    x = x + __shfl_xor_sync(ALL_LANES, x, 2);
    return x + __shfl_xor_sync(ALL_LANES, x, 1);
}

// The largest of 16 neighbouring lanes.
DEVICE float largest_of_16(float x) {
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 8));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 4));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 2));
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 1));
    // The first lane compared lower lanes with higher ones, as the CPU does; where none is larger that matters.
    return __shfl_sync(ALL_LANES, x, threadIdx.x % 32 / 16 * 16);
}

struct Words {
    u32 of[4];
};

// Philox4x32-10 (Salmon et al., SC 2011).
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

// A word as a number in [0, 1), 24 bits.
DEVICE float unit(u32 word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }
