// Statistics of a window of the vocabulary: `logits` is [rows][ids], for token ids from `first` on. 16 lanes work on
// each chunk of a row. They multiply its logits by 1/T (`betas[row]`, or `beta` if `betas` is null), store the numbers
// for the log-sum-exp in partials[row][chunk], and the scaled logit of the row's target in picked[row].
KERNEL(lm_head_statistics, 128, float* logits, float* partials, const u32* targets, float* picked, const float* betas,
       float beta, u64 rows, u64 ids, u64 first, u64 chunk, u64 chunks) {
    u64 i = thread_of_grid() / LANES, here = (ids + chunk - 1) / chunk, row = i / here, start = i % here * chunk;
    u32 lane = threadIdx.x % LANES;
    bool there = row < rows;
    if (betas && there) beta = betas[row];
    u64 count = !there ? 0 : ids - start < chunk ? ids - start : chunk;
    float* z = logits + row * ids + start;
    float minus_infinity = __uint_as_float(0xff800000u), largest = minus_infinity;
    for (u64 at = lane; at < count; at += LANES) {
        float scaled = z[at] * beta;
        z[at] = scaled;
        largest = larger(largest, scaled);
        if (targets && first + start + at == targets[row]) picked[row] = scaled;
    }
    float m = largest_of_16(largest), sum = 0.0f, slope = 0.0f;
    for (u64 at = 0; at < count; at += LANES) {
        float below = (at + lane < count ? z[at + lane] : minus_infinity) - m, e = exp_(below);
        sum = sum + e;
        slope = __fmaf_rn(e, larger(below, FAR), slope);
    }
    sum = sum_of_16(sum);
    slope = sum_of_16(slope);
    if (!there || lane > 0) return;
    float* kept = partials + (row * chunks + (first + start) / chunk) * KEPT;
    kept[0] = m;
    kept[1] = sum;
    kept[2] = slope;
}

// Combines the statistics of each row's chunks, a thread for each row: log-probability, log-sum-exp and entropy. On
// entry, `logps` contains the targets' scaled logits; on return, their log-probabilities.
KERNEL(lm_head_combine, 128, const float* partials, float* logps, float* lse, float* entropies, u64 rows, u64 chunks) {
    u64 row = thread_of_grid();
    if (row >= rows) return;
    HeadRow done = combine_chunks(partials + row * chunks * KEPT, chunks);
    logps[row] = logps[row] - done.lse;
    lse[row] = done.lse;
    if (entropies) entropies[row] = done.entropy;
}

// Overwrites a window's logits with their gradient, beta * dz: z are the logits after multiplication by beta = 1/T
// (formulas in mod.rs).
KERNEL(lm_head_slopes, 256, float* logits, const u32* targets, float beta, const float* lse, const float* d_logps,
       const float* d_entropies, const float* entropies, u64 rows, u64 ids, u64 first) {
    u64 i = thread_of_grid();
    if (i >= rows * ids) return;
    u64 row = i / ids, id = first + i % ids;
    float a = -beta * d_logps[row], b = -beta * (d_entropies ? d_entropies[row] : 0.0f);
    float entropy = d_entropies ? entropies[row] : 0.0f, ln_p = logits[i] * beta - lse[row];
    float slope = exp_(ln_p) * __fmaf_rn(larger(ln_p, FAR) + entropy, b, a);
    logits[i] = id == targets[row] ? slope + beta * d_logps[row] : slope;
}
