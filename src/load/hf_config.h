/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The metadata of a Hugging Face directory: config.json as the top level; generation_config.json and tokenizer_config.json, where they are, below "@".
 */
#ifndef HEADRACE_LOAD_HF_CONFIG_H
#define HEADRACE_LOAD_HF_CONFIG_H

#include "load/json_doc.h"
#include "load/source_impl.h"

/** Read the JSON files of directory `dir` into a meta. */
NODISCARD status hf_config_read(source *s, const char *dir, meta **out, error *err);

/** A whole JSON file of a directory through the source's reader; it must be an object. STATUS_NOT_FOUND when there is none. */
NODISCARD status hf_json_read(source *s, const char *dir, const char *name, size_t max_bytes, unsigned flags, json_doc *out, error *err);

/** "dir/name" in the arena of the source; NULL when memory is refused. */
char *hf_path(source *s, const char *dir, const char *name);

#endif
