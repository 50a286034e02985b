/* Sparse deltas: the places and the values of the few elements that changed, of 1, 2, 4 or 8 bytes.
 *
 * A gap is the number of unchanged elements before a changed one, in 32 bits. Its bytes are in
 * columns of their own: the first column has the lowest byte of every gap. docs/format.md,
 * "Codec 4"; ciuic/codec/sparse_delta.py does the same with numpy.
 */
#ifndef CIUIC_SPARSE_H
#define CIUIC_SPARSE_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_GAP_BYTES = 4 };

/* Elements that changed, as a reader finds them. */
typedef struct {
    size_t width;       /* of an element: 1, 2, 4 or 8 bytes */
    size_t count;       /* of all elements; less than 2^32 */
    size_t changed;     /* how many have changed */
    size_t gap_bytes;   /* 1 to CIUIC_GAP_BYTES */
    const uint8_t *gaps[CIUIC_GAP_BYTES]; /* gap_bytes columns of `changed` bytes each */
} ciuic_changes;

/* Returns how many elements of plain and old differ. Both have count * width bytes.
 *
 * width: 1, 2, 4 or 8. */
size_t ciuic_sparse_count(unsigned targets, size_t width, const uint8_t *plain, const uint8_t *old,
                          size_t count);

/* Writes the gaps and the values of the elements that differ.
 *
 * width, plain, old, count: as for ciuic_sparse_count; count is less than 2^32.
 * changed: what ciuic_sparse_count returns.
 * gaps: receives CIUIC_GAP_BYTES columns of `changed` bytes, one after another.
 * now, before: receive the elements of plain and of old that differ, changed * width bytes each.
 *     With width 1, `now` receives their differences, folded: the sign in the lowest bit.
 *     No output overlaps an input or another output.
 *
 * Returns how many columns are needed, at least 1: the others hold zeros. Returns 0 if not exactly
 * `changed` elements differ, with arbitrary outputs; nothing outside of them is written.
 */
unsigned ciuic_sparse_split(size_t width, const uint8_t *plain, const uint8_t *old, size_t count,
                            size_t changed, uint8_t *gaps, uint8_t *now, uint8_t *before);

/* Copies the changed elements of old, one after another.
 *
 * old: count * width bytes. out: receives changed * width bytes; overlaps no input.
 *
 * Returns 0, or -1 if the gaps lead beyond the last element, with arbitrary bytes in out.
 */
int ciuic_sparse_take(const ciuic_changes *changes, const uint8_t *old, uint8_t *out);

/* Copies old, and puts the changed elements into their places.
 *
 * values: changed * width bytes: the elements; with width 1 their differences, folded.
 * old: count * width bytes. plain: receives as many; overlaps no input.
 *
 * Returns 0, or -1 if the gaps lead beyond the last element, with arbitrary bytes in plain.
 */
int ciuic_sparse_join(const ciuic_changes *changes, const uint8_t *values, const uint8_t *old,
                      uint8_t *plain);

#endif
