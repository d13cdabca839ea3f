/* SPDX-License-Identifier: Apache-2.0 */
/** Encoding and the questions about a tokenizer. */
#include "text/tokenizer_impl.h"

#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/utf8.h"

status tokenizer_new(mem *m, tokenizer **out, error *err) {
    tokenizer *t = mem_calloc(m, MEM_TOKENIZER, 1, sizeof *t);
    if (!t) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory");
    t->m = m;
    t->bos_id = -1;
    added_set_init(&t->added_raw, m);
    added_set_init(&t->added_normalized, m);
    status rc = pattern_context_create(m, MEM_TOKENIZER, &t->patterns, err);
    if (rc != STATUS_OK) {
        tokenizer_close(t);
        return rc;
    }
    normalizer_init(&t->norm, m, t->patterns);
    pre_tokenizer_init(&t->pre, t->patterns);
    *out = t;
    return STATUS_OK;
}

void tokenizer_close(tokenizer *t) {
    if (!t) return;
    pre_tokenizer_deinit(&t->pre);
    normalizer_deinit(&t->norm);
    pattern_context_destroy(t->patterns);
    added_set_deinit(&t->added_raw);
    added_set_deinit(&t->added_normalized);
    bpe_deinit(&t->model);
    vocab_deinit(&t->v);
    mem_free(t->m, t->chat_template);
    mem_free(t->m, t);
}

status tokenizer_open(mem *m, const source *s, const tokenizer_options *opt, tokenizer **out, error *err) {
    tokenizer *t = NULL;
    status rc;
    TRY(tokenizer_new(m, &t, err));
    if (source_container(s) == META_GGUF)
        rc = tokenizer_from_gguf(t, source_meta(s), err);
    else
        rc = tokenizer_from_json(t, s, err);
    if (rc == STATUS_OK) rc = tokenizer_finish(t, opt, err);
    if (rc != STATUS_OK) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

status tokenizer_limit(tokenizer *t, int64_t rows, error *err) {
    if (rows <= 0 || t->v.n <= rows) return STATUS_OK;
    added_set *sets[] = {&t->added_raw, &t->added_normalized};
    bool produced = false;
    for (int32_t id = (int32_t)rows; id < t->v.n; id++) {
        produced |= (t->v.attr[id] & VOCAB_REACHABLE) && !(t->v.attr[id] & VOCAB_ADDED);
        t->v.attr[id] &= (uint8_t)~VOCAB_REACHABLE;
    }
    for (size_t i = 0; i < t->model.n_slots; i++) produced |= t->model.slots[i].pair != UINT64_MAX && t->model.slots[i].merged >= rows;
    if (produced) return error_set(err, STATUS_FORMAT, "tokenizer: %d tokens, but the model has rows for %lld", t->v.n, (long long)rows);
    for (int i = 0; i < 2; i++) {
        size_t kept = 0;
        for (size_t k = 0; k < sets[i]->n; k++)
            if (sets[i]->tokens[k].id < rows) sets[i]->tokens[kept++] = sets[i]->tokens[k];
        sets[i]->n = kept;
    }
    for (int i = 0; i < t->n_prefix + t->n_suffix; i++)
        if ((i < t->n_prefix ? t->prefix[i] : t->suffix[i - t->n_prefix]) >= rows)
            return error_set(err, STATUS_FORMAT, "tokenizer: a token that surrounds each text has no row in the model, which has %lld",
                             (long long)rows);
    log_info("tokenizer: tokens from %lld to %d have no row in the model and are read as text", (long long)rows, t->v.n - 1);
    t->v.n = (int32_t)rows;
    if (t->bos_id >= rows) t->bos_id = -1;
    return STATUS_OK;
}

status tokenizer_finish(tokenizer *t, const tokenizer_options *opt, error *err) {
    TRY(added_set_finish(&t->added_raw, err));
    TRY(added_set_finish(&t->added_normalized, err));
    return opt ? tokenizer_limit(t, opt->n_vocab_model, err) : STATUS_OK;
}

void tokenizer_add_end(tokenizer *t, int64_t id) {
    if (id < 0 || id >= t->v.n || !(t->v.attr[id] & VOCAB_PRESENT) || t->n_ends == TOKENIZER_MAX_ENDS) return;
    if (!tokenizer_is_end(t, (int32_t)id)) t->ends[t->n_ends++] = (int32_t)id;
}

static int32_t find_control(const tokenizer *t, const char *text) {
    return added_set_find(&t->added_raw, text, strlen(text), ADDED_SPECIAL);
}

void tokenizer_find_ends(tokenizer *t) {
    static const char *const texts[] = {"<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|im_end|>",
                                        "<end_of_turn>",
                                        "<turn|>",
                                        "<|endoftext|>",
                                        "<|end_of_text|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<EOT>",
                                        "[EOT]",
                                        "</s>",
                                        "<eos>",
                                        "<end_of_utterance>",
                                        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) tokenizer_add_end(t, find_control(t, texts[i]));
    /* Where answers end with <|return|>, <|end|> ends a message of several within one answer. */
    if (find_control(t, "<|return|>") < 0) tokenizer_add_end(t, find_control(t, "<|end|>"));
}

void token_list_init(token_list *l, mem *m, mem_tag tag) { *l = (token_list){.m = m, .tag = tag}; }

void token_list_deinit(token_list *l) {
    mem_free(l->m, l->ids);
    *l = (token_list){.m = l->m, .tag = l->tag};
}

status token_list_add(token_list *l, int32_t id) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap : 32, bytes;
        if (l->cap && !checked_mul_size(l->cap, 2, &cap)) return STATUS_NO_MEMORY;
        if (!checked_mul_size(cap, sizeof *l->ids, &bytes)) return STATUS_NO_MEMORY;
        int32_t *ids = l->ids ? mem_realloc(l->m, l->tag, l->ids, bytes) : mem_alloc(l->m, l->tag, bytes);
        if (!ids) return STATUS_NO_MEMORY;
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

/* One encode call. */
typedef struct encoder {
    const tokenizer *t;
    token_list *out;
    bool parse_special;
    const char *text; /* the whole input */
    bool at_start;    /* of the part in hand */
    bpe_scratch words;
    pre_scratch pre;
    normalizer_scratch norm;
} encoder;

static status take_id(encoder *e, int32_t id, error *err) {
    if (token_list_add(e->out, id) == STATUS_OK) return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu ids", e->out->n + 1);
}

static status take_word(void *ctx, const char *word, size_t n, error *err) {
    encoder *e = ctx;
    status rc = bpe_encode(&e->t->model, &e->words, word, n, e->out, err);
    if (rc == STATUS_NO_MEMORY && err && err->code == STATUS_OK) error_note(err, rc, "tokenizer: no memory for ids");
    return rc;
}

static status take_normalized_part(void *ctx, int32_t id, const char *text, size_t n, error *err) {
    encoder *e = ctx;
    if (id >= 0) {
        e->at_start = false;
        return take_id(e, id, err);
    }
    status rc = pre_tokenizer_run(&e->t->pre, &e->pre, text, n, e->at_start, take_word, e, err);
    e->at_start = false;
    return rc;
}

static status take_raw_part(void *ctx, int32_t id, const char *text, size_t n, error *err) {
    encoder *e = ctx;
    if (id >= 0) return take_id(e, id, err);
    e->at_start = text == e->text;
    const char *normal;
    size_t n_normal;
    TRY(normalizer_run(&e->t->norm, &e->norm, text, n, &normal, &n_normal, err));
    return added_set_split(&e->t->added_normalized, normal, n_normal, e->parse_special, take_normalized_part, e, err);
}

static status encode_text(encoder *e, const char *text, size_t n, error *err) {
    e->words.m = e->t->m;
    status rc = pre_scratch_init(&e->pre, e->t->m, e->t->patterns, err);
    normalizer_scratch_init(&e->norm, e->t->m, e->pre.search);
    if (rc == STATUS_OK) rc = added_set_split(&e->t->added_raw, text, n, e->parse_special, take_raw_part, e, err);
    if (e->t->work) *e->t->work += e->words.n_steps;
    pre_scratch_deinit(&e->pre);
    normalizer_scratch_deinit(&e->norm);
    bpe_scratch_deinit(&e->words);
    return rc;
}

static status add_prefix(encoder *e, tokenizer_bos bos, error *err) {
    const tokenizer *t = e->t;
    if (bos == TOKENIZER_BOS_OMIT) return STATUS_OK;
    bool has_bos = false;
    for (int i = 0; i < t->n_prefix; i++) {
        TRY(take_id(e, t->prefix[i], err));
        has_bos |= t->prefix[i] == t->bos_id;
    }
    if (bos == TOKENIZER_BOS_DEFAULT || has_bos) return STATUS_OK;
    if (t->bos_id < 0) return error_set(err, STATUS_INVALID, "tokenizer: this vocabulary has no BOS token");
    return take_id(e, t->bos_id, err);
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t n, tokenizer_bos bos, bool parse_special, token_list *out,
                        error *err) {
    size_t bad, before = out->n;
    if (n > INT32_MAX / 4) return error_set(err, STATUS_INVALID, "tokenizer: a text of %zu bytes is too long", n);
    if (!utf8_check(text, n, &bad)) return error_set(err, STATUS_INVALID, "tokenizer: the text is not valid UTF-8 at byte %zu", bad);
    encoder e = {.t = t, .out = out, .parse_special = parse_special, .text = text};
    status rc = add_prefix(&e, bos, err);
    if (rc == STATUS_OK && n > 0) rc = encode_text(&e, text, n, err);
    for (int i = 0; rc == STATUS_OK && bos != TOKENIZER_BOS_OMIT && i < t->n_suffix; i++) rc = take_id(&e, t->suffix[i], err);
    if (rc != STATUS_OK) out->n = before;
    return rc;
}

const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *n) {
    *n = 0;
    if (id < 0 || id >= t->v.n) return "";
    return vocab_piece(&t->v, id, n);
}

int32_t tokenizer_size(const tokenizer *t) { return t->v.n; }
int32_t tokenizer_bos_id(const tokenizer *t) { return t->bos_id; }
bool tokenizer_adds_bos(const tokenizer *t) { return t->adds_bos; }
bool tokenizer_is_special(const tokenizer *t, int32_t id) { return id >= 0 && id < t->v.n && (t->v.attr[id] & VOCAB_SPECIAL); }
const char *tokenizer_kind(const tokenizer *t) { return t->kind; }
const char *tokenizer_chat_template(const tokenizer *t) { return t->chat_template; }

bool tokenizer_is_end(const tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return true;
    return false;
}

const int32_t *tokenizer_end_ids(const tokenizer *t, size_t *n) {
    *n = t->n_ends;
    return t->ends;
}
