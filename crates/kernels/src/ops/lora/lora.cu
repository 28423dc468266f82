// LoRA adapters: the multiplication by the scale, and dropout of an adapter's input (formulas in mod.rs and
// dropout.rs).

KERNEL(lora_scale, 256, float* x, float scale, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) x[i] = x[i] * scale;
}

// Applies dropout to the input x of block `block` of an adapter: factors[row, col] is 0 or `kept` = 1/(1 - p), and
// dropped = factors * x. A thread computes four columns that are 16 apart; one Philox counter gives the four random
// words.
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

// Backward pass of dropout, element by element: d_x += factors * d_dropped.
KERNEL(lora_undrop, 256, const float* factors, const float* d_dropped, float* d_x, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) d_x[i] = __fmaf_rn(factors[i], d_dropped[i], d_x[i]);
}

// xa = dropped A^T, for one block of an adapter. In this and the next two kernels the block has n rows of A, from row
// `first` on, and the same columns of xa and d_xa, which have `rank` columns in all.
KERNEL(lora_lower, 128, const float* dropped, const float* a, float* xa, u64 rank, u64 first, u64 m, u64 n, u64 k) {
    matmul<64, 16>(
        Rows{dropped, k}, Panels{a, k, first}, m, n, k, true, [=](u64, u64) { return 0.0f; },
        [=](u64 row, u64 col, float c) { xa[row * rank + first + col] = c; });
}

// d_dropped = d_xa A, for one block of an adapter.
KERNEL(lora_lower_backward, 128, const float* d_xa, const float* a, float* d_dropped, u64 rank, u64 first, u64 m,
       u64 n, u64 k) {
    matmul<64, 16>(
        Rows{d_xa + first, rank}, PanelsTransposed{a, k, first}, m, k, n, true, [=](u64, u64) { return 0.0f; },
        [=](u64 row, u64 col, float c) { d_dropped[row * k + col] = c; });
}

// d_A += d_xa^T dropped, for one block of an adapter.
KERNEL(lora_lower_weight, 128, const float* dropped, const float* d_xa, float* d_a, u64 rank, u64 first, u64 m, u64 n,
       u64 k) {
    matmul<64, 16>(
        Columns{dropped, k}, Columns{d_xa + first, rank}, k, n, m, false,
        [=](u64 row, u64 col) { return d_a[panel_at(k, first + col, row)]; },
        [=](u64 row, u64 col, float c) { d_a[panel_at(k, first + col, row)] = c; });
}
