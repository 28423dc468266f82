// What a row is drawn with: `words` has a column of `rows` words for each of these (cuda.rs writes them), then histories.
#define RANDOM 0      // two words of Philox
#define BETA 2        // 1/T
#define KIND 3        // GREEDY and WHOLE
#define TOP_K 4       // 0: all
#define PENALTY 5
#define TOP_P 6       // a double: low word, high word
#define MIN_P 8       // a double
#define HISTORY 10    // where it begins in `words`, and how long it is
#define GREEDY 1u
#define WHOLE 2u      // drawn from its whole row of logits: truncated, or with a penalty

struct Params {
    const u32* words;
    u64 rows, row;
    DEVICE_METHOD u32 word(u64 column) const { return words[column * rows + row]; }
    DEVICE_METHOD float real(u64 column) const { return __uint_as_float(word(column)); }
    DEVICE_METHOD double wide(u64 column) const { return __hiloint2double((int)word(column + 1), (int)word(column)); }
    DEVICE_METHOD bool is(u32 kind) const { return (word(KIND) & kind) != 0; }
    // A number in [0, 1), 53 bits.
    DEVICE_METHOD double uniform() const {
        return (double)(((u64)word(RANDOM) << 32 | word(RANDOM + 1)) >> 11) * 1.1102230246251565e-16;
    }
};

// The first index whose cumulated weight exceeds the fraction u of all, the fraction of its own weight that was left, and
// the sum of all. Where nothing has weight, the first.
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
    // Rounding left u at the very end.
    return Found{last, 1.0 - 2.220446049250313e-16, all};
}

// A thread for each row: a chunk by the uniform, then a token of it. Greedy rows take the largest, the lowest id of equals.
// Row 0 of this call is row `first` of `words`.
KERNEL(sample_plain, 32, const float* logits, const float* partials, const u32* words, u32* ids, float* logps,
       float* truncated_logps, u64 rows, u64 first, u64 all, u64 vocab, u64 chunk, u64 chunks) {
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
}

#define ROW_THREADS 256

// A block for each row that is drawn from whole: warped = beta . penalised logits.
KERNEL(sample_penalise, ROW_THREADS, const float* logits, const u32* words, float* warped, u64 first, u64 all, u64 vocab) {
    u64 row = blockIdx.x;
    Params params = Params{words, all, first + row};
    if (!params.is(WHOLE)) return;
    float beta = params.real(BETA), penalty = params.real(PENALTY);
    const float* z = logits + row * vocab;
    float* to = warped + row * vocab;
    for (u64 i = threadIdx.x; i < vocab; i += ROW_THREADS) to[i] = z[i] * beta;
    __syncthreads();
    // From the logit itself, so that a token seen twice is penalised once: both threads write the same.
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

// Of what each thread of the block has, folded. All of them call it.
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

// What the block's first thread has. All of them call it.
template <class T>
DEVICE T of_first_thread(T mine) {
    SHARED(T, first, 1);
    if (threadIdx.x == 0) first[0] = mine;
    __syncthreads();
    T its = first[0];
    __syncthreads();
    return its;
}

// Calls put(place, i) for every i below `count` that `stays`, places ascending from 0; how many they are. All threads of
// the block call it.
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

// The order of total_cmp, the largest first, and back.
DEVICE u32 descending(float z) {
    u32 bits = __float_as_uint(z);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}
DEVICE float of_descending(u32 key) { return __uint_as_float(key >> 31 ? key : ~key & 0x7fffffffu); }

// The least key for which what `of` gives of the keys up to it is enough; the last key if none is. All threads call it.
template <class Enough>
DEVICE u32 first_key(Enough enough) {
    u32 key = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit >>= 1)
        if (!enough(key | (bit - 1))) key |= bit;
    return key;
}

// Sorts `count` numbers, ascending, in memory for a power of two of them (bitonic). All threads call it.
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

// A row that is truncated.
struct Row {
    const float *z, *weights;
    // Room for the ids that stay, and for as many numbers as the vocabulary, up to a power of two.
    u32* ids;
    u64* sorted;
    u64 vocab;

    // The most likely first; of equals the lowest id.
    DEVICE_METHOD u64 place(u32 id) const { return (u64)descending(z[id]) << 32 | id; }

    // The place of the last that stays where from the most likely on every id stays before which less than top_p of all
    // is gathered, in that order. The ids are the first `count`. Only those are sorted that certainly reach the goal:
    // sums of n numbers that are not negative differ, whatever their order, by less than 2 n 2^-52 of all.
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

    // Makes `ids` those that stay, ascending; how many they are.
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

// A block for each row that is drawn from whole: truncates what sample_penalise made of it, and draws. Sums that decide
// are one thread's, in the CPU's order. `logits` are scaled ones, for the log-probability that is recorded.
KERNEL(sample_whole, ROW_THREADS, const float* logits, const float* partials, const u32* words, const float* warped,
       float* weights, u32* kept, u64* sorted, u32* ids, float* logps, float* truncated_logps, u64 first, u64 all, u64 vocab,
       u64 room, u64 chunks) {
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
    logps[row] = logits[row * vocab + id] - combine_chunks(partials + row * chunks * KEPT, chunks).lse;
    if (truncated_logps) truncated_logps[row] = logp;
}
