// y = x W^T + b, from 0 or from y
KERNEL(linear_forward, TILE_THREADS, const float* x, const float* w, const float* bias, float* y, u64 m, u64 n, u64 k,
       u32 accumulate) {
    product(
        Rows{x, k}, Panels{w, k}, m, n, k, [=](u64 row, u64 col) { return accumulate ? y[row * n + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { y[row * n + col] = bias ? c + bias[col] : c; });
}

// d_x = d_y W, from 0 or from d_x
KERNEL(linear_backward_input, TILE_THREADS, const float* d_y, const float* w, float* d_x, u64 m, u64 n, u64 k,
       u32 accumulate) {
    product(
        Rows{d_y, n}, PanelsTransposed{w, k}, m, k, n,
        [=](u64 row, u64 col) { return accumulate ? d_x[row * k + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { d_x[row * k + col] = c; });
}

// d_W += d_y^T x, a column of the product a row of the matrix, whose panels then take neighbours
KERNEL(linear_backward_weight, TILE_THREADS, const float* x, const float* d_y, float* d_w, u64 m, u64 n, u64 k) {
    product(
        Columns{x, k}, Columns{d_y, n}, k, n, m, [=](u64 row, u64 col) { return d_w[panel_at(k, col, row)]; },
        [=](u64 row, u64 col, float c) { d_w[panel_at(k, col, row)] = c; });
}

KERNEL(linear_backward_bias, CHUNK_THREADS, const float* d_y, const u32* segments, float* d_bias, u64 count, u64 m, u64 n) {
    add_chunks(segments, count, m, n, d_bias, [=](float sum, u64 row, u64 col) { return sum + d_y[row * n + col]; });
}
