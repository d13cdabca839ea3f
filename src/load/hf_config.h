/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The metadata of a Hugging Face directory: config.json as the top level; generation_config.json and tokenizer_config.json, where they are, below "@".
 */
#ifndef HEADRACE_LOAD_HF_CONFIG_H
#define HEADRACE_LOAD_HF_CONFIG_H

#include "load/json_doc.h"
#include "load/source_impl.h"

/** Read the JSON files of the directory s->path into a meta. */
NODISCARD status hf_config_read(source *s, meta **out, error *err);

/** A JSON file of the directory, through the source's reader; it must be an object. STATUS_NOT_FOUND when there is none. */
NODISCARD status hf_json_read(source *s, const char *name, size_t max_bytes, unsigned flags, json_doc *out, error *err);

#endif
