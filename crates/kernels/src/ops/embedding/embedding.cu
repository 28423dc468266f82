// Token embedding: out[t,h] = scale * table[ids[t],h]. The table is stored in panels (matrix.rs).
KERNEL(embedding_forward, 256, const u32* ids, const float* table, float scale, float* out, u64 tokens, u64 hidden) {
    u64 i = thread_of_grid();
    if (i < tokens * hidden) out[i] = scale * table[panel_at(hidden, ids[i / hidden], i % hidden)];
}

// Gradient of the table: d_table[ids[t],h] += scale * d_out[t,h], over ascending t. A thread computes one column h, for
// the token ids that equal its blockIdx.y modulo gridDim.y.
KERNEL(embedding_backward, 128, const u32* ids, const float* d_out, float scale, float* d_table, u64 tokens, u64 hidden) {
    u64 h = thread_of_grid();
    if (h >= hidden) return;
    for (u64 t = 0; t < tokens; t++) {
        u32 id = ids[t];
        if (id % gridDim.y != blockIdx.y) continue;
        float* sum = &d_table[panel_at(hidden, id, h)];
        *sum = *sum + scale * d_out[t * hidden + h];
    }
}
