/* What the checks of the driver share: see drive.c. */
#ifndef CIUIC_DRIVE_H
#define CIUIC_DRIVE_H

#include "buffers.h"

size_t below(size_t limit);
uint8_t *noise(size_t length);

/* Returns an open new directory in TMPDIR or /tmp; its path is in `path`. */
int new_directory(char *path, size_t size);

void check_planes(void);
void check_deltas(void);
void check_sparse(void);
void check_files(void);
void check_reading(void);

#endif
