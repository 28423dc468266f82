// Paged attention: writes KV-cache pages, and computes the forward and backward pass (formulas in mod.rs).

// Positions of a KV-cache page.
#define BLOCK 64
// Largest head_dim (hd).
#define MOST_DIM 256

// Elements of a fused row [q][k][v], with `heads` query heads and `kv_heads` kv heads of `hd` elements each.
DEVICE u64 width_of(u32 heads, u32 kv_heads, u32 hd) { return (u64)(heads + 2 * kv_heads) * hd; }

// Writes the keys and values of the listed rows into slots of KV-cache pages, a thread for each element. A page stores
// keys transposed, [kv_heads][hd][64], and values as they are, [kv_heads][64][hd].
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

// Copies KV-cache page `from` over page `to`; both the keys and the values of a page have `count` elements.
KERNEL(attention_copy_page, 256, float* keys, float* values, u64 from, u64 to, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count) return;
    keys[to * count + i] = keys[from * count + i];
    values[to * count + i] = values[from * count + i];
}

// The positions that a row attends to: from `first` to its own position. In KV-cache page `block` of its sequence, the
// row attends to slots start(block) .. end(block).
struct Sight {
    u32 first, own;
    DEVICE_METHOD bool sees(u32 key) const { return key >= first && key <= own; }
    DEVICE_METHOD u32 start(u32 block) const { return first > block * BLOCK ? first - block * BLOCK : 0; }
    DEVICE_METHOD u32 end(u32 block) const { return own - block * BLOCK < BLOCK - 1 ? own - block * BLOCK + 1 : BLOCK; }
};

// The positions that the row at `position` attends to, with a sliding window (0: none).
DEVICE Sight sight_of(u32 position, u32 window) {
    return Sight{window && position + 1 > window ? position + 1 - window : 0, position};
}

// Forward pass: a block of threads for each row and query head. Its 64 threads are first the slots of a KV-cache page,
// for the scores, then dimensions of the head, for the output.
KERNEL(attention_forward, BLOCK, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    SHARED(float, q, MOST_DIM);
    SHARED(float, p, BLOCK);
    SHARED(float, tops, 2);
    u32 thread = threadIdx.x, head = blockIdx.y;
    u64 row = blockIdx.x, kv_head = head / (heads / kv_heads);
    Sight sight = sight_of(positions[row], window);
    const u32* table = tables + tables_of_rows[row] * table_len;
    for (u32 i = thread; i < hd; i += BLOCK) q[i] = qkv[row * width_of(heads, kv_heads, hd) + head * hd + i];
    float minus_infinity = __uint_as_float(0xff800000u), m = minus_infinity, l = 0.0f;
    // Dimensions thread, thread + 64, ... of the output.
    float o[MOST_DIM / BLOCK];
#pragma unroll
    for (u32 d = 0; d < MOST_DIM / BLOCK; d++) o[d] = 0.0f;
    __syncthreads();
    for (u32 block = sight.first / BLOCK; block <= sight.own / BLOCK; block++) {
        u64 page = (table[block] * (u64)kv_heads + kv_head) * BLOCK * hd;
        u32 start = sight.start(block), end = sight.end(block);
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
        // Online softmax: rescale only if the largest score of this page is above the maximum of the pages before it.
        if (top > m) {
            float alpha = exp_(m - top);
            m = top;
            l = l * alpha;
#pragma unroll
            for (u32 d = 0; d < MOST_DIM / BLOCK; d++) o[d] = o[d] * alpha;
        }
        p[thread] = thread >= start && thread < end ? exp_(z - m) : 0.0f;
        __syncthreads();
        // Thread i < 16 adds slots i, i + 16, i + 32 and i + 48 of every page to its l; slots not attended to add 0.
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

// D = sum of d_out * out for each (row, query head), computed by 16 lanes. The backward pass needs it (mod.rs).
KERNEL(attention_delta, 128, const float* d_out, const float* out, float* delta, u64 pairs, u64 hd) {
    u64 pair = thread_of_grid() / LANES;
    u32 lane = threadIdx.x % LANES;
    float sum = 0.0f;
    for (u64 at = 0; at < hd; at += LANES) {
        bool mine = pair < pairs && at + lane < hd;
        u64 i = pair * hd + at + lane;
        sum = __fmaf_rn(mine ? d_out[i] : 0.0f, mine ? out[i] : 0.0f, sum);
    }
    sum = sum_of_16(sum);
    if (pair < pairs && lane == 0) delta[pair] = sum;
}

// For one slot that a row attends to: its probability P, and the gradient dS of the dot product q . k (mod.rs has the
// formulas).
struct Slopes {
    float p, d_s;
};

// Computes P and dS of one slot. q(i) and d_out(i) return dimension i of the row's query and output gradient; the
// slot's key is keys[i * 64], its value is values[i].
template <class Q, class D>
DEVICE Slopes slopes_of(Q q, D d_out, const float* keys, const float* values, u32 hd, float scale, float lse, float delta) {
    float z = 0.0f, d_p = 0.0f;
    for (u32 i = 0; i < hd; i++) z = __fmaf_rn(q(i), keys[i * BLOCK], z);
    for (u32 i = 0; i < hd; i++) d_p = __fmaf_rn(d_out(i), values[i], d_p);
    float p = exp_(z * scale - lse);
    return Slopes{p, p * (d_p - delta) * scale};
}

// Gradient of the queries: a block of threads for each row and query head, as in the forward pass. d_q is one chain
// over the keys, in ascending order.
KERNEL(attention_backward_queries, BLOCK, const float* qkv, const u32* positions, const u32* tables_of_rows,
       const u32* tables, const float* keys, const float* values, const float* lse, const float* d_out, const float* delta,
       float* d_qkv, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window, u64 table_len) {
    SHARED(float, q, MOST_DIM);
    SHARED(float, d, MOST_DIM);
    SHARED(float, d_s, BLOCK);
    u32 thread = threadIdx.x, head = blockIdx.y;
    u64 row = blockIdx.x, kv_head = head / (heads / kv_heads), pair = row * heads + head;
    u64 at = row * width_of(heads, kv_heads, hd) + head * hd;
    Sight sight = sight_of(positions[row], window);
    const u32* table = tables + tables_of_rows[row] * table_len;
    for (u32 i = thread; i < hd; i += BLOCK) {
        q[i] = qkv[at + i];
        d[i] = d_out[pair * hd + i];
    }
    float d_q[MOST_DIM / BLOCK];
#pragma unroll
    for (u32 k = 0; k < MOST_DIM / BLOCK; k++) d_q[k] = 0.0f;
    __syncthreads();
    for (u32 block = sight.first / BLOCK; block <= sight.own / BLOCK; block++) {
        u64 page = (table[block] * (u64)kv_heads + kv_head) * BLOCK * hd;
        u32 start = sight.start(block), end = sight.end(block);
        if (thread >= start && thread < end)
            d_s[thread] = slopes_of([=](u32 i) -> float { return q[i]; }, [=](u32 i) -> float { return d[i]; },
                                    keys + page + thread, values + page + thread * hd, hd, scale, lse[pair], delta[pair])
                              .d_s;
        __syncthreads();
        for (u32 slot = start; slot < end; slot++) {
            float of_slot = d_s[slot];
#pragma unroll
            for (u32 k = 0; k < MOST_DIM / BLOCK; k++)
                if (thread + k * BLOCK < hd)
                    d_q[k] = __fmaf_rn(of_slot, keys[page + (thread + k * BLOCK) * BLOCK + slot], d_q[k]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 k = 0; k < MOST_DIM / BLOCK; k++)
        if (thread + k * BLOCK < hd) d_qkv[at + thread + k * BLOCK] = d_q[k];
}

// Gradients of keys and values: a block of threads for each KV-cache page and kv head, a thread for each slot. A
// gradient is one chain, from 0, over the rows that attend to the slot, and for each row over its query heads. The rows
// that attend to page pages[i] are entries looks[first[i]..first[i + 1]]. An entry has two numbers: the row, and the
// index of the page in the block table of the row's sequence.
KERNEL(attention_backward_pages, BLOCK, const float* qkv, const u32* positions, const float* keys, const float* values,
       const float* lse, const float* d_out, const float* delta, const u32* pages, const u32* first, const u32* looks,
       float* d_keys, float* d_values, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window) {
    SHARED(float, q, MOST_DIM);
    SHARED(float, d, MOST_DIM);
    u32 slot = threadIdx.x, per = heads / kv_heads, kv_head = blockIdx.y;
    u64 page = (pages[blockIdx.x] * (u64)kv_heads + kv_head) * BLOCK * hd;
    bool touched = false;
    for (u32 look = first[blockIdx.x]; look < first[blockIdx.x + 1]; look++) {
        u64 row = looks[2 * look];
        bool seen = sight_of(positions[row], window).sees(looks[2 * look + 1] * BLOCK + slot);
        for (u32 head = kv_head * per; head < (kv_head + 1) * per; head++) {
            u64 pair = row * heads + head;
            for (u32 i = slot; i < hd; i += BLOCK) {
                q[i] = qkv[row * width_of(heads, kv_heads, hd) + head * hd + i];
                d[i] = d_out[pair * hd + i];
            }
            __syncthreads();
            if (seen) {
                Slopes slopes =
                    slopes_of([=](u32 i) -> float { return q[i]; }, [=](u32 i) -> float { return d[i]; },
                              keys + page + slot, values + page + slot * hd, hd, scale, lse[pair], delta[pair]);
                for (u32 i = 0; i < hd; i++) {
                    float* d_k = &d_keys[page + i * BLOCK + slot];
                    float* d_v = &d_values[page + slot * hd + i];
                    *d_k = __fmaf_rn(q[i], slopes.d_s, touched ? *d_k : 0.0f);
                    *d_v = __fmaf_rn(slopes.p, d[i], touched ? *d_v : 0.0f);
                }
                touched = true;
            }
            __syncthreads();
        }
    }
    // No row attends to this slot. A row may still have been written to it: the gradient is 0.
    if (!touched)
        for (u32 i = 0; i < hd; i++) d_keys[page + i * BLOCK + slot] = d_values[page + slot * hd + i] = 0.0f;
}

// Adds the gradients d_k and d_v of each written slot to the row that was written there, in the order of the list of
// writes. A thread computes one dimension of a kv head, for the rows whose index equals its blockIdx.y modulo
// gridDim.y.
KERNEL(attention_gather, 128, const u32* rows, const u32* slots, const float* d_keys, const float* d_values, float* d_qkv,
       u32 heads, u32 kv_heads, u32 hd, u64 writes, u64 all) {
    u64 i = thread_of_grid(), of_row = (u64)kv_heads * hd;
    if (i >= of_row) return;
    u64 head = i / hd, dim = i % hd, width = width_of(heads, kv_heads, hd), at = (u64)heads * hd + i;
    for (u64 row = blockIdx.y; row < all; row += gridDim.y) d_qkv[row * width + at] = d_qkv[row * width + at + of_row] = 0.0f;
    for (u64 write = 0; write < writes; write++) {
        if (rows[write] % gridDim.y != blockIdx.y) continue;
        u64 page = slots[write] / BLOCK, slot = slots[write] % BLOCK, start = (page * kv_heads + head) * BLOCK * hd;
        float* to = &d_qkv[rows[write] * width + at];
        *to = *to + d_keys[start + dim * BLOCK + slot];
        to[of_row] = to[of_row] + d_values[start + slot * hd + dim];
    }
}
