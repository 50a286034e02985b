#include "planes.h"

#include <string.h>

#include "floats.h"
#include "targets.h"

enum { VALUES = 256, NEAR = 16, LOG_BITS = 20 };

#define INLINE CIUIC_INLINE

enum { TOGETHER = 1024, SIGN_AND_LOW = 0x807f, EXPONENT_BIT = 7 };

/* What one pass over a column does with each element: takes its bytes from `shift` on, its sign with
 * the lowest bits of its top, or its exponent. */
typedef enum { BYTES, SIGNS, EXPONENTS } part;

int ciuic_plan_is_sound(const ciuic_plan *plan)
{
    size_t bytes = 0;

    if (plan->width != 2 && plan->width != 4 && plan->width != 8)
        return 0;
    if (plan->column_count < 2 || plan->column_count > CIUIC_COLUMNS_MAX)
        return 0;
    for (size_t number = 0; number < plan->column_count; number++) {
        const ciuic_column *column = &plan->columns[number];
        const int is_top = number + 2 >= plan->column_count;
        if ((column->width != 1 && column->width != 2 && column->width != 4) ||
            ((is_top || column->is_pairs) && column->width != 1))
            return 0;
        bytes += column->width;
    }
    return bytes == plan->width;
}

/* Which part of an element the column with this number is. */
INLINE part part_of(const ciuic_plan *plan, size_t number)
{
    if (number + 1 == plan->column_count)
        return EXPONENTS;
    return number + 2 == plan->column_count ? SIGNS : BYTES;
}

/* Defines pick_WIDTH_BYTES: writes one part of each of `count` elements of WIDTH bytes; and
 * put_WIDTH_BYTES, which adds that part to elements in which its bits are 0. Each branch is a loop
 * without branches, which the compiler turns into vectors. */
#define DEFINE_COLUMN(WIDTH, BYTES_OF)                                                            \
    INLINE void pick_##WIDTH##_##BYTES_OF(const uint8_t *plain, size_t count, part what,          \
                                          unsigned shift, uint8_t *out)                           \
    {                                                                                             \
        uint##WIDTH##_t word;                                                                     \
        uint##BYTES_OF##_t value;                                                                 \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&word, plain + at * sizeof word, sizeof word);                                 \
            if (what == BYTES) {                                                                  \
                value = (uint##BYTES_OF##_t)(word >> shift);                                      \
            } else {                                                                              \
                const uint16_t top = (uint16_t)(word >> (WIDTH - 16));                            \
                value = what == SIGNS                                                             \
                            ? (uint##BYTES_OF##_t)((top & 0x7f) | ((top & 0x8000) >> 8))          \
                            : (uint##BYTES_OF##_t)(top >> EXPONENT_BIT & 0xff);                   \
            }                                                                                     \
            memcpy(out + at * sizeof value, &value, sizeof value);                                \
        }                                                                                         \
    }                                                                                             \
    INLINE void put_##WIDTH##_##BYTES_OF(const uint8_t *body, size_t count, part what,            \
                                         unsigned shift, uint##WIDTH##_t *words)                  \
    {                                                                                             \
        uint##BYTES_OF##_t value;                                                                 \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&value, body + at * sizeof value, sizeof value);                               \
            if (what == BYTES) {                                                                  \
                words[at] |= (uint##WIDTH##_t)((uint##WIDTH##_t)value << shift);                  \
            } else {                                                                              \
                const uint16_t top =                                                              \
                    what == SIGNS ? (uint16_t)((value & 0x7f) | (uint16_t)(value & 0x80) << 8)    \
                                  : (uint16_t)(value << EXPONENT_BIT);                            \
                words[at] |= (uint##WIDTH##_t)((uint##WIDTH##_t)top << (WIDTH - 16));             \
            }                                                                                     \
        }                                                                                         \
    }

DEFINE_COLUMN(16, 8)
DEFINE_COLUMN(32, 8)
DEFINE_COLUMN(32, 16)
DEFINE_COLUMN(64, 8)
DEFINE_COLUMN(64, 16)
DEFINE_COLUMN(64, 32)

/* Writes one part of each of `count` elements; bytes: the width of the column. */
INLINE void pick(size_t width, size_t bytes, const uint8_t *plain, size_t count, part what,
                 unsigned shift, uint8_t *out)
{
#define PICK(WIDTH, BYTES_OF)                                                                     \
    if (what == BYTES)                                                                            \
        pick_##WIDTH##_##BYTES_OF(plain, count, BYTES, shift, out);                               \
    else if (what == SIGNS)                                                                       \
        pick_##WIDTH##_##BYTES_OF(plain, count, SIGNS, shift, out);                               \
    else                                                                                          \
        pick_##WIDTH##_##BYTES_OF(plain, count, EXPONENTS, shift, out);                           \
    return
    if (width == 2) {
        PICK(16, 8);
    }
    if (width == 4 && bytes == 1) {
        PICK(32, 8);
    }
    if (width == 4)
        pick_32_16(plain, count, BYTES, shift, out);
    else if (bytes == 1) {
        PICK(64, 8);
    } else if (bytes == 2)
        pick_64_16(plain, count, BYTES, shift, out);
    else
        pick_64_32(plain, count, BYTES, shift, out);
#undef PICK
}

/* Writes pairs of bytes: their low halves, less `lowest`, to `low`, their high halves to `high`.
 * Returns 0 if all of `high` is 0. */
INLINE uint8_t pair_up(uint8_t lowest, const uint8_t *restrict first,
                       const uint8_t *restrict second, size_t length, uint8_t *restrict low,
                       uint8_t *restrict high)
{
    uint8_t seen = 0;

    for (size_t at = 0; at < length; at++) {
        const uint8_t left = (uint8_t)(first[at] - lowest), right = (uint8_t)(second[at] - lowest);
        const uint8_t rest = (uint8_t)(left >> 4 | (right & 0xf0));
        low[at] = (uint8_t)((left & 0x0f) | right << 4);
        high[at] = rest;
        seen |= rest;
    }
    return seen;
}

/* Writes a column of pairs; returns whether a high pair is not 0. */
INLINE int split_pairs(size_t width, uint8_t lowest, const uint8_t *plain, size_t count, part what,
                       unsigned shift, uint8_t *out)
{
    uint8_t first[TOGETHER], second[TOGETHER], seen = 0;
    const size_t half = count / 2;

    for (size_t begin = 0; begin < half; begin += TOGETHER) {
        const size_t length = half - begin < TOGETHER ? half - begin : TOGETHER;
        pick(width, 1, plain + begin * width, length, what, shift, first);
        pick(width, 1, plain + (half + begin) * width, length, what, shift, second);
        seen |= pair_up(lowest, first, second, length, out + begin, out + half + begin);
    }
    return seen != 0;
}

/* Whether the columns are those of floats.h; that of the exponents may be one of pairs. */
INLINE int has_floats(const ciuic_plan *plan)
{
    return plan->width == 4 && plan->column_count == 3 && !plan->columns[1].is_pairs;
}

/* ciuic_planes_split for floats. The exponents are at hand after the first pass over them. */
INLINE unsigned split_floats(const ciuic_plan *plan, const uint8_t *plain, size_t count,
                             uint8_t *out)
{
    const ciuic_column *exponents = &plan->columns[2];
    uint8_t *signs = out + 2 * count, *body = out + 3 * count;
    uint8_t first[TOGETHER], second[TOGETHER], seen = 0;
    const size_t half = count / 2;

    if (!exponents->is_pairs) {
        ciuic_floats_split(plain, count, out, signs, body);
        return 0;
    }
    for (size_t begin = 0; begin < half; begin += TOGETHER) {
        const size_t length = half - begin < TOGETHER ? half - begin : TOGETHER;
        const size_t later = half + begin;
        ciuic_floats_split(plain + 4 * begin, length, out + 2 * begin, signs + begin, first);
        ciuic_floats_split(plain + 4 * later, length, out + 2 * later, signs + later, second);
        seen |= pair_up(exponents->lowest, first, second, length, body + begin, body + later);
    }
    return seen ? 1u << 2 : 0;
}

/* ciuic_planes_split, compiled once for each set of vector instructions. */
INLINE unsigned split(const ciuic_plan *plan, const uint8_t *plain, size_t count, uint8_t *out)
{
    unsigned found = 0, shift = 0;

    if (has_floats(plan))
        return split_floats(plan, plain, count, out);
    for (size_t number = 0; number < plan->column_count; number++) {
        const ciuic_column *column = &plan->columns[number];
        const part what = part_of(plan, number);
        if (!column->is_pairs)
            pick(plan->width, column->width, plain, count, what, shift, out);
        else if (split_pairs(plan->width, column->lowest, plain, count, what, shift, out))
            found |= 1u << number;
        out += count * column->width;
        shift += 8u * column->width;
    }
    return found;
}

/* Undoes split_pairs for the elements [begin, begin + length): writes their bytes. */
INLINE void join_pairs(uint8_t lowest, const uint8_t *low, const uint8_t *high, size_t half,
                       size_t begin, size_t length, uint8_t *out)
{
    const size_t edge = begin > half ? begin : half < begin + length ? half : begin + length;

    for (size_t at = begin; at < edge; at++)
        out[at - begin] =
            (uint8_t)(((low[at] & 0x0f) | (high ? (high[at] & 0x0f) << 4 : 0)) + lowest);
    for (size_t at = edge; at < begin + length; at++)
        out[at - begin] =
            (uint8_t)((low[at - half] >> 4 | (high ? high[at - half] & 0xf0 : 0)) + lowest);
}

/* Defines join_WIDTH: ciuic_planes_join for elements of WIDTH bits, TOGETHER of them at a time; or,
 * if `expected` is not NULL, ciuic_planes_match, which leaves `plain` alone. Returns 1, or 0 if the
 * elements differ from the expected ones. */
#define DEFINE_JOIN(WIDTH, PUT_WIDE)                                                              \
    INLINE int join_##WIDTH(const ciuic_plan *plan, const uint8_t *const *bodies, size_t count,   \
                            uint8_t *plain, const uint8_t *expected)                              \
    {                                                                                             \
        uint##WIDTH##_t words[TOGETHER];                                                          \
        uint8_t pairs[TOGETHER];                                                                  \
        for (size_t begin = 0; begin < count; begin += TOGETHER) {                                \
            const size_t length = count - begin < TOGETHER ? count - begin : TOGETHER;            \
            unsigned shift = 0;                                                                   \
            memset(words, 0, sizeof words);                                                       \
            for (size_t number = 0; number < plan->column_count; number++) {                      \
                const ciuic_column *column = &plan->columns[number];                              \
                const part what = part_of(plan, number);                                          \
                const uint8_t *body = bodies[2 * number];                                         \
                if (column->is_pairs) {                                                           \
                    join_pairs(column->lowest, body, bodies[2 * number + 1], count / 2, begin,    \
                               length, pairs);                                                    \
                    body = pairs;                                                                 \
                } else {                                                                          \
                    body += begin * column->width;                                                \
                }                                                                                 \
                if (what == SIGNS)                                                                \
                    put_##WIDTH##_8(body, length, SIGNS, 0, words);                               \
                else if (what == EXPONENTS)                                                       \
                    put_##WIDTH##_8(body, length, EXPONENTS, 0, words);                           \
                else if (column->width == 1)                                                      \
                    put_##WIDTH##_8(body, length, BYTES, shift, words);                           \
                else                                                                              \
                    PUT_WIDE(column->width, body, length, shift, words);                          \
                shift += 8u * column->width;                                                      \
            }                                                                                     \
            if (!expected)                                                                        \
                memcpy(plain + begin * sizeof *words, words, length * sizeof *words);             \
            else if (memcmp(expected + begin * sizeof *words, words, length * sizeof *words))     \
                return 0;                                                                         \
        }                                                                                         \
        return 1;                                                                                 \
    }

#define NO_WIDE(BYTES_OF, BODY, LENGTH, SHIFT, WORDS) ((void)0)
#define WIDE_32(BYTES_OF, BODY, LENGTH, SHIFT, WORDS) put_32_16(BODY, LENGTH, BYTES, SHIFT, WORDS)
#define WIDE_64(BYTES_OF, BODY, LENGTH, SHIFT, WORDS)                                             \
    do {                                                                                          \
        if ((BYTES_OF) == 2)                                                                      \
            put_64_16(BODY, LENGTH, BYTES, SHIFT, WORDS);                                         \
        else                                                                                      \
            put_64_32(BODY, LENGTH, BYTES, SHIFT, WORDS);                                         \
    } while (0)

DEFINE_JOIN(16, NO_WIDE)
DEFINE_JOIN(32, WIDE_32)
DEFINE_JOIN(64, WIDE_64)

/* What join_WIDTH does, for floats. */
INLINE int join_floats(const ciuic_plan *plan, const uint8_t *const *bodies, size_t count,
                       uint8_t *plain, const uint8_t *expected)
{
    const ciuic_column *column = &plan->columns[2];
    uint8_t pairs[TOGETHER];

    for (size_t begin = 0; begin < count; begin += TOGETHER) {
        const size_t length = count - begin < TOGETHER ? count - begin : TOGETHER;
        const uint8_t *low = bodies[0] + 2 * begin, *signs = bodies[2] + begin;
        const uint8_t *exponents = bodies[4] + begin;
        if (column->is_pairs) {
            join_pairs(column->lowest, bodies[4], bodies[5], count / 2, begin, length, pairs);
            exponents = pairs;
        }
        if (!expected)
            ciuic_floats_join(low, signs, exponents, length, plain + 4 * begin);
        else if (ciuic_floats_differ(low, signs, exponents, length, expected + 4 * begin))
            return 0;
    }
    return 1;
}

/* What join_WIDTH does, compiled once for each set of vector instructions. */
INLINE int join(const ciuic_plan *plan, const uint8_t *const *bodies, size_t count, uint8_t *plain,
                const uint8_t *expected)
{
    if (plan->width == 2)
        return join_16(plan, bodies, count, plain, expected);
    if (has_floats(plan))
        return join_floats(plan, bodies, count, plain, expected);
    if (plan->width == 4)
        return join_32(plan, bodies, count, plain, expected);
    return join_64(plan, bodies, count, plain, expected);
}

#if CIUIC_X86

__attribute__((target("avx2"))) static unsigned split_avx2(const ciuic_plan *plan,
                                                           const uint8_t *plain, size_t count,
                                                           uint8_t *out)
{
    return split(plan, plain, count, out);
}

__attribute__((target("avx2"))) static int join_avx2(const ciuic_plan *plan,
                                                     const uint8_t *const *bodies, size_t count,
                                                     uint8_t *plain, const uint8_t *expected)
{
    return join(plan, bodies, count, plain, expected);
}

#endif

unsigned ciuic_planes_split(unsigned targets, const ciuic_plan *plan, const uint8_t *plain,
                            size_t count, uint8_t *out)
{
#if CIUIC_X86
    if (targets & CIUIC_AVX2)
        return split_avx2(plan, plain, count, out);
#else
    (void)targets;
#endif
    return split(plan, plain, count, out);
}

/* ciuic_planes_join and ciuic_planes_match: see join_WIDTH. */
static int join_or_match(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                         size_t count, uint8_t *plain, const uint8_t *expected)
{
#if CIUIC_X86
    if (targets & CIUIC_AVX2)
        return join_avx2(plan, bodies, count, plain, expected);
#else
    (void)targets;
#endif
    return join(plan, bodies, count, plain, expected);
}

void ciuic_planes_join(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                       size_t count, uint8_t *plain)
{
    join_or_match(targets, plan, bodies, count, plain, NULL);
}

int ciuic_planes_match(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                       size_t count, const uint8_t *plain)
{
    return join_or_match(targets, plan, bodies, count, NULL, plain);
}

/* A number times its binary logarithm, in units of 1 / 2^LOG_BITS; of 0: 0. A square has twice the
 * logarithm: each step finds the next bit of it. */
static uint64_t weight_of(uint64_t number)
{
    uint64_t whole = 0, mantissa, logarithm;

    if (number < 2)
        return 0;
    while (number >> (whole + 1))
        whole++;
    mantissa = number << (31 - whole);
    logarithm = whole;
    for (int step = 0; step < LOG_BITS; step++) {
        mantissa = mantissa * mantissa >> 31;
        const uint64_t bit = mantissa >> 32;
        mantissa >>= bit;
        logarithm = logarithm << 1 | bit;
    }
    return number * logarithm;
}

/* Finds what ciuic_spread holds for `count` bytes, from how many there are of each value. */
static ciuic_spread spread_of(const uint32_t *counts, uint64_t count)
{
    ciuic_spread spread = {.bits = weight_of(count)};
    uint64_t near = 0;

    for (size_t value = 0; value < VALUES; value++)
        spread.bits -= weight_of(counts[value]);
    for (size_t value = 0; value < NEAR; value++)
        near += counts[value];
    for (size_t lowest = 1; lowest <= VALUES; lowest++) {
        near += (uint64_t)counts[(lowest + NEAR - 1) % VALUES] - counts[lowest - 1];
        if (near > spread.near || lowest == 1) {
            spread.near = near;
            spread.lowest = lowest % VALUES;
        }
    }
    return spread;
}

void ciuic_planes_tally(size_t width, const uint8_t *sample, size_t count, ciuic_spread *spreads)
{
    uint32_t counts[8][VALUES];
    const size_t top = width - 2;

    memset(counts, 0, sizeof counts);
    for (size_t at = 0; at < count; at++, sample += width) {
        const unsigned low = sample[top], high = sample[top + 1];
        for (size_t byte = 0; byte < top; byte++)
            counts[byte][sample[byte]]++;
        counts[top][(low & 0x7f) | (high & 0x80)]++;
        counts[top + 1][(high << 1 | low >> 7) & 0xff]++;
    }
    for (size_t byte = 0; byte < width; byte++)
        spreads[byte] = spread_of(counts[byte], count);
}
