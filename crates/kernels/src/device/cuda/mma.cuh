// Matmuls in bf16 on tensor cores, with sums in f32. device/cuda/tensor_core.rs has the formula of the instruction.

// One tensor-core instruction of a warp: c += a b, where c has 16 rows and 8 columns, and each sum has 16 terms. Lane l
// of the warp, with g = l / 4 and t = l % 4, holds these elements (PTX ISA, mma.m16n8k16):
//   a[0]: row g, terms 2t and 2t + 1    a[1]: row g + 8    a[2], a[3]: the same of terms 2t + 8 and 2t + 9
//   b[0]: column g, terms 2t and 2t + 1                    b[1]: terms 2t + 8 and 2t + 9
//   c[0], c[1]: row g, columns 2t and 2t + 1               c[2], c[3]: row g + 8
// A word of a or b holds two terms, the first one in its lower half.
#ifndef EMULATED
DEVICE void mma_bf16(float* c, const u32* a, const u32* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    // This architecture has no such instruction. The host refuses bf16 matmuls there, so this line is never reached.
    __trap();
#endif
}
#endif

// Packs two bf16 numbers into a word.
DEVICE u32 two_bf16(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// Each struct below reads an operand of a matmul in bf16. get(index, depth, end) returns terms `depth` and `depth + 1`
// of one sum, for row `index` of the left operand or column `index` of the right operand. The second term is 0 at
// `end`. DEEP: whether neighbours in memory are neighbours in depth.

// The rows of a row-major bf16 matrix with an even number of columns.
struct EvenRows {
    const u16* at;
    u64 width;
    static const bool DEEP = true;
    DEVICE_METHOD u32 get(u64 index, u64 depth, u64) const { return ((const u32*)at)[(index * width + depth) / 2]; }
};
// A number as bf16: f32 is rounded.
DEVICE u16 as_bf16(u16 x) { return x; }
DEVICE u16 as_bf16(float x) { return to_bf16(x); }
// The rows of a row-major matrix of bf16, or of f32, which is rounded.
template <class T>
struct HalfRows {
    const T* at;
    u64 width;
    static const bool DEEP = true;
    DEVICE_METHOD u32 get(u64 index, u64 depth, u64 end) const {
        const T* two = at + index * width + depth;
        return two_bf16(as_bf16(two[0]), depth + 1 < end ? as_bf16(two[1]) : 0);
    }
};
// The columns of a row-major matrix of bf16, or of f32, which is rounded.
template <class T>
struct HalfColumns {
    const T* at;
    u64 width;
    static const bool DEEP = false;
    DEVICE_METHOD u32 get(u64 index, u64 depth, u64 end) const {
        const T* one = at + depth * width + index;
        return two_bf16(as_bf16(one[0]), depth + 1 < end ? as_bf16(one[width]) : 0);
    }
};
// A weight matrix in the layout of pairs, [ceil(N / 32)][K / 2][32][2] (matrix.rs). Index: the N rows (outputs); depth:
// the K inputs.
struct Pairs {
    const u16* at;
    u64 cols;
    static const bool DEEP = false;
    DEVICE_METHOD u32 get(u64 index, u64 depth, u64) const {
        return ((const u32*)at)[(index / PANEL * (cols / 2) + depth / 2) * PANEL + index % PANEL];
    }
};
// The same weight matrix, transposed. Index: the K inputs; depth: the N rows (outputs). A panel has 32 rows, an even
// number, and its rows past the last one of the matrix are 0, so the second term needs no check.
struct PairsTransposed {
    const u16* at;
    u64 cols;
    static const bool DEEP = true;
    DEVICE_METHOD u32 get(u64 index, u64 depth, u64) const {
        const u16* one = at + ((depth / PANEL * (cols / 2) + index / 2) * PANEL + depth % PANEL) * 2 + index % 2;
        return two_bf16(one[0], one[2]);
    }
};

#define MMA_TILE 64
#define MMA_THREADS 128
// Pairs of terms of each row and column that are in shared memory at once.
#define MMA_PAIRS 16
// Words from one row to the next in shared memory, padded so that the lanes of a warp read different banks.
#define MMA_LEFT_ROW (MMA_PAIRS + 4)
#define MMA_RIGHT_ROW (MMA_TILE + 8)

// Computes a matmul on tensor cores. Element (row, col) of the output starts from start(row, col). One chain of
// instructions adds its terms in ascending order, segment after segment; each segment is padded with zeros to a
// multiple of 16 terms. Then finish(row, col, element) stores the element. A block of threads computes a tile of 64 x
// 64 elements, a warp 32 x 32 of them. `segments` has `count` + 1 offsets into the terms (of the packed sequences); if
// it is null, all `depth` terms are one segment.
template <class Left, class Right, class Start, class Finish>
DEVICE void matmul_bf16(Left left, Right right, u64 rows, u64 cols, u64 depth, const u32* segments, u64 count, Start start,
                        Finish finish) {
    SHARED(u32, lefts, MMA_TILE * MMA_LEFT_ROW);
    SHARED(u32, rights, MMA_PAIRS * MMA_RIGHT_ROW);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    u32 first_row = warp / 2 * 32, first_col = warp % 2 * 32;
    u64 row0 = (u64)blockIdx.y * MMA_TILE, col0 = (u64)blockIdx.x * MMA_TILE;
    float c[2][4][4];
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                u64 row = row0 + first_row + 16 * i + g + q / 2 * 8, col = col0 + first_col + 8 * j + 2 * t + q % 2;
                c[i][j][q] = row < rows && col < cols ? start(row, col) : 0.0f;
            }
    u64 parts = segments ? count : 1;
    for (u64 s = 0; s < parts; s++) {
        u64 begin = segments ? segments[s] : 0, end = segments ? segments[s + 1] : depth;
        for (u64 d0 = begin; d0 < end; d0 += 2 * MMA_PAIRS) {
            for (u32 e = threadIdx.x; e < MMA_TILE * MMA_PAIRS; e += MMA_THREADS) {
                u32 index = Left::DEEP ? e / MMA_PAIRS : e % MMA_TILE, p = Left::DEEP ? e % MMA_PAIRS : e / MMA_TILE;
                bool there = row0 + index < rows && d0 + 2 * p < end;
                lefts[index * MMA_LEFT_ROW + p] = there ? left.get(row0 + index, d0 + 2 * p, end) : 0;
            }
            for (u32 e = threadIdx.x; e < MMA_TILE * MMA_PAIRS; e += MMA_THREADS) {
                u32 index = Right::DEEP ? e / MMA_PAIRS : e % MMA_TILE, p = Right::DEEP ? e % MMA_PAIRS : e / MMA_TILE;
                bool there = col0 + index < cols && d0 + 2 * p < end;
                rights[p * MMA_RIGHT_ROW + index] = there ? right.get(col0 + index, d0 + 2 * p, end) : 0;
            }
            __syncthreads();
#pragma unroll
            for (u32 p = 0; p < MMA_PAIRS; p += 8) {
                // No instruction beyond the end: adding zeros would change a sum of -0 to 0.
                if (d0 + 2 * p >= end) break;
                u32 a[2][4], b[4][2];
#pragma unroll
                for (u32 i = 0; i < 2; i++)
#pragma unroll
                    for (u32 r = 0; r < 4; r++)
                        a[i][r] = lefts[(first_row + 16 * i + g + r % 2 * 8) * MMA_LEFT_ROW + p + t + r / 2 * 4];
#pragma unroll
                for (u32 j = 0; j < 4; j++)
#pragma unroll
                    for (u32 r = 0; r < 2; r++) b[j][r] = rights[(p + t + 4 * r) * MMA_RIGHT_ROW + first_col + 8 * j + g];
#pragma unroll
                for (u32 i = 0; i < 2; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) mma_bf16(c[i][j], a[i], b[j]);
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                u64 row = row0 + first_row + 16 * i + g + q / 2 * 8, col = col0 + first_col + 8 * j + 2 * t + q % 2;
                if (row < rows && col < cols) finish(row, col, c[i][j][q]);
            }
}
