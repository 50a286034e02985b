#include "sparse.h"

#include <string.h>

#include "targets.h"

#define INLINE static inline __attribute__((always_inline))

/* Bytes that are compared at once while nothing has changed. */
enum { TOGETHER = 64 };

/* Elements that one counter of an element's width counts, so that vectors hold many counters. */
enum { COUNTED = 128 };

/* Returns whether TOGETHER bytes are the same; without branches, for vectors. */
INLINE int are_same(const uint8_t *left, const uint8_t *right)
{
    uint64_t one, other, apart = 0;

    for (size_t at = 0; at < TOGETHER; at += sizeof one) {
        memcpy(&one, left + at, sizeof one);
        memcpy(&other, right + at, sizeof other);
        apart |= one ^ other;
    }
    return apart == 0;
}

/* What ciuic_sparse_split writes next. */
typedef struct {
    uint8_t *gaps[CIUIC_GAP_BYTES];
    uint8_t *now, *before;
    uint32_t seen; /* the bits of all gaps */
} ends;

INLINE void put_gap(ends *out, size_t number, uint32_t gap)
{
    for (size_t byte = 0; byte < CIUIC_GAP_BYTES; byte++)
        out->gaps[byte][number] = (uint8_t)(gap >> 8 * byte);
    out->seen |= gap;
}

/* Returns the gap of a changed element from its bytes. */
INLINE size_t gap_of(const ciuic_changes *changes, size_t number)
{
    size_t gap = 0;

    for (size_t byte = 0; byte < changes->gap_bytes; byte++)
        gap |= (size_t)changes->gaps[byte][number] << 8 * byte;
    return gap;
}

/* Advances `at` by the gap of a changed element; returns 0 if that is beyond the last element. */
INLINE int reach(const ciuic_changes *changes, size_t number, size_t *at)
{
    const size_t gap = gap_of(changes, number);

    if (gap >= changes->count - *at)
        return 0;
    *at += gap;
    return 1;
}

/* The difference of two bytes with the sign in the lowest bit, and back. */
INLINE uint8_t folded(uint8_t now, uint8_t before)
{
    const uint8_t apart = (uint8_t)(now - before);
    return (uint8_t)(apart << 1 ^ (0u - (apart >> 7)));
}

INLINE uint8_t moved(uint8_t word, uint8_t before)
{
    return (uint8_t)((word >> 1 ^ (0u - (word & 1u))) + before);
}

/* Defines what follows for elements of WIDTH bits:
 *
 * count_WIDTH: ciuic_sparse_count, a loop without branches.
 * split_WIDTH: the loop of ciuic_sparse_split; returns how many elements differ, or changed + 1 if
 *     these are more.
 * take_WIDTH, put_WIDTH: ciuic_sparse_take, and the second half of ciuic_sparse_join. */
#define DEFINE_LOOPS(WIDTH)                                                                       \
    INLINE size_t count_##WIDTH(const uint8_t *plain, const uint8_t *old, size_t count)           \
    {                                                                                             \
        uint##WIDTH##_t now, before;                                                              \
        size_t found = 0;                                                                         \
        for (size_t begin = 0; begin < count; begin += COUNTED) {                                 \
            const size_t end = count - begin < COUNTED ? count : begin + COUNTED;                 \
            uint##WIDTH##_t part = 0;                                                             \
            for (size_t at = begin; at < end; at++) {                                             \
                memcpy(&now, plain + at * sizeof now, sizeof now);                                \
                memcpy(&before, old + at * sizeof before, sizeof before);                         \
                part = (uint##WIDTH##_t)(part + (now != before));                                 \
            }                                                                                     \
            found += (size_t)part;                                                                \
        }                                                                                         \
        return found;                                                                             \
    }                                                                                             \
    static size_t split_##WIDTH(const uint8_t *plain, const uint8_t *old, size_t count,           \
                                size_t changed, ends *out)                                        \
    {                                                                                             \
        const size_t step = TOGETHER / sizeof(uint##WIDTH##_t);                                   \
        uint##WIDTH##_t now, before;                                                              \
        size_t found = 0, next = 0;                                                               \
        for (size_t at = 0; at < count;) {                                                        \
            if (count - at >= step && are_same(plain + at * sizeof now, old + at * sizeof now)) { \
                at += step;                                                                       \
                continue;                                                                         \
            }                                                                                     \
            const size_t end = count - at < step ? count : at + step;                             \
            for (; at < end; at++) {                                                              \
                memcpy(&now, plain + at * sizeof now, sizeof now);                                \
                memcpy(&before, old + at * sizeof before, sizeof before);                         \
                if (now == before)                                                                \
                    continue;                                                                     \
                if (found == changed)                                                             \
                    return found + 1;                                                             \
                put_gap(out, found, (uint32_t)(at - next));                                       \
                if (sizeof now == 1) {                                                            \
                    out->now[found] = folded((uint8_t)now, (uint8_t)before);                      \
                } else {                                                                          \
                    memcpy(out->now + found * sizeof now, &now, sizeof now);                      \
                }                                                                                 \
                memcpy(out->before + found * sizeof before, &before, sizeof before);              \
                found++;                                                                          \
                next = at + 1;                                                                    \
            }                                                                                     \
        }                                                                                         \
        return found;                                                                             \
    }                                                                                             \
    static int take_##WIDTH(const ciuic_changes *changes, const uint8_t *old, uint8_t *out)       \
    {                                                                                             \
        const size_t size = sizeof(uint##WIDTH##_t);                                              \
        size_t at = 0;                                                                            \
        for (size_t number = 0; number < changes->changed; number++) {                            \
            if (!reach(changes, number, &at))                                                     \
                return -1;                                                                        \
            memcpy(out + number * size, old + at * size, size);                                   \
            at++;                                                                                 \
        }                                                                                         \
        return 0;                                                                                 \
    }                                                                                             \
    static int put_##WIDTH(const ciuic_changes *changes, const uint8_t *values, uint8_t *plain)   \
    {                                                                                             \
        const size_t size = sizeof(uint##WIDTH##_t);                                              \
        size_t at = 0;                                                                            \
        for (size_t number = 0; number < changes->changed; number++) {                            \
            if (!reach(changes, number, &at))                                                     \
                return -1;                                                                        \
            if (size == 1)                                                                        \
                plain[at] = moved(values[number], plain[at]);                                     \
            else                                                                                  \
                memcpy(plain + at * size, values + number * size, size);                          \
            at++;                                                                                 \
        }                                                                                         \
        return 0;                                                                                 \
    }

DEFINE_LOOPS(8)
DEFINE_LOOPS(16)
DEFINE_LOOPS(32)
DEFINE_LOOPS(64)

/* ciuic_sparse_count, compiled once for each set of vector instructions. */
INLINE size_t count_any(size_t width, const uint8_t *plain, const uint8_t *old, size_t count)
{
    switch (width) {
    case 1:
        return count_8(plain, old, count);
    case 2:
        return count_16(plain, old, count);
    case 4:
        return count_32(plain, old, count);
    default:
        return count_64(plain, old, count);
    }
}

#if CIUIC_X86

__attribute__((target("avx2"))) static size_t count_avx2(size_t width, const uint8_t *plain,
                                                         const uint8_t *old, size_t count)
{
    return count_any(width, plain, old, count);
}

#endif

size_t ciuic_sparse_count(unsigned targets, size_t width, const uint8_t *plain, const uint8_t *old,
                          size_t count)
{
#if CIUIC_X86
    if (targets & CIUIC_AVX2)
        return count_avx2(width, plain, old, count);
#else
    (void)targets;
#endif
    return count_any(width, plain, old, count);
}

unsigned ciuic_sparse_split(size_t width, const uint8_t *plain, const uint8_t *old, size_t count,
                            size_t changed, uint8_t *gaps, uint8_t *now, uint8_t *before)
{
    ends out = {.now = now, .before = before};
    unsigned used = 1;
    size_t found;

    for (size_t byte = 0; byte < CIUIC_GAP_BYTES; byte++)
        out.gaps[byte] = gaps + byte * changed;
    if (width == 1)
        found = split_8(plain, old, count, changed, &out);
    else if (width == 2)
        found = split_16(plain, old, count, changed, &out);
    else if (width == 4)
        found = split_32(plain, old, count, changed, &out);
    else
        found = split_64(plain, old, count, changed, &out);
    if (found != changed)
        return 0;
    while (used < CIUIC_GAP_BYTES && out.seen >> 8 * used)
        used++;
    return used;
}

int ciuic_sparse_take(const ciuic_changes *changes, const uint8_t *old, uint8_t *out)
{
    switch (changes->width) {
    case 1:
        return take_8(changes, old, out);
    case 2:
        return take_16(changes, old, out);
    case 4:
        return take_32(changes, old, out);
    default:
        return take_64(changes, old, out);
    }
}

int ciuic_sparse_join(const ciuic_changes *changes, const uint8_t *values, const uint8_t *old,
                      uint8_t *plain)
{
    memcpy(plain, old, changes->count * changes->width);
    switch (changes->width) {
    case 1:
        return put_8(changes, values, plain);
    case 2:
        return put_16(changes, values, plain);
    case 4:
        return put_32(changes, values, plain);
    default:
        return put_64(changes, values, plain);
    }
}
