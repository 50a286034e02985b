/* Byte planes: numbers of 2, 4 or 8 bytes <-> columns. docs/format.md, "Codec 2".
 *
 * ciuic/codec/planes.py does the same with numpy. zstd, which codes some columns, stays in Python.
 */
#ifndef CIUIC_PLANES_H
#define CIUIC_PLANES_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_COLUMNS_MAX = 8 };

/* A column: neighboring bytes of every element. */
typedef struct {
    uint8_t width;    /* 1, 2 or 4 */
    uint8_t is_pairs; /* 1: stored as pairs of half bytes; then width is 1 */
    uint8_t lowest;   /* of the 16 values that most bytes of a column of pairs have */
} ciuic_column;

/* How elements are split. */
typedef struct {
    size_t width; /* of an element: 2, 4 or 8 bytes */
    size_t column_count;
    ciuic_column columns[CIUIC_COLUMNS_MAX]; /* lowest bytes first */
} ciuic_plan;

/* Returns 1 if the columns form an element whose last two columns are single bytes, else 0. */
int ciuic_plan_is_sound(const ciuic_plan *plan);

/* Splits elements into columns.
 *
 * plan: sound.
 * plain: count * width bytes; count is even.
 * out: receives as many bytes, the columns one after another. A column of pairs is count / 2 bytes
 *     of low pairs (the low halves of two bytes), then as many of high pairs. plain and out do not
 *     overlap.
 *
 * Returns a mask: bit n is set if column n is one of pairs and a high pair is not 0.
 */
unsigned ciuic_planes_split(unsigned targets, const ciuic_plan *plan, const uint8_t *plain,
                            size_t count, uint8_t *out);

/* Undoes ciuic_planes_split.
 *
 * bodies: for column n, bodies[2 * n] has its bytes. For a column of pairs, that is count / 2 bytes
 *     of low pairs, and bodies[2 * n + 1] has as many of high pairs, or is NULL: all of them are 0.
 * plain: receives count * width bytes; overlaps no body.
 */
void ciuic_planes_join(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                       size_t count, uint8_t *plain);

/* Tells whether ciuic_planes_join would write exactly these bytes. It allocates no memory for them.
 *
 * bodies: as for ciuic_planes_join. plain: count * width bytes.
 *
 * Returns 1 if it would, else 0.
 */
int ciuic_planes_match(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                       size_t count, const uint8_t *plain);

/* How the bytes at one place of an element are spread. */
typedef struct {
    uint64_t bits;   /* their entropy together, in units of 1 / 2^20 bit */
    uint64_t near;   /* how many of them, at most, are within 16 adjacent values */
    uint64_t lowest; /* of these 16 values; after 255 comes 0 */
} ciuic_spread;

/* Tells how the bytes of elements are spread. It uses integers only: every machine says the same.
 *
 * width: 2, 4 or 8 bytes an element.
 * sample: count * width bytes; count is below 2^32.
 * spreads: receives `width` of them: for each byte of an element but the last two, lowest first;
 *     then for the sign with the lowest bits of the top, and for the exponent, as columns hold them.
 */
void ciuic_planes_tally(size_t width, const uint8_t *sample, size_t count, ciuic_spread *spreads);

#endif
