/* Arithmetic in GF(256) over x^8 + x^4 + x^3 + x^2 + 1. docs/format.md, "Parity".
 *
 * Addition is XOR. ciuic/store/parity/gf256.py computes the same bytes with numpy.
 */
#ifndef CIUIC_GALOIS_H
#define CIUIC_GALOIS_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_SOURCES_MAX = 16 };

/* Adds sources, each times its coefficient, to each row.
 *
 * sources: source_count pointers (1 to CIUIC_SOURCES_MAX) to length bytes each.
 * rows: row_count pointers to length bytes each, changed in place; no row overlaps a source or
 *     another row. Nothing needs to be aligned.
 * coefficients: that of row r and source s is coefficients[r * stride + s]; stride >= source_count.
 *
 * Promise: reads and writes nothing outside of these ranges.
 */
void ciuic_gf_add(unsigned targets, const uint8_t *coefficients, size_t stride,
                  const uint8_t *const *sources, size_t source_count, uint8_t *const *rows,
                  size_t row_count, size_t length);

#endif
