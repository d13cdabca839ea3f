/* SPDX-License-Identifier: Apache-2.0 */
/* make-model: a random checkpoint in the shape of a published mixture of experts. */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/progress_line.h"
#include "load/random_model.h"

static status run_make_model(cli *x, error *err) {
    const config *c = x->c;
    const char *out = config_text(c, CONFIG_KEY_OUT);
    random_model_request r = {
        .shape = config_text(c, CONFIG_KEY_SHAPE),
        .dtype = config_text(c, CONFIG_KEY_DTYPE),
        .n_layers = config_count(c, CONFIG_KEY_LAYERS),
        .n_experts = config_count(c, CONFIG_KEY_N_EXPERTS),
        .n_vocab = config_count(c, CONFIG_KEY_VOCAB),
        .skew = config_real(c, CONFIG_KEY_SKEW),
        .seed = (uint64_t)config_count(c, CONFIG_KEY_SEED),
        .progress = progress_update,
        .user = x->progress,
    };
    random_model_result made;
    if (out == NULL) return error_set(err, STATUS_INVALID, "make-model: nowhere to write; use -o PATH");
    if (r.shape == NULL) return error_set(err, STATUS_INVALID, "make-model: no shape given; use --shape NAME: %s", random_model_shapes());
    x->progress->verb = "writing";
    const uint64_t begin = os_now_ns();
    const status rc = random_model_write(x->m, out, &r, &made, err);
    progress_clear(x->progress);
    TRY(rc);
    const double seconds = (double)(os_now_ns() - begin) / 1e9;
    if (x->json) {
        return json_print(json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:o}", "path", json_text(x->m, out, strlen(out)), "shape", r.shape, "dtype", r.dtype, "layers", (json_int_t)made.n_layers,
                                    "experts", (json_int_t)made.n_experts, "top_k", (json_int_t)made.top_k, "skew", r.skew, "bytes", (json_int_t)made.file_bytes, "expert_bytes",
                                    (json_int_t)made.expert_bytes, "seconds", json_number(seconds)),
                          err);
    }
    printf("%s: %s in %s, %lld layers of %lld experts (top %lld), skew %g\n%.2f GiB, %.2f GiB of them experts, in %.1f s (%.2f GB/s)\n", out, r.shape, r.dtype, (long long)made.n_layers,
           (long long)made.n_experts, (long long)made.top_k, r.skew, (double)made.file_bytes / 0x1p30, (double)made.expert_bytes / 0x1p30, seconds, (double)made.file_bytes / 1e9 / seconds);
    return STATUS_OK;
}

const cli_command cmd_make_model = {
    .name = "make-model",
    .summary = "write a random mixture of experts to measure with",
    .usage = "--shape NAME [--layers N] [--dtype T] [--skew S] -o PATH",
    .about = "Writes a random checkpoint in a published shape: a GGUF file (mxfp4, q4_0) or a directory of safetensors (bf16, fp8).\n"
             "Which experts a token takes hangs on its id, and some are taken more often: in each layer the r-th favourite is taken\n"
             "about as r^-S. What the model says is noise. The file appears under its name when it is whole.\n",
    .examples = "make-model --shape tiny --dtype q4_0 -o tiny.gguf\n"
                "make-model --shape qwen3-30b-a3b --layers 24 --dtype q4_0 --skew 1 -o big.gguf\n"
                "make-model --shape gemma-4-26b-a4b --dtype fp8 --layers 12 -o gemma\n",
    .where = CONFIG_MAKE_MODEL,
    .run = run_make_model,
};
