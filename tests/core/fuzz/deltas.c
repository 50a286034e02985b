/* Differences of any bytes are joined, sorted again, and compared. */
#include "deltas.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "fuzz.h"

enum { STEPS = 16 };

/* Possible classes. */
static ciuic_classes take_classes(fuzz_input *input)
{
    ciuic_classes classes = {.width = (size_t)2 << take_below(input, 3),
                             .class_count = 1 + take_below(input, CIUIC_CLASSES_MAX)};
    uint8_t of_step[STEPS];

    for (size_t number = 0; number < CIUIC_CLASSES_MAX; number++)
        classes.shifts[number] = (uint8_t)take_below(input, 8 * classes.width);
    for (size_t step = 0; step < STEPS; step++)
        of_step[step] = (uint8_t)take_below(input, classes.class_count);
    for (size_t exponent = 0; exponent < CIUIC_EXPONENTS; exponent++)
        classes.class_of[exponent] = of_step[exponent % STEPS];
    return classes;
}

/* Sets one field of classes to any byte. */
static void spoil(fuzz_input *input, ciuic_classes *classes)
{
    const size_t field = take_below(input, 4);
    const uint8_t value = take_edge(input);

    if (field == 0)
        classes->width = value;
    else if (field == 1)
        classes->class_count = value;
    else if (field == 2)
        classes->shifts[take_below(input, CIUIC_CLASSES_MAX)] = value;
    else
        classes->class_of[take_below(input, CIUIC_EXPONENTS)] = value;
}

/* Joins with one variant; the result must sort into the same differences again. */
static void join(unsigned mask, const ciuic_classes *classes, const uint8_t *const *bodies,
                 const size_t *sizes, const uint8_t *row, const uint8_t *old, size_t count,
                 const uint8_t *expected)
{
    const size_t length = count * classes->width;
    uint8_t *plain = memory(length), *again = memory(length);

    ciuic_delta_join(mask, classes, bodies, old, count, plain);
    if (memcmp(plain, expected, length))
        fail("delta_join depends on the vector instructions");
    ciuic_delta_split(mask, classes, plain, old, count, sizes, again);
    if (memcmp(again, row, length))
        fail("delta_split does not undo delta_join");
    free(plain);
    free(again);
}

void fuzz_deltas(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const int is_spoiled = take_below(&input, 4) == 3;
    ciuic_classes classes = take_classes(&input);
    size_t sizes[CIUIC_CLASSES_MAX], sum = 0;
    uint8_t *bodies[CIUIC_CLASSES_MAX];
    unsigned mask = 0;

    if (is_spoiled)
        spoil(&input, &classes);
    if (!ciuic_classes_are_sound(&classes)) {
        if (!is_spoiled)
            fail("possible classes are refused");
        return;
    }
    const size_t count = take_below(&input, 1300), bytes = count * classes.width;
    uint8_t *old = take_bytes(&input, bytes), *row = memory(bytes), *plain = memory(bytes);
    ciuic_delta_sizes(&classes, old, count, sizes);
    for (size_t number = 0; number < classes.class_count; number++) {
        bodies[number] = take_bytes(&input, sizes[number] * classes.width);
        memcpy(row + sum * classes.width, bodies[number], sizes[number] * classes.width);
        sum += sizes[number];
    }
    if (sum != count)
        fail("the classes do not have all elements");
    ciuic_delta_join(0, &classes, (const uint8_t *const *)bodies, old, count, plain);
    do {
        join(mask, &classes, (const uint8_t *const *)bodies, sizes, row, old, count, plain);
    } while ((mask = next_targets(mask)));
    for (size_t number = 0; number < classes.class_count; number++)
        free(bodies[number]);
    free(old);
    free(row);
    free(plain);
}
