// Kernels with planted bugs. The emulator must find every bug under every schedule (order of blocks and threads). Two
// kernels are correct.

// Correct: reverses the elements of each block of threads.
KERNEL(reverse, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[127 - threadIdx.x];
}

KERNEL(reads_before_the_barrier, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    y[i] = tile[127 - threadIdx.x];
}

KERNEL(writes_before_others_have_read, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[127 - threadIdx.x];
    tile[threadIdx.x] = 0.0f;
}

KERNEL(leaves_a_warp_unordered, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    y[i] = tile[threadIdx.x ^ 1];
}

// Correct: lanes that exchange data within one warp need __syncwarp only.
KERNEL(orders_a_warp, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    __syncwarp();
    y[i] = tile[threadIdx.x ^ 1];
}

KERNEL(orders_a_warp_alone, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    __syncwarp();
    y[i] = tile[threadIdx.x ^ 32];
}

KERNEL(barrier_for_one_lane, 128, const float* x, float* y) {
    u64 i = thread_of_grid();
    float mine = x[i];
    if (threadIdx.x == 31)
        __syncthreads();
    else
        mine = __shfl_xor_sync(0xffffffffu, mine, 1);
    __syncthreads();
    y[i] = mine;
}

KERNEL(two_barriers_for_one, 128, const float* x, float* y) {
    u64 i = thread_of_grid();
    if (threadIdx.x < 64)
        __syncthreads();
    else
        __syncthreads();
    y[i] = x[i];
}

KERNEL(shuffle_of_some, 128, const float* x, float* y) {
    u64 i = thread_of_grid();
    float mine = x[i];
    if (threadIdx.x % 32 < 31) mine = __shfl_xor_sync(0xffffffffu, mine, 1);
    y[i] = mine;
}

KERNEL(past_the_end, 128, const float* x, float* y, u64 count) {
    u64 i = thread_of_grid();
    if (i <= count) y[i] = x[i < count ? i : 0];
}

KERNEL(before_the_start, 128, const float* x, float* y, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) y[i] = x[i];
    if (i == 0) y[-1] = 1.0f;
}

KERNEL(past_shared, 128, const float* x, float* y) {
    SHARED(float, tile, 127);
    u64 i = thread_of_grid();
    tile[threadIdx.x] = x[i];
    y[i] = tile[threadIdx.x];
}

KERNEL(never_written, 128, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = thread_of_grid();
    if (threadIdx.x != 5) tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[127 - threadIdx.x];
}

KERNEL(for_ever, 128, const float* x, float* y) {
    volatile const float* at = x;
    u64 i = thread_of_grid();
    while (*at == x[0]) y[i] = 1.0f;
}

// Correct: reverses each block of threads by fours.
KERNEL(reverse_by_fours, 32, const float* x, float* y) {
    SHARED(float, tile, 128);
    u64 i = (u64)blockIdx.x * 128 + 4 * threadIdx.x;
    auto mine = &tile[4 * threadIdx.x];
    store4(mine, load4(x + i));
    __syncthreads();
    Four other = load4(&tile[124 - 4 * threadIdx.x]);
    store4(y + i, Four{{other.of[3], other.of[2], other.of[1], other.of[0]}});
}

KERNEL(load4_unaligned, 32, const float* x, float* y) { store4(y, load4(x + 1)); }

KERNEL(store4_unaligned, 32, const float* x, float* y) { store4(y + 2, load4(x)); }

KERNEL(load4_of_shared_unaligned, 32, const float* x, float* y) {
    SHARED(float, tile, 128);
    for (u32 i = threadIdx.x; i < 128; i += 32) tile[i] = x[i];
    __syncthreads();
    store4(y, load4(&tile[threadIdx.x + 1]));
}

KERNEL(load4_before_the_barrier, 64, const float* x, float* y) {
    SHARED(float, tile, 256);
    tile[threadIdx.x] = x[threadIdx.x];
    store4(y, load4(&tile[threadIdx.x / 4 * 4]));
}

KERNEL(store4_before_others_have_read, 64, const float* x, float* y) {
    SHARED(float, tile, 256);
    store4(&tile[4 * threadIdx.x], load4(x));
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
    store4(&tile[4 * threadIdx.x], load4(x));
}

KERNEL(load4_past_shared, 32, const float* x, float* y) {
    SHARED(float, tile, 126);
    for (u32 i = threadIdx.x; i < 126; i += 32) tile[i] = x[i];
    __syncthreads();
    store4(y + 4 * threadIdx.x, load4(&tile[4 * threadIdx.x]));
}

KERNEL(address_past_shared, 32, const float* x, float* y) {
    SHARED(float, tile, 64);
    SHARED(float, next, 64);
    auto at = &tile[threadIdx.x];
    next[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = at[64];
}

KERNEL(load4_past_the_end, 32, const float* x, float* y, u64 count) { store4(y, load4(x + count - 4 + 4 * threadIdx.x)); }

// Two tiles, filled in turn. Each needs a barrier between the last read and the next write.
KERNEL(reuses_a_tile_too_early, 64, const float* x, float* y) {
    SHARED(float, tile, 128);
    float sum = 0.0f;
    for (u32 step = 0; step < 4; step++) {
        tile[step % 2 * 64 + threadIdx.x] = x[step * 64 + threadIdx.x];
        if (step < 2) __syncthreads();
        sum = sum + tile[step % 2 * 64 + (63 - threadIdx.x)];
    }
    y[threadIdx.x] = sum;
}

KERNEL(eight_bytes_of_four, 128, const float* x, float* y, u64 first) {
    const u64* two = (const u64*)(x + first);
    *(u64*)y = *two;
}

KERNEL(adds, 128, const float* x, float* y) {
    u64 i = thread_of_grid();
    y[i] = y[i] + x[i];
}
