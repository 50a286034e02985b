/* Small files of the source: what a snapshot asks of the kernel to read one, without a return to Python
 * between two system calls. ciuic/source/small_file.py does the same one call at a time, and knows
 * what to do with the files that are left to it.
 */
#ifndef CIUIC_READING_H
#define CIUIC_READING_H

#include <stddef.h>
#include <stdint.h>

enum {
    CIUIC_READ_OWNED = 1,  /* this user may leave the access time unchanged */
    CIUIC_READ_FROZEN = 2, /* no program can write to the file, so no lease is needed */
    CIUIC_XATTR_BYTES = 512,
};

/* A file that ciuic_file_read reads. */
typedef struct {
    int directory;    /* the open directory that it is in */
    const char *name; /* its name there, without a slash; it ends with a zero byte */
    unsigned flags;   /* CIUIC_READ_* */
    uint8_t *data;    /* its content goes here: room for `room` + 1 bytes */
    size_t room;      /* a longer file is not read */
    /* What was read. */
    size_t length;
    uint32_t mode, uid, gid;
    int64_t mtime_ns, ctime_ns; /* since 1970; may be negative */
    uint64_t inode;
    /* The extended attributes that this user may read, in the kernel's order. Each is its name with a
     * zero byte, the length of its value as a uint32_t of this machine, unaligned, and its value. */
    size_t xattr_bytes;
    uint8_t xattrs[CIUIC_XATTR_BYTES];
} ciuic_small_file;

/* Reads a regular file with its status and extended attributes, all of one moment.
 *
 * While it reads, a lease keeps writers out, where the kernel gives one. It follows no symlink at the
 * name, does not wait at a FIFO, and leaves the page cache as it was. At most `room` + 1 bytes are
 * written to `data`.
 *
 * Returns 0 only if no program was writing to the file: one that has it open for writing, or changed
 * it meanwhile, gives EAGAIN. ENOSYS means that this kernel cannot tell which pages are cached, so no
 * file can be read. Any other errno concerns this file. After an error the rest of the struct means
 * nothing.
 */
int ciuic_file_read(ciuic_small_file *file);

#endif
