/* Floats of 4 bytes in the columns that nearly all of them get: the two low bytes, the sign with the
 * highest bits of the mantissa, the exponent. One pass for all three, where planes.c makes a pass
 * for each column. docs/format.md, "Codec 2".
 *
 * The functions are inline, so that each set of vector instructions compiles its own. The loops have
 * no branches: the compiler turns them into vectors. The pointers of a call do not overlap.
 */
#ifndef CIUIC_FLOATS_H
#define CIUIC_FLOATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CIUIC_INLINE static inline __attribute__((always_inline))

/* Returns the float with these parts. */
CIUIC_INLINE uint32_t ciuic_float_of(const uint8_t *low, uint8_t sign, uint8_t exponent)
{
    uint16_t bottom;

    memcpy(&bottom, low, sizeof bottom);
    const uint32_t top = (sign & 0x7fu) | (sign & 0x80u) << 8 | (uint32_t)exponent << 7;
    return top << 16 | bottom;
}

/* Splits floats.
 *
 * plain: 4 * count bytes. low: receives 2 * count bytes. signs, exponents: receive count bytes.
 */
CIUIC_INLINE void ciuic_floats_split(const uint8_t *restrict plain, size_t count,
                                     uint8_t *restrict low, uint8_t *restrict signs,
                                     uint8_t *restrict exponents)
{
    for (size_t at = 0; at < count; at++) {
        uint32_t word;
        memcpy(&word, plain + 4 * at, sizeof word);
        const uint16_t bottom = (uint16_t)word, top = (uint16_t)(word >> 16);
        memcpy(low + 2 * at, &bottom, sizeof bottom);
        signs[at] = (uint8_t)((top & 0x7f) | (top & 0x8000) >> 8);
        exponents[at] = (uint8_t)(top >> 7);
    }
}

/* Undoes ciuic_floats_split; plain receives 4 * count bytes. */
CIUIC_INLINE void ciuic_floats_join(const uint8_t *restrict low, const uint8_t *restrict signs,
                                    const uint8_t *restrict exponents, size_t count,
                                    uint8_t *restrict plain)
{
    for (size_t at = 0; at < count; at++) {
        const uint32_t word = ciuic_float_of(low + 2 * at, signs[at], exponents[at]);
        memcpy(plain + 4 * at, &word, sizeof word);
    }
}

/* Returns 0 if ciuic_floats_join would write exactly the 4 * count bytes of `plain`. */
CIUIC_INLINE uint32_t ciuic_floats_differ(const uint8_t *low, const uint8_t *signs,
                                          const uint8_t *exponents, size_t count,
                                          const uint8_t *plain)
{
    uint32_t found = 0;

    for (size_t at = 0; at < count; at++) {
        uint32_t word;
        memcpy(&word, plain + 4 * at, sizeof word);
        found |= word ^ ciuic_float_of(low + 2 * at, signs[at], exponents[at]);
    }
    return found;
}

#endif
