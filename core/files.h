/* New files and their names: what a restore of many small files asks of the kernel, without a return
 * to Python between two system calls. ciuic/restore/place/temporary_files.py and
 * ciuic/system/durable.py do the same one file at a time.
 */
#ifndef CIUIC_FILES_H
#define CIUIC_FILES_H

#include <stddef.h>
#include <stdint.h>

/* The most files of one call of the binding. */
enum { CIUIC_FILES_MAX = 64 };

/* A file that ciuic_file_create makes. */
typedef struct {
    int directory;       /* the open directory that gets it */
    const char *name;    /* its name there, without a slash; it ends with a zero byte */
    const uint8_t *data; /* its content, `length` bytes */
    size_t length;
    uint32_t mode; /* the 12 permission bits */
    uint32_t uid, gid;
    int64_t mtime_ns; /* since 1970; may be negative */
} ciuic_new_file;

/* Creates a file with its content, owner, mode and time of modification, in this order: a change of
 * the owner clears bits of the mode, and every step but the last may change the time.
 *
 * It replaces no file, follows no symlink at the name, and sets no extended attributes. The file is
 * not durable.
 *
 * Returns 0, or the errno of the step that failed: EINVAL for an owner that chown would take for "as
 * it is". After an error it removes its file again, but never one that had the name before.
 */
int ciuic_file_create(const ciuic_new_file *file);

/* Renames a file within an open directory, and replaces the file that has the name. The names have no
 * slash and end with a zero byte. Returns 0, or the errno of the failure. */
int ciuic_file_rename(int directory, const char *from, const char *to);

#endif
