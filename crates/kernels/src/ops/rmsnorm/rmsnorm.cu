// RMS norm, 16 lanes for each row: s = x + delta (s = x without a delta), y = w * (s * rstd).
KERNEL(rmsnorm_forward, 128, const float* x, const float* delta, float* sum, const float* weight, float offset, float eps,
       float* y, float* rstd, u64 rows, u64 width) {
    u64 row = thread_of_grid() / LANES;
    u32 lane = threadIdx.x % LANES;
    bool there = row < rows;
    const float* mine = x + row * width;
    if (delta) {
        if (there)
            for (u64 h = lane; h < width; h += LANES) sum[row * width + h] = x[row * width + h] + delta[row * width + h];
        mine = sum + row * width;
    }
    float r = norm_rstd(mine, width, lane, there, eps);
    if (!there) return;
    for (u64 h = lane; h < width; h += LANES) y[row * width + h] = norm_weight(weight[h], offset) * (mine[h] * r);
    if (lane == 0) rstd[row] = r;
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
