/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the engine's memory plan and its verdict, from headers alone. */
#include <stdio.h>
#include <string.h>

#include "cli/session.h"

static status run_plan(cli *x, error *err) {
    headrace_error why = {0};
    headrace_config *settings = NULL;
    char *text = NULL;
    if (!config_is_set(x->c, CONFIG_KEY_MODEL)) return error_set(err, STATUS_INVALID, "plan: no model given; use -m PATH");
    const config_key of_replay[] = {CONFIG_KEY_DISK_BW, CONFIG_KEY_DISK_LATENCY, CONFIG_KEY_MEM_BW};
    for (size_t i = 0; !config_is_set(x->c, CONFIG_KEY_REPLAY) && i < sizeof of_replay / sizeof of_replay[0]; i++) {
        if (config_origin_of(x->c, of_replay[i]) == CONFIG_FROM_DEFAULT) continue;
        return error_set(err, STATUS_INVALID, "plan: --%s says something of a recorded routing; it goes with --replay FILE", config_rows[of_replay[i]].key);
    }
    TRY(session_config(x, &settings, err));
    const status rc = session_status(headrace_inspect(settings, HEADRACE_REPORT_PLAN, x->json, &text, &why), &why, err);
    headrace_config_destroy(settings);
    if (text != NULL) {
        fwrite(text, 1, strlen(text), stdout);
        headrace_text_free(text);
    }
    return rc;
}

const cli_command cmd_plan = {
    .name = "plan",
    .summary = "say what a load would take and whether it fits",
    .usage = "-m MODEL [--machine LIST] [options]",
    .about = "Shows the memory plan of a load with the same settings, where experts would be, and the verdict. Reads headers only;\n"
             "the answer does not depend on what else runs. Exit code 3: it does not fit. With --replay FILE (from --record-routing)\n"
             "also what budgets from the least to all experts would do with that routing: hits by policy and bytes a step; with\n"
             "--disk-bw, --disk-latency and --mem-bw steps a second.\n",
    .examples = "plan -m model.gguf\n"
                "plan -m model --experts stream --host-experts 2G --json\n"
                "plan -m model --machine unified=1,device_total=119G,mem_total=119G\n",
    .where = CONFIG_COMMON | CONFIG_PLAN,
    .run = run_plan,
};
