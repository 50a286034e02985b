/* Dense deltas: differences of numbers of 2, 4 or 8 bytes from their last version, in classes.
 *
 * A difference is folded: its sign is in its lowest bit. The exponent of the old number decides its
 * class. Each class has a number of bits by which its differences are rotated to the left.
 * docs/format.md, "Codec 3"; ciuic/codec/dense_delta.py does the same with numpy.
 */
#ifndef CIUIC_DELTAS_H
#define CIUIC_DELTAS_H

#include <stddef.h>
#include <stdint.h>

enum { CIUIC_CLASSES_MAX = 8, CIUIC_EXPONENTS = 256 };

/* How differences are sorted. */
typedef struct {
    size_t width;       /* of an element: 2, 4 or 8 bytes */
    size_t class_count; /* 1 to CIUIC_CLASSES_MAX */
    uint8_t shifts[CIUIC_CLASSES_MAX];  /* the rotation of each class, less than 8 * width */
    uint8_t class_of[CIUIC_EXPONENTS];  /* the class of each exponent, less than class_count */
} ciuic_classes;

/* Returns 1 if the fields are as the comments above say, else 0. */
int ciuic_classes_are_sound(const ciuic_classes *classes);

/* Counts the elements of each class.
 *
 * classes: sound. old: count * width bytes. sizes: receives class_count numbers, whose sum is count.
 */
void ciuic_delta_sizes(const ciuic_classes *classes, const uint8_t *old, size_t count,
                       size_t sizes[CIUIC_CLASSES_MAX]);

/* Sorts the differences of plain from old, which have count * width bytes each.
 *
 * classes: sound. sizes: what ciuic_delta_sizes says of old.
 * out: receives count * width bytes: the differences of the first class in the order of the
 *     elements, then those of the second, and so on. Overlaps neither input.
 */
void ciuic_delta_split(unsigned targets, const ciuic_classes *classes, const uint8_t *plain,
                       const uint8_t *old, size_t count, const size_t *sizes, uint8_t *out);

/* Undoes ciuic_delta_split.
 *
 * bodies: for each class the bytes of its differences, sizes[n] * width of them.
 * plain: receives count * width bytes; overlaps no input.
 */
void ciuic_delta_join(unsigned targets, const ciuic_classes *classes, const uint8_t *const *bodies,
                      const uint8_t *old, size_t count, uint8_t *plain);

#endif
