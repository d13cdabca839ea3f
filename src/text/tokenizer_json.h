/* SPDX-License-Identifier: Apache-2.0 */
/** Parts of a tokenizer.json, for the files that read it. The small sections are trees (json_doc); vocabulary and merges are scanned. */
#ifndef HEADRACE_TEXT_TOKENIZER_JSON_H
#define HEADRACE_TEXT_TOKENIZER_JSON_H

#include "load/json_doc.h"
#include "text/tokenizer_impl.h"

enum { TOKENIZER_JSON_MAX_BYTES = 512 * 1024 * 1024, TOKENIZER_JSON_MAX_NESTING = 8 };

/* What is known while the sections are read. */
typedef struct json_builder {
    tokenizer *t;
    error *err;
    bool spelled;    /* text is spelled in the byte alphabet at this point of the pipeline */
    bool byte_level; /* spelling is the last step, so the model takes bytes and its keys are bytes */
} json_builder;

/** "type" of a section as a name; NULL when it has none. */
const char *json_part_type(const json_t *part);
/** Members of sections; an absent one leaves *out alone; another type is STATUS_FORMAT naming the section and the member. */
NODISCARD status json_part_bool(const json_builder *b, const json_t *part, const char *key, bool *out);
NODISCARD status json_part_size(const json_builder *b, const json_t *part, const char *key, size_t *out);
NODISCARD status json_part_text(const json_builder *b, const json_t *part, const char *key, const char **out, size_t *n);
/** "pattern": {"String": ...} or {"Regex": ...}. */
NODISCARD status json_part_pattern(const json_builder *b, const json_t *part, const char **regex, size_t *n, bool *literal);

/** Sections may be NULL or null. Unknown kinds are STATUS_UNSUPPORTED by name. */
NODISCARD status json_read_normalizer(json_builder *b, const json_t *part);
NODISCARD status json_read_pre_tokenizer(json_builder *b, const json_t *part);
/** The pieces of all tokens and the rule for the joined text; the vocabulary is complete. */
NODISCARD status json_read_decoder(json_builder *b, const json_t *part);
NODISCARD status json_read_post_processor(json_builder *b, const json_t *part);

#endif
