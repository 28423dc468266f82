// Gated linear units (formulas in mod.rs). `gelu` chooses the activation of the gate: 0 is SiLU, 1 is GELU (tanh form).

// Constants of GELU: 2 sqrt(2/pi), and the factor of the cubic term.
#define STEEPNESS 1.5957692f
#define CUBIC 0.044715f

// Limits the gate of GELU. Beyond these bounds the logistic function is 0 or 1 in f32, and squares could overflow.
DEVICE float bounded(float g) { return smaller(larger(g, -16.0f), 16.0f); }

// The logistic function of z(g) (mod.rs), by which the gate g is multiplied.
DEVICE float gate_sigmoid(float g, u32 gelu) {
    if (!gelu) return sigmoid(g);
    g = bounded(g);
    float growth = __fmaf_rn(g * g, CUBIC, 1.0f);
    return sigmoid(g * STEEPNESS * growth);
}

// Derivative of the activation at gate g, where s is gate_sigmoid(g).
DEVICE float gate_slope(float g, float s, u32 gelu) {
    if (!gelu) return s * __fmaf_rn(g, 1.0f - s, 1.0f);
    g = bounded(g);
    float growth = __fmaf_rn(g * g, 3.0f * CUBIC, 1.0f);
    return s * __fmaf_rn(g, (1.0f - s) * (STEEPNESS * growth), 1.0f);
}

// y = activation(gate) * up. `kept` gets a copy of gate and up for the backward pass.
KERNEL(glu_forward, 256, const float* gate_up, float* kept, float* y, u32 gelu, u64 rows, u64 width) {
    u64 i = thread_of_grid();
    if (i >= rows * width) return;
    u64 gate = i / width * 2 * width + i % width, up = gate + width;
    float g = gate_up[gate], u = gate_up[up];
    y[i] = g * gate_sigmoid(g, gelu) * u;
    if (kept) {
        kept[gate] = g;
        kept[up] = u;
    }
}

// Gradients of gate and up; if y is set, also the output of the forward pass again. If `from` is set, row t reads row
// from[t] of gate_up.
KERNEL(glu_backward, 256, const float* gate_up, const u32* from, const float* d_y, float* d_gate_up, float* y, u32 gelu, u64 rows, u64 width) {
    u64 i = thread_of_grid();
    if (i >= rows * width) return;
    u64 t = i / width, gate = t * 2 * width + i % width, up = gate + width;
    const float* own = gate_up + (from ? from[t] : t) * 2 * width + i % width;
    float g = own[0], u = own[width], d = d_y[i];
    float s = gate_sigmoid(g, gelu), activated = g * s;
    d_gate_up[gate] = d * u * gate_slope(g, s, gelu);
    d_gate_up[up] = d * activated;
    if (y) y[i] = activated * u;
}
