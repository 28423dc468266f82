KERNEL(lora_scale, 256, float* x, float scale, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) x[i] = x[i] * scale;
}

// A thread for four columns 16 apart, which have a counter's words: factors[row, k] of block `block` of an adapter, and
// dropped = factors . x
KERNEL(lora_drop, 256, const float* x, const u32* samples, const u32* positions, float* factors, float* dropped, u64 key,
       u32 threshold, float kept, u32 block, u64 rows, u64 k) {
    u64 i = thread_of_grid(), counters = (k + 4 * LANES - 1) / (4 * LANES) * LANES, row = i / counters, c = i % counters;
    if (row >= rows) return;
    Words words = philox(key, Words{{(u32)c, positions[row], samples[row], block}});
    for (u32 j = 0; j < 4; j++) {
        u64 col = c / LANES * (4 * LANES) + j * LANES + c % LANES, at = row * k + col;
        if (col >= k) continue;
        float f = words.of[j] < threshold ? 0.0f : kept;
        factors[at] = f;
        dropped[at] = f * x[at];
    }
}

// d_x += factors . d_dropped
KERNEL(lora_undrop, 256, const float* factors, const float* d_dropped, float* d_x, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) d_x[i] = __fmaf_rn(factors[i], d_dropped[i], d_x[i]);
}

// Rows of a matrix in panels from row `first` on: by index, and by depth.
struct PanelsFrom {
    const float* at;
    u64 cols, first;
    static const bool DEEP = false;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, first + index, depth)]; }
};
struct PanelsFromTransposed {
    const float* at;
    u64 cols, first;
    static const bool DEEP = true;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, first + depth, index)]; }
};

// The matmuls of one block of an adapter, which has the n columns of xa and d_xa, and rows of A, from `first` on; xa and
// d_xa have `rank` columns. xa = dropped A^T
KERNEL(lora_lower, TILE_THREADS, const float* dropped, const float* a, float* xa, u64 rank, u64 first, u64 m, u64 n, u64 k) {
    matmul(
        Rows{dropped, k}, PanelsFrom{a, k, first}, m, n, k, [=](u64, u64) { return 0.0f; },
        [=](u64 row, u64 col, float c) { xa[row * rank + first + col] = c; });
}

// d_dropped = d_xa A
KERNEL(lora_lower_backward, TILE_THREADS, const float* d_xa, const float* a, float* d_dropped, u64 rank, u64 first, u64 m,
       u64 n, u64 k) {
    matmul(
        Rows{d_xa + first, rank}, PanelsFromTransposed{a, k, first}, m, k, n, [=](u64, u64) { return 0.0f; },
        [=](u64 row, u64 col, float c) { d_dropped[row * k + col] = c; });
}

// d_A += d_xa^T dropped
KERNEL(lora_lower_weight, TILE_THREADS, const float* dropped, const float* d_xa, float* d_a, u64 rank, u64 first, u64 m, u64 n,
       u64 k) {
    matmul(
        Columns{dropped, k}, Columns{d_xa + first, rank}, k, n, m,
        [=](u64 row, u64 col) { return d_a[panel_at(k, first + col, row)]; },
        [=](u64 row, u64 col, float c) { d_a[panel_at(k, first + col, row)] = c; });
}
