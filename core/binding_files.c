/* The functions of ciuic._core that read, create and rename files: see binding.c, reading.h and files.h. */
#include "binding.h"

#include <string.h>

#include "files.h"
#include "reading.h"

/* Contents begin at multiples of this in the buffer: a copy from the page cache to a place a few bytes
 * past the start of a page takes longer. */
enum { READ_ALIGNMENT = 4096 };

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

/* Returns the attributes of a file that was read as a tuple of pairs, or NULL with an error set. */
static PyObject *xattrs_of(const ciuic_small_file *file)
{
    const uint8_t *at = file->xattrs, *end = at + file->xattr_bytes;
    PyObject *found = PyList_New(0), *tuple = NULL;

    while (found && at < end) {
        const char *name = (const char *)at;
        uint32_t length;
        at += strlen(name) + 1;
        memcpy(&length, at, sizeof length);
        at += sizeof length;
        PyObject *pair = Py_BuildValue("(yy#)", name, at, (Py_ssize_t)length);
        if (!pair || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
        at += length;
    }
    if (found)
        tuple = PyList_AsTuple(found);
    Py_XDECREF(found);
    return tuple;
}

/* Returns what was read of a file, or its errno; NULL with an error set. */
static PyObject *as_read(const ciuic_small_file *file, int error)
{
    if (error)
        return PyLong_FromLong(error);
    PyObject *xattrs = xattrs_of(file);
    return xattrs ? Py_BuildValue("(y#NIIILLK)", file->data, (Py_ssize_t)file->length, xattrs,
                                  (unsigned)file->mode, (unsigned)file->uid, (unsigned)file->gid,
                                  (long long)file->mtime_ns, (long long)file->ctime_ns,
                                  (unsigned long long)file->inode)
                  : NULL;
}

/* Reads the fields of a file to read, and gives it its part of the buffer from `at` on. Returns where
 * the next part may begin, or -1 with an error set. */
static Py_ssize_t parse_wanted(PyObject *item, ciuic_small_file *file, const Py_buffer *buffer,
                               Py_ssize_t at)
{
    Py_ssize_t room;

    if (!PyTuple_Check(item)) {
        refused("a file is not a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iynI", &file->directory, &file->name, &room, &file->flags))
        return -1;
    at = (at + READ_ALIGNMENT - 1) / READ_ALIGNMENT * READ_ALIGNMENT;
    if (room < 0 || at >= buffer->len || room >= buffer->len - at) {
        refused("the buffer is too short for the files");
        return -1;
    }
    file->data = (uint8_t *)buffer->buf + at;
    file->room = (size_t)room;
    return at + room + 1;
}

/* Reads files whose items and buffer are held; returns a list, or NULL with an error set. */
static PyObject *read_files(PyObject *items, const Py_buffer *buffer)
{
    ciuic_small_file files[CIUIC_FILES_MAX];
    int errors[CIUIC_FILES_MAX];
    const Py_ssize_t count = PyTuple_Size(items);
    Py_ssize_t at = 0;

    for (Py_ssize_t file = 0; file < count && at >= 0; file++)
        at = parse_wanted(PyTuple_GetItem(items, file), &files[file], buffer, at);
    if (at < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t file = 0; file < count; file++)
        errors[file] = ciuic_file_read(&files[file]);
    Py_END_ALLOW_THREADS;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t file = 0; list && file < count; file++) {
        PyObject *found = as_read(&files[file], errors[file]);
        if (!found || PyList_SetItem(list, file, found) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* files_read(buffer, files) -> list: see ciuic_file_read.
 *
 * buffer: writable, with room for the files, each in pages of its own: room + 1 bytes. files: at most
 * CIUIC_FILES_MAX tuples (directory, name, room, flags). The list has an errno for a file that was not
 * read, and else (data, xattrs, mode, uid, gid, mtime_ns, ctime_ns, inode).
 */
PyObject *core_files_read(PyObject *self, PyObject *arguments)
{
    Py_buffer buffer;
    PyObject *items, *done = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*O", &buffer, &items))
        return NULL;
    items = few(items);
    if (items)
        done = read_files(items, &buffer);
    Py_XDECREF(items);
    PyBuffer_Release(&buffer);
    return done;
}
