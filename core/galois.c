#include "galois.h"

#include <string.h>

#include "targets.h"

#if CIUIC_X86
#include <immintrin.h>
#endif
#if CIUIC_ARM
#include <arm_neon.h>
#endif

enum { BATCH = 4, BITS = 8, WORDS = 8, BLOCK = 64 };

/* What one step works on: at most BATCH rows, and the coefficients of each for every source. */
typedef struct {
    const uint8_t *coefficients;
    size_t stride;
    const uint8_t *const *sources;
    size_t source_count;
    uint8_t *const *rows;
    size_t row_count;
    size_t length;
} step;

/* Doubles each of the eight field elements in a word. Needs no multiplication, so that the compiler
 * turns a loop over it into vectors of any width. */
static inline uint64_t doubled(uint64_t word)
{
    const uint64_t carry = (word >> 7) & UINT64_C(0x0101010101010101);
    const uint64_t shifted = (word & UINT64_C(0x7f7f7f7f7f7f7f7f)) << 1;
    return shifted ^ carry ^ (carry << 2) ^ (carry << 3) ^ (carry << 4); /* 0x1d */
}

/* Adds one block of one source to a block of each row (at most BATCH), in plain C.
 *
 * words: the source's block, destroyed. sums: the rows' blocks, changed. coefficients: one a row,
 * stride apart. Every power of two times the source is computed once and serves all rows.
 */
static void add_block(uint64_t words[WORDS], uint64_t sums[BATCH][WORDS],
                      const uint8_t *coefficients, size_t stride, size_t row_count)
{
    for (int bit = 0; bit < BITS; bit++) {
        for (size_t row = 0; row < row_count; row++) {
            const uint64_t mask = -(uint64_t)(coefficients[row * stride] >> bit & 1);
            for (int at = 0; at < WORDS; at++)
                sums[row][at] ^= words[at] & mask;
        }
        for (int at = 0; at < WORDS; at++)
            words[at] = doubled(words[at]);
    }
}

/* ciuic_gf_add for at most BATCH rows, from byte `begin` on, in plain C. */
static void add_plain(const step *work, size_t begin)
{
    for (size_t at = begin; at < work->length; at += BLOCK) {
        const size_t count = work->length - at < BLOCK ? work->length - at : BLOCK;
        uint64_t sums[BATCH][WORDS] = {{0}}, words[WORDS] = {0};
        for (size_t row = 0; row < work->row_count; row++)
            memcpy(sums[row], work->rows[row] + at, count);
        for (size_t source = 0; source < work->source_count; source++) {
            memcpy(words, work->sources[source] + at, count);
            add_block(words, sums, work->coefficients + source, work->stride, work->row_count);
        }
        for (size_t row = 0; row < work->row_count; row++)
            memcpy(work->rows[row] + at, sums[row], count);
    }
}

#if CIUIC_X86 || CIUIC_ARM

/* Returns the product of two field elements. */
static uint8_t product(uint8_t left, uint8_t right)
{
    uint64_t found = 0, power = left;
    for (int bit = 0; bit < BITS; bit++) {
        if (right >> bit & 1)
            found ^= power;
        power = doubled(power);
    }
    return (uint8_t)found;
}

/* Writes the products of a coefficient with 0 to 15, and with 16 times these: 32 bytes. */
static void nibble_tables(uint8_t coefficient, uint8_t tables[32])
{
    for (int value = 0; value < 16; value++) {
        tables[value] = product(coefficient, (uint8_t)value);
        tables[16 + value] = product(coefficient, (uint8_t)(value << 4));
    }
}

/* Fills the tables of all sources and rows. */
static void fill_tables(const step *work, uint8_t tables[CIUIC_SOURCES_MAX][BATCH][32])
{
    for (size_t source = 0; source < work->source_count; source++)
        for (size_t row = 0; row < work->row_count; row++)
            nibble_tables(work->coefficients[row * work->stride + source], tables[source][row]);
}

#endif

#if CIUIC_ARM

/* ciuic_gf_add for at most BATCH rows, 16 bytes at a time; returns how many bytes it did. */
static size_t add_neon(const step *work)
{
    uint8_t tables[CIUIC_SOURCES_MAX][BATCH][32];
    size_t at = 0;

    fill_tables(work, tables);
    for (; at + 16 <= work->length; at += 16) {
        uint8x16_t sums[BATCH];
        for (size_t row = 0; row < BATCH; row++)
            sums[row] = row < work->row_count ? vld1q_u8(work->rows[row] + at) : vdupq_n_u8(0);
        for (size_t source = 0; source < work->source_count; source++) {
            const uint8x16_t data = vld1q_u8(work->sources[source] + at);
            const uint8x16_t low = vandq_u8(data, vdupq_n_u8(0x0f));
            const uint8x16_t high = vshrq_n_u8(data, 4);
            for (size_t row = 0; row < work->row_count; row++) {
                const uint8_t *table = tables[source][row];
                sums[row] = veorq_u8(sums[row], vqtbl1q_u8(vld1q_u8(table), low));
                sums[row] = veorq_u8(sums[row], vqtbl1q_u8(vld1q_u8(table + 16), high));
            }
        }
        for (size_t row = 0; row < work->row_count; row++)
            vst1q_u8(work->rows[row] + at, sums[row]);
    }
    return at;
}

#endif

#if CIUIC_X86

/* ciuic_gf_add for at most BATCH rows, 32 bytes at a time; returns how many bytes it did. */
__attribute__((target("avx2"))) static size_t add_avx2(const step *work)
{
    uint8_t tables[CIUIC_SOURCES_MAX][BATCH][32];
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    size_t at = 0;

    fill_tables(work, tables);
    for (; at + 32 <= work->length; at += 32) {
        __m256i sums[BATCH];
        for (size_t row = 0; row < BATCH; row++)
            sums[row] = row < work->row_count
                            ? _mm256_loadu_si256((const __m256i *)(work->rows[row] + at))
                            : _mm256_setzero_si256();
        for (size_t source = 0; source < work->source_count; source++) {
            const __m256i data =
                _mm256_loadu_si256((const __m256i *)(work->sources[source] + at));
            const __m256i low = _mm256_and_si256(data, nibble);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi64(data, 4), nibble);
            for (size_t row = 0; row < work->row_count; row++) {
                const __m128i *table = (const __m128i *)tables[source][row];
                const __m256i of_low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
                const __m256i of_high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table + 1));
                sums[row] = _mm256_xor_si256(sums[row], _mm256_shuffle_epi8(of_low, low));
                sums[row] = _mm256_xor_si256(sums[row], _mm256_shuffle_epi8(of_high, high));
            }
        }
        for (size_t row = 0; row < work->row_count; row++)
            _mm256_storeu_si256((__m256i *)(work->rows[row] + at), sums[row]);
    }
    return at;
}

/* Returns the bit matrix of multiplication by a coefficient, as GF2P8AFFINEQB takes it: bit `from`
 * of byte 7 - `to` says whether bit `from` of the operand changes bit `to` of the product. */
static uint64_t bit_matrix(uint8_t coefficient)
{
    uint64_t matrix = 0;
    for (int from = 0; from < BITS; from++) {
        const uint8_t column = product(coefficient, (uint8_t)(1 << from));
        for (int to = 0; to < BITS; to++)
            matrix |= (uint64_t)(column >> to & 1) << (8 * (7 - to) + from);
    }
    return matrix;
}

/* ciuic_gf_add for at most BATCH rows, 64 bytes at a time; a mask covers the last few bytes. */
__attribute__((target("gfni,avx512f,avx512bw"))) static void add_gfni(const step *work)
{
    uint64_t matrices[CIUIC_SOURCES_MAX][BATCH] = {{0}};

    for (size_t source = 0; source < work->source_count; source++)
        for (size_t row = 0; row < work->row_count; row++)
            matrices[source][row] = bit_matrix(work->coefficients[row * work->stride + source]);
    for (size_t at = 0; at < work->length; at += 64) {
        const size_t left = work->length - at;
        const __mmask64 mask = left >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << left) - 1;
        __m512i sums[BATCH];
        for (size_t row = 0; row < BATCH; row++)
            sums[row] = row < work->row_count
                            ? _mm512_maskz_loadu_epi8(mask, work->rows[row] + at)
                            : _mm512_setzero_si512();
        for (size_t source = 0; source < work->source_count; source++) {
            const __m512i data = _mm512_maskz_loadu_epi8(mask, work->sources[source] + at);
            for (size_t row = 0; row < BATCH; row++) {
                const __m512i matrix = _mm512_set1_epi64((long long)matrices[source][row]);
                sums[row] =
                    _mm512_xor_si512(sums[row], _mm512_gf2p8affine_epi64_epi8(data, matrix, 0));
            }
        }
        for (size_t row = 0; row < work->row_count; row++)
            _mm512_mask_storeu_epi8(work->rows[row] + at, mask, sums[row]);
    }
}

#endif

void ciuic_gf_add(unsigned targets, const uint8_t *coefficients, size_t stride,
                  const uint8_t *const *sources, size_t source_count, uint8_t *const *rows,
                  size_t row_count, size_t length)
{
    for (size_t row = 0; row < row_count; row += BATCH) {
        const step work = {
            .coefficients = coefficients + row * stride,
            .stride = stride,
            .sources = sources,
            .source_count = source_count,
            .rows = rows + row,
            .row_count = row_count - row < BATCH ? row_count - row : BATCH,
            .length = length,
        };
        size_t done = 0;
#if CIUIC_X86
        if (targets & CIUIC_GFNI) {
            add_gfni(&work);
            continue;
        }
        if (targets & CIUIC_AVX2)
            done = add_avx2(&work);
#elif CIUIC_ARM
        if (targets & CIUIC_NEON)
            done = add_neon(&work);
#else
        (void)targets;
#endif
        add_plain(&work, done);
    }
}
