/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a checkpoint says that its answers are drawn: `generation_config.json`, or `general.sampling.*` of a GGUF. Only what is written there; end
 * tokens are the tokenizer's.
 */
#ifndef HEADRACE_LOAD_GENERATION_CONFIG_H
#define HEADRACE_LOAD_GENERATION_CONFIG_H

#include "load/source.h"

typedef struct generation_config {
    bool given;                 /* anything of it is written */
    double temperature;         /* 0: the most likely token, also where a generation_config.json does not ask to sample */
    int64_t top_k;              /* 0: off */
    double top_p, min_p;        /* 1 and 0: off */
    double repetition_penalty;  /* 1: off */
} generation_config;

/** Values of a wrong type or out of range: STATUS_FORMAT, all of them in one text. */
NODISCARD status generation_config_read(mem *m, const source *s, generation_config *out, error *err);

#endif
