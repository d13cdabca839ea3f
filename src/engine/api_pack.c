/* SPDX-License-Identifier: Apache-2.0 */
/* headrace_pack: headers, then the bank. */
#include <stddef.h>
#include <string.h>

#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "moe/expert_pack.h"

static status pack(mem *m, const config *c, const char *path, headrace_progress *progress, void *user, expert_pack_result *out, error *err) {
    source *src = NULL;
    model *mo = NULL;
    TRY(engine_open_source(m, c, false, NULL, NULL, &src, err));
    status rc = model_open(m, src, &mo, err);
    if (rc == STATUS_OK && !mo->moe->any) rc = error_set(err, STATUS_INVALID, "pack: %s has no experts", mo->arch->name);
    if (rc == STATUS_OK) rc = expert_pack_write(m, &mo->moe->bank, path, progress, user, out, err);
    if (mo != NULL) model_close(mo);
    source_close(src);
    return rc;
}

headrace_status headrace_pack(const headrace_config *c, const char *path, headrace_progress *progress, void *user, headrace_pack_result *out, headrace_error *herr) {
    error err = {0};
    mem *m;
    expert_pack_result r;
    const uint32_t size = out->size;
    if (size < offsetof(headrace_pack_result, file_bytes) + sizeof out->file_bytes || size > sizeof *out) return HEADRACE_INVALID;
    if (mem_create(&m) != STATUS_OK) return HEADRACE_NO_MEMORY;
    status rc = pack(m, c->c, path, progress, user, &r, &err);
    if (rc == STATUS_OK) {
        const headrace_pack_result result = {.size = size, .n_records = r.n_records, .n_resumed = r.n_resumed, .file_bytes = r.file_bytes};
        memcpy(out, &result, size); /* what the caller's version of the struct has */
    }
    if (mem_destroy(m) != STATUS_OK && rc == STATUS_OK) rc = error_set(&err, STATUS_BUG, "pack: memory is still in use");
    return api_error(herr, rc, &err);
}
