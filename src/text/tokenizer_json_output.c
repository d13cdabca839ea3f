/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The sections "decoder" and "post_processor" of a tokenizer.json. A decoder is a chain over the list of tokens; up to where it fuses them,
 * each link looks at one token, so that part is applied to the vocabulary once, here. Behind that only what a stream can do is taken:
 * stripping the front.
 *
 * A run of byte tokens that is not UTF-8 becomes U+FFFD per maximal subpart, like every other broken text; upstream gives one per byte of
 * the run.
 */
#include <string.h>

#include "text/byte_alphabet.h"
#include "text/tokenizer_json.h"
#include "base/utf8.h"

typedef enum link_kind { LINK_REPLACE, LINK_BYTE_FALLBACK, LINK_STRIP, LINK_METASPACE, LINK_BYTE_LEVEL } link_kind;

enum { MAX_LINKS = 16 };

typedef struct link {
    link_kind kind;
    const char *text, *content; /* borrowed from the tree */
    size_t n, n_content, start, stop;
    pattern *p; /* LINK_REPLACE by a regular expression */
} link;

typedef struct decoder {
    json_builder *b;
    link links[MAX_LINKS];
    int n;
    bool fused;
    pattern_search *search;
    textbuf piece[2];
} decoder;

static status unsupported(const json_builder *b, const char *what) {
    return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: decoder '%.60s' is not supported", what);
}

static bool one_character(const char *text, size_t n) {
    uint32_t cp;
    return n > 0 && utf8_decode(text, n, &cp) == n;
}

static status new_link(decoder *d, link_kind kind, link **out) {
    if (d->n == MAX_LINKS) return unsupported(d->b, "Sequence' of more than 16 links: '");
    *out = &d->links[d->n++];
    **out = (link){.kind = kind};
    return STATUS_OK;
}

static status replace_link(decoder *d, const json_t *part) {
    link *l = NULL;
    bool literal = false;
    TRY(new_link(d, LINK_REPLACE, &l));
    TRY(json_part_pattern(d->b, part, &l->text, &l->n, &literal));
    l->content = "";
    TRY(json_part_text(d->b, part, "content", &l->content, &l->n_content));
    if (d->fused && !(literal && one_character(l->text, l->n))) return unsupported(d->b, "Replace' behind 'Fuse");
    return literal && l->n > 0 ? STATUS_OK : pattern_compile(d->b->t->patterns, l->text, l->n, literal, &l->p, d->b->err);
}

static status strip_link(decoder *d, const json_t *part) {
    decode_rule *rule = &d->b->t->decode;
    link l = {.kind = LINK_STRIP}, *kept = NULL;
    TRY(json_part_text(d->b, part, "content", &l.text, &l.n));
    TRY(json_part_size(d->b, part, "start", &l.start));
    TRY(json_part_size(d->b, part, "stop", &l.stop));
    if (!l.text || !one_character(l.text, l.n))
        return error_set(d->b->err, STATUS_FORMAT, "tokenizer: decoder 'Strip': 'content' is not one character");
    if (!d->fused) {
        TRY(new_link(d, LINK_STRIP, &kept));
        *kept = l;
        return STATUS_OK;
    }
    if (l.stop > 0) return unsupported(d->b, "Strip' at the end of a text: 'stop");
    if (rule->n_strip > 0 && l.start > 0) return unsupported(d->b, "Strip' twice: 'start");
    memcpy(rule->strip_char, l.text, l.n);
    rule->n_strip_char = (uint32_t)l.n;
    rule->n_strip = (uint32_t)l.start;
    return STATUS_OK;
}

static status metaspace_link(decoder *d, const json_t *part) {
    decode_rule *rule = &d->b->t->decode;
    link *l = NULL;
    const char *scheme = NULL;
    size_t n = 0;
    bool prefix = true;
    for (int i = 0; i < d->n; i++)
        if (d->links[i].kind != LINK_BYTE_FALLBACK) return unsupported(d->b, "Metaspace' behind others than 'ByteFallback");
    if (d->fused) return unsupported(d->b, "Metaspace' behind 'Fuse");
    TRY(new_link(d, LINK_METASPACE, &l));
    TRY(json_part_text(d->b, part, "replacement", &l->text, &l->n));
    TRY(json_part_text(d->b, part, "prepend_scheme", &scheme, &n));
    TRY(json_part_bool(d->b, part, "add_prefix_space", &prefix));
    if (!l->text || !one_character(l->text, l->n))
        return error_set(d->b->err, STATUS_FORMAT, "tokenizer: decoder 'Metaspace': 'replacement' is not one character");
    if (!scheme) scheme = prefix ? "always" : "never";
    if (strcmp(scheme, "never") == 0) return STATUS_OK;
    memcpy(rule->drop_char, l->text, l->n);
    rule->n_drop_char = (uint32_t)l->n;
    return STATUS_OK;
}

static status read_link(decoder *d, const json_t *part) {
    const char *type = json_part_type(part);
    link *l = NULL;
    size_t i;
    const json_t *one, *list = json_object_get(part, "decoders");
    if (!type) return unsupported(d->b, "without a type");
    if (strcmp(type, "Sequence") == 0) {
        if (!json_is_array(list)) return error_set(d->b->err, STATUS_FORMAT, "tokenizer: Sequence: 'decoders' is not a list");
        json_array_foreach(list, i, one) TRY(read_link(d, one));
        return STATUS_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return STATUS_OK;
    }
    if (strcmp(type, "Strip") == 0) return strip_link(d, part);
    if (strcmp(type, "Replace") == 0) return replace_link(d, part);
    if (strcmp(type, "Metaspace") == 0) return metaspace_link(d, part);
    bool byte_level = strcmp(type, "ByteLevel") == 0;
    if (!byte_level && strcmp(type, "ByteFallback") != 0) return unsupported(d->b, type);
    if (d->fused) return unsupported(d->b, byte_level ? "ByteLevel' behind 'Fuse" : "ByteFallback' behind 'Fuse");
    d->fused |= byte_level;
    return new_link(d, byte_level ? LINK_BYTE_LEVEL : LINK_BYTE_FALLBACK, &l);
}

static status replace_all(decoder *d, const link *l, const char *s, size_t n, textbuf *out) {
    size_t done = 0, begin = 0, end = 0;
    if (!l->p) {
        for (const char *at; (at = memmem(s + done, n - done, l->text, l->n)) != NULL; done = (size_t)(at - s) + l->n) {
            textbuf_add(out, s + done, (size_t)(at - s) - done);
            textbuf_add(out, l->content, l->n_content);
        }
    } else {
        pattern_walk walk;
        pattern_walk_init(&walk, l->p, d->search, s, n);
        for (;;) {
            bool found = false;
            TRY(pattern_walk_next(&walk, &found, &begin, &end, d->b->err));
            if (!found) break;
            textbuf_add(out, s + done, begin - done);
            textbuf_add(out, l->content, l->n_content);
            done = end;
        }
    }
    textbuf_add(out, s + done, n - done);
    return STATUS_OK;
}

static void strip_both(const link *l, const char **s, size_t *n) {
    for (size_t i = 0; i < l->start && *n >= l->n && memcmp(*s, l->text, l->n) == 0; i++) {
        *s += l->n;
        *n -= l->n;
    }
    for (size_t i = 0; i < l->stop && *n >= l->n && memcmp(*s + *n - l->n, l->text, l->n) == 0; i++) *n -= l->n;
}

/* The bytes that a token's text stands for. The text of an added token that the alphabet would turn into broken UTF-8 is left alone. */
static void respell(const char **s, size_t *n, textbuf *out) {
    size_t n_bytes = 0;
    textbuf_add(out, *s, *n);
    if (out->failed || *n == 0 || !byte_alphabet_to_bytes(*s, *n, out->data, &n_bytes)) return;
    out->len = n_bytes;
    *s = out->data;
    *n = n_bytes;
}

/* What a token with this text (in the file's own spelling) adds to decoded text; points into s or into d. */
static status make_piece(decoder *d, const char *s, size_t n, bool added, const char **out, size_t *n_out) {
    const char *verbatim = s;
    size_t n_verbatim = n;
    for (int i = 0; i < d->n; i++) {
        const link *l = &d->links[i];
        textbuf *b = &d->piece[s == textbuf_text(&d->piece[0]) ? 1 : 0]; /* the one that s is not in */
        textbuf_clear(b);
        int byte = l->kind == LINK_BYTE_FALLBACK ? byte_token_value(s, n) : -1;
        switch (l->kind) {
        case LINK_STRIP: /* s may then begin within its buffer: start over from a copy */
            strip_both(l, &s, &n);
            textbuf_add(b, s, n);
            s = textbuf_text(b);
            break;
        case LINK_BYTE_LEVEL:
            respell(&s, &n, b);
            break;
        case LINK_METASPACE: {
            const link spaces = {.kind = LINK_REPLACE, .text = l->text, .n = l->n, .content = " ", .n_content = 1};
            TRY(replace_all(d, &spaces, s, n, b));
            s = textbuf_text(b);
            n = b->len;
            break;
        }
        case LINK_REPLACE:
            TRY(replace_all(d, l, s, n, b));
            s = textbuf_text(b);
            n = b->len;
            break;
        default:
            if (byte < 0) continue;
            textbuf_add(b, &(char){(char)byte}, 1);
            *out = textbuf_text(b); /* half a character: no later link looks at it */
            *n_out = 1;
            return b->failed ? error_set(d->b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a token") : STATUS_OK;
        }
        if (b->failed) return error_set(d->b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a token of %zu bytes", n_verbatim);
    }
    if (added && !utf8_check(s, n, NULL)) {
        s = verbatim;
        n = n_verbatim;
    }
    *out = s;
    *n_out = n;
    return STATUS_OK;
}

static status make_pieces(decoder *d) {
    tokenizer *t = d->b->t;
    textbuf spelled;
    status rc = STATUS_OK;
    bool only_bytes = d->n == 1 && d->links[0].kind == LINK_BYTE_LEVEL;
    textbuf_init(&spelled, t->m, MEM_TOKENIZER);
    for (int32_t id = 0; rc == STATUS_OK && id < t->v.n; id++) {
        size_t n, n_piece = 0;
        const char *key = vocab_key(&t->v, id, &n), *piece = NULL;
        bool reachable = (t->v.attr[id] & (VOCAB_REACHABLE | VOCAB_REWRITTEN)) == VOCAB_REACHABLE;
        if (t->v.attr[id] & VOCAB_REWRITTEN) key = vocab_piece(&t->v, id, &n);
        if (d->b->byte_level && reachable) {
            if (only_bytes) continue; /* the key is what it decodes to */
            textbuf_clear(&spelled);
            for (size_t i = 0; i < n; i++) {
                char c[UTF8_MAX_BYTES];
                textbuf_add(&spelled, c, byte_alphabet_spell(key + i, 1, c));
            }
            key = textbuf_text(&spelled);
            n = spelled.len;
            if (spelled.failed) rc = error_set(d->b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a token of %zu bytes", n);
        }
        if (rc == STATUS_OK) rc = make_piece(d, key, n, !reachable, &piece, &n_piece);
        if (rc == STATUS_OK && (n_piece != t->v.piece_len[id] || memcmp(piece, t->v.bytes + t->v.piece_off[id], n_piece) != 0))
            rc = vocab_set_piece(&t->v, id, piece, n_piece, d->b->err);
        t->v.attr[id] &= (uint8_t)~VOCAB_REWRITTEN;
    }
    textbuf_deinit(&spelled);
    return rc;
}

status json_read_decoder(json_builder *b, const json_t *part) {
    decoder d = {.b = b};
    textbuf_init(&d.piece[0], b->t->m, MEM_TOKENIZER);
    textbuf_init(&d.piece[1], b->t->m, MEM_TOKENIZER);
    status rc = pattern_search_create(b->t->patterns, &d.search, b->err);
    b->t->decode.spaces = !part || json_is_null(part);
    if (rc == STATUS_OK && !b->t->decode.spaces) rc = read_link(&d, part);
    if (rc == STATUS_OK) rc = make_pieces(&d);
    for (int i = 0; i < d.n; i++) pattern_destroy(d.links[i].p);
    pattern_search_destroy(d.search);
    textbuf_deinit(&d.piece[0]);
    textbuf_deinit(&d.piece[1]);
    return rc;
}

/* --- post-processor --- */

static status affix_full(const json_builder *b) {
    return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: more than %d tokens around a text", TOKENIZER_MAX_AFFIX);
}

/* Put an id before all of the prefix (at = how many of this processor's are there already) or behind the suffix. */
static status add_affix(json_builder *b, bool before, int at, json_int_t id) {
    tokenizer *t = b->t;
    if (id < 0 || id >= t->v.n)
        return error_set(b->err, STATUS_FORMAT, "tokenizer: the post-processor adds id %lld, which no token has", (long long)id);
    int *n = before ? &t->n_prefix : &t->n_suffix;
    int32_t *list = before ? t->prefix : t->suffix;
    if (*n == TOKENIZER_MAX_AFFIX) return affix_full(b);
    if (before) memmove(list + at + 1, list + at, (size_t)(*n - at) * sizeof *list);
    list[before ? at : *n] = (int32_t)id;
    ++*n;
    return STATUS_OK;
}

static status read_template(json_builder *b, const json_t *part) {
    const json_t *single = json_object_get(part, "single"), *specials = json_object_get(part, "special_tokens"), *piece, *id;
    size_t i, k;
    int n_before = 0, n_texts = 0;
    if (!json_is_array(single)) return error_set(b->err, STATUS_FORMAT, "tokenizer: TemplateProcessing: 'single' is not a list");
    json_array_foreach(single, i, piece) {
        const json_t *sequence = json_object_get(piece, "Sequence"), *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(sequence ? sequence : special, "id"));
        if (!name)
            return error_set(b->err, STATUS_FORMAT, "tokenizer: TemplateProcessing: piece %zu is neither Sequence nor SpecialToken", i);
        if (sequence) {
            if (strcmp(name, "A") != 0 || n_texts++ > 0)
                return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: TemplateProcessing: 'single' uses other than one 'A'");
            continue;
        }
        const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
        if (!json_is_array(ids)) return error_set(b->err, STATUS_FORMAT, "tokenizer: TemplateProcessing: no ids for '%.60s'", name);
        json_array_foreach(ids, k, id) {
            if (!json_is_integer(id))
                return error_set(b->err, STATUS_FORMAT, "tokenizer: TemplateProcessing: an id of '%.60s' is no number", name);
            TRY(add_affix(b, n_texts == 0, n_before, json_integer_value(id)));
            n_before += n_texts == 0;
        }
    }
    return n_texts == 1 ? STATUS_OK : error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: TemplateProcessing: 'single' has no text");
}

/* ["<s>", 0] under key, as BertProcessing and RobertaProcessing have it. */
static status read_pair(json_builder *b, const json_t *part, const char *key, bool before) {
    const json_t *id = json_array_get(json_object_get(part, key), 1);
    if (!json_is_integer(id))
        return error_set(b->err, STATUS_FORMAT, "tokenizer: %.60s: '%s' is not a token and its id", json_part_type(part), key);
    return add_affix(b, before, 0, json_integer_value(id));
}

status json_read_post_processor(json_builder *b, const json_t *part) {
    const char *type = json_part_type(part);
    const json_t *list = json_object_get(part, "processors"), *one;
    size_t i;
    if (!part || json_is_null(part)) return STATUS_OK;
    if (!type) return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: a post-processor without a type");
    if (strcmp(type, "ByteLevel") == 0) return STATUS_OK; /* moves offsets, no ids */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(b, part);
    if (strcmp(type, "Sequence") == 0) {
        if (!json_is_array(list)) return error_set(b->err, STATUS_FORMAT, "tokenizer: Sequence: 'processors' is not a list");
        json_array_foreach(list, i, one) TRY(json_read_post_processor(b, one));
        return STATUS_OK;
    }
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        TRY(read_pair(b, part, "cls", true));
        return read_pair(b, part, "sep", false);
    }
    return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: post-processor '%.60s' is not supported", type);
}
