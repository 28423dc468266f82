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

// Dimensions of a head, or of a page's keys and values, that are in shared memory at once.
#define SLICE 64

// Forward pass of a row and up to GROUPS * HELD query heads of one kv head, in a block of 64 * GROUPS threads. A page's
// keys and values are read once for all of these heads, in slices of 64 dimensions; the next slice is loaded into
// registers while one is used. Thread t computes heads t / 64 and, if HELD = 2, t / 64 + GROUPS: first the score of slot
// t % 64, then dimensions t % 64, t % 64 + 64, ... of the output.
template <u32 GROUPS, u32 HELD>
DEVICE void attend(const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables, const float* keys,
                   const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window,
                   u64 table_len) {
    const u32 THREADS = BLOCK * GROUPS, HEADS = GROUPS * HELD, FOURS = BLOCK * SLICE / 4 / THREADS, SLICES = MOST_DIM / SLICE;
    SHARED(float, q, HEADS * MOST_DIM);
    SHARED(float, tile, BLOCK * SLICE);
    SHARED(float, p, HEADS * BLOCK);
    SHARED(float, tops, HEADS * 2);
    u32 lane = threadIdx.x % BLOCK, group = threadIdx.x / BLOCK, per = heads / kv_heads, kv_head = blockIdx.y;
    // The block's first query head among those of the kv head, and their number.
    u32 head0 = blockIdx.z * HEADS, here = per - head0 < HEADS ? per - head0 : HEADS;
    u64 row = blockIdx.x, at = row * width_of(heads, kv_heads, hd) + ((u64)kv_head * per + head0) * hd;
    Sight sight = sight_of(positions[row], window);
    const u32* table = tables + tables_of_rows[row] * table_len;
    for (u32 i = threadIdx.x; i < HEADS * hd; i += THREADS)
        q[i / hd * MOST_DIM + i % hd] = i / hd < here ? qkv[at + i] : 0.0f;

    Four ahead[FOURS];
    // Loads the keys, [hd][64], of dimensions from `first` on.
    auto load_keys = [&](u32 block, u32 first) {
        const float* from = keys + (table[block] * (u64)kv_heads + kv_head) * BLOCK * hd + first * BLOCK;
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) {
            u32 e = threadIdx.x + i * THREADS;
            if (first + e / (BLOCK / 4) < hd) ahead[i] = load4(from + 4 * e);
        }
    };
    // Loads the values, [64][hd], of dimensions from `first` on.
    bool fours = hd % 4 == 0;
    auto load_values = [&](u32 block, u32 first) {
        const float* from = values + (table[block] * (u64)kv_heads + kv_head) * BLOCK * hd + first;
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) {
            u32 e = threadIdx.x + i * THREADS, slot = e / (SLICE / 4), dim = e % (SLICE / 4) * 4;
            if (fours) {
                if (first + dim < hd) ahead[i] = load4(from + slot * hd + dim);
            } else {
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    if (first + dim + j < hd) ahead[i].of[j] = from[slot * hd + dim + j];
            }
        }
    };
    // Stores the loaded slice as [64][64], after all threads have used the slice before it.
    auto store = [&]() {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) store4(&tile[4 * (threadIdx.x + i * THREADS)], ahead[i]);
        __syncthreads();
    };

    float minus_infinity = __uint_as_float(0xff800000u), m[HELD], l[HELD], o[HELD][SLICES];
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        m[h] = minus_infinity;
        l[h] = 0.0f;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) o[h][s] = 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < FOURS; i++) ahead[i] = Four{{0.0f, 0.0f, 0.0f, 0.0f}};
    u32 last = sight.own / BLOCK;
    load_keys(sight.first / BLOCK, 0);
    for (u32 block = sight.first / BLOCK; block <= last; block++) {
        u32 start = sight.start(block), end = sight.end(block);
        float z[HELD];
#pragma unroll
        for (u32 h = 0; h < HELD; h++) z[h] = 0.0f;
        for (u32 first = 0; first < hd; first += SLICE) {
            store();
            if (first + SLICE < hd)
                load_keys(block, first + SLICE);
            else
                load_values(block, 0);
            if (hd - first >= SLICE) {
#pragma unroll 4
                for (u32 i = 0; i < SLICE; i += 4) {
                    float key[4];
#pragma unroll
                    for (u32 j = 0; j < 4; j++) key[j] = tile[(i + j) * BLOCK + lane];
#pragma unroll
                    for (u32 h = 0; h < HELD; h++) {
                        Four four = load4(&q[(group + h * GROUPS) * MOST_DIM + first + i]);
#pragma unroll
                        for (u32 j = 0; j < 4; j++) z[h] = __fmaf_rn(four.of[j], key[j], z[h]);
                    }
                }
            } else {
                for (u32 i = 0; i < hd - first; i++) {
                    float key = tile[i * BLOCK + lane];
#pragma unroll
                    for (u32 h = 0; h < HELD; h++)
                        z[h] = __fmaf_rn(q[(group + h * GROUPS) * MOST_DIM + first + i], key, z[h]);
                }
            }
        }
        bool seen = lane >= start && lane < end;
#pragma unroll
        for (u32 h = 0; h < HELD; h++) {
            z[h] = seen ? z[h] * scale : minus_infinity;
            float top = largest_of_16(z[h]);
            top = larger(top, __shfl_xor_sync(ALL_LANES, top, 16));
            if (lane % 32 == 0) tops[(group + h * GROUPS) * 2 + lane / 32] = top;
        }
        __syncthreads();
#pragma unroll
        for (u32 h = 0; h < HELD; h++) {
            u32 head = group + h * GROUPS;
            float top = larger((float)tops[head * 2], (float)tops[head * 2 + 1]);
            // Online softmax: rescale only if the largest score of this page is above the maximum of the pages before it.
            if (top > m[h]) {
                float alpha = exp_(m[h] - top);
                m[h] = top;
                l[h] = l[h] * alpha;
#pragma unroll
                for (u32 s = 0; s < SLICES; s++) o[h][s] = o[h][s] * alpha;
            }
            p[head * BLOCK + lane] = seen ? exp_(z[h] - m[h]) : 0.0f;
        }
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) {
            u32 first = s * SLICE;
            if (first >= hd) break;
            store();
            if (first + SLICE < hd)
                load_values(block, first + SLICE);
            else if (block < last)
                load_keys(block + 1, 0);
            // Lane i < 16 adds slots i, i + 16, i + 32 and i + 48 of every page to its l; slots not attended to add 0.
            if (s == 0 && lane < LANES)
#pragma unroll
                for (u32 h = 0; h < HELD; h++)
#pragma unroll
                    for (u32 slot = 0; slot < BLOCK; slot += LANES) l[h] = l[h] + p[(group + h * GROUPS) * BLOCK + lane + slot];
            if (end - start == BLOCK) {
#pragma unroll 4
                for (u32 slot = 0; slot < BLOCK; slot += 4) {
                    float value[4];
#pragma unroll
                    for (u32 j = 0; j < 4; j++) value[j] = tile[(slot + j) * SLICE + lane];
#pragma unroll
                    for (u32 h = 0; h < HELD; h++) {
                        Four four = load4(&p[(group + h * GROUPS) * BLOCK + slot]);
#pragma unroll
                        for (u32 j = 0; j < 4; j++) o[h][s] = __fmaf_rn(four.of[j], value[j], o[h][s]);
                    }
                }
            } else {
                for (u32 slot = start; slot < end; slot++) {
                    float value = tile[slot * SLICE + lane];
#pragma unroll
                    for (u32 h = 0; h < HELD; h++) o[h][s] = __fmaf_rn(p[(group + h * GROUPS) * BLOCK + slot], value, o[h][s]);
                }
            }
        }
    }
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        float sum = sum_of_16(l[h]);
        if (lane == 0) tops[(group + h * GROUPS) * 2] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        u32 head = group + h * GROUPS;
        if (head >= here) continue;
        float sum = tops[head * 2];
        u64 pair = row * heads + kv_head * per + head0 + head;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++)
            if (lane + s * SLICE < hd) out[pair * hd + lane + s * SLICE] = o[h][s] / sum;
        if (lse && lane == 0) lse[pair] = m[h] + ln_(sum);
    }
}

KERNEL(attention_forward_1, BLOCK * 1, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    attend<1, 1>(qkv, positions, tables_of_rows, tables, keys, values, out, lse, heads, kv_heads, hd, scale, window, table_len);
}

KERNEL(attention_forward_2, BLOCK * 2, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    attend<2, 1>(qkv, positions, tables_of_rows, tables, keys, values, out, lse, heads, kv_heads, hd, scale, window, table_len);
}

KERNEL(attention_forward_4, BLOCK * 4, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    attend<4, 1>(qkv, positions, tables_of_rows, tables, keys, values, out, lse, heads, kv_heads, hd, scale, window, table_len);
}

KERNEL(attention_forward_8, BLOCK * 4, const float* qkv, const u32* positions, const u32* tables_of_rows, const u32* tables,
       const float* keys, const float* values, float* out, float* lse, u32 heads, u32 kv_heads, u32 hd, float scale,
       u32 window, u64 table_len) {
    attend<4, 2>(qkv, positions, tables_of_rows, tables, keys, values, out, lse, heads, kv_heads, hd, scale, window, table_len);
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

// Gradients of keys and values: a block of 256 threads for each KV-cache page, kv head and 64 dimensions (blockIdx.z). A
// gradient is one chain, from 0, over the rows that attend to the slot, and for each row over its query heads. The rows
// that attend to page pages[i] are entries looks[first[i]..first[i + 1]]. An entry has two numbers: the row, and the
// index of the page in the block table of the row's sequence.
//
// PAIRS pairs of a row and a query head are computed at once, for heads of at most DIMS dimensions. First each thread
// computes P and dS of one slot and PAIRS / 4 pairs. Then it continues the chains of 4 slots x 4 dimensions in registers,
// pair by pair.
template <u32 PAIRS, u32 DIMS>
DEVICE void backward_pages(const float* qkv, const u32* positions, const float* keys, const float* values, const float* lse,
                           const float* d_out, const float* delta, const u32* pages, const u32* first, const u32* looks,
                           float* d_keys, float* d_values, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window) {
    const u32 THREADS = 256, GROUPS = THREADS / BLOCK, HELD = PAIRS / GROUPS, VALUES_ROW = BLOCK + 1;
    SHARED(float, of_keys, SLICE * BLOCK);
    SHARED(float, of_values, SLICE * VALUES_ROW);
    SHARED(float, q, PAIRS * DIMS);
    SHARED(float, d, PAIRS * DIMS);
    SHARED(float, p, PAIRS * BLOCK);
    SHARED(float, d_s, PAIRS * BLOCK);
    u32 slot = threadIdx.x % BLOCK, group = threadIdx.x / BLOCK, per = heads / kv_heads, kv_head = blockIdx.y;
    u32 dim0 = threadIdx.x / 16 * 4, slot0 = threadIdx.x % 16 * 4, slice = blockIdx.z * SLICE;
    u64 page = (pages[blockIdx.x] * (u64)kv_heads + kv_head) * BLOCK * hd, width = width_of(heads, kv_heads, hd);
    u32 begin = first[blockIdx.x], count = (first[blockIdx.x + 1] - begin) * per;
    float d_k[4][4], d_v[4][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) d_k[i][j] = d_v[i][j] = 0.0f;
    for (u32 e0 = 0; e0 < count; e0 += PAIRS) {
        u32 here = count - e0 < PAIRS ? count - e0 : PAIRS;
        __syncthreads();
#pragma unroll 4
        for (u32 i = threadIdx.x; i < PAIRS * DIMS; i += THREADS) {
            u32 e = e0 + i / DIMS, dim = i % DIMS;
            bool there = i / DIMS < here && dim < hd;
            u64 row = there ? looks[2 * (begin + e / per)] : 0, head = kv_head * per + e % per;
            q[i] = there ? qkv[row * width + head * hd + dim] : 0.0f;
            d[i] = there ? d_out[(row * heads + head) * hd + dim] : 0.0f;
        }
        float z[HELD], d_p[HELD];
#pragma unroll
        for (u32 h = 0; h < HELD; h++) z[h] = d_p[h] = 0.0f;
        for (u32 at = 0; at < hd; at += SLICE) {
            u32 dims = hd - at < SLICE ? hd - at : SLICE;
            // Heads of at most 64 dimensions stay in shared memory.
            if (e0 == 0 || hd > SLICE) {
                __syncthreads();
#pragma unroll 4
                for (u32 i = threadIdx.x; i < SLICE * BLOCK / 4; i += THREADS)
                    if (i / (BLOCK / 4) < dims) store4(&of_keys[4 * i], load4(keys + page + at * BLOCK + 4 * i));
#pragma unroll 4
                for (u32 i = threadIdx.x; i < SLICE * BLOCK; i += THREADS)
                    if (i % SLICE < dims) of_values[i % SLICE * VALUES_ROW + i / SLICE] = values[page + i / SLICE * hd + at + i % SLICE];
            }
            __syncthreads();
            u32 whole = dims / 4 * 4;
#pragma unroll 4
            for (u32 i = 0; i < whole; i += 4) {
                float key[4], value[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    key[j] = of_keys[(i + j) * BLOCK + slot];
                    value[j] = of_values[(i + j) * VALUES_ROW + slot];
                }
#pragma unroll
                for (u32 h = 0; h < HELD; h++) {
                    Four a = load4(&q[(group + h * GROUPS) * DIMS + at + i]), b = load4(&d[(group + h * GROUPS) * DIMS + at + i]);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        z[h] = __fmaf_rn(a.of[j], key[j], z[h]);
                        d_p[h] = __fmaf_rn(b.of[j], value[j], d_p[h]);
                    }
                }
            }
            for (u32 i = whole; i < dims; i++)
#pragma unroll
                for (u32 h = 0; h < HELD; h++) {
                    z[h] = __fmaf_rn(q[(group + h * GROUPS) * DIMS + at + i], of_keys[i * BLOCK + slot], z[h]);
                    d_p[h] = __fmaf_rn(d[(group + h * GROUPS) * DIMS + at + i], of_values[i * VALUES_ROW + slot], d_p[h]);
                }
        }
#pragma unroll
        for (u32 h = 0; h < HELD; h++) {
            u32 pair = group + h * GROUPS, e = e0 + pair;
            if (pair < here) {
                u64 at = (u64)looks[2 * (begin + e / per)] * heads + kv_head * per + e % per;
                float of = exp_(z[h] * scale - lse[at]);
                p[pair * BLOCK + slot] = of;
                d_s[pair * BLOCK + slot] = of * (d_p[h] - delta[at]) * scale;
            }
        }
        __syncthreads();
        for (u32 pair = 0; pair < here; pair++) {
            u32 look = begin + (e0 + pair) / per, key0 = looks[2 * look + 1] * BLOCK + slot0;
            Sight sight = sight_of(positions[looks[2 * look]], window);
            Four a = load4(&q[pair * DIMS + slice + dim0]), b = load4(&d[pair * DIMS + slice + dim0]);
            Four of_p = load4(&p[pair * BLOCK + slot0]), of_s = load4(&d_s[pair * BLOCK + slot0]);
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                if (sight.sees(key0 + j))
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        d_k[i][j] = __fmaf_rn(a.of[i], of_s.of[j], d_k[i][j]);
                        d_v[i][j] = __fmaf_rn(of_p.of[j], b.of[i], d_v[i][j]);
                    }
        }
    }
    // A slot to which no row attends gets the gradient 0: a row may still have been written to it.
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 dim = slice + dim0 + i;
        if (dim >= hd) continue;
        store4(d_keys + page + dim * BLOCK + slot0, Four{{d_k[i][0], d_k[i][1], d_k[i][2], d_k[i][3]}});
#pragma unroll
        for (u32 j = 0; j < 4; j++) d_values[page + (slot0 + j) * hd + dim] = d_v[i][j];
    }
}

KERNEL(attention_backward_pages_64, 256, const float* qkv, const u32* positions, const float* keys, const float* values,
       const float* lse, const float* d_out, const float* delta, const u32* pages, const u32* first, const u32* looks,
       float* d_keys, float* d_values, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window) {
    backward_pages<8, 64>(qkv, positions, keys, values, lse, d_out, delta, pages, first, looks, d_keys, d_values, heads,
                           kv_heads, hd, scale, window);
}

KERNEL(attention_backward_pages_256, 256, const float* qkv, const u32* positions, const float* keys, const float* values,
       const float* lse, const float* d_out, const float* delta, const u32* pages, const u32* first, const u32* looks,
       float* d_keys, float* d_values, u32 heads, u32 kv_heads, u32 hd, float scale, u32 window) {
    backward_pages<4, 256>(qkv, positions, keys, values, lse, d_out, delta, pages, first, looks, d_keys, d_values, heads,
                           kv_heads, hd, scale, window);
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
