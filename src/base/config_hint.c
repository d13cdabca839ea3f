/* SPDX-License-Identifier: Apache-2.0 */
/* "did you mean": the name with the fewest inserted, deleted, replaced or swapped bytes, if they are few for its length. */
#include "base/config_hint.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static size_t min2(size_t a, size_t b) { return a < b ? a : b; }

/* Optimal string alignment distance of two names shorter than CONFIG_NAME_BYTES. */
static size_t distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned char rows[3][CONFIG_NAME_BYTES + 1];
    for (size_t j = 0; j <= m; j++) rows[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned char *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (unsigned char)i;
        for (size_t j = 1; j <= m; j++) {
            size_t d = min2(min2(above[j], row[j - 1]) + 1u, above[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d = min2(d, above2[j - 2] + 1u);
            row[j] = (unsigned char)d;
        }
    }
    return rows[n % 3][m];
}

config_hint config_hint_for(const char *word) { return (config_hint){.word = word, .distance = SIZE_MAX}; }

void config_hint_consider(config_hint *h, const char *name) {
    if (strnlen(h->word, CONFIG_NAME_BYTES) >= CONFIG_NAME_BYTES || strlen(name) >= CONFIG_NAME_BYTES) return;
    size_t len = strlen(name), bare = strncmp(name, "HEADRACE_", 9) == 0 ? 9 : strspn(name, "-"), d = distance(h->word, name);
    size_t allowed = 1 + (len - bare) / 4;
    if (d > allowed || d >= h->distance) return;
    h->distance = d;
    snprintf(h->nearest, sizeof h->nearest, "%s", name);
}

const char *config_hint_text(const config_hint *h, char out[CONFIG_HINT_BYTES]) {
    out[0] = 0;
    if (h->distance != SIZE_MAX) snprintf(out, CONFIG_HINT_BYTES, "; did you mean %s?", h->nearest);
    return out;
}
