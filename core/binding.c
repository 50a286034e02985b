/* ciuic._core: the extension. Only the files binding*.c know Python.
 *
 * Each function checks its arguments against the buffers that it was given, and releases the
 * interpreter's lock while the core works. Wrong arguments raise ValueError: they are faults of
 * ciuic, not of a store. ciuic/system/core.py has the signatures, and loads this.
 */
#include "binding.h"

#include <stdint.h>

#include "checksum.h"
#include "files.h"
#include "galois.h"
#include "parity.h"
#include "reading.h"
#include "targets.h"

/* ciuic/system/core.py refuses a core with another number: a change of a signature raises it. */
enum { INTERFACE = 12 };

/* See the header. */
PyObject *refused(const char *message)
{
    PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

/* See the header. */
Py_ssize_t hold(PyObject *sequence, Py_ssize_t count, int flags, Py_buffer *held)
{
    for (Py_ssize_t got = 0; got < count; got++) {
        PyObject *item = PySequence_GetItem(sequence, got);
        const int failed = !item || PyObject_GetBuffer(item, &held[got], flags) < 0;
        Py_XDECREF(item);
        if (failed)
            return got;
    }
    return count;
}

/* See the header. */
void release(Py_buffer *held, Py_ssize_t count)
{
    while (count > 0)
        PyBuffer_Release(&held[--count]);
}

/* targets() -> int: see targets.h. */
static PyObject *core_targets(PyObject *self, PyObject *nothing)
{
    (void)self;
    (void)nothing;
    return PyLong_FromUnsignedLong(ciuic_targets());
}

/* Adds a source to rows whose buffers are held; returns None, or NULL with an error set. */
static PyObject *add_to_rows(unsigned targets, const Py_buffer *coefficients,
                             const Py_buffer *source, const Py_buffer *held, Py_ssize_t row_count)
{
    const uint8_t *sources[1] = {source->buf};
    uint8_t *rows[CIUIC_SHARDS_MAX];

    if (coefficients->len != row_count)
        return refused("a segment does not have one coefficient for each row");
    for (Py_ssize_t row = 0; row < row_count; row++) {
        if (held[row].len != source->len)
            return refused("a segment and the rows that it is added to differ in length");
        rows[row] = held[row].buf;
    }
    Py_BEGIN_ALLOW_THREADS;
    ciuic_gf_add(targets, coefficients->buf, 1, sources, 1, rows, (size_t)row_count,
                 (size_t)source->len);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* gf_add(targets, coefficients, source, rows): see ciuic_gf_add, here with one source.
 *
 * coefficients: one for each row. rows: a sequence of at most 256 writable buffers, each as long
 * as source.
 */
static PyObject *core_gf_add(PyObject *self, PyObject *arguments)
{
    Py_buffer coefficients, source, held[CIUIC_SHARDS_MAX];
    Py_ssize_t count, got = 0;
    unsigned targets;
    PyObject *rows, *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iy*y*O", &targets, &coefficients, &source, &rows))
        return NULL;
    count = PySequence_Size(rows);
    if (count > CIUIC_SHARDS_MAX)
        refused("more rows than the field has elements");
    else if (count >= 0 && (got = hold(rows, count, PyBUF_WRITABLE, held)) == count)
        done = add_to_rows(targets, &coefficients, &source, held, count);
    release(held, got);
    PyBuffer_Release(&source);
    PyBuffer_Release(&coefficients);
    return done;
}

/* Whether the buffers of parity_add have the lengths that the shape and the data require. It checks
 * the shape first, so that no product overflows. */
static int parity_fits(const ciuic_shape *shape, const Py_buffer *matrix, const Py_buffer *data,
                       const Py_buffer *parity, const Py_buffer *sums)
{
    return ciuic_shape_is_sound(shape) &&
           (size_t)matrix->len == shape->segments * shape->rows &&
           (size_t)parity->len == shape->rows * shape->segment_bytes &&
           (size_t)sums->len == (size_t)data->len / shape->sector_bytes * sizeof(uint64_t);
}

/* parity_add(targets, shape, matrix, offset, data, parity, sums): see ciuic_parity_add.
 *
 * shape: (segments, rows, sector_bytes, segment_bytes). parity and sums are writable.
 */
static PyObject *core_parity_add(PyObject *self, PyObject *arguments)
{
    Py_buffer matrix, data, parity, sums;
    Py_ssize_t segments, rows, sector, segment;
    unsigned long long offset;
    unsigned targets;
    PyObject *done = NULL;
    int result = -1;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "I(nnnn)y*Ky*w*w*", &targets, &segments, &rows, &sector,
                          &segment, &matrix, &offset, &data, &parity, &sums))
        return NULL;
    const ciuic_shape shape = {(size_t)segments, (size_t)rows, (size_t)sector, (size_t)segment};
    if (parity_fits(&shape, &matrix, &data, &parity, &sums)) {
        Py_BEGIN_ALLOW_THREADS;
        result = ciuic_parity_add(targets, &shape, matrix.buf, offset, data.buf, (size_t)data.len,
                                  parity.buf, sums.buf);
        Py_END_ALLOW_THREADS;
    }
    if (result)
        refused("the bytes of a pack do not fit the shape of its parity");
    else
        done = Py_NewRef(Py_None);
    PyBuffer_Release(&sums);
    PyBuffer_Release(&parity);
    PyBuffer_Release(&data);
    PyBuffer_Release(&matrix);
    return done;
}

/* sector_sums(targets, data, sector_bytes, sums): see ciuic_sector_sums. sums is writable. */
static PyObject *core_sector_sums(PyObject *self, PyObject *arguments)
{
    Py_buffer data, sums;
    Py_ssize_t sector;
    unsigned targets;
    PyObject *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Iy*nw*", &targets, &data, &sector, &sums))
        return NULL;
    if (sector < CIUIC_SUMMED_BYTES_MIN || data.len / sector * 8 != sums.len)
        refused("the sectors do not fit their checksums");
    else {
        Py_BEGIN_ALLOW_THREADS;
        ciuic_sector_sums(targets, data.buf, (size_t)data.len, (size_t)sector, sums.buf);
        Py_END_ALLOW_THREADS;
        done = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&sums);
    PyBuffer_Release(&data);
    return done;
}

static PyMethodDef METHODS[] = {
    {"buffer", core_buffer, METH_VARARGS, NULL},
    {"copy", core_copy, METH_VARARGS, NULL},
    {"copy_arrays", core_copy_arrays, METH_VARARGS, NULL},
    {"delta_join", core_delta_join, METH_VARARGS, NULL},
    {"delta_sizes", core_delta_sizes, METH_VARARGS, NULL},
    {"delta_split", core_delta_split, METH_VARARGS, NULL},
    {"equal", core_equal, METH_VARARGS, NULL},
    {"files_create", core_files_create, METH_VARARGS, NULL},
    {"files_read", core_files_read, METH_VARARGS, NULL},
    {"files_rename", core_files_rename, METH_VARARGS, NULL},
    {"gf_add", core_gf_add, METH_VARARGS, NULL},
    {"names_fill", core_names_fill, METH_VARARGS, NULL},
    {"parity_add", core_parity_add, METH_VARARGS, NULL},
    {"planes_join", core_planes_join, METH_VARARGS, NULL},
    {"planes_match", core_planes_match, METH_VARARGS, NULL},
    {"planes_split", core_planes_split, METH_VARARGS, NULL},
    {"planes_tally", core_planes_tally, METH_VARARGS, NULL},
    {"sector_sums", core_sector_sums, METH_VARARGS, NULL},
    {"sparse_count", core_sparse_count, METH_VARARGS, NULL},
    {"sparse_join", core_sparse_join, METH_VARARGS, NULL},
    {"sparse_split", core_sparse_split, METH_VARARGS, NULL},
    {"sparse_take", core_sparse_take, METH_VARARGS, NULL},
    {"targets", core_targets, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Sets the module's constants. */
static int fill(PyObject *module)
{
    return PyModule_AddIntConstant(module, "interface", INTERFACE) < 0 ||
                   PyModule_AddIntConstant(module, "AVX2", CIUIC_AVX2) < 0 ||
                   PyModule_AddIntConstant(module, "FILES_MAX", CIUIC_FILES_MAX) < 0 ||
                   PyModule_AddIntConstant(module, "GFNI", CIUIC_GFNI) < 0 ||
                   PyModule_AddIntConstant(module, "NEON", CIUIC_NEON) < 0 ||
                   PyModule_AddIntConstant(module, "READ_FROZEN", CIUIC_READ_FROZEN) < 0 ||
                   PyModule_AddIntConstant(module, "READ_OWNED", CIUIC_READ_OWNED) < 0
               ? -1
               : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ciuic._core",
    .m_doc = "The compiled core. ciuic/system/core.py loads it.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&MODULE);
}
