/* SPDX-License-Identifier: Apache-2.0 */
/* Inverse frequencies of rotary embeddings, in F32 as the reference implementations compute them. */
#include <math.h>
#include <string.h>

#include "model/model.h"

enum { ROPE_MAX_DIM = 1 << 16 };

static void scale_linear(float *inv, int64_t n, double factor) {
    for (int64_t i = 0; i < n; i++) inv[i] = (float)(inv[i] / factor);
}

/* Llama 3: long wavelengths are divided by `factor`, short ones kept, those between are blended (Transformers, "llama3"). */
static void scale_llama3(float *inv, int64_t n, const hparams *h) {
    const double original = (double)h->rope_original_ctx;
    const double low_wavelen = original / h->rope_low_freq_factor, high_wavelen = original / h->rope_high_freq_factor;
    for (int64_t i = 0; i < n; i++) {
        const double wavelen = 2.0 * M_PI / inv[i];
        if (wavelen > low_wavelen) {
            inv[i] = (float)(inv[i] / h->rope_factor);
        } else if (wavelen >= high_wavelen) {
            const double smooth = (original / wavelen - h->rope_low_freq_factor) / (h->rope_high_freq_factor - h->rope_low_freq_factor);
            inv[i] = (float)((1.0 - smooth) * inv[i] / h->rope_factor + smooth * inv[i]);
        }
    }
}

status model_add_rope(model *mo, double theta, int64_t n_rot, const char *type, int32_t *out, error *err) {
    if (mo->n_ropes == MODEL_MAX_ROPES) return error_set(err, STATUS_BUG, "model: more than %d kinds of rotary embedding", MODEL_MAX_ROPES);
    if (n_rot < 2 || n_rot % 2 != 0 || n_rot > ROPE_MAX_DIM) {
        return error_set(err, STATUS_FORMAT, "model: rotary dimensions %lld: an even number from 2 to %d is expected", (long long)n_rot, ROPE_MAX_DIM);
    }
    const hparams *h = &mo->hp;
    const int64_t n = n_rot / 2;
    float *inv = arena_alloc(mo->arena, (size_t)n * sizeof *inv);
    if (inv == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for a rotary table");
    for (int64_t i = 0; i < n; i++) inv[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)n_rot);

    const bool needs_factor = type != NULL && (strcmp(type, "linear") == 0 || strcmp(type, "llama3") == 0);
    if (needs_factor && !(h->rope_factor > 0)) return error_set(err, STATUS_FORMAT, "model: rope type \"%s\" needs a factor", type);
    if (type == NULL || strcmp(type, "default") == 0 || strcmp(type, "none") == 0) {
        /* as they are */
    } else if (strcmp(type, "linear") == 0) {
        scale_linear(inv, n, h->rope_factor);
    } else if (strcmp(type, "llama3") == 0) {
        if (!(h->rope_low_freq_factor > 0) || !(h->rope_high_freq_factor > h->rope_low_freq_factor) || h->rope_original_ctx <= 0) {
            return error_set(err, STATUS_FORMAT, "model: rope type \"llama3\" needs low_freq_factor < high_freq_factor and original_max_position_embeddings");
        }
        scale_llama3(inv, n, h);
    } else {
        return error_set(err, STATUS_UNSUPPORTED, "model: rope type \"%s\" is not implemented (known: default, linear, llama3)", type);
    }
    const int32_t index = mo->n_ropes++;
    mo->ropes[index] = (rope_spec){.n_rot = n_rot, .mscale = 1.0f};
    mo->rope_host[index] = inv;
    *out = index;
    return STATUS_OK;
}
