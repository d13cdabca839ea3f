/* SPDX-License-Identifier: Apache-2.0 */
/* Refusal texts. Everything is found in the row tables and manifests: which rows there are, what keeps them from running here, who else has
 * them. A text is put together on the stack, because a refusal must not need memory. Paths get at most LONGEST_PART bytes, so that they do
 * not push the rest out. */
#include <stdio.h>
#include <string.h>

#include "vt/runtime_impl.h"

typedef struct text {
    size_t len;
    char data[ERROR_TEXT_BYTES];
} text;

static void put(text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(text *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->data + t->len, sizeof t->data - t->len, fmt, args);
    va_end(args);
    if (n > 0) t->len += (size_t)n;
    if (t->len > sizeof t->data - 1) t->len = sizeof t->data - 1;
}

static const struct {
    uint64_t bit;
    const char *name, *text;
} caps_list[] = {
#define X(bit, id, name, text) {VT_CAP_BIT(id), name, text},
    VT_CAP_LIST(X)
#undef X
};

void refusal_cap_names(uint64_t caps, char *out, size_t n) {
    text t = {0};
    for (size_t i = 0; i < sizeof caps_list / sizeof caps_list[0]; i++) {
        if (!(caps & caps_list[i].bit)) continue;
        put(&t, "%s%s", t.len ? ", " : "", caps_list[i].name);
        caps &= ~caps_list[i].bit;
    }
    if (caps) put(&t, "%sunnamed bits 0x%llx", t.len ? ", " : "", (unsigned long long)caps);
    snprintf(out, n, "%s", t.data);
}

static void put_caps(text *t, uint64_t caps) {
    bool first = true;
    for (size_t i = 0; i < sizeof caps_list / sizeof caps_list[0]; i++) {
        if (!(caps & caps_list[i].bit)) continue;
        put(t, "%s%s (%s)", first ? "" : " and ", caps_list[i].name, caps_list[i].text);
        caps &= ~caps_list[i].bit;
        first = false;
    }
    if (caps) put(t, "%sa property this version does not know (bits 0x%llx)", first ? "" : " and ", (unsigned long long)caps);
}

enum { LONGEST_PART = 1000 };

static void put_search(text *t, const vt_runtime *rt, const vt_manifest *m) {
    put(t, rt->n_search_dirs ? "looked in " : "there is no directory to look in");
    size_t begin = t->len;
    for (int32_t i = 0; i < rt->n_search_dirs; i++) {
        if (t->len - begin + strlen(rt->search_dirs[i]) > LONGEST_PART) {
            put(t, "%sand %d more directories", i ? " " : "", (int)(rt->n_search_dirs - i));
            break;
        }
        put(t, "%s%s", i ? ", " : "", rt->search_dirs[i]);
    }
    put(t, " for libheadrace-%s.so", m->backend);
}

void refusal_search_text(const vt_runtime *rt, const vt_manifest *m, char *out, size_t n) {
    text t = {0};
    put_search(&t, rt, m);
    snprintf(out, n, "%s", t.data);
}

/* The folder of a device type, from its manifest or, where there is none yet, by the rule of the tree. */
static void put_folder(text *t, const vt_runtime *rt, vt_device_type type) {
    const vt_manifest *m = runtime_manifest(rt, type, NULL);
    if (m) {
        put(t, "%s", m->folder);
    } else {
        put(t, "src/vt/%s", vt_device_type_name(type));
    }
}

static bool manifest_has(const vt_manifest *m, vt_op op, vt_sig sig) {
    for (int32_t i = 0; i < m->n_rows; i++)
        if (m->rows[i].op == op && sig_equal(m->rows[i].sig, sig)) return true;
    return false;
}

static bool entry_has(const backend_entry *e, vt_op op, vt_sig sig) {
    for (int32_t i = 0; i < e->n_rows; i++)
        if (e->rows[i].op == op && sig_equal(e->rows[i].sig, sig)) return true;
    return false;
}

static void put_backends_with_row(text *t, const vt_runtime *rt, vt_op op, vt_sig sig) {
    bool any = false;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        const backend_entry *e = rt->backends[type];
        const vt_manifest *m = runtime_manifest(rt, (vt_device_type)type, NULL);
        if (e ? !entry_has(e, op, sig) : !m || !manifest_has(m, op, sig)) continue;
        put(t, "%s%s", any ? ", " : "", e ? e->vtable.name : m->backend);
        any = true;
    }
    if (!any) put(t, "none");
}

typedef enum reason {
    NOT_WRITTEN,       /* (a) */
    LEFT_OUT,          /* (b): detail is the switch */
    LIBRARY_NOT_FOUND, /* (c) */
    LIBRARY_UNUSABLE,  /* (c), but a file was found: detail is what is wrong with it */
    LACKS_PROPERTY     /* (d): lacking */
} reason;

typedef struct finding {
    reason why;
    const char *detail;
    uint64_t lacking;
} finding;

/* Why no backend of this type is there at all; m may be NULL. */
static finding absent_backend(const vt_manifest *m, const manifest_state *state) {
    if (!m) return (finding){.why = NOT_WRITTEN};
    if (!m->shared_object) return (finding){.why = LEFT_OUT, .detail = m->build_switch ? m->build_switch : "no switch"};
    if (state->note) return (finding){.why = LIBRARY_UNUSABLE, .detail = state->note};
    return (finding){.why = LIBRARY_NOT_FOUND};
}

/* Of several rows that cannot run, the one that is nearest to running gives the reason: a rebuild before another machine. */
static finding examine(const vt_queue *q, vt_op op, vt_sig sig) {
    const vt_runtime *rt = q->runtime;
    const backend_entry *e = runtime_backend(rt, q->device.type);
    if (!e) {
        const manifest_state *state = NULL;
        const vt_manifest *m = runtime_manifest(rt, q->device.type, &state);
        return m && manifest_has(m, op, sig) ? absent_backend(m, state) : (finding){.why = NOT_WRITTEN};
    }
    finding best = {.why = NOT_WRITTEN};
    int best_rank = 0;
    for (int32_t i = e->n_rows - 1; i >= 0; i--) {
        const vt_row *row = &e->rows[i];
        if (row->op != op || !sig_equal(row->sig, sig)) continue;
        uint64_t lacking = row->need & ~q->caps;
        int rank = !row->run && !lacking ? 3 : row->run && lacking ? 2 : !row->run ? 1 : 0;
        if (rank <= best_rank) continue;
        best_rank = rank;
        best = rank == 2 ? (finding){.why = LACKS_PROPERTY, .lacking = lacking}
                         : (finding){.why = LEFT_OUT, .detail = row->left_out, .lacking = lacking};
    }
    return best;
}

/* Where the library was looked for, or what is wrong with it, and whether this build made one. */
static void put_library(text *t, const vt_runtime *rt, vt_device_type type, const finding *f) {
    const vt_manifest *m = runtime_manifest(rt, type, NULL);
    if (f->why == LIBRARY_UNUSABLE) {
        put(t, "%.*s", LONGEST_PART, f->detail);
    } else {
        put_search(t, rt, m);
    }
    if (m->build_switch) put(t, "; %s builds it and is %s in this build", m->build_switch, m->built ? "on" : "off");
}

static void put_reason(text *t, const vt_queue *q, const finding *f) {
    switch (f->why) {
    case NOT_WRITTEN:
        put(t, "not written: no row in any table of %s", vt_device_type_name(q->device.type));
        break;
    case LEFT_OUT:
        put(t, "written but left out of this build (%s)", f->detail);
        if (f->lacking) put(t, ", and the device lacks "), put_caps(t, f->lacking);
        break;
    case LIBRARY_NOT_FOUND:
        put(t, "backend library not found");
        break;
    case LIBRARY_UNUSABLE:
        put(t, "backend library found but not usable");
        break;
    case LACKS_PROPERTY:
        put(t, "device lacks "), put_caps(t, f->lacking);
        break;
    }
}

status refusal(const vt_queue *q, vt_op op, vt_sig sig, error *err) {
    if (!err) return STATUS_UNSUPPORTED;
    text t = {0};
    char places[128];
    vt_sig_format(op, sig, places, sizeof places);
    finding f = examine(q, op, sig);
    put(&t, "vt: %s:%d cannot run %s %s: ", vt_device_type_name(q->device.type), (int)q->device.index, vt_op_name(op), places);
    put_reason(&t, q, &f);
    if (f.why == LIBRARY_NOT_FOUND || f.why == LIBRARY_UNUSABLE) {
        put(&t, " (");
        put_library(&t, q->runtime, q->device.type, &f);
        put(&t, ")");
    }
    put(&t, "; backends with a row: ");
    put_backends_with_row(&t, q->runtime, op, sig);
    put(&t, "; implementations go in ");
    put_folder(&t, q->runtime, q->device.type);
    return error_set(err, STATUS_UNSUPPORTED, "%s", t.data);
}

/* ---- several at once ---- */

static bool seen_before(const vt_need *needs, int32_t i) {
    for (int32_t k = 0; k < i; k++)
        if (needs[k].op == needs[i].op && sig_equal(needs[k].sig, needs[i].sig)) return true;
    return false;
}

status refusal_of_all(const vt_queue *q, const vt_need *needs, int32_t n, error *err) {
    if (!err) return STATUS_UNSUPPORTED;
    enum { ROOM_FOR_COUNT = 64 };
    int32_t n_missing = 0, n_shown = 0;
    for (int32_t i = 0; i < n; i++) n_missing += !dispatch_can_run(q, needs[i].op, needs[i].sig) && !seen_before(needs, i);
    text t = {0};
    finding library = {.why = NOT_WRITTEN};
    put(&t, "vt: %s:%d cannot run %d of what is needed; implementations go in ", vt_device_type_name(q->device.type), (int)q->device.index,
        (int)n_missing);
    put_folder(&t, q->runtime, q->device.type);
    for (int32_t i = 0; i < n; i++) {
        if (dispatch_can_run(q, needs[i].op, needs[i].sig) || seen_before(needs, i)) continue;
        finding f = examine(q, needs[i].op, needs[i].sig);
        if (f.why == LIBRARY_NOT_FOUND || f.why == LIBRARY_UNUSABLE) library = f;
        text line = {0};
        char places[128];
        vt_sig_format(needs[i].op, needs[i].sig, places, sizeof places);
        put(&line, "\n%s %s: ", vt_op_name(needs[i].op), places);
        put_reason(&line, q, &f);
        put(&line, "; backends with a row: ");
        put_backends_with_row(&line, q->runtime, needs[i].op, needs[i].sig);
        if (t.len + line.len + ROOM_FOR_COUNT > sizeof t.data) break;
        put(&t, "%s", line.data);
        n_shown++;
    }
    if (n_shown < n_missing) put(&t, "\nand %d more", (int)(n_missing - n_shown));
    if (library.why != NOT_WRITTEN) put(&t, "\nlibrary: "), put_library(&t, q->runtime, q->device.type, &library);
    return error_set(err, STATUS_UNSUPPORTED, "%s", t.data);
}

status refusal_no_backend(const vt_runtime *rt, vt_device_id id, error *err) {
    const manifest_state *state = NULL;
    const vt_manifest *m = runtime_manifest(rt, id.type, &state);
    finding f = absent_backend(m, state);
    text t = {0};
    put(&t, "vt: %s:%d cannot be opened: ", vt_device_type_name(id.type), (int)id.index);
    switch (f.why) {
    case LEFT_OUT:
        put(&t, "its backend is written but left out of this build (%s)", f.detail);
        break;
    case LIBRARY_NOT_FOUND:
    case LIBRARY_UNUSABLE:
        put(&t, "backend library %s (", f.why == LIBRARY_NOT_FOUND ? "not found" : "found but not usable");
        put_library(&t, rt, id.type, &f);
        put(&t, ")");
        break;
    default:
        put(&t, "not written: there is no such backend");
        break;
    }
    put(&t, "; implementations go in ");
    put_folder(&t, rt, id.type);
    return error_set(err, STATUS_UNSUPPORTED, "%s", t.data);
}
