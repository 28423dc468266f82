// Kernels that measure a GPU's peaks: a copy, for the memory's bandwidth, and multiply-adds that touch no memory, for
// FLOP/s.

KERNEL(ceilings_copy, 256, const float* from, float* to, u64 count) {
    u64 step = (u64)gridDim.x * blockDim.x;
#pragma unroll 4
    for (u64 i = thread_of_grid(); i < count; i += step) to[i] = from[i];
}

// Each thread computes eight chains of multiply-adds. The chains converge to 1, so no denormal or infinity occurs.
KERNEL(ceilings_chains, 256, float* to, float a, float b, u32 rounds) {
    float chain[8];
#pragma unroll
    for (u32 c = 0; c < 8; c++) chain[c] = (float)(threadIdx.x + c);
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (u32 c = 0; c < 8; c++) chain[c] = __fmaf_rn(chain[c], a, b);
    }
    float sum = 0.0f;
#pragma unroll
    for (u32 c = 0; c < 8; c++) sum = sum + chain[c];
    to[thread_of_grid()] = sum;
}
