// Rotary position embedding, a thread for each pair of elements (i, i + head_dim / 2) of a head. The first `heads`
// heads of a row are rotated, others are copied. A `sign` of -1 rotates back (backward pass). y may be x.
KERNEL(rope, 256, const float* x, float* y, const u32* positions, const float* cosines, const float* sines, float sign,
       u64 rows, u64 width, u64 heads, u64 head_dim) {
    u64 i = thread_of_grid(), pairs = width / 2, half = head_dim / 2;
    if (i >= rows * pairs) return;
    u64 row = i / pairs, head = i % pairs / half, at = i % pairs % half;
    u64 low = row * width + head * head_dim + at, high = low + half;
    float a = x[low], b = x[high];
    if (head < heads) {
        u64 angle = positions[row] * half + at;
        float c = cosines[angle], s = sines[angle] * sign;
        float rotated = __fmaf_rn(b, 0.0f - s, a * c);
        b = __fmaf_rn(a, s, b * c);
        a = rotated;
    }
    y[low] = a;
    y[high] = b;
}
