/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of rows for one step. */
#include "engine/sched.h"

static int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }

static bool decodes(const sequence *q) { return q->n_computed >= q->n_prompt; }

static int32_t pick_decodes(sequence *running, int32_t skip, int32_t budget) {
    int32_t i = 0, rows = 0;
    for (sequence *q = running; q != NULL && rows < budget; q = q->next) {
        if (!decodes(q) || sequence_pending(q) == 0 || q->step_rows > 0) continue;
        if (i++ < skip) continue;
        q->step_rows = 1;
        rows++;
    }
    return rows;
}

int32_t sched_pick(sched *s, sequence *running) {
    int32_t n_decoding = 0, rows = 0, decoded = 0;
    bool prompts = false;
    for (sequence *q = running; q != NULL; q = q->next) {
        q->step_rows = 0;
        n_decoding += decodes(q);
        prompts |= !decodes(q);
    }
    /* One row is kept for the oldest prompt, so that decodes cannot starve it. */
    const int32_t for_decode = prompts && s->limits.max_rows > 1 ? s->limits.max_rows - 1 : s->limits.max_rows;
    const int32_t skip = n_decoding > for_decode ? (int32_t)(s->rotation % (uint32_t)n_decoding) : 0;
    if (prompts && s->limits.max_rows == 1 && s->turn % 2 == 0) {
        /* a single row: decodes and prompts take turns */
    } else {
        decoded = pick_decodes(running, skip, for_decode);
        if (skip > 0) decoded += pick_decodes(running, 0, for_decode - decoded);
        rows = decoded;
    }
    for (sequence *q = running; q != NULL && rows < s->limits.max_rows; q = q->next) {
        if (decodes(q)) continue;
        int32_t n = min_i32(sequence_pending(q), s->limits.max_rows - rows);
        if (q->chunk > 0) n = min_i32(n, q->chunk);
        q->step_rows = n;
        rows += n;
    }
    if (n_decoding > for_decode) s->rotation += (uint32_t)decoded;
    s->turn++;
    return rows;
}
