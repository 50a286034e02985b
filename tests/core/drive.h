/* What the checks of the driver share: see drive.c. */
#ifndef CIUIC_DRIVE_H
#define CIUIC_DRIVE_H

#include <stddef.h>
#include <stdint.h>

size_t below(size_t limit);
uint8_t *memory(size_t length);
uint8_t *noise(size_t length);
void fail(const char *what);
unsigned next_targets(unsigned mask);

void check_planes(void);
void check_deltas(void);
void check_sparse(void);
void check_files(void);

#endif
