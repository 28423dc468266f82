// Linear interpolation in place: y = take * x + keep * y.
KERNEL(lerp, 256, const float* x, float* y, float keep, float take, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) y[i] = __fmaf_rn(take, x[i], keep * y[i]);
}
