/* SPDX-License-Identifier: Apache-2.0 */
/* Shared backends: where they are looked for, and what a library must show before its functions are called. The first file of the right
 * name in the order of the directories is the one; when it cannot serve, the search ends there, because two versions side by side should
 * not go unnoticed. */
#include <stdio.h>
#include <string.h>

#include "vt/runtime_impl.h"

static status add_dir(vt_runtime *rt, const char *dir, error *err) {
    rt->search_dirs[rt->n_search_dirs] = mem_strdup(rt->m, MEM_PROCESS, dir);
    if (!rt->search_dirs[rt->n_search_dirs]) return error_set(err, STATUS_NO_MEMORY, "vt: no memory for a search directory");
    rt->n_search_dirs++;
    return STATUS_OK;
}

status plugin_set_search_dirs(vt_runtime *rt, const char *const *dirs, error *err) {
    size_t n = 2;
    if (dirs)
        for (n = 0; dirs[n];) n++;
    rt->search_dirs = mem_calloc(rt->m, MEM_PROCESS, n + 1, sizeof *rt->search_dirs);
    if (!rt->search_dirs) return error_set(err, STATUS_NO_MEMORY, "vt: no memory for search directories");
    for (size_t i = 0; dirs && i < n; i++) TRY(add_dir(rt, dirs[i], err));
    if (dirs) return STATUS_OK;

    char here[LIBRARY_PATH_BYTES], beside[LIBRARY_PATH_BYTES];
    if (os_exe_dir(here, sizeof here) != STATUS_OK) return STATUS_OK; /* then there is nowhere to look, and a refusal says so */
    TRY(add_dir(rt, here, err));
    int len = snprintf(beside, sizeof beside, "%s/../lib/headrace", here);
    return len > 0 && (size_t)len < sizeof beside ? add_dir(rt, beside, err) : STATUS_OK;
}

/* The tables of an open library, or NULL with the reason. */
static const vt_backend_tables *ask(os_library *library, const vt_manifest *m, error *err) {
    void *symbol = os_library_symbol(library, VT_BACKEND_ENTRY_SYMBOL);
    vt_backend_entry_fn *entry = NULL;
    memcpy(&entry, &symbol, sizeof entry); /* a data pointer that holds a function: the form dlsym asks for */
    if (!entry) {
        error_note(err, STATUS_FORMAT, "has no " VT_BACKEND_ENTRY_SYMBOL);
        return NULL;
    }
    error why = {0};
    const vt_backend_tables *tables = entry(VT_BACKEND_ABI, &why);
    if (!tables) {
        why.text[sizeof why.text - 1] = 0;
        error_note(err, STATUS_UNSUPPORTED, "does not serve backend interface %d: %s", VT_BACKEND_ABI,
                   why.text[0] ? why.text : "no reason given");
        return NULL;
    }
    if (tables->size < sizeof *tables || !tables->vtable) {
        error_note(err, STATUS_FORMAT, "its tables have %u bytes, expected %zu", (unsigned)tables->size, sizeof *tables);
        return NULL;
    }
    const vt_backend *v = tables->vtable;
    if (v->abi != VT_BACKEND_ABI) {
        error_note(err, STATUS_UNSUPPORTED, "has backend interface %u, this program %d", (unsigned)v->abi, VT_BACKEND_ABI);
        return NULL;
    }
    if (v->type != m->type) {
        error_note(err, STATUS_FORMAT, "is a backend for %s", vt_device_type_name(v->type));
        return NULL;
    }
    return tables;
}

static status open_at(vt_runtime *rt, int32_t i, const char *path, os_library *library, error *err) {
    const vt_manifest *m = &rt->manifests[i];
    error why = {0};
    backend_entry *e = NULL;
    const vt_backend_tables *tables = ask(library, m, &why);
    status rc = tables ? runtime_register(rt, tables->vtable, tables->rows, tables->n_rows, &e, &why) : why.code;
    if (rc == STATUS_OK) {
        e->library = library;
        e->library_path = mem_strdup(rt->m, MEM_PROCESS, path);
        return e->library_path ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "vt: no memory for a path");
    }
    os_library_close(library);
    if (rc == STATUS_NO_MEMORY) return error_set(err, rc, "vt: %s: %s", path, why.text);
    error_prefix(&why, "%s", path);
    rt->states[i].note = mem_strdup(rt->m, MEM_PROCESS, why.text);
    return rt->states[i].note ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "vt: no memory for a note");
}

status plugin_load(vt_runtime *rt, int32_t i, error *err) {
    for (int32_t d = 0; d < rt->n_search_dirs; d++) {
        char path[LIBRARY_PATH_BYTES];
        int len = snprintf(path, sizeof path, "%s/libheadrace-%s.so", rt->search_dirs[d], rt->manifests[i].backend);
        if (len < 0 || (size_t)len >= sizeof path) continue;
        os_library *library;
        error why = {0};
        status rc = os_library_open(rt->m, path, &library, &why);
        if (rc == STATUS_OK) return open_at(rt, i, path, library, err);
        if (rc == STATUS_NOT_FOUND) continue;
        if (rc == STATUS_NO_MEMORY) return error_set(err, rc, "vt: %s", why.text);
        rt->states[i].note = mem_strdup(rt->m, MEM_PROCESS, why.text);
        return rt->states[i].note ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "vt: no memory for a note");
    }
    return STATUS_OK;
}

void plugin_unload(vt_runtime *rt, backend_entry *e) {
    os_library_close(e->library);
    mem_free(rt->m, e->library_path);
}
