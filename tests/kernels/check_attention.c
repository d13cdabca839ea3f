/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of rope, kv_write, prepare_heads and paged_attention. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_HEAD = 1024, MAX_POS = 4096, MAX_SEGS = 4 };
static double x_row[MAX_HEAD], y_row[MAX_HEAD];

/* rope */

static bool make_rope(check_case *c, int64_t i) {
    int64_t rows = i == 1 ? 0 : 1 + rng_below(&c->r, 6), heads = 1 + rng_below(&c->r, 4),
            d = RNG_PICK(&c->r, 2, 3, 6, 16, 34, 64, 66, 96, 128, 256);
    int64_t pairs = rng_one_in(&c->r, 3) ? rng_below(&c->r, d / 2 + 1) : d / 2;
    if (CASE_ADD(c, VT_F32, true, rows, heads, d) < 0 || CASE_ADD(c, VT_I32, false, rows) < 0 || CASE_ADD(c, VT_F32, false, pairs) < 0)
        return false;
    c->special = i % 8 == 5;
    case_fill(c, 0, 2.0);
    for (int64_t r = 0; r < rows; r++) case_set_i32(c, 1, r, (int32_t)RNG_PICK(&c->r, 0, 1, 2, 77, 4095, 131071));
    for (int64_t p = 0; p < pairs; p++) ((float *)c->t[2].data)[p] = (float)pow(10000.0, -2.0 * (double)p / (double)d);
    c->call.p.rope = (vt_rope_params){rng_one_in(&c->r, 2) ? VT_ROPE_HALF : VT_ROPE_ADJACENT, rng_one_in(&c->r, 2) ? 1.0f : 1.19f};
    c->by_row = 3;
    c->n_rows = rows;
    return true;
}

static void expect_rope(check_case *c) {
    const vt_tensor *x = &c->t[0];
    int64_t d = x->dim[2], pairs = c->t[2].dim[0];
    bool half = c->call.p.rope.pairing == VT_ROPE_HALF;
    for (int64_t r = 0; r < tensor_rows(x); r++) {
        double *want = c->want + r * d, *mag = c->mag + r * d;
        decode_row(VT_F32, tensor_row_at(x, r), d, x_row);
        for (int64_t i = 0; i < d; i++) {
            want[i] = x_row[i];
            mag[i] = 0.0;
        }
        for (int64_t i = 0; i < pairs; i++) {
            /* the angle is defined as a product in F32 */
            float angle = (float)((const int32_t *)c->t[1].data)[r / x->dim[1]] * ((const float *)c->t[2].data)[i];
            double co = cos((double)angle) * (double)c->call.p.rope.mscale, si = sin((double)angle) * (double)c->call.p.rope.mscale;
            int64_t i0 = half ? i : 2 * i, i1 = half ? i + pairs : 2 * i + 1;
            want[i0] = x_row[i0] * co - x_row[i1] * si;
            want[i1] = x_row[i1] * co + x_row[i0] * si;
            mag[i0] = mag[i1] = fabs(x_row[i0]) + fabs(x_row[i1]);
        }
    }
}

static void bench_rope(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 512 : 2, heads = shape == 2 ? 2 : 32, d = 128;
    CASE_ADD(c, VT_F32, false, rows, heads, d);
    CASE_ADD(c, VT_I32, false, rows);
    CASE_ADD(c, VT_F32, false, d / 2);
    case_fill(c, 0, 1.0);
    for (int64_t r = 0; r < rows; r++) case_set_i32(c, 1, r, (int32_t)r);
    for (int64_t p = 0; p < d / 2; p++) ((float *)c->t[2].data)[p] = (float)pow(10000.0, -2.0 * (double)p / (double)d);
    c->call.p.rope = (vt_rope_params){VT_ROPE_HALF, 1.0f};
    *bytes = (double)(rows * heads * d) * 8.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld heads=%lld d=%lld", (long long)rows, (long long)heads, (long long)d);
}

/* Segments of a step: how long each context is, how many of its last positions are rows, and where its pages are. */
typedef struct step {
    int64_t n_segs, length[MAX_SEGS], n_rows[MAX_SEGS], page_tokens, n_pages, max_pages, total_rows;
    int32_t page[MAX_SEGS][MAX_POS];
} step;

static step a_step;

static void make_step(check_case *c, step *s, int64_t n_segs, int64_t max_length, int64_t max_rows) {
    static const int64_t tokens[] = {16, 1, 4, 7, 16, 32, 300};
    *s = (step){.n_segs = n_segs, .page_tokens = tokens[rng_below(&c->r, 7)]};
    int64_t needed = 0;
    for (int64_t g = 0; g < n_segs; g++) {
        s->length[g] = 1 + rng_below(&c->r, max_length);
        s->n_rows[g] = 1 + rng_below(&c->r, max_rows < s->length[g] ? max_rows : s->length[g]);
        s->total_rows += s->n_rows[g];
        int64_t pages = (s->length[g] + s->page_tokens - 1) / s->page_tokens;
        needed += pages;
        if (pages > s->max_pages) s->max_pages = pages;
    }
    s->max_pages += rng_below(&c->r, 2);
    s->n_pages = needed + 1 + rng_below(&c->r, 3);
    static int32_t order[MAX_SEGS * MAX_POS + 8];
    for (int64_t i = 0; i < s->n_pages; i++) order[i] = (int32_t)i;
    for (int64_t i = s->n_pages - 1; i > 0; i--) {
        int64_t j = rng_below(&c->r, i + 1);
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    int64_t next = 0;
    for (int64_t g = 0; g < n_segs; g++)
        for (int64_t p = 0; p < s->max_pages; p++)
            s->page[g][p] = p * s->page_tokens < s->length[g] ? order[next++] : 0x7FFFFFFF; /* not needed by any row */
}

/* pos, row_seg, pages; rows in random order of segments. */
static bool add_rows(check_case *c, const step *s, int64_t n_rows) {
    int pos = CASE_ADD(c, VT_I32, false, n_rows), seg = CASE_ADD(c, VT_I32, false, n_rows);
    int pages = CASE_ADD(c, VT_I32, true, s->n_segs, s->max_pages);
    if (pos < 0 || seg < 0 || pages < 0) return false;
    int64_t t = 0;
    for (int64_t g = 0; g < s->n_segs && t < n_rows; g++) {
        for (int64_t i = 0; i < s->n_rows[g] && t < n_rows; i++, t++) {
            case_set_i32(c, pos, t, (int32_t)(s->length[g] - s->n_rows[g] + i));
            case_set_i32(c, seg, t, (int32_t)g);
        }
    }
    for (int64_t g = 0; g < s->n_segs; g++)
        for (int64_t p = 0; p < s->max_pages; p++) ((int32_t *)c->t[pages].data)[g * c->t[pages].stride[0] + p] = s->page[g][p];
    return true;
}

static uint8_t *place(const vt_tensor *cache, const vt_tensor *pages, int64_t seg, int64_t head, int64_t pos) {
    int64_t tokens = cache->dim[2];
    int32_t page = ((const int32_t *)pages->data)[seg * pages->stride[0] + pos / tokens];
    int64_t off = page * cache->stride[0] + head * cache->stride[1] + pos % tokens * cache->stride[2];
    return (uint8_t *)cache->data + off * (int64_t)vt_dtype_block_bytes(cache->dtype);
}

/* kv_write */

static bool make_kv_write(check_case *c, int64_t i) {
    make_step(c, &a_step, 1 + rng_below(&c->r, 3), 60, 9);
    int64_t heads = 1 + rng_below(&c->r, 3), d = RNG_PICK(&c->r, 1, 5, 8, 16, 17, 32, 64, 65, 128), rows = i == 1 ? 0 : a_step.total_rows;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[1], true, a_step.n_pages, heads, a_step.page_tokens, d) < 0) return false;
    if (CASE_ADD(c, VT_F32, true, rows, heads, d) < 0 || !add_rows(c, &a_step, rows)) return false;
    c->special = i % 4 == 3;
    case_fill(c, 1, (double)RNG_PICK(&c->r, 1, 70000));
    c->by_row = 1u << 1 | 1u << 2 | 1u << 3;
    c->n_rows = rows;
    return true;
}

static bool near_enough(vt_dtype t, double want, double got) {
    if (isnan(want)) return isnan(got);
    if (t == VT_F32) return want == got;
    if (t == VT_F16 && fabs(want) >= 65520.0) return isinf(got) && (got > 0) == (want > 0);
    if (t == VT_BF16 && fabs(want) > 3.3961775e38) return isinf(got) && (got > 0) == (want > 0);
    return fabs(want - got) <= (t == VT_F16 ? fabs(want) * 0x1p-11 + 0x1p-25 : fabs(want) * 0x1p-8 + 0x1p-133);
}

static const char *verify_kv_write(check_case *c, char *text, size_t n) {
    const vt_tensor *cache = &c->t[0], *x = &c->t[1];
    const slot *s = &c->slots[0];
    static uint8_t seen[1 << 23];
    if ((size_t)(s->end - s->begin) > sizeof seen) return "the case is too large";
    memset(seen, 0, (size_t)(s->end - s->begin));
    int64_t elem = (int64_t)vt_dtype_block_bytes(cache->dtype), d = x->dim[2];
    for (int64_t t = 0; t < x->dim[0]; t++) {
        for (int64_t h = 0; h < x->dim[1]; h++) {
            const uint8_t *to = place(cache, &c->t[4], ((const int32_t *)c->t[3].data)[t], h, ((const int32_t *)c->t[2].data)[t]);
            decode_row(VT_F32, tensor_row_at(x, t * x->dim[1] + h), d, x_row);
            decode_row(cache->dtype, to, d, y_row);
            memset(seen + (to - s->begin), 1, (size_t)(d * elem));
            for (int64_t i = 0; i < d; i++) {
                if (near_enough(cache->dtype, x_row[i], y_row[i])) continue;
                snprintf(text, n, "row %lld head %lld element %lld: %.9g became %.9g", (long long)t, (long long)h, (long long)i, x_row[i],
                         y_row[i]);
                return text;
            }
        }
    }
    for (int64_t i = 0; i < s->end - s->begin; i++) {
        if (seen[i] || s->begin[i] == s->image[s->begin - s->watched + i]) continue;
        snprintf(text, n, "byte %lld of the cache, no row's place, changed", (long long)i);
        return text;
    }
    return NULL;
}

static void bench_kv_write(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 512 : 2, heads = shape == 0 ? 8 : 2, d = 128;
    a_step = (step){
        .n_segs = 1, .length = {rows}, .n_rows = {rows}, .page_tokens = 16, .n_pages = (rows + 15) / 16, .max_pages = (rows + 15) / 16};
    for (int64_t p = 0; p < a_step.max_pages; p++) a_step.page[0][p] = (int32_t)p;
    CASE_ADD(c, (vt_dtype)c->row->sig.dtype[1], false, a_step.n_pages, heads, 16, d);
    CASE_ADD(c, VT_F32, false, rows, heads, d);
    if (!add_rows(c, &a_step, rows)) return;
    case_fill(c, 1, 1.0);
    *bytes = (double)(rows * heads * d) * (4.0 + (double)vt_dtype_block_bytes(c->t[0].dtype));
    *flops = 0.0;
    snprintf(label, n, "rows=%lld heads=%lld d=%lld", (long long)rows, (long long)heads, (long long)d);
}

/* prepare_heads */

enum { HEADS_Q, HEADS_K, HEADS_V, HEADS_Q_NORM, HEADS_K_NORM, HEADS_FREQ, HEADS_K_CACHE, HEADS_V_CACHE, HEADS_POS, HEADS_SEG, HEADS_PAGES };

static bool add_heads(check_case *c, int64_t rows, int64_t n_q, int64_t n_kv, int64_t d, int64_t pairs, bool pad) {
    rng *r = &c->r;
    const vt_dtype cache = (vt_dtype)c->row->sig.dtype[1], weights[] = {VT_F32, VT_F16, VT_BF16};
    if (CASE_ADD(c, VT_F32, pad, rows, n_q, d) < 0 || CASE_ADD(c, VT_F32, pad, rows, n_kv, d) < 0) return false;
    if (pad && rng_one_in(r, 4))
        case_add_absent(c); /* values are keys */
    else if (CASE_ADD(c, VT_F32, pad, rows, n_kv, d) < 0)
        return false;
    for (int i = HEADS_Q_NORM; i <= HEADS_K_NORM; i++) {
        if (pad && rng_one_in(r, 4))
            case_add_absent(c);
        else if (CASE_ADD(c, weights[rng_below(r, 3)], false, d) < 0)
            return false;
    }
    if (pad && rng_one_in(r, 5))
        case_add_absent(c);
    else if (CASE_ADD(c, VT_F32, false, pairs) < 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (CASE_ADD(c, cache, pad, a_step.n_pages, n_kv, a_step.page_tokens, d) < 0) return false;
    if (!add_rows(c, &a_step, rows)) return false;
    for (int i = HEADS_Q; i <= HEADS_V; i++) case_fill(c, i, 2.0);
    for (int i = HEADS_Q_NORM; i <= HEADS_K_NORM; i++) case_fill(c, i, 1.0);
    for (int64_t p = 0; c->t[HEADS_FREQ].n_dims && p < pairs; p++) ((float *)c->t[HEADS_FREQ].data)[p] = (float)pow(10000.0, -2.0 * (double)p / (double)d);
    c->call.p.heads = (vt_heads_params){{1e-6f, rng_one_in(r, 2) ? 1.0f : 0.0f}, {rng_one_in(r, 2) ? VT_ROPE_HALF : VT_ROPE_ADJACENT, rng_one_in(r, 2) ? 1.0f : 1.19f}, rng_one_in(r, 2)};
    c->outputs = 1u << HEADS_Q | 1u << HEADS_K_CACHE | 1u << HEADS_V_CACHE;
    return true;
}

static bool make_heads(check_case *c, int64_t i) {
    rng *r = &c->r;
    make_step(c, &a_step, 1 + rng_below(r, 3), 60, 9);
    const int64_t d = RNG_PICK(r, 1, 2, 5, 16, 34, 64, 66, 96, 128, 256, 512), n_kv = 1 + rng_below(r, 3), rows = i == 1 ? 0 : a_step.total_rows;
    const int64_t pairs = rng_one_in(r, 3) ? rng_below(r, d / 2 + 1) : d / 2;
    c->special = i % 8 == 5;
    if (!add_heads(c, rows, n_kv * RNG_PICK(r, 1, 2, 4, 8), n_kv, d, pairs, true)) return false;
    c->by_row = 1u << HEADS_Q | 1u << HEADS_K | 1u << HEADS_POS | 1u << HEADS_SEG;
    if (c->t[HEADS_V].n_dims) c->by_row |= 1u << HEADS_V;
    c->n_rows = rows;
    return true;
}

/* x_row as a head of this kind becomes, into x_row; y_row: what rounding of each element scales with. */
static void head_in_double(const check_case *c, int kind, int64_t t, int64_t d) {
    const vt_heads_params *p = &c->call.p.heads;
    const vt_tensor *w = &c->t[kind == HEADS_Q ? HEADS_Q_NORM : HEADS_K_NORM], *freq = &c->t[HEADS_FREQ];
    static double weight[MAX_HEAD];
    if (kind == HEADS_V ? p->v_norm : w->n_dims != 0) {
        double sum = 0.0;
        for (int64_t i = 0; i < d; i++) sum += x_row[i] * x_row[i];
        for (int64_t i = 0; i < d; i++) weight[i] = 1.0;
        if (kind != HEADS_V) {
            decode_row(w->dtype, w->data, d, weight);
            for (int64_t i = 0; i < d; i++) weight[i] += (double)p->norm.w_offset;
        }
        for (int64_t i = 0; i < d; i++) x_row[i] = x_row[i] / sqrt(sum / (double)d + (double)p->norm.eps) * weight[i];
    }
    for (int64_t i = 0; i < d; i++) y_row[i] = fabs(x_row[i]);
    if (kind == HEADS_V || freq->n_dims == 0) return;
    const bool half = p->rope.pairing == VT_ROPE_HALF;
    for (int64_t i = 0; i < freq->dim[0]; i++) {
        const float angle = (float)((const int32_t *)c->t[HEADS_POS].data)[t] * ((const float *)freq->data)[i];
        const double co = cos((double)angle) * (double)p->rope.mscale, si = sin((double)angle) * (double)p->rope.mscale;
        const int64_t i0 = half ? i : 2 * i, i1 = half ? i + freq->dim[0] : 2 * i + 1;
        const double a = x_row[i0], b = x_row[i1];
        x_row[i0] = a * co - b * si;
        x_row[i1] = b * co + a * si;
        y_row[i0] = y_row[i1] = fabs(a) + fabs(b);
    }
}

/* Elements of this head: as computed in F32, then rounded to the dtype they are kept in. */
static bool head_is_near(vt_dtype kept, int64_t d, const double *got, int64_t *at) {
    const double unit = kept == VT_F32 ? 0.0 : kept == VT_F16 ? 0x1p-11 : 0x1p-8, least = kept == VT_F16 ? 0x1p-25 : 0x1p-133;
    for (*at = 0; *at < d; ++*at) {
        const double want = x_row[*at], allowed = 16.0 * 0x1p-23 * y_row[*at] + unit * (fabs(want) + 16.0 * 0x1p-23 * y_row[*at]) + least;
        if (!(fabs(want - got[*at]) <= allowed)) return false;
    }
    return true;
}

/* The input of a head, which for q lies in what the case remembers of it: it was overwritten. */
static void input_row(const check_case *c, int index, int64_t r, int64_t d) {
    const vt_tensor *x = &c->t[index];
    const slot *s = &c->slots[index];
    decode_row(VT_F32, index == HEADS_Q ? s->image + (tensor_row_at(x, r) - s->watched) : tensor_row_at(x, r), d, x_row);
}

static const char *verify_heads(check_case *c, char *text, size_t n) {
    static double got[MAX_HEAD];
    static uint8_t seen[2][1 << 23];
    const int64_t rows = c->t[HEADS_Q].dim[0], d = c->t[HEADS_Q].dim[2];
    for (int i = 0; i < 2; i++) {
        const slot *s = &c->slots[HEADS_K_CACHE + i];
        if ((size_t)(s->end - s->begin) > sizeof seen[i]) return "the case is too large";
        memset(seen[i], 0, (size_t)(s->end - s->begin));
    }
    for (int kind = HEADS_Q; kind <= HEADS_V; kind++) {
        const int from = kind == HEADS_V && c->t[HEADS_V].n_dims == 0 ? HEADS_K : kind;
        const vt_tensor *x = &c->t[from], *cache = &c->t[kind == HEADS_V ? HEADS_V_CACHE : HEADS_K_CACHE];
        for (int64_t r = 0; r < rows * x->dim[1]; r++) {
            const int64_t t = r / x->dim[1], h = r % x->dim[1];
            const vt_dtype kept = kind == HEADS_Q ? VT_F32 : cache->dtype;
            const uint8_t *to = kind == HEADS_Q ? tensor_row_at(x, r) : place(cache, &c->t[HEADS_PAGES], ((const int32_t *)c->t[HEADS_SEG].data)[t], h, ((const int32_t *)c->t[HEADS_POS].data)[t]);
            if (kind != HEADS_Q) memset(seen[kind - HEADS_K] + (to - c->slots[kind == HEADS_K ? HEADS_K_CACHE : HEADS_V_CACHE].begin), 1, (size_t)d * vt_dtype_block_bytes(kept));
            if (c->special) continue;
            input_row(c, from, r, d);
            head_in_double(c, kind, t, d);
            decode_row(kept, to, d, got);
            int64_t at;
            if (head_is_near(kept, d, got, &at)) continue;
            snprintf(text, n, "%c row %lld head %lld element %lld: %.9g, expected %.9g", "qkv"[kind], (long long)t, (long long)h, (long long)at, got[at], x_row[at]);
            return text;
        }
    }
    for (int i = 0; i < 2; i++) {
        const slot *s = &c->slots[HEADS_K_CACHE + i];
        for (int64_t b = 0; b < s->end - s->begin; b++) {
            if (seen[i][b] || s->begin[b] == s->image[s->begin - s->watched + b]) continue;
            snprintf(text, n, "byte %lld of a cache, no row's place, changed", (long long)b);
            return text;
        }
    }
    return NULL;
}

/* Gemma 4's layers: a decoded row, many sequences, a prompt; at last a small one. */
static void bench_heads(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    static const int64_t shapes[][4] = {{1, 16, 8, 256}, {1, 16, 2, 512}, {64, 16, 8, 256}, {4096, 16, 8, 256}, {4096, 16, 2, 512}, {2, 2, 1, 64}};
    const int64_t rows = shapes[shape][0], n_q = shapes[shape][1], n_kv = shapes[shape][2], d = shapes[shape][3];
    a_step = (step){.n_segs = 1, .length = {rows}, .n_rows = {rows}, .page_tokens = 16, .n_pages = (rows + 15) / 16, .max_pages = (rows + 15) / 16};
    for (int64_t p = 0; p < a_step.max_pages; p++) a_step.page[0][p] = (int32_t)p;
    if (!add_heads(c, rows, n_q, n_kv, d, d / 2, false)) {
        c->n = 0;
        return;
    }
    c->call.p.heads = (vt_heads_params){{1e-6f, 0.0f}, {VT_ROPE_HALF, 1.0f}, true};
    *bytes = (double)(rows * d) * ((double)n_q * 8.0 + 2.0 * (double)n_kv * (4.0 + (double)vt_dtype_block_bytes(c->t[HEADS_K_CACHE].dtype)));
    *flops = 0.0;
    snprintf(label, n, "rows=%lld heads=%lld kv=%lld d=%lld", (long long)rows, (long long)n_q, (long long)n_kv, (long long)d);
}

/* paged_attention */

enum { OUT, QUERY, K, V, POS, SEG, PAGES, SINKS };

/* Fill the places of the segments' positions; the rest of the cache stays poisoned. */
static void fill_cache(check_case *c, int index, const step *s) {
    const vt_tensor *cache = &c->t[index];
    for (int64_t g = 0; g < s->n_segs; g++)
        for (int64_t pos = 0; pos < s->length[g]; pos++)
            for (int64_t h = 0; h < cache->dim[1]; h++) {
                int64_t page = s->page[g][pos / s->page_tokens];
                int64_t off = page * cache->stride[0] + h * cache->stride[1] + pos % s->page_tokens * cache->stride[2];
                for (int64_t i = 0; i < cache->dim[3]; i++) {
                    float v = (float)(rng_unit(&c->r) * 2.0);
                    if (c->special && rng_one_in(&c->r, 400)) v = rng_one_in(&c->r, 2) ? NAN : -INFINITY;
                    if (cache->dtype == VT_F32)
                        ((float *)cache->data)[off + i] = v;
                    else
                        ((uint16_t *)cache->data)[off + i] = cache->dtype == VT_F16 ? vt_f32_to_f16(v) : vt_f32_to_bf16(v);
                }
            }
}

/* Pages that a window has left behind for all rows of a segment may be gone. */
static void forget_old_pages(check_case *c, const step *s) {
    int64_t window = c->call.p.attention.window;
    if (window == 0) return;
    for (int64_t g = 0; g < s->n_segs; g++) {
        int64_t first = s->length[g] - s->n_rows[g] - window + 1;
        for (int64_t p = 0; (p + 1) * s->page_tokens <= first; p++) ((int32_t *)c->t[PAGES].data)[g * c->t[PAGES].stride[0] + p] = -1;
    }
}

/* Shapes of a case: rows of a segment, width of keys and values, heads. */
typedef struct attention_size {
    int64_t length, rows, d, v_d, kv_heads, group;
    bool latent; /* the values are the first dimensions of the keys */
} attention_size;

static attention_size pick_attention(check_case *c, int64_t i) {
    rng *r = &c->r;
    static const int64_t lengths[] = {5, 20, 260, 700, 90, 300};
    attention_size s = {.length = lengths[i % 6],
                        .rows = RNG_PICK(r, 1, 1, 2, 6),
                        .d = RNG_PICK(r, 1, 5, 8, 16, 20, 32, 40, 64, 72, 80, 96, 128, 136),
                        .kv_heads = 1 + rng_below(r, 2),
                        .group = RNG_PICK(r, 1, 1, 2, 3, 4, 5, 7, 8, 9, 12)};
    if (i % 6 == 3 && s.d * s.group > 400) s.group = 2;
    s.v_d = s.d;
    if (c->row->sig.dtype[2] != VT_BF16) return s;
    /* tiles of rows and of positions, every width that has a kernel of its own, one row beside many */
    if (i % 3 == 0) s.d = s.v_d = RNG_PICK(r, 64, 128, 192, 256, 320, 512);
    if (i % 3 == 1) s.rows = RNG_PICK(r, 9, 33, 70, 150);
    if (i % 12 == 4) s.d = s.v_d = RNG_PICK(r, 256, 512);
    if (i % 12 == 7) s = (attention_size){lengths[i / 12 % 6], RNG_PICK(r, 1, 20, 40), 576, 512, 1, RNG_PICK(r, 2, 16, 20), true};
    if (i % 12 == 5 && s.d > 8) s.v_d = s.d - 8;
    while (s.rows * s.kv_heads * s.group * s.d * s.length > 10000000 && s.rows * s.length * s.group > 1) {
        s.length = (s.length + 1) / 2;
        s.rows = (s.rows + 1) / 2;
        s.group = (s.group + 1) / 2;
    }
    return s;
}

static bool add_caches(check_case *c, const attention_size *s) {
    vt_dtype kv = (vt_dtype)c->row->sig.dtype[1];
    if (CASE_ADD(c, kv, true, a_step.n_pages, s->kv_heads, a_step.page_tokens, s->d) < 0) return false;
    if (s->latent || rng_one_in(&c->r, 6)) {
        int v = case_add_same(c, K);
        c->t[v].dim[3] = s->v_d;
        return true;
    }
    return CASE_ADD(c, kv, true, a_step.n_pages, s->kv_heads, a_step.page_tokens, s->v_d) >= 0;
}

static bool make_attention(check_case *c, int64_t i) {
    rng *r = &c->r;
    const attention_size s = pick_attention(c, i);
    make_step(c, &a_step, 1 + rng_below(r, 3), s.length, s.rows);
    int64_t rows = i == 1 ? 0 : a_step.total_rows, heads = s.kv_heads * s.group;
    c->special = i % 8 == 5;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[2], true, rows, heads, s.v_d) < 0) return false;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[0], true, rows, heads, s.d) < 0) return false;
    if (!add_caches(c, &s) || !add_rows(c, &a_step, rows)) return false;
    if (rng_one_in(r, 3))
        CASE_ADD(c, VT_F32, false, heads);
    else
        case_add_absent(c);
    /* the largest queries are beyond F16 */
    const double large = c->row->sig.dtype[2] == VT_BF16 && i % 8 == 2 ? 3e5 : 1.0;
    case_fill(c, QUERY, 2.0 * large);
    fill_cache(c, K, &a_step);
    if (c->t[V].data != c->t[K].data) fill_cache(c, V, &a_step);
    case_fill(c, SINKS, 3.0);
    float scale = (float)((rng_one_in(r, 4) && large == 1.0 && s.d <= 136 ? 1.0 : 1.0 / sqrt((double)s.d)) / large);
    c->call.p.attention = (vt_attention_params){scale, rng_one_in(r, 3) ? (float)RNG_PICK(r, 5, 30, 50) : 0.0f,
                                                rng_one_in(r, 2) ? 0 : (int32_t)RNG_PICK(r, 1, 2, 5, 17, 100, 255, 256, 300)};
    forget_old_pages(c, &a_step);
    c->by_row = 1u << OUT | 1u << QUERY | 1u << POS | 1u << SEG;
    c->n_rows = rows;
    return true;
}

static double scores[MAX_POS];

/* With BF16 output, in units of the op's tolerance: what rounding probabilities to BF16 is worth, and what rounding queries to the cache's dtype does
 * to a score, whose errors are independent: four times the root of the sum of their squares. */
static double rounded_p(vt_dtype out) { return out == VT_BF16 ? 0x1p-8 / (8.0 * 0x1p-23) : 1.0; }
static double rounded_q(vt_dtype out, vt_dtype kv) { return out != VT_BF16 || kv == VT_F32 ? 0.0 : (kv == VT_F16 ? 0x1p-10 : 0x1p-7) / (8.0 * 0x1p-23); }

static void expect_head(check_case *c, int64_t t, int64_t head, double *want, double *mag) {
    const vt_tensor *k = &c->t[K], *v = &c->t[V];
    const double by_p = rounded_p(c->t[OUT].dtype), by_q = rounded_q(c->t[OUT].dtype, k->dtype);
    const vt_attention_params *p = &c->call.p.attention;
    int64_t heads = c->t[OUT].dim[1], d = k->dim[3], v_d = v->dim[3], kv_head = head / (heads / k->dim[1]);
    int64_t pos = ((const int32_t *)c->t[POS].data)[t], seg = ((const int32_t *)c->t[SEG].data)[t];
    int64_t first = p->window && pos - p->window + 1 > 0 ? pos - p->window + 1 : 0;
    double max = c->t[SINKS].n_dims ? (double)((const float *)c->t[SINKS].data)[head] : -(double)INFINITY, sum = 0.0, worst = 0.0, spread = 0.0;
    decode_row(c->t[QUERY].dtype, tensor_row_at(&c->t[QUERY], t * heads + head), d, x_row);
    for (int64_t j = first; j <= pos; j++) {
        decode_row(k->dtype, place(k, &c->t[PAGES], seg, kv_head, j), d, y_row);
        double s = 0.0, m = 0.0, squares = 0.0;
        for (int64_t i = 0; i < d; i++) {
            s += x_row[i] * y_row[i];
            m += fabs(x_row[i] * y_row[i]);
            squares += pow(x_row[i] * y_row[i], 2);
        }
        spread = fmax(spread, sqrt(squares) * fabs((double)p->scale));
        s *= (double)p->scale;
        scores[j] = p->softcap > 0.0f ? (double)p->softcap * tanh(s / (double)p->softcap) : s;
        worst = fmax(worst, m * fabs((double)p->scale));
        max = fmax(max, scores[j]);
    }
    if (c->t[SINKS].n_dims) sum = exp((double)((const float *)c->t[SINKS].data)[head] - max);
    for (int64_t i = 0; i < v_d; i++) want[i] = mag[i] = 0.0;
    for (int64_t j = first; j <= pos; j++) {
        double e = exp(scores[j] - max);
        sum += e;
        decode_row(v->dtype, place(v, &c->t[PAGES], seg, kv_head, j), v_d, y_row);
        for (int64_t i = 0; i < v_d; i++) {
            want[i] += e * y_row[i];
            mag[i] += e * fabs(y_row[i]);
        }
    }
    for (int64_t i = 0; i < v_d; i++) {
        want[i] /= sum;
        mag[i] = mag[i] / sum * (by_p + worst * (by_p > 1.0 ? 8.0 : 1.0) + spread * by_q);
    }
}

static void expect_attention(check_case *c) {
    const vt_tensor *out = &c->t[OUT];
    for (int64_t r = 0; r < tensor_rows(out); r++)
        expect_head(c, r / out->dim[1], r % out->dim[1], c->want + r * out->dim[2], c->mag + r * out->dim[2]);
}

/* Prompts and decodes: of a dense model, and Gemma 4's local and global layers; at last a small one. */
static const struct attention_bench {
    int64_t segs, rows, length, kv_heads, group, d, window;
} attention_benches[] = {{1, 1, 16384, 8, 4, 128, 0},      {1, 256, 1024, 2, 4, 128, 0},  {1, 1, 16384, 1, 8, 256, 0},   {1, 4096, 4096, 8, 2, 256, 1024},
                         {1, 4096, 4096, 4, 4, 512, 0},    {1, 4096, 4096, 2, 8, 512, 0}, {64, 64, 4064, 8, 2, 256, 0},  {64, 64, 4064, 2, 8, 512, 0},
                         {64, 64, 4064, 8, 2, 256, 1024},  {1, 1, 512, 8, 2, 256, 1024},  {1, 1, 512, 2, 8, 512, 0},     {1, 1, 100000, 2, 8, 512, 0},
                         {16, 16, 4096, 1, 16, 576, 0},    {8, 520, 2048, 8, 2, 256, 0},  {1, 512, 65536, 2, 8, 512, 0}, {1, 1, 96, 8, 2, 256, 1024},
                         {1, 1, 96, 2, 8, 512, 0},       {64, 64, 96, 8, 2, 256, 0},      {64, 64, 96, 2, 8, 512, 0},    {1, 1, 2048, 8, 4, 128, 0},  {1, 2, 40, 2, 2, 32, 0}};

/* Sequences of one length, pages in order; all rows in the first but one each in the others. */
static bool add_bench_rows(check_case *c, const struct attention_bench *b, int64_t pages) {
    int pos = CASE_ADD(c, VT_I32, false, b->rows), seg = CASE_ADD(c, VT_I32, false, b->rows), table = CASE_ADD(c, VT_I32, false, b->segs, pages);
    if (pos < 0 || seg < 0 || table < 0) return false;
    const int64_t first = b->rows - b->segs + 1;
    for (int64_t r = 0; r < b->rows; r++) {
        case_set_i32(c, seg, r, (int32_t)(r < first ? 0 : r - first + 1));
        case_set_i32(c, pos, r, (int32_t)(r < first ? b->length - first + r : b->length - 1));
    }
    for (int64_t p = 0; p < b->segs * pages; p++) case_set_i32(c, table, p, (int32_t)p);
    return true;
}

/* A large cache: sixteen pages of random values, over and over. */
static void fill_repeating(check_case *c, int index) {
    vt_tensor *t = &c->t[index];
    const int64_t n = t->dim[0], some = n < 16 ? n : 16, page = t->stride[0];
    t->dim[0] = some;
    case_fill(c, index, 1.0);
    t->dim[0] = n;
    uint8_t *data = t->data;
    const size_t elem = vt_dtype_block_bytes(t->dtype);
    for (int64_t i = some; i < n; i++) memcpy(data + (size_t)(i * page) * elem, data + (size_t)(i % some * page) * elem, (size_t)page * elem);
}

static void bench_attention(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    const struct attention_bench *b = &attention_benches[shape];
    const int64_t heads = b->kv_heads * b->group, pages = (b->length + 15) / 16, seen = b->window > 0 && b->window < b->length ? b->window : b->length;
    const vt_dtype act = (vt_dtype)c->row->sig.dtype[0], kv = (vt_dtype)c->row->sig.dtype[1], out = (vt_dtype)c->row->sig.dtype[2];
    const bool latent = b->d == 576;
    if ((latent || b->segs > 1) && out != VT_BF16) return;
    const int64_t v_d = latent ? 512 : b->d, first = b->rows - b->segs + 1;
    if (CASE_ADD(c, out, false, b->rows, heads, v_d) < 0) return;
    if (CASE_ADD(c, act, false, b->rows, heads, b->d) < 0) return;
    if (CASE_ADD(c, kv, false, b->segs * pages, b->kv_heads, 16, b->d) < 0) goto none;
    if (latent)
        c->t[case_add_same(c, K)].dim[3] = v_d;
    else if (CASE_ADD(c, kv, false, b->segs * pages, b->kv_heads, 16, v_d) < 0)
        goto none;
    if (!add_bench_rows(c, b, pages)) goto none;
    case_add_absent(c);
    case_fill(c, QUERY, 1.0);
    fill_repeating(c, K);
    if (!latent) fill_repeating(c, V);
    c->call.p.attention = (vt_attention_params){(float)(1.0 / sqrt((double)b->d)), 0.0f, (int32_t)b->window};
    const double of_one = (double)(b->kv_heads * (b->d + (latent ? 0 : v_d))) * (double)vt_dtype_block_bytes(kv);
    double pairs = (double)((b->segs - 1) * seen); /* rows and the positions they see */
    for (int64_t r = 0; r < first; r++) pairs += (double)(b->length - first + r + 1 < seen ? b->length - first + r + 1 : seen);
    *bytes = of_one * (double)((b->segs - 1) * seen + (seen + first < b->length ? seen + first : b->length));
    *flops = 2.0 * (double)(heads * (b->d + v_d)) * pairs;
    snprintf(label, n, "segs=%lld rows=%lld context=%lld kv=%lld group=%lld d=%lld window=%lld", (long long)b->segs, (long long)b->rows, (long long)b->length,
             (long long)b->kv_heads, (long long)b->group, (long long)b->d, (long long)b->window);
    return;
none:
    c->n = 0;
}

const check_op check_rope = {VT_OP_ROPE, 4.0, make_rope, expect_rope, NULL, bench_rope, 3};
const check_op check_kv_write = {VT_OP_KV_WRITE, 0.0, make_kv_write, NULL, verify_kv_write, bench_kv_write, 2};
const check_op check_prepare_heads = {VT_OP_PREPARE_HEADS, 16.0, make_heads, NULL, verify_heads, bench_heads, 6};
const check_op check_paged_attention = {VT_OP_PAGED_ATTENTION, 8.0, make_attention, expect_attention, NULL, bench_attention,
                                         (int)(sizeof attention_benches / sizeof attention_benches[0])};
