/* Sorts and joins differences: what is joined must be what was sorted, with every variant. */
#include "deltas.h"

#include <stdlib.h>
#include <string.h>

#include "drive.h"

/* Returns random classes: exponents from a few cuts on, or any class for each exponent. */
static ciuic_classes random_classes(void)
{
    ciuic_classes classes = {.width = (size_t)2 << below(3),
                             .class_count = below(3) ? 1 + below(CIUIC_CLASSES_MAX) : 1};

    for (size_t number = 0; number < classes.class_count; number++)
        classes.shifts[number] = (uint8_t)below(8 * classes.width);
    for (size_t exponent = 0; exponent < CIUIC_EXPONENTS; exponent++)
        classes.class_of[exponent] = (uint8_t)below(classes.class_count);
    return classes;
}

/* Copies the classes of `sorted` to memory of their own, joins them, and compares. */
static void join_again(unsigned mask, const ciuic_classes *classes, const uint8_t *sorted,
                       const size_t *sizes, const uint8_t *old, const uint8_t *plain, size_t count)
{
    const uint8_t *bodies[CIUIC_CLASSES_MAX];
    uint8_t *owned[CIUIC_CLASSES_MAX], *again = memory(count * classes->width);

    for (size_t number = 0; number < classes->class_count; number++) {
        const size_t length = sizes[number] * classes->width;
        bodies[number] = owned[number] = memory(length);
        memcpy(owned[number], sorted, length);
        sorted += length;
    }
    ciuic_delta_join(mask, classes, bodies, old, count, again);
    if (memcmp(again, plain, count * classes->width))
        fail("delta_join does not undo delta_split");
    for (size_t number = 0; number < classes->class_count; number++)
        free(owned[number]);
    free(again);
}

void check_deltas(void)
{
    const ciuic_classes classes = random_classes();
    const size_t count = below(below(8) ? 301 : 3000), length = count * classes.width;
    uint8_t *plain = noise(length), *old = noise(length);
    uint8_t *first = memory(length), *sorted = memory(length);
    size_t sizes[CIUIC_CLASSES_MAX], sum = 0;
    unsigned mask = 0;

    if (!ciuic_classes_are_sound(&classes))
        fail("possible classes are refused");
    ciuic_delta_sizes(&classes, old, count, sizes);
    for (size_t number = 0; number < classes.class_count; number++)
        sum += sizes[number];
    if (sum != count)
        fail("the classes do not have all elements");
    ciuic_delta_split(0, &classes, plain, old, count, sizes, first);
    do {
        ciuic_delta_split(mask, &classes, plain, old, count, sizes, sorted);
        if (memcmp(sorted, first, length))
            fail("the differences depend on the vector instructions");
        join_again(mask, &classes, sorted, sizes, old, plain, count);
    } while ((mask = next_targets(mask)));
    free(plain);
    free(old);
    free(first);
    free(sorted);
}
