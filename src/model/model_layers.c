/* SPDX-License-Identifier: Apache-2.0 */
/* What architecture files say about their layers: kinds, cache groups, and numbers that differ from layer to layer. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

const char *const model_common_ignore[] = {
    "*rotary_emb.inv_freq", "*vision_tower.*", "*vision_model.*", "*visual.*", "*multi_modal_projector.*", "*embed_vision.*", "*audio_tower.*", "*embed_audio.*", "mtp.*",
    "*.mtp.*", NULL,
};

const meta_value *model_find(const model *mo, const char *hf, const char *gguf) {
    const meta *mt = source_meta(mo->src);
    char key[512];
    if (meta_get_container(mt) == META_HF) return hf != NULL ? meta_find(mt, hf) : NULL;
    if (gguf == NULL) return NULL;
    const int n = snprintf(key, sizeof key, "%s.%s", mo->prefix, gguf);
    return n > 0 && n < (int)sizeof key ? meta_find(mt, key) : NULL;
}

static const char *key_name(const model *mo, const char *hf, const char *gguf) { return source_container(mo->src) == META_HF ? hf : gguf; }

static bool is_given(const meta_value *v) { return meta_type_of(v) != META_ABSENT && meta_type_of(v) != META_NULL; }

status model_layer_count(const model *mo, const char *hf, const char *gguf, int layer, int64_t otherwise, int64_t *out, error *err) {
    const meta_value *v = model_find(mo, hf, gguf);
    int64_t n = 0;
    *out = otherwise;
    if (!is_given(v)) return STATUS_OK;
    const bool found = meta_type_of(v) == META_ARRAY ? meta_array_i64(v, (size_t)layer, &n) : meta_as_i64(v, &n);
    if (!found || n < 1 || n > 1 << 24) {
        return error_set(err, STATUS_FORMAT, "model: %s: layer %d has no number in 1..%d", key_name(mo, hf, gguf), layer, 1 << 24);
    }
    *out = n;
    return STATUS_OK;
}

status model_require_activation(const model *mo, const char *known, error *err) {
    const char *name = mo->hp.activation;
    const size_t n = strlen(name);
    if (n == 0) return STATUS_OK;
    for (const char *p = known;; p++) {
        const size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, name, n) == 0) return STATUS_OK;
        p += len;
        if (*p == '\0') break;
    }
    return error_set(err, STATUS_UNSUPPORTED, "model: activation \"%.40s\" is not implemented for %s (known: %s)", name, mo->arch->name, known);
}

status model_require_gating(const model *mo, int64_t known, error *err) {
    const int64_t found = mo->hp.gating;
    if (found == 0 || found == known) return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "model: %s.expert_gating_func %lld is not implemented for %s (known: %lld)", mo->prefix, (long long)found, mo->arch->name, (long long)known);
}

float model_router_scaling(const model *mo) { return mo->hp.router_scaling > 0 ? (float)mo->hp.router_scaling : 1.0f; }

bool model_router_norm(const model *mo, bool otherwise) { return mo->hp.router_norm < 0 ? otherwise : mo->hp.router_norm == 1; }

/* ---- windows ---- */

static status layer_types(const model *mo, const meta_value *list, bool *is_window, error *err) {
    size_t n = 0;
    if (!meta_array_size(list, &n) || n != (size_t)mo->hp.n_layers) {
        return error_set(err, STATUS_FORMAT, "model: layer_types: %zu entries, expected %lld, one per layer", n, (long long)mo->hp.n_layers);
    }
    for (size_t l = 0; l < n; l++) {
        const char *text = "";
        size_t len = 0;
        const bool found = meta_array_string(list, l, &text, &len);
        is_window[l] = found && strcmp(text, "sliding_attention") == 0;
        if (!is_window[l] && !(found && strcmp(text, "full_attention") == 0)) {
            return error_set(err, STATUS_UNSUPPORTED, "model: layer_types[%zu] is \"%.40s\"; %s knows full_attention and sliding_attention", l, text, mo->arch->name);
        }
    }
    return STATUS_OK;
}

status model_window_layers(const model *mo, int64_t pattern, bool *is_window, error *err) {
    const size_t n_layers = (size_t)mo->hp.n_layers;
    const meta_value *types = model_find(mo, "layer_types", NULL);
    if (is_given(types)) return layer_types(mo, types, is_window, err);

    const meta_value *given = model_find(mo, "sliding_window_pattern", "attention.sliding_window_pattern");
    size_t n = 0;
    if (meta_array_size(given, &n)) {
        for (size_t l = 0; l < n_layers; l++) {
            int64_t one;
            if (!meta_array_bool(given, l, &is_window[l])) {
                if (!meta_array_i64(given, l, &one)) return error_set(err, STATUS_FORMAT, "model: the sliding window pattern says nothing of layer %zu", l);
                is_window[l] = one != 0;
            }
        }
        return STATUS_OK;
    }
    if (is_given(given) && (!meta_as_i64(given, &pattern) || pattern < 0)) return error_set(err, STATUS_FORMAT, "model: the sliding window pattern is not a count or a list");
    for (size_t l = 0; l < n_layers; l++) is_window[l] = pattern == 0 || (int64_t)(l + 1) % pattern != 0;
    return STATUS_OK;
}

/* ---- groups ---- */

static bool same_group(const kv_group *g, const layer_info *li) {
    return g->kind == li->kind && g->n_kv_heads == li->n_kv_heads && g->head_dim == li->head_dim && g->window == li->window;
}

status model_group_layers(model *mo, error *err) {
    mo->n_groups = 0;
    for (int32_t l = 0; l < (int32_t)mo->hp.n_layers; l++) {
        layer_info *li = &mo->layers[l];
        if (li->kv_layer != l) continue;
        int32_t g = 0;
        while (g < mo->n_groups && !same_group(&mo->groups[g], li)) g++;
        if (g == MODEL_MAX_KV_GROUPS) return error_set(err, STATUS_UNSUPPORTED, "model: layers with caches of more than %d shapes", MODEL_MAX_KV_GROUPS);
        if (g == mo->n_groups) {
            mo->groups[mo->n_groups++] = (kv_group){.kind = li->kind, .n_kv_heads = li->n_kv_heads, .head_dim = li->head_dim, .window = li->window};
        }
        mo->groups[g].n_layers++;
        li->kv_group = g;
    }
    for (int32_t l = 0; l < (int32_t)mo->hp.n_layers; l++) {
        layer_info *li = &mo->layers[l];
        if (li->kv_layer < 0 || li->kv_layer >= l) continue;
        const layer_info *of = &mo->layers[li->kv_layer];
        if (of->n_kv_heads != li->n_kv_heads || of->head_dim != li->head_dim || of->kv_layer != li->kv_layer) {
            return error_set(err, STATUS_FORMAT, "model: layer %d reads the cache of layer %d, which has other sizes", l, li->kv_layer);
        }
        li->kv_group = of->kv_group;
    }
    return STATUS_OK;
}

status model_layers_uniform(model *mo, int64_t window, error *err) {
    const hparams *h = &mo->hp;
    int32_t rope;
    TRY(model_add_rope(mo, &h->rope, h->rope_dim, &rope, err));
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        mo->layers[l] = (layer_info){
            .kind = window > 0 ? LAYER_WINDOW : LAYER_FULL,
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
    return model_group_layers(mo, err);
}

status model_layers_switched_window(model *mo, const model_window_switch *sw, error *err) {
    const size_t n_layers = (size_t)mo->hp.n_layers;
    const int64_t window = sw->use ? mo->hp.window : 0;
    bool *is_window = arena_calloc(mo->arena, n_layers, sizeof *is_window);
    if (is_window == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the layers' kinds");
    TRY(model_layers_uniform(mo, window, err));
    if (window == 0) return STATUS_OK;
    const meta_value *types = model_find(mo, "layer_types", NULL);
    for (size_t l = 0; l < n_layers; l++) is_window[l] = (int64_t)l >= sw->first_layer;
    if (is_given(types)) TRY(layer_types(mo, types, is_window, err));
    for (size_t l = 0; l < n_layers; l++) {
        if (is_window[l]) continue;
        mo->layers[l].kind = LAYER_FULL;
        mo->layers[l].window = 0;
    }
    return model_group_layers(mo, err);
}
