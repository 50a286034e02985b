/* Finds and puts back changed elements: what is joined must be what was split; gaps that lead past
 * the end are refused. */
#include "sparse.h"

#include <stdlib.h>
#include <string.h>

#include "drive.h"

/* Copies the columns of gaps to memory of their own. */
static void own_gaps(ciuic_changes *changes, const uint8_t *gaps, uint8_t *owned[CIUIC_GAP_BYTES])
{
    for (size_t column = 0; column < changes->gap_bytes; column++) {
        changes->gaps[column] = owned[column] = memory(changes->changed);
        memcpy(owned[column], gaps + column * changes->changed, changes->changed);
    }
}

/* Joins with other gaps: any bytes are either refused or stay within the buffers. */
static void check_hostile(ciuic_changes *changes, const uint8_t *values, const uint8_t *old)
{
    uint8_t *owned[CIUIC_GAP_BYTES];
    uint8_t *plain = memory(changes->count * changes->width);
    uint8_t *taken = memory(changes->changed * changes->width);

    changes->gap_bytes = 1 + below(CIUIC_GAP_BYTES);
    for (size_t column = 0; column < changes->gap_bytes; column++) {
        changes->gaps[column] = owned[column] = noise(changes->changed);
        if (below(2))
            memset(owned[column], (int)below(2), changes->changed);
    }
    if (ciuic_sparse_take(changes, old, taken) != ciuic_sparse_join(changes, values, old, plain))
        fail("sparse_take and sparse_join do not refuse the same gaps");
    for (size_t column = 0; column < changes->gap_bytes; column++)
        free(owned[column]);
    free(plain);
    free(taken);
}

/* Joins what was split, and compares. */
static void join_again(ciuic_changes *changes, const uint8_t *gaps, const uint8_t *now,
                       const uint8_t *before, const uint8_t *old, const uint8_t *plain)
{
    const size_t length = changes->count * changes->width;
    uint8_t *owned[CIUIC_GAP_BYTES], *again = memory(length);
    uint8_t *taken = memory(changes->changed * changes->width);

    own_gaps(changes, gaps, owned);
    if (ciuic_sparse_take(changes, old, taken) ||
        memcmp(taken, before, changes->changed * changes->width))
        fail("sparse_take finds other elements than sparse_split");
    if (ciuic_sparse_join(changes, now, old, again) || memcmp(again, plain, length))
        fail("sparse_join does not undo sparse_split");
    for (size_t column = 0; column < changes->gap_bytes; column++)
        free(owned[column]);
    free(taken);
    free(again);
}

void check_sparse(void)
{
    const size_t width = (size_t)1 << below(4), count = below(below(8) ? 301 : 70000);
    const size_t length = count * width, chance = 1 + below(2000);
    uint8_t *old = noise(length), *plain = memory(length);
    ciuic_changes changes = {.width = width, .count = count};
    unsigned mask = 0, used;

    for (size_t at = 0; at < length; at++)
        plain[at] = below(chance) ? old[at] : (uint8_t)below(256);
    changes.changed = ciuic_sparse_count(0, width, plain, old, count);
    while ((mask = next_targets(mask)))
        if (ciuic_sparse_count(mask, width, plain, old, count) != changes.changed)
            fail("the number of changes depends on the vector instructions");
    uint8_t *gaps = memory(CIUIC_GAP_BYTES * changes.changed);
    uint8_t *now = memory(changes.changed * width), *before = memory(changes.changed * width);
    used = ciuic_sparse_split(width, plain, old, count, changes.changed, gaps, now, before);
    if (!used)
        fail("sparse_split finds another number of changes than sparse_count");
    changes.gap_bytes = used;
    join_again(&changes, gaps, now, before, old, plain);
    check_hostile(&changes, now, old);
    if (changes.changed) {
        uint8_t *less = memory((changes.changed - 1) * width);
        uint8_t *fewer = memory(CIUIC_GAP_BYTES * (changes.changed - 1));
        uint8_t *least = memory((changes.changed - 1) * width);
        if (ciuic_sparse_split(width, plain, old, count, changes.changed - 1, fewer, less, least))
            fail("sparse_split takes more changes than it was told of");
        free(less);
        free(fewer);
        free(least);
    }
    free(gaps);
    free(now);
    free(before);
    free(old);
    free(plain);
}
