// Threads of a block, which has one row.
#define NORM_THREADS 128
// Elements of a row that are in shared memory at once: a multiple of NORM_THREADS.
#define NORM_STAGED 2048

// RMS norm, a block of threads for each row: s = x + delta (s = x without a delta), y = w * (s * rstd). All threads load
// the row; 16 of them sum its squares from shared memory, in the CPU's order.
KERNEL(rmsnorm_forward, NORM_THREADS, const float* x, const float* delta, float* sum, const float* weight, float offset,
       float eps, float* y, float* rstd, u64 width) {
    SHARED(float, staged, NORM_STAGED);
    SHARED(float, factor, 1);
    u64 row = blockIdx.x, at = row * width;
    float squares = 0.0f;
    for (u64 first = 0; first < width; first += NORM_STAGED) {
        u32 here = width - first < NORM_STAGED ? (u32)(width - first) : NORM_STAGED;
        if (first) __syncthreads();
#pragma unroll 4
        for (u32 h = threadIdx.x; h < here; h += NORM_THREADS) {
            float v = x[at + first + h];
            if (delta) {
                v = v + delta[at + first + h];
                sum[at + first + h] = v;
            }
            staged[h] = v;
        }
        __syncthreads();
        if (threadIdx.x < LANES)
#pragma unroll 8
            for (u32 h = 0; h < here; h += LANES) {
                float v = h + threadIdx.x < here ? staged[h + threadIdx.x] : 0.0f;
                squares = __fmaf_rn(v, v, squares);
            }
    }
    float r = 1.0f / __fsqrt_rn(sum_of_16(squares) / (float)width + eps);
    if (threadIdx.x == 0) {
        factor[0] = r;
        rstd[row] = r;
    }
    __syncthreads();
    r = factor[0];
    // A thread reads the elements of the sum that it has written.
    const float* from = delta ? sum : x;
    bool whole = width <= NORM_STAGED;
#pragma unroll 4
    for (u64 h = threadIdx.x; h < width; h += NORM_THREADS) {
        float v = whole ? (float)staged[h] : from[at + h];
        y[at + h] = norm_weight(weight[h], offset) * (v * r);
    }
}

// Computes y of the forward pass again, to the same bits, from the kept rstd.
KERNEL(rmsnorm_recompute, 256, const float* x, const float* weight, float offset, const float* rstd, float* y, u64 rows,
       u64 width) {
    u64 i = thread_of_grid();
    if (i < rows * width) y[i] = norm_weight(weight[i % width], offset) * (x[i] * rstd[i / width]);
}

// Adds the gradient of the input to d_x, 16 lanes for each row.
KERNEL(rmsnorm_backward, 128, const float* x, const float* weight, float offset, const float* rstd, const float* d_y,
       float* d_x, u64 rows, u64 width) {
    u64 row = thread_of_grid() / LANES, at = row * width;
    bool there = row < rows;
    norm_backward(x + at, weight, offset, there ? rstd[row] : 0.0f, d_y + at, d_x + at, width, threadIdx.x % LANES, there,
                  true);
}

// Adds the gradient of the weight to d_weight, one chunk of tokens after the other.
KERNEL(rmsnorm_backward_weight, CHUNK_THREADS, const float* x, const float* rstd, const float* d_y, const u32* segments,
       float* d_weight, u64 count, u64 rows, u64 width) {
    add_chunks(segments, count, rows, width, d_weight, [=](float sum, u64 row, u64 h) {
        return __fmaf_rn(d_y[row * width + h], x[row * width + h] * rstd[row], sum);
    });
}
