/* SPDX-License-Identifier: Apache-2.0 */
/* Views. A stride that does not fit in 64 bits is kept as INT64_MAX, which no check of an op lets through. */
#include "vt/tensor.h"

#include <assert.h>
#include <string.h>

#include "base/checked.h"

static const char *const type_names[VT_DEVICE_TYPE_COUNT] = {
#define X(id, name) [id] = name,
    VT_DEVICE_TYPE_LIST(X)
#undef X
};

const char *vt_device_type_name(vt_device_type t) { return (int)t >= 0 && t < VT_DEVICE_TYPE_COUNT ? type_names[t] : "unknown"; }

bool vt_device_type_from_name(const char *name, vt_device_type *out) {
    for (int i = 0; i < VT_DEVICE_TYPE_COUNT; i++) {
        if (strcmp(type_names[i], name) != 0) continue;
        *out = (vt_device_type)i;
        return true;
    }
    return false;
}

static vt_tensor contiguous(void *data, vt_dtype dtype, vt_device_id dev, int32_t n_dims, const int64_t *dims) {
    vt_tensor t = {.data = data, .dtype = dtype, .device = dev, .n_dims = n_dims};
    int64_t stride = 1;
    for (int i = VT_MAX_DIMS - 1; i >= 0; i--) {
        t.dim[i] = i < n_dims ? dims[i] : 1;
        t.stride[i] = i < n_dims ? stride : 0;
        assert(t.dim[i] >= 0);
        if (i < n_dims && t.dim[i] > 1 && !checked_mul_i64(stride, t.dim[i], &stride)) stride = INT64_MAX;
    }
    return t;
}

vt_tensor vt_tensor_1d(void *data, vt_dtype t, vt_device_id dev, int64_t d0) { return contiguous(data, t, dev, 1, (int64_t[]){d0}); }

vt_tensor vt_tensor_2d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1) {
    return contiguous(data, t, dev, 2, (int64_t[]){d0, d1});
}

vt_tensor vt_tensor_3d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1, int64_t d2) {
    return contiguous(data, t, dev, 3, (int64_t[]){d0, d1, d2});
}

vt_tensor vt_tensor_4d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    return contiguous(data, t, dev, 4, (int64_t[]){d0, d1, d2, d3});
}

/* Where element `offset` (whole blocks) of t begins. */
static void *element(const vt_tensor *t, int64_t offset) {
    int64_t blocks = offset / vt_dtype_block_elems(t->dtype);
    return t->data ? (char *)t->data + blocks * (int64_t)vt_dtype_block_bytes(t->dtype) : NULL;
}

vt_tensor vt_tensor_slice(vt_tensor t, int dim, int64_t begin, int64_t n) {
    assert(dim >= 0 && dim < t.n_dims && begin >= 0 && n >= 0 && begin <= t.dim[dim] && n <= t.dim[dim] - begin);
    assert(begin * t.stride[dim] % vt_dtype_block_elems(t.dtype) == 0);
    if (n > 0) t.data = element(&t, begin * t.stride[dim]);
    t.dim[dim] = n;
    return t;
}

vt_tensor vt_tensor_split_last(vt_tensor t, int64_t inner) {
    int last = t.n_dims - 1;
    assert(last >= 0 && t.n_dims < VT_MAX_DIMS && inner > 0 && t.dim[last] % inner == 0);
    assert(inner % vt_dtype_block_elems(t.dtype) == 0);
    int64_t stride = t.stride[last];
    t.n_dims++;
    t.dim[last + 1] = inner;
    t.stride[last + 1] = stride;
    t.dim[last] /= inner;
    if (!checked_mul_i64(stride, inner, &t.stride[last])) t.stride[last] = INT64_MAX;
    return t;
}

bool vt_tensor_is_contiguous(const vt_tensor *t) {
    for (int i = 0; i < t->n_dims; i++)
        if (t->dim[i] == 0) return true;
    int64_t expected = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        if (t->dim[i] == 1) continue;
        if (t->stride[i] != expected || !checked_mul_i64(expected, t->dim[i], &expected)) return false;
    }
    return true;
}

int64_t vt_tensor_elems(const vt_tensor *t) {
    if (t->n_dims == 0) return 0;
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dim[i] == 0) return 0;
    for (int i = 0; i < t->n_dims; i++)
        if (!checked_mul_i64(n, t->dim[i], &n)) return -1;
    return n;
}

bool vt_tensor_bytes(const vt_tensor *t, size_t *out) {
    if (t->n_dims > 0 && t->dim[t->n_dims - 1] % vt_dtype_block_elems(t->dtype) != 0) return false;
    return vt_dtype_row_bytes(t->dtype, vt_tensor_elems(t), out);
}

void *vt_tensor_row(const vt_tensor *t, int64_t i) {
    assert(t->n_dims > 0 && i >= 0 && i < t->dim[0]);
    return element(t, i * t->stride[0]);
}
