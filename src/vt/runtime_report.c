/* SPDX-License-Identifier: Apache-2.0 */
/* What doctor and inspect show. Devices are opened for the time of the question and closed again. */
#include <stdio.h>
#include <string.h>

#include "vt/runtime_impl.h"

/* The capability bits of the type's first device; false with a reason when there is none to ask. */
static bool probe_caps(vt_runtime *rt, vt_device_type type, uint64_t *caps, error *why) {
    vt_device *d;
    if (vt_device_open(rt, (vt_device_id){type, 0}, rt->m, &d, why) != STATUS_OK) return false;
    *caps = vt_device_caps(d);
    vt_device_close(d);
    return true;
}

/* ---- rows ---- */

static void need_text(uint64_t need, char *text, size_t n) {
    refusal_cap_names(need, text, n);
    if (!text[0]) snprintf(text, n, "-");
}

static void row_state(const vt_row *row, bool has_device, uint64_t caps, char *text, size_t n) {
    char lacking[256];
    if (!row->run) {
        snprintf(text, n, "left out: %s", row->left_out);
    } else if (!has_device) {
        snprintf(text, n, "no device");
    } else if (row->need & ~caps) {
        refusal_cap_names(row->need & ~caps, lacking, sizeof lacking);
        snprintf(text, n, "lacks %s", lacking);
    } else {
        snprintf(text, n, "runs here");
    }
}

static void visit_backend(vt_runtime *rt, const backend_entry *e, vt_row_visit *fn, void *ctx) {
    uint64_t caps = 0;
    bool has_device = probe_caps(rt, e->vtable.type, &caps, NULL);
    vt_queue asking = {.device = {e->vtable.type, 0}, .runtime = rt, .caps = caps};
    for (int32_t i = 0; i < e->n_rows; i++) {
        const vt_row *row = &e->rows[i];
        char sig[128], need[256], state[320];
        vt_sig_format(row->op, row->sig, sig, sizeof sig);
        need_text(row->need, need, sizeof need);
        row_state(row, has_device, caps, state, sizeof state);
        bool preferred = has_device && row == dispatch_preferred(&asking, row->op, row->sig);
        fn(ctx, e->vtable.name, vt_op_name(row->op), sig, need, row->name, state, preferred);
    }
}

static void visit_manifest(const vt_manifest *m, const manifest_state *s, vt_row_visit *fn, void *ctx) {
    const char *state = !m->shared_object ? "left out" : s->note ? "library not usable" : "library not found";
    for (int32_t i = 0; i < m->n_rows; i++) {
        const vt_manifest_row *row = &m->rows[i];
        char sig[128], need[256];
        vt_sig_format(row->op, row->sig, sig, sizeof sig);
        need_text(row->need, need, sizeof need);
        fn(ctx, m->backend, vt_op_name(row->op), sig, need, row->name, state, false);
    }
}

void vt_runtime_visit_rows(vt_runtime *rt, vt_row_visit *fn, void *ctx) {
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        const manifest_state *state = NULL;
        const vt_manifest *m = runtime_manifest(rt, (vt_device_type)type, &state);
        if (rt->backends[type]) {
            visit_backend(rt, rt->backends[type], fn, ctx);
        } else if (m) {
            visit_manifest(m, state, fn, ctx);
        }
    }
}

/* ---- report ---- */

static void report_memory(textbuf *out, const vt_device *d) {
    uint64_t free_bytes, total_bytes;
    if (vt_device_memory_info(d, &free_bytes, &total_bytes) != STATUS_OK || total_bytes == 0) {
        textbuf_adds(out, "memory unknown");
        return;
    }
    textbuf_addf(out, "memory %.1f GiB, ", (double)total_bytes / (1024.0 * 1024.0 * 1024.0));
    if (free_bytes == 0) {
        textbuf_adds(out, "free unknown");
    } else {
        textbuf_addf(out, "%.1f GiB free now", (double)free_bytes / (1024.0 * 1024.0 * 1024.0));
    }
}

static void report_device(vt_runtime *rt, const backend_entry *e, int32_t index, textbuf *out) {
    vt_device *d;
    error why = {0};
    textbuf_addf(out, "  %s:%d: ", e->vtable.name, (int)index);
    if (vt_device_open(rt, (vt_device_id){e->vtable.type, index}, rt->m, &d, &why) != STATUS_OK) {
        textbuf_addf(out, "cannot be opened: %s\n", why.text);
        return;
    }
    char text[512], caps[512];
    vt_device_describe(d, text, sizeof text);
    refusal_cap_names(vt_device_caps(d), caps, sizeof caps);
    textbuf_addf(out, "%s; ", text);
    report_memory(out, d);
    textbuf_addf(out, "; properties: %s\n", caps[0] ? caps : "none");
    int32_t n_run = 0, n_left_out = 0;
    for (int32_t i = 0; i < e->n_rows; i++) {
        n_left_out += !e->rows[i].run;
        n_run += e->rows[i].run && !(e->rows[i].need & ~vt_device_caps(d));
    }
    textbuf_addf(out, "    kernel rows: %d, of which %d run here, %d lack a property, %d are left out of this build\n", (int)e->n_rows,
                 (int)n_run, (int)(e->n_rows - n_run - n_left_out), (int)n_left_out);
    vt_device_close(d);
}

static void report_backend(vt_runtime *rt, const backend_entry *e, textbuf *out) {
    error why = {0};
    int32_t n = e->vtable.count ? e->vtable.count(&rt->host, &why) : 1;
    textbuf_addf(out, "%s: %s", e->vtable.name, e->library_path ? e->library_path : "built in");
    if (n <= 0) textbuf_addf(out, "; no device: %s", why.text[0] ? why.text : "there is none");
    textbuf_adds(out, "\n");
    for (int32_t i = 0; i < n; i++) report_device(rt, e, i, out);
}

static void report_absent(const vt_runtime *rt, const vt_manifest *m, const manifest_state *s, textbuf *out) {
    char where[ERROR_TEXT_BYTES];
    refusal_search_text(rt, m, where, sizeof where);
    textbuf_addf(out, "%s: ", m->backend);
    if (!m->shared_object) {
        textbuf_addf(out, "left out of this build (%s)\n", m->build_switch ? m->build_switch : "no switch");
    } else if (s->note) {
        textbuf_addf(out, "library found but not usable: %s\n", s->note);
    } else {
        textbuf_addf(out, "library not found (%s; %s builds it and is %s in this build)\n", where,
                     m->build_switch ? m->build_switch : "no switch", m->built ? "on" : "off");
    }
}

void vt_runtime_report(vt_runtime *rt, textbuf *out) {
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        const manifest_state *state = NULL;
        const vt_manifest *m = runtime_manifest(rt, (vt_device_type)type, &state);
        if (rt->backends[type]) {
            report_backend(rt, rt->backends[type], out);
        } else if (m) {
            report_absent(rt, m, state, out);
        }
    }
}
