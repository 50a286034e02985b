/* Copies of arrays into memory that another process reads. */
#ifndef CIUIC_COPIES_H
#define CIUIC_COPIES_H

#include <stddef.h>
#include <stdint.h>

/* An array whose bytes are in order in memory. */
typedef struct {
    uint64_t at;     /* where it belongs in the output, in bytes */
    uint64_t source; /* its address */
    uint64_t length; /* in bytes */
} ciuic_array;

/* Copies arrays to their places, which do not overlap with them.
 *
 * The bytes go past the processor's caches where it can do that: this program does not read them
 * again, and a cache would first read what is overwritten.
 *
 * out: long enough for every array.
 */
void ciuic_copy_arrays(const ciuic_array *arrays, size_t count, uint8_t *out);

#endif
