/* The table of targets, their input, and what libFuzzer calls. */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

#include "buffers.h"

const fuzz_target FUZZ_TARGETS[] = {
    {"planes", fuzz_planes}, {"deltas", fuzz_deltas},   {"sparse", fuzz_sparse},
    {"parity", fuzz_parity}, {"galois", fuzz_galois},   {"checksum", fuzz_checksum},
    {"files", fuzz_files},   {"reading", fuzz_reading}, {NULL, NULL},
};

uint8_t take_byte(fuzz_input *input)
{
    if (!input->left)
        return 0;
    input->left--;
    return *input->at++;
}

uint64_t take_word(fuzz_input *input)
{
    uint64_t word = 0;

    for (int byte = 0; byte < 8; byte++)
        word = word << 8 | take_byte(input);
    return word;
}

uint8_t take_edge(fuzz_input *input)
{
    static const uint8_t edges[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 64, 128, 255};
    const uint8_t byte = take_byte(input);

    return byte & 1 ? edges[(byte >> 1) % sizeof edges] : take_byte(input);
}

size_t take_below(fuzz_input *input, size_t limit)
{
    const size_t low = take_byte(input);

    return (limit > 256 ? low << 8 | take_byte(input) : low) % limit;
}

uint8_t *take_bytes(fuzz_input *input, size_t length)
{
    const size_t there = input->left < length ? input->left : length;
    uint8_t *made = memory(length);

    if (there)
        memcpy(made, input->at, there);
    input->at += there;
    input->left -= there;
    for (size_t at = there; at < length; at++)
        made[at] = there ? (uint8_t)(made[at - there] * 5 + 1) : 0;
    return made;
}

static const fuzz_target *chosen;

/* Finds the target in the argument --target=NAME, which libFuzzer itself leaves alone. */
int LLVMFuzzerInitialize(int *count, char ***words);
int LLVMFuzzerInitialize(int *count, char ***words)
{
    static const char option[] = "--target=";

    for (int word = 1; word < *count; word++)
        if (strncmp((*words)[word], option, sizeof option - 1) == 0)
            for (chosen = FUZZ_TARGETS; chosen->name; chosen++)
                if (strcmp((*words)[word] + sizeof option - 1, chosen->name) == 0)
                    return 0;
    fail("name a target: --target=NAME");
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    chosen->run(data, length);
    return 0;
}
