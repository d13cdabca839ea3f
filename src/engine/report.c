/* SPDX-License-Identifier: Apache-2.0 */
/* inspect and doctor: what a checkpoint is, which kernels exist, what this machine offers. One JSON object is built; the text form prints the same facts. */
#include <jansson.h>
#include <string.h>

#include "engine/api_impl.h"
#include "engine/device_link.h"
#include "engine/engine.h"
#include "engine/plan_replay.h"
#include "load/generation_config.h"
#include "model/block_moe.h"

typedef struct report_ctx {
    mem *m;
    const config *c;
    textbuf *text; /* text form is appended here */
    json_t *json;
} report_ctx;

static void set(json_t *obj, const char *key, json_t *value) {
    if (value != NULL) (void)json_object_set_new(obj, key, value);
}

static json_t *string_or_escaped(const char *s, size_t n) {
    json_t *v = json_stringn(s, n);
    return v != NULL ? v : json_string("(not valid UTF-8)");
}

static json_t *shape_json(const tensor_info *t) {
    json_t *a = json_array();
    for (int d = 0; d < t->n_dims; d++) (void)json_array_append_new(a, json_integer(t->dim[d]));
    return a;
}

/* ---- model ---- */

static void add_row(report_ctx *r, const char *key, const char *value) {
    textbuf_addf(r->text, "%-20s %s\n", key, value);
    set(r->json, key, string_or_escaped(value, strlen(value)));
}

static void add_number(report_ctx *r, const char *key, int64_t value) {
    textbuf_addf(r->text, "%-20s %lld\n", key, (long long)value);
    set(r->json, key, json_integer(value));
}

static void add_bytes(report_ctx *r, const char *key, uint64_t bytes, const char *when_zero) {
    if (bytes == 0) {
        textbuf_addf(r->text, "%-20s %s\n", key, when_zero);
        set(r->json, key, json_null());
    } else {
        textbuf_addf(r->text, "%-20s %.1f MiB\n", key, (double)bytes / 1048576.0);
        set(r->json, key, json_integer((json_int_t)(bytes > INT64_MAX ? INT64_MAX : bytes)));
    }
}

static void add_dtypes(report_ctx *r, const source *src) {
    json_t *obj = json_object();
    uint64_t total = 0;
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const tensor_info *t = source_tensor(src, i);
        json_t *old = json_object_get(obj, t->type_name);
        const json_int_t so_far = old != NULL ? json_integer_value(old) : 0;
        set(obj, t->type_name, json_integer(so_far + (json_int_t)t->n_bytes));
        total += t->n_bytes;
    }
    const char *type;
    json_t *bytes;
    json_object_foreach(obj, type, bytes) {
        textbuf_addf(r->text, "%-20s %.2f MiB (%.1f %%)\n", type, (double)json_integer_value(bytes) / 1048576.0,
                     total > 0 ? 100.0 * (double)json_integer_value(bytes) / (double)total : 0.0);
    }
    set(r->json, "bytes_by_dtype", obj);
    set(r->json, "weight_bytes", json_integer((json_int_t)total));
}

static const char *kind_name(layer_kind k) {
    switch (k) {
    case LAYER_WINDOW: return "window";
    case LAYER_LATENT: return "latent";
    case LAYER_RECURRENT: return "recurrent";
    default: return "full";
    }
}

/* Which layers keep what of the past. */
static void add_caches(report_ctx *r, const model *mo) {
    json_t *groups = json_array();
    int64_t shared = 0;
    for (int32_t l = 0; l < (int32_t)mo->hp.n_layers; l++) shared += mo->layers[l].kv_layer != l;
    for (int32_t g = 0; g < mo->n_groups; g++) {
        const kv_group *kg = &mo->groups[g];
        char window[48] = "";
        if (kg->window > 0) snprintf(window, sizeof window, ", window of %lld", (long long)kg->window);
        textbuf_addf(r->text, "%-20s %d layers, %s, %lld heads of %lld%s\n", "cache", kg->n_layers, kind_name(kg->kind), (long long)kg->n_kv_heads, (long long)kg->head_dim, window);
        json_t *o = json_object();
        set(o, "kind", json_string(kind_name(kg->kind)));
        set(o, "layers", json_integer(kg->n_layers));
        set(o, "kv_heads", json_integer(kg->n_kv_heads));
        set(o, "head_dim", json_integer(kg->head_dim));
        set(o, "window", json_integer(kg->window));
        (void)json_array_append_new(groups, o);
    }
    set(r->json, "caches", groups);
    if (shared > 0) add_number(r, "layers_sharing", shared);
}

static void add_ignored(report_ctx *r, const model *mo) {
    json_t *ignored = json_array();
    for (size_t i = 0; i < binding_n_ignored(mo->binding); i++) {
        const char *name = binding_ignored(mo->binding, i)->name;
        textbuf_addf(r->text, "%-20s %s\n", "ignored", name);
        (void)json_array_append_new(ignored, string_or_escaped(name, strlen(name)));
    }
    set(r->json, "ignored_tensors", ignored);
}

/* What a load with these settings would take, by class. */
static void add_plan(report_ctx *r, const headrace_engine *e, const error *refused) {
    const engine_plan *p = &e->plan;
    json_t *bytes = json_object();
    if (refused->code != STATUS_OK) add_row(r, "refused", refused->text);
    set(r->json, "memory_bytes", bytes);
    if (p->total_bytes == 0) return;
    add_number(r, "planned_context", p->n_ctx);
    add_number(r, "planned_sequences", p->max_seqs);
    add_row(r, "activations", e->model->activations);
    if (p->n_snapshots > 0) {
        add_number(r, "planned_snapshots", p->n_snapshots);
        add_number(r, "snapshot_bytes", (int64_t)model_state_bytes(e->model));
        add_number(r, "snapshot_every_tokens", (int64_t)p->snapshot_blocks * p->page_tokens);
    }
    for (int t = 0; t < MEM_TAG_COUNT; t++) {
        if (p->bytes[t] > 0) set(bytes, mem_tag_name((mem_tag)t), json_integer((json_int_t)p->bytes[t]));
    }
    set(bytes, "total", json_integer((json_int_t)p->total_bytes));
    set(bytes, "mapped", json_integer((json_int_t)p->mapped_bytes));
    if (p->pool != PLAN_POOL_HOST) {
        json_t *device = json_object();
        for (int t = 0; t < MEM_TAG_COUNT; t++) {
            if (p->device_bytes[t] > 0) set(device, mem_tag_name((mem_tag)t), json_integer((json_int_t)p->device_bytes[t]));
        }
        set(device, "total", json_integer((json_int_t)p->device_total_bytes));
        set(r->json, "device_memory_bytes", device);
    }
    set(r->json, "kv_bytes_per_token", json_integer((json_int_t)p->kv_bytes_per_token));
    set(r->json, "weight_bytes_per_token", json_integer((json_int_t)e->model->weights_read_bytes));
    textbuf_addf(r->text, "%-20s %zu bytes\n%-20s %.2f MiB\n", "kv_per_token", p->kv_bytes_per_token, "weights_per_token", (double)e->model->weights_read_bytes / 1048576.0);
    plan_print(p, NULL, r->text);
}

/* How the checkpoint says that answers are drawn. */
static void add_sampling(report_ctx *r, const source *src) {
    generation_config g = {0};
    error err = {0};
    json_t *o = json_object();
    set(r->json, "sampling", o);
    if (generation_config_read(r->m, src, &g, &err) != STATUS_OK) {
        add_row(r, "sampling_error", err.text);
        return;
    }
    if (!g.given) return;
    textbuf_addf(r->text, "%-20s temperature %.9g, top-k %lld, top-p %.9g, min-p %.9g, repetition penalty %.9g\n", "sampling", g.temperature, (long long)g.top_k, g.top_p, g.min_p, g.repetition_penalty);
    set(o, "temperature", json_real(g.temperature));
    set(o, "top_k", json_integer(g.top_k));
    set(o, "top_p", json_real(g.top_p));
    set(o, "min_p", json_real(g.min_p));
    set(o, "repetition_penalty", json_real(g.repetition_penalty));
}

static void add_model(report_ctx *r, const source *src, const model *mo, const tokenizer *tok) {
    const hparams *h = &mo->hp;
    add_row(r, "path", source_path(src));
    add_row(r, "container", source_container(src) == META_GGUF ? "gguf" : "safetensors");
    add_row(r, "architecture", mo->arch->name);
    add_number(r, "layers", h->n_layers);
    add_number(r, "hidden", h->n_embd);
    add_number(r, "heads", h->n_heads);
    add_number(r, "kv_heads", h->n_kv_heads);
    add_number(r, "head_dim", h->head_dim);
    add_number(r, "feed_forward", h->n_ff);
    add_number(r, "vocabulary", h->n_vocab);
    add_number(r, "context", h->n_ctx_train);
    add_caches(r, mo);
    add_row(r, "head", model_weight(mo, W_HEAD, -1)->n_dims != 0 ? "own" : "the embedding table");
    add_row(r, "tokenizer", tokenizer_kind(tok));
    add_number(r, "bos", tokenizer_bos_id(tok));
    add_row(r, "adds_bos", tokenizer_adds_bos(tok) ? "yes" : "no");
    add_row(r, "chat_template", tokenizer_chat_template(tok) != NULL ? "present" : "none");
    add_sampling(r, src);
    add_number(r, "tensors", (int64_t)source_n_tensors(src));
    add_dtypes(r, src);
    add_ignored(r, mo);
}

static status report_model(report_ctx *r, error *err) {
    mem *m = NULL;
    headrace_engine *e;
    error refused = {0};
    if (mem_create(&m) != STATUS_OK) return error_set(err, STATUS_NO_MEMORY, "engine: no memory for an engine");
    TRY(engine_load_plan(m, r->c, false, &e, &refused, err));
    add_model(r, e->src, e->model, e->tok);
    add_plan(r, e, &refused);
    headrace_free(e);
    return STATUS_OK;
}

/* What a recorded routing would meet. */
static status add_replay(report_ctx *r, const headrace_engine *e, error *err) {
    const plan_replay_request q = {
        .path = config_text(r->c, CONFIG_KEY_REPLAY),
        .disk_bytes_per_s = config_bytes(r->c, CONFIG_KEY_DISK_BW),
        .memory_bytes_per_s = config_bytes(r->c, CONFIG_KEY_MEM_BW),
        .disk_latency_s = (double)config_count(r->c, CONFIG_KEY_DISK_LATENCY) / 1e6,
        .device_slots = e->plan.experts.tier == PLAN_EXPERTS_STREAM ? e->plan.experts.device_slots : 0,
        .weight_bytes = e->model->weights_read_bytes,
    };
    if (q.path == NULL) return STATUS_OK;
    if (!e->model->moe->any) return error_set(err, STATUS_INVALID, "plan: --replay: %s has no experts", e->model->arch->name);
    return plan_replay(r->m, &e->model->moe->bank, &q, e->plan.experts.n_slots, r->text, r->json, err);
}

/* The plan alone. What is refused is told, and is the status too. */
static status report_plan(report_ctx *r, error *err) {
    mem *m = NULL;
    headrace_engine *e;
    error refused = {0};
    if (mem_create(&m) != STATUS_OK) return error_set(err, STATUS_NO_MEMORY, "engine: no memory for an engine");
    TRY(engine_load_plan(m, r->c, true, &e, &refused, err));
    const engine_plan *p = &e->plan;
    const plan_experts *x = &p->experts;
    add_row(r, "path", source_path(e->src));
    add_row(r, "architecture", e->model->arch->name);
    add_row(r, "verdict", refused.code == STATUS_OK ? "fits" : "refused");
    set(r->json, "fits", json_boolean(refused.code == STATUS_OK));
    add_bytes(r, "machine", e->machine.total_bytes, "unknown");
    if (p->pool != PLAN_POOL_HOST) {
        add_bytes(r, "device_memory", e->machine.device_total_bytes, "unknown");
        if (e->machine.device_budget_bytes > 0) add_bytes(r, "device_budget", e->machine.device_budget_bytes, "none");
    }
    add_plan(r, e, &refused);
    if (x->tier != PLAN_EXPERTS_NONE) {
        json_t *o = json_object();
        set(o, "tier", json_string(x->tier == PLAN_EXPERTS_STREAM ? "stream" : "resident"));
        set(o, "slots", json_integer((json_int_t)x->n_slots));
        if (x->device_slots > 0) set(o, "device_slots", json_integer((json_int_t)x->device_slots));
        if (p->pool != PLAN_POOL_HOST && x->tier == PLAN_EXPERTS_STREAM) {
            static const char *const pins[] = {[PLAN_PIN_NONE] = "none", [PLAN_PIN_SLOTS] = "pinned", [PLAN_PIN_RING] = "staged", [PLAN_PIN_DRIVER] = "driver"};
            set(o, "host_slots", json_string(pins[x->pin]));
            set(o, "staging_bytes", json_integer((json_int_t)x->staging_bytes));
            set(o, "miss", json_string(config_text(r->c, CONFIG_KEY_MISS)));
            textbuf_addf(r->text, "an expert that the device lacks is %s\n", engine_miss_text(e));
        }
        set(o, "slot_bytes", json_integer((json_int_t)x->slot_bytes));
        set(o, "min_slots", json_integer((json_int_t)x->min_slots));
        set(o, "cycle_slots", json_integer((json_int_t)x->cycle_slots));
        set(o, "total", json_integer((json_int_t)x->all_slots));
        set(o, "file_bytes", json_integer((json_int_t)x->file_bytes));
        set(r->json, "experts", o);
    }
    const status replayed = add_replay(r, e, err);
    headrace_free(e);
    TRY(replayed);
    return refused.code == STATUS_OK ? STATUS_OK : error_set(err, refused.code, "%s", refused.text);
}

static status report_tensors(report_ctx *r, error *err) {
    source *src = NULL;
    TRY(engine_open_source(r->m, r->c, false, NULL, NULL, &src, err));
    json_t *list = json_array();
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const tensor_info *t = source_tensor(src, i);
        char shape[128] = "[";
        for (int d = 0; d < t->n_dims; d++) {
            const size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, d > 0 ? ", %lld" : "%lld", (long long)t->dim[d]);
        }
        textbuf_addf(r->text, "%-48s %-8s %s]  %llu bytes at %llu\n", t->name, t->type_name, shape, (unsigned long long)t->n_bytes, (unsigned long long)t->off);
        json_t *o = json_object();
        set(o, "name", string_or_escaped(t->name, strlen(t->name)));
        set(o, "dtype", json_string(t->type_name));
        set(o, "shape", shape_json(t));
        set(o, "file", json_integer(t->file));
        set(o, "offset", json_integer((json_int_t)t->off));
        set(o, "bytes", json_integer((json_int_t)t->n_bytes));
        (void)json_array_append_new(list, o);
    }
    set(r->json, "tensors", list);
    source_close(src);
    return STATUS_OK;
}

/* ---- kernels and machine ---- */

static void kernel_row(void *ctx, const char *backend, const char *op, const char *sig, const char *need, const char *name, const char *state, bool preferred) {
    report_ctx *r = ctx;
    textbuf_addf(r->text, "%-7s %-24s %-34s %-44s %-18s %s%s\n", backend, op, sig, name, need, state, preferred ? "  *" : "");
    json_t *o = json_object();
    set(o, "backend", json_string(backend));
    set(o, "op", json_string(op));
    set(o, "signature", json_string(sig));
    set(o, "needs", json_string(need));
    set(o, "name", json_string(name));
    set(o, "state", json_string(state));
    set(o, "preferred", json_boolean(preferred));
    (void)json_array_append_new(json_object_get(r->json, "kernels"), o);
}

static status report_kernels(report_ctx *r, error *err) {
    vt_runtime *rt;
    const vt_runtime_options ro = {.cpu_isa = config_text(r->c, CONFIG_KEY_CPU_ISA)};
    TRY(vt_runtime_create(r->m, &ro, &rt, err));
    set(r->json, "kernels", json_array());
    textbuf_adds(r->text, "backend op                       signature                          row                                          needs              state (*: taken first)\n");
    vt_runtime_visit_rows(rt, kernel_row, r);
    vt_runtime_destroy(rt);
    return STATUS_OK;
}

/* What streamed experts would be read with. A refusal's text names what would help. */
static void add_io(report_ctx *r) {
    error why = {0};
    os_ring *ring;
    if (os_ring_create(r->m, 4, &ring, &why) != STATUS_OK) {
        add_row(r, "io_uring", why.text);
        return;
    }
    add_row(r, "io_uring", "yes");
    os_ring_destroy(ring);
}

/* What a miss of an expert costs there (--miss). */
static void add_links(report_ctx *r, vt_runtime *rt, int n_threads) {
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        char key[32];
        device_link link;
        if (type == VT_DEVICE_CPU || !device_link_measure(rt, r->m, n_threads, (vt_device_type)type, &link)) continue;
        snprintf(key, sizeof key, "copies_to_%s", vt_device_type_name((vt_device_type)type));
        textbuf_addf(r->text, "%-20s %.1f GB/s%s\n", key, link.bytes_per_s / 1e9, link.pinned ? "" : " (pinning refused: by the driver's own staging)");
        set(r->json, key, json_real(link.bytes_per_s));
        snprintf(key, sizeof key, "staged_to_%s", vt_device_type_name((vt_device_type)type));
        if (link.staged_bytes_per_s > 0)
            textbuf_addf(r->text, "%-20s %.1f GB/s%s staged through %.1f MiB\n", key, link.staged_bytes_per_s / 1e9, link.pinned ? ", memory that is not pinned" : ", pinning refused:", (double)link.staging_bytes / 1048576.0);
        set(r->json, key, link.staged_bytes_per_s > 0 ? json_real(link.staged_bytes_per_s) : json_null());
    }
}

static json_t *text_json(const char *text) { return text != NULL ? string_or_escaped(text, strlen(text)) : json_null(); }

static json_t *bytes_json(uint64_t n) { return n == 0 ? json_null() : json_integer((json_int_t)(n > INT64_MAX ? INT64_MAX : n)); }

static json_t *properties_json(const char *names) {
    json_t *list = json_array();
    while (*names != 0) {
        const size_t n = strcspn(names, ",");
        (void)json_array_append_new(list, string_or_escaped(names, n));
        names += n;
        names += strspn(names, ", ");
    }
    return list;
}

/* Backends and devices are lists of their own; a device that cannot be used says why and no more. */
static void add_found(void *ctx, const vt_found *f) {
    report_ctx *r = ctx;
    char name[64];
    json_t *o = json_object();
    if (f->index < 0) {
        set(o, "name", text_json(f->backend));
        set(o, "library", text_json(f->library));
    } else {
        snprintf(name, sizeof name, "%s:%d", f->backend, (int)f->index);
        set(o, "name", text_json(name));
    }
    set(o, "why_not", text_json(f->why_not));
    if (f->description != NULL) {
        set(o, "description", text_json(f->description));
        set(o, "memory_total", bytes_json(f->total_bytes));
        set(o, "memory_free", bytes_json(f->free_bytes));
        set(o, "properties", properties_json(f->properties));
        set(o, "rows", json_integer(f->n_rows));
        set(o, "rows_running", json_integer(f->n_run));
        set(o, "rows_left_out", json_integer(f->n_left_out));
    }
    (void)json_array_append_new(json_object_get(r->json, f->index < 0 ? "backends" : "devices"), o);
}

static status report_doctor(report_ctx *r, error *err) {
    char cpu[128];
    os_memory om;
    vt_runtime *rt = NULL;
    os_cpu_name(cpu, sizeof cpu);
    os_get_memory(&om);
    add_row(r, "version", HEADRACE_VERSION);
    add_row(r, "processor", cpu);
    add_number(r, "cores", os_core_count());
    add_number(r, "threads", os_cpu_count());
    const int64_t asked = config_count(r->c, CONFIG_KEY_THREADS);
    add_number(r, "compute_threads", asked > 0 ? asked : os_core_count());
    add_bytes(r, "memory_total", om.total_bytes, "unknown");
    add_bytes(r, "memory_available", om.available_bytes, "unknown");
    add_bytes(r, "cgroup_limit", om.cgroup_limit_bytes, "none");
    if (om.cgroup_limit_bytes > 0) add_bytes(r, "cgroup_used", om.cgroup_used_bytes, "unknown");
    if (om.memlock_bytes == UINT64_MAX) {
        textbuf_addf(r->text, "%-20s unlimited\n", "memlock_limit");
        set(r->json, "memlock_limit", json_null());
    } else {
        add_bytes(r, "memlock_limit", om.memlock_bytes, "none");
        if (om.memlock_bytes == 0) set(r->json, "memlock_limit", json_integer(0)); /* nothing may be locked, which is not no limit */
    }
    add_io(r);
    const vt_runtime_options ro = {.cpu_isa = config_text(r->c, CONFIG_KEY_CPU_ISA)};
    TRY(vt_runtime_create(r->m, &ro, &rt, err));
    add_links(r, rt, asked > 0 ? (int)asked : os_core_count());
    textbuf_adds(r->text, "devices\n");
    vt_runtime_report(rt, r->text);
    set(r->json, "backends", json_array());
    set(r->json, "devices", json_array());
    vt_runtime_visit_found(rt, add_found, r);
    vt_runtime_destroy(rt);
    return STATUS_OK;
}

static int append_json(const char *bytes, size_t n, void *text) {
    textbuf_add(text, bytes, n);
    return 0;
}

headrace_status headrace_inspect(const headrace_config *c, headrace_report what, bool json, char **text, headrace_error *herr) {
    error err = {0};
    mem *m;
    textbuf b;
    if (mem_create(&m) != STATUS_OK) return HEADRACE_NO_MEMORY;
    textbuf_init(&b, m, MEM_PROCESS);
    report_ctx r = {.m = m, .c = c->c, .text = &b, .json = json_object()};
    status rc;
    switch (what) {
    case HEADRACE_REPORT_MODEL: rc = report_model(&r, &err); break;
    case HEADRACE_REPORT_TENSORS: rc = report_tensors(&r, &err); break;
    case HEADRACE_REPORT_KERNELS: rc = report_kernels(&r, &err); break;
    case HEADRACE_REPORT_PLAN: rc = report_plan(&r, &err); break;
    case HEADRACE_REPORT_DOCTOR: rc = report_doctor(&r, &err); break;
    default: rc = error_set(&err, STATUS_INVALID, "api: report %d is not known", (int)what); break;
    }
    const bool told = rc == STATUS_OK || (what == HEADRACE_REPORT_PLAN && b.len > 0);
    headrace_status out = api_error(herr, rc, &err);
    if (told && json) {
        textbuf_clear(&b);
        if (json_dump_callback(r.json, append_json, &b, JSON_INDENT(2)) != 0) b.failed = true;
        textbuf_adds(&b, "\n");
    }
    if (told) {
        const headrace_status got = api_text(&b, text, herr);
        if (out == HEADRACE_OK || got != HEADRACE_OK) out = got;
    }
    json_decref(r.json);
    textbuf_deinit(&b);
    (void)mem_destroy(m);
    return out;
}
