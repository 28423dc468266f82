#define BLOCK 64
#define MOST_DIM 256

// What the heads are: nh query heads on nkv kv heads of hd.
DEVICE u64 width_of(u32 heads, u32 kv_heads, u32 hd) { return (u64)(heads + 2 * kv_heads) * hd; }

// A thread for each element of a write: keys transposed, values as they are.
KERNEL(attention_write_kv, 256, const float* qkv, const u32* rows, const u32* slots, float* keys, float* values, u32 heads,
       u32 kv_heads, u32 hd, u64 writes) {
    u64 i = thread_of_grid(), of_write = (u64)kv_heads * hd;
    if (i >= writes * of_write) return;
    u64 write = i / of_write, head = i % of_write / hd, dim = i % hd;
    u64 page = slots[write] / BLOCK, slot = slots[write] % BLOCK, start = (page * kv_heads + head) * BLOCK * hd;
    u64 key = rows[write] * width_of(heads, kv_heads, hd) + (heads + head) * hd + dim;
    keys[start + dim * BLOCK + slot] = qkv[key];
    values[start + slot * hd + dim] = qkv[key + of_write];
}

KERNEL(attention_copy_page, 256, float* pages, u64 from, u64 to, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) pages[to * count + i] = pages[from * count + i];
}

// A block for a row and a query head; its 64 threads are the slots of a page, then the head's dimensions.
KERNEL(attention_forward, BLOCK, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    SHARED(float, q, MOST_DIM);
    SHARED(float, p, BLOCK);
    SHARED(float, tops, 2);
    u32 thread = threadIdx.x, head = blockIdx.y;
    u64 row = blockIdx.x, kv_head = head / (heads / kv_heads);
    u32 position = positions[row];
    u32 first = window && position + 1 > window ? position + 1 - window : 0;
    const u32* table = tables + tables_of_rows[row] * table_len;
    for (u32 i = thread; i < hd; i += BLOCK) q[i] = qkv[row * width_of(heads, kv_heads, hd) + head * hd + i];
    float minus_infinity = __uint_as_float(0xff800000u), m = minus_infinity, l = 0.0f;
    // Dimensions thread, thread + 64, ...
    float o[MOST_DIM / BLOCK];
#pragma unroll
    for (u32 d = 0; d < MOST_DIM / BLOCK; d++) o[d] = 0.0f;
    __syncthreads();
    for (u32 block = first / BLOCK; block <= position / BLOCK; block++) {
        u64 page = (table[block] * (u64)kv_heads + kv_head) * BLOCK * hd;
        u32 start = first > block * BLOCK ? first - block * BLOCK : 0;
        u32 end = position - block * BLOCK < BLOCK - 1 ? position - block * BLOCK + 1 : BLOCK;
        float z = minus_infinity;
        if (thread >= start && thread < end) {
            float dot = 0.0f;
            for (u32 i = 0; i < hd; i++) dot = __fmaf_rn(q[i], keys[page + i * BLOCK + thread], dot);
            z = dot * scale;
        }
        float top = largest_of_16(z);
        top = larger(top, __shfl_xor_sync(ALL_LANES, top, 16));
        if (thread % 32 == 0) tops[thread / 32] = top;
        __syncthreads();
        top = larger((float)tops[0], (float)tops[1]);
        // The one rule of rescaling: only if a block's largest score is above what was.
        if (top > m) {
            float alpha = exp_(m - top);
            m = top;
            l = l * alpha;
#pragma unroll
            for (u32 d = 0; d < MOST_DIM / BLOCK; d++) o[d] = o[d] * alpha;
        }
        p[thread] = thread >= start && thread < end ? exp_(z - m) : 0.0f;
        __syncthreads();
        // Lane i of l sums slots i, i + 16, i + 32 and i + 48 of every block; what is not seen adds 0.
        if (thread < LANES)
            for (u32 slot = thread; slot < BLOCK; slot += LANES) l = l + p[slot];
        for (u32 slot = start; slot < end; slot++) {
            float e = p[slot];
#pragma unroll
            for (u32 d = 0; d < MOST_DIM / BLOCK; d++)
                if (thread + d * BLOCK < hd) o[d] = __fmaf_rn(e, values[page + slot * hd + thread + d * BLOCK], o[d]);
        }
        __syncthreads();
    }
    float sum = sum_of_16(l);
    if (thread == 0) tops[0] = sum;
    __syncthreads();
    sum = tops[0];
    u64 pair = row * heads + head;
#pragma unroll
    for (u32 d = 0; d < MOST_DIM / BLOCK; d++)
        if (thread + d * BLOCK < hd) out[pair * hd + thread + d * BLOCK] = o[d] / sum;
    if (lse && thread == 0) lse[pair] = m + ln_(sum);
}
