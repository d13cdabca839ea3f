/* SPDX-License-Identifier: Apache-2.0 */
/* Inverse frequencies of rotary embeddings, in F32 as the reference implementations compute them. */
#include <math.h>
#include <string.h>

#include "model/model.h"

enum { ROPE_MAX_DIM = 1 << 16 };

typedef struct rope_table {
    float *inv; /* [n] */
    int64_t n;
    float mscale;
} rope_table;

/* theta^(-2i/n_dims) for the first `n`. */
static void plain(float *inv, int64_t n, double theta, int64_t n_dims) {
    for (int64_t i = 0; i < n; i++) inv[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)n_dims);
}

static void divide(rope_table *t, double factor) {
    for (int64_t i = 0; factor > 0 && i < t->n; i++) t->inv[i] = (float)(t->inv[i] / factor);
}

static status scale_linear(rope_table *t, const rope_hparams *h, error *err) {
    if (!(h->factor > 0)) return error_set(err, STATUS_FORMAT, "model: rope type \"linear\" needs a factor");
    divide(t, h->factor);
    return STATUS_OK;
}

/* Llama 3: long wavelengths are divided by `factor`, short ones kept, those between are blended (Transformers, "llama3"). */
static status scale_llama3(rope_table *t, const rope_hparams *h, error *err) {
    if (!(h->factor > 0) || !(h->low_freq_factor > 0) || !(h->high_freq_factor > h->low_freq_factor) || h->original_ctx <= 0) {
        return error_set(err, STATUS_FORMAT, "model: rope type \"llama3\" needs a factor, low_freq_factor < high_freq_factor and original_max_position_embeddings");
    }
    const double original = (double)h->original_ctx;
    const double low_wavelen = original / h->low_freq_factor, high_wavelen = original / h->high_freq_factor;
    for (int64_t i = 0; i < t->n; i++) {
        const double wavelen = 2.0 * M_PI / t->inv[i];
        if (wavelen > low_wavelen) {
            t->inv[i] = (float)(t->inv[i] / h->factor);
        } else if (wavelen >= high_wavelen) {
            const double smooth = (original / wavelen - h->low_freq_factor) / (h->high_freq_factor - h->low_freq_factor);
            t->inv[i] = (float)((1.0 - smooth) * t->inv[i] / h->factor + smooth * t->inv[i]);
        }
    }
    return STATUS_OK;
}

/* Proportional: the first share of the pairs turns as it would if all did; the others do not turn. The pairs stay half a head apart. */
static status scale_proportional(rope_table *t, const rope_hparams *h, error *err) {
    (void)err;
    const int64_t turning = (int64_t)floor(h->partial * (double)(2 * t->n) / 2.0);
    for (int64_t i = turning; i < t->n; i++) t->inv[i] = 0.0f;
    divide(t, h->factor);
    return STATUS_OK;
}

static double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0; }

/* The dimension that turns `rotations` times within the original context. */
static double yarn_dim(double rotations, int64_t n_dims, double theta, double original) {
    return (double)n_dims * log(original / (rotations * 2.0 * M_PI)) / (2.0 * log(theta));
}

/* YaRN (Peng et al. 2023): fast dimensions keep their frequency, slow ones are divided, a ramp lies between; cos and sin are scaled. */
static status scale_yarn(rope_table *t, const rope_hparams *h, error *err) {
    const double original = (double)h->original_ctx;
    if (!(h->factor > 0) || h->original_ctx <= 0 || !(h->theta > 1) || !(h->beta_fast > 0) || !(h->beta_slow > 0)) {
        return error_set(err, STATUS_FORMAT, "model: rope type \"yarn\" needs a factor, original_max_position_embeddings, rope_theta > 1, and positive beta_fast and beta_slow");
    }
    const int64_t n_dims = 2 * t->n;
    double low = yarn_dim(h->beta_fast, n_dims, h->theta, original), high = yarn_dim(h->beta_slow, n_dims, h->theta, original);
    if (h->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0.0);
    high = fmin(high, (double)(n_dims - 1));
    if (!(high < low) && !(high > low)) high += 0.001;
    for (int64_t i = 0; i < t->n; i++) {
        const float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0.0f), 1.0f), keep = 1.0f - ramp;
        const float slow = 1.0f / ((float)h->factor * powf((float)h->theta, (float)(2 * i) / (float)n_dims));
        t->inv[i] = slow * (1.0f - keep) + t->inv[i] * keep;
    }
    t->mscale = (float)(h->attention_factor > 0                         ? h->attention_factor
                        : h->mscale > 0 && h->mscale_all_dim > 0        ? yarn_mscale(h->factor, h->mscale) / yarn_mscale(h->factor, h->mscale_all_dim)
                                                                        : yarn_mscale(h->factor, 1.0));
    return STATUS_OK;
}

static status keep(rope_table *t, const rope_hparams *h, error *err) {
    (void)t, (void)h, (void)err;
    return STATUS_OK;
}

static const struct {
    const char *name;
    status (*scale)(rope_table *t, const rope_hparams *h, error *err);
    bool whole_head; /* `partial` does not shorten the table */
} types[] = {
    {"default", keep, false},
    {"none", keep, false},
    {"linear", scale_linear, false},
    {"llama3", scale_llama3, false},
    {"proportional", scale_proportional, true},
    {"yarn", scale_yarn, false},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

status model_add_rope(model *mo, const rope_hparams *h, int64_t n_dims, int32_t *out, error *err) {
    int type = 0;
    while (type < N_TYPES && strcmp(types[type].name, h->type) != 0) type++;
    if (type == N_TYPES) {
        return error_set(err, STATUS_UNSUPPORTED, "model: rope type \"%.40s\" is not implemented (known: default, linear, llama3, proportional, yarn)", h->type);
    }
    if (mo->n_ropes == MODEL_MAX_ROPES) return error_set(err, STATUS_BUG, "model: more than %d kinds of rotary embedding", MODEL_MAX_ROPES);
    const int64_t n_rot = types[type].whole_head ? n_dims : (int64_t)((double)n_dims * h->partial);
    if (n_rot < 2 || n_rot % 2 != 0 || n_rot > ROPE_MAX_DIM) {
        return error_set(err, STATUS_FORMAT, "model: rotary dimensions %lld: an even number from 2 to %d is expected", (long long)n_rot, ROPE_MAX_DIM);
    }
    rope_table t = {.inv = arena_alloc(mo->arena, (size_t)(n_rot / 2) * sizeof(float)), .n = n_rot / 2, .mscale = 1.0f};
    if (t.inv == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for a rotary table");
    rope_hparams full = *h;
    if (full.original_ctx == 0) full.original_ctx = mo->hp.n_ctx_train;
    if (full.factor <= 0 && strcmp(h->type, "yarn") == 0 && full.original_ctx > 0) full.factor = (double)mo->hp.n_ctx_train / (double)full.original_ctx;
    plain(t.inv, t.n, h->theta, n_rot);
    TRY(types[type].scale(&t, &full, err));
    if (full.cos_sin_factor > 0) t.mscale = (float)(t.mscale * full.cos_sin_factor);
    const int32_t index = mo->n_ropes++;
    mo->ropes[index] = (rope_spec){.n_rot = n_rot, .mscale = t.mscale};
    mo->rope_host[index] = t.inv;
    *out = index;
    return STATUS_OK;
}
