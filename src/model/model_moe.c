/* SPDX-License-Identifier: Apache-2.0 */
/* From bound expert slots to the bank, and the host scratch of routing. */
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "model/block_moe.h"

/* Adds a part from a slot, and its scale. Leaves *part at -1 when the slot is empty. */
typedef struct collector {
    model *mo;
    int layer, n_experts, n_parts;
    expert_part parts[EXPERT_MAX_PARTS];
    expert_span *spans; /* [n_experts][EXPERT_MAX_PARTS] */
    error *err;
} collector;

/* The view of one expert: the stacked view without its first dimension. */
static vt_tensor one_expert(vt_tensor v, bool stacked) {
    if (!stacked) return v;
    for (int d = 0; d + 1 < v.n_dims; d++) {
        v.dim[d] = v.dim[d + 1];
        v.stride[d] = v.stride[d + 1];
    }
    v.n_dims--;
    v.dim[v.n_dims] = 1;
    return v;
}

static status add_part(collector *k, vt_tensor view, const bound_weight *first, int slot, bool scale, int *out) {
    size_t bytes;
    if (k->n_parts == EXPERT_MAX_PARTS) return error_set(k->err, STATUS_BUG, "model: an expert of layer %d has more than %d parts", k->layer, EXPERT_MAX_PARTS);
    if (!vt_tensor_bytes(&view, &bytes)) return error_set(k->err, STATUS_BUG, "model: a part of layer %d's experts has no size", k->layer);
    for (int e = 0; e < k->n_experts; e++) {
        const bound_weight *b = binding_get_expert(k->mo->binding, slot, k->layer, e);
        const tensor_info *t = scale ? b->scale : b->info, *like = scale ? first->scale : first->info;
        const bool same_blocks = b->block_n == first->block_n && b->block_k == first->block_k;
        if (t != NULL && !same_blocks && b->scale != NULL && first->scale != NULL) t = b->scale, like = first->scale;
        if (t == NULL || t->dtype != like->dtype || t->n_bytes != like->n_bytes || !same_blocks) {
            return error_set(k->err, STATUS_UNSUPPORTED, "model: %s: found %s in %llu bytes; the experts of a layer have one form, and %s has %s in %llu bytes", t != NULL ? t->name : b->info->name,
                             t != NULL ? t->type_name : "no scales", t != NULL ? (unsigned long long)t->n_bytes : 0, like->name, like->type_name, (unsigned long long)like->n_bytes);
        }
        k->spans[(size_t)e * EXPERT_MAX_PARTS + (size_t)k->n_parts] = (expert_span){.tensor = t, .off = first->stacked ? (uint64_t)e * bytes : 0};
    }
    k->parts[k->n_parts] = (expert_part){.view = view, .n_bytes = bytes};
    *out = k->n_parts++;
    return STATUS_OK;
}

static status collect(collector *k, int slot, int *part, int *scale_part, vt_scale_params *blocks) {
    const bound_weight *b = binding_get_expert(k->mo->binding, slot, k->layer, 0);
    *part = -1;
    if (scale_part != NULL) *scale_part = -1;
    if (b->info == NULL) return STATUS_OK;
    TRY(add_part(k, one_expert(b->view, b->stacked), b, slot, false, part));
    if (b->scale == NULL || scale_part == NULL) return STATUS_OK;
    *blocks = (vt_scale_params){.block_n = b->block_n, .block_k = b->block_k};
    return add_part(k, one_expert(b->scale_view, b->stacked), b, slot, true, scale_part);
}

/* The names that a slot's rows give, for this layer and expert 0. */
static void add_names(const collector *k, int slot, textbuf *out) {
    const arch *a = k->mo->arch;
    bool first = true;
    for (size_t i = 0; i < a->n_weights; i++) {
        const char *names = source_container(k->mo->src) == META_HF ? a->weights[i].hf : a->weights[i].gguf;
        if (a->weights[i].slot != slot || names == NULL) continue;
        if (!first) textbuf_adds(out, " or ");
        first = false;
        for (const char *p = names; *p != '\0'; p++) {
            if (strncmp(p, "{l}", 3) == 0)
                textbuf_addf(out, "%d", k->layer), p += 2;
            else if (strncmp(p, "{e}", 3) == 0)
                textbuf_adds(out, "0"), p += 2;
            else if (*p == '|')
                textbuf_adds(out, " or ");
            else
                textbuf_add(out, p, 1);
        }
    }
}

static status refuse_parts(const collector *k, const moe_parts *mp) {
    textbuf names;
    textbuf_init(&names, k->mo->m, MEM_MODEL);
    const bool twice = mp->gate_up >= 0 && (mp->gate >= 0 || mp->up >= 0);
    if (twice || mp->down < 0) {
        add_names(k, twice ? W_EXP_GATE_UP : W_EXP_DOWN, &names);
    } else {
        add_names(k, mp->gate < 0 ? W_EXP_GATE : W_EXP_UP, &names);
        if (mp->gate < 0 && mp->up < 0) {
            textbuf_adds(&names, " (or ");
            add_names(k, W_EXP_GATE_UP, &names);
            textbuf_adds(&names, ")");
        }
    }
    const status rc = error_set(k->err, STATUS_FORMAT, twice ? "model: %s: the experts of layer %d have this and gate and up apart too, in %s" : "model: %s: missing, for the experts of layer %d, in %s",
                                textbuf_text(&names), k->layer, source_path(k->mo->src));
    textbuf_deinit(&names);
    return rc;
}

static bool is_transposed(weight_transform t) { return t == WEIGHT_TRANSPOSED || t == WEIGHT_TRANSPOSED_INTERLEAVED; }

static status collect_layer(collector *k, moe_parts *mp) {
    model *mo = k->mo;
    vt_scale_params none;
    TRY(collect(k, W_EXP_GATE, &mp->gate, &mp->gate_scale, &mp->gate_blocks));
    TRY(collect(k, W_EXP_UP, &mp->up, &mp->up_scale, &mp->up_blocks));
    TRY(collect(k, W_EXP_GATE_UP, &mp->gate_up, &mp->gate_up_scale, &mp->gate_up_blocks));
    TRY(collect(k, W_EXP_DOWN, &mp->down, &mp->down_scale, &mp->down_blocks));
    TRY(collect(k, W_EXP_GATE_BIAS, &mp->gate_bias, NULL, &none));
    TRY(collect(k, W_EXP_UP_BIAS, &mp->up_bias, NULL, &none));
    TRY(collect(k, W_EXP_GATE_UP_BIAS, &mp->gate_up_bias, NULL, &none));
    TRY(collect(k, W_EXP_DOWN_BIAS, &mp->down_bias, NULL, &none));
    const weight_transform gu = binding_get(mo->binding, mp->gate_up >= 0 ? W_EXP_GATE_UP : W_EXP_GATE, k->layer)->transform;
    mp->interleaved = gu == WEIGHT_INTERLEAVED || gu == WEIGHT_TRANSPOSED_INTERLEAVED;
    mp->gate_up_transposed = is_transposed(gu);
    mp->down_transposed = is_transposed(binding_get(mo->binding, W_EXP_DOWN, k->layer)->transform);
    const bool apart = mp->gate >= 0 && mp->up >= 0, neither = mp->gate < 0 && mp->up < 0, fused = mp->gate_up >= 0;
    return mp->down >= 0 && (fused ? neither : apart) ? STATUS_OK : refuse_parts(k, mp);
}

static status open_layer(model *mo, int layer, expert_span *spans, error *err) {
    model_moe *moe = mo->moe;
    collector k = {.mo = mo, .layer = layer, .n_experts = (int)mo->hp.n_experts, .spans = spans, .err = err};
    TRY(collect_layer(&k, &moe->parts[layer]));
    /* close up the spans: the bank wants [n_experts][n_parts] */
    for (int e = 0; e < k.n_experts; e++) {
        for (int p = 0; p < k.n_parts; p++) spans[(size_t)e * (size_t)k.n_parts + (size_t)p] = spans[(size_t)e * EXPERT_MAX_PARTS + (size_t)p];
    }
    moe->any = true;
    TRY(expert_bank_set_layer(&moe->bank, mo->arena, layer, k.n_experts, (int32_t)mo->hp.n_experts_used, k.n_parts, k.parts, spans, err));
    const int of_down[] = {moe->parts[layer].down, moe->parts[layer].down_scale, moe->parts[layer].down_bias};
    for (int i = 0; i < 3; i++) moe->bank.layers[layer].late_parts |= of_down[i] >= 0 ? 1u << of_down[i] : 0;
    return STATUS_OK;
}

void model_moe_check(const model *mo, textbuf *report) {
    const hparams *h = &mo->hp;
    const bool gguf = source_container(mo->src) == META_GGUF;
    const long long n = (long long)h->n_experts, k = (long long)h->n_experts_used, groups = (long long)h->n_expert_groups, top = (long long)h->n_top_groups;
    if (n == 0) {
        if (mo->arch->needs_experts) textbuf_addf(report, "%s: found no experts, and %s has some in every layer\n", gguf ? "expert_count" : "num_experts or num_local_experts or n_routed_experts", mo->arch->name);
        return;
    }
    if (k < 1 || k > n) textbuf_addf(report, "%s: found %lld, expected 1..%lld, the number of experts\n", gguf ? "expert_used_count" : "num_experts_per_tok", k, n);
    if (groups < 2) return;
    if (n % groups != 0 || n / groups < 2) textbuf_addf(report, "%s: found %lld, expected a number of groups that divides the %lld experts into groups of two at least\n", gguf ? "expert_group_count" : "n_group", groups, n);
    if (top < 1 || top > groups || k > n / groups * top) {
        textbuf_addf(report, "%s: found %lld, expected 1..%lld, and so many groups of %lld experts that %lld can be chosen\n", gguf ? "expert_group_used_count" : "topk_group", top, groups, n / groups, k);
    }
}

status model_moe_open(model *mo, error *err) {
    const int n_layers = (int)mo->hp.n_layers;
    model_moe *moe = mo->moe = arena_calloc(mo->arena, 1, sizeof *moe);
    if (moe == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the experts' tables");
    moe->parts = arena_calloc(mo->arena, (size_t)n_layers, sizeof *moe->parts);
    if (moe->parts == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the experts' tables");
    TRY(expert_bank_init(&moe->bank, mo->arena, mo->src, n_layers, err));
    if (mo->hp.n_experts == 0) return STATUS_OK;
    expert_span *spans = mem_calloc(mo->m, MEM_MODEL, (size_t)mo->hp.n_experts * EXPERT_MAX_PARTS, sizeof *spans);
    if (spans == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the experts' tables");
    status rc = STATUS_OK;
    for (int l = 0; rc == STATUS_OK && l < n_layers; l++) {
        if (binding_get(mo->binding, W_ROUTER, l)->info != NULL) rc = open_layer(mo, l, spans, err);
    }
    mem_free(mo->m, spans);
    expert_bank_seal(&moe->bank);
    return rc;
}

static size_t pair_count(const model *mo) { return (size_t)mo->opt.max_rows * (size_t)mo->hp.n_experts_used; }

enum { N_EXCHANGED = 6, EXCHANGE_ALIGN = 256 };

static size_t exchanged_bytes(const model *mo) { return (pair_count(mo) * sizeof(int32_t) + EXCHANGE_ALIGN - 1) / EXCHANGE_ALIGN * EXCHANGE_ALIGN; }

/* Of one table of addresses: parts by experts of the largest layer. */
static size_t table_entries(const model *mo) {
    size_t most = 0;
    for (int l = 0; mo->moe->any_grouped && l < (int)mo->hp.n_layers; l++) {
        const expert_layer *el = &mo->moe->bank.layers[l];
        const size_t n = (size_t)el->n_parts * (size_t)el->n_experts;
        if (n > most) most = n;
    }
    return most;
}

/* ids, pair_row, index, weights, sorted, guessed per pair; tables of addresses */
static size_t exchange_bytes(const model *mo) { return N_EXCHANGED * exchanged_bytes(mo) + MOE_TABLES * table_entries(mo) * sizeof(int64_t); }

size_t model_moe_exchange_bytes(const model *mo) {
    const size_t host = moe_host_bytes(mo);
    return mo->moe->any ? exchange_bytes(mo) + MEM_HEADER_BYTES + MEM_ALIGN + (host > 0 ? host + MEM_HEADER_BYTES + MEM_ALIGN : 0) : 0;
}

/* order per expert of a row; count, first, distinct, wave, hint, votes, held per expert; failures per segment */
size_t model_moe_scratch_bytes(const model *mo) {
    if (!mo->moe->any) return 0;
    const size_t experts = (size_t)mo->hp.n_experts;
    return ((size_t)mo->hp.n_experts_used + 6 * experts) * sizeof(int32_t) + experts * sizeof(expert_lease) + (size_t)mo->opt.max_segments * sizeof(error) +
           9 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

status model_moe_commit(model *mo, error *err) {
    model_moe *moe = mo->moe;
    if (!moe->any) return STATUS_OK;
    const size_t experts = (size_t)mo->hp.n_experts, n = exchanged_bytes(mo);
    const struct { void *at; size_t bytes; } arrays[] = {
        {&moe->order, (size_t)mo->hp.n_experts_used * sizeof(int32_t)}, {&moe->count, experts * sizeof(int32_t)}, {&moe->first, experts * sizeof(int32_t)},
        {&moe->distinct, experts * sizeof(int32_t)},                    {&moe->wave, experts * sizeof(int32_t)},  {&moe->held, experts * sizeof(expert_lease)},
        {&moe->failures, (size_t)mo->opt.max_segments * sizeof(error)},
        {&moe->hint, experts * sizeof(int32_t)},                        {&moe->votes, experts * sizeof(int32_t)},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) TRY(mem_alloc_named(mo->m, MEM_ENGINE, arrays[i].bytes, "routing scratch", arrays[i].at, err));
    TRY(vt_buffer_alloc_host(mo->device, MEM_STAGING, exchange_bytes(mo), "routing of the step", &moe->exchange, err));
    char *at = moe->exchange.data;
    moe->ids = (int32_t *)(void *)at;
    moe->pair_row = (int32_t *)(void *)(at + n);
    moe->index = (int32_t *)(void *)(at + 2 * n);
    moe->weights = (float *)(void *)(at + 3 * n);
    moe->sorted = (float *)(void *)(at + 4 * n);
    moe->guessed = (int32_t *)(void *)(at + 5 * n);
    moe->tables = (int64_t *)(void *)(at + N_EXCHANGED * n);
    moe->table_entries = table_entries(mo);
    for (; moe->n_used < MOE_USE_FENCES; moe->n_used++) {
        const status rc = vt_fence_create(mo->device, &moe->used[moe->n_used]);
        if (rc != STATUS_OK) return error_set(err, rc, "model: the device gives no fence for its experts");
    }
    TRY(moe_host_commit(mo, err));
    return model_choices_commit(mo, err);
}

bool model_moe_holds_leases(const model *mo) { return mo->moe->used[0].handle != NULL; }

void model_moe_begin(model *mo, const int32_t *row_seg, int32_t n_segments) {
    model_moe *moe = mo->moe;
    moe->row_seg = row_seg;
    moe->n_segments = n_segments;
    moe->n_failures = 0;
    for (int32_t i = 0; moe->any && i < n_segments; i++) moe->failures[i].code = STATUS_OK;
}

status model_segment_outcome(const model *mo, int32_t segment, error *err) {
    const model_moe *moe = mo->moe;
    if (moe->n_failures == 0 || moe->failures[segment].code == STATUS_OK) return STATUS_OK;
    if (err != NULL) *err = moe->failures[segment];
    return moe->failures[segment].code;
}

void model_moe_attach(model *mo, expert_store *store) { mo->moe->store = store; }

void model_moe_close(model *mo) {
    model_moe *moe = mo->moe;
    if (moe == NULL) return;
    if (moe->store != NULL && moe->store->close(moe->store) != STATUS_OK) log_error("model: experts were still leased when the model was closed");
    for (int32_t i = 0; i < moe->n_used; i++) vt_fence_destroy(mo->device, moe->used[i]);
    vt_buffer_free(&moe->exchange);
    moe_host_close(mo);
    model_choices_close(mo);
    void *const arrays[] = {moe->order, moe->count, moe->first, moe->distinct, moe->wave, moe->held, moe->failures, moe->hint, moe->votes};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) mem_free(mo->m, arrays[i]);
    mo->moe = NULL;
}
