/* SPDX-License-Identifier: Apache-2.0 */
/* The first phase of loading: headers only. Which architecture, its hyper-parameters, which tensor fills which slot; every problem in one report. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/block_moe.h"
#include "model/model_capture.h"
#include "model/model_widen.h"

enum { ARENA_CHUNK = 256 * 1024 };

static bool name_in(const char *const *list, const char *name, size_t n) {
    for (; list != NULL && *list != NULL; list++) {
        if (strlen(*list) == n && memcmp(*list, name, n) == 0) return true;
    }
    return false;
}

/* Where two share a name, the one that has experts if the file counts some. */
static const arch *arch_by_name(meta_container container, const char *name, size_t n, bool experts) {
    const arch *found = NULL;
    for (const arch *const *a = arch_list; *a != NULL; a++) {
        if (!name_in(container == META_GGUF ? (*a)->gguf_names : (*a)->hf_names, name, n)) continue;
        if (found == NULL || (*a)->needs_experts == experts) found = *a;
    }
    return found;
}

static bool counts_experts(const meta *mt, const char *prefix) {
    char key[256];
    int64_t n = 0;
    const int len = snprintf(key, sizeof key, "%s.expert_count", prefix);
    return len > 0 && len < (int)sizeof key && meta_as_i64(meta_find(mt, key), &n) && n > 0;
}

/* The name by which a checkpoint says what it is; Hugging Face files say it twice, and the class decides: others of the same type compute something else. */
static status find_arch(const meta *mt, const arch **out, const char **prefix, error *err) {
    const char *name = NULL;
    size_t n = 0;
    const meta_container container = meta_get_container(mt);
    *prefix = "";
    if (container == META_GGUF) {
        if (!meta_as_string(meta_find(mt, "general.architecture"), &name, &n)) {
            return error_set(err, STATUS_FORMAT, "model: the file has no general.architecture");
        }
        *out = arch_by_name(container, name, n, counts_experts(mt, name));
        *prefix = name;
    } else {
        if (!meta_array_string(meta_find(mt, "architectures"), 0, &name, &n) && !meta_as_string(meta_find(mt, "model_type"), &name, &n)) {
            return error_set(err, STATUS_FORMAT, "model: config.json has neither architectures nor model_type");
        }
        *out = arch_by_name(container, name, n, false);
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
        const tensor_info *t = bind_find(mo->src, name);
        if (t != NULL && t->n_dims == 2) return t->dim[0];
    }
    return 0;
}

/* Values of a GGUF that change what is computed and of which only one is implemented; a negative factor means that it is not given. */
static void check_fixed(const model *mo, textbuf *report) {
    static const struct {
        const char *key;
        double only;
    } fixed[] = {{"rope.scaling.yarn_ext_factor", 1}, {"rope.scaling.alpha", 0}, {"attention.causal", 1}};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        const meta_value *v = model_find(mo, NULL, fixed[i].key);
        double found;
        bool flag;
        if (v == NULL) continue;
        if (meta_as_bool(v, &flag)) found = flag;
        else if (!meta_as_real(v, &found)) found = NAN;
        if (found < 0 || (found >= fixed[i].only && found <= fixed[i].only)) continue;
        textbuf_addf(report, "%s.%s: found ", mo->prefix, fixed[i].key);
        meta_format(v, report);
        textbuf_addf(report, ", and only %.0f is implemented\n", fixed[i].only);
    }
}

static void derive(model *mo, textbuf *report) {
    hparams *h = &mo->hp;
    if (h->n_vocab == 0) h->n_vocab = vocab_from_table(mo);
    if (h->n_predict_layers >= h->n_layers) textbuf_addf(report, "%lld layers, of them %lld to predict further tokens\n", (long long)h->n_layers, (long long)h->n_predict_layers);
    h->n_layers -= h->n_predict_layers;
    if (h->n_kv_heads == 0) h->n_kv_heads = h->n_heads;
    if (h->head_dim == 0) {
        if (h->n_embd % h->n_heads != 0) {
            textbuf_addf(report, "hidden size %lld is not a multiple of %lld heads, and no head size is given\n", (long long)h->n_embd, (long long)h->n_heads);
        }
        h->head_dim = h->n_embd / h->n_heads;
    }
    if (h->rope_dim == 0) h->rope_dim = h->head_dim;
    if (h->n_ff_exp == 0) h->n_ff_exp = h->n_ff;
    /* a GGUF gives one of yarn's two mscales; the other is 1 */
    if (mo->prefix[0] != '\0' && h->rope.mscale_all_dim > 0 && h->rope.mscale <= 0) h->rope.mscale = 1;
    /* a GGUF may give a factor and leave the type out; it is linear then */
    if (mo->prefix[0] != '\0' && h->rope.factor > 0 && strcmp(h->rope.type, "default") == 0) h->rope.type = "linear";
    check_fixed(mo, report);
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
    if (is_symbol(symbol, n, "experts")) return h->n_experts;
    if (is_symbol(symbol, n, "ff_exp")) return h->n_ff_exp;
    if (is_symbol(symbol, n, "2ff_exp")) return 2 * h->n_ff_exp;
    if (is_symbol(symbol, n, "ff_shared")) return h->n_shared_experts * h->n_ff_exp;
    if (li == NULL) return -1;
    if (is_symbol(symbol, n, "heads")) return li->n_heads;
    if (is_symbol(symbol, n, "q")) return li->n_heads * li->head_dim;
    if (is_symbol(symbol, n, "kv")) return li->n_kv_heads * li->head_dim;
    if (is_symbol(symbol, n, "hd")) return li->head_dim;
    if (is_symbol(symbol, n, "ff")) return li->n_ff;
    return -1;
}

static bool row_applies(void *ctx, const weight_row *row, int layer) {
    const model *mo = ctx;
    if (row->slot == W_HEAD && mo->hp.tie_embeddings == 1) return false;
    if (mo->hp.n_experts > 0 && layer >= 0) { /* the first layers may be dense; the others have experts instead */
        const bool dense = layer < mo->hp.n_dense_layers, moe = row->slot >= W_ROUTER && row->slot <= W_SHARED_ROUTER;
        const bool mlp = row->slot == W_GATE || row->slot == W_UP || row->slot == W_DOWN;
        if ((dense && moe) || (!dense && mlp && !mo->arch->dense_beside_experts)) return false;
    }
    return mo->arch->applies == NULL || mo->arch->applies(mo, row, layer);
}

static status fill_weights(model *mo, error *err) {
    const size_t n_layers = (size_t)mo->hp.n_layers, n = (size_t)mo->arch->n_slots * (n_layers + 1);
    mo->weights = arena_calloc(mo->arena, n, sizeof *mo->weights);
    mo->scales = arena_calloc(mo->arena, n, sizeof *mo->scales);
    if (mo->weights == NULL || mo->scales == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the weight table");
    for (int slot = 0; slot < mo->arch->n_slots; slot++) {
        for (int layer = -1; layer < (int)n_layers; layer++) {
            const bound_weight *b = binding_get(mo->binding, slot, layer);
            const size_t i = (size_t)slot * (n_layers + 1) + (size_t)(layer + 1);
            if (b == NULL || W_IS_EXPERT(slot)) continue;
            mo->weights[i] = b->view;
            if (slot == W_SINKS && b->info != NULL) mo->weights[i].dtype = VT_F32; /* widened by model_commit */
            if (model_is_widened(mo, slot, b)) {
                mo->weights[i].dtype = VT_F32;
                continue;
            }
            mo->scales[i] = (struct model_scale){b->scale_view, {b->block_n, b->block_k}};
        }
    }
    return STATUS_OK;
}

status model_ignore(model *mo, const char *pattern, int layer, error *err) {
    const char *at = strstr(pattern, "{l}");
    const size_t bytes = strlen(pattern) + 16;
    ignored_name *name = arena_calloc(mo->arena, 1, sizeof *name + bytes);
    if (name == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for a pattern");
    if (at != NULL)
        snprintf(name->pattern, bytes, "%.*s%d%s", (int)(at - pattern), pattern, layer, at + strlen("{l}"));
    else
        memcpy(name->pattern, pattern, strlen(pattern));
    name->next = mo->ignored;
    mo->ignored = name;
    return STATUS_OK;
}

/* What may be there and is not used: what no family uses, what this one does not, and what it turned out not to use. */
static const char *const *ignore_list(model *mo) {
    const char *const *const parts[] = {model_common_ignore, mo->arch->ignore};
    size_t n = 1;
    for (int k = 0; k < 2; k++) {
        for (const char *const *p = parts[k]; p != NULL && *p != NULL; p++) n++;
    }
    for (const ignored_name *i = mo->ignored; i != NULL; i = i->next) n++;
    const char **list = arena_calloc(mo->arena, n, sizeof *list);
    if (list == NULL) return NULL;
    n = 0;
    for (int k = 0; k < 2; k++) {
        for (const char *const *p = parts[k]; p != NULL && *p != NULL; p++) list[n++] = *p;
    }
    for (const ignored_name *i = mo->ignored; i != NULL; i = i->next) list[n++] = i->pattern;
    return list;
}

static status bind(model *mo, textbuf *report, error *err) {
    const bind_options bo = {
        .rows = mo->arch->weights,
        .n_rows = mo->arch->n_weights,
        .n_slots = mo->arch->n_slots,
        .n_layers = (int)mo->hp.n_layers,
        .ignore = ignore_list(mo),
        .dim = dim_of,
        .dim_ctx = mo,
        .applies = row_applies,
        .block_n = mo->scale_block_n,
        .block_k = mo->scale_block_k,
    };
    if (bo.ignore == NULL) return STATUS_NO_MEMORY;
    TRY(bind_weights(mo->m, mo->src, &bo, &mo->binding, report));
    if (mo->hp.tie_embeddings == 0 && binding_get(mo->binding, W_HEAD, -1)->info == NULL) {
        textbuf_addf(report, "lm_head.weight: missing in %s, and tie_word_embeddings is false\n", source_path(mo->src));
        return STATUS_FORMAT;
    }
    return fill_weights(mo, err);
}

/* The common rows without those that the architecture has its own form of. */
static status common_rows(const model *mo, hparam_row **out, size_t *n_out) {
    hparam_row *rows = arena_alloc(mo->arena, model_n_common_hparams * sizeof *rows);
    if (rows == NULL) return STATUS_NO_MEMORY;
    size_t n = 0;
    for (size_t i = 0; i < model_n_common_hparams; i++) {
        bool replaced = false;
        for (size_t k = 0; k < mo->arch->n_hparams; k++) replaced = replaced || mo->arch->hparams[k].offset == model_common_hparams[i].offset;
        if (!replaced) rows[n++] = model_common_hparams[i];
    }
    *out = rows;
    *n_out = n;
    return STATUS_OK;
}

/* Quantised checkpoints say how; what is not known is refused by name. The block size of FP8 scales is read here. */
static status check_quantization(model *mo, error *err) {
    const meta *mt = source_meta(mo->src);
    const char *method = NULL, *type = NULL;
    size_t n, n_type;
    if (source_container(mo->src) != META_HF || !meta_as_string(meta_find(mt, "quantization_config.quant_method"), &method, &n)) return STATUS_OK;
    bool known = strcmp(method, "fp8") == 0 || strcmp(method, "mxfp4") == 0;
    if (strcmp(method, "compressed-tensors") == 0) {
        int64_t bits = 0;
        (void)meta_as_i64(meta_find(mt, "quantization_config.config_groups.group_0.weights.num_bits"), &bits);
        known = meta_as_string(meta_find(mt, "quantization_config.config_groups.group_0.weights.type"), &type, &n_type) && strcmp(type, "float") == 0 && bits == 8;
        if (!known) return error_set(err, STATUS_UNSUPPORTED, "model: compressed-tensors weights of %lld bits and type \"%s\" are not implemented (known: float of 8 bits)", (long long)bits, type != NULL ? type : "?");
    }
    if (!known) return error_set(err, STATUS_UNSUPPORTED, "model: quantisation method \"%s\" is not implemented (known: fp8, compressed-tensors with 8-bit floats, mxfp4)", method);
    int64_t block[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        const meta_value *v = meta_find(mt, "quantization_config.weight_block_size");
        if (v != NULL && meta_type_of(v) == META_ARRAY && (!meta_array_i64(v, i, &block[i]) || block[i] < 1 || block[i] > INT32_MAX)) {
            return error_set(err, STATUS_FORMAT, "model: quantization_config.weight_block_size is not two positive numbers");
        }
    }
    mo->scale_block_n = (int32_t)block[0];
    mo->scale_block_k = (int32_t)block[1];
    return STATUS_OK;
}

static status read_hparams(model *mo, textbuf *report) {
    const meta *mt = source_meta(mo->src);
    const arch *a = mo->arch;
    hparam_row *rows;
    size_t n_rows;
    hparams_init(&mo->hp);
    TRY(common_rows(mo, &rows, &n_rows));
    if (a->own_bytes > 0) {
        mo->priv = arena_calloc(mo->arena, 1, a->own_bytes);
        if (mo->priv == NULL) return STATUS_NO_MEMORY;
    }
    status rc = hparams_read(&mo->hp, mt, mo->prefix, rows, n_rows, report), next;
    next = hparams_read(&mo->hp, mt, mo->prefix, a->hparams, a->n_hparams, report);
    if (rc == STATUS_OK) rc = next;
    next = hparams_read(mo->priv, mt, mo->prefix, a->own_hparams, a->n_own_hparams, report);
    return rc == STATUS_OK ? next : rc;
}

status model_open(mem *m, source *src, model **out, error *err) {
    textbuf report;
    textbuf_init(&report, m, MEM_MODEL);
    const hparams *h;
    model *mo = mem_calloc(m, MEM_MODEL, 1, sizeof *mo);
    status rc = STATUS_NO_MEMORY;
    if (mo == NULL) goto fail;
    h = &mo->hp;
    mo->m = m;
    mo->src = src;
    TRY_GOTO(arena_create(m, MEM_MODEL, ARENA_CHUNK, &mo->arena));
    TRY_GOTO(find_arch(source_meta(src), &mo->arch, &mo->prefix, err));
    rc = read_hparams(mo, &report);
    if (rc == STATUS_OK) derive(mo, &report);
    if (rc == STATUS_OK && report.len == 0) {
        mo->layers = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->layers);
        mo->k_cache = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->k_cache);
        mo->v_cache = arena_calloc(mo->arena, (size_t)mo->hp.n_layers, sizeof *mo->v_cache);
        mo->states = arena_calloc(mo->arena, (size_t)mo->hp.n_layers * MODEL_STATES_PER_LAYER, sizeof *mo->states);
        if (mo->layers == NULL || mo->states == NULL || mo->k_cache == NULL || mo->v_cache == NULL) {
            rc = error_set(err, STATUS_NO_MEMORY, "model: no memory for %lld layers", (long long)mo->hp.n_layers);
            goto fail;
        }
        TRY_GOTO(mo->arch->configure(mo, err));
        for (int64_t l = h->n_layers; l < h->n_layers + h->n_predict_layers; l++) TRY_GOTO(model_ignore(mo, "blk.{l}.*", (int)l, err));
        if (mo->hp.tie_embeddings == 1) TRY_GOTO(model_ignore(mo, "*lm_head.weight", -1, err)); /* the table is the head, whatever this holds */
        TRY_GOTO(check_quantization(mo, err));
        model_moe_check(mo, &report);
        if (report.len == 0) rc = bind(mo, &report, err);
        if (rc == STATUS_OK && report.len == 0) rc = model_moe_open(mo, err);
    }
    if (report.len > 0) {
        rc = error_set(err, rc == STATUS_OK ? STATUS_FORMAT : rc, "model: %s cannot be loaded as %s:\n%.*s", source_path(src), mo->arch->name, (int)report.len - (report.data[report.len - 1] == '\n'), report.data);
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

static size_t weight_index(const model *mo, int slot, int layer) { return (size_t)slot * ((size_t)mo->hp.n_layers + 1) + (size_t)(layer + 1); }

const vt_tensor *model_weight(const model *mo, int slot, int layer) { return &mo->weights[weight_index(mo, slot, layer)]; }

weight_transform model_weight_transform(const model *mo, int slot, int layer) {
    const bound_weight *b = binding_get(mo->binding, slot, layer);
    return b != NULL ? b->transform : WEIGHT_AS_IS;
}

status model_read_value(const model *mo, int slot, int layer, float otherwise, float *out, error *err) {
    const bound_weight *b = binding_get(mo->binding, slot, layer);
    const tensor_info *t = b->info;
    uint8_t bytes[4];
    *out = otherwise;
    if (t == NULL) return STATUS_OK;
    if (t->n_bytes > sizeof bytes) return error_set(err, STATUS_BUG, "model: %s is more than one number", t->name);
    TRY(source_read(mo->src, t, 0, t->n_bytes, bytes, err));
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    if (t->dtype == VT_F32)
        memcpy(out, bytes, sizeof *out);
    else
        *out = t->dtype == VT_F16 ? vt_f16_to_f32(half) : vt_bf16_to_f32(half);
    return STATUS_OK;
}

void model_set_cache(model *mo, int layer, vt_tensor k, vt_tensor v) {
    model_capture_drop(mo);
    mo->k_cache[layer] = k;
    mo->v_cache[layer] = v;
}

size_t model_page_bytes(const model *mo, int group) {
    const kv_group *g = &mo->groups[group];
    size_t row = 0;
    if (!vt_dtype_row_bytes(mo->opt.kv_dtype, g->n_kv_heads * g->head_dim * mo->opt.page_tokens, &row)) return 0;
    return (size_t)model_caches_of(g) * row * (size_t)g->n_layers;
}

int model_caches_of(const kv_group *g) { return g->kind == LAYER_LATENT ? 1 : 2; }

size_t model_logits_bytes(const model *mo) { return (size_t)mo->opt.max_head_rows * ((size_t)mo->hp.n_vocab * sizeof(float) + sizeof(int32_t)); }

void model_close(model *mo) {
    if (mo == NULL) return;
    model_capture_drop(mo);
    model_moe_close(mo);
    vt_buffer_free(&mo->state_buf);
    vt_buffer_free(&mo->workspace);
    vt_buffer_free(&mo->meta_buf);
    vt_buffer_free(&mo->weight_buf);
    vt_buffer_free(&mo->rope_buf);
    vt_buffer_free(&mo->host_logits);
    vt_buffer_free(&mo->meta_host);
    binding_destroy(mo->binding);
    arena_destroy(mo->arena);
    mem_free(mo->m, mo);
}
