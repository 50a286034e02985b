/* Any gaps are either refused or stay within the elements; what they make is found again. */
#include "sparse.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "fuzz.h"

/* Splits what differs, with room for `changed` elements; returns what ciuic_sparse_split says. If it
 * accepts, joining must give plain again. */
static unsigned split(size_t width, const uint8_t *plain, const uint8_t *old, size_t count,
                      size_t changed)
{
    uint8_t *gaps = memory(CIUIC_GAP_BYTES * changed);
    uint8_t *now = memory(changed * width), *before = memory(changed * width);
    uint8_t *again = memory(count * width), *taken = memory(changed * width);
    const unsigned used =
        ciuic_sparse_split(width, plain, old, count, changed, gaps, now, before);
    ciuic_changes changes = {
        .width = width, .count = count, .changed = changed, .gap_bytes = used ? used : 1};

    for (size_t column = 0; column < CIUIC_GAP_BYTES; column++)
        changes.gaps[column] = gaps + column * changed;
    if (used && (ciuic_sparse_join(&changes, now, old, again) ||
                 memcmp(again, plain, count * width)))
        fail("sparse_join does not undo sparse_split");
    if (used && (ciuic_sparse_take(&changes, old, taken) ||
                 memcmp(taken, before, changed * width)))
        fail("sparse_take finds other elements than sparse_split");
    free(gaps);
    free(now);
    free(before);
    free(again);
    free(taken);
    return used;
}

/* Counts with every variant; then splits with the right number, and with wrong ones. */
static void compare(size_t width, const uint8_t *plain, const uint8_t *old, size_t count)
{
    size_t changed = 0;
    unsigned mask = 0;

    for (size_t at = 0; at < count; at++)
        changed += memcmp(plain + at * width, old + at * width, width) != 0;
    do {
        if (ciuic_sparse_count(mask, width, plain, old, count) != changed)
            fail("sparse_count does not count what differs");
    } while ((mask = next_targets(mask)));
    if (!split(width, plain, old, count, changed))
        fail("sparse_split refuses the number of changes");
    if (split(width, plain, old, count, changed + 1) ||
        (changed && split(width, plain, old, count, changed - 1)))
        fail("sparse_split takes a wrong number of changes");
}

void fuzz_sparse(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const size_t width = (size_t)1 << take_below(&input, 4);
    const size_t count = take_below(&input, 1300), changed = take_below(&input, 1500);
    ciuic_changes changes = {.width = width, .count = count, .changed = changed};
    uint8_t *gaps[CIUIC_GAP_BYTES];

    changes.gap_bytes = 1 + take_below(&input, CIUIC_GAP_BYTES);
    const int high_are_zero = take_below(&input, 4) != 0;
    for (size_t column = 0; column < changes.gap_bytes; column++) {
        changes.gaps[column] = gaps[column] = take_bytes(&input, changed);
        if (column && high_are_zero)
            memset(gaps[column], 0, changed);
    }
    uint8_t *values = take_bytes(&input, changed * width);
    uint8_t *old = take_bytes(&input, count * width);
    uint8_t *plain = memory(count * width), *taken = memory(changed * width);
    const int is_refused = ciuic_sparse_join(&changes, values, old, plain);
    if (ciuic_sparse_take(&changes, old, taken) != is_refused)
        fail("sparse_take and sparse_join do not refuse the same gaps");
    if (!is_refused) {
        if (changed > count)
            fail("more elements have changed than there are");
        compare(width, plain, old, count);
    }
    for (size_t column = 0; column < changes.gap_bytes; column++)
        free(gaps[column]);
    free(values);
    free(old);
    free(plain);
    free(taken);
}
