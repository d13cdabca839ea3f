/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Merges of a vocabulary that has scores instead (SentencePiece's BPE): two neighbours join when the vocabulary has their joined text, the
 * highest score first, leftmost among equals. So each way to cut a token into two tokens is a merge, ranked by the score of the whole.
 */
#ifndef HEADRACE_TEXT_SCORE_MERGES_H
#define HEADRACE_TEXT_SCORE_MERGES_H

#include "load/meta.h"
#include "text/tokenizer_impl.h"

enum { SCORE_MERGES_MAX_TOKEN_BYTES = 256 };

/** Build t->model from t->v and the array of scores (one a token, no NaN). */
NODISCARD status score_merges_build(tokenizer *t, const meta_value *scores, error *err);

#endif
