/* What the checks of the driver share: see drive.c. */
#ifndef CIUIC_DRIVE_H
#define CIUIC_DRIVE_H

#include "buffers.h"

size_t below(size_t limit);
uint8_t *noise(size_t length);

void check_planes(void);
void check_deltas(void);
void check_sparse(void);
void check_files(void);

#endif
