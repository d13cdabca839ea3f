/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What routers chose in layers whose experts the host is not asked for: kept side by side on the device, copied to the host once behind the step, and shown to the observer then. Steps of many
 * rows, which take nearly everything, are left out.
 */
#include "model/block_moe.h"

enum { MOST_PAIRS = 2048 };

static bool keeps(const model *mo) { return mo->moe->any && (mo->queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0; }

size_t model_choices_bytes(const model *mo) { return keeps(mo) ? (size_t)mo->hp.n_layers * MOST_PAIRS * sizeof(int32_t) : 0; }

status model_choices_commit(model *mo, error *err) {
    model_moe *moe = mo->moe;
    const size_t bytes = model_choices_bytes(mo);
    if (bytes == 0) return STATUS_OK;
    TRY(vt_buffer_alloc(mo->device, MEM_ACTIVATIONS, bytes, "choices of routers", &moe->chosen, err));
    return vt_buffer_alloc_host(mo->device, MEM_STAGING, bytes, "choices of routers", &moe->chosen_host, err);
}

void model_choices_close(model *mo) {
    vt_buffer_free(&mo->moe->chosen);
    vt_buffer_free(&mo->moe->chosen_host);
}

/* Whether nobody reads this layer's choice inside the pass. */
static bool is_unread(const model *mo, int layer) { return mo->moe->parts[layer].grouped && moe_resident_tables(mo, layer) != NULL && !moe_is_watched(mo); }

static size_t pairs_of(const model *mo, int32_t n_rows) { return (size_t)n_rows * (size_t)mo->hp.n_experts_used; }

static bool is_kept(const model *mo, int32_t n_rows) { return mo->moe->chosen.data != NULL && mo->opt.observe_routing != NULL && pairs_of(mo, n_rows) <= MOST_PAIRS; }

void *model_choices_place(const model *mo, int layer, int32_t n_rows) {
    if (mo->planning || !is_kept(mo, n_rows) || !is_unread(mo, layer)) return NULL;
    return (int32_t *)mo->moe->chosen.data + (size_t)layer * pairs_of(mo, n_rows);
}

status model_choices_queue(const model *mo, int32_t n_rows) {
    if (!is_kept(mo, n_rows)) return STATUS_OK;
    return vt_copy(mo->queue, mo->moe->chosen_host.data, mo->moe->chosen.data, (size_t)mo->hp.n_layers * pairs_of(mo, n_rows) * sizeof(int32_t));
}

void model_choices_show(const model *mo, int32_t n_rows) {
    const model_moe *moe = mo->moe;
    for (int l = 0; is_kept(mo, n_rows) && l < (int)mo->hp.n_layers; l++) {
        if (moe->bank.layers[l].n_experts == 0 || !is_unread(mo, l)) continue;
        mo->opt.observe_routing(mo->opt.observe_ctx, l, (const int32_t *)moe->chosen_host.data + (size_t)l * pairs_of(mo, n_rows), NULL, n_rows, (int32_t)mo->hp.n_experts_used);
    }
}
