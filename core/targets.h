/* The vector instructions that a function may use.
 *
 * Every function that has faster variants takes a mask of these bits and picks the fastest variant
 * that the mask allows. The core keeps no global state: Python asks ciuic_targets() once and passes
 * the mask on, and a test passes a smaller one. All variants compute the same bytes.
 */
#ifndef CIUIC_TARGETS_H
#define CIUIC_TARGETS_H

enum {
    CIUIC_AVX2 = 1,
    CIUIC_GFNI = 2, /* GFNI with AVX-512 (F, BW) */
    CIUIC_NEON = 4
};

#if defined(__x86_64__)
#define CIUIC_X86 1
#else
#define CIUIC_X86 0
#endif

#if defined(__aarch64__)
#define CIUIC_ARM 1
#else
#define CIUIC_ARM 0
#endif

/* Returns the bits of this processor that its operating system supports. */
unsigned ciuic_targets(void);

#endif
