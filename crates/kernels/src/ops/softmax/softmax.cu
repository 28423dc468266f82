// The columns that a row sees (those that the mask leaves): `count` columns from `first` on. 16 lanes work on each row;
// lane i takes columns first + i, first + i + 16, ... `there`: whether these lanes have a row.
struct Seen {
    u64 row, first, count;
    bool there;
};

DEVICE Seen seen_by(const u32* first, const u32* end, u64 rows) {
    u64 row = thread_of_grid() / LANES;
    if (row >= rows) return Seen{row, 0, 0, false};
    u32 from = first[row] < end[row] ? first[row] : end[row];
    return Seen{row, from, end[row] - from, true};
}

// Masked softmax: y = softmax(scale * x) over the columns that a row sees, 0 in others.
KERNEL(softmax_forward, 128, const float* x, float scale, const u32* first, const u32* end, float* y, u64 rows, u64 columns) {
    Seen seen = seen_by(first, end, rows);
    u32 lane = threadIdx.x % LANES;
    u64 at = seen.row * columns + seen.first;
    float minus_infinity = __uint_as_float(0xff800000u), largest = minus_infinity;
    for (u64 c = lane; c < seen.count; c += LANES) largest = larger(largest, x[at + c] * scale);
    float m = largest_of_16(largest), sum = 0.0f;
    for (u64 c = lane; c < seen.count; c += LANES) {
        float e = exp_(x[at + c] * scale - m);
        y[at + c] = e;
        sum = sum + e;
    }
    sum = sum_of_16(sum);
    if (!seen.there) return;
    for (u64 c = lane; c < seen.count; c += LANES) y[at + c] = y[at + c] / sum;
    for (u64 c = lane; c < columns; c += LANES)
        if (c < seen.first || c >= seen.first + seen.count) y[seen.row * columns + c] = 0.0f;
}

// Gradient of the scores: d_x = scale * y * (d_y - sum of d_y * y) in the columns that a row sees, 0 in others.
KERNEL(softmax_backward, 128, const float* y, float scale, const u32* first, const u32* end, const float* d_y, float* d_x,
       u64 rows, u64 columns) {
    Seen seen = seen_by(first, end, rows);
    u32 lane = threadIdx.x % LANES;
    u64 at = seen.row * columns + seen.first;
    float sum = 0.0f;
    for (u64 from = 0; from < seen.count; from += LANES) {
        bool mine = from + lane < seen.count;
        sum = __fmaf_rn(mine ? d_y[at + from + lane] : 0.0f, mine ? y[at + from + lane] : 0.0f, sum);
    }
    float mean = sum_of_16(sum);
    if (!seen.there) return;
    for (u64 c = lane; c < seen.count; c += LANES) d_x[at + c] = y[at + c] * (d_y[at + c] - mean) * scale;
    for (u64 c = lane; c < columns; c += LANES)
        if (c < seen.first || c >= seen.first + seen.count) d_x[seen.row * columns + c] = 0.0f;
}
