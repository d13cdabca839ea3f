/* SPDX-License-Identifier: Apache-2.0 */
/* From a configuration to an engine: headers, the device and its plan, then allocations. Nothing large is allocated before the plan has been accepted. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/block_moe.h"

status engine_open_source(mem *m, const config *c, bool with_bank, headrace_progress *progress, void *user, source **out, error *err) {
    const char *path = config_text(c, CONFIG_KEY_MODEL);
    if (path == NULL || path[0] == '\0') return error_set(err, STATUS_INVALID, "config: no model is given (--model PATH)");
    const source_options so = {.mode = LOAD_READ, .progress = progress, .progress_ctx = user, .extra_path = with_bank ? config_text(c, CONFIG_KEY_EXPERT_BANK) : NULL};
    return source_open(m, path, &so, out, err);
}

static status open_runtime(headrace_engine *e, const config *c, error *err) {
    const vt_runtime_options ro = {.cpu_isa = config_text(c, CONFIG_KEY_CPU_ISA)};
    TRY(vt_runtime_create(e->m, &ro, &e->runtime, err));
    int n_threads = (int)config_count(c, CONFIG_KEY_THREADS);
    if (n_threads == 0) n_threads = os_core_count();
    e->plan.n_threads = n_threads;
    return pool_create(e->m, n_threads, &e->threads, err);
}

/* ---- allocate ---- */

/* Where the names of blocks begin: they are only ever compared within one engine, and hold whatever is the same in it; the key is what nobody outside can know. */
static status draw_key(headrace_engine *e, kv_cache_options *o, error *err) {
    const engine_plan *p = &e->plan;
    if (!os_random(&o->key, sizeof o->key)) return error_set(err, STATUS_FAILED, "engine: the system gives no random bytes to name blocks of the prefix cache by");
    char text[512];
    const int n = snprintf(text, sizeof text, "%s|%s|kv %d|act %d|page %d", e->model->arch->name, source_path(e->src), (int)p->kv_dtype, (int)p->act, p->page_tokens);
    e->salt = block_hash(o->key, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    return STATUS_OK;
}

static status allocate_kv(headrace_engine *e, error *err) {
    const engine_plan *p = &e->plan;
    model *mo = e->model;
    const vt_device_id dev = vt_device_get_id(e->device);
    kv_cache_options ko;
    engine_kv_options(e, &ko);
    TRY(draw_key(e, &ko, err));
    TRY(engine_snapshots_allocate(e, err));
    TRY(kv_cache_init(&e->kv, e->m, &ko, err));
    for (int32_t g = 0; g < mo->n_groups; g++) {
        const kv_group *kg = &mo->groups[g];
        if (!ko.groups[g].paged) continue;
        const size_t n_caches = (size_t)model_caches_of(kg), one = model_page_bytes(mo, g) / n_caches / (size_t)kg->n_layers * (size_t)p->n_pages[g]; /* keys of one layer */
        const size_t stride = (one + 255) / 256 * 256;
        TRY(vt_buffer_alloc(e->device, MEM_KV, stride * n_caches * (size_t)kg->n_layers, "KV pages", &e->kv_buf[g], err));
        size_t off = 0;
        for (int l = 0; l < (int)mo->hp.n_layers; l++) {
            if (mo->layers[l].kv_group != g || mo->layers[l].kv_layer != l) continue;
            char *k = (char *)e->kv_buf[g].data + off, *v = k + (n_caches - 1) * stride;
            off += n_caches * stride;
            model_set_cache(mo, l, vt_tensor_4d(k, p->kv_dtype, dev, p->n_pages[g], kg->n_kv_heads, p->page_tokens, kg->head_dim),
                            vt_tensor_4d(v, p->kv_dtype, dev, p->n_pages[g], kg->n_kv_heads, p->page_tokens, kg->head_dim));
        }
    }
    return STATUS_OK;
}

static status engine_array(headrace_engine *e, size_t n, size_t size, const char *what, void *out, error *err) {
    size_t bytes;
    void *p;
    if (!checked_mul_size(n, size, &bytes)) return error_set(err, STATUS_INVALID, "engine: the size of %s overflows", what);
    TRY(mem_alloc_named(e->m, MEM_ENGINE, bytes, what, &p, err));
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    return STATUS_OK;
}

static status allocate_step(headrace_engine *e, error *err) {
    const engine_plan *p = &e->plan;
    const size_t rows = (size_t)p->max_rows, seqs = (size_t)p->max_seqs;
    TRY(engine_array(e, rows, sizeof *e->ids, "the step's ids", &e->ids, err));
    TRY(engine_array(e, rows, sizeof *e->pos, "the step's positions", &e->pos, err));
    TRY(engine_array(e, rows, sizeof *e->head_rows, "the step's logits rows", &e->head_rows, err));
    TRY(engine_array(e, (size_t)e->model->hp.n_embd, sizeof *e->embedding, "an embedding", &e->embedding, err));
    for (int32_t g = 0; g < e->model->n_groups; g++) {
        TRY(engine_array(e, seqs * (size_t)p->max_pages_per_seq, sizeof(int32_t), "the step's page tables", &e->pages[g], err));
    }
    TRY(engine_array(e, seqs, sizeof *e->segments, "the step's segments", &e->segments, err));
    TRY(engine_array(e, seqs, sizeof *e->seg_seq, "the step's sequences", &e->seg_seq, err));
    TRY(engine_array(e, seqs, sizeof *e->free_slots, "state slots", &e->free_slots, err));
    TRY(engine_array(e, (size_t)p->max_live, sizeof *e->live, "the table of requests", &e->live, err));
    sched_init(&e->sched, (sched_limits){.max_rows = p->max_rows, .max_seqs = p->max_seqs}, &e->kv, e->free_slots);
    TRY(engine_cost_create(e, err));
    for (int32_t i = 0; i < tokenizer_size(e->tok); i++) {
        size_t n;
        (void)tokenizer_piece(e->tok, i, &n);
        if (n > e->longest_piece) e->longest_piece = n;
    }
    return sampler_init(&e->sampler, e->m, (int32_t)e->model->hp.n_vocab, err);
}

static status load_headers(headrace_engine *e, const config *c, bool with_bank, headrace_progress *progress, void *user, error *err) {
    TRY(engine_open_source(e->m, c, with_bank, progress, user, &e->src, err));
    TRY(model_open(e->m, e->src, &e->model, err));
    if (with_bank) TRY(engine_experts_use_bank(e, c, err));
    const tokenizer_options to = {.n_vocab_model = e->model->hp.n_vocab};
    TRY(tokenizer_open(e->m, e->src, &to, &e->tok, err));
    return open_runtime(e, c, err);
}

static status load(headrace_engine *e, const config *c, headrace_progress *progress, void *user, error *err) {
    const uint64_t t0 = os_now_ns();
    TRY(load_headers(e, c, true, progress, user, err));
    TRY(engine_device_open(e, c, false, err));
    if (e->plan.experts.tier == PLAN_EXPERTS_STREAM) source_leave_out(e->src, e->model->moe->bank.total_bytes);
    TRY(model_commit(e->model, e->device, err));
    TRY(allocate_kv(e, err));
    TRY(engine_experts_attach(e, err)); /* last of what is large: slots are admitted beside everything else */
    TRY(allocate_step(e, err));
    if (config_bool(c, CONFIG_KEY_WARM_EXPERTS)) TRY(engine_experts_warm(e, err));
    engine_device_look(e);
    if (!source_intact(e->src)) return error_set(err, STATUS_IO, "engine: %s changed while it was loaded", source_path(e->src));
    e->load_ns = os_now_ns() - t0;
    return STATUS_OK;
}

static status create(mem *m, headrace_engine **out, error *err) {
    headrace_engine *e = mem_calloc(m, MEM_ENGINE, 1, sizeof *e);
    if (e == NULL) {
        (void)mem_destroy(m);
        return error_set(err, STATUS_NO_MEMORY, "engine: no memory for an engine");
    }
    e->m = m;
    e->next_id = 1;
    if (ENGINE_CHECKS && mem_create(&e->check_m) != STATUS_OK) {
        headrace_free(e);
        return error_set(err, STATUS_NO_MEMORY, "engine: no memory for an engine");
    }
    e->lock_ready = pthread_mutex_init(&e->lock, NULL) == 0;
    if (!e->lock_ready) {
        headrace_free(e);
        return error_set(err, STATUS_FAILED, "engine: no mutex");
    }
    *out = e;
    return STATUS_OK;
}

status engine_load(mem *m, const config *c, headrace_progress *progress, void *user, headrace_engine **out, error *err) {
    headrace_engine *e = NULL;
    TRY(create(m, &e, err));
    const status rc = load(e, c, progress, user, err);
    if (rc != STATUS_OK) {
        headrace_free(e);
        return rc;
    }
    *out = e;
    return STATUS_OK;
}

status engine_load_plan(mem *m, const config *c, bool with_bank, headrace_engine **out, error *refused, error *err) {
    headrace_engine *e = NULL;
    TRY(create(m, &e, err));
    status rc = load_headers(e, c, with_bank, NULL, NULL, err);
    if (rc == STATUS_OK && engine_device_open(e, c, true, refused) == STATUS_NO_MEMORY) rc = error_set(err, STATUS_NO_MEMORY, "engine: no memory for a plan");
    if (rc == STATUS_OK && e->device == NULL) rc = error_set(err, refused->code, "%s", refused->text);
    if (rc != STATUS_OK) {
        headrace_free(e);
        return rc;
    }
    *out = e;
    return STATUS_OK;
}

headrace_status headrace_load(const headrace_config *c, headrace_progress *progress, void *user, headrace_engine **out, headrace_error *herr) {
    error err = {0};
    mem *m = NULL;
    status rc = mem_create(&m);
    rc = rc == STATUS_OK ? engine_load(m, c->c, progress, user, out, &err) : error_set(&err, rc, "engine: no memory for an engine");
    return api_error(herr, rc, &err);
}

void headrace_free(headrace_engine *e) {
    if (e == NULL) return;
    if (atomic_exchange(&e->driven, true)) {
        log_error("engine: freed from a callback, or while another thread runs it: nothing is freed");
        return;
    }
    mem *m = e->m;
    engine_finish_all(e);
    for (int g = 0; g < STEP_MAX_GROUPS; g++) {
        vt_buffer_free(&e->kv_buf[g]);
        mem_free(m, e->pages[g]);
    }
    vt_buffer_free(&e->snapshot_buf);
    expert_cost_destroy(e->expert_cost);
    kv_cache_deinit(&e->kv);
    sampler_deinit(&e->sampler);
    void *const arrays[] = {e->ids, e->pos, e->head_rows, e->embedding, e->segments, e->seg_seq, e->free_slots, e->live};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) mem_free(m, arrays[i]);
    engine_routing_close(e);
    model_close(e->model);
    engine_experts_close(e);
    engine_device_close(e);
    pool_destroy(e->threads);
    vt_runtime_destroy(e->runtime);
    tokenizer_close(e->tok);
    source_close(e->src);
    if (e->lock_ready) pthread_mutex_destroy(&e->lock);
    if (e->check_m != NULL) (void)mem_destroy(e->check_m);
    mem_free(m, e);
    if (mem_destroy(m) != STATUS_OK) log_error("engine: memory was still in use when the engine was freed");
}
