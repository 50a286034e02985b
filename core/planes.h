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
    uint8_t is_pairs; /* 1: in two halves of pairs; then width is 1 */
    uint8_t lowest;   /* of the 16 values that most bytes of a column of pairs have */
} ciuic_column;

/* How elements are split. */
typedef struct {
    size_t width; /* of an element: 2, 4 or 8 */
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
 *     of low pairs, then as many of high pairs. plain and out do not overlap.
 *
 * Returns a mask: bit n is set if column n is one of pairs and a high pair is not 0.
 */
unsigned ciuic_planes_split(unsigned targets, const ciuic_plan *plan, const uint8_t *plain,
                            size_t count, uint8_t *out);

/* Undoes ciuic_planes_split.
 *
 * bodies: for column n, bodies[2 * n] has its bytes. For a column of pairs that is count / 2 bytes
 *     of low pairs, and bodies[2 * n + 1] as many of high pairs, or NULL: all of them are 0.
 * plain: receives count * width bytes; overlaps no body.
 */
void ciuic_planes_join(unsigned targets, const ciuic_plan *plan, const uint8_t *const *bodies,
                       size_t count, uint8_t *plain);

#endif
