/* Runs the core, without Python, on random input in buffers of exactly the promised lengths.
 *
 * scripts/sanitize builds this with AddressSanitizer and UBSan: a read or write outside of a buffer
 * ends it. Every variant that the processor has must compute what plain C computes, and plain C
 * what the definition in docs/format.md says.
 *
 * Each turn also gives random bytes to a fuzzing target, so that these keep working.
 *
 *     drive SECONDS [SEED]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checksum.h"
#include "copies.h"
#include "drive.h"
#include "fuzz/fuzz.h"
#include "galois.h"
#include "parity.h"
#include "targets.h"

static uint64_t state;

/* Returns a random number below limit (xorshift64*). */
size_t below(size_t limit)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * UINT64_C(2685821657736338717)) >> 11) % limit;
}

/* Returns random bytes; about one in four is a run of equal bytes. */
uint8_t *noise(size_t length)
{
    uint8_t *made = memory(length);
    const int is_run = below(4) == 0;
    for (size_t at = 0; at < length; at++)
        made[at] = is_run && at % 64 ? made[at - 1] : (uint8_t)below(256);
    return made;
}

/* Multiplies two field elements as the format page defines it. */
static uint8_t times(uint8_t left, uint8_t right)
{
    unsigned found = 0, power = left;
    for (; right; right >>= 1, power = power << 1 ^ (power & 0x80 ? 0x11d : 0))
        if (right & 1)
            found ^= power;
    return (uint8_t)found;
}

static void check_gf_add(void)
{
    const size_t sources = 1 + below(CIUIC_SOURCES_MAX), rows = 1 + below(9), length = below(301);
    const size_t stride = sources + below(3);
    uint8_t *coefficients = noise(rows * stride - (stride - sources));
    uint8_t *from[CIUIC_SOURCES_MAX], *before[9], *expected[9], *found[9];
    unsigned mask = 0;

    for (size_t source = 0; source < sources; source++) {
        uint8_t *made = noise(length);
        from[source] = fenced(length);
        memcpy(from[source], made, length);
        free(made);
    }
    for (size_t row = 0; row < rows; row++) {
        before[row] = noise(length);
        found[row] = fenced(length);
        expected[row] = memory(length);
        for (size_t at = 0; at < length; at++) {
            expected[row][at] = before[row][at];
            for (size_t source = 0; source < sources; source++)
                expected[row][at] ^= times(coefficients[row * stride + source], from[source][at]);
        }
    }
    do {
        for (size_t row = 0; row < rows; row++)
            memcpy(found[row], before[row], length);
        ciuic_gf_add(mask, coefficients, stride, (const uint8_t *const *)from, sources, found, rows,
                     length);
        for (size_t row = 0; row < rows; row++)
            if (memcmp(found[row], expected[row], length))
                fail("gf_add computes another product");
    } while ((mask = next_targets(mask)));
    for (size_t source = 0; source < sources; source++)
        unfence(from[source], length);
    for (size_t row = 0; row < rows; row++) {
        free(before[row]);
        unfence(found[row], length);
        free(expected[row]);
    }
    free(coefficients);
}

static void check_checksum(void)
{
    const size_t length = CIUIC_SUMMED_BYTES_MIN + below(3000);
    uint8_t *data = noise(length);
    const uint64_t expected = ciuic_checksum(0, data, length);
    for (unsigned mask = next_targets(0); mask; mask = next_targets(mask))
        if (ciuic_checksum(mask, data, length) != expected)
            fail("a checksum depends on the vector instructions");
    free(data);
}

/* Adds a pack in pieces with every variant; the first result is that of plain C. */
static void check_parity(void)
{
    const size_t sector = 256 << below(3), sectors = 1 + below(200);
    const ciuic_shape shape = {1 + below(20), 1 + below(6), sector, sector * sectors};
    const size_t whole = shape.segments * shape.segment_bytes, size = below(whole + 1);
    uint8_t *data = noise(size), *matrix = noise(shape.segments * shape.rows);
    uint8_t *first = NULL, *first_sums = NULL;
    const size_t sums_bytes = size / sector * 8;
    unsigned mask = 0;

    do {
        uint8_t *parity = memory(shape.rows * shape.segment_bytes), *sums = memory(sums_bytes);
        memset(parity, 0, shape.rows * shape.segment_bytes);
        for (size_t done = 0, part; done < size; done += part) {
            part = (1 + below(64)) * sector;
            part = part < size - done ? part : size - done;
            uint8_t *own = memory(part), *own_sums = memory(part / sector * 8);
            memcpy(own, data + done, part);
            if (ciuic_parity_add(mask, &shape, matrix, done, own, part, parity, own_sums))
                fail("parity_add refuses a pack that fits");
            memcpy(sums + done / sector * 8, own_sums, part / sector * 8);
            free(own);
            free(own_sums);
        }
        if (first && (memcmp(parity, first, shape.rows * shape.segment_bytes) ||
                      memcmp(sums, first_sums, sums_bytes)))
            fail("the parity depends on the vector instructions or on the pieces");
        free(first);
        free(first_sums);
        first = parity;
        first_sums = sums;
    } while ((mask = next_targets(mask)));
    if (!ciuic_parity_add(0, &shape, matrix, (whole / sector + 1) * sector, data, size, first,
                          first_sums))
        fail("parity_add takes bytes past the end");
    free(first);
    free(first_sums);
    free(data);
    free(matrix);
}

/* Copies two arrays that meet; nothing else of the output changes. */
static void check_copies(void)
{
    const size_t first = below(9000), second = below(9000), skip = below(70);
    const size_t size = skip + first + second;
    uint8_t *data = noise(first + second), *from[2] = {memory(first), memory(second)};
    uint8_t *out = fenced(size), *expected = noise(size);

    memcpy(from[0], data, first);
    memcpy(from[1], data + first, second);
    memcpy(out, expected, size);
    memcpy(expected + skip, data, first + second);
    const ciuic_array arrays[2] = {{skip, (uint64_t)(uintptr_t)from[0], first},
                                   {skip + first, (uint64_t)(uintptr_t)from[1], second}};
    ciuic_copy_arrays(arrays, 2, out);
    if (memcmp(out, expected, size))
        fail("copies do not have the bytes of the arrays");
    free(data);
    free(from[0]);
    free(from[1]);
    unfence(out, size);
    free(expected);
}

/* Gives random bytes to one of the fuzzing targets. */
static void check_fuzzing(void)
{
    const size_t length = below(600);
    uint8_t *data = noise(length);
    size_t targets = 0;

    while (FUZZ_TARGETS[targets].name)
        targets++;
    FUZZ_TARGETS[below(targets)].run(data, length);
    free(data);
}

int main(int count, char **words)
{
    const double seconds = count > 1 ? atof(words[1]) : 1.0;
    const uint64_t seed = count > 2 ? strtoull(words[2], NULL, 10) : (uint64_t)time(NULL);
    const time_t end = time(NULL) + (time_t)seconds;
    unsigned long turns = 0;

    printf("drive: seed %llu, vector instructions %u\n", (unsigned long long)seed, ciuic_targets());
    fflush(stdout);
    do {
        state = (seed + turns) * UINT64_C(0x9E3779B97F4A7C15) | 1;
        check_gf_add();
        check_checksum();
        check_parity();
        check_copies();
        check_planes();
        check_deltas();
        check_sparse();
        check_files();
        check_reading();
        check_fuzzing();
        turns++;
    } while (time(NULL) < end);
    printf("drive: %lu turns of every function, no fault\n", turns);
    return 0;
}
