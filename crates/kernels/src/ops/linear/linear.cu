// Linear layer in f32. x, y and their gradients may be some columns of a wider matrix: `x_width` and the like are the
// elements from one row to the next. Each matmul has a kernel for tiles of 64 x 64 elements and one for 128 x 128, with
// the same bits; the forward pass also has kernels for at most 8 rows, as in a decode step.

#define DEPTH_64 16
#define DEPTH_128 8

// y = x W^T + b. Each sum starts from 0, or from y if `accumulate`.
template <u32 SIDE, u32 DEPTH>
DEVICE void forward(const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width, u64 m, u64 n, u64 k,
                    u32 accumulate) {
    matmul<SIDE, DEPTH>(
        Rows{x, x_width}, Panels{w, k, 0}, m, n, k, !accumulate, [=](u64 row, u64 col) { return y[row * y_width + col]; },
        [=](u64 row, u64 col, float c) { y[row * y_width + col] = bias ? c + bias[col] : c; });
}

KERNEL(linear_forward_64, 128, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width, u64 m,
       u64 n, u64 k, u32 accumulate) {
    forward<64, DEPTH_64>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

PAIRED_KERNEL(linear_forward_128, 256, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width, u64 m,
       u64 n, u64 k, u32 accumulate) {
    forward<128, DEPTH_128>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

#define DECODE_THREADS 64
// A warp keeps AHEAD * GROUP loads of 128 bytes in flight.
#define AHEAD 4
#define GROUP 32
// Inputs of each row that are in shared memory at once: a multiple of AHEAD * GROUP.
#define STAGED 1024

// The same for m <= ROWS rows. A lane computes one output of all rows, a warp the outputs of one panel. The loads of
// weights run AHEAD * GROUP terms before the sums, through registers, since few rows leave few threads to hide latency.
template <u32 ROWS>
DEVICE void decode(const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width, u64 m, u64 n, u64 k,
                   u32 accumulate) {
    SHARED(float, staged, ROWS * STAGED);
    u64 panel = (u64)blockIdx.x * (DECODE_THREADS / 32) + threadIdx.x / 32, col = panel * PANEL + threadIdx.x % 32;
    // A warp beyond the last panel reads the first one, so that it takes part in barriers.
    const float* at = w + (panel * PANEL < n ? panel : 0) * k * PANEL + threadIdx.x % 32;
    float sums[ROWS], weights[AHEAD][GROUP];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) sums[r] = accumulate && r < m && col < n ? y[r * y_width + col] : 0.0f;
    u64 whole = k / (AHEAD * GROUP) * (AHEAD * GROUP);
    if (whole)
#pragma unroll
        for (u32 g = 0; g < AHEAD; g++)
#pragma unroll
            for (u32 i = 0; i < GROUP; i++) weights[g][i] = at[(g * GROUP + i) * PANEL];
    for (u64 first = 0; first < whole; first += STAGED) {
        u32 here = whole - first < STAGED ? (u32)(whole - first) : STAGED;
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < ROWS; r++)
#pragma unroll 8
            for (u32 i = threadIdx.x; i < here; i += DECODE_THREADS)
                staged[r * STAGED + i] = r < m ? x[r * x_width + first + i] : 0.0f;
        __syncthreads();
        for (u32 d = 0; d < here; d += AHEAD * GROUP) {
            bool more = first + d + AHEAD * GROUP < whole;
            at += AHEAD * GROUP * PANEL;
#pragma unroll
            for (u32 g = 0; g < AHEAD; g++) {
#pragma unroll
                for (u32 i = 0; i < GROUP; i += 4)
#pragma unroll
                    for (u32 r = 0; r < ROWS; r++) {
                        Four four = load4(&staged[r * STAGED + d + g * GROUP + i]);
#pragma unroll
                        for (u32 j = 0; j < 4; j++) sums[r] = __fmaf_rn(four.of[j], weights[g][i + j], sums[r]);
                    }
                if (more)
#pragma unroll
                    for (u32 i = 0; i < GROUP; i++) weights[g][i] = at[(g * GROUP + i) * PANEL];
            }
        }
    }
#pragma unroll 8
    for (u64 d = whole; d < k; d++, at += PANEL) {
        float weight = *at;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) sums[r] = __fmaf_rn(r < m ? x[r * x_width + d] : 0.0f, weight, sums[r]);
    }
    if (col >= n) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; r++)
        if (r < m) y[r * y_width + col] = bias ? sums[r] + bias[col] : sums[r];
}

KERNEL(linear_decode_1, DECODE_THREADS, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width,
       u64 m, u64 n, u64 k, u32 accumulate) {
    decode<1>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

KERNEL(linear_decode_2, DECODE_THREADS, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width,
       u64 m, u64 n, u64 k, u32 accumulate) {
    decode<2>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

KERNEL(linear_decode_4, DECODE_THREADS, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width,
       u64 m, u64 n, u64 k, u32 accumulate) {
    decode<4>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

KERNEL(linear_decode_8, DECODE_THREADS, const float* x, u64 x_width, const float* w, const float* bias, float* y, u64 y_width,
       u64 m, u64 n, u64 k, u32 accumulate) {
    decode<8>(x, x_width, w, bias, y, y_width, m, n, k, accumulate);
}

// d_x = d_y W. Each sum starts from 0, or from d_x if `accumulate`.
template <u32 SIDE, u32 DEPTH>
DEVICE void backward_input(const float* d_y, u64 d_y_width, const float* w, float* d_x, u64 d_x_width, u64 m, u64 n, u64 k,
                           u32 accumulate) {
    matmul<SIDE, DEPTH>(
        Rows{d_y, d_y_width}, PanelsTransposed{w, k, 0}, m, k, n, !accumulate,
        [=](u64 row, u64 col) { return d_x[row * d_x_width + col]; },
        [=](u64 row, u64 col, float c) { d_x[row * d_x_width + col] = c; });
}

KERNEL(linear_backward_input_64, 128, const float* d_y, u64 d_y_width, const float* w, float* d_x, u64 d_x_width, u64 m, u64 n,
       u64 k, u32 accumulate) {
    backward_input<64, DEPTH_64>(d_y, d_y_width, w, d_x, d_x_width, m, n, k, accumulate);
}

KERNEL(linear_backward_input_128, 256, const float* d_y, u64 d_y_width, const float* w, float* d_x, u64 d_x_width, u64 m, u64 n,
       u64 k, u32 accumulate) {
    backward_input<128, DEPTH_128>(d_y, d_y_width, w, d_x, d_x_width, m, n, k, accumulate);
}

// d_W += d_y^T x, computed as its transpose: a column of this matmul is a row of d_W. So neighbouring threads write
// neighbouring elements of a panel.
template <u32 SIDE, u32 DEPTH>
DEVICE void backward_weight(const float* x, u64 x_width, const float* d_y, u64 d_y_width, float* d_w, u64 m, u64 n, u64 k) {
    matmul<SIDE, DEPTH>(
        Columns{x, x_width}, Columns{d_y, d_y_width}, k, n, m, false,
        [=](u64 row, u64 col) { return d_w[panel_at(k, col, row)]; },
        [=](u64 row, u64 col, float c) { d_w[panel_at(k, col, row)] = c; });
}

KERNEL(linear_backward_weight_64, 128, const float* x, u64 x_width, const float* d_y, u64 d_y_width, float* d_w, u64 m, u64 n,
       u64 k) {
    backward_weight<64, DEPTH_64>(x, x_width, d_y, d_y_width, d_w, m, n, k);
}

PAIRED_KERNEL(linear_backward_weight_128, 256, const float* x, u64 x_width, const float* d_y, u64 d_y_width, float* d_w, u64 m, u64 n,
       u64 k) {
    backward_weight<128, DEPTH_128>(x, x_width, d_y, d_y_width, d_w, m, n, k);
}

// d_b += the sum of d_y over rows, one chunk of rows after the other.
KERNEL(linear_backward_bias, CHUNK_THREADS, const float* d_y, const u32* segments, float* d_bias, u64 count, u64 m, u64 n) {
    add_chunks(segments, count, m, n, d_bias, [=](float sum, u64 row, u64 col) { return sum + d_y[row * n + col]; });
}
