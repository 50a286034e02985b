#include "parity.h"

#include "checksum.h"
#include "galois.h"

/* Bytes of each row that are computed together, so that they stay in the processor's cache. */
enum { TOGETHER = 32 * 1024 };

/* One call of ciuic_parity_add. */
typedef struct {
    unsigned targets;
    const ciuic_shape *shape;
    const uint8_t *coefficients;
    uint64_t offset;
    const uint8_t *data;
    size_t length;
    uint8_t *parity;
    uint8_t *sums;
} work;

/* The range [low, high) of `count` adjacent segments: sources[0] has that of segment `first`. */
typedef struct {
    size_t low, high, first, count;
    const uint8_t *sources[CIUIC_SOURCES_MAX];
} group;

int ciuic_shape_is_sound(const ciuic_shape *shape)
{
    size_t whole;
    return shape->segments >= 1 && shape->rows >= 1 && shape->segments <= CIUIC_SHARDS_MAX &&
           shape->rows <= CIUIC_SHARDS_MAX && shape->segments + shape->rows <= CIUIC_SHARDS_MAX &&
           shape->sector_bytes >= CIUIC_SUMMED_BYTES_MIN &&
           shape->segment_bytes >= shape->sector_bytes &&
           shape->segment_bytes % shape->sector_bytes == 0 &&
           !__builtin_mul_overflow(shape->segment_bytes, (size_t)CIUIC_SHARDS_MAX, &whole);
}

/* Adds a group to the parity, and computes the checksums of the whole sectors in it. */
static void add_group(const work *own, const group *found)
{
    const ciuic_shape *shape = own->shape;
    uint8_t *rows[CIUIC_SHARDS_MAX];
    const size_t length = found->high - found->low;

    if (!found->count)
        return;
    for (size_t row = 0; row < shape->rows; row++)
        rows[row] = own->parity + row * shape->segment_bytes + found->low;
    ciuic_gf_add(own->targets, own->coefficients + found->first, shape->segments, found->sources,
                 found->count, rows, shape->rows, length);
    for (size_t source = 0; source < found->count; source++) {
        const uint8_t *place = found->sources[source];
        const size_t sector = (size_t)(place - own->data) / shape->sector_bytes;
        ciuic_sector_sums(own->targets, place, length, shape->sector_bytes,
                          own->sums + sector * sizeof(uint64_t));
    }
}

/* Takes in what the data has of the bytes [start, end) of every segment. start and end are multiples
 * of sector_bytes. */
static void add_range(const work *own, size_t start, size_t end)
{
    const size_t size = own->shape->segment_bytes;
    group found = {0};

    for (size_t done = 0; done < own->length;) {
        const uint64_t at = own->offset + done;
        const size_t segment = (size_t)(at / size), begin = (size_t)(at % size);
        const size_t part = size - begin < own->length - done ? size - begin : own->length - done;
        const size_t low = begin > start ? begin : start;
        const size_t high = begin + part < end ? begin + part : end;
        if (low < high) {
            if (found.count == CIUIC_SOURCES_MAX || found.low != low ||
                found.high != high || segment != found.first + found.count) {
                add_group(own, &found);
                found.low = low;
                found.high = high;
                found.first = segment;
                found.count = 0;
            }
            found.sources[found.count++] = own->data + done + (low - begin);
        }
        done += part;
    }
    add_group(own, &found);
}

int ciuic_parity_add(unsigned targets, const ciuic_shape *shape, const uint8_t *coefficients,
                     uint64_t offset, const uint8_t *data, size_t length, uint8_t *parity,
                     uint8_t *sums)
{
    const work own = {targets, shape, coefficients, offset, data, length, parity, sums};

    if (!ciuic_shape_is_sound(shape) || offset % shape->sector_bytes)
        return -1;
    const uint64_t whole = (uint64_t)shape->segments * shape->segment_bytes;
    if (offset > whole || length > whole - offset)
        return -1;
    const size_t sectors = TOGETHER / shape->sector_bytes;
    const size_t step = (sectors ? sectors : 1) * shape->sector_bytes;
    for (size_t start = 0; start < shape->segment_bytes; start += step) {
        const size_t left = shape->segment_bytes - start;
        add_range(&own, start, start + (left < step ? left : step));
    }
    return 0;
}
