/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Tokenizers: text to ids and back. Built from a checkpoint's own vocabulary; exactly its ids, or a refusal by name (unknown model, unknown
 * pre-tokenizer). Constant after open; encode and decode may run on several threads (scratch comes from the caller's arena or buffer).
 */
#ifndef HEADRACE_TEXT_TOKENIZER_H
#define HEADRACE_TEXT_TOKENIZER_H

#include "base/arena.h"
#include "base/textbuf.h"
#include "load/source.h"

typedef struct tokenizer tokenizer;

typedef struct tokenizer_options {
    int64_t n_vocab_model; /* rows of the embedding table: ids stay below; added tokens beyond are left out (said in the log), a model vocabulary beyond is refused; 0 = do not check */
} tokenizer_options;

/** From GGUF `tokenizer.ggml.*`, or from tokenizer.json beside safetensors (with tokenizer_config.json, generation_config.json, chat_template.jinja). */
NODISCARD status tokenizer_open(mem *m, const source *s, const tokenizer_options *opt, tokenizer **out, error *err);
void tokenizer_close(tokenizer *t);

typedef struct token_list {
    mem *m;
    mem_tag tag;
    int32_t *ids;
    size_t n, cap;
} token_list;
void token_list_init(token_list *l, mem *m, mem_tag tag);
void token_list_deinit(token_list *l);
NODISCARD status token_list_add(token_list *l, int32_t id);

typedef enum tokenizer_bos { TOKENIZER_BOS_DEFAULT, TOKENIZER_BOS_ADD, TOKENIZER_BOS_OMIT } tokenizer_bos;

/**
 * Append the ids of `text` (n bytes, UTF-8). bos: in front, as the checkpoint says by default. parse_special: special tokens written in the text become their id,
 * as Hugging Face does; otherwise they are ordinary text (words that a vocabulary added without calling them special are matched either way). Text that is not valid UTF-8 is STATUS_INVALID naming the byte offset. Linear in n (n log n at most).
 */
NODISCARD status tokenizer_encode(const tokenizer *t, const char *text, size_t n, tokenizer_bos bos, bool parse_special, token_list *out, error *err);

/**
 * Append the text of ids. Bytes that do not form UTF-8 become U+FFFD; special tokens are written unless skip_special. An id out of range is STATUS_INVALID.
 */
NODISCARD status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special, textbuf *out, error *err);

/** The raw bytes of one token (empty for ids without text); borrowed. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *n);
int32_t tokenizer_size(const tokenizer *t);
int32_t tokenizer_bos_id(const tokenizer *t); /* -1 = none */
bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/** Ids that end a generation: eos, eot and what the checkpoint lists. */
bool tokenizer_is_end(const tokenizer *t, int32_t id);
const int32_t *tokenizer_end_ids(const tokenizer *t, size_t *n);
const char *tokenizer_kind(const tokenizer *t); /* "gpt2/smollm": for inspect */
/** The chat template text, or NULL. Borrowed. */
const char *tokenizer_chat_template(const tokenizer *t);

/** Streaming decode: give ids one by one, get whole code points; owned by one request. */
typedef struct detokenizer {
    const tokenizer *t;
    char pending[16];
    size_t n_pending;
    uint32_t n_strip;           /* characters that may still be stripped from the front */
    bool skip_special, started; /* set started before the first id when the ids go on a text: nothing is then stripped from their front */
} detokenizer;
void detokenizer_init(detokenizer *d, const tokenizer *t, bool skip_special);
/** Append what is certain; holds back an incomplete UTF-8 sequence. */
NODISCARD status detokenizer_add(detokenizer *d, int32_t id, textbuf *out);
/** Append what was held back (U+FFFD for an incomplete sequence). */
void detokenizer_finish(detokenizer *d, textbuf *out);

#endif
