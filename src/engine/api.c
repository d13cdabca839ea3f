/* SPDX-License-Identifier: Apache-2.0 */
/* The thin part of the public interface: codes, configuration, running, figures, vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/block_moe.h"

headrace_status api_error(headrace_error *out, status code, const error *err) {
    if (code != STATUS_OK && out != NULL) {
        out->code = (headrace_status)code;
        memcpy(out->text, err->text, sizeof out->text);
        if (out->text[0] == '\0') strncpy(out->text, status_name(code), sizeof out->text - 1);
    }
    return (headrace_status)code;
}

/*
 * Results that outlive every engine object carry their own accountant in front, so that they can be freed by pointer alone.
 */
typedef struct owned {
    mem *m;
    _Alignas(16) char data[];
} owned;

static void *owned_alloc(size_t bytes) {
    mem *m;
    if (mem_create(&m) != STATUS_OK) return NULL;
    owned *o = mem_alloc(m, MEM_PROCESS, sizeof *o + bytes);
    if (o == NULL) {
        (void)mem_destroy(m);
        return NULL;
    }
    o->m = m;
    return o->data;
}

static void owned_free(void *p) {
    if (p == NULL) return;
    owned *o = (owned *)(void *)((char *)p - offsetof(owned, data));
    mem *m = o->m;
    mem_free(m, o);
    (void)mem_destroy(m);
}

headrace_status api_text(const textbuf *b, char **text, headrace_error *out) {
    error err = {0};
    char *p = b->failed ? NULL : owned_alloc(b->len + 1);
    if (p == NULL) return api_error(out, error_set(&err, STATUS_NO_MEMORY, "api: no memory for a text of %zu bytes", b->len), &err);
    memcpy(p, textbuf_text(b), b->len);
    p[b->len] = '\0';
    *text = p;
    return HEADRACE_OK;
}

void headrace_text_free(char *text) { owned_free(text); }
void headrace_ids_free(int32_t *ids) { owned_free(ids); }

const char *headrace_version(void) { return HEADRACE_VERSION; }
const char *headrace_status_name(headrace_status code) { return status_name((status)code); }

/* ---- configuration ---- */

headrace_status headrace_config_create(headrace_config **out, headrace_error *herr) {
    error err = {0};
    mem *m = NULL;
    headrace_config *c = NULL;
    status rc = mem_create(&m);
    if (rc == STATUS_OK) c = mem_calloc(m, MEM_PROCESS, 1, sizeof *c);
    rc = c == NULL ? error_set(&err, STATUS_NO_MEMORY, "api: no memory for a configuration") : config_create(m, &c->c, &err);
    if (rc != STATUS_OK) {
        if (m != NULL) {
            mem_free(m, c);
            (void)mem_destroy(m);
        }
        return api_error(herr, rc, &err);
    }
    c->m = m;
    *out = c;
    return HEADRACE_OK;
}

headrace_status headrace_config_set(headrace_config *c, const char *key, const char *value, headrace_error *herr) {
    error err = {0};
    return api_error(herr, config_set(c->c, key, value, CONFIG_FROM_COMMAND_LINE, &err), &err);
}

headrace_status headrace_config_read_file(headrace_config *c, const char *path, headrace_error *herr) {
    error err = {0};
    return api_error(herr, config_read_file(c->c, path, &err), &err);
}

void headrace_config_destroy(headrace_config *c) {
    if (c == NULL) return;
    mem *m = c->m;
    config_destroy(c->c);
    mem_free(m, c);
    (void)mem_destroy(m);
}

/* ---- running ---- */

static status drive(headrace_engine *e, bool to_the_end, bool *more, error *err) {
    if (atomic_exchange(&e->driven, true)) return error_set(err, STATUS_INVALID, "engine: run and step may not be called from a callback, nor by two threads at a time");
    status rc;
    do {
        rc = engine_step(e, more, err);
    } while (to_the_end && rc == STATUS_OK && *more);
    if (rc == STATUS_OK && !*more) rc = engine_routing_flush(e, err);
    atomic_store(&e->driven, false);
    return rc;
}

headrace_status headrace_step(headrace_engine *e, bool *more, headrace_error *herr) {
    error err = {0};
    return api_error(herr, drive(e, false, more, &err), &err);
}

headrace_status headrace_run(headrace_engine *e, headrace_error *herr) {
    error err = {0};
    bool more;
    return api_error(herr, drive(e, true, &more, &err), &err);
}

/* These write what the caller's version of the struct has. */
headrace_status headrace_get_stats(headrace_engine *e, headrace_stats *out) {
    const uint32_t size = out->size;
    if (size < offsetof(headrace_stats, kv_pages_cached) || size > sizeof *out) return HEADRACE_INVALID;
    mem_usage u;
    mem_get_total(e->m, &u);
    pthread_mutex_lock(&e->lock);
    headrace_stats st = e->stats;
    pthread_mutex_unlock(&e->lock);
    st.size = size;
    for (int32_t g = 0; g < e->kv.opt.n_groups; g++) st.kv_pages_total += (uint64_t)e->plan.n_pages[g];
    st.n_hot_allocations = mem_guard_violations(e->m);
    st.memory_used_bytes = u.used_bytes;
    st.memory_peak_bytes = u.peak_bytes;
    st.memory_planned_bytes = e->plan.total_bytes;
    if (e->plan.pool == PLAN_POOL_OWN) st.device_open_bytes = vt_device_open_bytes(e->device);
    memcpy(out, &st, size);
    return HEADRACE_OK;
}

headrace_status headrace_allow_writing(const headrace_engine *e, const char *path, headrace_error *herr) {
    error err = {0};
    return api_error(herr, source_allow_writing(e->src, path, &err), &err);
}

const char *headrace_expert_file(const headrace_engine *e) {
    return e->plan.experts.tier == PLAN_EXPERTS_STREAM ? os_file_path(source_file(e->src, expert_bank_file(&e->model->moe->bank))) : NULL;
}

static uint64_t token_expert_bytes(const model *mo) {
    uint64_t n = 0;
    for (int32_t l = 0; l < mo->moe->bank.n_layers; l++) n += (uint64_t)mo->moe->bank.layers[l].top_k * mo->moe->bank.layers[l].file_bytes;
    return n;
}

headrace_status headrace_get_model_info(const headrace_engine *e, headrace_model_info *out) {
    const uint32_t size = out->size;
    if (size < offsetof(headrace_model_info, device_type) || size > sizeof *out) return HEADRACE_INVALID;
    const engine_plan *p = &e->plan;
    const headrace_model_info info = {
        .size = size,
        .architecture = e->model->arch->name,
        .device = e->device_name,
        .n_vocab = (int32_t)e->model->hp.n_vocab,
        .n_layers = (int32_t)e->model->hp.n_layers,
        .n_ctx = p->n_ctx,
        .n_threads = p->n_threads,
        .max_seqs = p->max_seqs,
        .max_batch_tokens = p->max_rows,
        .weight_bytes = e->model->weights_read_bytes,
        .kv_bytes = p->bytes[MEM_KV],
        .kv_bytes_per_token = p->kv_bytes_per_token,
        .activation_bytes = p->bytes[MEM_ACTIVATIONS],
        .load_ns = e->load_ns,
        .device_type = vt_device_type_name(vt_device_get_id(e->device).type),
        .n_devices_passed_over = e->n_passed_over,
        .device_bytes = p->device_total_bytes,
        .n_embd = model_gives_hidden(e->model) ? (int32_t)e->model->hp.n_embd : 0,
        .activations = e->model->activations,
        .expert_bytes = token_expert_bytes(e->model),
        .n_experts_used = e->model->moe->any ? (int32_t)e->model->hp.n_experts_used : 0,
    };
    memcpy(out, &info, size);
    return HEADRACE_OK;
}

headrace_status headrace_memory_report(headrace_engine *e, char **text, headrace_error *herr) {
    mem *m;
    textbuf b;
    if (mem_create(&m) != STATUS_OK) return HEADRACE_NO_MEMORY;
    textbuf_init(&b, m, MEM_PROCESS);
    plan_print(&e->plan, e->m, &b);
    const headrace_status rc = api_text(&b, text, herr);
    textbuf_deinit(&b);
    (void)mem_destroy(m);
    return rc;
}

/* ---- vocabulary ---- */

headrace_status headrace_vocab_open(const headrace_config *c, headrace_vocab **out, headrace_error *herr) {
    error err = {0};
    mem *m = NULL;
    headrace_vocab *v = NULL;
    status rc = mem_create(&m);
    if (rc == STATUS_OK) v = mem_calloc(m, MEM_PROCESS, 1, sizeof *v);
    if (v == NULL) {
        if (m != NULL) (void)mem_destroy(m);
        return api_error(herr, error_set(&err, STATUS_NO_MEMORY, "api: no memory for a vocabulary"), &err);
    }
    v->m = m;
    rc = engine_open_source(m, c->c, false, NULL, NULL, &v->src, &err);
    const tokenizer_options to = {0};
    if (rc == STATUS_OK) rc = tokenizer_open(m, v->src, &to, &v->tok, &err);
    if (rc != STATUS_OK) {
        headrace_vocab_free(v);
        return api_error(herr, rc, &err);
    }
    *out = v;
    return HEADRACE_OK;
}

void headrace_vocab_free(headrace_vocab *v) {
    if (v == NULL) return;
    mem *m = v->m;
    tokenizer_close(v->tok);
    source_close(v->src);
    mem_free(m, v);
    (void)mem_destroy(m);
}

headrace_status headrace_encode(const headrace_vocab *v, const char *text, size_t n, int32_t add_bos, bool no_special, int32_t **ids, size_t *n_ids, headrace_error *herr) {
    error err = {0};
    token_list l;
    token_list_init(&l, v->m, MEM_REQUEST);
    const tokenizer_bos bos = add_bos > 0 ? TOKENIZER_BOS_ADD : add_bos < 0 ? TOKENIZER_BOS_OMIT : TOKENIZER_BOS_DEFAULT;
    status rc = tokenizer_encode(v->tok, text, n, bos, !no_special, &l, &err);
    if (rc == STATUS_OK) {
        int32_t *p = owned_alloc(l.n * sizeof *p);
        if (p == NULL) {
            rc = error_set(&err, STATUS_NO_MEMORY, "api: no memory for %zu ids", l.n);
        } else {
            if (l.n > 0) memcpy(p, l.ids, l.n * sizeof *p);
            *ids = p;
            *n_ids = l.n;
        }
    }
    token_list_deinit(&l);
    return api_error(herr, rc, &err);
}

headrace_status headrace_decode(const headrace_vocab *v, const int32_t *ids, size_t n_ids, bool skip_special, char **text, size_t *n, headrace_error *herr) {
    error err = {0};
    textbuf b;
    textbuf_init(&b, v->m, MEM_REQUEST);
    headrace_status rc = api_error(herr, tokenizer_decode(v->tok, ids, n_ids, skip_special, &b, &err), &err);
    if (rc == HEADRACE_OK) rc = api_text(&b, text, herr);
    if (rc == HEADRACE_OK && n != NULL) *n = b.len;
    textbuf_deinit(&b);
    return rc;
}

int32_t headrace_vocab_bos(const headrace_vocab *v) { return tokenizer_bos_id(v->tok); }
bool headrace_vocab_adds_bos(const headrace_vocab *v) { return tokenizer_adds_bos(v->tok); }
