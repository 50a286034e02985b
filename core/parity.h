/* The parity of a pack, and the checksums of its sectors, in one pass. docs/format.md, "Parity". */
#ifndef CIUIC_PARITY_H
#define CIUIC_PARITY_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_SHARDS_MAX = 256 };

/* How a pack is cut: see Shape in ciuic/store/parity/shape.py. */
typedef struct {
    size_t segments;      /* at least 1; with rows at most CIUIC_SHARDS_MAX */
    size_t rows;          /* at least 1 */
    size_t sector_bytes;  /* at least CIUIC_SUMMED_BYTES_MIN */
    size_t segment_bytes; /* a positive multiple of sector_bytes */
} ciuic_shape;

/* Returns 1 if the fields are as the comments above say and no product of them overflows, else 0. */
int ciuic_shape_is_sound(const ciuic_shape *shape);

/* Takes in the next bytes of a pack: adds them to the parity, and writes checksums of sectors.
 *
 * coefficients: rows * segments bytes, row by row.
 * offset: of data in the pack: a multiple of sector_bytes.
 * data: length bytes; offset + length is at most segments * segment_bytes.
 * parity: rows * segment_bytes bytes, changed in place.
 * sums: receives length / sector_bytes checksums, as ciuic_sector_sums writes them.
 *
 * Returns 0, or -1 if shape, offset or length is not as described; then nothing is changed.
 */
int ciuic_parity_add(unsigned targets, const ciuic_shape *shape, const uint8_t *coefficients,
                     uint64_t offset, const uint8_t *data, size_t length, uint8_t *parity,
                     uint8_t *sums);

#endif
