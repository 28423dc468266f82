// Factors that are the same for all elements, as the host rounds them to f32. clip: of gradient clipping; decay: one
// minus lr times weight decay; blend: 1 - beta1; rest2: 1 - beta2; root: sqrt(1 - beta2^t); step: lr / (1 - beta1^t).
struct Factors {
    float clip, decay, blend, beta2, rest2, root, eps, step;
};
// A parameter and its moments m and v after a step.
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

// The factor of gradient clipping. `norm` has two numbers: the L2 norm of all gradients, and 1 if all of them are
// finite. A max_norm of 0 means no clipping.
DEVICE float clip_of(const float* norm, float max_norm) {
    return max_norm > 0.0f ? smaller(1.0f, max_norm / (norm[0] + 1e-6f)) : 1.0f;
}

// One AdamW step with moments in f32, a thread for each element. `from` is the parameter before the step, and may be
// `param` itself. `rounded` gets the parameter rounded to bf16.
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

// Rounds x to bf16 stochastically. `random` has 16 bits. Adding them carries into the upper half, which rounds up, with
// a probability equal to the distance of x from the bf16 below, as a fraction of the step to the next bf16.
DEVICE u16 rounded_by(float x, u32 random) {
    u32 bits = __float_as_uint(x);
    bool finite = (bits & 0x7fffffffu) < 0x7f800000u;
    return (u16)((finite ? bits + random : bits) >> 16);
}

// One AdamW step with moments in bf16, a thread for each element. The four random words of Philox for (key, block, t)
// serve four elements; half a word rounds m, the other half v.
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
