// Matmuls in f32, for the kernels of several operations.

// Each struct below reads an operand of a matmul. get(index, depth) returns the term `depth` of a sum, for row `index` of
// the left operand or column `index` of the right operand. DEEP: whether neighbours in memory are neighbours in depth;
// else they are neighbours in index. If fours() holds, load4 may read four neighbours from the address
// place(index, depth) + step(d): the terms from `d + depth` on, or the columns from `index` on, where `index` or `depth`
// is a multiple of 4, `d` of the depth of a tile, and `depth` is less than that.

// The rows of a row-major matrix.
struct Rows {
    const float* at;
    u64 width;
    static const bool DEEP = true;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[index * width + depth]; }
    DEVICE_METHOD bool fours() const { return aligned4(at) && width % 4 == 0; }
    DEVICE_METHOD const float* place(u64 index, u32 depth) const { return at + index * width + depth; }
    DEVICE_METHOD u64 step(u32 d) const { return d; }
};
// The columns of a row-major matrix.
struct Columns {
    const float* at;
    u64 width;
    static const bool DEEP = false;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[depth * width + index]; }
    DEVICE_METHOD bool fours() const { return aligned4(at) && width % 4 == 0; }
    DEVICE_METHOD const float* place(u64 index, u32 depth) const { return at + depth * width + index; }
    DEVICE_METHOD u64 step(u32 d) const { return d * width; }
};
// The rows from `first` on of a weight matrix in panels (matrix.rs). Index: its rows (outputs); depth: its inputs.
struct Panels {
    const float* at;
    u64 cols, first;
    static const bool DEEP = false;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, first + index, depth)]; }
    DEVICE_METHOD bool fours() const { return first % 4 == 0; }
    DEVICE_METHOD const float* place(u64 index, u32 depth) const { return at + panel_at(cols, first + index, depth); }
    DEVICE_METHOD u64 step(u32 d) const { return (u64)d * PANEL; }
};
// The same rows, transposed. Index: inputs; depth: rows (outputs).
struct PanelsTransposed {
    const float* at;
    u64 cols, first;
    static const bool DEEP = true;
    DEVICE_METHOD float get(u64 index, u64 depth) const { return at[panel_at(cols, first + depth, index)]; }
    DEVICE_METHOD bool fours() const { return first % PANEL == 0; }
    DEVICE_METHOD const float* place(u64 index, u32 depth) const { return at + panel_at(cols, first + depth, index); }
    DEVICE_METHOD u64 step(u32 d) const { return d / PANEL * cols * PANEL + d % PANEL; }
};

// The part of an operand that a block of THREADS threads stores in shared memory at once: WIDE rows or columns, and DEPTH
// terms of each, as [DEPTH][WIDE + 4]. With this padding, a warp's writes of an operand that is DEEP go to all banks.
template <class Operand, u32 WIDE, u32 DEPTH, u32 THREADS>
struct Stage {
    static const u32 FOURS = WIDE * DEPTH / 4 / THREADS, ROW = WIDE + 4, SIZE = DEPTH * ROW;
    Operand of;
    // Row or column of the matrix with which the part begins, and the number of all rows or columns.
    u64 first, count;
    const float* places[FOURS];
    Four ahead[FOURS];

    // A thread's i-th four numbers: their first row or column and term inside the part.
    DEVICE_METHOD static u32 index_of(u32 i) {
        u32 e = threadIdx.x + i * THREADS;
        return Operand::DEEP ? e / 2 % WIDE : e % (WIDE / 4) * 4;
    }
    DEVICE_METHOD static u32 depth_of(u32 i) {
        u32 e = threadIdx.x + i * THREADS;
        return Operand::DEEP ? (e % 2 + e / (2 * WIDE) * 2) * 4 : e / (WIDE / 4);
    }
    DEVICE_METHOD Stage(Operand of, u64 first, u64 count) : of(of), first(first), count(count) {
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) {
            // Beyond the last row or column, the first ones are read. They belong to no element of the output.
            u64 index = first + index_of(i);
            places[i] = of.place(index < count ? index : 0, depth_of(i));
        }
    }
    // Loads the terms from `d` on into registers.
    DEVICE_METHOD void load(u32 d) {
        u64 step = of.step(d);
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) ahead[i] = load4(places[i] + step);
    }
    // Stores the loaded terms in shared memory.
    template <class Tile>
    DEVICE_METHOD void store(Tile tile) const {
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) {
            auto to = tile + (depth_of(i) * ROW + index_of(i));
            if (Operand::DEEP) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) to[j * ROW] = ahead[i].of[j];
            } else {
                store4(to, ahead[i]);
            }
        }
    }
    // Copies the terms from `d` to at most `end` to shared memory, one by one; it stores 0 for those that do not exist.
    template <class Tile>
    DEVICE_METHOD void copy(Tile tile, u32 d, u32 end) const {
#pragma unroll 1
        for (u32 e = threadIdx.x; e < WIDE * DEPTH; e += THREADS) {
            u32 index = Operand::DEEP ? e / DEPTH : e % WIDE, depth = Operand::DEEP ? e % DEPTH : e / WIDE;
            bool there = first + index < count && d + depth < end;
            tile[depth * ROW + index] = there ? of.get(first + index, d + depth) : 0.0f;
        }
    }
};

// How many of `most` rows or columns from `first` on exist, of `count`.
DEVICE u32 inside(u64 count, u64 first, u32 most) { return count - first < most ? (u32)(count - first) : most; }

// Computes a tile of SIDE x SIDE elements of a matmul in a block of 128 threads (SIDE = 64) or 256 (SIDE = 128). Element
// (row, col) of the output starts from 0 (`from_zero`) or start(row, col), and is one chain of fused multiply-adds of left[row, depth] *
// right[col, depth] over ascending depth. Then finish(row, col, element) stores it. So the bits of an element depend only
// on its own row and column, and not on the tile. `depth` is less than 2^32.
//
// A thread computes 8 x 4 or 8 x 8 elements. DEPTH terms of each operand are in shared memory; the next DEPTH terms are
// loaded into registers meanwhile, and stored in a second half of shared memory.
template <u32 SIDE, u32 DEPTH, class Left, class Right, class Start, class Finish>
DEVICE void matmul(Left left, Right right, u64 rows, u64 cols, u64 depth, bool from_zero, Start start, Finish finish) {
    const u32 THREADS = SIDE == 64 ? 128 : 256, HIGH = 8, WIDE = SIDE / 16, BELOW = THREADS / 16 * 4;
    typedef Stage<Left, SIDE, DEPTH, THREADS> Lefts;
    typedef Stage<Right, SIDE, DEPTH, THREADS> Rights;
    SHARED(float, left_tiles, 2 * Lefts::SIZE);
    SHARED(float, right_tiles, 2 * Rights::SIZE);
    u64 row0 = (u64)blockIdx.y * SIDE, col0 = (u64)blockIdx.x * SIDE;
    Lefts lefts(left, row0, rows);
    Rights rights(right, col0, cols);
    // A thread has rows ty, ..., ty + 3 and those BELOW further down, and columns tx, ..., tx + 3 and those 64 further on.
    u32 tx = threadIdx.x % 16 * 4, ty = threadIdx.x / 16 * 4;
    // Rows and columns of the tile that are inside the output.
    u32 high = inside(rows, row0, SIDE), wide = inside(cols, col0, SIDE);
    float c[HIGH][WIDE];
    auto left_tile = &left_tiles[0];
    auto right_tile = &right_tiles[0];
    // The threads' i-th rows go through shared memory, so that neighbouring threads access neighbouring elements of the
    // output, and so that its addresses take few registers.
    const u32 SLAB = THREADS / 16 * SIDE;
#pragma unroll
    for (u32 i = 0; i < HIGH; i++)
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) c[i][j] = 0.0f;
    if (!from_zero)
#pragma unroll
    for (u32 i = 0; i < HIGH; i++) {
#pragma unroll 1
        for (u32 e = threadIdx.x; e < SLAB; e += THREADS) {
            u32 row = e / SIDE * 4 + i / 4 * BELOW + i % 4, col = e % SIDE;
            left_tile[e / SIDE * Lefts::ROW + col] = row < high && col < wide ? start(row0 + row, col0 + col) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < WIDE; j += 4) {
            Four four = load4(left_tile + (ty / 4 * Lefts::ROW + tx + j / 4 * 64));
#pragma unroll
            for (u32 k = 0; k < 4; k++) c[i][j + k] = four.of[k];
        }
        __syncthreads();
    }
    // Adds term d of a half of shared memory.
    auto add = [&](u32 half, u32 d) {
        Four a[HIGH / 4], b[WIDE / 4];
#pragma unroll
        for (u32 i = 0; i < HIGH / 4; i++) a[i] = load4(left_tile + (half * Lefts::SIZE + d * Lefts::ROW + ty + i * BELOW));
#pragma unroll
        for (u32 j = 0; j < WIDE / 4; j++) b[j] = load4(right_tile + (half * Rights::SIZE + d * Rights::ROW + tx + j * 64));
#pragma unroll
        for (u32 i = 0; i < HIGH; i++)
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) c[i][j] = __fmaf_rn(a[i / 4].of[i % 4], b[j / 4].of[j % 4], c[i][j]);
    };
    u32 end = (u32)depth, whole = left.fours() && right.fours() ? end / DEPTH * DEPTH : 0, half = 0;
    if (whole) {
        lefts.load(0);
        rights.load(0);
        lefts.store(left_tile);
        rights.store(right_tile);
        __syncthreads();
    }
    for (u32 d0 = 0; d0 < whole; d0 += DEPTH) {
        // In the last step the same terms again, which are not used: under a condition, the compiler would move the loads
        // behind the sums, and nothing would hide their latency.
        u32 next = d0 + DEPTH < whole ? d0 + DEPTH : d0;
        lefts.load(next);
        rights.load(next);
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) add(half, d);
        half ^= 1;
        lefts.store(left_tile + half * Lefts::SIZE);
        rights.store(right_tile + half * Rights::SIZE);
        __syncthreads();
    }
    for (u32 d0 = whole; d0 < end; d0 += DEPTH) {
        lefts.copy(left_tile, d0, end);
        rights.copy(right_tile, d0, end);
        __syncthreads();
        // No step beyond the end: adding 0 would change a sum of -0 to 0.
        u32 steps = end - d0 < DEPTH ? end - d0 : DEPTH;
#pragma unroll 1
        for (u32 d = 0; d < steps; d++) add(0, d);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < HIGH; i++) {
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < WIDE; j += 4)
            store4(left_tile + (ty / 4 * Lefts::ROW + tx + j / 4 * 64), Four{{c[i][j], c[i][j + 1], c[i][j + 2], c[i][j + 3]}});
        __syncthreads();
#pragma unroll 1
        for (u32 e = threadIdx.x; e < SLAB; e += THREADS) {
            u32 row = e / SIDE * 4 + i / 4 * BELOW + i % 4, col = e % SIDE;
            if (row < high && col < wide) finish(row0 + row, col0 + col, left_tile[e / SIDE * Lefts::ROW + col]);
        }
    }
}
