#include "targets.h"

/* See the header. __builtin_cpu_supports also asks whether the kernel saves the wide registers. */
unsigned ciuic_targets(void)
{
    unsigned found = 0;
#if CIUIC_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        found |= CIUIC_AVX2;
    if (__builtin_cpu_supports("gfni") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw"))
        found |= CIUIC_GFNI;
#endif
#if CIUIC_ARM
    found |= CIUIC_NEON; /* every processor of this kind has it */
#endif
    return found;
}
