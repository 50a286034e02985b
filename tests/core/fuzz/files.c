/* New files with any names: none replaces, follows or leaves behind anything. The names are in a
 * directory of the process in TMPDIR or /tmp, which also has a file, a symlink and a directory. */
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buffers.h"
#include "fuzz.h"

/* FULL: the most bytes that a file can get on a disk that is full. */
enum { NAME_MAX_HERE = 300, FULL = 1000 };

static const char KEPT[] = "kept", LINK[] = "link", DIRECTORY[] = "d", RENAMED[] = "renamed";
static char path[4096];

static void remove_all(int directory)
{
    unlinkat(directory, KEPT, 0);
    unlinkat(directory, LINK, 0);
    unlinkat(directory, DIRECTORY, AT_REMOVEDIR);
}

/* Returns the open directory of a case, with what a new file must leave alone. */
static int make_all(void)
{
    const char *above = getenv("TMPDIR");
    int directory, file;

    snprintf(path, sizeof path, "%s/ciuic-fuzz-XXXXXX", above ? above : "/tmp");
    directory = mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY) : -1;
    file = openat(directory, KEPT, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, KEPT, sizeof KEPT) != sizeof KEPT || close(file) ||
        symlinkat("missing", directory, LINK) || mkdirat(directory, DIRECTORY, 0700))
        fail("no directory for files can be made");
    return directory;
}

/* Whether a file has exactly this content. */
static int has(int directory, const char *name, const uint8_t *data, size_t length)
{
    uint8_t *found = memory(length + 1);
    const int file = openat(directory, name, O_RDONLY | O_NOFOLLOW);
    const int is_so = file >= 0 && read(file, found, length + 1) == (ssize_t)length &&
                      memcmp(found, data, length) == 0;

    close(file);
    free(found);
    return is_so;
}

/* A name as a tree can have it: any bytes but zeros and slashes. Every fourth one is taken. */
static char *take_name(fuzz_input *input)
{
    static const char *const taken[] = {"kept", "link", "d", ".", "..", ""};
    const size_t which = take_below(input, 24);

    if (which < sizeof taken / sizeof *taken)
        return strcpy((char *)memory(strlen(taken[which]) + 1), taken[which]);
    const size_t length = 1 + take_below(input, NAME_MAX_HERE);
    uint8_t *bytes = take_bytes(input, length + 1);
    for (size_t at = 0; at < length; at++)
        if (!bytes[at] || bytes[at] == '/')
            bytes[at] = '_';
    bytes[length] = 0;
    return (char *)bytes;
}

/* Creates a file and checks it; renames it, which may fail, and removes it. */
static void create(const ciuic_new_file *file)
{
    struct stat before, status;
    const int was_there = fstatat(file->directory, file->name, &before, AT_SYMLINK_NOFOLLOW) == 0;
    const int error = ciuic_file_create(file);
    const int is_there = fstatat(file->directory, file->name, &status, AT_SYMLINK_NOFOLLOW) == 0;

    if (error && is_there != was_there)
        fail("a file that could not be made is left, or one that was there is gone");
    if (!error && was_there)
        fail("a new file has taken the place of an old one");
    if (!error && ((status.st_mode & 07777) != file->mode || status.st_uid != file->uid ||
                   status.st_gid != file->gid || !S_ISREG(status.st_mode)))
        fail("a file has another mode or owner");
    if (error)
        return;
    if (getuid() == 0 && !has(file->directory, file->name, file->data, file->length))
        fail("a file has another content");
    if (ciuic_file_rename(file->directory, file->name, RENAMED) ||
        unlinkat(file->directory, RENAMED, 0))
        fail("a file does not get its name");
}

/* As create, where a write past FULL bytes fails. */
static void create_on_full_disk(const ciuic_new_file *file)
{
    struct rlimit before, full;

    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &before))
        fail("there is no limit of file sizes");
    full = before;
    full.rlim_cur = FULL;
    setrlimit(RLIMIT_FSIZE, &full);
    create(file);
    setrlimit(RLIMIT_FSIZE, &before);
}

void fuzz_files(const uint8_t *data, size_t length)
{
    fuzz_input input = {data, length};
    const int first_free = dup(STDERR_FILENO), directory = make_all();
    const int is_full = take_below(&input, 4) == 3, is_owner_raw = take_below(&input, 4) == 3;
    ciuic_new_file file = {.directory = take_below(&input, 16) != 15 ? directory : -1,
                           .length = take_below(&input, 3000),
                           .mode = take_word(&input) & 07777,
                           .uid = is_owner_raw ? (uint32_t)take_word(&input) : getuid(),
                           .gid = is_owner_raw ? (uint32_t)take_word(&input) : getgid(),
                           .mtime_ns = (int64_t)take_word(&input)};
    char *name = take_name(&input), *other = take_name(&input);
    uint8_t *content = take_bytes(&input, file.length);

    file.name = name;
    file.data = content;
    if (is_full)
        create_on_full_disk(&file);
    else
        create(&file);
    const int error = ciuic_file_rename(directory, name, other);
    if (!error && strcmp(name, KEPT) == 0)
        ciuic_file_rename(directory, other, name);
    else if (error && !has(directory, KEPT, (const uint8_t *)KEPT, sizeof KEPT))
        fail("a file of another name is not as it was");
    unlinkat(directory, other, 0);
    unlinkat(directory, other, AT_REMOVEDIR);
    remove_all(directory);
    if (close(directory) || rmdir(path))
        fail("a file was left");
    if (close(first_free) || dup(STDERR_FILENO) != first_free || close(first_free))
        fail("a file was left open");
    free(name);
    free(other);
    free(content);
}
