/* The part of the binding that serves ciuic/codec: see binding.c. */
#include "binding.h"

#include <stdint.h>
#include <string.h>

#include "copies.h"
#include "deltas.h"
#include "planes.h"

/* buffer(length) -> bytearray, whose content is arbitrary: the caller overwrites all of it. */
PyObject *core_buffer(PyObject *self, PyObject *arguments)
{
    Py_ssize_t length;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "n", &length))
        return NULL;
    if (length < 0)
        return refused("a buffer has no negative length");
    return PyByteArray_FromStringAndSize(NULL, length);
}

/* equal(left, right) -> bool: whether two buffers hold the same bytes. */
PyObject *core_equal(PyObject *self, PyObject *arguments)
{
    Py_buffer left, right;
    int is_equal;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*", &left, &right))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    is_equal = left.len == right.len && !memcmp(left.buf, right.buf, (size_t)left.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&right);
    PyBuffer_Release(&left);
    return PyBool_FromLong(is_equal);
}

/* copy(out, at, data): copies data to out, which is writable, from its byte `at` on. The two do not
 * overlap. */
PyObject *core_copy(PyObject *self, PyObject *arguments)
{
    Py_buffer out, data;
    Py_ssize_t at;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*ny*", &out, &at, &data))
        return NULL;
    if (at < 0 || at > out.len || data.len > out.len - at)
        refused("the bytes do not fit the buffer");
    else {
        Py_BEGIN_ALLOW_THREADS;
        memcpy((uint8_t *)out.buf + at, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS;
        done = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return done;
}

/* Whether every array has its place in the output. */
static int arrays_fit(const ciuic_array *arrays, size_t count, const Py_buffer *out)
{
    const uint64_t size = (uint64_t)out->len;

    for (size_t number = 0; number < count; number++)
        if (arrays[number].at > size || arrays[number].length > size - arrays[number].at)
            return 0;
    return 1;
}

/* copy_arrays(out, arrays): see ciuic_copy_arrays. out is writable.
 *
 * arrays: aligned; for each, its place in out, its address and its length, 8 bytes each. The caller
 *     vouches for the addresses.
 */
PyObject *core_copy_arrays(PyObject *self, PyObject *arguments)
{
    Py_buffer out, arrays;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*y*", &out, &arrays))
        return NULL;
    const size_t count = (size_t)arrays.len / sizeof(ciuic_array);
    const int is_aligned = !count || !((uintptr_t)arrays.buf % sizeof(uint64_t));
    if ((size_t)arrays.len % sizeof(ciuic_array) || !is_aligned ||
        !arrays_fit(arrays.buf, count, &out))
        refused("the arrays do not fit the buffer");
    else {
        Py_BEGIN_ALLOW_THREADS;
        ciuic_copy_arrays(arrays.buf, count, out.buf);
        Py_END_ALLOW_THREADS;
        done = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&arrays);
    PyBuffer_Release(&out);
    return done;
}

/* Reads a plan: the width of an element, then width, is_pairs and lowest of each column, a byte
 * each. Returns 0, or -1 with an error set. */
static int read_plan(const Py_buffer *packed, ciuic_plan *plan)
{
    const uint8_t *bytes = packed->buf;

    memset(plan, 0, sizeof *plan);
    if (packed->len >= 1 && packed->len % 3 == 1 && packed->len / 3 <= CIUIC_COLUMNS_MAX) {
        plan->width = bytes[0];
        plan->column_count = (size_t)packed->len / 3;
        for (size_t number = 0; number < plan->column_count; number++) {
            const uint8_t *own = bytes + 1 + 3 * number;
            plan->columns[number] = (ciuic_column){own[0], own[1], own[2]};
        }
        if (ciuic_plan_is_sound(plan))
            return 0;
    }
    refused("columns do not form an element");
    return -1;
}

/* Whether `count` is even, and a buffer has that many elements of this width from `offset` on. */
static int elements_fit(const Py_buffer *buffer, Py_ssize_t offset, Py_ssize_t count, size_t width)
{
    return offset >= 0 && offset <= buffer->len && count >= 0 && count % 2 == 0 &&
           count <= (buffer->len - offset) / (Py_ssize_t)width;
}

/* planes_split(targets, plan, plain, skip, count, out, begin) -> int: see ciuic_planes_split.
 *
 * The elements begin at byte `skip` of plain, the columns at byte `begin` of out.
 */
PyObject *core_planes_split(PyObject *self, PyObject *arguments)
{
    Py_buffer packed, plain, out;
    Py_ssize_t skip, count, begin;
    ciuic_plan plan;
    unsigned targets, found = 0;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iy*y*nnw*n", &targets, &packed, &plain, &skip, &count, &out,
                          &begin))
        return NULL;
    if (!read_plan(&packed, &plan)) {
        if (elements_fit(&plain, skip, count, plan.width) &&
            elements_fit(&out, begin, count, plan.width)) {
            Py_BEGIN_ALLOW_THREADS;
            found = ciuic_planes_split(targets, &plan, (const uint8_t *)plain.buf + skip,
                                       (size_t)count, (uint8_t *)out.buf + begin);
            Py_END_ALLOW_THREADS;
            done = PyLong_FromUnsignedLong(found);
        } else
            refused("the elements do not fit their buffers");
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&plain);
    PyBuffer_Release(&packed);
    return done;
}

/* Points to the bodies of columns that are held; returns 0, or -1 with an error set. */
static int point_to_bodies(const ciuic_plan *plan, const Py_buffer *held, Py_ssize_t count,
                           const uint8_t **bodies)
{
    for (size_t number = 0; number < plan->column_count; number++) {
        const ciuic_column *column = &plan->columns[number];
        const Py_buffer *low = &held[2 * number], *high = low + 1;
        const Py_ssize_t wanted = column->is_pairs ? count / 2 : count * column->width;
        if (low->len != wanted || (high->len && (!column->is_pairs || high->len != wanted))) {
            refused("a column does not have the length of its elements");
            return -1;
        }
        bodies[2 * number] = low->buf;
        bodies[2 * number + 1] = high->len ? high->buf : NULL;
    }
    return 0;
}

/* Joins columns, or compares what they join to with plain. Returns 1, 0 if they differ, or -1 with
 * an error set. The elements begin at byte `skip` of plain. */
static int join_or_match(PyObject *arguments, int only_match)
{
    Py_buffer packed, plain, held[2 * CIUIC_COLUMNS_MAX];
    const uint8_t *bodies[2 * CIUIC_COLUMNS_MAX];
    Py_ssize_t count, skip, got = 0, wanted;
    ciuic_plan plan;
    unsigned targets;
    PyObject *sequence;
    int result = -1;

    if (!PyArg_ParseTuple(arguments, only_match ? "Iy*Ony*n" : "Iy*Onw*n", &targets, &packed,
                          &sequence, &count, &plain, &skip))
        return -1;
    if (!read_plan(&packed, &plan)) {
        wanted = 2 * (Py_ssize_t)plan.column_count;
        if (!elements_fit(&plain, skip, count, plan.width) ||
            PySequence_Size(sequence) != wanted) {
            if (!PyErr_Occurred())
                refused("the elements do not fit their buffers");
        } else if ((got = hold(sequence, wanted, PyBUF_SIMPLE, held)) == wanted &&
                   !point_to_bodies(&plan, held, count, bodies)) {
            uint8_t *elements = (uint8_t *)plain.buf + skip;
            Py_BEGIN_ALLOW_THREADS;
            result = 1;
            if (only_match)
                result = ciuic_planes_match(targets, &plan, bodies, (size_t)count, elements);
            else
                ciuic_planes_join(targets, &plan, bodies, (size_t)count, elements);
            Py_END_ALLOW_THREADS;
        }
    }
    release(held, got);
    PyBuffer_Release(&plain);
    PyBuffer_Release(&packed);
    return result;
}

/* planes_join(targets, plan, bodies, count, plain, skip): see ciuic_planes_join.
 *
 * bodies: two buffers for each column; the second is empty where the column has none. The elements
 * begin at byte `skip` of plain, which is writable.
 */
PyObject *core_planes_join(PyObject *self, PyObject *arguments)
{
    (void)self;
    if (join_or_match(arguments, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* planes_match(targets, plan, bodies, count, plain, skip) -> bool: see ciuic_planes_match. The
 * arguments are those of planes_join; plain is only read. */
PyObject *core_planes_match(PyObject *self, PyObject *arguments)
{
    const int result = join_or_match(arguments, 1);

    (void)self;
    return result < 0 ? NULL : PyBool_FromLong(result);
}

/* Returns the spreads of all bytes of an element, each as (bits, near, lowest). */
static PyObject *spreads_tuple(const ciuic_spread *spreads, size_t count)
{
    PyObject *found = PyTuple_New((Py_ssize_t)count);

    for (size_t number = 0; found && number < count; number++) {
        const ciuic_spread *own = &spreads[number];
        PyObject *item = Py_BuildValue("(KKK)", (unsigned long long)own->bits,
                                       (unsigned long long)own->near,
                                       (unsigned long long)own->lowest);
        if (!item || PyTuple_SetItem(found, (Py_ssize_t)number, item) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}

/* planes_tally(width, sample, skip) -> tuple: see ciuic_planes_tally. The elements begin at byte
 * `skip` of sample; bytes after the last whole element are left out. */
PyObject *core_planes_tally(PyObject *self, PyObject *arguments)
{
    Py_buffer sample;
    Py_ssize_t width, skip, count;
    ciuic_spread spreads[CIUIC_COLUMNS_MAX];
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "ny*n", &width, &sample, &skip))
        return NULL;
    if ((width != 2 && width != 4 && width != 8) || skip < 0 || skip > sample.len ||
        (uint64_t)(count = (sample.len - skip) / width) > UINT32_MAX)
        refused("the elements do not fit their sample");
    else {
        Py_BEGIN_ALLOW_THREADS;
        ciuic_planes_tally((size_t)width, (const uint8_t *)sample.buf + skip, (size_t)count,
                           spreads);
        Py_END_ALLOW_THREADS;
        done = spreads_tuple(spreads, (size_t)width);
    }
    PyBuffer_Release(&sample);
    return done;
}

/* Reads classes: the width of an element, the number of classes, CIUIC_CLASSES_MAX shifts, and the
 * class of each exponent, a byte each. Returns 0, or -1 with an error set. */
static int read_classes(const Py_buffer *packed, ciuic_classes *classes)
{
    const uint8_t *bytes = packed->buf;

    if (packed->len == 2 + CIUIC_CLASSES_MAX + CIUIC_EXPONENTS) {
        classes->width = bytes[0];
        classes->class_count = bytes[1];
        memcpy(classes->shifts, bytes + 2, CIUIC_CLASSES_MAX);
        memcpy(classes->class_of, bytes + 2 + CIUIC_CLASSES_MAX, CIUIC_EXPONENTS);
        if (ciuic_classes_are_sound(classes))
            return 0;
    }
    refused("classes of differences are impossible");
    return -1;
}

/* The number of elements of a buffer from byte `skip` on, or -1 with an error set. */
static Py_ssize_t elements_after(const Py_buffer *buffer, Py_ssize_t skip, size_t width)
{
    if (skip >= 0 && skip <= buffer->len)
        return (buffer->len - skip) / (Py_ssize_t)width;
    refused("the elements do not fit their buffers");
    return -1;
}

/* Returns the sizes of all classes as a tuple. */
static PyObject *sizes_tuple(const size_t *sizes, size_t count)
{
    PyObject *found = PyTuple_New((Py_ssize_t)count);

    for (size_t number = 0; found && number < count; number++) {
        PyObject *size = PyLong_FromSize_t(sizes[number]);
        if (!size || PyTuple_SetItem(found, (Py_ssize_t)number, size) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
}

/* delta_sizes(classes, old, skip) -> tuple: see ciuic_delta_sizes. The elements of old begin at its
 * byte `skip`. */
PyObject *core_delta_sizes(PyObject *self, PyObject *arguments)
{
    Py_buffer packed, old;
    Py_ssize_t skip, count;
    size_t sizes[CIUIC_CLASSES_MAX];
    ciuic_classes classes;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*n", &packed, &old, &skip))
        return NULL;
    if (!read_classes(&packed, &classes) &&
        (count = elements_after(&old, skip, classes.width)) >= 0) {
        Py_BEGIN_ALLOW_THREADS;
        ciuic_delta_sizes(&classes, (const uint8_t *)old.buf + skip, (size_t)count, sizes);
        Py_END_ALLOW_THREADS;
        done = sizes_tuple(sizes, classes.class_count);
    }
    PyBuffer_Release(&old);
    PyBuffer_Release(&packed);
    return done;
}

/* delta_split(targets, classes, plain, old, skip, out) -> tuple: see ciuic_delta_split.
 *
 * plain and old are equally long, and their elements begin at byte `skip`; out is as long as all
 * elements. Returns what delta_sizes returns.
 */
PyObject *core_delta_split(PyObject *self, PyObject *arguments)
{
    Py_buffer packed, plain, old, out;
    Py_ssize_t skip, count;
    size_t sizes[CIUIC_CLASSES_MAX];
    ciuic_classes classes;
    unsigned targets;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iy*y*y*nw*", &targets, &packed, &plain, &old, &skip, &out))
        return NULL;
    if (!read_classes(&packed, &classes) &&
        (count = elements_after(&old, skip, classes.width)) >= 0) {
        if (plain.len == old.len && out.len == count * (Py_ssize_t)classes.width) {
            const uint8_t *before = (const uint8_t *)old.buf + skip;
            Py_BEGIN_ALLOW_THREADS;
            ciuic_delta_sizes(&classes, before, (size_t)count, sizes);
            ciuic_delta_split(targets, &classes, (const uint8_t *)plain.buf + skip, before,
                              (size_t)count, sizes, out.buf);
            Py_END_ALLOW_THREADS;
            done = sizes_tuple(sizes, classes.class_count);
        } else
            refused("the elements do not fit their buffers");
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&old);
    PyBuffer_Release(&plain);
    PyBuffer_Release(&packed);
    return done;
}

/* Joins classes whose buffers are held; returns None, or NULL with an error set. It counts the sizes
 * of the classes itself, so that ciuic_delta_join reads no byte past a buffer. */
static PyObject *join_classes(unsigned targets, const ciuic_classes *classes, const Py_buffer *held,
                              const uint8_t *old, Py_ssize_t count, uint8_t *plain)
{
    const uint8_t *bodies[CIUIC_CLASSES_MAX];
    size_t sizes[CIUIC_CLASSES_MAX];

    Py_BEGIN_ALLOW_THREADS;
    ciuic_delta_sizes(classes, old, (size_t)count, sizes);
    Py_END_ALLOW_THREADS;
    for (size_t number = 0; number < classes->class_count; number++) {
        if ((size_t)held[number].len != sizes[number] * classes->width)
            return refused("a class does not have the length of its elements");
        bodies[number] = held[number].buf;
    }
    Py_BEGIN_ALLOW_THREADS;
    ciuic_delta_join(targets, classes, bodies, old, (size_t)count, plain);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* delta_join(targets, classes, bodies, old, skip, plain): see ciuic_delta_join.
 *
 * bodies: a buffer for each class. plain is writable and as long as old; the elements of both begin
 * at byte `skip`.
 */
PyObject *core_delta_join(PyObject *self, PyObject *arguments)
{
    Py_buffer packed, old, plain, held[CIUIC_CLASSES_MAX];
    Py_ssize_t skip, count, got = 0;
    ciuic_classes classes;
    unsigned targets;
    PyObject *sequence, *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iy*Oy*nw*", &targets, &packed, &sequence, &old, &skip,
                          &plain))
        return NULL;
    if (!read_classes(&packed, &classes) &&
        (count = elements_after(&old, skip, classes.width)) >= 0) {
        const Py_ssize_t wanted = (Py_ssize_t)classes.class_count;
        if (plain.len != old.len || PySequence_Size(sequence) != wanted) {
            if (!PyErr_Occurred())
                refused("the elements do not fit their buffers");
        } else if ((got = hold(sequence, wanted, PyBUF_SIMPLE, held)) == wanted)
            done = join_classes(targets, &classes, held, (const uint8_t *)old.buf + skip, count,
                                (uint8_t *)plain.buf + skip);
    }
    release(held, got);
    PyBuffer_Release(&plain);
    PyBuffer_Release(&old);
    PyBuffer_Release(&packed);
    return done;
}
