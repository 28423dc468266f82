// The emulator's tensor cores.
namespace emulator {

// One step of tensor cores: c plus `count` products of bf16, to the same bits as the formula in Rust
// (device/cuda/tensor_core.rs).
static float tensor_step(float c, const uint16_t* a, const uint16_t* b, unsigned count) {
    uint32_t bits;
    memcpy(&bits, &c, 4);
    auto wide = [](uint16_t x) {
        uint32_t up = (uint32_t)x << 16;
        float f;
        memcpy(&f, &up, 4);
        return (double)f;
    };
    double special = c;
    bool finite = (bits >> 23 & 255) != 255;
    int64_t signs[17], sizes[17];
    int exponents[17], largest = -1000;
    auto term = [&](unsigned i, bool negative, int64_t size, int exponent) {
        signs[i] = negative ? -1 : 1;
        sizes[i] = size;
        exponents[i] = size ? exponent : now.of->zero;
        if (exponents[i] > largest) largest = exponents[i];
    };
    for (unsigned i = 0; i < count; i++) {
        int fields[2] = {a[i] >> 7 & 255, b[i] >> 7 & 255};
        finite &= fields[0] != 255 && fields[1] != 255;
        special += wide(a[i]) * wide(b[i]);
        int64_t sizes_of[2] = {(a[i] & 127) | (fields[0] ? 128 : 0), (b[i] & 127) | (fields[1] ? 128 : 0)};
        // A product of two bf16 significands has 14 bits after the binary point.
        int exponent = (fields[0] ? fields[0] : 1) + (fields[1] ? fields[1] : 1) - 254;
        term(i, (a[i] ^ b[i]) >> 15, sizes_of[0] * sizes_of[1] << (now.of->fraction - 14), exponent);
    }
    if (!finite) {
        uint32_t nan = 0x7fffffff;
        float result = special;
        if (special != special) memcpy(&result, &nan, 4);
        return result;
    }
    int field = bits >> 23 & 255;
    int64_t of_c = (bits & 0x7fffff) | (field ? 0x800000 : 0);
    term(count, bits >> 31, of_c << (now.of->fraction - 23), (field ? field : 1) - 127);
    int64_t sum = 0;
    for (unsigned i = 0; i <= count; i++) {
        int below = largest - exponents[i];
        sum += signs[i] * (below > 62 ? 0 : sizes[i] >> below);
    }
    uint64_t size = sum < 0 ? -sum : sum;
    // Scales the sum to a significand of f32, cutting off bits: 2^23 to 2^24 - 1 for a normal number, less for a
    // denormal one.
    int unit = largest - (int)now.of->fraction;
    while (size >= 1u << 24 || (size && unit < -149)) size >>= 1, unit++;
    while (size && size < 1u << 23 && unit > -149) size <<= 1, unit--;
    uint32_t result = size < 1u << 23 ? size : ((uint32_t)(unit + 150) << 23) + (uint32_t)(size - (1u << 23));
    if (size && unit + 23 > 127) result = 0x7f800000;
    if (sum < 0) result |= 0x80000000u;
    float out;
    memcpy(&out, &result, 4);
    return out;
}

// The instruction mma.sync.m16n8k16 of bf16. mma.cuh lists the elements that each lane holds.
static void mma(float* c, const uint32_t* a, const uint32_t* b, unsigned site) {
    struct Lane {
        float* c;
        const uint32_t *a, *b;
    } me = {c, a, b};
    collective(0xffffffffu, site, &me, [](Warp& warp) {
        uint16_t left[16][16], right[8][16];
        for (unsigned l = 0; l < WARP; l++) {
            const Lane& lane = *(const Lane*)warp.lanes[l];
            unsigned g = l / 4, t = l % 4;
            for (unsigned half = 0; half < 2; half++) {
                for (unsigned r = 0; r < 4; r++) left[g + r % 2 * 8][2 * t + half + r / 2 * 8] = lane.a[r] >> 16 * half;
                for (unsigned r = 0; r < 2; r++) right[g][2 * t + half + r * 8] = lane.b[r] >> 16 * half;
            }
        }
        for (unsigned l = 0; l < WARP; l++)
            for (unsigned q = 0; q < 4; q++) {
                float& sum = ((Lane*)warp.lanes[l])->c[q];
                unsigned row = l / 4 + q / 2 * 8, col = l % 4 * 2 + q % 2;
                for (unsigned k = 0; k < 16; k += now.of->depth) sum = tensor_step(sum, left[row] + k, right[col] + k, now.of->depth);
            }
    });
}

}  // namespace emulator

#define mma_bf16(c, a, b) emulator::mma(c, a, b, __LINE__)
