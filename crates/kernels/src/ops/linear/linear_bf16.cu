// The matmuls of linear.cu on tensor cores, with both operands in bf16 or rounded to bf16.

// y = x W^T + b. Each sum starts from 0, or from y if `accumulate`.
KERNEL(linear_bf16_forward, MMA_THREADS, const u16* x, const u16* w, const float* bias, float* y, u64 m, u64 n, u64 k,
       u32 accumulate) {
    matmul_bf16(
        EvenRows{x, k}, Pairs{w, k}, m, n, k, nullptr, 0,
        [=](u64 row, u64 col) { return accumulate ? y[row * n + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { y[row * n + col] = bias ? c + bias[col] : c; });
}

// d_x = d_y W. Each sum starts from 0, or from d_x if `accumulate`.
template <class T>
DEVICE void backward_input(const T* d_y, const u16* w, float* d_x, u64 m, u64 n, u64 k, u32 accumulate) {
    matmul_bf16(
        HalfRows<T>{d_y, n}, PairsTransposed{w, k}, m, k, n, nullptr, 0,
        [=](u64 row, u64 col) { return accumulate ? d_x[row * k + col] : 0.0f; },
        [=](u64 row, u64 col, float c) { d_x[row * k + col] = c; });
}
KERNEL(linear_bf16_backward_input, MMA_THREADS, const u16* d_y, const u16* w, float* d_x, u64 m, u64 n, u64 k,
       u32 accumulate) {
    backward_input(d_y, w, d_x, m, n, k, accumulate);
}
KERNEL(linear_bf16_backward_input_of_f32, MMA_THREADS, const float* d_y, const u16* w, float* d_x, u64 m, u64 n, u64 k,
       u32 accumulate) {
    backward_input(d_y, w, d_x, m, n, k, accumulate);
}

// d_W += d_y^T x, one segment (packed sequence) after the other.
template <class T>
DEVICE void backward_weight(const u16* x, const T* d_y, float* d_w, const u32* segments, u64 count, u64 m, u64 n, u64 k) {
    matmul_bf16(
        HalfColumns<u16>{x, k}, HalfColumns<T>{d_y, n}, k, n, m, segments, count,
        [=](u64 row, u64 col) { return d_w[panel_at(k, col, row)]; },
        [=](u64 row, u64 col, float c) { d_w[panel_at(k, col, row)] = c; });
}
KERNEL(linear_bf16_backward_weight, MMA_THREADS, const u16* x, const u16* d_y, float* d_w, const u32* segments, u64 count,
       u64 m, u64 n, u64 k) {
    backward_weight(x, d_y, d_w, segments, count, m, n, k);
}
KERNEL(linear_bf16_backward_weight_of_f32, MMA_THREADS, const u16* x, const float* d_y, float* d_w, const u32* segments,
       u64 count, u64 m, u64 n, u64 k) {
    backward_weight(x, d_y, d_w, segments, count, m, n, k);
}

// d_b += the sum of a bf16 d_y over rows, in the same chunks as linear_backward_bias of linear.cu.
KERNEL(linear_bf16_backward_bias, CHUNK_THREADS, const u16* d_y, const u32* segments, float* d_bias, u64 count, u64 m, u64 n) {
    add_chunks(segments, count, m, n, d_bias, [=](float sum, u64 row, u64 col) { return sum + from_bf16(d_y[row * n + col]); });
}
