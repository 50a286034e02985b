/* Checks of reading small files: see drive.c. Without cachestat(2) or RWF_DONTCACHE nothing is read, and
 * only the errors are checked. */
#define _GNU_SOURCE
#include "reading.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "drive.h"

static const char NAME[] = "small";

/* Whether the file was read as it is. */
static int is_as_it_is(const ciuic_small_file *file, const uint8_t *data, size_t length, int has_xattr)
{
    static const uint8_t pair[] = "user.a\0\3\0\0\0abc"; /* little-endian, as all that run this */
    struct stat status;

    return fstatat(file->directory, NAME, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           file->length == length && memcmp(file->data, data, length) == 0 &&
           file->mode == status.st_mode && file->uid == status.st_uid && file->gid == status.st_gid &&
           file->inode == status.st_ino &&
           file->mtime_ns == status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec &&
           file->ctime_ns == status.st_ctim.tv_sec * INT64_C(1000000000) + status.st_ctim.tv_nsec &&
           (!has_xattr || (file->xattr_bytes >= sizeof pair - 1 &&
                           memmem(file->xattrs, file->xattr_bytes, pair, sizeof pair - 1)));
}

/* Reads the file and expects this errno, or ENOSYS. */
static void expect(ciuic_small_file *file, int error, const char *what)
{
    const int found = ciuic_file_read(file);

    if (found != error && found != ENOSYS)
        fail(what);
}

/* Checks what replaces a file between the walk and the read. */
static void check_replaced(ciuic_small_file *file)
{
    if (symlinkat(NAME, file->directory, "link") || mkfifoat(file->directory, "fifo", 0600) ||
        mkdirat(file->directory, "directory", 0700))
        fail("no other kinds of files can be made");
    file->name = "link";
    expect(file, ELOOP, "a symlink is followed");
    file->name = "fifo";
    expect(file, EINVAL, "a FIFO is read");
    file->name = "directory";
    expect(file, EINVAL, "a directory is read");
    file->name = "missing";
    expect(file, ENOENT, "a file that is missing is read");
    file->name = NAME;
    unlinkat(file->directory, "link", 0);
    unlinkat(file->directory, "fifo", 0);
    unlinkat(file->directory, "directory", AT_REMOVEDIR);
}

void check_reading(void)
{
    char path[4096];
    const int directory = new_directory(path, sizeof path);
    const size_t length = below(20000);
    uint8_t *data = noise(length);
    ciuic_small_file file = {.directory = directory,
                             .name = NAME,
                             .flags = (unsigned)below(4),
                             .data = memory(length + 1),
                             .room = length};
    const int fd = openat(directory, NAME, O_RDWR | O_CREAT | O_EXCL, 0600);

    if (fd < 0 || write(fd, data, length) != (ssize_t)length)
        fail("no small file can be made");
    const int has_xattr = fsetxattr(fd, "user.a", "abc", 3, 0) == 0;
    if (!(file.flags & CIUIC_READ_FROZEN))
        expect(&file, EAGAIN, "a file that is open for writing is read");
    close(fd);
    const int error = ciuic_file_read(&file);
    if (error != ENOSYS && (error || !is_as_it_is(&file, data, length, has_xattr)))
        fail("a small file is not read as it is");
    check_replaced(&file);
    if (length) {
        file.room = below(length);
        free(file.data);
        file.data = memory(file.room + 1);
        expect(&file, EFBIG, "a file that has grown is read");
    }
    if (unlinkat(directory, NAME, 0) || close(directory) || rmdir(path))
        fail("a file was left");
    free(file.data);
    free(data);
}
