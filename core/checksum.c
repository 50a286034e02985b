#include "checksum.h"

#include <string.h>

#include "targets.h"

#if CIUIC_X86
#include <immintrin.h>
#endif

#define PRIME32_1 UINT64_C(0x9E3779B1)
#define PRIME32_2 UINT64_C(0x85EBCA77)
#define PRIME32_3 UINT64_C(0xC2B2AE3D)
#define PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME64_5 UINT64_C(0x27D4EB2F165667C5)
#define PRIME_MIX UINT64_C(0x165667919E3779F9)

enum {
    LANES = 8,
    STRIPE = 64,
    SECRET_BYTES = 192,
    SECRET_STEP = 8,
    STRIPES = (SECRET_BYTES - STRIPE) / SECRET_STEP, /* in a block */
    BLOCK = STRIPES * STRIPE,
    LAST_SECRET = SECRET_BYTES - STRIPE - 7,
    MERGE_SECRET = 11
};

/* The default secret of XXH3. */
static const uint8_t SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Reads eight bytes, lowest first, from any address. */
static uint64_t read64(const uint8_t *place)
{
    uint64_t value;
    memcpy(&value, place, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Takes in `count` stripes; the secret moves on by SECRET_STEP bytes a stripe. */
static void accumulate(uint64_t sums[LANES], const uint8_t *data, const uint8_t *secret,
                       size_t count)
{
    for (size_t stripe = 0; stripe < count; stripe++) {
        for (size_t lane = 0; lane < LANES; lane++) {
            const uint64_t value = read64(data + stripe * STRIPE + 8 * lane);
            const uint64_t keyed = value ^ read64(secret + stripe * SECRET_STEP + 8 * lane);
            sums[lane ^ 1] += value;
            sums[lane] += (keyed & 0xffffffff) * (keyed >> 32);
        }
    }
}

#if CIUIC_X86

/* As accumulate, four lanes at a time. */
__attribute__((target("avx2"))) static void accumulate_avx2(uint64_t sums[LANES],
                                                            const uint8_t *data,
                                                            const uint8_t *secret, size_t count)
{
    __m256i both[2] = {_mm256_loadu_si256((const __m256i *)sums),
                       _mm256_loadu_si256((const __m256i *)(sums + 4))};
    for (size_t stripe = 0; stripe < count; stripe++) {
        for (size_t half = 0; half < 2; half++) {
            const uint8_t *place = data + stripe * STRIPE + 32 * half;
            const uint8_t *own = secret + stripe * SECRET_STEP + 32 * half;
            const __m256i value = _mm256_loadu_si256((const __m256i *)place);
            const __m256i keyed =
                _mm256_xor_si256(value, _mm256_loadu_si256((const __m256i *)own));
            const __m256i mixed = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
            const __m256i crossed = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
            both[half] = _mm256_add_epi64(both[half], _mm256_add_epi64(mixed, crossed));
        }
    }
    _mm256_storeu_si256((__m256i *)sums, both[0]);
    _mm256_storeu_si256((__m256i *)(sums + 4), both[1]);
}

#endif

/* Mixes the sums at the end of each block. */
static void scramble(uint64_t sums[LANES])
{
    for (size_t lane = 0; lane < LANES; lane++) {
        const uint64_t key = read64(SECRET + SECRET_BYTES - STRIPE + 8 * lane);
        sums[lane] = (sums[lane] ^ (sums[lane] >> 47) ^ key) * PRIME32_1;
    }
}

/* Returns the XOR of both halves of a product of 128 bits. */
static uint64_t folded_product(uint64_t left, uint64_t right)
{
    __extension__ const unsigned __int128 whole = (unsigned __int128)left * right;
    return (uint64_t)whole ^ (uint64_t)(whole >> 64);
}

/* Combines the sums of an input of this length to its checksum. */
static uint64_t merged(const uint64_t sums[LANES], size_t length)
{
    uint64_t found = (uint64_t)length * PRIME64_1;
    for (size_t lane = 0; lane < LANES; lane += 2) {
        const uint8_t *secret = SECRET + MERGE_SECRET + 8 * lane;
        found += folded_product(sums[lane] ^ read64(secret), sums[lane + 1] ^ read64(secret + 8));
    }
    found = (found ^ (found >> 37)) * PRIME_MIX;
    return found ^ (found >> 32);
}

uint64_t ciuic_checksum(unsigned targets, const uint8_t *data, size_t length)
{
    void (*take)(uint64_t *, const uint8_t *, const uint8_t *, size_t) = accumulate;
    uint64_t sums[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                            PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const size_t blocks = (length - 1) / BLOCK;

#if CIUIC_X86
    if (targets & CIUIC_AVX2)
        take = accumulate_avx2;
#else
    (void)targets;
#endif
    for (size_t block = 0; block < blocks; block++) {
        take(sums, data + block * BLOCK, SECRET, STRIPES);
        scramble(sums);
    }
    take(sums, data + blocks * BLOCK, SECRET, (length - 1 - blocks * BLOCK) / STRIPE);
    take(sums, data + length - STRIPE, SECRET + LAST_SECRET, 1);
    return merged(sums, length);
}

void ciuic_sector_sums(unsigned targets, const uint8_t *data, size_t length, size_t sector_bytes,
                       uint8_t *sums)
{
    for (size_t sector = 0; sector < length / sector_bytes; sector++) {
        const uint64_t sum = ciuic_checksum(targets, data + sector * sector_bytes, sector_bytes);
        memcpy(sums + sector * sizeof sum, &sum, sizeof sum);
    }
}
