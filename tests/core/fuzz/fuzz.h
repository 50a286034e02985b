/* Fuzzing targets for the compiled core: each reads a case from bytes that a fuzzer chose.
 *
 * scripts/fuzz-core runs them under libFuzzer, AddressSanitizer and UBSan; scripts/sanitize gives them
 * random bytes. A target makes buffers of exactly the lengths that the header in core/ promises, and
 * compares every variant that the processor has with plain C. It leaves no memory behind.
 */
#ifndef CIUIC_FUZZ_H
#define CIUIC_FUZZ_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    void (*run)(const uint8_t *data, size_t length);
} fuzz_target;

/* All targets; the last has no name. */
extern const fuzz_target FUZZ_TARGETS[];

void fuzz_planes(const uint8_t *data, size_t length);
void fuzz_deltas(const uint8_t *data, size_t length);
void fuzz_sparse(const uint8_t *data, size_t length);
void fuzz_parity(const uint8_t *data, size_t length);
void fuzz_galois(const uint8_t *data, size_t length);
void fuzz_checksum(const uint8_t *data, size_t length);
void fuzz_files(const uint8_t *data, size_t length);
void fuzz_reading(const uint8_t *data, size_t length);

/* The bytes of a case that are not used yet. */
typedef struct {
    const uint8_t *at;
    size_t left;
} fuzz_input;

/* Each takes bytes from the input; after its end there are zeros. */
uint8_t take_byte(fuzz_input *input);
uint64_t take_word(fuzz_input *input);

/* Returns any byte; half of the time one at which something may end. */
uint8_t take_edge(fuzz_input *input);

/* Returns a number below limit, which is at most 2^16. */
size_t take_below(fuzz_input *input, size_t limit);

/* Returns memory of its own with the next bytes. When the input ends, what it had begins again with
 * other values, so that a short case fills a long buffer with unequal bytes. */
uint8_t *take_bytes(fuzz_input *input, size_t length);

#endif
