/* What the files of the binding share. They are the only ones that include Python.h. */
#ifndef CIUIC_BINDING_H
#define CIUIC_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Sets ValueError and returns NULL. */
PyObject *refused(const char *message);

/* Holds the buffers of the first `count` items of a sequence. Returns how many it holds, with an
 * error set if these are fewer than `count`. The caller releases them. */
Py_ssize_t hold(PyObject *sequence, Py_ssize_t count, int flags, Py_buffer *held);

/* Releases what `hold` holds. */
void release(Py_buffer *held, Py_ssize_t count);

/* The functions of binding_codec.c, which has their comments. */
PyObject *core_buffer(PyObject *self, PyObject *arguments);
PyObject *core_copy(PyObject *self, PyObject *arguments);
PyObject *core_copy_arrays(PyObject *self, PyObject *arguments);
PyObject *core_equal(PyObject *self, PyObject *arguments);
PyObject *core_planes_split(PyObject *self, PyObject *arguments);
PyObject *core_planes_join(PyObject *self, PyObject *arguments);
PyObject *core_planes_match(PyObject *self, PyObject *arguments);
PyObject *core_planes_tally(PyObject *self, PyObject *arguments);
PyObject *core_delta_sizes(PyObject *self, PyObject *arguments);
PyObject *core_delta_split(PyObject *self, PyObject *arguments);
PyObject *core_delta_join(PyObject *self, PyObject *arguments);

/* The functions of binding_sparse.c. */
PyObject *core_sparse_count(PyObject *self, PyObject *arguments);
PyObject *core_sparse_split(PyObject *self, PyObject *arguments);
PyObject *core_sparse_take(PyObject *self, PyObject *arguments);
PyObject *core_sparse_join(PyObject *self, PyObject *arguments);

/* The functions of binding_files.c. */
PyObject *core_files_create(PyObject *self, PyObject *arguments);
PyObject *core_files_read(PyObject *self, PyObject *arguments);
PyObject *core_files_rename(PyObject *self, PyObject *arguments);

/* The function of binding_names.c. */
PyObject *core_names_fill(PyObject *self, PyObject *arguments);

#endif
