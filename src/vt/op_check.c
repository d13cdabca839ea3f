/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for the tensors of every op. */
#include "vt/op_check.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/checked.h"
#include "vt/runtime_impl.h"

op_check op_check_begin(vt_queue *q, vt_op op, error *err) {
    op_check c = {.q = q, .err = err, .rc = STATUS_OK, .call = {.size = sizeof(vt_call), .op = op}};
    OP_CHECK(&c, q, "no queue");
    return c;
}

void op_check_fail(op_check *c, const char *fmt, ...) {
    if (c->rc != STATUS_OK) return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->rc = error_set(c->err, STATUS_INVALID, "vt: %s: %s", vt_op_name(c->call.op), text);
}

/* Shape and strides; *n_span: elements from the first to past the last, in whole blocks; 0 for an empty tensor. False: does not fit in 63
 * bits. */
static bool span(const vt_tensor *t, int64_t *n_span) {
    int64_t last = 0;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dim[i] == 0) {
            *n_span = 0;
            return true;
        }
    }
    for (int i = 0; i < t->n_dims; i++) {
        int64_t reach;
        if (!checked_mul_i64(t->dim[i] - 1, t->dim[i] > 1 ? t->stride[i] : 0, &reach) || !checked_add_i64(last, reach, &last)) return false;
    }
    int64_t block = vt_dtype_block_elems(t->dtype);
    return checked_add_i64(last / block * block, block, n_span);
}

static bool shape_is_sound(op_check *c, const char *name, const vt_tensor *t) {
    int64_t block = vt_dtype_block_elems(t->dtype);
    for (int i = 0; i < VT_MAX_DIMS; i++) {
        OP_CHECK(c, t->dim[i] >= 0, "%s: dimension %d is %lld", name, i, (long long)t->dim[i]);
        OP_CHECK(c, i < t->n_dims || t->dim[i] == 1, "%s: dimension %d past the last is not 1", name, i);
        if (i >= t->n_dims || t->dim[i] <= 1) continue;
        if (i == t->n_dims - 1 && !(c->any_inner_stride && block == 1)) {
            OP_CHECK(c, t->stride[i] == 1, "%s: elements of a row must be side by side (stride %lld)", name, (long long)t->stride[i]);
        } else {
            OP_CHECK(c, t->stride[i] >= 0, "%s: stride %d is %lld", name, i, (long long)t->stride[i]);
            OP_CHECK(c, t->stride[i] % block == 0, "%s: stride %d (%lld) is not whole blocks of %lld", name, i, (long long)t->stride[i],
                     (long long)block);
        }
    }
    OP_CHECK(c, t->dim[t->n_dims - 1] % block == 0, "%s: a row of %lld elements is not whole blocks of %lld (%s)", name,
             (long long)t->dim[t->n_dims - 1], (long long)block, vt_dtype_name(t->dtype));
    return c->rc == STATUS_OK;
}

static void add(op_check *c, const char *name, const vt_tensor *t) {
    int n = c->call.n_tensors++;
    c->call.t[n] = t;
    c->args[n] = (op_arg){.name = name};
}

void op_check_in(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims) {
    if (c->rc != STATUS_OK) return;
    add(c, name, t);
    OP_CHECK(c, t, "%s: missing", name);
    OP_CHECK(c, t->n_dims >= min_dims && t->n_dims <= max_dims, "%s: has %d dimensions, expected %d to %d", name, (int)t->n_dims, min_dims,
             max_dims);
    OP_CHECK(c, (int)t->dtype > VT_NONE && t->dtype < VT_DTYPE_COUNT, "%s: no such dtype (%d)", name, (int)t->dtype);
    OP_CHECK(c, t->device.type == c->q->device.type && t->device.index == c->q->device.index, "%s: is on %s:%d, the queue on %s:%d", name,
             vt_device_type_name(t->device.type), (int)t->device.index, vt_device_type_name(c->q->device.type), (int)c->q->device.index);
    if (c->rc != STATUS_OK || !shape_is_sound(c, name, t)) return;

    int64_t n_span;
    size_t bytes;
    bool fits = span(t, &n_span) && vt_tensor_elems(t) >= 0 && vt_dtype_row_bytes(t->dtype, n_span, &bytes) && bytes <= PTRDIFF_MAX;
    OP_CHECK(c, fits, "%s: too large for the address space", name);
    if (c->rc != STATUS_OK || bytes == 0 || c->no_data || c->q->recorder) return; /* a recorder is asked with no data behind the tensors */
    uintptr_t begin = (uintptr_t)t->data;
    OP_CHECK(c, t->data, "%s: no data", name);
    OP_CHECK(c, begin % vt_dtype_alignment(t->dtype) == 0, "%s: data is not aligned to %zu bytes", name, vt_dtype_alignment(t->dtype));
    OP_CHECK(c, bytes <= UINTPTR_MAX - begin, "%s: runs past the end of the address space", name);
    if (c->rc != STATUS_OK) return;
    op_arg *arg = &c->args[c->call.n_tensors - 1];
    arg->begin = begin;
    arg->end = begin + bytes;
}

void op_check_in_strided(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims) {
    c->any_inner_stride = true;
    op_check_in(c, name, t, min_dims, max_dims);
    c->any_inner_stride = false;
}

/* From the smallest stride up, each must reach past everything the smaller ones span. */
static bool places_are_distinct(const vt_tensor *t) {
    int64_t past = 1, done = 0;
    for (int n = 0; n < t->n_dims; n++) {
        int next = -1;
        for (int i = 0; i < t->n_dims; i++) {
            if ((done >> i & 1) || t->dim[i] <= 1) continue;
            if (next < 0 || t->stride[i] < t->stride[next]) next = i;
        }
        if (next < 0) return true;
        if (t->stride[next] < past) return false;
        past += (t->dim[next] - 1) * t->stride[next];
        done |= (int64_t)1 << next;
    }
    return true;
}

void op_check_out(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims) {
    op_check_in(c, name, t, min_dims, max_dims);
    op_check_distinct(c, c->call.n_tensors - 1);
}

void op_check_distinct(op_check *c, int a) {
    if (c->rc != STATUS_OK || vt_tensor_elems(c->call.t[a]) == 0) return;
    OP_CHECK(c, places_are_distinct(c->call.t[a]), "%s: strides make elements share a place", c->args[a].name);
}

bool op_check_optional(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims) {
    static const vt_tensor absent = {.n_dims = 0, .dim = {1, 1, 1, 1}};
    if (c->rc != STATUS_OK) return false;
    if (t && t->n_dims != 0) {
        op_check_in(c, name, t, min_dims, max_dims);
        return c->rc == STATUS_OK;
    }
    add(c, name, &absent);
    return false;
}

bool op_check_view(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims) {
    c->any_inner_stride = c->no_data = true;
    const bool there = op_check_optional(c, name, t, min_dims, max_dims);
    c->any_inner_stride = c->no_data = false;
    return there;
}

int64_t op_check_dim(const op_check *c, int a, int i) {
    if (c->rc != STATUS_OK) return 1;
    const vt_tensor *t = c->call.t[a];
    return t->dim[i < 0 ? t->n_dims + i : i];
}

bool op_check_is_empty(const op_check *c, int a) { return c->rc != STATUS_OK || vt_tensor_elems(c->call.t[a]) == 0; }

void op_check_same_dim(op_check *c, int a, int i, int b, int j) {
    int64_t x = op_check_dim(c, a, i), y = op_check_dim(c, b, j);
    OP_CHECK(c, x == y, "%s has %lld where %s has %lld (dimensions %d and %d)", c->args[a].name, (long long)x, c->args[b].name,
             (long long)y, i, j);
}

void op_check_same_shape(op_check *c, int a, int b) {
    OP_CHECK(c, c->call.t[a]->n_dims == c->call.t[b]->n_dims, "%s has %d dimensions, %s %d", c->args[a].name, (int)c->call.t[a]->n_dims,
             c->args[b].name, (int)c->call.t[b]->n_dims);
    for (int i = 0; c->rc == STATUS_OK && i < c->call.t[a]->n_dims; i++) op_check_same_dim(c, a, i, b, i);
}

void op_check_dtype(op_check *c, int a, vt_dtype dtype) {
    OP_CHECK(c, c->call.t[a]->dtype == dtype, "%s is %s, expected %s", c->args[a].name, vt_dtype_name(c->call.t[a]->dtype),
             vt_dtype_name(dtype));
}

/* Bytes from one row (all but the outermost dimension) to the next, and bytes of a row; false for tensors that are not rows apart. */
static bool row_pitch(const vt_tensor *t, uintptr_t *pitch, uintptr_t *width) {
    if (t->n_dims < 2 || t->dim[0] < 2) return false;
    vt_tensor row = vt_tensor_slice(*t, 0, 0, 1);
    int64_t n_span;
    size_t bytes, stride;
    if (!span(&row, &n_span) || !vt_dtype_row_bytes(t->dtype, n_span, &bytes) || !vt_dtype_row_bytes(t->dtype, t->stride[0], &stride))
        return false;
    *pitch = stride;
    *width = bytes;
    return bytes <= stride;
}

static bool apart(const op_check *c, int a, int b) {
    const op_arg *x = &c->args[a], *y = &c->args[b];
    if (x->begin == x->end || y->begin == y->end || x->end <= y->begin || y->end <= x->begin) return true;
    uintptr_t pitch, pitch_b, width, width_b;
    if (!row_pitch(c->call.t[a], &pitch, &width) || !row_pitch(c->call.t[b], &pitch_b, &width_b) || pitch != pitch_b) return false;
    uintptr_t ahead = y->begin >= x->begin ? (y->begin - x->begin) % pitch : (pitch - (x->begin - y->begin) % pitch) % pitch;
    return ahead >= width && ahead + width_b <= pitch;
}

void op_check_apart(op_check *c, int a, int b) { OP_CHECK(c, apart(c, a, b), "%s and %s overlap", c->args[a].name, c->args[b].name); }

static bool same_view(const vt_tensor *a, const vt_tensor *b) {
    if (a->data != b->data || a->dtype != b->dtype || a->n_dims != b->n_dims) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dim[i] != b->dim[i] || (a->dim[i] > 1 && a->stride[i] != b->stride[i])) return false;
    return true;
}

void op_check_apart_or_same(op_check *c, int a, int b) {
    OP_CHECK(c, same_view(c->call.t[a], c->call.t[b]) || apart(c, a, b), "%s and %s overlap and are not the same view", c->args[a].name,
             c->args[b].name);
}

vt_sig op_check_sig(const op_check *c, int a, int b, int d) {
    vt_sig sig = {{VT_NONE}};
    int from[] = {a, b, d};
    for (int i = 0; c->rc == STATUS_OK && i < 3; i++)
        if (from[i] >= 0) sig.dtype[i] = (uint8_t)c->call.t[from[i]]->dtype;
    return sig;
}

status op_check_run(op_check *c, vt_sig sig, int writes) {
    if (c->rc != STATUS_OK) return c->rc;
    c->call.sig = sig;
    return dispatch_call(c->q, &c->call, op_check_is_empty(c, writes), c->err);
}
