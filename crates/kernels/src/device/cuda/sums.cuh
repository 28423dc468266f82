// Matmuls and sums that several operations share.

// Elements of an operand of a matmul by index (row of the left one, column of the right one) and depth.
struct Rows {
    const float* at;
    u64 width;
    // Whether neighbours in memory are neighbours in depth.
    static const bool DEEP = true;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[index * width + depth]; }
};
struct Columns {
    const float* at;
    u64 width;
    static const bool DEEP = false;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[depth * width + index]; }
};
// A matrix in panels: its rows by index, its inputs by depth.
struct Panels {
    const float* at;
    u64 cols;
    static const bool DEEP = false;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, index, depth)]; }
};
// The other way round.
struct PanelsTransposed {
    const float* at;
    u64 cols;
    static const bool DEEP = true;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, depth, index)]; }
};

#define TILE 64
#define TILE_DEPTH 16
#define TILE_THREADS 256

// c[row, col] = fma chain over ascending depth of left[row, depth] * right[col, depth], from what `start` gives; `finish`
// takes it. A block computes 64 x 64 of them, a thread 4 x 4. What an element depends on is its row and column alone.
template <class Left, class Right, class Start, class Finish>
DEVICE void matmul(Left left, Right right, u64 rows, u64 cols, u64 depth, Start start, Finish finish) {
    SHARED(float, lefts, TILE_DEPTH * (TILE + 1));
    SHARED(float, rights, TILE_DEPTH * (TILE + 1));
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    u64 row0 = (u64)blockIdx.y * TILE, col0 = (u64)blockIdx.x * TILE;
    float c[4][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u64 row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
            c[i][j] = row < rows && col < cols ? start(row, col) : 0.0f;
        }
    for (u64 d0 = 0; d0 < depth; d0 += TILE_DEPTH) {
        for (u32 e = threadIdx.x; e < TILE * TILE_DEPTH; e += TILE_THREADS) {
            u32 index = Left::DEEP ? e / TILE_DEPTH : e % TILE, d = Left::DEEP ? e % TILE_DEPTH : e / TILE;
            bool there = row0 + index < rows && d0 + d < depth;
            lefts[d * (TILE + 1) + index] = there ? left.get(row0 + index, d0 + d) : 0.0f;
        }
        for (u32 e = threadIdx.x; e < TILE * TILE_DEPTH; e += TILE_THREADS) {
            u32 index = Right::DEEP ? e / TILE_DEPTH : e % TILE, d = Right::DEEP ? e % TILE_DEPTH : e / TILE;
            bool there = col0 + index < cols && d0 + d < depth;
            rights[d * (TILE + 1) + index] = there ? right.get(col0 + index, d0 + d) : 0.0f;
        }
        __syncthreads();
        // Not one step further: adding 0 would make 0 of -0.
        u32 steps = depth - d0 < TILE_DEPTH ? (u32)(depth - d0) : TILE_DEPTH;
        for (u32 d = 0; d < steps; d++) {
            float a[4], b[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) a[i] = lefts[d * (TILE + 1) + ty + 16 * i];
#pragma unroll
            for (u32 j = 0; j < 4; j++) b[j] = rights[d * (TILE + 1) + tx + 16 * j];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) c[i][j] = __fmaf_rn(a[i], b[j], c[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u64 row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
            if (row < rows && col < cols) finish(row, col, c[i][j]);
        }
}

#define CHUNK_COLUMNS 32
#define CHUNK_THREADS 256

// out[column] += the sum of each chunk of rows, chunks ascending: at most 64 rows of a segment, from its first. A chunk's
// sum is a chain of sum = term(sum, row, column) from 0. A block has 32 columns and sums 8 chunks at a time. `segments` has
// `count` + 1 offsets; null: all rows are one.
template <class Term>
DEVICE void add_chunks(const u32* segments, u64 count, u64 rows, u64 columns, float* out, Term term) {
    SHARED(float, sums, CHUNK_THREADS);
    u32 mine = threadIdx.x / CHUNK_COLUMNS, lane = threadIdx.x % CHUNK_COLUMNS, filled = 0;
    u64 column = (u64)blockIdx.x * CHUNK_COLUMNS + lane;
    bool adds = mine == 0 && column < columns;
    float total = adds ? out[column] : 0.0f;
    for (u64 s = 0; s <= count; s++) {
        u64 first = 0, end = 0;
        if (s < count) {
            first = segments ? segments[s] : 0;
            end = segments ? segments[s + 1] : rows;
        }
        do {
            if (first < end) {
                if (filled == mine) {
                    float sum = 0.0f;
                    u64 last = end - first < 64 ? end : first + 64;
                    if (column < columns)
                        for (u64 row = first; row < last; row++) sum = term(sum, row, column);
                    sums[threadIdx.x] = sum;
                }
                filled++;
                first += 64;
            }
            if (filled == CHUNK_THREADS / CHUNK_COLUMNS || s == count) {
                __syncthreads();
                if (adds)
                    for (u32 i = 0; i < filled; i++) total = total + sums[i * CHUNK_COLUMNS + lane];
                __syncthreads();
                filled = 0;
            }
        } while (first < end);
    }
    if (adds) out[column] = total;
}

// The weight of a norm: an offset of 0 leaves its bits alone, -0 too.
DEVICE float norm_weight(float weight, float offset) { return offset == 0.0f ? weight : weight + offset; }

// 16 lanes: 1 / sqrt(mean square + eps). All lanes of the warp call it.
DEVICE float norm_rstd(const float* x, u64 width, u32 lane, bool there, float eps) {
    float squares = 0.0f;
    for (u64 at = 0; at < width; at += LANES) {
        float v = there && at + lane < width ? x[at + lane] : 0.0f;
        squares = __fmaf_rn(v, v, squares);
    }
    return 1.0f / __fsqrt_rn(sum_of_16(squares) / (float)width + eps);
}

// 16 lanes: d_x = g * rstd - c * x, from d_x or from 0. All lanes of the warp call it.
DEVICE void norm_backward(const float* x, const float* weight, float offset, float rstd, const float* d_y, float* d_x,
                          u64 width, u32 lane, bool there, bool accumulate) {
    float sum = 0.0f;
    for (u64 at = 0; at < width; at += LANES) {
        u64 h = at + lane;
        bool mine = there && h < width;
        float g = mine ? d_y[h] * norm_weight(weight[h], offset) : 0.0f;
        sum = __fmaf_rn(g, mine ? x[h] : 0.0f, sum);
    }
    float c = sum_of_16(sum) * rstd * rstd * rstd / (float)width;
    if (!there) return;
    for (u64 h = lane; h < width; h += LANES) {
        float g = d_y[h] * norm_weight(weight[h], offset);
        d_x[h] = __fmaf_rn(-c, x[h], __fmaf_rn(g, rstd, accumulate ? d_x[h] : 0.0f));
    }
}

// What is kept of a chunk of a row's logits z: their largest m, the sum of exp(z - m), that of exp(z - m)(z - m).
#define KEPT 3
// Below it exp is 0, and it stands for -infinity where that 0 is multiplied.
#define FAR -1e4f

struct HeadRow {
    float max, lse, entropy;
};

// Combines the chunks of a row, [chunks][KEPT], ascending, onto the largest maximum.
DEVICE HeadRow combine_chunks(const float* kept, u64 chunks) {
    float max = __uint_as_float(0xff800000u), sum = 0.0f, slope = 0.0f;
    for (u64 c = 0; c < chunks; c++) max = larger(max, kept[c * KEPT]);
    for (u64 c = 0; c < chunks; c++) {
        float below = kept[c * KEPT] - max, factor = exp_(below), of_chunk = kept[c * KEPT + 1];
        sum = __fmaf_rn(of_chunk, factor, sum);
        slope = __fmaf_rn(__fmaf_rn(of_chunk, below > FAR ? below : FAR, kept[c * KEPT + 2]), factor, slope);
    }
    // Anything else than a positive normal number is a row that is not finite, and says so.
    bool finite = (__float_as_uint(sum) & 0x7fffffffu) < 0x7f800000u;
    float ln = sum >= 1.0f && finite ? ln_(sum) : __uint_as_float(0x7fc00000u);
    return HeadRow{max, max + ln, ln - slope / sum};
}
