/* SPDX-License-Identifier: Apache-2.0 */
/** Tokenizers from the `tokenizer.ggml.*` values of a GGUF file. */
#include <stdio.h>
#include <string.h>

#include "text/byte_alphabet.h"
#include "text/score_merges.h"
#include "text/tokenizer_impl.h"
#include "base/utf8.h"

/* `tokenizer.ggml.token_type` */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

typedef struct builder {
    tokenizer *t;
    const meta *gguf;
    const meta_value *tokens, *types, *merges;
    size_t n_tokens;
    textbuf key;           /* one token in the making */
    bool characters;       /* tokens are text as it is, not bytes in an alphabet */
    int32_t byte_ids[256]; /* tokens of type byte */
    error *err;
} builder;

static status read_arrays(builder *b) {
    size_t n;
    b->tokens = meta_find(b->gguf, "tokenizer.ggml.tokens");
    if (!meta_array_size(b->tokens, &b->n_tokens))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.tokens is missing or is no array");
    b->types = meta_find(b->gguf, "tokenizer.ggml.token_type");
    if (b->types) {
        if (!meta_array_size(b->types, &n)) return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.token_type is no array");
        if (n != b->n_tokens) return error_set(b->err, STATUS_FORMAT, "tokenizer: %zu token types for %zu tokens", n, b->n_tokens);
    }
    b->merges = meta_find(b->gguf, "tokenizer.ggml.merges");
    if (b->merges && !meta_array_size(b->merges, &n))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.merges is no array");
    return STATUS_OK;
}

/* The type of token i; an absent array means that all are normal. */
static status token_type(const builder *b, size_t i, int64_t *type) {
    *type = TYPE_NORMAL;
    if (b->types && (!meta_array_i64(b->types, i, type) || *type < 0 || *type > TYPE_BYTE))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: token %zu has no type that is known", i);
    return STATUS_OK;
}

static bool is_matched_beforehand(int64_t type) { return type == TYPE_CONTROL || type == TYPE_USER_DEFINED || type == TYPE_UNKNOWN; }

static uint32_t added_attr(int64_t type) { return type == TYPE_USER_DEFINED ? VOCAB_ADDED : VOCAB_SPECIAL | VOCAB_ADDED; }

/* Keys and pieces of a byte-level vocabulary. Tokens that are matched in text beforehand keep their text; others are bytes in the alphabet,
   and one that is not spelled in it cannot come from the model: it is kept for decoding. */
static status byte_level_token(builder *b, size_t i, const char *text, size_t n, int64_t type) {
    tokenizer *t = b->t;
    int32_t id = (int32_t)i;
    if (is_matched_beforehand(type)) return vocab_set(&t->v, id, text, n, added_attr(type), b->err);
    textbuf_clear(&b->key);
    textbuf_add(&b->key, text, n);
    if (b->key.failed) return error_set(b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a token of %zu bytes", n);
    size_t n_key;
    bool spelled = n > 0 && byte_alphabet_to_bytes(text, n, b->key.data, &n_key);
    if (!spelled || type == TYPE_UNUSED) return vocab_set(&t->v, id, text, n, 0, b->err);
    return vocab_set(&t->v, id, b->key.data, n_key, VOCAB_REACHABLE, b->err);
}

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

/* Keys and pieces of a vocabulary of characters, where U+2581 stands for a space and <0xNN> for a byte. */
static status character_token(builder *b, size_t i, const char *text, size_t n, int64_t type) {
    tokenizer *t = b->t;
    int32_t id = (int32_t)i;
    if (is_matched_beforehand(type)) return vocab_set(&t->v, id, text, n, added_attr(type), b->err);
    if (type == TYPE_BYTE) {
        int value = byte_token_value(text, n);
        if (value < 0) return error_set(b->err, STATUS_FORMAT, "tokenizer: token %zu is of a byte, but not written <0xNN>", i);
        char byte = (char)value;
        b->byte_ids[value] = id;
        TRY(vocab_set(&t->v, id, text, n, 0, b->err));
        return vocab_set_piece(&t->v, id, &byte, 1, b->err);
    }
    if (!utf8_check(text, n, NULL)) return error_set(b->err, STATUS_FORMAT, "tokenizer: token %zu is not valid UTF-8", i);
    TRY(vocab_set(&t->v, id, text, n, n == 0 || type == TYPE_UNUSED ? 0 : VOCAB_REACHABLE, b->err));
    if (!memmem(text, n, space_mark, sizeof space_mark - 1)) return STATUS_OK;
    textbuf_clear(&b->key);
    for (const char *at; (at = memmem(text, n, space_mark, sizeof space_mark - 1)) != NULL;) {
        size_t used = (size_t)(at - text) + sizeof space_mark - 1;
        textbuf_add(&b->key, text, (size_t)(at - text));
        textbuf_adds(&b->key, " ");
        text += used;
        n -= used;
    }
    textbuf_add(&b->key, text, n);
    if (b->key.failed) return error_set(b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a token of %zu bytes", n);
    return vocab_set_piece(&t->v, id, b->key.data, b->key.len, b->err);
}

static status read_tokens(builder *b) {
    tokenizer *t = b->t;
    TRY(vocab_init(&t->v, t->m, b->n_tokens, b->n_tokens < VOCAB_MAX_TOKENS ? b->n_tokens * 8 : 0, b->err));
    for (size_t i = 0; i < b->n_tokens; i++) {
        const char *text;
        size_t n;
        int64_t type;
        if (!meta_array_string(b->tokens, i, &text, &n)) return error_set(b->err, STATUS_FORMAT, "tokenizer: token %zu is no text", i);
        TRY(token_type(b, i, &type));
        TRY(b->characters ? character_token(b, i, text, n, type) : byte_level_token(b, i, text, n, type));
    }
    return STATUS_OK;
}

static status read_added_tokens(builder *b) {
    tokenizer *t = b->t;
    for (int32_t id = 0; id < t->v.n; id++) {
        if (!(t->v.attr[id] & VOCAB_ADDED)) continue;
        size_t n;
        const char *text = vocab_key(&t->v, id, &n);
        TRY(added_set_add(&t->added_raw, text, n, id, t->v.attr[id] & VOCAB_SPECIAL ? ADDED_SPECIAL : 0, b->err));
    }
    return STATUS_OK;
}

/* "left right"; parts[3] get the ids of left, right and both joined, -1 for what the vocabulary does not have. */
static status merge_parts(builder *b, size_t i, const char *text, size_t n, int32_t parts[3]) {
    const char *space = n > 1 ? memchr(text + 1, ' ', n - 1) : NULL;
    if (!space || space + 1 == text + n) return error_set(b->err, STATUS_FORMAT, "tokenizer: merge %zu is not two tokens", i);
    size_t n_left = (size_t)(space - text), n_right = n - n_left - 1;
    textbuf_clear(&b->key);
    textbuf_add(&b->key, text, n_left);
    textbuf_add(&b->key, space + 1, n_right);
    if (b->key.failed) return error_set(b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a merge of %zu bytes", n);
    char *key = b->key.data;
    if (!b->characters &&
        (!byte_alphabet_to_bytes(text, n_left, key, &n_left) || !byte_alphabet_to_bytes(space + 1, n_right, key + n_left, &n_right)))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: merge %zu is not spelled in the byte alphabet", i);
    parts[0] = vocab_find(&b->t->v, key, n_left);
    parts[1] = vocab_find(&b->t->v, key + n_left, n_right);
    parts[2] = vocab_find(&b->t->v, key, n_left + n_right);
    return STATUS_OK;
}

static status read_merges(builder *b) {
    tokenizer *t = b->t;
    size_t n_merges = 0;
    if (b->merges && !meta_array_size(b->merges, &n_merges))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.merges is no array");
    TRY(bpe_init(&t->model, t->m, &t->v, n_merges, b->err));
    for (size_t i = 0; i < n_merges; i++) {
        const char *text;
        size_t n;
        int32_t parts[3] = {-1, -1, -1};
        if (!meta_array_string(b->merges, i, &text, &n)) return error_set(b->err, STATUS_FORMAT, "tokenizer: merge %zu is no text", i);
        TRY(merge_parts(b, i, text, n, parts));
        if (parts[0] < 0 || parts[1] < 0 || parts[2] < 0) {
            int shown = n < 200 ? (int)n : 200;
            return error_set(b->err, STATUS_FORMAT, "tokenizer: merge %zu ('%.*s') names a token that the vocabulary does not have", i,
                             shown, text);
        }
        TRY(bpe_add_merge(&t->model, parts[0], parts[1], parts[2], (uint32_t)i, true, b->err));
    }
    return STATUS_OK;
}

/* An id under `key`, -1 when absent or out of range (as converters write for "none"). */
static int32_t read_id(const builder *b, const char *key) {
    int64_t id;
    if (!meta_as_i64(meta_find(b->gguf, key), &id) || id < 0 || id >= b->t->v.n) return -1;
    return (int32_t)id;
}

static status read_bool(const builder *b, const char *key, bool *value) {
    const meta_value *v = meta_find(b->gguf, key);
    if (v && !meta_as_bool(v, value)) return error_set(b->err, STATUS_FORMAT, "tokenizer: %s is not true or false", key);
    return STATUS_OK;
}

/* The same with an id that the format gives to a missing key. */
static int32_t read_id_or(const builder *b, const char *key, int32_t id) {
    if (meta_find(b->gguf, key)) return read_id(b, key);
    return id < b->t->v.n ? id : -1;
}

static status read_special_ids(builder *b, bool adds_bos, int32_t bos, int32_t eos) {
    tokenizer *t = b->t;
    bool adds_eos = false;
    t->bos_id = read_id_or(b, "tokenizer.ggml.bos_token_id", bos);
    eos = read_id_or(b, "tokenizer.ggml.eos_token_id", eos);
    TRY(read_bool(b, "tokenizer.ggml.add_bos_token", &adds_bos));
    TRY(read_bool(b, "tokenizer.ggml.add_eos_token", &adds_eos));
    t->adds_bos = adds_bos && t->bos_id >= 0;
    if (t->adds_bos) t->prefix[t->n_prefix++] = t->bos_id;
    if (adds_eos && eos >= 0) t->suffix[t->n_suffix++] = eos;
    tokenizer_add_end(t, eos);
    tokenizer_add_end(t, read_id(b, "tokenizer.ggml.eot_token_id"));
    tokenizer_add_end(t, read_id(b, "tokenizer.ggml.eom_token_id"));
    tokenizer_find_ends(t);
    return STATUS_OK;
}

static status read_chat_template(builder *b) {
    const char *text;
    size_t n;
    if (!meta_as_string(meta_find(b->gguf, "tokenizer.chat_template"), &text, &n)) return STATUS_OK;
    b->t->chat_template = mem_strndup(b->t->m, MEM_TOKENIZER, text, n);
    return b->t->chat_template ? STATUS_OK
                               : error_set(b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a chat template of %zu bytes", n);
}

static status read_pre_tokenizer(builder *b, const pre_named **named) {
    const char *name;
    size_t n;
    if (!meta_as_string(meta_find(b->gguf, "tokenizer.ggml.pre"), &name, &n))
        return error_set(b->err, STATUS_UNSUPPORTED,
                         "tokenizer: tokenizer.ggml.pre is missing: the file does not say how to cut text into words");
    *named = pre_named_find(name, n);
    if (!*named)
        return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: unknown pre-tokenizer '%.*s' (tokenizer.ggml.pre)", n < 100 ? (int)n : 100,
                         name);
    if ((*named)->nfc) TRY(normalizer_add(&b->t->norm, NORMALIZER_NFC, NULL, 0, b->err));
    return pre_named_add(*named, &b->t->pre, b->err);
}

static status build_gpt2(builder *b) {
    tokenizer *t = b->t;
    const pre_named *named = NULL;
    TRY(read_pre_tokenizer(b, &named));
    TRY(read_arrays(b));
    if (!b->merges) return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.merges is missing");
    TRY(read_tokens(b));
    TRY(read_merges(b));
    TRY(read_added_tokens(b));
    t->model.byte_level = true;
    t->model.ignore_merges = named->ignore_merges;
    bpe_find_bytes(&t->model);
    snprintf(t->kind, sizeof t->kind, "gpt2/%s", named->name);
    TRY(read_special_ids(b, named->adds_bos, -1, -1));
    return read_chat_template(b);
}

/* What the vocabularies of characters share: tokens of bytes for what has none, and U+2581 for spaces, one of them in front where the file
 * wants it. */
static status build_characters(builder *b, bool prefix) {
    tokenizer *t = b->t;
    TRY(read_bool(b, "tokenizer.ggml.add_space_prefix", &prefix));
    if (prefix) TRY(normalizer_add(&t->norm, NORMALIZER_PREPEND, space_mark, sizeof space_mark - 1, b->err));
    TRY(normalizer_add_replace(&t->norm, " ", 1, true, space_mark, sizeof space_mark - 1, b->err));
    if (prefix) t->decode = (decode_rule){.strip_char = " ", .n_strip_char = 1, .n_strip = 1};
    t->model.byte_fallback = t->model.fuse_unk = true;
    t->model.unk_id = read_id_or(b, "tokenizer.ggml.unknown_token_id", 0);
    bpe_find_bytes(&t->model);
    for (int i = 0; i < 256; i++)
        if (b->byte_ids[i] >= 0) t->model.fallback_ids[i] = b->byte_ids[i];
    return read_added_tokens(b);
}

static status build_gemma4(builder *b) {
    b->characters = true;
    TRY(read_arrays(b));
    if (!b->merges) return error_set(b->err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.merges is missing");
    TRY(read_tokens(b));
    TRY(read_merges(b));
    TRY(build_characters(b, false));
    snprintf(b->t->kind, sizeof b->t->kind, "gemma4/merges");
    TRY(read_special_ids(b, true, 2, 1));
    return read_chat_template(b);
}

static status build_llama(builder *b) {
    b->characters = true;
    TRY(read_arrays(b));
    TRY(read_tokens(b));
    TRY(score_merges_build(b->t, meta_find(b->gguf, "tokenizer.ggml.scores"), b->err));
    TRY(build_characters(b, true));
    snprintf(b->t->kind, sizeof b->t->kind, "llama/scores");
    TRY(read_special_ids(b, true, 1, 2));
    return read_chat_template(b);
}

status tokenizer_from_gguf(tokenizer *t, const meta *gguf, error *err) {
    static const struct {
        const char *model;
        status (*build)(builder *b);
    } models[] = {{"gpt2", build_gpt2}, {"llama", build_llama}, {"gemma4", build_gemma4}};
    builder b = {.t = t, .gguf = gguf, .err = err};
    const char *model;
    size_t n;
    if (!meta_as_string(meta_find(gguf, "tokenizer.ggml.model"), &model, &n))
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: the file has no vocabulary (tokenizer.ggml.model is missing)");
    for (int i = 0; i < 256; i++) b.byte_ids[i] = -1;
    textbuf_init(&b.key, t->m, MEM_TOKENIZER);
    status rc = STATUS_UNSUPPORTED;
    size_t which = 0;
    while (which < sizeof models / sizeof models[0] && (strlen(models[which].model) != n || memcmp(models[which].model, model, n) != 0))
        which++;
    if (which < sizeof models / sizeof models[0])
        rc = models[which].build(&b);
    else
        rc = error_set(err, STATUS_UNSUPPORTED, "tokenizer: unknown vocabulary model '%.*s' (tokenizer.ggml.model)", n < 100 ? (int)n : 100,
                       model);
    textbuf_deinit(&b.key);
    return rc;
}
