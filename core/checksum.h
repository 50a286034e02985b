/* XXH3 with 64 bits and seed 0, of inputs of more than 240 bytes: the checksum of sectors.
 *
 * The xxhash package computes all other checksums. This is here so that one pass over a pack
 * computes its parity and the checksums of its sectors.
 */
#ifndef CIUIC_CHECKSUM_H
#define CIUIC_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_SUMMED_BYTES_MIN = 241 };

/* Returns the checksum of length bytes, at least CIUIC_SUMMED_BYTES_MIN; no alignment needed. */
uint64_t ciuic_checksum(unsigned targets, const uint8_t *data, size_t length);

/* Writes the checksums of the length / sector_bytes whole sectors in data, one after another.
 *
 * sector_bytes: at least CIUIC_SUMMED_BYTES_MIN.
 * sums: receives 8 bytes for each, in the machine's byte order; no alignment needed.
 */
void ciuic_sector_sums(unsigned targets, const uint8_t *data, size_t length, size_t sector_bytes,
                       uint8_t *sums);

#endif
