/* See the header. */
#define _DEFAULT_SOURCE
#include "buffers.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "targets.h"

uint8_t *memory(size_t length)
{
    uint8_t *made = malloc(length ? length : 1);
    if (!made)
        abort();
    return made;
}

uint8_t *fenced(size_t length)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (length / page + 1) * page;
    uint8_t *begin = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);
    if (begin == MAP_FAILED || mprotect(begin + whole, page, PROT_NONE))
        abort();
    return begin + whole - length;
}

void unfence(uint8_t *memory_of, size_t length)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (length / page + 1) * page;
    munmap(memory_of + length - whole, whole + page);
}

void fail(const char *what)
{
    fprintf(stderr, "core: %s\n", what);
    abort();
}

unsigned next_targets(unsigned mask)
{
    const unsigned all = ciuic_targets();
    return (mask - all) & all;
}
