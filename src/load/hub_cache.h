/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Names of models in the Hugging Face cache: org/name[@revision]. The cache is only read, nothing is ever downloaded. Where it is: HF_HUB_CACHE, else HF_HOME/hub,
 * else XDG_CACHE_HOME/huggingface/hub, else HOME/.cache/huggingface/hub. Inside: models--ORG--NAME/refs/REVISION holds a commit, whose files are in
 * snapshots/COMMIT. Source: "Understand caching" in the documentation of huggingface_hub.
 */
#ifndef HEADRACE_LOAD_HUB_CACHE_H
#define HEADRACE_LOAD_HUB_CACHE_H

#include "base/alloc.h"

/** Whether the text has the form of such a name; paths like "./a/b", "/a/b" and "a/b/c" have not. */
bool hub_cache_is_name(const char *text);

/** The directory of a name's snapshot, to be freed with mem_free. STATUS_NOT_FOUND says which command would fetch it. */
NODISCARD status hub_cache_find(mem *m, const char *name, char **out, error *err);

#endif
