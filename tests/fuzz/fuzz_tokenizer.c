/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a tokenizer.json. One that loads encodes a few texts, and its ids decode the same in one go and one by one, to valid UTF-8.
 * A broken promise ends the process.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_impl.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void demand(bool holds) {
    if (!holds) abort();
}

static void decode_both_ways(mem *m, const tokenizer *t, const token_list *ids) {
    textbuf whole, streamed;
    detokenizer d;
    error err = {0};
    textbuf_init(&whole, m, MEM_REQUEST);
    textbuf_init(&streamed, m, MEM_REQUEST);
    demand(tokenizer_decode(t, ids->ids, ids->n, false, &whole, &err) == STATUS_OK);
    detokenizer_init(&d, t, false);
    for (size_t i = 0; i < ids->n; i++) {
        demand(detokenizer_add(&d, ids->ids[i], &streamed) == STATUS_OK);
        demand(utf8_check(textbuf_text(&streamed), streamed.len, NULL));
    }
    detokenizer_finish(&d, &streamed);
    demand(whole.len == streamed.len && memcmp(textbuf_text(&whole), textbuf_text(&streamed), whole.len) == 0);
    demand(utf8_check(textbuf_text(&whole), whole.len, NULL));
    textbuf_deinit(&whole);
    textbuf_deinit(&streamed);
}

static void use(mem *m, const tokenizer *t) {
    static const char *const texts[] = {"", " a", "ab  b\n\nAB 12\xc3\xa9<s></s>", "a\xcc\x81 \xe2\x96\x81x\xf0\x9f\x98\x80 don't  \t3.14",
                                        "aaaaaaaaaaaaaaaa bbbb abababab"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        token_list ids;
        error err = {0};
        token_list_init(&ids, m, MEM_REQUEST);
        status rc = tokenizer_encode(t, texts[i], strlen(texts[i]), TOKENIZER_BOS_DEFAULT, i % 2 == 0, &ids, &err);
        demand(rc == STATUS_OK || rc == STATUS_FAILED || rc == STATUS_NO_MEMORY);
        for (size_t k = 0; k < ids.n; k++) demand(ids.ids[k] >= 0 && ids.ids[k] < tokenizer_size(t));
        decode_both_ways(m, t, &ids);
        token_list_deinit(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    mem *m = NULL;
    tokenizer *t = NULL;
    error err = {0};
    if (mem_create(&m) != STATUS_OK) return 0;
    demand(mem_set_total_limit(m, (size_t)256 << 20) == STATUS_OK);
    demand(tokenizer_new(m, &t, &err) == STATUS_OK);
    status rc = tokenizer_from_json_text(t, (const char *)data, n, &err);
    if (rc == STATUS_OK) rc = tokenizer_finish(t, NULL, &err);
    if (rc == STATUS_OK)
        use(m, t);
    else
        demand(err.code == rc && err.text[0] != '\0');
    tokenizer_close(t);
    demand(mem_destroy(m) == STATUS_OK);
    return 0;
}
