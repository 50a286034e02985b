/* See the header. */
#define _GNU_SOURCE /* O_NOFOLLOW, O_CLOEXEC, fchown, futimens beside -std=c11 */
#define _FILE_OFFSET_BITS 64
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h> /* renameat */
#include <sys/stat.h>
#include <unistd.h>

enum { NS = 1000000000 };

/* An ID that chown takes to mean "do not change this". */
static const uint32_t UNCHANGED = UINT32_MAX;

/* Writes the content at the beginning of an empty file; returns 0 or an errno. */
static int write_content(int fd, const ciuic_new_file *file)
{
    for (size_t done = 0; done < file->length;) {
        const ssize_t written =
            pwrite(fd, file->data + done, file->length - done, (off_t)done);
        if (written <= 0)
            return written < 0 ? errno : EIO;
        done += (size_t)written;
    }
    return 0;
}

/* Sets owner, mode and time of an open file; returns 0 or an errno. */
static int set_metadata(int fd, const ciuic_new_file *file)
{
    const int64_t below = file->mtime_ns % NS < 0;
    const struct timespec time = {.tv_sec = (time_t)(file->mtime_ns / NS - below),
                                  .tv_nsec = (long)(file->mtime_ns % NS + below * NS)};
    const struct timespec times[2] = {time, time};
    struct stat status;

    if (fstat(fd, &status) < 0)
        return errno;
    if ((status.st_uid != file->uid || status.st_gid != file->gid) &&
        fchown(fd, file->uid, file->gid) < 0)
        return errno;
    return fchmod(fd, file->mode) < 0 || futimens(fd, times) < 0 ? errno : 0;
}

/* See the header. */
int ciuic_file_create(const ciuic_new_file *file)
{
    int error, fd;

    if (file->uid == UNCHANGED || file->gid == UNCHANGED)
        return EINVAL;
    fd = openat(file->directory, file->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                0600);
    if (fd < 0)
        return errno;
    error = write_content(fd, file);
    if (!error)
        error = set_metadata(fd, file);
    /* After EINTR, Linux has closed the file. */
    if (close(fd) < 0 && errno != EINTR && !error)
        error = errno;
    if (error)
        unlinkat(file->directory, file->name, 0);
    return error;
}

/* See the header. */
int ciuic_file_rename(int directory, const char *from, const char *to)
{
    return renameat(directory, from, directory, to) < 0 ? errno : 0;
}
