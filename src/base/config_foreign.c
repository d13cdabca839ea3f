/* SPDX-License-Identifier: Apache-2.0 */
/* What the flags of llama.cpp and vLLM that people bring along are called here, or that there is no such thing yet: for the refusal of an unknown flag, which does not guess then. */
#include "base/config_hint.h"

#include <string.h>

const config_foreign_row config_foreign_rows[] = {
    {"-ngl|--n-gpu-layers|--gpu-layers|-ngld", "here --device and --device-mem say it; what goes where is planned in bytes"},
    {"-ot|--override-tensor|-cmoe|--cpu-moe|-ncmoe|--n-cpu-moe|--cpu-offload-gb|--moe-cache-mib|--ssd-streaming", "here --experts stream and --device-experts say it; experts move by use, not by layer"},
    {"--ctx-size|--max-model-len", "here it is --ctx"},
    {"-b|--batch-size|-ub|--ubatch-size|--max-num-batched-tokens", "here it is --max-batch-tokens"},
    {"-np|--parallel|--max-num-seqs", "here it is --max-seqs"},
    {"--predict|--max-tokens", "here it is --n-predict"},
    {"--temperature", "here it is --temp"},
    {"--repeat-penalty", "here it is --repetition-penalty"},
    {"-s", "here it is --seed"},
    {"--reverse-prompt", "here it is --stop"},
    {"--mmap", "here it is --load map"},
    {"--no-mmap", "here it is --load read"},
    {"-ctk|-ctv|--cache-type-k|--cache-type-v|--kv-cache-dtype", "here it is --kv-dtype, of keys and values alike"},
    {"--kv-cache-memory-bytes", "here it is --kv-mem"},
    {"--host|--port|--api-key|--served-model-name|-a|--alias", "there is no server yet"},
    {"--gpu-memory-utilization", "here it is --device-mem, a size"},
    {"--enable-prefix-caching|--no-enable-prefix-caching", "here it is --prefix-cache or --no-prefix-cache"},
    {"--enforce-eager", "here it is --capture off"},
    {"-hf|-hfr|--hf-repo", "here --model takes org/name from the Hugging Face cache, and nothing is fetched"},
    {"-cnv|--conversation|--chat-template|--jinja", "there are no chat templates yet; a prompt is continued as it is written"},
    {"--grammar|--grammar-file|-j|--json-schema|--guided-decoding-backend", "there are no grammars yet"},
    {"-md|--model-draft|--speculative-config", "there is no speculative decoding yet"},
    {"--lora|--enable-lora", "there are no adapters yet"},
    {"-tp|--tensor-parallel-size|-pp|--pipeline-parallel-size|-sm|--split-mode|-ts|--tensor-split", "one model is on one device so far"},
};
const size_t config_n_foreign_rows = sizeof config_foreign_rows / sizeof config_foreign_rows[0];

const char *config_foreign(const char *flag) {
    const size_t n = strlen(flag);
    for (size_t i = 0; n > 0 && i < config_n_foreign_rows; i++) {
        for (const char *p = config_foreign_rows[i].flags; *p != '\0';) {
            const size_t len = strcspn(p, "|");
            if (len == n && memcmp(p, flag, n) == 0) return config_foreign_rows[i].here;
            p += len + (p[len] == '|');
        }
    }
    return NULL;
}
