/* SPDX-License-Identifier: Apache-2.0 */
/* Settings are handed over as text, so that one table parses them for both. */
#include "cli/session.h"

#include <string.h>

#include "base/os.h"
#include "cli/interrupt.h"
#include "cli/progress_line.h"

/* The two lists of codes are the same list; spot checks at both ends and where it would break first. */
_Static_assert((int)HEADRACE_INVALID == (int)STATUS_INVALID && (int)HEADRACE_NO_MEMORY == (int)STATUS_NO_MEMORY, "codes");
_Static_assert((int)HEADRACE_DOES_NOT_FIT == (int)STATUS_DOES_NOT_FIT && (int)HEADRACE_NOT_NOW == (int)STATUS_NOT_NOW, "codes");
_Static_assert((int)HEADRACE_CANCELLED == (int)STATUS_CANCELLED && (int)HEADRACE_BUG == (int)STATUS_BUG, "codes");

status session_status(headrace_status code, const headrace_error *from, error *err) {
    if (code == HEADRACE_OK) return STATUS_OK;
    return error_set(err, (status)code, "%s", from && from->text[0] ? from->text : headrace_status_name(code));
}

static bool is_engine_setting(const config_row *row) {
    if (!(row->where & (CONFIG_COMMON | CONFIG_PLAN))) return false;
    return row->id != CONFIG_KEY_CONFIG && row->id != CONFIG_KEY_PRINT_CONFIG && row->id != CONFIG_KEY_JSON &&
           row->id != CONFIG_KEY_VERBOSE;
}

status session_config(const cli *x, headrace_config **out, error *err) {
    headrace_error why = {0};
    headrace_config *made = NULL;
    TRY(session_status(headrace_config_create(&made, &why), &why, err));
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (!is_engine_setting(row) || !config_is_set(x->c, row->id)) continue;
        status rc = session_status(headrace_config_set(made, row->key, config_value_text(x->c, row->id), &why), &why, err);
        if (rc == STATUS_OK) continue;
        headrace_config_destroy(made);
        return rc;
    }
    *out = made;
    return STATUS_OK;
}

static status need_model(const cli *x, error *err) {
    if (config_is_set(x->c, CONFIG_KEY_MODEL)) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "%s: no model given; use -m PATH", x->command);
}

status session_vocab(const cli *x, headrace_vocab **out, error *err) {
    headrace_error why = {0};
    headrace_config *settings = NULL;
    TRY(need_model(x, err));
    TRY(session_config(x, &settings, err));
    status rc = session_status(headrace_vocab_open(settings, out, &why), &why, err);
    headrace_config_destroy(settings);
    return rc;
}

status session_load(const cli *x, headrace_engine **out, headrace_model_info *info, error *err) {
    headrace_error why = {0};
    headrace_config *settings = NULL;
    headrace_engine *engine = NULL;
    TRY(need_model(x, err));
    TRY(session_config(x, &settings, err));
    status rc = session_status(headrace_load(settings, progress_update, x->progress, &engine, &why), &why, err);
    progress_clear(x->progress);
    headrace_config_destroy(settings);
    TRY(rc);
    *info = (headrace_model_info){.size = sizeof *info};
    headrace_status got = headrace_get_model_info(engine, info);
    if (got != HEADRACE_OK) {
        headrace_free(engine);
        return session_status(got, NULL, err);
    }
    *out = engine;
    return STATUS_OK;
}

status session_outcome(const headrace_event *done, const char **text) {
    *text = "cancelled";
    if (done->finish == HEADRACE_FINISH_CANCELLED) return STATUS_CANCELLED;
    if (done->finish != HEADRACE_FINISH_ERROR) return STATUS_OK;
    status code = done->status == HEADRACE_OK ? STATUS_FAILED : (status)done->status;
    *text = done->error && done->error[0] ? done->error : status_name(code);
    return code;
}

/* Whatever fits in the queue now; one that is full while nothing runs will not empty itself. */
static status submit_more(const session_run_args *a, bool running, size_t *n_submitted, error *err) {
    while (*n_submitted < a->n) {
        status rc = a->submit(a->user, *n_submitted, &a->ids[*n_submitted], err);
        if (rc == STATUS_FULL && running) return STATUS_OK;
        TRY(rc);
        ++*n_submitted;
        running = true;
    }
    return STATUS_OK;
}

static status run_steps(const session_run_args *a, error *err) {
    headrace_error why = {0};
    size_t n_submitted = 0;
    bool more = false, cancelled = false;
    do {
        if (!cancelled) TRY(submit_more(a, more, &n_submitted, err));
        if (!cancelled && (interrupt_requested() || (a->stop && *a->stop))) {
            cancelled = true;
            for (size_t i = 0; i < n_submitted; i++) (void)headrace_cancel(a->engine, a->ids[i]); /* NOT_FOUND: it has ended already */
        }
        uint64_t before = os_now_ns();
        TRY(session_status(headrace_step(a->engine, &more, &why), &why, err));
        if (a->on_step) a->on_step(a->user, before, os_now_ns());
    } while (more || (!cancelled && n_submitted < a->n));
    return STATUS_OK;
}

status session_run(const session_run_args *a, error *err) {
    interrupt_begin();
    status rc = run_steps(a, err);
    interrupt_end();
    return rc;
}
