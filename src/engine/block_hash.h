/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Names of token blocks: SipHash-2-4 with 128 bits of output, chained, so that a name stands for the block and everything before it. The key is drawn once per engine; whoever does not
 * know it cannot aim at a collision. Source: Aumasson & Bernstein 2012, with the reference implementation's 128-bit extension.
 */
#ifndef HEADRACE_ENGINE_BLOCK_HASH_H
#define HEADRACE_ENGINE_BLOCK_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct block_name {
    uint64_t a, b;
} block_name;

/** Of n bytes. */
block_name block_hash(block_name key, const void *data, size_t n);
/** Of a block of n ids after what `before` names. */
block_name block_hash_next(block_name key, block_name before, const int32_t *ids, int32_t n);

#endif
