// The first index whose cumulated weight exceeds the fraction u of all, and the fraction of its own weight that was left.
// Where nothing has weight, the first.
struct Found {
    u64 at;
    double left;
};

template <class Weight>
DEVICE Found inverse_cdf(u64 count, Weight weight, double u) {
    double all = -0.0, below = 0.0;
    for (u64 i = 0; i < count; i++) all = all + (double)weight(i);
    double goal = u * all;
    u64 last = 0;
    for (u64 i = 0; i < count; i++) {
        double mine = weight(i);
        if (goal < below + mine) return Found{i, (goal - below) / mine};
        if (mine > 0.0) last = i;
        below = below + mine;
    }
    // Rounding left u at the very end.
    return Found{last, 1.0 - 2.220446049250313e-16};
}

// A thread for each row: a chunk by the uniform, then a token of it. Greedy rows take the largest, the lowest id of equals.
KERNEL(sample_plain, 32, const float* logits, const float* partials, const double* uniforms, const u32* greedy, u32* ids,
       float* logps, float* truncated_logps, u64 rows, u64 vocab, u64 chunk, u64 chunks) {
    u64 row = thread_of_grid();
    if (row >= rows) return;
    const float* kept = partials + row * chunks * KEPT;
    HeadRow whole = combine_chunks(kept, chunks);
    Found found = Found{0, 0.0};
    if (greedy[row]) {
        while (found.at < chunks && kept[found.at * KEPT] != whole.max) found.at++;
        if (found.at == chunks) found.at = 0;
    } else {
        found = inverse_cdf(
            chunks, [=](u64 c) -> float { return kept[c * KEPT + 1] * exp_(kept[c * KEPT] - whole.max); }, uniforms[row]);
    }
    u64 start = found.at * chunk, count = vocab - start < chunk ? vocab - start : chunk, at = 0;
    const float* z = logits + row * vocab + start;
    float max = kept[found.at * KEPT];
    if (greedy[row]) {
        while (at < count && z[at] != max) at++;
        if (at == count) at = 0;
    } else {
        at = inverse_cdf(count, [=](u64 i) -> float { return exp_(z[i] - max); }, found.left).at;
    }
    ids[row] = (u32)(start + at);
    float logp = z[at] - whole.lse;
    logps[row] = logp;
    if (truncated_logps) truncated_logps[row] = greedy[row] ? 0.0f : logp;
}
