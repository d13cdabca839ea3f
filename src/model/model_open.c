/* SPDX-License-Identifier: Apache-2.0 */
/* The first phase of loading: headers only. Which architecture, its hyper-parameters, which tensor fills which slot; every problem in one report. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { ARENA_CHUNK = 256 * 1024 };

static bool name_in(const char *const *list, const char *name, size_t n) {
    for (; list != NULL && *list != NULL; list++) {
        if (strlen(*list) == n && memcmp(*list, name, n) == 0) return true;
    }
    return false;
}

static const arch *arch_by_name(meta_container container, const char *name, size_t n) {
    for (const arch *const *a = arch_list; *a != NULL; a++) {
        if (name_in(container == META_GGUF ? (*a)->gguf_names : (*a)->hf_names, name, n)) return *a;
    }
    return NULL;
}

/* The name by which a checkpoint says what it is; Hugging Face files say it twice, the class first. */
static status find_arch(const meta *mt, const arch **out, char *prefix, size_t prefix_size, error *err) {
    const char *name = NULL;
    size_t n = 0;
    const meta_container container = meta_get_container(mt);
    prefix[0] = '\0';
    if (container == META_GGUF) {
        if (!meta_as_string(meta_find(mt, "general.architecture"), &name, &n)) {
            return error_set(err, STATUS_FORMAT, "model: the file has no general.architecture");
        }
        *out = arch_by_name(container, name, n);
        if (n >= prefix_size) n = prefix_size - 1;
        memcpy(prefix, name, n);
        prefix[n] = '\0';
    } else {
        *out = NULL;
        if (meta_array_string(meta_find(mt, "architectures"), 0, &name, &n)) *out = arch_by_name(container, name, n);
        const char *type;
        size_t n_type;
        if (*out == NULL && meta_as_string(meta_find(mt, "model_type"), &type, &n_type)) {
            *out = arch_by_name(container, type, n_type);
            if (name == NULL) name = type, n = n_type;
        }
        if (name == NULL) return error_set(err, STATUS_FORMAT, "model: config.json has neither architectures nor model_type");
    }
    if (*out != NULL) return STATUS_OK;
    char known[512];
    size_t used = 0;
    for (const arch *const *a = arch_list; *a != NULL && used + strlen((*a)->name) + 3 < sizeof known; a++) {
        if (used > 0) known[used++] = ',', known[used++] = ' ';
        memcpy(known + used, (*a)->name, strlen((*a)->name));
        used += strlen((*a)->name);
    }
    known[used] = '\0';
    return error_set(err, STATUS_UNSUPPORTED, "model: architecture \"%.*s\" is not implemented (known: %s)", n > 100 ? 100 : (int)n, name, known);
}

/* The number of rows of the embedding table, where the metadata does not say it. */
static int64_t vocab_from_table(const model *mo) {
    const meta_container container = source_container(mo->src);
    for (size_t i = 0; i < mo->arch->n_weights; i++) {
        const weight_row *row = &mo->arch->weights[i];
        const char *name = container == META_GGUF ? row->gguf : row->hf;
        if (row->slot != W_EMBED || name == NULL) continue;
        for (const char *alt = name; alt != NULL;) {
            char one[256];
            const char *bar = strchr(alt, '|');
            const size_t n = bar != NULL ? (size_t)(bar - alt) : strlen(alt);
            if (n >= sizeof one) return 0;
            memcpy(one, alt, n);
            one[n] = '\0';
            const tensor_info *t = source_find(mo->src, one);
            if (t != NULL && t->n_dims == 2) return t->dim[0];
            alt = bar != NULL ? bar + 1 : NULL;
        }
    }
    return 0;
}

static void derive(model *mo, textbuf *report) {
    hparams *h = &mo->hp;
    if (h->n_vocab == 0) h->n_vocab = vocab_from_table(mo);
    if (h->n_kv_heads == 0) h->n_kv_heads = h->n_heads;
    if (h->head_dim == 0) {
        if (h->n_embd % h->n_heads != 0) {
            textbuf_addf(report, "hidden size %lld is not a multiple of %lld heads, and no head size is given\n", (long long)h->n_embd, (long long)h->n_heads);
        }
        h->head_dim = h->n_embd / h->n_heads;
    }
    if (h->rope_dim == 0) h->rope_dim = h->head_dim;
    if (h->n_vocab < 1) textbuf_adds(report, "the vocabulary size is neither given nor seen in the embedding table\n");
    if (h->n_heads % h->n_kv_heads != 0) {
        textbuf_addf(report, "%lld heads are not a multiple of %lld key/value heads\n", (long long)h->n_heads, (long long)h->n_kv_heads);
    }
    if (h->rope_dim > h->head_dim || h->rope_dim % 2 != 0) {
        textbuf_addf(report, "rotary dimensions %lld: an even number up to the head size %lld is expected\n", (long long)h->rope_dim, (long long)h->head_dim);
    }
}

static bool is_symbol(const char *symbol, size_t n, const char *name) { return strlen(name) == n && memcmp(symbol, name, n) == 0; }

static int64_t dim_of(void *ctx, const char *symbol, size_t n, int layer) {
    const model *mo = ctx;
    const hparams *h = &mo->hp;
    if (mo->arch->dim != NULL) {
        const int64_t own = mo->arch->dim(mo, symbol, n, layer);
        if (own >= 0) return own;
    }
    const layer_info *li = layer >= 0 ? &mo->layers[layer] : NULL;
    if (is_symbol(symbol, n, "embd")) return h->n_embd;
    if (is_symbol(symbol, n, "vocab")) return h->n_vocab;
    if (is_symbol(symbol, n, "rot/2")) return h->rope_dim / 2;
    if (li == NULL) return -1;
    if (is_symbol(symbol, n, "q")) return li->n_heads * li->head_dim;
    if (is_symbol(symbol, n, "kv")) return li->n_kv_heads * li->head_dim;
    if (is_symbol(symbol, n, "hd")) return li->head_dim;
    if (is_symbol(symbol, n, "ff")) return li->n_ff;
    return -1;
}

static bool row_applies(void *ctx, const weight_row *row, int layer) {
    const model *mo = ctx;
    return mo->arch->applies == NULL || mo->arch->applies(mo, row, layer);
}

static status fill_weights(model *mo, error *err) {
    const size_t n_layers = (size_t)mo->hp.n_layers, n = (size_t)mo->arch->n_slots * (n_layers + 1);
    mo->weights = arena_calloc(mo->arena, n, sizeof *mo->weights);
    if (mo->weights == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the weight table");
    for (int slot = 0; slot < mo->arch->n_slots; slot++) {
        for (int layer = -1; layer < (int)n_layers; layer++) {
            const bound_weight *b = binding_get(mo->binding, slot, layer);
            if (b != NULL) mo->weights[(size_t)slot * (n_layers + 1) + (size_t)(layer + 1)] = b->view;
        }
    }
    return STATUS_OK;
}

static status bind(model *mo, textbuf *report, error *err) {
    const bind_options bo = {
        .rows = mo->arch->weights,
        .n_rows = mo->arch->n_weights,
        .n_slots = mo->arch->n_slots,
        .n_layers = (int)mo->hp.n_layers,
        .ignore = mo->arch->ignore,
        .dim = dim_of,
        .dim_ctx = mo,
        .applies = row_applies,
    };
    TRY(bind_weights(mo->m, mo->src, &bo, &mo->binding, report));
    return fill_weights(mo, err);
}

static status read_hparams(model *mo, const char *prefix, textbuf *report) {
    const meta *mt = source_meta(mo->src);
    hparams_init(&mo->hp);
    const status common = hparams_read(&mo->hp, mt, prefix, model_common_hparams, model_n_common_hparams, report);
    if (mo->arch->n_hparams > 0) {
        const status own = hparams_read(&mo->hp, mt, prefix, mo->arch->hparams, mo->arch->n_hparams, report);
        if (common == STATUS_OK) return own;
    }
    return common;
}

status model_open(mem *m, source *src, model **out, error *err) {
    char prefix[128];
    textbuf report;
    textbuf_init(&report, m, MEM_MODEL);
    model *mo = mem_calloc(m, MEM_MODEL, 1, sizeof *mo);
    status rc = STATUS_NO_MEMORY;
    if (mo == NULL) goto fail;
    mo->m = m;
    mo->src = src;
    TRY_GOTO(arena_create(m, MEM_MODEL, ARENA_CHUNK, &mo->arena));
    TRY_GOTO(find_arch(source_meta(src), &mo->arch, prefix, sizeof prefix, err));
    rc = read_hparams(mo, prefix, &report);
    if (rc == STATUS_OK) derive(mo, &report);
    if (rc == STATUS_OK && report.len == 0) {
        mo->layers = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->layers);
        mo->k_cache = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->k_cache);
        mo->v_cache = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->v_cache);
        if (mo->layers == NULL || mo->k_cache == NULL || mo->v_cache == NULL) {
            rc = error_set(err, STATUS_NO_MEMORY, "model: no memory for %lld layers", (long long)mo->hp.n_layers);
            goto fail;
        }
        TRY_GOTO(mo->arch->configure(mo, err));
        rc = bind(mo, &report, err);
    }
    if (report.len > 0) {
        rc = error_set(err, rc == STATUS_OK ? STATUS_FORMAT : rc, "model: %s cannot be loaded as %s:\n%s", source_path(src), mo->arch->name, textbuf_text(&report));
    }
    if (rc != STATUS_OK) goto fail;
    textbuf_deinit(&report);
    *out = mo;
    return STATUS_OK;
fail:
    if (rc == STATUS_NO_MEMORY && err != NULL && err->code == STATUS_OK) error_note(err, rc, "model: no memory for the model's tables");
    textbuf_deinit(&report);
    model_close(mo);
    return rc;
}

status model_layers_uniform(model *mo, int64_t window, error *err) {
    const hparams *h = &mo->hp;
    int32_t rope;
    TRY(model_add_rope(mo, h->rope_theta, h->rope_dim, h->rope_type, &rope, err));
    const layer_kind kind = window > 0 ? LAYER_WINDOW : LAYER_FULL;
    mo->n_groups = 1;
    mo->groups[0] = (kv_group){.kind = kind, .n_kv_heads = h->n_kv_heads, .head_dim = h->head_dim, .window = window, .n_layers = (int32_t)h->n_layers};
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        mo->layers[l] = (layer_info){
            .kind = kind,
            .kv_group = 0,
            .kv_layer = l,
            .n_heads = h->n_heads,
            .n_kv_heads = h->n_kv_heads,
            .head_dim = h->head_dim,
            .n_ff = h->n_ff,
            .window = window,
            .attn_scale = h->attn_scale > 0 ? (float)h->attn_scale : 1.0f / sqrtf((float)h->head_dim),
            .rope = rope,
        };
    }
    return STATUS_OK;
}

static size_t weight_index(const model *mo, int slot, int layer) { return (size_t)slot * ((size_t)mo->hp.n_layers + 1) + (size_t)(layer + 1); }

const vt_tensor *model_weight(const model *mo, int slot, int layer) { return &mo->weights[weight_index(mo, slot, layer)]; }

weight_transform model_weight_transform(const model *mo, int slot, int layer) {
    const bound_weight *b = binding_get(mo->binding, slot, layer);
    return b != NULL ? b->transform : WEIGHT_AS_IS;
}

void model_set_cache(model *mo, int layer, vt_tensor k, vt_tensor v) {
    mo->k_cache[layer] = k;
    mo->v_cache[layer] = v;
}

size_t model_page_bytes(const model *mo, int group) {
    const kv_group *g = &mo->groups[group];
    size_t row = 0;
    if (!vt_dtype_row_bytes(mo->opt.kv_dtype, g->n_kv_heads * g->head_dim * mo->opt.page_tokens, &row)) return 0;
    return 2 * row * (size_t)g->n_layers;
}

void model_close(model *mo) {
    if (mo == NULL) return;
    vt_buffer_free(&mo->workspace);
    vt_buffer_free(&mo->meta_buf);
    vt_buffer_free(&mo->weight_buf);
    vt_buffer_free(&mo->rope_buf);
    mem_free(mo->m, mo->host_logits);
    mem_free(mo->m, mo->meta_host);
    binding_destroy(mo->binding);
    arena_destroy(mo->arena);
    mem_free(mo->m, mo);
}
