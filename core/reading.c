/* See the header. */
#define _GNU_SOURCE /* F_SETLEASE, F_SETSIG, O_NOATIME, syscall */
#define _FILE_OFFSET_BITS 64
#include "reading.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { NS = 1000000000 };

/* From the kernel's headers, which may be older here than the kernel is. */
enum { DONTCACHE = 0x80, CACHESTAT = 451 };

/* Opens the file; returns -1 with errno set if that fails. */
static int open_small(const ciuic_small_file *file)
{
    /* O_NONBLOCK: a FIFO that replaced the file must not block the snapshot. */
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

    if (file->flags & CIUIC_READ_OWNED) {
        const int fd = openat(file->directory, file->name, flags | O_NOATIME);
        /* Root needs CAP_FOWNER for O_NOATIME, and may be able to read the file without it. */
        if (fd >= 0 || errno != EPERM)
            return fd;
    }
    return openat(file->directory, file->name, flags);
}

/* Keeps writers out until the file is closed. Returns 1, or 0 if the kernel gives no lease on such a
 * file, or -1 if a program has it open for writing. */
static int hold_lease(int fd)
{
    /* By default the kernel sends SIGIO, which kills a process that does not handle it. */
    if (fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_RDLCK) == 0)
        return 1;
    return errno == EAGAIN ? -1 : 0;
}

/* Reads as pread does, on a file system that does not know DONTCACHE: drops the pages of a file with
 * none cached, and leaves a file with some cached to Python, which looks at each page. */
static ssize_t read_and_drop(int fd, const ciuic_small_file *file, size_t size)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page;
    const uint64_t range[2] = {0, pages * page};
    uint64_t cached[5] = {pages}; /* the number of cached pages, and four others */

    if (size && syscall(CACHESTAT, fd, range, cached, 0) < 0) {
        errno = errno == ENOSYS ? ENOSYS : EBUSY; /* EPERM: a file of another user */
        return -1;
    }
    if (cached[0] != pages && cached[0] != 0) {
        errno = EBUSY;
        return -1;
    }
    const ssize_t got = pread(fd, file->data, size + 1, 0);
    const int error = errno;
    if (size && cached[0] == 0)
        posix_fadvise(fd, 0, (off_t)range[1], POSIX_FADV_DONTNEED);
    errno = error;
    return got;
}

/* Reads one byte more than the size, so that a file that has grown is noticed. Returns how many bytes
 * were read, or -1 with errno set. */
static ssize_t read_whole(int fd, const ciuic_small_file *file, size_t size)
{
    const struct iovec part = {file->data, size + 1};
    const ssize_t got = syscall(SYS_preadv2, fd, &part, 1L, 0L, 0L, DONTCACHE);

    if (got >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS))
        return got;
    return read_and_drop(fd, file, size);
}

/* Whether an error means that there are no attributes, or none that this user may read. */
static int is_no_xattr(int error)
{
    return error == ENOTSUP || error == ENODATA || error == EPERM || error == EACCES;
}

/* Adds an attribute to those of the file; returns 0 or an errno. */
static int read_xattr(int fd, const char *name, ciuic_small_file *file)
{
    const size_t head = strlen(name) + 1 + sizeof(uint32_t), at = file->xattr_bytes;

    if (head >= CIUIC_XATTR_BYTES - at)
        return ERANGE; /* fgetxattr takes a room of zero bytes for a question */
    uint8_t *value = file->xattrs + at + head;
    const ssize_t got = fgetxattr(fd, name, value, CIUIC_XATTR_BYTES - at - head);
    if (got < 0)
        return is_no_xattr(errno) ? 0 : errno;
    const uint32_t length = (uint32_t)got;
    memcpy(file->xattrs + at, name, head - sizeof length);
    memcpy(value - sizeof length, &length, sizeof length);
    file->xattr_bytes = at + head + length;
    return 0;
}

/* Reads all attributes; returns 0 or an errno, ERANGE if they are too long. */
static int read_xattrs(int fd, ciuic_small_file *file)
{
    char names[CIUIC_XATTR_BYTES + 1];
    const ssize_t length = flistxattr(fd, names, CIUIC_XATTR_BYTES);
    int error = 0;

    file->xattr_bytes = 0;
    if (length < 0)
        return is_no_xattr(errno) ? 0 : errno;
    names[length] = 0; /* a file system in user space may forget it */
    for (ssize_t at = 0; at < length && !error; at += (ssize_t)strlen(names + at) + 1)
        error = read_xattr(fd, names + at, file);
    return error;
}

static int is_same_time(const struct timespec *one, const struct timespec *other)
{
    return one->tv_sec == other->tv_sec && one->tv_nsec == other->tv_nsec;
}

/* Whether no program wrote between two statuses. Renaming and linking move ctime alone, so a ctime
 * that moved counts unless a lease kept writers out. */
static int is_unwritten(const struct stat *before, const struct stat *after, int is_leased)
{
    return before->st_size == after->st_size && before->st_ino == after->st_ino &&
           is_same_time(&before->st_mtim, &after->st_mtim) &&
           (is_leased || is_same_time(&before->st_ctim, &after->st_ctim));
}

/* Takes a time; returns 0, or EOVERFLOW if it is beyond what 64 bits of nanoseconds can hold. */
static int take_time(const struct timespec *time, int64_t *ns)
{
    const int64_t limit = INT64_MAX / NS - 1;

    if (time->tv_sec > limit || time->tv_sec < -limit)
        return EOVERFLOW;
    *ns = (int64_t)time->tv_sec * NS + time->tv_nsec;
    return 0;
}

/* Takes the status of the file; returns 0 or an errno. */
static int take_status(const struct stat *status, ciuic_small_file *file)
{
    file->mode = status->st_mode;
    file->uid = status->st_uid;
    file->gid = status->st_gid;
    file->inode = status->st_ino;
    return take_time(&status->st_mtim, &file->mtime_ns) ||
                   take_time(&status->st_ctim, &file->ctime_ns)
               ? EOVERFLOW
               : 0;
}

/* Reads the open file; returns 0 or an errno. */
static int read_open(int fd, ciuic_small_file *file)
{
    const int lease = file->flags & CIUIC_READ_FROZEN ? 0 : hold_lease(fd);
    struct stat before, after;

    if (lease < 0)
        return EAGAIN;
    if (fstat(fd, &before) < 0)
        return errno;
    if (!S_ISREG(before.st_mode))
        return EINVAL;
    if ((uint64_t)before.st_size > file->room)
        return EFBIG;
    const ssize_t got = read_whole(fd, file, (size_t)before.st_size);
    if (got < 0 || fstat(fd, &after) < 0)
        return errno;
    if (got != before.st_size || !is_unwritten(&before, &after, lease))
        return EAGAIN;
    file->length = (size_t)got;
    const int error = take_status(&before, file);
    return error ? error : read_xattrs(fd, file);
}

/* See the header. */
int ciuic_file_read(ciuic_small_file *file)
{
    const int fd = open_small(file);

    if (fd < 0)
        return errno;
    const int error = read_open(fd, file);
    close(fd); /* the lease ends with it; a file that was only read loses nothing if this fails */
    return error;
}
