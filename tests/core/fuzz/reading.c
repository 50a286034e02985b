/* Small files with any content, names, attributes and times: read as they are, or not at all. The names
 * are in a directory of the process in TMPDIR or /tmp. */
#define _GNU_SOURCE
#include "reading.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "buffers.h"
#include "fuzz.h"

enum { LENGTH_MAX = 9000, XATTRS_MAX = 4, VALUE_MAX = 400 };

static const char NAME[] = "file";

/* Gives the file up to four attributes, which a file system may refuse; returns their bytes in the
 * form of the core. */
static size_t set_xattrs(int fd, fuzz_input *input)
{
    size_t bytes = 0;

    for (size_t left = take_below(input, XATTRS_MAX + 1); left; left--) {
        char name[32];
        const size_t length = take_below(input, VALUE_MAX);
        uint8_t *value = take_bytes(input, length);

        snprintf(name, sizeof name, "user.%zu%c", left, 'a' + (int)take_below(input, 26));
        if (fsetxattr(fd, name, value, length, 0) == 0)
            bytes += strlen(name) + 1 + sizeof(uint32_t) + length;
        free(value);
    }
    return bytes;
}

/* Checks that the attributes are those of the file, and end where they say. */
static void check_xattrs(const ciuic_small_file *file, int fd, size_t least)
{
    size_t at = 0;

    if (file->xattr_bytes < least)
        fail("an attribute was not read");
    while (at < file->xattr_bytes) {
        uint8_t value[CIUIC_XATTR_BYTES];
        const char *name = (const char *)file->xattrs + at;
        uint32_t length;

        at += strnlen(name, file->xattr_bytes - at) + 1;
        if (at + sizeof length > file->xattr_bytes)
            fail("an attribute is cut");
        memcpy(&length, file->xattrs + at, sizeof length);
        at += sizeof length;
        if (length > file->xattr_bytes - at || fgetxattr(fd, name, value, sizeof value) != length ||
            memcmp(value, file->xattrs + at, length))
            fail("an attribute has another value");
        at += length;
    }
}

/* Checks a file that was read. */
static void check_read(const ciuic_small_file *file, int fd, const uint8_t *data, size_t length,
                       size_t xattr_bytes)
{
    struct stat status;

    if (fstat(fd, &status) || file->length != length || memcmp(file->data, data, length) ||
        file->mode != status.st_mode || file->inode != status.st_ino)
        fail("a file was read as it is not");
    check_xattrs(file, fd, xattr_bytes);
}

void fuzz_reading(const uint8_t *data, size_t length)
{
    char path[4096];
    const char *above = getenv("TMPDIR");
    fuzz_input input = {data, length};
    const int first_free = dup(STDERR_FILENO);
    const size_t size = take_below(&input, LENGTH_MAX), room = take_below(&input, LENGTH_MAX);
    const int fits = take_below(&input, 8) != 0, stays_open = take_below(&input, 4) == 0;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {.tv_sec = (time_t)take_word(&input),
                                       .tv_nsec = (long)(take_word(&input) % 1000000000)}};

    snprintf(path, sizeof path, "%s/ciuic-fuzz-XXXXXX", above ? above : "/tmp");
    const int directory = mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY) : -1;
    int fd = openat(directory, NAME, O_RDWR | O_CREAT | O_EXCL, 0600);
    ciuic_small_file file = {.directory = take_below(&input, 16) ? directory : -1,
                             .name = take_below(&input, 16) ? NAME : "missing",
                             .flags = (unsigned)take_below(&input, 4),
                             .room = fits ? size : room};
    const size_t xattr_bytes = fd < 0 ? 0 : set_xattrs(fd, &input);
    uint8_t *content = take_bytes(&input, size);

    if (fd < 0 || write(fd, content, size) != (ssize_t)size)
        fail("no file can be made");
    futimens(fd, times);
    if (!stays_open && (close(fd) || (fd = openat(directory, NAME, O_RDONLY)) < 0))
        fail("no file can be opened");
    file.data = memory(file.room + 1);
    if (ciuic_file_read(&file) == 0) {
        if (stays_open && !(file.flags & CIUIC_READ_FROZEN))
            fail("a file that is open for writing was read");
        check_read(&file, fd, content, size, xattr_bytes);
    }
    free(file.data);
    free(content);
    if (close(fd) || unlinkat(directory, NAME, 0) || close(directory) || rmdir(path))
        fail("a file was left");
    if (close(first_free) || dup(STDERR_FILENO) != first_free || close(first_free))
        fail("a file was left open");
}
