// Runs one tensor-core instruction in each warp, c += a b, on `count` matmuls that lie one after the other in memory.
// Each has a: [16 rows][16 terms], b: [8 columns][16 terms], c: [16 rows][8 columns]; a word of a or b holds two bf16
// terms. The host compares the results with the formula (self_test.rs).
KERNEL(tensor_core_dot_products, 128, const u32* a, const u32* b, float* c, u64 count) {
    u64 one = thread_of_grid() / 32;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (one >= count) return;
    a += one * 128;
    b += one * 64;
    c += one * 128;
    u32 left[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    u32 right[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    u32 upper = g * 8 + 2 * t, lower = upper + 64;
    float sums[4] = {c[upper], c[upper + 1], c[lower], c[lower + 1]};
    mma_bf16(sums, left, right);
    c[upper] = sums[0];
    c[upper + 1] = sums[1];
    c[lower] = sums[2];
    c[lower + 1] = sums[3];
}
