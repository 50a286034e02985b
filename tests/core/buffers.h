/* What the driver and the fuzzing targets share. */
#ifndef CIUIC_BUFFERS_H
#define CIUIC_BUFFERS_H

#include <stddef.h>
#include <stdint.h>

/* Returns length bytes of memory of its own, so that the sanitizer knows both ends. */
uint8_t *memory(size_t length);

/* Returns length bytes that end where unreadable memory begins: AddressSanitizer does not see masked
 * vector instructions, the processor does. Freed with `unfence`. */
uint8_t *fenced(size_t length);

/* Frees what `fenced` returned for this length. */
void unfence(uint8_t *memory_of, size_t length);

/* Ends the program with a sentence. */
void fail(const char *what);

/* Returns the next mask of vector instructions after `mask` that the processor has; 0 at the end. */
unsigned next_targets(unsigned mask);

#endif
