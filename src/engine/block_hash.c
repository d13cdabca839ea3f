/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4-128. Words are taken little-endian. */
#include "engine/block_hash.h"

#include <string.h>

typedef struct sip {
    uint64_t v0, v1, v2, v3;
} sip;

static uint64_t rotl(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void rounds(sip *s, int n) {
    for (int i = 0; i < n; i++) {
        s->v0 += s->v1;
        s->v1 = rotl(s->v1, 13) ^ s->v0;
        s->v0 = rotl(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotl(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotl(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotl(s->v1, 17) ^ s->v2;
        s->v2 = rotl(s->v2, 32);
    }
}

static void begin(sip *s, block_name key) {
    s->v0 = key.a ^ UINT64_C(0x736f6d6570736575);
    s->v1 = key.b ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    s->v2 = key.a ^ UINT64_C(0x6c7967656e657261);
    s->v3 = key.b ^ UINT64_C(0x7465646279746573);
}

static void word(sip *s, uint64_t m) {
    s->v3 ^= m;
    rounds(s, 2);
    s->v0 ^= m;
}

static uint64_t load_le(const uint8_t *p, size_t n) {
    uint64_t m = 0;
    for (size_t i = 0; i < n; i++) m |= (uint64_t)p[i] << (8 * i);
    return m;
}

static void bytes(sip *s, const void *data, size_t n) {
    const uint8_t *p = data;
    for (; n >= 8; n -= 8, p += 8) word(s, load_le(p, 8));
}

static block_name end(sip *s) {
    block_name out;
    s->v2 ^= 0xee;
    rounds(s, 4);
    out.a = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    s->v1 ^= 0xdd;
    rounds(s, 4);
    out.b = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    return out;
}

block_name block_hash(block_name key, const void *data, size_t n) {
    sip s;
    begin(&s, key);
    bytes(&s, data, n);
    word(&s, load_le((const uint8_t *)data + n / 8 * 8, n % 8) | (uint64_t)n << 56);
    return end(&s);
}

block_name block_hash_next(block_name key, block_name before, const int32_t *ids, int32_t n) {
    sip s;
    begin(&s, key);
    word(&s, before.a);
    word(&s, before.b);
    for (int32_t i = 0; i + 1 < n; i += 2) word(&s, (uint64_t)(uint32_t)ids[i] | (uint64_t)(uint32_t)ids[i + 1] << 32);
    const uint64_t last = n % 2 == 1 ? (uint64_t)(uint32_t)ids[n - 1] : 0;
    word(&s, last | (uint64_t)((uint32_t)n * 4 + 16) << 56);
    return end(&s);
}
