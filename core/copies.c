#include "copies.h"

#include <string.h>

#include "targets.h"

#if CIUIC_X86
#include <emmintrin.h>

enum { LINE_BYTES = 64, SHORT_BYTES = 4096 };

/* Copies bytes past the caches; out and data do not overlap. Every x86-64 has these instructions. */
static void stream(uint8_t *out, const uint8_t *data, size_t length)
{
    size_t at = -(uintptr_t)out % LINE_BYTES;

    memcpy(out, data, at);
    for (; at + LINE_BYTES <= length; at += LINE_BYTES) {
        __m128i *line = (__m128i *)(out + at);
        const __m128i *from = (const __m128i *)(data + at);
        const __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1),
                      third = _mm_loadu_si128(from + 2), fourth = _mm_loadu_si128(from + 3);
        _mm_stream_si128(line, first);
        _mm_stream_si128(line + 1, second);
        _mm_stream_si128(line + 2, third);
        _mm_stream_si128(line + 3, fourth);
    }
    memcpy(out + at, data + at, length - at);
}
#endif

/* See the header. */
void ciuic_copy_arrays(const ciuic_array *arrays, size_t count, uint8_t *out)
{
    for (size_t number = 0; number < count; number++) {
        const uint8_t *data = (const uint8_t *)(uintptr_t)arrays[number].source;
        const size_t length = (size_t)arrays[number].length;
#if CIUIC_X86
        if (length >= SHORT_BYTES) {
            stream(out + arrays[number].at, data, length);
            continue;
        }
#endif
        memcpy(out + arrays[number].at, data, length);
    }
#if CIUIC_X86
    _mm_sfence(); /* the other process may read the bytes when this returns */
#endif
}
