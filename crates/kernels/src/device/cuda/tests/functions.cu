// Kernels that apply the functions of kernel.cuh, so that a test can compare their results with the CPU's bits.

KERNEL(functions, 256, const float* x, float* exps, float* lns, float* sigmoids, float* rounded, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count) return;
    exps[i] = exp_(x[i]);
    lns[i] = ln_(x[i]);
    sigmoids[i] = sigmoid(x[i]);
    rounded[i] = from_bf16(to_bf16(x[i]));
}

// The sum and the maximum of every 16 neighbouring elements, stored for each of the 16.
KERNEL(folds, 256, const float* x, float* sums, float* largest, u64 count) {
    u64 i = thread_of_grid();
    float mine = i < count ? x[i] : 0.0f, sum = sum_of_16(mine), top = largest_of_16(mine);
    if (i < count) {
        sums[i] = sum;
        largest[i] = top;
    }
}

KERNEL(random_words, 256, u64 key, u32* words, float* units, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count) return;
    Words random = philox(key, Words{{(u32)i, 7, (u32)(i * i), 0xffffffffu - (u32)i}});
    for (int w = 0; w < 4; w++) words[4 * i + w] = random.of[w];
    units[i] = unit(random.of[0]);
}
