/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Tokenizers from the tokenizer.json of a Hugging Face directory: byte-pair encoding with the sections around it. The text is scanned for
 * the spans of its sections; vocabulary and merges are read straight from their spans, the others as trees.
 *
 * Ids of added tokens are those that the published loader gives: the one of the vocabulary where the text is in it, else the next free one,
 * in order. A file that says otherwise is refused, since its ids mean two things.
 */
#include "text/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

#include "text/byte_alphabet.h"
#include "base/json_scan.h"

typedef struct span {
    size_t begin, end; /* end 0: absent */
} span;

enum { SECTION_ADDED, SECTION_NORMALIZER, SECTION_PRE_TOKENIZER, SECTION_POST_PROCESSOR, SECTION_DECODER, SECTION_MODEL, N_SECTIONS };

typedef struct json_file {
    json_builder b;
    const char *text;
    span section[N_SECTIONS], vocab, merges;
    json_doc tree[N_SECTIONS]; /* none for SECTION_MODEL */
    json_doc scalars;          /* the model without vocabulary and merges */
    textbuf room, room2, key;
    size_t n_vocab; /* tokens of the model */
    int64_t max_id; /* of model and added tokens */
} json_file;

static const char what[] = "tokenizer.json";

static status find_sections(json_file *f, size_t n) {
    static const char *const names[N_SECTIONS] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"};
    json_scan s;
    TRY(json_scan_init(&s, f->text, n, what, f->b.err));
    TRY(json_scan_object(&s));
    for (bool first = true, more = true;; first = false) {
        const char *key = NULL;
        size_t n_key = 0;
        span at = {0};
        TRY(json_scan_next_key(&s, first, &f->room, &key, &n_key, &more));
        if (!more) break;
        int which = -1;
        for (int i = 0; i < N_SECTIONS; i++)
            if (strlen(names[i]) == n_key && memcmp(names[i], key, n_key) == 0) which = i;
        bool version = n_key == 7 && memcmp(key, "version", 7) == 0;
        TRY(json_scan_skip(&s, &at.begin, &at.end));
        if (version && (at.end - at.begin != 5 || memcmp(f->text + at.begin, "\"1.0\"", 5) != 0))
            return json_scan_fail(&s, "a version other than 1.0");
        if (which < 0) continue;
        if (f->section[which].end > 0) return json_scan_fail(&s, "a section given twice");
        f->section[which] = at;
    }
    TRY(json_scan_end(&s));
    return f->section[SECTION_MODEL].end > 0 ? STATUS_OK : json_scan_fail(&s, "no section \"model\"");
}

/* The model's members: the big ones as spans, the others copied into a small object that is then read as a tree. */
static status find_model(json_file *f) {
    json_scan s;
    textbuf small;
    span model = f->section[SECTION_MODEL];
    status rc = STATUS_OK;
    TRY(json_scan_init(&s, f->text + model.begin, model.end - model.begin, what, f->b.err));
    TRY(json_scan_object(&s));
    textbuf_init(&small, f->b.t->m, MEM_TOKENIZER);
    textbuf_adds(&small, "{");
    for (bool first = true, more = true;; first = false) {
        const char *key = NULL;
        size_t n_key = 0;
        span at = {0}, *big = NULL;
        (void)json_scan_peek(&s);
        size_t key_at = s.at;
        TRY_GOTO(json_scan_next_key(&s, first, &f->room, &key, &n_key, &more));
        if (!more) break;
        if (n_key == 5 && memcmp(key, "vocab", 5) == 0) big = &f->vocab;
        if (n_key == 6 && memcmp(key, "merges", 6) == 0) big = &f->merges;
        TRY_GOTO(json_scan_skip(&s, &at.begin, &at.end));
        if (big && big->end > 0) TRY_GOTO(json_scan_fail(&s, "vocabulary or merges given twice"));
        if (big) {
            *big = (span){model.begin + at.begin, model.begin + at.end};
            continue;
        }
        if (s.text[key_at] == ',') key_at++;
        if (small.len > 1) textbuf_adds(&small, ",");
        textbuf_add(&small, s.text + key_at, at.end - key_at);
    }
    textbuf_adds(&small, "}");
    if (small.failed) TRY_GOTO(error_set(f->b.err, STATUS_NO_MEMORY, "tokenizer: no memory for the model's settings"));
    TRY_GOTO(json_doc_parse(f->b.t->m, MEM_TOKENIZER, textbuf_text(&small), small.len, what, 0, &f->scalars, f->b.err));
fail:
    textbuf_deinit(&small);
    return rc;
}

static status parse_sections(json_file *f) {
    for (int i = 0; i < N_SECTIONS; i++) {
        span at = f->section[i];
        if (i == SECTION_MODEL || at.end == 0 || memcmp(f->text + at.begin, "null", at.end - at.begin < 4 ? at.end - at.begin : 4) == 0)
            continue;
        TRY(json_doc_parse(f->b.t->m, MEM_TOKENIZER, f->text + at.begin, at.end - at.begin, what, 0, &f->tree[i], f->b.err));
    }
    return STATUS_OK;
}

/* --- the model --- */

static status check_model(json_file *f) {
    const json_t *model = f->scalars.root, *dropout = json_object_get(model, "dropout");
    const char *type = json_part_type(model), *affix = "";
    size_t n = 0;
    if (type && strcmp(type, "BPE") != 0)
        return error_set(f->b.err, STATUS_UNSUPPORTED, "tokenizer: model '%.60s' is not supported, only BPE is", type);
    if (!type && f->merges.end == 0) return error_set(f->b.err, STATUS_UNSUPPORTED, "tokenizer: the model has no type and no merges");
    if (f->vocab.end == 0) return error_set(f->b.err, STATUS_FORMAT, "tokenizer: the model has no vocabulary");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        TRY(json_part_text(&f->b, model, affixes[i], &affix, &n));
        if (n > 0) return error_set(f->b.err, STATUS_UNSUPPORTED, "tokenizer: BPE with %s '%.60s' is not supported", affixes[i], affix);
    }
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return error_set(f->b.err, STATUS_UNSUPPORTED, "tokenizer: BPE with dropout is not supported");
    return STATUS_OK;
}

/* Each token of the vocabulary, in the order of the file. */
typedef status vocab_entry_fn(json_file *f, const char *text, size_t n, int64_t id);

static status each_token(json_file *f, vocab_entry_fn *fn) {
    json_scan s;
    s = (json_scan){.text = f->text + f->vocab.begin, .n = f->vocab.end - f->vocab.begin, .what = what, .err = f->b.err};
    TRY(json_scan_object(&s));
    for (bool first = true, more = true;; first = false) {
        const char *text = NULL;
        size_t n = 0;
        int64_t id = 0;
        TRY(json_scan_next_key(&s, first, &f->room, &text, &n, &more));
        if (!more) return STATUS_OK;
        TRY(json_scan_int(&s, &id));
        TRY(fn(f, text, n, id));
    }
}

static status count_token(json_file *f, const char *text, size_t n, int64_t id) {
    if (id < 0 || id >= VOCAB_MAX_TOKENS)
        return error_set(f->b.err, STATUS_FORMAT, "tokenizer: token '%.*s' has id %lld", n < 60 ? (int)n : 60, text, (long long)id);
    if (id > f->max_id) f->max_id = id;
    f->n_vocab++;
    return STATUS_OK;
}

/* A text in the file's spelling as a key: bytes for byte-level models; false when it is not spelled in the alphabet. */
static bool make_key(json_file *f, const char *text, size_t n, const char **key, size_t *n_key) {
    *key = text;
    *n_key = n;
    if (!f->b.byte_level) return true;
    textbuf_clear(&f->key);
    textbuf_add(&f->key, text, n);
    if (f->key.failed || n == 0 || !byte_alphabet_to_bytes(text, n, f->key.data, n_key)) return false;
    *key = f->key.data;
    return true;
}

static status no_memory_for_token(json_file *f, size_t n) {
    return error_set(f->b.err, STATUS_NO_MEMORY, "tokenizer: no memory for a token of %zu bytes", n);
}

static status store_token(json_file *f, const char *text, size_t n, int64_t id) {
    vocab *v = &f->b.t->v;
    const char *key;
    size_t n_key;
    if (v->attr[id] & VOCAB_PRESENT) return error_set(f->b.err, STATUS_FORMAT, "tokenizer: two tokens have id %lld", (long long)id);
    bool spelled = make_key(f, text, n, &key, &n_key);
    if (f->key.failed) return no_memory_for_token(f, n);
    if (!spelled) return vocab_set(v, (int32_t)id, text, n, n > 0 ? VOCAB_HIDDEN : 0, f->b.err);
    return vocab_set(v, (int32_t)id, key, n_key, n_key > 0 ? VOCAB_REACHABLE : 0, f->b.err);
}

/* The id of a text in the file's spelling, or -1. */
static int32_t find_token(json_file *f, const char *text, size_t n) {
    const char *key;
    size_t n_key;
    return make_key(f, text, n, &key, &n_key) ? vocab_find(&f->b.t->v, key, n_key) : vocab_find_hidden(&f->b.t->v, text, n);
}

/* Ids and their number, before anything is stored: tables are sized once, and not for an id that stands alone far away. */
static status count_ids(json_file *f) {
    const json_t *added = f->tree[SECTION_ADDED].root, *one;
    size_t i, n_added = json_array_size(added);
    f->max_id = -1;
    TRY(each_token(f, count_token));
    if (added && !json_is_array(added)) return error_set(f->b.err, STATUS_FORMAT, "tokenizer: 'added_tokens' is not a list");
    json_array_foreach(added, i, one) {
        const json_t *id = json_object_get(one, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= VOCAB_MAX_TOKENS)
            return error_set(f->b.err, STATUS_FORMAT, "tokenizer: added token %zu has no id that is possible", i);
        if (json_integer_value(id) > f->max_id) f->max_id = json_integer_value(id);
    }
    if ((uint64_t)f->max_id >= (f->n_vocab + n_added) * 8 + 65536)
        return error_set(f->b.err, STATUS_FORMAT, "tokenizer: an id of %lld among %zu tokens", (long long)f->max_id, f->n_vocab + n_added);
    return STATUS_OK;
}

static status read_vocabulary(json_file *f) {
    TRY(count_ids(f));
    TRY(vocab_init(&f->b.t->v, f->b.t->m, (size_t)(f->max_id + 1), f->vocab.end - f->vocab.begin, f->b.err));
    return each_token(f, store_token);
}

/* One side of a merge into f->key, behind what is there. */
static status append_part(json_file *f, const char *text, size_t n, size_t *n_bytes, bool *spelled) {
    size_t from = f->key.len;
    textbuf_add(&f->key, text, n);
    if (f->key.failed) return no_memory_for_token(f, n);
    *n_bytes = n;
    if (f->b.byte_level) {
        *spelled &= n > 0 && byte_alphabet_to_bytes(text, n, f->key.data + from, n_bytes);
        f->key.len = from + (*spelled ? *n_bytes : n);
    }
    return STATUS_OK;
}

static status store_merge(json_file *f, size_t rank, const char *left, size_t n_left, const char *right, size_t n_right) {
    tokenizer *t = f->b.t;
    size_t n_l = 0, n_r = 0;
    bool spelled = true;
    textbuf_clear(&f->key);
    TRY(append_part(f, left, n_left, &n_l, &spelled));
    TRY(append_part(f, right, n_right, &n_r, &spelled));
    int32_t a = -1, b = -1, joined = -1;
    if (spelled) {
        a = vocab_find(&t->v, f->key.data, n_l);
        b = vocab_find(&t->v, f->key.data + n_l, n_r);
        joined = vocab_find(&t->v, f->key.data, n_l + n_r);
    }
    if (a < 0 || b < 0 || joined < 0)
        return error_set(f->b.err, STATUS_FORMAT, "tokenizer: merge %zu ('%.*s' '%.*s') names a token that the vocabulary does not have",
                         rank, n_left < 100 ? (int)n_left : 100, left, n_right < 100 ? (int)n_right : 100, right);
    return bpe_add_merge(&t->model, a, b, joined, (uint32_t)rank, false, f->b.err);
}

/* "left right" or ["left", "right"] at s. *n_merges counts those that have a rank. */
static status read_merge(json_file *f, json_scan *s, size_t *n_merges) {
    const char *left = NULL, *right = NULL;
    size_t n_left = 0, n_right = 0;
    bool more = false;
    if (json_scan_peek(s) == '"') {
        TRY(json_scan_text(s, &f->room, &left, &n_left));
        if (n_left >= 8 && memcmp(left, "#version", 8) == 0) return STATUS_OK;
        const char *space = memchr(left, ' ', n_left);
        if (!space || memchr(space + 1, ' ', n_left - (size_t)(space + 1 - left)))
            return json_scan_fail(s, "a merge that is not two tokens");
        right = space + 1;
        n_right = n_left - (size_t)(right - left);
        n_left = (size_t)(space - left);
    } else {
        TRY(json_scan_array(s));
        TRY(json_scan_next_item(s, true, &more));
        if (more) TRY(json_scan_text(s, &f->room, &left, &n_left));
        if (more) TRY(json_scan_next_item(s, false, &more));
        if (!more) return json_scan_fail(s, "a merge that is not two tokens");
        TRY(json_scan_text(s, &f->room2, &right, &n_right));
        TRY(json_scan_next_item(s, false, &more));
        if (more) return json_scan_fail(s, "a merge that is not two tokens");
    }
    return store_merge(f, (*n_merges)++, left, n_left, right, n_right);
}

static status count_merges(json_scan s, size_t *n) {
    TRY(json_scan_array(&s));
    for (bool first = true, more = true;; first = false) {
        size_t begin, end;
        TRY(json_scan_next_item(&s, first, &more));
        if (!more) return STATUS_OK;
        TRY(json_scan_skip(&s, &begin, &end));
        ++*n;
    }
}

static status read_merges(json_file *f) {
    tokenizer *t = f->b.t;
    json_scan s = {.text = f->text + f->merges.begin, .n = f->merges.end - f->merges.begin, .what = what, .err = f->b.err};
    size_t n = 0, rank = 0;
    if (f->merges.end > 0) TRY(count_merges(s, &n));
    TRY(bpe_init(&t->model, t->m, &t->v, n, f->b.err));
    if (f->merges.end == 0) return STATUS_OK;
    TRY(json_scan_array(&s));
    for (bool first = true, more = true;; first = false) {
        TRY(json_scan_next_item(&s, first, &more));
        if (!more) return STATUS_OK;
        TRY(read_merge(f, &s, &rank));
    }
}

static status read_model_flags(json_file *f) {
    bpe *model = &f->b.t->model;
    const json_t *part = f->scalars.root;
    const char *unk = NULL;
    size_t n = 0;
    model->byte_level = f->b.byte_level;
    TRY(json_part_bool(&f->b, part, "fuse_unk", &model->fuse_unk));
    TRY(json_part_bool(&f->b, part, "byte_fallback", &model->byte_fallback));
    TRY(json_part_bool(&f->b, part, "ignore_merges", &model->ignore_merges));
    TRY(json_part_text(&f->b, part, "unk_token", &unk, &n));
    if (unk) {
        model->unk_id = find_token(f, unk, n);
        if (model->unk_id < 0)
            return error_set(f->b.err, STATUS_FORMAT, "tokenizer: the unknown token '%.60s' is not in the vocabulary", unk);
    }
    bpe_find_bytes(model);
    return STATUS_OK;
}

/* --- added tokens --- */

static status added_flags(json_file *f, const json_t *one, uint32_t *flags, bool *normalized) {
    static const struct {
        const char *key;
        uint32_t flag;
    } keys[] = {{"special", ADDED_SPECIAL}, {"single_word", ADDED_SINGLE_WORD}, {"lstrip", ADDED_LSTRIP}, {"rstrip", ADDED_RSTRIP}};
    *flags = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        bool set = false;
        TRY(json_part_bool(&f->b, one, keys[i].key, &set));
        if (set) *flags |= keys[i].flag;
    }
    *normalized = !(*flags & ADDED_SPECIAL);
    return json_part_bool(&f->b, one, "normalized", normalized);
}

/* The id that the published loader gives. *next_id: the next one for a text that the vocabulary does not have. */
static status added_id(json_file *f, const char *text, size_t n, int64_t id, int32_t *next_id) {
    int32_t known = find_token(f, text, n), given = known >= 0 ? known : *next_id;
    if (given != id)
        return error_set(f->b.err, STATUS_FORMAT, "tokenizer: added token '%.60s' has id %lld, but its place gives it %d", text,
                         (long long)id, given);
    if (known < 0) {
        if (f->b.t->v.attr[id] & VOCAB_PRESENT)
            return error_set(f->b.err, STATUS_FORMAT, "tokenizer: two tokens have id %lld", (long long)id);
        ++*next_id;
        TRY(vocab_set(&f->b.t->v, (int32_t)id, text, n, VOCAB_HIDDEN, f->b.err));
    }
    return STATUS_OK;
}

/* One pass over the list: the tokens that only it has are stored, all of it is marked, and the texts to look for are listed. A normalized
   token is looked for by its normalized text, which is also what decoding gives. */
static status store_one_added(json_file *f, size_t i, const json_t *one, normalizer_scratch *scratch, int32_t *next_id) {
    tokenizer *t = f->b.t;
    const char *text = NULL, *seen;
    size_t n = 0, n_seen;
    uint32_t flags = 0;
    bool normalized = false;
    int64_t id = json_integer_value(json_object_get(one, "id"));
    TRY(json_part_text(&f->b, one, "content", &text, &n));
    if (!text) return error_set(f->b.err, STATUS_FORMAT, "tokenizer: added token %zu has no content", i);
    if (n == 0) return STATUS_OK;
    TRY(added_flags(f, one, &flags, &normalized));
    TRY(added_id(f, text, n, id, next_id));
    t->v.attr[id] |= (uint8_t)(VOCAB_ADDED | (flags & ADDED_SPECIAL ? VOCAB_SPECIAL : 0));
    seen = text;
    n_seen = n;
    if (normalized) {
        TRY(normalizer_run(&t->norm, scratch, text, n, &seen, &n_seen, f->b.err));
        if (n_seen != n || memcmp(seen, text, n) != 0) {
            TRY(vocab_set_piece(&t->v, (int32_t)id, seen, n_seen, f->b.err));
            t->v.attr[id] |= VOCAB_REWRITTEN;
        }
    }
    return added_set_add(normalized ? &t->added_normalized : &t->added_raw, seen, n_seen, (int32_t)id, flags, f->b.err);
}

static status store_added(json_file *f) {
    const json_t *one;
    size_t i;
    int32_t next_id = (int32_t)f->n_vocab;
    status rc = STATUS_OK;
    normalizer_scratch scratch = {0};
    pattern_search *search = NULL;
    TRY(pattern_search_create(f->b.t->patterns, &search, f->b.err));
    normalizer_scratch_init(&scratch, f->b.t->m, search);
    json_array_foreach(f->tree[SECTION_ADDED].root, i, one) TRY_GOTO(store_one_added(f, i, one, &scratch, &next_id));
fail:
    normalizer_scratch_deinit(&scratch);
    pattern_search_destroy(search);
    return rc;
}

/* --- the whole --- */

static status read_file(json_file *f, size_t n) {
    tokenizer *t = f->b.t;
    TRY(find_sections(f, n));
    TRY(find_model(f));
    TRY(check_model(f));
    TRY(parse_sections(f));
    TRY(json_read_normalizer(&f->b, f->tree[SECTION_NORMALIZER].root));
    TRY(json_read_pre_tokenizer(&f->b, f->tree[SECTION_PRE_TOKENIZER].root));
    TRY(read_vocabulary(f));
    TRY(read_merges(f));
    TRY(read_model_flags(f));
    TRY(store_added(f));
    TRY(json_read_decoder(&f->b, f->tree[SECTION_DECODER].root));
    TRY(json_read_post_processor(&f->b, f->tree[SECTION_POST_PROCESSOR].root));
    snprintf(t->kind, sizeof t->kind, "bpe/%s",
             t->model.byte_level      ? "byte-level"
             : t->model.byte_fallback ? "byte-fallback"
                                      : "characters");
    if (t->n_prefix > 0) {
        t->bos_id = t->prefix[0];
        t->adds_bos = true;
    }
    return STATUS_OK;
}

status tokenizer_from_json_text(tokenizer *t, const char *text, size_t n, error *err) {
    json_file f = {.b = {.t = t, .err = err}, .text = text};
    textbuf_init(&f.room, t->m, MEM_TOKENIZER);
    textbuf_init(&f.room2, t->m, MEM_TOKENIZER);
    textbuf_init(&f.key, t->m, MEM_TOKENIZER);
    status rc = read_file(&f, n);
    for (int i = 0; i < N_SECTIONS; i++) json_doc_free(&f.tree[i]);
    json_doc_free(&f.scalars);
    textbuf_deinit(&f.room);
    textbuf_deinit(&f.room2);
    textbuf_deinit(&f.key);
    return rc;
}

/* --- beside it: tokenizer_config.json, generation_config.json, config.json, chat_template.jinja --- */

/* The id of a token named in tokenizer_config.json, as a text or as an object with its content; -1 when absent. */
static int32_t named_token(const tokenizer *t, const meta *m, const char *key) {
    const meta_value *v = meta_find(m, key);
    const char *text;
    size_t n;
    if (!meta_as_string(v, &text, &n) && !meta_as_string(meta_object_get(v, "content"), &text, &n)) return -1;
    int32_t id = added_set_find(&t->added_raw, text, n, 0);
    if (id < 0) id = added_set_find(&t->added_normalized, text, n, 0);
    return id >= 0 || t->model.byte_level ? id : vocab_find(&t->v, text, n);
}

static void add_ends(tokenizer *t, const meta_value *v) {
    int64_t id;
    size_t n;
    if (meta_as_i64(v, &id)) tokenizer_add_end(t, id);
    if (!meta_array_size(v, &n)) return;
    for (size_t i = 0; i < n; i++)
        if (meta_array_i64(v, i, &id)) tokenizer_add_end(t, id);
}

static status keep_template(tokenizer *t, const char *text, size_t n, error *err) {
    t->chat_template = mem_strndup(t->m, MEM_TOKENIZER, text, n);
    return t->chat_template ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a chat template of %zu bytes", n);
}

/* chat_template.jinja, else the text in tokenizer_config.json, else the one named "default" in its list. */
static status read_chat_template(tokenizer *t, const source *s, error *err) {
    enum { MAX_TEMPLATE_BYTES = 4 * 1024 * 1024 };
    const meta_value *v = meta_find(source_meta(s), "@tokenizer_config.chat_template"), *one;
    const char *text, *name;
    char *file = NULL;
    size_t n, n_name;
    error why = {0};
    status rc = source_read_sibling(s, MEM_TOKENIZER, "chat_template.jinja", MAX_TEMPLATE_BYTES, &file, &n, &why);
    if (rc == STATUS_OK) {
        t->chat_template = file;
        return STATUS_OK;
    }
    if (rc != STATUS_NOT_FOUND) return error_set(err, rc, "%s", why.text);
    if (meta_as_string(v, &text, &n)) return keep_template(t, text, n, err);
    for (size_t i = 0; (one = meta_array_at(v, i)) != NULL; i++)
        if (meta_as_string(meta_object_get(one, "name"), &name, &n_name) && strcmp(name, "default") == 0 &&
            meta_as_string(meta_object_get(one, "template"), &text, &n))
            return keep_template(t, text, n, err);
    return STATUS_OK;
}

static status config_flag(const meta *m, const char *key, bool *out, error *err) {
    const meta_value *v = meta_find(m, key);
    *out = false;
    if (meta_type_of(v) == META_ABSENT || meta_type_of(v) == META_NULL || meta_as_bool(v, out)) return STATUS_OK;
    return error_set(err, STATUS_FORMAT, "tokenizer: %s is not true or false", key + 1);
}

/* Tokens around each text are the post-processor's. Where it adds none, tokenizer_config.json may ask for BOS and EOS. */
static status add_as_configured(tokenizer *t, const meta *m, int32_t bos, int32_t eos, error *err) {
    bool add_bos, add_eos;
    TRY(config_flag(m, "@tokenizer_config.add_bos_token", &add_bos, err));
    TRY(config_flag(m, "@tokenizer_config.add_eos_token", &add_eos, err));
    if (t->n_prefix > 0 || t->n_suffix > 0) return STATUS_OK;
    if (add_bos && bos >= 0) {
        t->prefix[t->n_prefix++] = bos;
        t->adds_bos = true;
    }
    if (add_eos && eos >= 0) t->suffix[t->n_suffix++] = eos;
    return STATUS_OK;
}

status tokenizer_from_json(tokenizer *t, const source *s, error *err) {
    char *text = NULL;
    size_t n = 0;
    const meta *m = source_meta(s);
    status rc = source_read_sibling(s, MEM_TOKENIZER, "tokenizer.json", TOKENIZER_JSON_MAX_BYTES, &text, &n, err);
    if (rc == STATUS_NOT_FOUND)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: %s has no tokenizer.json, the only form of a tokenizer that is read there",
                         source_path(s));
    TRY(rc);
    rc = tokenizer_from_json_text(t, text, n, err);
    mem_free(t->m, text);
    TRY(rc);
    int32_t bos = named_token(t, m, "@tokenizer_config.bos_token"), eos = named_token(t, m, "@tokenizer_config.eos_token");
    if (bos >= 0 && !t->adds_bos) t->bos_id = bos;
    tokenizer_add_end(t, eos);
    TRY(add_as_configured(t, m, bos, eos, err));
    add_ends(t, meta_find(m, "@generation_config.eos_token_id"));
    add_ends(t, meta_find(m, "eos_token_id"));
    return read_chat_template(t, s, err);
}
