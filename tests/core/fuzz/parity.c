/* Packs of any shape: those that do not fit are refused and nothing changes. Checksums and products
 * are the same with every variant. Buffers end where unreadable memory begins. */
#include "parity.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "checksum.h"
#include "fuzz.h"
#include "galois.h"

enum { PARITY_BYTES_MAX = 1 << 16, DATA_BYTES_MAX = 1 << 15 };

/* Returns `data` in memory that ends where unreadable memory begins, and frees it. */
static uint8_t *to_fence(uint8_t *data, size_t length)
{
    uint8_t *made = fenced(length);

    memcpy(made, data, length);
    free(data);
    return made;
}

void fuzz_checksum(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const size_t own = CIUIC_SUMMED_BYTES_MIN + take_below(&input, 4000);
    const size_t sector = CIUIC_SUMMED_BYTES_MIN + take_below(&input, 4000);
    uint8_t *bytes = to_fence(take_bytes(&input, own), own), *sums = memory(own / sector * 8);
    const uint64_t expected = ciuic_checksum(0, bytes, own);
    unsigned mask = 0;

    do {
        if (ciuic_checksum(mask, bytes, own) != expected)
            fail("a checksum depends on the vector instructions");
        ciuic_sector_sums(mask, bytes, own, sector, sums);
        for (size_t at = 0; at < own / sector; at++) {
            const uint64_t sum = ciuic_checksum(0, bytes + at * sector, sector);
            if (memcmp(sums + 8 * at, &sum, 8))
                fail("sector_sums computes other checksums than checksum");
        }
    } while ((mask = next_targets(mask)));
    unfence(bytes, own);
    free(sums);
}

void fuzz_galois(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const size_t sources = 1 + take_below(&input, CIUIC_SOURCES_MAX), rows = 1 + take_below(&input, 9);
    const size_t stride = sources + take_below(&input, 3), bytes = take_below(&input, 400);
    const size_t used = rows * stride - (stride - sources);
    uint8_t *coefficients = take_bytes(&input, used), *before[9], *expected[9], *found[9];
    uint8_t *from[CIUIC_SOURCES_MAX];
    unsigned mask = 0;

    for (size_t source = 0; source < sources; source++)
        from[source] = to_fence(take_bytes(&input, bytes), bytes);
    for (size_t row = 0; row < rows; row++) {
        before[row] = take_bytes(&input, bytes);
        expected[row] = memory(bytes);
        memcpy(expected[row], before[row], bytes);
        found[row] = fenced(bytes);
    }
    ciuic_gf_add(0, coefficients, stride, (const uint8_t *const *)from, sources, expected, rows,
                 bytes);
    do {
        for (size_t row = 0; row < rows; row++)
            memcpy(found[row], before[row], bytes);
        ciuic_gf_add(mask, coefficients, stride, (const uint8_t *const *)from, sources, found, rows,
                     bytes);
        for (size_t row = 0; row < rows; row++)
            if (memcmp(found[row], expected[row], bytes))
                fail("gf_add depends on the vector instructions");
    } while ((mask = next_targets(mask)));
    for (size_t source = 0; source < sources; source++)
        unfence(from[source], bytes);
    for (size_t row = 0; row < rows; row++) {
        free(before[row]);
        free(expected[row]);
        unfence(found[row], bytes);
    }
    free(coefficients);
}

/* A shape: any four words, or one that is sound and small. */
static ciuic_shape take_shape(fuzz_input *input, int is_raw)
{
    if (is_raw)
        return (ciuic_shape){take_word(input), take_word(input), take_word(input), take_word(input)};
    const size_t sector = CIUIC_SUMMED_BYTES_MIN + take_below(input, 1000);
    return (ciuic_shape){1 + take_below(input, 40), 1 + take_below(input, 9), sector,
                         sector * (1 + take_below(input, 5))};
}

/* Adds the same data with one variant; returns what ciuic_parity_add says. */
static int add(unsigned mask, const ciuic_shape *shape, const uint8_t *matrix, uint64_t offset,
               const uint8_t *data, size_t length, uint8_t *parity, uint8_t *sums)
{
    return ciuic_parity_add(mask, shape, matrix, offset, data, length, parity, sums);
}

/* Adds with every variant, in buffers of the lengths that the shape says. */
static void compare(const ciuic_shape *shape, const uint8_t *matrix, uint64_t offset,
                    const uint8_t *data, size_t length)
{
    const size_t rows_bytes = shape->rows * shape->segment_bytes;
    const size_t sums_bytes = length / shape->sector_bytes * 8;
    uint8_t *expected = memory(rows_bytes), *sums = memory(sums_bytes);
    unsigned mask = 0;

    memset(expected, 0x5a, rows_bytes);
    memset(sums, 0x5a, sums_bytes);
    const int outcome = add(0, shape, matrix, offset, data, length, expected, sums);
    do {
        uint8_t *found = fenced(rows_bytes), *found_sums = fenced(sums_bytes);
        memset(found, 0x5a, rows_bytes);
        memset(found_sums, 0x5a, sums_bytes);
        if (add(mask, shape, matrix, offset, data, length, found, found_sums) != outcome ||
            memcmp(found, expected, rows_bytes) || memcmp(found_sums, sums, sums_bytes))
            fail("the parity depends on the vector instructions");
        unfence(found, rows_bytes);
        unfence(found_sums, sums_bytes);
    } while ((mask = next_targets(mask)));
    for (size_t at = 0; outcome && at < rows_bytes; at++)
        if (expected[at] != 0x5a)
            fail("a pack that is refused changes the parity");
    for (size_t sector = 0; !outcome && sector < sums_bytes / 8; sector++) {
        const uint64_t sum =
            ciuic_checksum(0, data + sector * shape->sector_bytes, shape->sector_bytes);
        if (memcmp(sums + 8 * sector, &sum, 8))
            fail("a sector has another checksum");
    }
    free(expected);
    free(sums);
}

void fuzz_parity(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const int is_raw = take_below(&input, 8) == 7;
    const ciuic_shape shape = take_shape(&input, is_raw);

    if (!ciuic_shape_is_sound(&shape)) {
        uint8_t nothing[1] = {0};
        if (!is_raw || !ciuic_parity_add(0, &shape, nothing, 0, nothing, 0, nothing, nothing))
            fail("a shape is refused that can be, or taken that cannot be");
        return;
    }
    if (shape.segment_bytes > PARITY_BYTES_MAX / shape.rows)
        return;
    const int is_offset_raw = take_below(&input, 8) == 7;
    const uint64_t offset =
        is_offset_raw ? take_word(&input)
                      : (uint64_t)take_below(&input, 200) * shape.sector_bytes;
    const size_t own = take_below(&input, DATA_BYTES_MAX);
    uint8_t *matrix = take_bytes(&input, shape.rows * shape.segments);
    uint8_t *bytes = to_fence(take_bytes(&input, own), own);
    compare(&shape, matrix, offset, bytes, own);
    unfence(bytes, own);
    free(matrix);
}
