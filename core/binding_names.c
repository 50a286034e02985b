/* The function of ciuic._core that lists a mounted directory: see binding.c, ciuic/mount/fuse.py.
 *
 * From Python, each call of libfuse takes longer than what libfuse does in it.
 */
#include "binding.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* libfuse's fuse_fill_dir_t: returns 1 if its buffer is full. */
typedef int fill_directory(void *buffer, const char *name, const struct stat *status, off_t offset,
                           int flags);

/* FUSE_FILL_DIR_PLUS, the block of stat, what st_blocks counts, and libfuse's unknown inode. */
enum { PLUS = 2, BLOCK_BYTES = 4096, SECTOR_BYTES = 512 };
static const ino_t UNKNOWN_INODE = 0xFFFFFFFF;

/* The fields of ciuic.model.Entry that are read as numbers. */
enum { MODE, UID, GID, MTIME, CTIME, SIZE, LEVEL, LINK_DEVICE, DEVICE, FIELDS };
static const char *const FIELD_NAMES[FIELDS] = {
    "mode", "uid", "gid", "mtime_ns", "ctime_ns", "size_bytes", "level", "link_dev", "rdev"};

/* Reads the numeric fields of an entry; returns -1 with an error set. */
static int read_fields(PyObject *entry, PyObject *const *names, long long *fields)
{
    for (int field = 0; field < FIELDS; field++) {
        PyObject *value = PyObject_GetAttr(entry, names[field]);
        if (!value)
            return -1;
        /* Only whether it is zero counts; a device number fills 64 bits, without a sign. */
        fields[field] = field == LINK_DEVICE ? PyObject_IsTrue(value) : PyLong_AsLongLong(value);
        Py_DECREF(value);
        if (fields[field] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Splits a time into seconds and nanoseconds, which are never negative. */
static struct timespec time_of(long long time_ns)
{
    const long long billion = 1000000000, rest = (time_ns % billion + billion) % billion;
    return (struct timespec){.tv_sec = (time_t)((time_ns - rest) / billion), .tv_nsec = (long)rest};
}

/* Sets all attributes of a name; content_bytes is the length of a symlink's target. */
static void set_status(struct stat *status, const long long *fields, Py_ssize_t content_bytes)
{
    const mode_t mode = status->st_mode;

    status->st_nlink = 1;
    status->st_uid = (uid_t)fields[UID];
    status->st_gid = (gid_t)fields[GID];
    status->st_size = S_ISLNK(mode) ? (off_t)content_bytes : (off_t)fields[SIZE];
    status->st_blksize = BLOCK_BYTES;
    if (S_ISREG(mode))
        status->st_blocks = (status->st_size / BLOCK_BYTES + !!(status->st_size % BLOCK_BYTES)) *
                            (BLOCK_BYTES / SECTOR_BYTES);
    if (fields[DEVICE])
        status->st_rdev = makedev((unsigned)(fields[DEVICE] >> 32), (unsigned)fields[DEVICE]);
    /* No snapshot records when a file was read: as after a restore, that is unknown. */
    status->st_mtim = status->st_atim = time_of(fields[MTIME]);
    status->st_ctim = time_of(fields[CTIME]);
}

/* Gives libfuse one entry; returns what it returns, or -1 with an error set. */
static int give(fill_directory *fill, void *buffer, PyObject *entry, PyObject *const *names,
                uint64_t inode, long long offset, int plus)
{
    long long fields[FIELDS];
    struct stat status;
    int full = -1;
    PyObject *name = PyObject_GetAttrString(entry, "name");
    PyObject *content = name ? PyObject_GetAttrString(entry, "content") : NULL;

    if (content && PyBytes_Check(name) && PyBytes_Check(content) &&
        read_fields(entry, names, fields) == 0) {
        memset(&status, 0, sizeof status);
        status.st_mode = (mode_t)fields[MODE];
        status.st_ino = inode ? (ino_t)inode : UNKNOWN_INODE;
        /* Others need a tree or a recipe to be read: the kernel looks them up if a program asks. */
        plus = plus && inode &&
               (S_ISDIR(status.st_mode) || !(fields[LEVEL] || fields[LINK_DEVICE]));
        if (plus)
            set_status(&status, fields, PyBytes_Size(content));
        full = fill(buffer, PyBytes_AsString(name), &status, (off_t)offset, plus ? PLUS : 0) != 0;
    } else if (!PyErr_Occurred())
        refused("an entry has a name or a content that is not bytes");
    Py_XDECREF(content);
    Py_XDECREF(name);
    return full;
}

/* names_fill(fill, buffer, entries, inodes, begin, offset, plus) -> how many libfuse has taken.
 *
 * fill: the address of libfuse's function. buffer: its first argument. entries: a list of
 * ciuic.model.Entry; those from begin on are given. inodes: eight bytes for each entry;
 * 0: unknown, and without attributes. offset: that of the first entry. plus: give attributes.
 */
PyObject *core_names_fill(PyObject *self, PyObject *arguments)
{
    PyObject *entries, *names[FIELDS] = {NULL}, *done = NULL;
    Py_buffer inodes;
    Py_ssize_t begin, at, count;
    unsigned long long fill, buffer;
    long long offset;
    int plus, full = 0;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "KKO!y*nLp", &fill, &buffer, &PyList_Type, &entries, &inodes,
                          &begin, &offset, &plus))
        return NULL;
    count = PyList_Size(entries);
    if (begin < 0 || begin > count || inodes.len / (Py_ssize_t)sizeof(uint64_t) != count || !fill) {
        PyBuffer_Release(&inodes);
        return refused("the entries and their inodes differ in number");
    }
    for (int field = 0; field < FIELDS && full == 0; field++)
        full = (names[field] = PyUnicode_InternFromString(FIELD_NAMES[field])) ? 0 : -1;
    for (at = begin; at < count && at < PyList_Size(entries) && full == 0; at += full == 0) {
        PyObject *entry = Py_NewRef(PyList_GetItem(entries, at));
        uint64_t inode;
        memcpy(&inode, (const uint8_t *)inodes.buf + at * sizeof inode, sizeof inode);
        full = give((fill_directory *)(uintptr_t)fill, (void *)(uintptr_t)buffer, entry, names,
                    inode, offset + at, plus);
        Py_DECREF(entry);
    }
    if (full >= 0)
        done = PyLong_FromSsize_t(at - begin);
    for (int field = 0; field < FIELDS; field++)
        Py_XDECREF(names[field]);
    PyBuffer_Release(&inodes);
    return done;
}
