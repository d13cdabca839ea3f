/* SPDX-License-Identifier: Apache-2.0 */
/* Runtimes: which backends there are. */
#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "vt/runtime_impl.h"

/* ---- what the core lends before a device is open ---- */

static void *host_alloc(void *ctx, size_t bytes) { return mem_alloc(((vt_runtime *)ctx)->m, MEM_PROCESS, bytes); }
static void host_free(void *ctx, void *p) { mem_free(((vt_runtime *)ctx)->m, p); }

static void host_log(void *ctx, int level, const char *line) {
    (void)ctx;
    log_level known = level <= LOG_LEVEL_ERROR ? LOG_LEVEL_ERROR : level >= LOG_LEVEL_DEBUG ? LOG_LEVEL_DEBUG : (log_level)level;
    log_write(known, "%s", line);
}

static const char *host_option(void *ctx, const char *key) { return strcmp(key, "cpu-isa") == 0 ? ((vt_runtime *)ctx)->cpu_isa : NULL; }

vt_host_api runtime_host_api(vt_runtime *rt) {
    return (vt_host_api){sizeof(vt_host_api), host_alloc, host_free, host_log, rt, host_option};
}

/* ---- registering ---- */

const backend_entry *runtime_backend(const vt_runtime *rt, vt_device_type type) {
    return (int)type >= 0 && type < VT_DEVICE_TYPE_COUNT ? rt->backends[type] : NULL;
}

bool vt_runtime_has(const vt_runtime *rt, vt_device_type type) { return runtime_backend(rt, type) != NULL; }

const vt_manifest *runtime_manifest(const vt_runtime *rt, vt_device_type type, const manifest_state **state) {
    for (int32_t i = 0; i < rt->n_manifests; i++) {
        if (rt->manifests[i].type != type) continue;
        if (state) *state = &rt->states[i];
        return &rt->manifests[i];
    }
    return NULL;
}

static status check_vtable(const vt_runtime *rt, const vt_backend *v, error *err) {
    if (v->abi != VT_BACKEND_ABI)
        return error_set(err, STATUS_UNSUPPORTED, "vt: backend interface %u, expected %d", (unsigned)v->abi, VT_BACKEND_ABI);
    if (v->size < offsetof(vt_backend, fence_create))
        return error_set(err, STATUS_FORMAT, "vt: a backend's vtable has only %u bytes", (unsigned)v->size);
    if (!v->name || (int)v->type < 0 || v->type >= VT_DEVICE_TYPE_COUNT)
        return error_set(err, STATUS_FORMAT, "vt: a backend without name or known device type");
    if (!v->open || !v->close || !v->alloc || !v->free || !v->copy || !v->fill)
        return error_set(err, STATUS_FORMAT, "vt: backend %s lacks open, close, alloc, free, copy or fill", v->name);
    if (rt->backends[v->type])
        return error_set(err, STATUS_INVALID, "vt: backend %s: there is already one for %s", v->name, vt_device_type_name(v->type));
    return STATUS_OK;
}

/* Under each row with a shape limit stands one without, of the same op and signature, that runs wherever the limited one does: so
 * vt_can_run needs no shape. */
static bool has_unlimited(const vt_row *rows, int32_t n_rows, const vt_row *limited) {
    for (int32_t i = 0; i < n_rows; i++) {
        const vt_row *r = &rows[i];
        if (r->op == limited->op && sig_equal(r->sig, limited->sig) && r->run && !r->fits && (r->need & ~limited->need) == 0) return true;
    }
    return false;
}

static status check_rows(const vt_backend *v, const vt_row *rows, int32_t n_rows, error *err) {
    if (n_rows < 0 || (n_rows > 0 && !rows)) return error_set(err, STATUS_FORMAT, "vt: backend %s has no table", v->name);
    for (int32_t i = 0; i < n_rows; i++) {
        const vt_row *r = &rows[i];
        if (!r->name || (!r->run && !r->left_out))
            return error_set(err, STATUS_FORMAT, "vt: backend %s: row %d has no name, or neither a function nor a switch", v->name, (int)i);
        if (r->run && r->fits && !has_unlimited(rows, n_rows, r))
            return error_set(err, STATUS_FORMAT, "vt: backend %s: %s has a shape limit and no row without one stands under it", v->name,
                             r->name);
    }
    return STATUS_OK;
}

static void entry_destroy(vt_runtime *rt, backend_entry *e) {
    if (!e) return;
    mem_free(rt->m, e->previous);
    mem_free(rt->m, (void *)e->runs);
    plugin_unload(rt, e);
    mem_free(rt->m, e);
}

status runtime_register(vt_runtime *rt, const vt_backend *vtable, const vt_row *rows, int32_t n_rows, backend_entry **out, error *err) {
    if (!vtable) return error_set(err, STATUS_FORMAT, "vt: a backend without a vtable");
    TRY(check_vtable(rt, vtable, err));
    TRY(check_rows(vtable, rows, n_rows, err));
    backend_entry *e = mem_calloc(rt->m, MEM_PROCESS, 1, sizeof *e);
    if (e) {
        e->previous = mem_calloc(rt->m, MEM_PROCESS, (size_t)n_rows, sizeof *e->previous);
        e->runs = mem_calloc(rt->m, MEM_PROCESS, (size_t)n_rows, sizeof *e->runs);
    }
    if (!e || !e->previous || !e->runs) {
        entry_destroy(rt, e);
        return error_set(err, STATUS_NO_MEMORY, "vt: no memory for the table of backend %s", vtable->name);
    }
    memcpy(&e->vtable, vtable, vtable->size < sizeof e->vtable ? vtable->size : sizeof e->vtable);
    e->rows = rows;
    e->n_rows = n_rows;
    for (int op = 0; op < VT_OP_COUNT; op++) e->last_of_op[op] = -1;
    for (int32_t i = 0; i < n_rows; i++) {
        if ((int)rows[i].op < 0 || rows[i].op >= VT_OP_COUNT) continue; /* of a later list of ops */
        e->previous[i] = e->last_of_op[rows[i].op];
        e->last_of_op[rows[i].op] = i;
    }
    rt->backends[vtable->type] = e;
    *out = e;
    return STATUS_OK;
}

status vt_runtime_add(vt_runtime *rt, const vt_backend *vtable, const vt_row *rows, int32_t n_rows, error *err) {
    backend_entry *e;
    return runtime_register(rt, vtable, rows, n_rows, &e, err);
}

/* ---- creating ---- */

static status find_backends(vt_runtime *rt, error *err) {
    for (int32_t i = 0; i < rt->n_manifests; i++) {
        const vt_manifest *m = &rt->manifests[i];
        if (m->builtin) {
            TRY(vt_runtime_add(rt, m->builtin->vtable, m->builtin->rows, m->builtin->n_rows, err));
        } else if (m->shared_object) {
            TRY(plugin_load(rt, i, err));
        }
    }
    return STATUS_OK;
}

status vt_runtime_create(mem *m, const vt_runtime_options *opt, vt_runtime **out, error *err) {
    static const vt_runtime_options defaults = {0};
    if (!opt) opt = &defaults;
    status rc = STATUS_OK;
    vt_runtime *rt = mem_calloc(m, MEM_PROCESS, 1, sizeof *rt);
    if (!rt) return error_set(err, STATUS_NO_MEMORY, "vt: no memory for the runtime");
    rt->m = m;
    rt->host = runtime_host_api(rt);
    rt->manifests = opt->manifests ? opt->manifests : vt_manifest_list;
    rt->n_manifests = opt->manifests ? opt->n_manifests : vt_manifest_count;
    rt->states = mem_calloc(m, MEM_PROCESS, (size_t)rt->n_manifests, sizeof *rt->states);
    if (opt->cpu_isa) rt->cpu_isa = mem_strdup(m, MEM_PROCESS, opt->cpu_isa);
    if (!rt->states || (opt->cpu_isa && !rt->cpu_isa)) {
        rc = error_set(err, STATUS_NO_MEMORY, "vt: no memory for the runtime");
        goto fail;
    }
    TRY_GOTO(plugin_set_search_dirs(rt, opt->search_dirs, err));
    TRY_GOTO(find_backends(rt, err));
    *out = rt;
    return STATUS_OK;
fail:
    vt_runtime_destroy(rt);
    return rc;
}

void vt_runtime_destroy(vt_runtime *rt) {
    if (!rt) return;
    assert(rt->n_devices == 0);
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) entry_destroy(rt, rt->backends[type]);
    for (int32_t i = 0; rt->states && i < rt->n_manifests; i++) mem_free(rt->m, rt->states[i].note);
    for (int32_t i = 0; i < rt->n_search_dirs; i++) mem_free(rt->m, rt->search_dirs[i]);
    mem_free(rt->m, rt->states);
    mem_free(rt->m, rt->search_dirs);
    mem_free(rt->m, rt->cpu_isa);
    mem_free(rt->m, rt);
}
