/* Splits and joins elements: what is joined must be what was split, with every variant. */
#include "planes.h"

#include <stdlib.h>
#include <string.h>

#include "drive.h"

/* Returns a random plan whose columns form an element. */
static ciuic_plan random_plan(void)
{
    ciuic_plan plan = {.width = (size_t)2 << below(3)};
    size_t left = plan.width;

    while (left) {
        ciuic_column *column = &plan.columns[plan.column_count++];
        size_t width = (size_t)1 << below(3);
        while (left > 2 && width > left - 2)
            width /= 2;
        column->width = left <= 2 ? 1 : (uint8_t)width;
        column->is_pairs = column->width == 1 && below(2);
        column->lowest = (uint8_t)below(256);
        left -= column->width;
    }
    return plan;
}

/* Copies the columns of `split` to memory of their own, joins them, and compares. */
static void join_again(unsigned mask, const ciuic_plan *plan, const uint8_t *split, unsigned high,
                       const uint8_t *plain, size_t count)
{
    const uint8_t *bodies[2 * CIUIC_COLUMNS_MAX];
    uint8_t *owned[2 * CIUIC_COLUMNS_MAX] = {NULL}, *again = memory(count * plan->width);

    for (size_t number = 0; number < plan->column_count; number++) {
        const ciuic_column *column = &plan->columns[number];
        const size_t whole = count * column->width, part = column->is_pairs ? whole / 2 : whole;
        owned[2 * number] = memory(part);
        memcpy(owned[2 * number], split, part);
        if (high >> number & 1) {
            owned[2 * number + 1] = memory(part);
            memcpy(owned[2 * number + 1], split + part, part);
        }
        split += whole;
        bodies[2 * number] = owned[2 * number];
        bodies[2 * number + 1] = owned[2 * number + 1];
    }
    ciuic_planes_join(mask, plan, bodies, count, again);
    if (memcmp(again, plain, count * plan->width))
        fail("planes_join does not undo planes_split");
    if (!ciuic_planes_match(mask, plan, bodies, count, plain))
        fail("planes_match does not know what planes_join writes");
    if (count) {
        const size_t place = below(count * plan->width);
        again[place] ^= (uint8_t)(1u << below(8));
        if (ciuic_planes_match(mask, plan, bodies, count, again))
            fail("planes_match misses a bit");
    }
    for (size_t at = 0; at < 2 * plan->column_count; at++)
        free(owned[at]);
    free(again);
}

/* Checks a tally against counting: of each byte of an element, with windows that are tried one by
 * one. Its entropy is compared with Python's. */
static void check_tally(const uint8_t *plain, size_t count, size_t width)
{
    ciuic_spread spreads[CIUIC_COLUMNS_MAX];

    ciuic_planes_tally(width, plain, count, spreads);
    for (size_t byte = 0; byte < width; byte++) {
        uint64_t counts[256] = {0}, most = 0, own = 0;
        for (size_t at = 0; at < count; at++) {
            const uint8_t *top = plain + at * width + width - 2;
            const unsigned word = top[0] | (unsigned)top[1] << 8;
            const unsigned value = byte + 2 < width ? plain[at * width + byte]
                                   : byte + 2 == width ? (word & 0x7f) | (word >> 8 & 0x80)
                                                       : word >> 7 & 0xff;
            counts[value]++;
        }
        for (unsigned lowest = 0; lowest < 256; lowest++) {
            uint64_t near = 0;
            for (unsigned at = 0; at < 16; at++)
                near += counts[(lowest + at) % 256];
            most = near > most ? near : most;
            own = lowest == spreads[byte].lowest ? near : own;
        }
        if (spreads[byte].near != most || own != most || spreads[byte].bits >> 20 > 8 * count)
            fail("planes_tally does not count what is there");
    }
}

void check_planes(void)
{
    const ciuic_plan plan = random_plan();
    const size_t count = 2 * below(below(8) ? 151 : 3000), length = count * plan.width;
    uint8_t *plain = noise(length), *first = memory(length), *split = memory(length);
    const unsigned high = ciuic_planes_split(0, &plan, plain, count, first);
    unsigned mask = 0;

    if (!ciuic_plan_is_sound(&plan))
        fail("a plan that forms an element is refused");
    do {
        if (ciuic_planes_split(mask, &plan, plain, count, split) != high ||
            memcmp(split, first, length))
            fail("the columns depend on the vector instructions");
        join_again(mask, &plan, split, high, plain, count);
    } while ((mask = next_targets(mask)));
    check_tally(plain, count, plan.width);
    free(plain);
    free(first);
    free(split);
}
