/* SPDX-License-Identifier: Apache-2.0 */
/* inspect and doctor: reports that the engine writes. */
#include <stdio.h>
#include <string.h>

#include "cli/session.h"

static status print_report(const cli *x, headrace_report what, error *err) {
    headrace_error why = {0};
    headrace_config *settings = NULL;
    char *text = NULL;
    TRY(session_config(x, &settings, err));
    status rc = session_status(headrace_inspect(settings, what, x->json, &text, &why), &why, err);
    headrace_config_destroy(settings);
    TRY(rc);
    size_t n = strlen(text);
    fwrite(text, 1, n, stdout);
    if (n == 0 || text[n - 1] != '\n') putchar('\n');
    headrace_text_free(text);
    return STATUS_OK;
}

static status run_inspect(cli *x, error *err) {
    bool tensors = config_bool(x->c, CONFIG_KEY_TENSORS), kernels = config_bool(x->c, CONFIG_KEY_KERNELS);
    if (tensors && kernels) return error_set(err, STATUS_INVALID, "inspect: --tensors and --kernels are two reports; ask for one");
    if (x->path) {
        if (config_is_set(x->c, CONFIG_KEY_MODEL) && config_origin_of(x->c, CONFIG_KEY_MODEL) == CONFIG_FROM_COMMAND_LINE)
            return error_set(err, STATUS_INVALID, "inspect: two models are given, '%s' and -m '%s'", x->path,
                             config_text(x->c, CONFIG_KEY_MODEL));
        TRY(config_set(x->c, "model", x->path, CONFIG_FROM_COMMAND_LINE, err));
    }
    if (kernels) return print_report(x, HEADRACE_REPORT_KERNELS, err);
    if (!config_is_set(x->c, CONFIG_KEY_MODEL)) return error_set(err, STATUS_INVALID, "inspect: no model given; use inspect PATH");
    return print_report(x, tensors ? HEADRACE_REPORT_TENSORS : HEADRACE_REPORT_MODEL, err);
}

static status run_doctor(cli *x, error *err) { return print_report(x, HEADRACE_REPORT_DOCTOR, err); }

const cli_command cmd_inspect = {
    .name = "inspect",
    .summary = "show what is in a model file, or the kernels of this build",
    .usage = "MODEL [--tensors | --kernels] [options]",
    .about = "Shows hyper-parameters and vocabulary of a model; with --tensors its tensors. Reads headers only. --kernels shows the\n"
             "kernel rows of each backend and needs no model.\n",
    .examples = "inspect model.gguf\n"
                "inspect model.gguf --tensors --json\n"
                "inspect --kernels\n",
    .where = CONFIG_INSPECT,
    .takes_path = true,
    .run = run_inspect,
};

const cli_command cmd_doctor = {
    .name = "doctor",
    .summary = "show the processor, memory and devices as the engine sees them",
    .usage = "[options]",
    .about = "Shows the processor and the rows in use, memory and cgroup limits, and which devices were found or why not.\n",
    .examples = "doctor\n"
                "doctor --json\n",
    .where = CONFIG_DOCTOR,
    .run = run_doctor,
};
