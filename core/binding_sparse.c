/* The part of the binding that serves ciuic/codec/sparse_delta.py: see binding.c. */
#include "binding.h"

#include <stdint.h>

#include "sparse.h"

/* Whether elements can have this width. */
static int is_width(Py_ssize_t width)
{
    return width == 1 || width == 2 || width == 4 || width == 8;
}

/* Whether elements of this width begin at byte `skip` of two buffers of the same length, and can be
 * counted in 32 bits. Writes their number. */
static int elements_of(const Py_buffer *one, const Py_buffer *other, Py_ssize_t width,
                       Py_ssize_t skip, size_t *count)
{
    if (!is_width(width) || one->len != other->len || skip < 0 || skip > one->len ||
        (one->len - skip) / width > (Py_ssize_t)UINT32_MAX)
        return 0;
    *count = (size_t)((one->len - skip) / width);
    return 1;
}

/* sparse_count(targets, width, plain, old, skip) -> int: see ciuic_sparse_count.
 *
 * plain and old are equally long, and their elements begin at byte `skip`.
 */
PyObject *core_sparse_count(PyObject *self, PyObject *arguments)
{
    Py_buffer plain, old;
    Py_ssize_t width, skip;
    size_t count, changed;
    unsigned targets;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iny*y*n", &targets, &width, &plain, &old, &skip))
        return NULL;
    if (elements_of(&plain, &old, width, skip, &count)) {
        Py_BEGIN_ALLOW_THREADS;
        changed = ciuic_sparse_count(targets, (size_t)width, (const uint8_t *)plain.buf + skip,
                                     (const uint8_t *)old.buf + skip, count);
        Py_END_ALLOW_THREADS;
        done = PyLong_FromSize_t(changed);
    } else
        refused("the elements do not fit their buffers");
    PyBuffer_Release(&old);
    PyBuffer_Release(&plain);
    return done;
}

/* Splits buffers that are held; returns the number of columns, or NULL with an error set. */
static PyObject *split_held(Py_ssize_t width, const Py_buffer *plain, const Py_buffer *old,
                            Py_ssize_t skip, const Py_buffer *gaps, const Py_buffer *now,
                            const Py_buffer *before)
{
    const size_t changed = (size_t)gaps->len / CIUIC_GAP_BYTES;
    size_t count;
    unsigned used;

    if (!elements_of(plain, old, width, skip, &count) || gaps->len % CIUIC_GAP_BYTES ||
        now->len / width != (Py_ssize_t)changed || now->len % width || before->len != now->len)
        return refused("the elements do not fit their buffers");
    Py_BEGIN_ALLOW_THREADS;
    used = ciuic_sparse_split((size_t)width, (const uint8_t *)plain->buf + skip,
                              (const uint8_t *)old->buf + skip, count, changed, gaps->buf,
                              now->buf, before->buf);
    Py_END_ALLOW_THREADS;
    if (!used)
        return refused("another number of elements has changed");
    return PyLong_FromUnsignedLong(used);
}

/* sparse_split(width, plain, old, skip, gaps, now, before) -> int: see ciuic_sparse_split.
 *
 * plain, old, skip: as for sparse_count. gaps, now, before: writable, for as many elements as
 * sparse_count returned.
 */
PyObject *core_sparse_split(PyObject *self, PyObject *arguments)
{
    Py_buffer plain, old, gaps, now, before;
    Py_ssize_t width, skip;
    PyObject *done;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "ny*y*nw*w*w*", &width, &plain, &old, &skip, &gaps, &now,
                          &before))
        return NULL;
    done = split_held(width, &plain, &old, skip, &gaps, &now, &before);
    PyBuffer_Release(&before);
    PyBuffer_Release(&now);
    PyBuffer_Release(&gaps);
    PyBuffer_Release(&old);
    PyBuffer_Release(&plain);
    return done;
}

/* Holds the columns of gaps, and points to them. Returns how many it holds; the caller releases
 * them. An error is set unless the columns, and the other fields of `changes`, can be used. */
static Py_ssize_t hold_changes(PyObject *sequence, const Py_buffer *old, Py_ssize_t width,
                               Py_ssize_t skip, ciuic_changes *changes, Py_buffer *held)
{
    const Py_ssize_t columns = PySequence_Size(sequence);
    Py_ssize_t got;

    if (columns < 0)
        return 0;
    if (columns < 1 || columns > CIUIC_GAP_BYTES ||
        !elements_of(old, old, width, skip, &changes->count)) {
        refused("the elements do not fit their buffers");
        return 0;
    }
    got = hold(sequence, columns, PyBUF_SIMPLE, held);
    for (Py_ssize_t column = 0; column < got; column++) {
        if (held[column].len != held[0].len)
            refused("the columns of gaps differ in length");
        changes->gaps[column] = held[column].buf;
    }
    changes->width = (size_t)width;
    changes->gap_bytes = (size_t)columns;
    changes->changed = got ? (size_t)held[0].len : 0;
    return got;
}

/* Whether a buffer holds exactly the changed elements; sets an error if not. */
static int holds_changed(const Py_buffer *buffer, const ciuic_changes *changes)
{
    const size_t length = (size_t)buffer->len;

    if (length % changes->width == 0 && length / changes->width == changes->changed)
        return 1;
    refused("the elements do not fit their buffers");
    return 0;
}

/* sparse_take(width, gaps, old, skip, out) -> bool: see ciuic_sparse_take; False if a gap leads
 * beyond the last element.
 *
 * gaps: one to four buffers of the same length. The elements of old begin at byte `skip`. out is
 * writable.
 */
PyObject *core_sparse_take(PyObject *self, PyObject *arguments)
{
    Py_buffer old, out, held[CIUIC_GAP_BYTES];
    Py_ssize_t width, skip, got;
    ciuic_changes changes;
    PyObject *sequence, *done = NULL;
    int result;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "nOy*nw*", &width, &sequence, &old, &skip, &out))
        return NULL;
    got = hold_changes(sequence, &old, width, skip, &changes, held);
    if (!PyErr_Occurred() && holds_changed(&out, &changes)) {
        Py_BEGIN_ALLOW_THREADS;
        result = ciuic_sparse_take(&changes, (const uint8_t *)old.buf + skip, out.buf);
        Py_END_ALLOW_THREADS;
        done = PyBool_FromLong(result == 0);
    }
    release(held, got);
    PyBuffer_Release(&out);
    PyBuffer_Release(&old);
    return done;
}

/* sparse_join(width, gaps, values, old, skip, plain) -> bool: see ciuic_sparse_join; False if a gap
 * leads beyond the last element.
 *
 * gaps: as for sparse_take. plain is writable and as long as old; the elements of both begin at
 * byte `skip`.
 */
PyObject *core_sparse_join(PyObject *self, PyObject *arguments)
{
    Py_buffer values, old, plain, held[CIUIC_GAP_BYTES];
    Py_ssize_t width, skip, got;
    ciuic_changes changes;
    PyObject *sequence, *done = NULL;
    int result;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "nOy*y*nw*", &width, &sequence, &values, &old, &skip, &plain))
        return NULL;
    got = hold_changes(sequence, &old, width, skip, &changes, held);
    if (!PyErr_Occurred() && plain.len != old.len)
        refused("the elements do not fit their buffers");
    if (!PyErr_Occurred() && holds_changed(&values, &changes)) {
        Py_BEGIN_ALLOW_THREADS;
        result = ciuic_sparse_join(&changes, values.buf, (const uint8_t *)old.buf + skip,
                                   (uint8_t *)plain.buf + skip);
        Py_END_ALLOW_THREADS;
        done = PyBool_FromLong(result == 0);
    }
    release(held, got);
    PyBuffer_Release(&plain);
    PyBuffer_Release(&old);
    PyBuffer_Release(&values);
    return done;
}
