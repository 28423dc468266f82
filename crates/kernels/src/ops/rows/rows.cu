// Gathers rows of x: out[r,h] = x[rows[r],h].
KERNEL(rows_gather, 256, const float* x, const u32* rows, float* out, u64 chosen, u64 hidden) {
    u64 i = thread_of_grid();
    if (i < chosen * hidden) out[i] = x[rows[i / hidden] * hidden + i % hidden];
}

// Backward pass of rows_gather: d_x[rows[r],h] += d_out[r,h], over ascending r. A thread computes one column h, for the
// rows of x whose index equals its blockIdx.y modulo gridDim.y.
KERNEL(rows_scatter_add, 128, const float* d_out, const u32* rows, float* d_x, u64 chosen, u64 hidden) {
    u64 h = thread_of_grid();
    if (h >= hidden) return;
    for (u64 r = 0; r < chosen; r++) {
        u32 row = rows[r];
        if (row % gridDim.y != blockIdx.y) continue;
        d_x[row * hidden + h] = d_x[row * hidden + h] + d_out[r * hidden + h];
    }
}
