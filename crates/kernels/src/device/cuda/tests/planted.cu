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
