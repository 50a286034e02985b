#include "deltas.h"

#include <string.h>

#include "targets.h"

#define INLINE static inline __attribute__((always_inline))

int ciuic_classes_are_sound(const ciuic_classes *classes)
{
    if ((classes->width != 2 && classes->width != 4 && classes->width != 8) ||
        classes->class_count < 1 || classes->class_count > CIUIC_CLASSES_MAX)
        return 0;
    for (size_t number = 0; number < classes->class_count; number++)
        if (classes->shifts[number] >= 8 * classes->width)
            return 0;
    for (size_t exponent = 0; exponent < CIUIC_EXPONENTS; exponent++)
        if (classes->class_of[exponent] >= classes->class_count)
            return 0;
    return 1;
}

/* Defines what follows for elements of WIDTH bits:
 *
 * folded_WIDTH: the difference of two numbers, sign in the lowest bit, rotated to the left.
 * moved_WIDTH: the number that a rotated difference makes of an old one.
 * exponent_WIDTH: the 8 bits below the highest. */
#define DEFINE_NUMBER(WIDTH)                                                                      \
    INLINE uint##WIDTH##_t folded_##WIDTH(uint##WIDTH##_t now, uint##WIDTH##_t old, unsigned left) \
    {                                                                                             \
        const uint##WIDTH##_t apart = (uint##WIDTH##_t)(now - old);                               \
        const uint##WIDTH##_t sign = (uint##WIDTH##_t)(0u - (apart >> (WIDTH - 1)));              \
        const uint##WIDTH##_t word = (uint##WIDTH##_t)((apart << 1) ^ sign);                      \
        return (uint##WIDTH##_t)(word << left | word >> ((WIDTH - left) & (WIDTH - 1)));          \
    }                                                                                             \
    INLINE uint##WIDTH##_t moved_##WIDTH(uint##WIDTH##_t body, uint##WIDTH##_t old, unsigned left) \
    {                                                                                             \
        const uint##WIDTH##_t word =                                                              \
            (uint##WIDTH##_t)(body >> left | body << ((WIDTH - left) & (WIDTH - 1)));             \
        const uint##WIDTH##_t sign = (uint##WIDTH##_t)(0u - (word & 1));                          \
        return (uint##WIDTH##_t)((word >> 1 ^ sign) + old);                                       \
    }                                                                                             \
    INLINE uint8_t exponent_##WIDTH(uint##WIDTH##_t number)                                       \
    {                                                                                             \
        return (uint8_t)(number >> (WIDTH - 9));                                                  \
    }

DEFINE_NUMBER(16)
DEFINE_NUMBER(32)

/* 0u has 32 bits, so elements of 64 bits have a definition of their own. */
INLINE uint64_t folded_64(uint64_t now, uint64_t old, unsigned left)
{
    const uint64_t apart = now - old;
    const uint64_t word = (apart << 1) ^ (UINT64_C(0) - (apart >> 63));
    return word << left | word >> ((64 - left) & 63);
}

INLINE uint64_t moved_64(uint64_t body, uint64_t old, unsigned left)
{
    const uint64_t word = body >> left | body << ((64 - left) & 63);
    return (word >> 1 ^ (UINT64_C(0) - (word & 1))) + old;
}

INLINE uint8_t exponent_64(uint64_t number)
{
    return (uint8_t)(number >> 55);
}

/* Defines NAME_WIDTH: OF_WIDTH of each element and the old one at its place, for a single class. It
 * has no branches, so the compiler turns it into vectors. */
#define DEFINE_PASS(NAME, OF, WIDTH)                                                              \
    INLINE void NAME##_##WIDTH(unsigned shift, const uint8_t *in, const uint8_t *old,             \
                               size_t count, uint8_t *out)                                        \
    {                                                                                             \
        uint##WIDTH##_t element, before;                                                          \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&element, in + at * sizeof element, sizeof element);                           \
            memcpy(&before, old + at * sizeof before, sizeof before);                             \
            element = OF##_##WIDTH(element, before, shift);                                       \
            memcpy(out + at * sizeof element, &element, sizeof element);                          \
        }                                                                                         \
    }

/* Defines the loops over elements of WIDTH bits. */
#define DEFINE_LOOPS(WIDTH)                                                                       \
    static void sizes_##WIDTH(const ciuic_classes *classes, const uint8_t *old, size_t count,     \
                              size_t *sizes)                                                      \
    {                                                                                             \
        size_t seen[CIUIC_EXPONENTS] = {0};                                                       \
        uint##WIDTH##_t before;                                                                   \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&before, old + at * sizeof before, sizeof before);                             \
            seen[exponent_##WIDTH(before)]++;                                                     \
        }                                                                                         \
        for (size_t exponent = 0; exponent < CIUIC_EXPONENTS; exponent++)                         \
            sizes[classes->class_of[exponent]] += seen[exponent];                                 \
    }                                                                                             \
    DEFINE_PASS(split_one, folded, WIDTH)                                                         \
    DEFINE_PASS(join_one, moved, WIDTH)                                                           \
    static void split_##WIDTH(const ciuic_classes *classes, const uint8_t *plain,                 \
                              const uint8_t *old, size_t count, uint8_t **ends)                   \
    {                                                                                             \
        uint##WIDTH##_t now, before, word;                                                        \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&now, plain + at * sizeof now, sizeof now);                                    \
            memcpy(&before, old + at * sizeof before, sizeof before);                             \
            const size_t own = classes->class_of[exponent_##WIDTH(before)];                       \
            word = folded_##WIDTH(now, before, classes->shifts[own]);                             \
            memcpy(ends[own], &word, sizeof word);                                                \
            ends[own] += sizeof word;                                                             \
        }                                                                                         \
    }                                                                                             \
    static void join_##WIDTH(const ciuic_classes *classes, const uint8_t **ends,                  \
                             const uint8_t *old, size_t count, uint8_t *plain)                    \
    {                                                                                             \
        uint##WIDTH##_t now, before, word;                                                        \
        for (size_t at = 0; at < count; at++) {                                                   \
            memcpy(&before, old + at * sizeof before, sizeof before);                             \
            const size_t own = classes->class_of[exponent_##WIDTH(before)];                       \
            memcpy(&word, ends[own], sizeof word);                                                \
            ends[own] += sizeof word;                                                             \
            now = moved_##WIDTH(word, before, classes->shifts[own]);                              \
            memcpy(plain + at * sizeof now, &now, sizeof now);                                    \
        }                                                                                         \
    }

DEFINE_LOOPS(16)
DEFINE_LOOPS(32)
DEFINE_LOOPS(64)

void ciuic_delta_sizes(const ciuic_classes *classes, const uint8_t *old, size_t count,
                       size_t sizes[CIUIC_CLASSES_MAX])
{
    memset(sizes, 0, CIUIC_CLASSES_MAX * sizeof *sizes);
    if (classes->class_count == 1)
        sizes[0] = count;
    else if (classes->width == 2)
        sizes_16(classes, old, count, sizes);
    else if (classes->width == 4)
        sizes_32(classes, old, count, sizes);
    else
        sizes_64(classes, old, count, sizes);
}

/* ciuic_delta_split with one class, compiled once for each set of vector instructions. */
INLINE void split_one(const ciuic_classes *classes, const uint8_t *plain, const uint8_t *old,
                      size_t count, uint8_t *out)
{
    if (classes->width == 2)
        split_one_16(classes->shifts[0], plain, old, count, out);
    else if (classes->width == 4)
        split_one_32(classes->shifts[0], plain, old, count, out);
    else
        split_one_64(classes->shifts[0], plain, old, count, out);
}

/* ciuic_delta_join with one class, compiled once for each set of vector instructions. */
INLINE void join_one(const ciuic_classes *classes, const uint8_t *body, const uint8_t *old,
                     size_t count, uint8_t *plain)
{
    if (classes->width == 2)
        join_one_16(classes->shifts[0], body, old, count, plain);
    else if (classes->width == 4)
        join_one_32(classes->shifts[0], body, old, count, plain);
    else
        join_one_64(classes->shifts[0], body, old, count, plain);
}

#if CIUIC_X86

__attribute__((target("avx2"))) static void split_one_avx2(const ciuic_classes *classes,
                                                           const uint8_t *plain,
                                                           const uint8_t *old, size_t count,
                                                           uint8_t *out)
{
    split_one(classes, plain, old, count, out);
}

__attribute__((target("avx2"))) static void join_one_avx2(const ciuic_classes *classes,
                                                          const uint8_t *body, const uint8_t *old,
                                                          size_t count, uint8_t *plain)
{
    join_one(classes, body, old, count, plain);
}

#endif

void ciuic_delta_split(unsigned targets, const ciuic_classes *classes, const uint8_t *plain,
                       const uint8_t *old, size_t count, const size_t *sizes, uint8_t *out)
{
    uint8_t *ends[CIUIC_CLASSES_MAX];

    if (classes->class_count == 1) {
#if CIUIC_X86
        if (targets & CIUIC_AVX2) {
            split_one_avx2(classes, plain, old, count, out);
            return;
        }
#else
        (void)targets;
#endif
        split_one(classes, plain, old, count, out);
        return;
    }
    for (size_t number = 0; number < classes->class_count; number++) {
        ends[number] = out;
        out += sizes[number] * classes->width;
    }
    if (classes->width == 2)
        split_16(classes, plain, old, count, ends);
    else if (classes->width == 4)
        split_32(classes, plain, old, count, ends);
    else
        split_64(classes, plain, old, count, ends);
}

void ciuic_delta_join(unsigned targets, const ciuic_classes *classes, const uint8_t *const *bodies,
                      const uint8_t *old, size_t count, uint8_t *plain)
{
    const uint8_t *ends[CIUIC_CLASSES_MAX];

    if (classes->class_count == 1) {
#if CIUIC_X86
        if (targets & CIUIC_AVX2) {
            join_one_avx2(classes, bodies[0], old, count, plain);
            return;
        }
#else
        (void)targets;
#endif
        join_one(classes, bodies[0], old, count, plain);
        return;
    }
    memcpy(ends, bodies, classes->class_count * sizeof *ends);
    if (classes->width == 2)
        join_16(classes, ends, old, count, plain);
    else if (classes->width == 4)
        join_32(classes, ends, old, count, plain);
    else
        join_64(classes, ends, old, count, plain);
}
