// Sums over tokens, RMS norms and log-sum-exp, for the kernels of several operations.

#define CHUNK_COLUMNS 32
#define CHUNK_THREADS 256

// Adds the sum of each chunk of rows to out[column], one chunk after the other. A chunk is at most 64 rows of one
// segment (a packed sequence), counted from the segment's first row. The sum of a chunk starts from 0, and each row
// continues it: sum = term(sum, row, column). A block of threads has 32 columns, and sums 8 chunks at a time.
// `segments` has `count` + 1 row offsets; if it is null, all rows are one segment.
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

// The factor of a norm: weight + offset. An offset of 0 leaves the weight's bits as they are, even those of -0.
DEVICE float norm_weight(float weight, float offset) { return offset == 0.0f ? weight : weight + offset; }

// Backward pass of an RMS norm for one row, computed by 16 lanes: d_x = g * rstd - c * x, added to d_x if `accumulate`
// (g and c as in ops/rmsnorm/mod.rs). All lanes of the warp must call this function.
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

// Numbers that are kept of each chunk of a row's logits z: m = max z, the sum of exp(z-m), and the sum of
// exp(z-m)(z-m).
#define KEPT 3
// A difference z - m for which exp gives 0. It replaces -infinity where -infinity times 0 would be NaN.
#define FAR -1e4f

// Maximum, log-sum-exp and entropy of a row of logits.
struct HeadRow {
    float max, lse, entropy;
};

// Combines the numbers that are kept of a row's chunks, [chunks][KEPT], in ascending order. Each chunk's sums are
// scaled to the maximum of the row.
DEVICE HeadRow combine_chunks(const float* kept, u64 chunks) {
    float max = __uint_as_float(0xff800000u), sum = 0.0f, slope = 0.0f;
    for (u64 c = 0; c < chunks; c++) max = larger(max, kept[c * KEPT]);
    for (u64 c = 0; c < chunks; c++) {
        float below = kept[c * KEPT] - max, factor = exp_(below), of_chunk = kept[c * KEPT + 1];
        sum = __fmaf_rn(of_chunk, factor, sum);
        slope = __fmaf_rn(__fmaf_rn(of_chunk, below > FAR ? below : FAR, kept[c * KEPT + 2]), factor, slope);
    }
    // The sum of a finite row is finite and at least 1. Any other sum comes from non-finite logits, and gives NaN.
    bool finite = (__float_as_uint(sum) & 0x7fffffffu) < 0x7f800000u;
    float ln = sum >= 1.0f && finite ? ln_(sum) : __uint_as_float(0x7fc00000u);
    return HeadRow{max, max + ln, ln - slope / sum};
}
