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

/* ---- what was found ---- */

static void visit_device(vt_runtime *rt, const backend_entry *e, int32_t index, vt_found_visit *fn, void *ctx) {
    vt_device *d;
    error why = {0};
    vt_found found = {.backend = e->vtable.name, .present = true, .index = index, .n_rows = e->n_rows};
    if (vt_device_open(rt, (vt_device_id){e->vtable.type, index}, rt->m, &d, &why) != STATUS_OK) {
        found.why_not = why.text;
        fn(ctx, &found);
        return;
    }
    char text[512], caps[512];
    vt_device_describe(d, text, sizeof text);
    refusal_cap_names(vt_device_caps(d), caps, sizeof caps);
    found.description = text;
    found.properties = caps;
    if (vt_device_memory_info(d, &found.free_bytes, &found.total_bytes) != STATUS_OK) found.free_bytes = found.total_bytes = 0;
    for (int32_t i = 0; i < e->n_rows; i++) {
        found.n_left_out += !e->rows[i].run;
        found.n_run += e->rows[i].run && !(e->rows[i].need & ~vt_device_caps(d));
    }
    fn(ctx, &found);
    vt_device_close(d);
}

static void visit_present(vt_runtime *rt, const backend_entry *e, vt_found_visit *fn, void *ctx) {
    error why = {0};
    const int32_t n = e->vtable.count ? e->vtable.count(&rt->host, &why) : 1;
    vt_found found = {.backend = e->vtable.name, .present = true, .library = e->library_path, .index = -1, .n_rows = e->n_rows};
    if (n <= 0) found.why_not = why.text[0] ? why.text : "there is none";
    fn(ctx, &found);
    for (int32_t i = 0; i < n; i++) visit_device(rt, e, i, fn, ctx);
}

static void visit_absent(const vt_runtime *rt, const vt_manifest *m, const manifest_state *s, vt_found_visit *fn, void *ctx) {
    char where[ERROR_TEXT_BYTES], text[2 * ERROR_TEXT_BYTES];
    const char *build_switch = m->build_switch ? m->build_switch : "no switch";
    refusal_search_text(rt, m, where, sizeof where);
    if (!m->shared_object) {
        snprintf(text, sizeof text, "left out of this build (%s)", build_switch);
    } else if (s->note) {
        snprintf(text, sizeof text, "library found but not usable: %s", s->note);
    } else {
        snprintf(text, sizeof text, "library not found (%s; %s builds it and is %s in this build)", where, build_switch, m->built ? "on" : "off");
    }
    fn(ctx, &(vt_found){.backend = m->backend, .index = -1, .why_not = text, .n_rows = m->n_rows});
}

void vt_runtime_visit_found(vt_runtime *rt, vt_found_visit *fn, void *ctx) {
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        const manifest_state *state = NULL;
        const vt_manifest *m = runtime_manifest(rt, (vt_device_type)type, &state);
        if (rt->backends[type]) {
            visit_present(rt, rt->backends[type], fn, ctx);
        } else if (m) {
            visit_absent(rt, m, state, fn, ctx);
        }
    }
}

static void add_memory(textbuf *out, const vt_found *f) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    if (f->total_bytes == 0) {
        textbuf_adds(out, "memory unknown");
        return;
    }
    textbuf_addf(out, "memory %.1f GiB, ", (double)f->total_bytes / gib);
    if (f->free_bytes == 0) {
        textbuf_adds(out, "free unknown");
    } else {
        textbuf_addf(out, "%.1f GiB free now", (double)f->free_bytes / gib);
    }
}

static void add_found(void *ctx, const vt_found *f) {
    textbuf *out = ctx;
    if (!f->present) {
        textbuf_addf(out, "%s: %s\n", f->backend, f->why_not);
    } else if (f->index < 0) {
        textbuf_addf(out, "%s: %s%s%s\n", f->backend, f->library ? f->library : "built in", f->why_not ? "; no device: " : "", f->why_not ? f->why_not : "");
    } else if (f->why_not) {
        textbuf_addf(out, "  %s:%d: cannot be opened: %s\n", f->backend, (int)f->index, f->why_not);
    } else {
        textbuf_addf(out, "  %s:%d: %s; ", f->backend, (int)f->index, f->description);
        add_memory(out, f);
        textbuf_addf(out, "; properties: %s\n", f->properties[0] ? f->properties : "none");
        textbuf_addf(out, "    kernel rows: %d, of which %d run here, %d lack a property, %d are left out of this build\n", (int)f->n_rows, (int)f->n_run,
                     (int)(f->n_rows - f->n_run - f->n_left_out), (int)f->n_left_out);
    }
}

void vt_runtime_report(vt_runtime *rt, textbuf *out) { vt_runtime_visit_found(rt, add_found, out); }
