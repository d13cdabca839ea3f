/* SPDX-License-Identifier: Apache-2.0 */
/* Block types are widened by the op that looks rows of a table up, so on any device; FP8 has no such row and is widened here, a piece at a time. */
#include "model/model_widen.h"

#include <string.h>

enum { PIECE = 1024 };

static bool is_element_type(vt_dtype t) { return t == VT_F32 || t == VT_F16 || t == VT_BF16; }

bool model_is_widened(const model *mo, int slot, const bound_weight *b) {
    if (b == NULL || b->info == NULL || is_element_type(b->view.dtype)) return false;
    for (size_t i = 0; i < mo->arch->n_weights; i++) {
        if (mo->arch->weights[i].slot == slot && (mo->arch->weights[i].flags & WEIGHT_WIDENED) != 0) return true;
    }
    return false;
}

bool model_widened_bytes(const bound_weight *b, size_t *out) {
    vt_tensor wide = b->view;
    wide.dtype = VT_F32;
    return vt_tensor_bytes(&wide, out);
}

status model_plan_widening(block_ctx *c) {
    model *mo = c->m;
    for (int slot = 0; slot < mo->arch->n_slots; slot++) {
        for (int l = -1; l < (int)mo->hp.n_layers; l++) {
            const bound_weight *b = binding_get(mo->binding, slot, l);
            if (!model_is_widened(mo, slot, b) || b->view.dtype == VT_F8_E4M3) continue;
            if (!vt_dtype_is_block(b->view.dtype)) {
                return error_set(c->err, STATUS_UNSUPPORTED, "model: %s is %s, which is not implemented for this tensor (known: f32, f16, bf16, f8_e4m3 and the block types of GGUF)", b->info->name,
                                 b->info->type_name);
            }
            vt_tensor table = b->view, wide = vt_tensor_2d(NULL, VT_F32, c->q->device, 1, b->view.dim[1]);
            const vt_tensor ids = vt_tensor_slice(mo->ids, 0, 0, 1);
            table.device = c->q->device;
            TRY(vt_gather_rows(c->q, &wide, &table, &ids, c->err));
        }
    }
    return STATUS_OK;
}

/* Scales of columns [first, first + count) of row n, one for each column. */
static status read_scales(model *mo, const bound_weight *b, int64_t n, int64_t first, int64_t count, float *out, error *err) {
    uint8_t raw[PIECE * sizeof(float)];
    const size_t size = vt_dtype_block_bytes(b->scale_view.dtype);
    const int64_t k0 = first / b->block_k, k1 = (first + count - 1) / b->block_k, row = n / b->block_n * b->scale_view.dim[1];
    TRY(source_read(mo->src, b->scale, (uint64_t)(row + k0) * size, (uint64_t)(k1 - k0 + 1) * size, raw, err));
    for (int64_t k = 0; k < count; k++) {
        const uint8_t *at = raw + (size_t)((first + k) / b->block_k - k0) * size;
        uint16_t half;
        if (b->scale_view.dtype == VT_F32) {
            memcpy(&out[k], at, sizeof out[k]);
            continue;
        }
        memcpy(&half, at, sizeof half);
        out[k] = b->scale_view.dtype == VT_F16 ? vt_f16_to_f32(half) : vt_bf16_to_f32(half);
    }
    return STATUS_OK;
}

static status widen_f8(model *mo, const bound_weight *b, vt_tensor out, error *err) {
    uint8_t raw[PIECE];
    float piece[PIECE], scales[PIECE];
    const int64_t cols = b->view.dim[1];
    for (int64_t first = 0; first < cols; first += PIECE) {
        const int64_t count = cols - first < PIECE ? cols - first : PIECE;
        for (int64_t n = 0; n < b->view.dim[0]; n++) {
            if (n % b->block_n == 0) TRY(read_scales(mo, b, n, first, count, scales, err));
            TRY(source_read(mo->src, b->info, (uint64_t)(n * cols + first), (uint64_t)count, raw, err));
            for (int64_t k = 0; k < count; k++) piece[k] = vt_f8_e4m3_to_f32(raw[k]) * scales[k];
            TRY(vt_copy(mo->queue, (float *)out.data + n * cols + first, piece, (size_t)count * sizeof *piece));
            TRY(vt_queue_sync(mo->queue)); /* before the piece is filled again */
        }
    }
    return STATUS_OK;
}

static status widen_blocks(model *mo, vt_tensor narrow, vt_tensor out, error *err) {
    int32_t *host = mo->meta_host.data; /* as long as mo->ids at least */
    for (int64_t first = 0; first < narrow.dim[0]; first += mo->opt.max_rows) {
        const int64_t n = narrow.dim[0] - first < mo->opt.max_rows ? narrow.dim[0] - first : mo->opt.max_rows;
        const vt_tensor ids = vt_tensor_slice(mo->ids, 0, 0, n), rows = vt_tensor_slice(out, 0, first, n);
        for (int64_t i = 0; i < n; i++) host[i] = (int32_t)(first + i);
        TRY(vt_copy(mo->queue, ids.data, host, (size_t)n * sizeof *host));
        TRY(vt_gather_rows(mo->queue, &rows, &narrow, &ids, err));
        TRY(vt_queue_sync(mo->queue));
    }
    return STATUS_OK;
}

status model_widen(model *mo, const bound_weight *b, vt_tensor narrow, vt_tensor out, error *err) {
    const status rc = b->view.dtype == VT_F8_E4M3 ? widen_f8(mo, b, out, err) : widen_blocks(mo, narrow, out, err);
    return rc == STATUS_OK || (err != NULL && err->code != STATUS_OK) ? rc : error_set(err, rc, "model: widening %s failed", b->info->name);
}
