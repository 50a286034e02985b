/* Checks of new files: see drive.c. They are in a directory of their own in TMPDIR or /tmp. */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drive.h"

/* Whether the file has the content and the metadata that it was made with. */
static int is_as_made(int directory, const char *name, const ciuic_new_file *file)
{
    uint8_t *found = memory(file->length + 1);
    struct stat status;
    const int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW);
    const int is_right = fd >= 0 && fstat(fd, &status) == 0 &&
                         (status.st_mode & 07777) == file->mode && status.st_uid == file->uid &&
                         status.st_gid == file->gid &&
                         status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec ==
                             file->mtime_ns &&
                         read(fd, found, file->length + 1) == (ssize_t)file->length &&
                         memcmp(found, file->data, file->length) == 0;
    close(fd);
    free(found);
    return is_right;
}

/* See the header. */
int new_directory(char *path, size_t size)
{
    const char *above = getenv("TMPDIR");

    snprintf(path, size, "%s/ciuic-drive-XXXXXX", above ? above : "/tmp");
    const int directory = mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY) : -1;
    if (directory < 0)
        fail("no directory for files can be made");
    return directory;
}

void check_files(void)
{
    char path[4096];
    const int directory = new_directory(path, sizeof path);
    const size_t length = below(20000);
    uint8_t *data = noise(length);
    ciuic_new_file file = {.directory = directory,
                           .name = "new",
                           .data = data,
                           .length = length,
                           .mode = 0400 | (uint32_t)below(0400),
                           .uid = getuid(),
                           .gid = getgid(),
                           .mtime_ns = (int64_t)below(4000000000000000000) - 1000000000000000000};

    if (ciuic_file_create(&file) || !is_as_made(directory, "new", &file))
        fail("a file is not as it was to be made");
    if (ciuic_file_create(&file) != EEXIST || !is_as_made(directory, "new", &file))
        fail("a file that has the name does not stay");
    if (ciuic_file_rename(directory, "new", "final") || !is_as_made(directory, "final", &file))
        fail("a file does not get its name");
    if (ciuic_file_rename(directory, "new", "final") != ENOENT)
        fail("a file that is missing was renamed");
    file.gid = UINT32_MAX;
    if (ciuic_file_create(&file) != EINVAL || unlinkat(directory, "new", 0) == 0)
        fail("a file has an owner that chown cannot set");
    if (unlinkat(directory, "final", 0) || close(directory) || rmdir(path))
        fail("a file was left");
    free(data);
}
