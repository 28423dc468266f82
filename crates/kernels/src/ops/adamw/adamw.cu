// norm: [the norm of all gradients, 1 if they are finite]; factors as the CPU forms them
KERNEL(adamw_step, 256, float* param, float* rounded, const float* grad, float* m, float* v, const float* norm,
       float max_norm, float decay, float blend, float beta2, float rest2, float root, float eps, float step, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count || norm[1] == 0.0f) return;
    float clip = max_norm > 0.0f ? smaller(1.0f, max_norm / (norm[0] + 1e-6f)) : 1.0f;
    float g = grad[i] * clip, p = param[i] * decay;
    float m1 = __fmaf_rn(g - m[i], blend, m[i]);
    float v1 = __fmaf_rn(g * rest2, g, v[i] * beta2);
    float denominator = __fsqrt_rn(v1) / root + eps;
    p = p + m1 * -step / denominator;
    m[i] = m1;
    v[i] = v1;
    param[i] = p;
    if (rounded) rounded[i] = from_bf16(to_bf16(p));
}
