/* The functions of ciuic._core that create and rename files: see binding.c and files.h. */
#include "binding.h"

#include "files.h"

/* Reads the fields of a file and holds its content; returns -1 with an error set, holding nothing. */
static int parse_file(PyObject *item, ciuic_new_file *file, Py_buffer *held)
{
    unsigned mode, uid, gid;
    long long mtime_ns;

    if (!PyTuple_Check(item)) {
        refused("a file is not a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iyy*IIIL", &file->directory, &file->name, held, &mode, &uid, &gid,
                          &mtime_ns))
        return -1;
    file->data = held->buf;
    file->length = (size_t)held->len;
    file->mode = mode & 07777;
    file->uid = uid;
    file->gid = gid;
    file->mtime_ns = mtime_ns;
    return 0;
}

/* Returns a list of numbers, or NULL with an error set. */
static PyObject *listed(const int *numbers, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *number = PyLong_FromLong(numbers[at]);
        if (!number || PyList_SetItem(list, at, number) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Returns the items as a tuple, which no other thread can change, or NULL with an error set. */
static PyObject *few(PyObject *items)
{
    PyObject *held = PySequence_Tuple(items);
    if (held && PyTuple_Size(held) > CIUIC_FILES_MAX) {
        Py_CLEAR(held);
        refused("too many files for one call");
    }
    return held;
}

/* files_create(files) -> list of errno: see ciuic_file_create.
 *
 * files: at most CIUIC_FILES_MAX tuples (directory, name, data, mode, uid, gid, mtime_ns).
 */
PyObject *core_files_create(PyObject *self, PyObject *arguments)
{
    ciuic_new_file files[CIUIC_FILES_MAX];
    Py_buffer held[CIUIC_FILES_MAX];
    int errors[CIUIC_FILES_MAX];
    PyObject *items, *done = NULL;
    Py_ssize_t count, got = 0;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "O", &items) || !(items = few(items)))
        return NULL;
    count = PyTuple_Size(items);
    while (got < count && parse_file(PyTuple_GetItem(items, got), &files[got], &held[got]) == 0)
        got++;
    if (got == count) {
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t at = 0; at < count; at++)
            errors[at] = ciuic_file_create(&files[at]);
        Py_END_ALLOW_THREADS;
        done = listed(errors, count);
    }
    release(held, got);
    Py_DECREF(items);
    return done;
}

/* files_rename(names) -> (renamed, errno): see ciuic_file_rename; it ends at the first failure.
 *
 * names: at most CIUIC_FILES_MAX tuples (directory, from, to).
 */
PyObject *core_files_rename(PyObject *self, PyObject *arguments)
{
    struct {
        int directory;
        const char *from, *to;
    } names[CIUIC_FILES_MAX];
    PyObject *items;
    Py_ssize_t count, done = 0;
    int error = 0;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "O", &items) || !(items = few(items)))
        return NULL;
    count = PyTuple_Size(items);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *item = PyTuple_GetItem(items, at);
        if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "iyy", &names[at].directory,
                                                      &names[at].from, &names[at].to)) {
            Py_DECREF(items);
            return PyErr_Occurred() ? NULL : refused("a name is not a tuple");
        }
    }
    Py_BEGIN_ALLOW_THREADS;
    while (done < count && !error) {
        error = ciuic_file_rename(names[done].directory, names[done].from, names[done].to);
        done += !error;
    }
    Py_END_ALLOW_THREADS;
    Py_DECREF(items);
    return Py_BuildValue("ni", done, error);
}
