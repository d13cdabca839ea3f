/* SPDX-License-Identifier: Apache-2.0 */
/* Names to slots. Every problem becomes one line of the report; a tensor may fill several slots (a head that is the embedding table). */
#include "load/bind.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "load/source_impl.h"

enum { NAME_BYTES = SOURCE_MAX_NAME_BYTES + 1, MAX_LINES = 1000, MAX_EXPERTS = 65536 };

struct binding {
    mem *m;
    int n_slots, n_layers;
    bound_weight *weights;  /* [n_slots][n_layers + 1]; column 0 is "not per layer" */
    bound_weight **experts; /* the same places: [n_experts] where each expert has its own tensor, else NULL */
    const tensor_info **ignored;
    size_t n_ignored;
};

/*
 * Multimodal checkpoints of a published family wrap the text model. A row spells a name as the text model alone does; each of these
 * replacements of its beginning is tried after that.
 */
static const struct {
    const char *from, *to;
} wrappers[] = {
    {"model.", "model.language_model."},
    {"model.", "language_model.model."},
    {"model.", "language_model."},
    {"lm_head.", "language_model.lm_head."},
};

typedef struct binder {
    source *s;
    const bind_options *opt;
    binding *b;
    textbuf *report;
    bool *claimed; /* per tensor */
    size_t n_problems, n_unsupported;
} binder;

static const char *file_of(const source *s, const tensor_info *t) { return os_file_path(source_file(s, t->file)); }

/* Start a line of the report; false when there are enough of them. */
static bool begin_problem(binder *k, bool unsupported) {
    k->n_problems++;
    if (unsupported) k->n_unsupported++;
    return k->n_problems <= MAX_LINES;
}

/* --- names --- */

/* A pattern with {l} and {e} filled in; false when the name is too long for any tensor. */
static bool expand(const char *p, size_t n, int layer, int expert, char *out) {
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        char piece[16] = {p[i], '\0'};
        size_t step = 1;
        if (n - i >= 3 && memcmp(p + i, "{l}", 3) == 0) {
            snprintf(piece, sizeof piece, "%d", layer);
            step = 3;
        } else if (n - i >= 3 && memcmp(p + i, "{e}", 3) == 0) {
            snprintf(piece, sizeof piece, "%d", expert);
            step = 3;
        }
        size_t add = strlen(piece);
        if (len + add >= NAME_BYTES) return false;
        memcpy(out + len, piece, add);
        len += add;
        i += step;
    }
    out[len] = '\0';
    return true;
}

static const tensor_info *find_wrapped(const source *s, const char *name) {
    char other[NAME_BYTES];
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        size_t n = strlen(wrappers[i].from);
        if (strncmp(name, wrappers[i].from, n) != 0) continue;
        int len = snprintf(other, sizeof other, "%s%s", wrappers[i].to, name + n);
        if (len < 0 || len >= NAME_BYTES) continue;
        const tensor_info *t = source_find(s, other);
        if (t != NULL) return t;
    }
    return NULL;
}

static const tensor_info *find_named(const source *s, const char *name) {
    const tensor_info *t = source_find(s, name);
    return t == NULL && source_container(s) == META_HF ? find_wrapped(s, name) : t;
}

/* The tensor of the first alternative that is there; *per_expert: that its name has an {e}. */
static const tensor_info *find_tensor(const source *s, const char *alternatives, int layer, int expert, bool *per_expert) {
    char name[NAME_BYTES];
    for (const char *p = alternatives;;) {
        size_t n = strcspn(p, "|");
        if (expand(p, n, layer, expert, name)) {
            const tensor_info *t = find_named(s, name);
            const char *e = strstr(p, "{e}");
            *per_expert = e != NULL && e < p + n;
            if (t != NULL) return t;
        }
        if (p[n] == '\0') return NULL;
        p += n + 1;
    }
}

const tensor_info *bind_find(const source *s, const char *alternatives) {
    bool per_expert;
    return find_tensor(s, alternatives, 0, 0, &per_expert);
}

/* '*' stands for any run of characters. */
static bool glob_match(const char *pattern, const char *text) {
    const char *star = NULL, *resume = NULL;
    while (*text != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            resume = text;
        } else if (*pattern == *text) {
            pattern++;
            text++;
        } else if (star != NULL) {
            pattern = star + 1;
            text = ++resume;
        } else
            return false;
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

/* --- shapes --- */

typedef struct shape {
    int n;
    int64_t dim[VT_MAX_DIMS];
} shape;

static void add_shape(textbuf *out, int n, const int64_t *dim) {
    textbuf_adds(out, "[");
    for (int i = 0; i < n; i++) textbuf_addf(out, "%s%lld", i == 0 ? "" : ", ", (long long)dim[i]);
    textbuf_adds(out, "]");
}

/* "q,embd" for a layer. A symbol that the architecture does not know is a bug of its table. */
static bool eval_shape(const binder *k, const char *text, int layer, shape *out) {
    out->n = 0;
    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, ",");
        int64_t v = 0;
        bool number = n > 0;
        for (size_t i = 0; i < n && number; i++) {
            number = p[i] >= '0' && p[i] <= '9' && checked_mul_i64(v, 10, &v) && checked_add_i64(v, p[i] - '0', &v);
        }
        if (!number) v = k->opt->dim == NULL ? -1 : k->opt->dim(k->opt->dim_ctx, p, n, layer);
        if (v < 0 || out->n == VT_MAX_DIMS) return false;
        out->dim[out->n++] = v;
        p += p[n] == ',' ? n + 1 : n;
    }
    return true;
}

/* Dimensions of 1 do not matter: writers drop them or put them in. */
static bool same_shape(const shape *want, const tensor_info *t) {
    int i = 0, j = 0;
    for (;;) {
        while (i < want->n && want->dim[i] == 1) i++;
        while (j < t->n_dims && t->dim[j] == 1) j++;
        if (i == want->n || j == t->n_dims) return i == want->n && j == t->n_dims;
        if (want->dim[i++] != t->dim[j++]) return false;
    }
}

static vt_tensor make_view(const shape *want, vt_dtype dtype) {
    const int64_t *d = want->dim;
    const vt_device_id host = {0};
    switch (want->n) {
    case 2:
        return vt_tensor_2d(NULL, dtype, host, d[0], d[1]);
    case 3:
        return vt_tensor_3d(NULL, dtype, host, d[0], d[1], d[2]);
    case 4:
        return vt_tensor_4d(NULL, dtype, host, d[0], d[1], d[2], d[3]);
    default:
        return vt_tensor_1d(NULL, dtype, host, want->n == 0 ? 1 : d[0]);
    }
}

/* --- what a tensor must be --- */

static bool is_element_type(vt_dtype t) { return t == VT_F32 || t == VT_F16 || t == VT_BF16; }

/* Of indices and of packed numbers that another tensor unpacks: no weight's. */
static bool is_integer_type(vt_dtype t) { return t == VT_I8 || t == VT_U8 || t == VT_I32 || t == VT_I64; }

static void report_missing(binder *k, const char *names, int layer, int expert) {
    char name[NAME_BYTES];
    if (!begin_problem(k, false)) return;
    for (const char *p = names;;) {
        size_t n = strcspn(p, "|");
        if (expand(p, n, layer, expert, name)) textbuf_addf(k->report, "%s%s", p == names ? "" : " or ", name);
        if (p[n] == '\0') break;
        p += n + 1;
    }
    textbuf_addf(k->report, ": missing in %s\n", source_path(k->s));
}

static void check_tensor(binder *k, const weight_row *row, const tensor_info *t, const shape *want) {
    if ((t->dtype == VT_NONE || is_integer_type(t->dtype)) && begin_problem(k, true))
        textbuf_addf(k->report, "%s: found type %s, which is not supported, in %s\n", t->name, t->type_name, file_of(k->s, t));
    else if (t->dtype != VT_NONE && !is_integer_type(t->dtype) && (row->flags & WEIGHT_ELEMENT_TYPES) != 0 && !is_element_type(t->dtype) && begin_problem(k, false))
        textbuf_addf(k->report, "%s: found type %s, expected f32, f16 or bf16, in %s\n", t->name, t->type_name, file_of(k->s, t));
    if (same_shape(want, t) || !begin_problem(k, false)) return;
    textbuf_addf(k->report, "%s: found shape ", t->name);
    add_shape(k->report, t->n_dims, t->dim);
    textbuf_adds(k->report, ", expected ");
    add_shape(k->report, want->n, want->dim);
    textbuf_addf(k->report, " (%s), in %s\n", row->shape, file_of(k->s, t));
}

/* MXFP4 as published: U8 "_blocks" [..., K / 32, 16] stand for F4_E2M1 [..., K]. */
static bool is_mxfp4_blocks(const tensor_info *t) {
    const size_t n = strlen(t->name), suffix = strlen("_blocks");
    return t->dtype == VT_U8 && t->n_dims >= 3 && t->dim[t->n_dims - 1] == 16 && n > suffix && strcmp(t->name + n - suffix, "_blocks") == 0;
}

static tensor_info unfold_mxfp4(const tensor_info *t) {
    tensor_info u = *t;
    u.dtype = VT_F4_E2M1;
    u.n_dims = t->n_dims - 1;
    u.dim[u.n_dims - 1] = t->dim[t->n_dims - 2] * 32;
    u.dim[u.n_dims] = 1;
    return u;
}

/* --- scales --- */

static const tensor_info *find_scale(const binder *k, const tensor_info *t) {
    char name[NAME_BYTES];
    const size_t n = strlen(t->name);
    if (is_mxfp4_blocks(t)) {
        int len = snprintf(name, sizeof name, "%.*s_scales", (int)(n - strlen("_blocks")), t->name);
        return len > 0 && len < NAME_BYTES ? source_find(k->s, name) : NULL;
    }
    static const char *const suffixes[] = {"_scale", "_scale_inv"};
    for (size_t i = 0; i < 2; i++) {
        int len = snprintf(name, sizeof name, "%s%s", t->name, suffixes[i]);
        const tensor_info *s = len > 0 && len < NAME_BYTES ? source_find(k->s, name) : NULL;
        if (s != NULL) return s;
    }
    return NULL;
}

static int64_t blocks_of(int64_t n, int64_t block) { return block > 0 ? (n + block - 1) / block : 0; }

/* The grid of scales of a matrix [n, k]: which of the published shapes it is, without the stack of experts. */
static bool scale_grid(const binder *k, const tensor_info *s, int first_dim, int64_t rows, int64_t cols, bound_weight *w, shape *grid) {
    const int n_dims = s->n_dims - first_dim;
    const int64_t d0 = n_dims > 0 ? s->dim[first_dim] : 1, d1 = n_dims > 1 ? s->dim[first_dim + 1] : 1;
    if (n_dims < 0 || n_dims > 2 || rows > INT32_MAX || cols > INT32_MAX) return false;
    *grid = (shape){.n = 2, .dim = {d0, d1}};
    if (s->dtype == VT_F8_E8M0) {
        w->block_n = 1;
        w->block_k = 32;
    } else if (d0 == 1 && d1 == 1) {
        w->block_n = (int32_t)rows;
        w->block_k = (int32_t)cols;
    } else if (d0 == rows && d1 == 1) {
        w->block_n = 1;
        w->block_k = (int32_t)cols;
    } else {
        w->block_n = k->opt->block_n;
        w->block_k = k->opt->block_k;
    }
    return w->block_n > 0 && w->block_k > 0 && d0 == blocks_of(rows, w->block_n) && d1 == blocks_of(cols, w->block_k);
}

static void bind_scale(binder *k, const tensor_info *t, const shape *want, bound_weight *w) {
    const bool mxfp4 = w->view.dtype == VT_F4_E2M1;
    if (w->view.dtype != VT_F8_E4M3 && !mxfp4) return;
    const tensor_info *s = find_scale(k, t);
    if (s == NULL) {
        if (begin_problem(k, false)) textbuf_addf(k->report, "%s: found %s without its scales, in %s\n", t->name, t->type_name, file_of(k->s, t));
        return;
    }
    k->claimed[s - source_tensor(k->s, 0)] = true;
    tensor_info as = *s;
    if (mxfp4 && s->dtype == VT_U8) as.dtype = VT_F8_E8M0;
    const bool right_type = mxfp4 ? as.dtype == VT_F8_E8M0 : is_element_type(as.dtype);
    shape grid = {0};
    const int first = w->stacked ? 1 : 0;
    if (!right_type || want->n != first + 2 || (w->stacked && (as.n_dims < 1 || as.dim[0] != want->dim[0])) ||
        !scale_grid(k, &as, first, want->dim[first], want->dim[first + 1], w, &grid)) {
        if (!begin_problem(k, false)) return;
        textbuf_addf(k->report, "%s: found %s ", s->name, s->type_name);
        add_shape(k->report, s->n_dims, s->dim);
        textbuf_addf(k->report, ", expected scales of %s ", t->name);
        add_shape(k->report, want->n, want->dim);
        textbuf_addf(k->report, " (blocks of %d x %d), in %s\n", (int)k->opt->block_n, (int)k->opt->block_k, file_of(k->s, s));
        return;
    }
    w->scale = s;
    if (w->stacked) grid = (shape){.n = 3, .dim = {want->dim[0], grid.dim[0], grid.dim[1]}};
    w->scale_view = make_view(&grid, as.dtype);
}

/* --- rows --- */

static status bind_tensor(binder *k, const weight_row *row, const tensor_info *t, const shape *want, bool stacked, bound_weight *w) {
    k->claimed[t - source_tensor(k->s, 0)] = true;
    if (w->info != NULL) {
        textbuf_addf(k->report, "%s and %s: our table puts both into slot %d\n", w->info->name, t->name, row->slot);
        return STATUS_BUG;
    }
    const tensor_info logical = is_mxfp4_blocks(t) ? unfold_mxfp4(t) : *t;
    check_tensor(k, row, &logical, want);
    *w = (bound_weight){
        .info = t,
        .view = make_view(want, logical.dtype),
        .transform = source_container(k->s) == META_HF ? row->hf_transform : row->gguf_transform,
        .stacked = stacked,
    };
    bind_scale(k, t, want, w);
    return STATUS_OK;
}

static status bind_experts(binder *k, const weight_row *row, const char *names, int layer, const shape *stack, size_t place) {
    const int64_t n_experts = stack->dim[0];
    shape want = {.n = stack->n - 1};
    for (int i = 0; i < want.n; i++) want.dim[i] = stack->dim[i + 1];
    if (n_experts > MAX_EXPERTS) {
        textbuf_addf(k->report, "%s: %lld experts, more than %d\n", row->shape, (long long)n_experts, MAX_EXPERTS);
        return STATUS_UNSUPPORTED;
    }
    if (n_experts == 0) return STATUS_OK; /* then no tensor is expected */
    bound_weight *list = k->b->experts[place] = mem_calloc(k->b->m, MEM_MODEL, (size_t)n_experts, sizeof *list);
    if (list == NULL) return STATUS_NO_MEMORY;
    for (int e = 0; e < (int)n_experts; e++) {
        bool per_expert;
        const tensor_info *t = find_tensor(k->s, names, layer, e, &per_expert);
        if (t == NULL) {
            report_missing(k, names, layer, e);
            continue;
        }
        TRY(bind_tensor(k, row, t, &want, false, &list[e]));
    }
    k->b->weights[place] = list[0]; /* stands for all: dtype and shape */
    return STATUS_OK;
}

static status bind_row(binder *k, const weight_row *row, int layer) {
    const char *names = source_container(k->s) == META_HF ? row->hf : row->gguf;
    if (k->opt->applies != NULL && !k->opt->applies(k->opt->dim_ctx, row, layer)) return STATUS_OK;
    if (names == NULL) return STATUS_OK;
    bool per_expert;
    const tensor_info *t = find_tensor(k->s, names, layer, 0, &per_expert);
    if (t == NULL) {
        if ((row->flags & WEIGHT_OPTIONAL) == 0) report_missing(k, names, layer, 0);
        return STATUS_OK;
    }
    shape want;
    if (!eval_shape(k, row->shape, layer, &want) || (per_expert && want.n < 2)) {
        textbuf_addf(k->report, "%s: our table gives it the shape \"%s\", which does not evaluate\n", t->name, row->shape);
        return STATUS_BUG;
    }
    const size_t place = (size_t)row->slot * (size_t)(k->b->n_layers + 1) + (size_t)(layer + 1);
    if (per_expert) return bind_experts(k, row, names, layer, &want, place);
    return bind_tensor(k, row, t, &want, (row->flags & WEIGHT_EXPERTS) != 0, &k->b->weights[place]);
}

static status bind_rows(binder *k) {
    for (size_t i = 0; i < k->opt->n_rows; i++) {
        const weight_row *row = &k->opt->rows[i];
        if (row->slot < 0 || row->slot >= k->opt->n_slots) {
            textbuf_addf(k->report, "our table has a row for slot %d of %d\n", row->slot, k->opt->n_slots);
            return STATUS_BUG;
        }
        bool per_layer = (row->flags & WEIGHT_PER_LAYER) != 0;
        for (int layer = per_layer ? 0 : -1; layer < (per_layer ? k->opt->n_layers : 0); layer++) TRY(bind_row(k, row, layer));
    }
    return STATUS_OK;
}

/* --- what is left --- */

static bool is_ignored(const bind_options *opt, const char *name) {
    for (const char *const *p = opt->ignore; p != NULL && *p != NULL; p++)
        if (glob_match(*p, name)) return true;
    return false;
}

static void account_for_rest(binder *k) {
    for (size_t i = 0; i < source_n_tensors(k->s); i++) {
        const tensor_info *t = source_tensor(k->s, i);
        if (k->claimed[i]) continue;
        if (is_ignored(k->opt, t->name)) {
            k->b->ignored[k->b->n_ignored++] = t;
            continue;
        }
        if (!begin_problem(k, false)) continue;
        textbuf_addf(k->report, "%s: found %s ", t->name, t->type_name);
        add_shape(k->report, t->n_dims, t->dim);
        textbuf_addf(k->report, ", expected no such tensor, in %s\n", file_of(k->s, t));
    }
}

status bind_weights(mem *m, source *s, const bind_options *opt, binding **out, textbuf *report) {
    if (opt->n_slots < 0 || opt->n_layers < 0) return STATUS_INVALID;
    status rc = STATUS_NO_MEMORY;
    size_t n_weights = 0, n_tensors = source_n_tensors(s);
    binder k = {.s = s, .opt = opt, .report = report};
    binding *b = k.b = mem_calloc(m, MEM_MODEL, 1, sizeof *b);
    if (b == NULL) return STATUS_NO_MEMORY;
    *b = (binding){.m = m, .n_slots = opt->n_slots, .n_layers = opt->n_layers};
    k.claimed = mem_calloc(m, MEM_MODEL, n_tensors, sizeof k.claimed[0]);
    b->ignored = mem_calloc(m, MEM_MODEL, n_tensors, sizeof b->ignored[0]);
    if (checked_mul_size((size_t)opt->n_slots, (size_t)opt->n_layers + 1, &n_weights))
        b->weights = mem_calloc(m, MEM_MODEL, n_weights, sizeof b->weights[0]);
    if (b->weights != NULL) b->experts = mem_calloc(m, MEM_MODEL, n_weights, sizeof b->experts[0]);
    if (k.claimed == NULL || b->ignored == NULL || b->weights == NULL || b->experts == NULL) goto fail;
    TRY_GOTO(bind_rows(&k));
    account_for_rest(&k);
    if (k.n_problems > MAX_LINES) textbuf_addf(report, "and %zu more problems\n", k.n_problems - MAX_LINES);
    if (k.n_problems > 0) rc = k.n_problems == k.n_unsupported ? STATUS_UNSUPPORTED : STATUS_FORMAT;
    if (report->failed) rc = STATUS_NO_MEMORY;
    if (rc != STATUS_OK) goto fail;
    mem_free(m, k.claimed);
    *out = b;
    return STATUS_OK;
fail:
    mem_free(m, k.claimed);
    binding_destroy(b);
    return rc;
}

void binding_destroy(binding *b) {
    if (b == NULL) return;
    const size_t n = (size_t)b->n_slots * ((size_t)b->n_layers + 1);
    for (size_t i = 0; b->experts != NULL && i < n; i++) mem_free(b->m, b->experts[i]);
    mem_free(b->m, b->experts);
    mem_free(b->m, b->weights);
    mem_free(b->m, b->ignored);
    mem_free(b->m, b);
}

const bound_weight *binding_get(const binding *b, int slot, int layer) {
    static const bound_weight absent;
    if (slot < 0 || slot >= b->n_slots || layer < -1 || layer >= b->n_layers) return &absent;
    return &b->weights[(size_t)slot * (size_t)(b->n_layers + 1) + (size_t)(layer + 1)];
}

const bound_weight *binding_get_expert(const binding *b, int slot, int layer, int expert) {
    const bound_weight *w = binding_get(b, slot, layer);
    if (w->info == NULL || w->stacked || expert < 0) return w;
    const bound_weight *list = b->experts[(size_t)slot * (size_t)(b->n_layers + 1) + (size_t)(layer + 1)];
    return list != NULL ? &list[expert] : w;
}

size_t binding_n_ignored(const binding *b) { return b->n_ignored; }
const tensor_info *binding_ignored(const binding *b, size_t i) { return i < b->n_ignored ? b->ignored[i] : NULL; }
