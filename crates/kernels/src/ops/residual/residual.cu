// Residual addition: sum = x + delta, and a copy of it in y. Without delta, y is a copy of x.
KERNEL(residual_forward, 256, const float* x, const float* delta, float* sum, float* y, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count) return;
    float s = x[i];
    if (delta) {
        s = s + delta[i];
        sum[i] = s;
    }
    y[i] = s;
}

// Gradient of the residual stream: d_x += d_y.
KERNEL(residual_backward, 256, const float* d_y, float* d_x, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) d_x[i] = d_x[i] + d_y[i];
}
