/* SPDX-License-Identifier: Apache-2.0 */
/** The sections "normalizer" and "pre_tokenizer" of a tokenizer.json. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_json.h"
#include "base/utf8.h"

const char *json_part_type(const json_t *part) { return json_string_value(json_object_get(part, "type")); }

static status wrong_type(const json_builder *b, const json_t *part, const char *key, const char *wanted) {
    const char *type = json_part_type(part);
    return error_set(b->err, STATUS_FORMAT, "tokenizer: %.60s: '%s' is not %s", type ? type : "a section", key, wanted);
}

status json_part_bool(const json_builder *b, const json_t *part, const char *key, bool *out) {
    const json_t *v = json_object_get(part, key);
    if (!v || json_is_null(v)) return STATUS_OK;
    if (!json_is_boolean(v)) return wrong_type(b, part, key, "true or false");
    *out = json_is_true(v);
    return STATUS_OK;
}

status json_part_size(const json_builder *b, const json_t *part, const char *key, size_t *out) {
    const json_t *v = json_object_get(part, key);
    if (!v || json_is_null(v)) return STATUS_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX) return wrong_type(b, part, key, "a count");
    *out = (size_t)json_integer_value(v);
    return STATUS_OK;
}

status json_part_text(const json_builder *b, const json_t *part, const char *key, const char **out, size_t *n) {
    const json_t *v = json_object_get(part, key);
    if (!v || json_is_null(v)) return STATUS_OK;
    if (!json_is_string(v)) return wrong_type(b, part, key, "a text");
    *out = json_string_value(v);
    *n = json_string_length(v);
    return STATUS_OK;
}

status json_part_pattern(const json_builder *b, const json_t *part, const char **regex, size_t *n, bool *literal) {
    const json_t *holder = json_object_get(part, "pattern");
    const json_t *text = json_object_get(holder, "String"), *expression = json_object_get(holder, "Regex");
    const json_t *v = text ? text : expression;
    if (!json_is_string(v) || (text && expression)) return wrong_type(b, part, "pattern", "a String or a Regex");
    *regex = json_string_value(v);
    *n = json_string_length(v);
    *literal = text != NULL;
    return STATUS_OK;
}

/* One character, as "replacement", "delimiter" and "content" of some kinds have to be. */
static status one_character(const json_builder *b, const json_t *part, const char *key, const char **out, size_t *n) {
    uint32_t cp;
    *out = NULL;
    TRY(json_part_text(b, part, key, out, n));
    if (!*out || *n == 0 || utf8_decode(*out, *n, &cp) != *n) return wrong_type(b, part, key, "one character");
    return STATUS_OK;
}

static status unsupported(const json_builder *b, const char *section, const json_t *part) {
    const char *type = json_part_type(part);
    return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: %s '%.60s' is not supported", section, type ? type : "without a type");
}

static status spell_once(json_builder *b) {
    if (b->spelled) return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: the byte alphabet is applied twice");
    b->spelled = true;
    return STATUS_OK;
}

/* --- normalizer --- */

static status replace_step(json_builder *b, const json_t *part) {
    const char *regex = NULL, *content = "";
    size_t n = 0, n_content = 0;
    bool literal = false;
    TRY(json_part_pattern(b, part, &regex, &n, &literal));
    TRY(json_part_text(b, part, "content", &content, &n_content));
    if (n == 0) return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: normalizer 'Replace' of nothing is not supported");
    return normalizer_add_replace(&b->t->norm, regex, n, literal, content, n_content, b->err);
}

static status prepend_step(json_builder *b, const json_t *part) {
    const char *text = "";
    size_t n = 0;
    TRY(json_part_text(b, part, "prepend", &text, &n));
    return normalizer_add(&b->t->norm, NORMALIZER_PREPEND, text, n, b->err);
}

static status strip_step(json_builder *b, const json_t *part) {
    bool left = true, right = true;
    TRY(json_part_bool(b, part, "strip_left", &left));
    TRY(json_part_bool(b, part, "strip_right", &right));
    if (left) TRY(normalizer_add(&b->t->norm, NORMALIZER_STRIP_LEFT, NULL, 0, b->err));
    return right ? normalizer_add(&b->t->norm, NORMALIZER_STRIP_RIGHT, NULL, 0, b->err) : STATUS_OK;
}

static status spell_step(json_builder *b, const json_t *part) {
    (void)part;
    TRY(spell_once(b));
    return normalizer_add(&b->t->norm, NORMALIZER_SPELL, NULL, 0, b->err);
}

static status normalizer_sequence(json_builder *b, const json_t *part);

static status read_normalizer(json_builder *b, const json_t *part) {
    static const struct {
        const char *type;
        status (*read)(json_builder *b, const json_t *part);
    } readers[] = {{"Sequence", normalizer_sequence},
                   {"Replace", replace_step},
                   {"Prepend", prepend_step},
                   {"Strip", strip_step},
                   {"ByteLevel", spell_step}};
    static const struct {
        const char *type;
        normalizer_kind kind;
    } simple[] = {{"NFC", NORMALIZER_NFC},
                  {"NFD", NORMALIZER_NFD},
                  {"NFKC", NORMALIZER_NFKC},
                  {"NFKD", NORMALIZER_NFKD},
                  {"Lowercase", NORMALIZER_LOWERCASE},
                  {"StripAccents", NORMALIZER_STRIP_ACCENTS},
                  {"Nmt", NORMALIZER_NMT}};
    const char *type = json_part_type(part);
    if (!type) return unsupported(b, "normalizer", part);
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(type, readers[i].type) == 0) return readers[i].read(b, part);
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++)
        if (strcmp(type, simple[i].type) == 0) return normalizer_add(&b->t->norm, simple[i].kind, NULL, 0, b->err);
    return unsupported(b, "normalizer", part);
}

static status normalizer_sequence(json_builder *b, const json_t *part) {
    const json_t *list = json_object_get(part, "normalizers"), *one;
    size_t i;
    if (!json_is_array(list)) return wrong_type(b, part, "normalizers", "a list");
    json_array_foreach(list, i, one) TRY(read_normalizer(b, one)); /* as deep as json_doc lets a file nest */
    return STATUS_OK;
}

status json_read_normalizer(json_builder *b, const json_t *part) {
    return !part || json_is_null(part) ? STATUS_OK : read_normalizer(b, part);
}

/* --- pre-tokenizer --- */

static status behavior_of(const json_builder *b, const json_t *part, pre_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const char *name = NULL;
    size_t n = 0;
    TRY(json_part_text(b, part, "behavior", &name, &n));
    if (!name) return STATUS_OK;
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (pre_behavior)i;
            return STATUS_OK;
        }
    return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: behavior '%.60s' of a pre-tokenizer is not known", name);
}

static status add_regex(json_builder *b, const char *regex, pre_behavior behavior, bool invert) {
    return pre_tokenizer_add_split(&b->t->pre, regex, strlen(regex), false, behavior, invert, b->err);
}

static status split_step(json_builder *b, const json_t *part) {
    const char *regex = NULL;
    size_t n = 0;
    bool literal = false, invert = false;
    pre_behavior behavior = PRE_ISOLATED;
    TRY(json_part_pattern(b, part, &regex, &n, &literal));
    TRY(behavior_of(b, part, &behavior));
    TRY(json_part_bool(b, part, "invert", &invert));
    return pre_tokenizer_add_split(&b->t->pre, regex, n, literal, behavior, invert, b->err);
}

static status byte_level_step(json_builder *b, const json_t *part) {
    bool prefix = true, regex = true;
    TRY(json_part_bool(b, part, "add_prefix_space", &prefix));
    TRY(json_part_bool(b, part, "use_regex", &regex));
    if (prefix) TRY(pre_tokenizer_add(&b->t->pre, PRE_PREFIX, " ", b->err));
    if (regex) TRY(add_regex(b, pre_byte_level_pattern, PRE_ISOLATED, false));
    TRY(spell_once(b));
    return pre_tokenizer_add(&b->t->pre, PRE_SPELL, NULL, b->err);
}

static status metaspace_step(json_builder *b, const json_t *part) {
    const char *mark = NULL, *scheme = NULL;
    size_t n = 0, n_scheme = 0;
    bool split = true, prefix = true;
    TRY(one_character(b, part, "replacement", &mark, &n));
    TRY(json_part_text(b, part, "prepend_scheme", &scheme, &n_scheme));
    TRY(json_part_bool(b, part, "add_prefix_space", &prefix));
    TRY(json_part_bool(b, part, "split", &split));
    if (!scheme) scheme = prefix ? "always" : "never";
    TRY(pre_tokenizer_add(&b->t->pre, PRE_REPLACE_SPACE, mark, b->err));
    if (strcmp(scheme, "always") == 0)
        TRY(pre_tokenizer_add(&b->t->pre, PRE_PREFIX, mark, b->err));
    else if (strcmp(scheme, "first") == 0)
        TRY(pre_tokenizer_add(&b->t->pre, PRE_PREFIX_FIRST, mark, b->err));
    else if (strcmp(scheme, "never") != 0)
        return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: prepend_scheme '%.60s' is not known", scheme);
    return split ? pre_tokenizer_add_split(&b->t->pre, mark, n, true, PRE_MERGED_WITH_NEXT, false, b->err) : STATUS_OK;
}

static status digits_step(json_builder *b, const json_t *part) {
    bool individual = false;
    TRY(json_part_bool(b, part, "individual_digits", &individual));
    /* Numbers by the Unicode (17) of upstream's standard library, which is ahead of its patterns' */
    return add_regex(b, "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]", individual ? PRE_ISOLATED : PRE_CONTIGUOUS, false);
}

/* ASCII's and Unicode's, by a table older than that of patterns. */
static status add_punctuation(json_builder *b, pre_behavior behavior) {
    textbuf set;
    textbuf_init(&set, b->t->m, MEM_TOKENIZER);
    textbuf_adds(&set, "(?![");
#define MORE(first, last)
#define LESS(first, last) textbuf_addf(&set, "\\x{%x}-\\x{%x}", (unsigned)(first), (unsigned)(last));
#include "text/unicode_punctuation.def"
#undef MORE
#undef LESS
    textbuf_adds(&set, "])[!-/:-@\\[-`{-~\\p{P}");
#define MORE(first, last) textbuf_addf(&set, "\\x{%x}-\\x{%x}", (unsigned)(first), (unsigned)(last));
#define LESS(first, last)
#include "text/unicode_punctuation.def"
#undef MORE
#undef LESS
    textbuf_adds(&set, "]");
    status rc = set.failed ? error_set(b->err, STATUS_NO_MEMORY, "tokenizer: no memory for a pattern")
                           : add_regex(b, textbuf_text(&set), behavior, false);
    textbuf_deinit(&set);
    return rc;
}

static status punctuation_step(json_builder *b, const json_t *part) {
    pre_behavior behavior = PRE_ISOLATED;
    TRY(behavior_of(b, part, &behavior));
    return add_punctuation(b, behavior);
}

static status bert_step(json_builder *b, const json_t *part) {
    (void)part;
    TRY(add_regex(b, "\\s", PRE_REMOVED, false));
    return add_punctuation(b, PRE_ISOLATED);
}

static status whitespace_step(json_builder *b, const json_t *part) {
    (void)part;
    return add_regex(b, "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+", PRE_REMOVED, true);
}

static status whitespace_split_step(json_builder *b, const json_t *part) {
    (void)part;
    return add_regex(b, "\\s", PRE_REMOVED, false);
}

static status delimiter_step(json_builder *b, const json_t *part) {
    const char *delimiter = NULL;
    size_t n = 0;
    TRY(one_character(b, part, "delimiter", &delimiter, &n));
    return pre_tokenizer_add_split(&b->t->pre, delimiter, n, true, PRE_REMOVED, false, b->err);
}

static status fixed_length_step(json_builder *b, const json_t *part) {
    size_t length = 5;
    char regex[32];
    TRY(json_part_size(b, part, "length", &length));
    if (length == 0 || length > 60000)
        return error_set(b->err, STATUS_UNSUPPORTED, "tokenizer: pre-tokenizer 'FixedLength' of %zu", length);
    snprintf(regex, sizeof regex, "(?m:.{1,%zu})", length);
    return add_regex(b, regex, PRE_ISOLATED, false);
}

static status pre_tokenizer_sequence(json_builder *b, const json_t *part);

static status read_pre_tokenizer(json_builder *b, const json_t *part) {
    static const struct {
        const char *type;
        status (*read)(json_builder *b, const json_t *part);
    } readers[] = {{"Sequence", pre_tokenizer_sequence},
                   {"Split", split_step},
                   {"ByteLevel", byte_level_step},
                   {"Metaspace", metaspace_step},
                   {"Digits", digits_step},
                   {"Punctuation", punctuation_step},
                   {"BertPreTokenizer", bert_step},
                   {"Whitespace", whitespace_step},
                   {"WhitespaceSplit", whitespace_split_step},
                   {"CharDelimiterSplit", delimiter_step},
                   {"FixedLength", fixed_length_step}};
    const char *type = json_part_type(part);
    for (size_t i = 0; type && i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(type, readers[i].type) == 0) return readers[i].read(b, part);
    return unsupported(b, "pre-tokenizer", part);
}

static status pre_tokenizer_sequence(json_builder *b, const json_t *part) {
    const json_t *list = json_object_get(part, "pretokenizers"), *one;
    size_t i;
    if (!json_is_array(list)) return wrong_type(b, part, "pretokenizers", "a list");
    json_array_foreach(list, i, one) TRY(read_pre_tokenizer(b, one));
    return STATUS_OK;
}

status json_read_pre_tokenizer(json_builder *b, const json_t *part) {
    pre_tokenizer *p = &b->t->pre;
    if (part && !json_is_null(part)) TRY(read_pre_tokenizer(b, part));
    /* Spelling as the last step is left to the model, which then takes bytes; otherwise the model sees spelled characters like any others.
     */
    b->byte_level = p->n > 0 && p->steps[p->n - 1].kind == PRE_SPELL;
    if (b->byte_level) p->n--;
    return STATUS_OK;
}
