// One part of a fused row [q][k][v]. A row has q query parts of q_dim elements and k key parts of k_dim, which are
// normalised; its values are one more part, which is copied. 16 lanes work on each part.
struct Part {
    u64 row, start, dim, index;
    bool there, normed, of_query;
};

DEVICE Part part_of(u64 rows, u64 q, u64 k, u64 q_dim, u64 k_dim, u64 width) {
    u64 i = thread_of_grid() / LANES, parts = q + k + 1, a = i % parts;
    Part part;
    part.row = i / parts;
    part.index = a;
    part.of_query = a < q;
    part.there = part.row < rows;
    part.normed = a < q + k;
    part.start = a < q ? a * q_dim : q * q_dim + (a - q) * k_dim;
    part.dim = a < q ? q_dim : a < q + k ? k_dim : width - part.start;
    return part;
}

// RMS norm of each query and key part of each row.
KERNEL(qk_norm_forward, 128, const float* x, const float* q_weight, const float* k_weight, float offset, float eps, float* y,
       float* rstd, u64 rows, u64 q, u64 k, u64 q_dim, u64 k_dim, u64 width) {
    Part part = part_of(rows, q, k, q_dim, k_dim, width);
    u32 lane = threadIdx.x % LANES;
    u64 at = part.row * width + part.start;
    // Two parts of different length may share a warp, so all lanes loop to the length of the longest part.
    u64 longest = q_dim > k_dim ? q_dim : k_dim;
    float squares = 0.0f;
    for (u64 i = lane; i < (longest + LANES - 1) / LANES * LANES; i += LANES) {
        bool mine = part.there && part.normed && i / LANES < (part.dim + LANES - 1) / LANES;
        if (!mine) continue;
        float v = i < part.dim ? x[at + i] : 0.0f;
        squares = __fmaf_rn(v, v, squares);
    }
    float r = 1.0f / __fsqrt_rn(sum_of_16(squares) / (float)part.dim + eps);
    if (!part.there) return;
    const float* weight = part.of_query ? q_weight : k_weight;
    for (u64 i = lane; i < part.dim; i += LANES)
        y[at + i] = part.normed ? norm_weight(weight[i], offset) * (x[at + i] * r) : x[at + i];
    if (part.normed && lane == 0) rstd[part.row * (q + k) + part.index] = r;
}

// Gradient of the input, overwrites d_x.
KERNEL(qk_norm_backward, 128, const float* x, const float* q_weight, const float* k_weight, float offset, const float* rstd,
       const float* d_y, float* d_x, u64 rows, u64 q, u64 k, u64 q_dim, u64 k_dim, u64 width) {
    Part part = part_of(rows, q, k, q_dim, k_dim, width);
    u32 lane = threadIdx.x % LANES;
    u64 at = part.row * width + part.start;
    bool normed = part.there && part.normed;
    norm_backward(x + at, part.of_query ? q_weight : k_weight, offset, normed ? rstd[part.row * (q + k) + part.index] : 0.0f,
                  d_y + at, d_x + at, part.dim, lane, normed, false);
    if (part.there && !part.normed)
        for (u64 i = lane; i < part.dim; i += LANES) d_x[at + i] = d_y[at + i];
}

// Adds the gradient of the queries' or the keys' weight to d_weight, token by token, part by part. Its `parts` parts of
// `dim` elements begin with part `first`, at element `start` of a row.
KERNEL(qk_norm_backward_weight, CHUNK_THREADS, const float* x, const float* rstd, const float* d_y, const u32* segments,
       float* d_weight, u64 count, u64 rows, u64 parts, u64 dim, u64 first, u64 start, u64 normed, u64 width) {
    add_chunks(segments, count, rows, dim, d_weight, [=](float sum, u64 row, u64 i) {
        for (u64 a = 0; a < parts; a++) {
            u64 at = row * width + start + a * dim + i;
            sum = __fmaf_rn(d_y[at], x[at] * rstd[row * normed + first + a], sum);
        }
        return sum;
    });
}
