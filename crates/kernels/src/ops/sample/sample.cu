// Draws the next token of each row from its logits (mod.rs).
//
// Sampling parameters of a row: `words` has a column of `rows` words for each name below, as cuda.rs packs them; then
// come the histories.
#define RANDOM 0      // two random words of Philox
#define BETA 2        // 1/T, T the temperature
#define KIND 3        // the flags GREEDY and WHOLE
#define TOP_K 4       // 0 keeps all tokens
#define PENALTY 5     // repetition penalty
#define TOP_P 6       // a double in two columns: low word, high word
#define MIN_P 8       // a double in two columns
#define HISTORY 10    // two columns: index in `words` of the row's history, and the history's length
#define GREEDY 1u
#define WHOLE 2u      // needs its whole row of logits at once: with truncation or a penalty

// The sampling parameters of one row.
struct Params {
    const u32* words;
    u64 rows, row;
    DEVICE_METHOD u32 word(u64 column) const { return words[column * rows + row]; }
    DEVICE_METHOD float real(u64 column) const { return __uint_as_float(word(column)); }
    DEVICE_METHOD double wide(u64 column) const { return __hiloint2double((int)word(column + 1), (int)word(column)); }
    DEVICE_METHOD bool is(u32 kind) const { return (word(KIND) & kind) != 0; }
    // The row's uniform random number in [0, 1), with 53 bits.
    DEVICE_METHOD double uniform() const {
        return (double)(((u64)word(RANDOM) << 32 | word(RANDOM + 1)) >> 11) * 1.1102230246251565e-16;
    }
};

// The result of inverse_cdf. `at`: the first index whose cumulative weight exceeds the fraction u of the sum of all
// weights (0 if no index has weight). `left`: how far into its own weight that point lies, from 0 to 1. `all`: the sum
// of all weights.
struct Found {
    u64 at;
    double left, all;
};

template <class Weight>
DEVICE Found inverse_cdf(u64 count, Weight weight, double u) {
    double all = -0.0, below = 0.0;
    for (u64 i = 0; i < count; i++) all = all + (double)weight(i);
    double goal = u * all;
    u64 last = 0;
    for (u64 i = 0; i < count; i++) {
        double mine = weight(i);
        if (goal < below + mine) return Found{i, (goal - below) / mine, all};
        if (mine > 0.0) last = i;
        below = below + mine;
    }
    // Rounding put the point past all weights: take the last index that has weight.
    return Found{last, 1.0 - 2.220446049250313e-16, all};
}

// Draws the tokens of rows without truncation and penalty, a thread for each row. The random number chooses a chunk of
// the vocabulary, then a token in it. A greedy row takes the token with the largest logit; ties go to the lowest id.
// Row 0 of this launch is row `first` of the `all` rows in `words`.
KERNEL(sample_plain, 32, const float* logits, const float* partials, const u32* words, u32* ids, float* logps,
       float* truncated_logps, float* lse, float* entropies, u64 rows, u64 first, u64 all, u64 vocab, u64 chunk,
       u64 chunks) {
    u64 row = thread_of_grid();
    if (row >= rows) return;
    Params params = Params{words, all, first + row};
    if (params.is(WHOLE)) return;
    bool greedy = params.is(GREEDY);
    const float* kept = partials + row * chunks * KEPT;
    HeadRow whole = combine_chunks(kept, chunks);
    Found found = Found{0, 0.0, 0.0};
    if (greedy) {
        while (found.at < chunks && kept[found.at * KEPT] != whole.max) found.at++;
        if (found.at == chunks) found.at = 0;
    } else {
        found = inverse_cdf(
            chunks, [=](u64 c) -> float { return kept[c * KEPT + 1] * exp_(kept[c * KEPT] - whole.max); },
            params.uniform());
    }
    u64 start = found.at * chunk, count = vocab - start < chunk ? vocab - start : chunk, at = 0;
    const float* z = logits + row * vocab + start;
    float max = kept[found.at * KEPT];
    if (greedy) {
        while (at < count && z[at] != max) at++;
        if (at == count) at = 0;
    } else {
        at = inverse_cdf(count, [=](u64 i) -> float { return exp_(z[i] - max); }, found.left).at;
    }
    ids[row] = (u32)(start + at);
    float logp = z[at] - whole.lse;
    logps[row] = logp;
    if (truncated_logps) truncated_logps[row] = greedy ? 0.0f : logp;
    if (lse) lse[row] = whole.lse;
    if (entropies) entropies[row] = whole.entropy;
}

#define ROW_THREADS 256

// Computes warped = beta * logits, with the repetition penalty applied to the logits, for the rows with truncation or a
// penalty (WHOLE). A block of threads for each row.
KERNEL(sample_penalise, ROW_THREADS, const float* logits, const u32* words, float* warped, u64 first, u64 all, u64 vocab) {
    u64 row = blockIdx.x;
    Params params = Params{words, all, first + row};
    if (!params.is(WHOLE)) return;
    float beta = params.real(BETA), penalty = params.real(PENALTY);
    const float* z = logits + row * vocab;
    float* to = warped + row * vocab;
    for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS) to[i] = z[i] * beta;
    __syncthreads();
    // Computed from the original logit, so that a token that occurs twice is penalised once: its threads write the same
    // number.
    const u32* history = words + params.word(HISTORY);
    for (u64 i = threadIdx.x; i < params.word(HISTORY + 1); i += ROW_THREADS) {
        u32 id = history[i];
        to[id] = (z[id] < 0.0f ? z[id] * penalty : z[id] / penalty) * beta;
    }
}

struct Add {
    template <class T>
    DEVICE_METHOD T operator()(T a, T b) const { return a + b; }
};
struct Largest {
    DEVICE_METHOD float operator()(float a, float b) const { return larger(a, b); }
};
struct Least {
    DEVICE_METHOD u32 operator()(u32 a, u32 b) const { return b < a ? b : a; }
};

// Folds the values of all threads of a block into one value, and returns it to all of them. All threads must call this
// function.
template <class T, class Fold>
DEVICE T fold_of_block(T mine, Fold fold) {
    SHARED(T, of, ROW_THREADS);
    of[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = ROW_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) of[threadIdx.x] = fold((T)of[threadIdx.x], (T)of[threadIdx.x + half]);
        __syncthreads();
    }
    T all = of[0];
    __syncthreads();
    return all;
}

// Returns the value of the block's first thread. All threads must call this function.
template <class T>
DEVICE T of_first_thread(T mine) {
    SHARED(T, first, 1);
    if (threadIdx.x == 0) first[0] = mine;
    __syncthreads();
    T its = first[0];
    __syncthreads();
    return its;
}

// Calls put(place, i) for each i below `count` for which stays(i) is true, in ascending order; places count from 0.
// Returns the number of these calls. All threads of the block must call it.
template <class Stays, class Put>
DEVICE u64 compact(u64 count, Stays stays, Put put) {
    SHARED(u32, counts, ROW_THREADS);
    u64 share = (count + ROW_THREADS - 1) / ROW_THREADS, start = threadIdx.x * share, end = start + share;
    u32 mine = 0;
    for (u64 i = start; i < end && i < count; i++) mine += stays(i) ? 1 : 0;
    counts[threadIdx.x] = mine;
    __syncthreads();
    u64 place = 0, all = 0;
    for (u32 thread = 0; thread < ROW_THREADS; thread++) {
        u32 its = counts[thread];
        if (thread < threadIdx.x) place += its;
        all += its;
    }
    for (u64 i = start; i < end && i < count; i++)
        if (stays(i)) put(place++, i);
    __syncthreads();
    return all;
}

// Maps a logit to a key whose ascending order is the descending order of Rust's f32::total_cmp.
DEVICE u32 descending(float z) {
    u32 bits = __float_as_uint(z);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}
// The logit of a key.
DEVICE float of_descending(u32 key) { return __uint_as_float(key >> 31 ? key : ~key & 0x7fffffffu); }

// Finds, bit by bit, the least key for which enough(key) is true, or the last key if there is none. `enough` must stay
// true for all larger keys. All threads of the block must call this function.
template <class Enough>
DEVICE u32 first_key(Enough enough) {
    u32 key = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit >>= 1)
        if (!enough(key | (bit - 1))) key |= bit;
    return key;
}

// Sorts `count` numbers in ascending order (bitonic sort). The array has room for the next power of two. All threads of
// the block must call it.
DEVICE void sort(u64* x, u64 count) {
    u64 room = 1;
    while (room < count) room *= 2;
    for (u64 i = count + threadIdx.x; i < room; i += ROW_THREADS) x[i] = ~0ull;
    __syncthreads();
    for (u64 size = 2; size <= room; size *= 2)
        for (u64 step = size / 2; step > 0; step /= 2) {
            for (u64 i = threadIdx.x; i < room; i += ROW_THREADS) {
                u64 other = i ^ step, a = x[i];
                if (other < i) continue;
                u64 b = x[other];
                if ((a > b) == ((i & size) == 0)) {
                    x[i] = b;
                    x[other] = a;
                }
            }
            __syncthreads();
        }
}

// One row to truncate: `z` are its logits after 1/T and penalty, `weights` are exp(z - max z). All threads of a block
// call its methods together.
struct Row {
    const float *z, *weights;
    // Buffers: `ids` for the kept token ids, `sorted` for as many numbers as the vocabulary has entries, rounded up to
    // a power of two.
    u32* ids;
    u64* sorted;
    u64 vocab;

    // The sort key of a token: the most likely token comes first; ties go to the lowest id.
    DEVICE_METHOD u64 place(u32 id) const { return (u64)descending(z[id]) << 32 | id; }

    // top-p: goes through the first `count` ids from the most likely one on, and keeps each id before which the weights
    // sum to less than top_p of the total. Returns place(id) of the last kept id. Only ids that are sure to reach that
    // sum are sorted: two sums of the same n non-negative numbers, in any order, differ by less than 2 n 2^-52 of the
    // total.
    DEVICE_METHOD u64 nucleus(u64 count, double top_p) const {
        double total = -0.0;
        if (threadIdx.x == 0)
            for (u64 i = 0; i < count; i++) total = total + (double)weights[ids[i]];
        total = of_first_thread(total);
        double goal = top_p * total, reached = goal + 4.440892098500626e-16 * (double)count * total;
        u32 least = first_key([=](u32 key) -> bool {
            double sum = 0.0;
            for (u64 i = threadIdx.x; i < count; i += ROW_THREADS)
                if (descending(z[ids[i]]) <= key) sum = sum + (double)weights[ids[i]];
            return fold_of_block(sum, Add{}) >= reached;
        });
        u64 some = compact(
            count, [=](u64 i) -> bool { return descending(z[ids[i]]) <= least; },
            [=](u64 to, u64 i) { sorted[to] = place(ids[i]); });
        sort(sorted, some);
        u64 last = 0;
        if (threadIdx.x == 0 && some > 0) {
            double before = 0.0;
            for (u64 i = 0; i < some && (i == 0 || !(before >= goal)); i++) {
                last = sorted[i];
                before = before + (double)weights[(u32)last];
            }
        }
        return of_first_thread(last);
    }

    // Sets `ids` to the tokens that top-k, top-p and min-p keep, ascending. Returns their number.
    DEVICE_METHOD u64 keep(u32 top_k, double top_p, double min_p) const {
        bool by_rank = top_k > 0 && top_k < vocab, by_mass = top_p < 1.0;
        float least = 0.0f;
        if (by_rank)
            least = of_descending(first_key([=](u32 key) -> bool {
                u32 count = 0;
                for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS) count += descending(z[i]) <= key ? 1 : 0;
                return fold_of_block(count, Add{}) >= top_k;
            }));
        u64 last = 0;
        if (by_mass) {
            u64 count = compact(
                vocab, [=](u64 id) -> bool { return !by_rank || z[id] >= least; },
                [=](u64 to, u64 id) { ids[to] = (u32)id; });
            last = nucleus(count, top_p);
        }
        return compact(
            vocab,
            [=](u64 id) -> bool {
                bool ranked = !by_rank || z[id] >= least, gathered = !by_mass || place((u32)id) <= last;
                return ranked && gathered && (min_p == 0.0 || (double)weights[id] >= min_p);
            },
            [=](u64 to, u64 id) { ids[to] = (u32)id; });
    }
};

// Draws the tokens of rows with truncation or a penalty (WHOLE), a block of threads for each row. It truncates
// `warped`, the output of sample_penalise, and draws from what is left. Sums that decide are computed by one thread, in
// the CPU's order. The recorded log-probability is that of `logits`, which are multiplied by 1/T and have no penalty.
KERNEL(sample_whole, ROW_THREADS, const float* logits, const float* partials, const u32* words, const float* warped,
       float* weights, u32* kept, u64* sorted, u32* ids, float* logps, float* truncated_logps, float* lse, float* entropies,
       u64 first, u64 all, u64 vocab, u64 room, u64 chunks) {
    u64 row = blockIdx.x;
    Params params = Params{words, all, first + row};
    if (!params.is(WHOLE)) return;
    const float* z = warped + row * vocab;
    float most = __uint_as_float(0xff800000u);
    for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS) most = larger(most, z[i]);
    float max = fold_of_block(most, Largest{}), logp = 0.0f;
    u32 id = (u32)vocab;
    if (params.is(GREEDY)) {
        for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS)
            if (z[i] == max && i < id) id = (u32)i;
        id = fold_of_block(id, Least{});
        if (id == vocab) id = 0;
    } else {
        float* w = weights + row * vocab;
        for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS) w[i] = exp_(z[i] - max);
        __syncthreads();
        u32* stay = kept + row * vocab;
        Row of = Row{z, w, stay, sorted + row * room, vocab};
        u64 count = of.keep(params.word(TOP_K), params.wide(TOP_P), params.wide(MIN_P));
        if (threadIdx.x == 0) {
            Found found = inverse_cdf(count, [=](u64 i) -> float { return w[stay[i]]; }, params.uniform());
            id = found.at < count ? stay[found.at] : 0;
            logp = (z[id] - max) - ln_((float)found.all);
        }
    }
    if (threadIdx.x > 0) return;
    ids[row] = id;
    HeadRow whole = combine_chunks(partials + row * chunks * KEPT, chunks);
    logps[row] = logits[row * vocab + id] - whole.lse;
    if (truncated_logps) truncated_logps[row] = logp;
    if (lse) lse[row] = whole.lse;
    if (entropies) entropies[row] = whole.entropy;
}
