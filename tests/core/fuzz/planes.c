/* Columns of any bytes are joined, split again, and compared. */
#include "planes.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "fuzz.h"

/* A plan whose columns form an element. */
static ciuic_plan take_plan(fuzz_input *input)
{
    ciuic_plan plan = {.width = (size_t)2 << take_below(input, 3)};

    for (size_t left = plan.width, width; left; left -= width) {
        ciuic_column *column = &plan.columns[plan.column_count++];
        width = (size_t)1 << take_below(input, 3);
        while (left > 2 && width > left - 2)
            width /= 2;
        width = left <= 2 ? 1 : width;
        column->width = (uint8_t)width;
        column->is_pairs = width == 1 && take_below(input, 2);
        column->lowest = take_byte(input);
    }
    return plan;
}

/* Sets one field of a plan to any byte. */
static void spoil(fuzz_input *input, ciuic_plan *plan)
{
    ciuic_column *column = &plan->columns[take_below(input, CIUIC_COLUMNS_MAX)];
    const size_t field = take_below(input, 4);
    const uint8_t value = take_edge(input);

    if (field == 0)
        plan->width = value;
    else if (field == 1)
        plan->column_count = value;
    else if (field == 2)
        column->width = value;
    else
        column->is_pairs = value;
}

/* The columns of a case, in memory of their own as a reader of a payload has them, and in a row as
 * ciuic_planes_split writes them. */
typedef struct {
    uint8_t *owned[2 * CIUIC_COLUMNS_MAX];
    uint8_t *row;
    unsigned high; /* bit n: column n is of pairs, and a high pair is not 0 */
} columns;

static columns take_columns(fuzz_input *input, const ciuic_plan *plan, size_t count)
{
    columns found = {.row = memory(count * plan->width)};
    uint8_t *end = found.row;

    for (size_t number = 0; number < plan->column_count; number++) {
        const ciuic_column *column = &plan->columns[number];
        const size_t length = column->is_pairs ? count / 2 : count * column->width;
        found.owned[2 * number] = take_bytes(input, length);
        memcpy(end, found.owned[2 * number], length);
        end += length;
        if (!column->is_pairs)
            continue;
        if (take_below(input, 2))
            found.owned[2 * number + 1] = take_bytes(input, length);
        for (size_t at = 0; at < length; at++) {
            *end = found.owned[2 * number + 1] ? found.owned[2 * number + 1][at] : 0;
            found.high |= *end++ ? 1u << number : 0;
        }
    }
    return found;
}

/* Joins with one variant; the result must match itself and split into the columns again. */
static void join(unsigned mask, const ciuic_plan *plan, const columns *from, size_t count,
                 const uint8_t *expected)
{
    const size_t length = count * plan->width;
    uint8_t *plain = memory(length), *row = memory(length);
    const uint8_t *const *bodies = (const uint8_t *const *)from->owned;

    ciuic_planes_join(mask, plan, bodies, count, plain);
    if (memcmp(plain, expected, length))
        fail("planes_join depends on the vector instructions");
    if (!ciuic_planes_match(mask, plan, bodies, count, plain))
        fail("planes_match does not know what planes_join writes");
    if (ciuic_planes_split(mask, plan, plain, count, row) != from->high ||
        memcmp(row, from->row, length))
        fail("planes_split does not undo planes_join");
    if (length) {
        plain[length / 2] ^= 0x10;
        if (ciuic_planes_match(mask, plan, bodies, count, plain))
            fail("planes_match misses a bit");
    }
    free(plain);
    free(row);
}

void fuzz_planes(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const int is_spoiled = take_below(&input, 4) == 3;
    ciuic_plan plan = take_plan(&input);
    ciuic_spread spreads[CIUIC_COLUMNS_MAX];
    unsigned mask = 0;

    if (is_spoiled)
        spoil(&input, &plan);
    if (!ciuic_plan_is_sound(&plan)) {
        if (!is_spoiled)
            fail("a plan that forms an element is refused");
        return;
    }
    const size_t count = 2 * take_below(&input, 1300);
    columns from = take_columns(&input, &plan, count);
    uint8_t *plain = memory(count * plan.width);
    ciuic_planes_join(0, &plan, (const uint8_t *const *)from.owned, count, plain);
    do {
        join(mask, &plan, &from, count, plain);
    } while ((mask = next_targets(mask)));
    ciuic_planes_tally(plan.width, plain, count, spreads);
    for (size_t place = 0; place < plan.width; place++)
        if (spreads[place].near > count || spreads[place].lowest > 255)
            fail("planes_tally counts what is not there");
    for (size_t number = 0; number < 2 * CIUIC_COLUMNS_MAX; number++)
        free(from.owned[number]);
    free(from.row);
    free(plain);
}
