// A parameter and its moments after a step; factors as the CPU forms them.
struct Factors {
    float clip, decay, blend, beta2, rest2, root, eps, step;
};
struct Advanced {
    float param, m, v;
};

DEVICE Advanced advance(Factors f, float grad, float param, float m, float v) {
    float g = grad * f.clip, p = param * f.decay;
    float m1 = __fmaf_rn(g - m, f.blend, m);
    float v1 = __fmaf_rn(g * f.rest2, g, v * f.beta2);
    float denominator = __fsqrt_rn(v1) / f.root + f.eps;
    return Advanced{p + m1 * -f.step / denominator, m1, v1};
}

// norm: [the norm of all gradients, 1 if they are finite]
DEVICE float clip_of(const float* norm, float max_norm) {
    return max_norm > 0.0f ? smaller(1.0f, max_norm / (norm[0] + 1e-6f)) : 1.0f;
}

// from: the parameter before the step, which may be `param`.
KERNEL(adamw_step, 256, float* param, const float* from, float* rounded, const float* grad, float* m, float* v,
       const float* norm, float max_norm, float decay, float blend, float beta2, float rest2, float root, float eps,
       float step, u64 count) {
    u64 i = thread_of_grid();
    if (i >= count || norm[1] == 0.0f) return;
    Factors factors = Factors{clip_of(norm, max_norm), decay, blend, beta2, rest2, root, eps, step};
    Advanced next = advance(factors, grad[i], from[i], m[i], v[i]);
    m[i] = next.m;
    v[i] = next.v;
    param[i] = next.param;
    if (rounded) rounded[i] = from_bf16(to_bf16(next.param));
}

// x as bf16, upwards with the probability of what lies below: adding 16 random bits carries just so often.
DEVICE u16 rounded_by(float x, u32 random) {
    u32 bits = __float_as_uint(x);
    bool finite = (bits & 0x7fffffffu) < 0x7f800000u;
    return (u16)((finite ? bits + random : bits) >> 16);
}

// Moments in bf16: a block of random words, of Philox of (key, block, t), for four elements; half a word for each moment.
KERNEL(adamw_step_bf16, 256, float* param, const float* from, float* rounded, const float* grad, u16* m, u16* v,
       const float* norm, float max_norm, float decay, float blend, float beta2, float rest2, float root, float eps,
       float step, u64 count, u64 key, u64 first_block, u64 t) {
    u64 i = thread_of_grid();
    if (i >= count || norm[1] == 0.0f) return;
    Factors factors = Factors{clip_of(norm, max_norm), decay, blend, beta2, rest2, root, eps, step};
    Advanced next = advance(factors, grad[i], from[i], from_bf16(m[i]), from_bf16(v[i]));
    param[i] = next.param;
    u64 block = first_block + i / 4;
    u32 word = philox(key, Words{{(u32)block, (u32)(block >> 32), (u32)t, (u32)(t >> 32)}}).of[i % 4];
    m[i] = rounded_by(next.m, word & 0xffffu);
    v[i] = rounded_by(next.v, word >> 16);
    if (rounded) rounded[i] = from_bf16(to_bf16(next.param));
}
