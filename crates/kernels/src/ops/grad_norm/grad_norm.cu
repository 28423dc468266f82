// Sum of squares of each chunk of a tensor, in f64: 16 lanes sum every 16th element each, then their sums are folded.
// The second half of the warp is idle.
KERNEL(squares_of_chunks, 32, const float* x, double* sums, u64 count, u64 chunk) {
    u64 start = blockIdx.x * chunk, end = start + chunk < count ? start + chunk : count;
    u32 lane = threadIdx.x;
    SHARED(double, lanes, LANES);
    double sum = 0.0;
    if (lane < LANES) {
        for (u64 i = start + lane; i < end; i += LANES) sum = sum + (double)x[i] * (double)x[i];
        lanes[lane] = sum;
    }
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        __syncwarp();
        if (lane < half) lanes[lane] = lanes[lane] + lanes[lane + half];
    }
    if (lane == 0) sums[blockIdx.x] = lanes[0];
}

// The L2 norm, and 1 if it is finite, else 0. The sums of chunks are added in ascending order from -0, as Rust's `sum`
// does.
KERNEL(norm_of_chunks, 32, const double* sums, float* out, u64 count) {
    if (threadIdx.x > 0) return;
    double sum = -0.0;
    for (u64 i = 0; i < count; i++) sum = sum + sums[i];
    float norm = (float)__dsqrt_rn(sum);
    out[0] = norm;
    out[1] = (__float_as_uint(norm) & 0x7fffffffu) < 0x7f800000u ? 1.0f : 0.0f;
}
