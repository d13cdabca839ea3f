/* SPDX-License-Identifier: Apache-2.0 */
/* pack: the experts of a model again, each as one aligned record with a checksum. */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/json_out.h"
#include "cli/progress_line.h"
#include "cli/session.h"

static status run_pack(cli *x, error *err) {
    const char *out = config_text(x->c, CONFIG_KEY_OUT);
    headrace_error why = {0};
    headrace_config *settings = NULL;
    headrace_pack_result r = {.size = sizeof r};
    if (!config_is_set(x->c, CONFIG_KEY_MODEL)) return error_set(err, STATUS_INVALID, "pack: no model given; use -m PATH");
    if (out == NULL) return error_set(err, STATUS_INVALID, "pack: nowhere to write; use -o PATH");
    TRY(session_config(x, &settings, err));
    x->progress->verb = "packing and reading back";
    const uint64_t begin = os_now_ns();
    const status rc = session_status(headrace_pack(settings, out, progress_update, x->progress, &r, &why), &why, err);
    progress_clear(x->progress);
    headrace_config_destroy(settings);
    TRY(rc);
    const double seconds = (double)(os_now_ns() - begin) / 1e9;
    if (x->json) {
        return json_print(json_pack("{s:o, s:I, s:I, s:I, s:o}", "path", json_text(x->m, out, strlen(out)), "records", (json_int_t)r.n_records, "resumed", (json_int_t)r.n_resumed, "bytes",
                                    (json_int_t)r.file_bytes, "seconds", json_number(seconds)),
                          err);
    }
    printf("%s: %llu experts, %.2f GiB, written and read back in %.1f s", out, (unsigned long long)r.n_records, (double)r.file_bytes / 0x1p30, seconds);
    if (r.n_resumed > 0) printf("; %llu were there from an earlier try", (unsigned long long)r.n_resumed);
    printf("\n");
    return STATUS_OK;
}

const cli_command cmd_pack = {
    .name = "pack",
    .summary = "write a model's experts as aligned records with checksums",
    .usage = "-m MODEL -o FILE",
    .about = "Writes the experts of a mixture again, into a file beside the model: each one record, read at once and compared with its\n"
             "checksum. Stream from it with --expert-bank FILE. An interrupted call is gone on with; the file appears under its name\n"
             "when it is whole and was read back.\n",
    .examples = "pack -m model.gguf -o model.experts\n"
                "complete -m model.gguf --experts stream --expert-bank model.experts -p Hello\n",
    .where = CONFIG_PACK,
    .run = run_pack,
};
