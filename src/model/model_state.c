/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrent states of one sequence, packed: what a snapshot of it is. Copies are queued like any other work of the device. */
#include "model/model.h"

size_t model_state_bytes(const model *mo) {
    size_t n = 0;
    for (int64_t i = 0; i < mo->hp.n_layers * MODEL_STATES_PER_LAYER; i++) n += (size_t)mo->states[i].n_elems * sizeof(float);
    return n;
}

static status copy_states(model *mo, int32_t seq_slot, char *kept, bool keep, error *err) {
    size_t off = 0;
    for (int64_t i = 0; i < mo->hp.n_layers * MODEL_STATES_PER_LAYER; i++) {
        const model_state *st = &mo->states[i];
        if (st->n_elems == 0) continue;
        const size_t bytes = (size_t)st->n_elems * sizeof(float);
        char *at = (char *)st->t.data + (size_t)seq_slot * bytes;
        const status rc = vt_copy(mo->queue, keep ? kept + off : at, keep ? at : kept + off, bytes);
        if (rc != STATUS_OK) return error_set(err, rc, "model: copying a recurrent state failed");
        off += bytes;
    }
    return STATUS_OK;
}

status model_state_keep(model *mo, int32_t seq_slot, void *kept, error *err) { return copy_states(mo, seq_slot, kept, true, err); }

status model_state_restore(model *mo, int32_t seq_slot, const void *kept, error *err) { return copy_states(mo, seq_slot, (char *)(uintptr_t)kept, false, err); /* read only */ }
