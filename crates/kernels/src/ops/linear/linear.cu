// Linear layer in f32. x, y and their gradients may be some columns of a wider matrix: `x_width` and the like are the
// elements from one row to the next.

// y = x W^T + b. Each sum starts from 0, or from y if `accumulate`.
KERNEL(linear_forward, TILE_THREADS, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width,
       u64 m, u64 n, u64 k, u32 accumulate) {
    matmul(
        Rows{x, x_width}, Panels{w, k}, m, n, k,
        [=](u64 row, u64 col) { return accumulate ? y[row * y_width + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { y[row * y_width + col] = bias ? c + bias[col] : c; });
}

// d_x = d_y W. Each sum starts from 0, or from d_x if `accumulate`.
KERNEL(linear_backward_input, TILE_THREADS, const float* d_y, u64 d_y_width, const float* w, float* d_x, u64 d_x_width, u64 m,
       u64 n, u64 k, u32 accumulate) {
    matmul(
        Rows{d_y, d_y_width}, PanelsTransposed{w, k}, m, k, n,
        [=](u64 row, u64 col) { return accumulate ? d_x[row * d_x_width + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { d_x[row * d_x_width + col] = c; });
}

// d_W += d_y^T x, computed as its transpose: a column of this matmul is a row of d_W. So neighbouring threads write
// neighbouring elements of a panel.
KERNEL(linear_backward_weight, TILE_THREADS, const float* x, u64 x_width, const float* d_y, u64 d_y_width, float* d_w, u64 m,
       u64 n, u64 k) {
    matmul(
        Columns{x, x_width}, Columns{d_y, d_y_width}, k, n, m,
        [=](u64 row, u64 col) { return d_w[panel_at(k, col, row)]; },
        [=](u64 row, u64 col, float c) { d_w[panel_at(k, col, row)] = c; });
}

// d_b += the sum of d_y over rows, one chunk of rows after the other.
KERNEL(linear_backward_bias, CHUNK_THREADS, const float* d_y, const u32* segments, float* d_bias, u64 count, u64 m, u64 n) {
    add_chunks(segments, count, m, n, d_bias, [=](float sum, u64 row, u64 col) { return sum + d_y[row * n + col]; });
}
