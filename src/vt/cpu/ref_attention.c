/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, the paged cache and attention over it, scalar: the definition for the other rows. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

static void rope_head(float *x, int64_t n_pairs, const float *inv_freq, float pos, vt_rope_params p) {
    for (int64_t i = 0; i < n_pairs; i++) {
        float *x0 = p.pairing == VT_ROPE_HALF ? x + i : x + 2 * i;
        float *x1 = p.pairing == VT_ROPE_HALF ? x + i + n_pairs : x + 2 * i + 1;
        float angle = pos * inv_freq[i];
        float c = cosf(angle) * p.mscale, s = sinf(angle) * p.mscale;
        float a = *x0, b = *x1;
        *x0 = a * c - b * s;
        *x1 = b * c + a * s;
    }
}

static void rope_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *x = call->t[0], *pos = call->t[1], *inv_freq = call->t[2];
    for (int64_t r = begin; r < end; r++) {
        int32_t at = ((const int32_t *)pos->data)[r / x->dim[1] * pos->stride[0]];
        rope_head((void *)cpu_row(x, r), inv_freq->dim[0], inv_freq->data, (float)at, call->p.rope);
    }
}

status ref_rope(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[0]), 1, rope_task, call);
    return STATUS_OK;
}

/* One element of a cache. */
static float cached(const vt_tensor *cache, const uint8_t *row, int64_t i) {
    if (cache->dtype == VT_F32) return ((const float *)(const void *)row)[i];
    uint16_t h = ((const uint16_t *)(const void *)row)[i];
    return cache->dtype == VT_F16 ? vt_f16_to_f32(h) : vt_bf16_to_f32(h);
}

/* Where a cache keeps one position of one head. */
static uint8_t *place(const vt_tensor *cache, const cpu_pages *p, int64_t row, int64_t head, int64_t pos) {
    return (uint8_t *)cache->data + cpu_page_of(p, row, pos) * cpu_stride(cache, 0) + head * cpu_stride(cache, 1) +
           pos % p->page_tokens * cpu_stride(cache, 2);
}

typedef struct paged {
    const vt_call *call;
    cpu_pages pages;
} paged;

static void kv_write_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const paged *p = ctx;
    const vt_tensor *cache = p->call->t[0], *x = p->call->t[1];
    for (int64_t r = begin; r < end; r++) {
        int64_t t = r / x->dim[1], head = r % x->dim[1];
        const float *xr = (const void *)cpu_row(x, r);
        uint8_t *to = place(cache, &p->pages, t, head, p->pages.pos[t]);
        for (int64_t i = 0; i < x->dim[2]; i++) {
            if (cache->dtype == VT_F32)
                ((float *)(void *)to)[i] = xr[i];
            else
                ((uint16_t *)(void *)to)[i] = cache->dtype == VT_F16 ? vt_f32_to_f16(xr[i]) : vt_f32_to_bf16(xr[i]);
        }
    }
}

status ref_kv_write(vt_queue *q, const vt_call *call, error *err) {
    paged p = {.call = call};
    const vt_tensor *x = call->t[1];
    TRY(cpu_pages_of(call, 2, call->t[0], x->dim[0], false, 0, &p.pages, err));
    cpu_run(q, x->dim[0] * x->dim[1], 1, kv_write_task, &p);
    return STATUS_OK;
}

static float score(const float *q, const vt_tensor *k, const uint8_t *key, const vt_attention_params *p) {
    float lanes[CPU_LANES] = {0};
    for (int64_t i = 0; i < k->dim[3]; i++) lanes[i % CPU_LANES] = fmaf(q[i], cached(k, key, i), lanes[i % CPU_LANES]);
    float s = p->scale * cpu_sum_lanes(lanes);
    return p->softcap > 0.0f ? p->softcap * tanhf(s / p->softcap) : s;
}

/* One span of positions: out holds the unnormalised sum over the spans before it, m and l their maximum and denominator. */
static void add_span(const paged *p, int64_t t, int64_t head, int64_t begin, int64_t end, bool first, float *out, float *m, float *l) {
    const vt_tensor *query = p->call->t[1], *k = p->call->t[2], *v = p->call->t[3];
    const float *q = (const void *)cpu_row(query, t * query->dim[1] + head);
    int64_t kv_head = head / (query->dim[1] / k->dim[1]);
    float prob[VT_ATTENTION_SPAN], m2 = -INFINITY, lanes[CPU_LANES] = {0};
    for (int64_t j = begin; j < end; j++) {
        prob[j - begin] = score(q, k, place(k, &p->pages, t, kv_head, j), &p->call->p.attention);
        if (prob[j - begin] > m2) m2 = prob[j - begin];
    }
    for (int64_t j = begin; j < end; j++) {
        prob[j - begin] = vt_expf(prob[j - begin] - m2);
        lanes[j % CPU_LANES] += prob[j - begin];
    }
    float l2 = cpu_sum_lanes(lanes);
    float m_new = *m > m2 ? *m : m2;
    float keep = vt_expf(*m - m_new), take = vt_expf(m2 - m_new);
    for (int64_t i = 0; i < v->dim[3]; i++) {
        float o2 = 0.0f;
        for (int64_t j = begin; j < end; j++) o2 = fmaf(prob[j - begin], cached(v, place(v, &p->pages, t, kv_head, j), i), o2);
        out[i] = first ? o2 : out[i] * keep + o2 * take;
    }
    *l = first ? l2 : *l * keep + l2 * take;
    *m = first ? m2 : m_new;
}

enum { ATTENTION_MAX_WIDTH = 4096 }; /* of an output that is rounded */

static void attention_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const paged *p = ctx;
    const vt_tensor *out = p->call->t[0], *sinks = p->call->t[7];
    for (int64_t r = begin; r < end; r++) {
        int64_t t = r / out->dim[1], head = r % out->dim[1], pos = p->pages.pos[t];
        float wide[ATTENTION_MAX_WIDTH], *o = out->dtype == VT_F32 ? (void *)cpu_row(out, r) : wide;
        float m = -INFINITY, l = 0.0f;
        int64_t start = cpu_first_pos(pos, p->call->p.attention.window);
        for (int64_t j = start; j <= pos;) {
            int64_t span_end = (j / VT_ATTENTION_SPAN + 1) * VT_ATTENTION_SPAN;
            int64_t stop = span_end < pos + 1 ? span_end : pos + 1;
            add_span(p, t, head, j, stop, j == start, o, &m, &l);
            j = stop;
        }
        if (sinks->n_dims) {
            float sink = ((const float *)sinks->data)[head * sinks->stride[0]];
            float m_new = m > sink ? m : sink;
            float keep = vt_expf(m - m_new);
            for (int64_t i = 0; i < out->dim[2]; i++) o[i] = o[i] * keep;
            l = l * keep + vt_expf(sink - m_new);
        }
        for (int64_t i = 0; i < out->dim[2]; i++) o[i] = o[i] / l;
        for (int64_t i = 0; out->dtype != VT_F32 && i < out->dim[2]; i++) ((uint16_t *)(void *)cpu_row(out, r))[i] = vt_f32_to_bf16(o[i]);
    }
}

status ref_paged_attention(vt_queue *q, const vt_call *call, error *err) {
    paged p = {.call = call};
    const vt_tensor *out = call->t[0];
    if (out->dtype != VT_F32 && out->dim[2] > ATTENTION_MAX_WIDTH)
        return error_set(err, STATUS_INVALID, "cpu: heads of %lld, at most %d with this output", (long long)out->dim[2], ATTENTION_MAX_WIDTH);
    TRY(cpu_pages_of(call, 4, call->t[2], out->dim[0], true, call->p.attention.window, &p.pages, err));
    cpu_run(q, out->dim[0] * out->dim[1], 1, attention_task, &p);
    return STATUS_OK;
}
