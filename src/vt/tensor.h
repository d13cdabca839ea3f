/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Tensor views: data, dtype, device, up to four dimensions, strides in elements. Non-owning; copied by value. The innermost
 * dimension is the last one and, for block types, is contiguous and a whole number of blocks.
 */
#ifndef HEADRACE_VT_TENSOR_H
#define HEADRACE_VT_TENSOR_H

#include "vt/dtype.h"

/* X(enumerator, name) */
#define VT_DEVICE_TYPE_LIST(X)                                                                                         \
    X(VT_DEVICE_CPU, "cpu")                                                                                            \
    X(VT_DEVICE_CUDA, "cuda")                                                                                          \
    X(VT_DEVICE_HIP, "hip")                                                                                            \
    X(VT_DEVICE_VULKAN, "vulkan")                                                                                      \
    X(VT_DEVICE_METAL, "metal")                                                                                        \
    X(VT_DEVICE_TEST, "test")

typedef enum vt_device_type {
#define X(id, name) id,
    VT_DEVICE_TYPE_LIST(X)
#undef X
        VT_DEVICE_TYPE_COUNT
} vt_device_type;

typedef struct vt_device_id {
    vt_device_type type;
    int32_t index;
} vt_device_id;

const char *vt_device_type_name(vt_device_type t);
bool vt_device_type_from_name(const char *name, vt_device_type *out);

enum { VT_MAX_DIMS = 4 };

typedef struct vt_tensor {
    void *data;
    vt_dtype dtype;
    vt_device_id device;
    int32_t n_dims;              /* 0: no tensor (an optional argument left out) */
    int64_t dim[VT_MAX_DIMS];    /* outermost first; entries past n_dims are 1 */
    int64_t stride[VT_MAX_DIMS]; /* entries past n_dims are 0; in elements; for block types a multiple of block_elems except the last, which is 1 */
} vt_tensor;

/** Contiguous views. Dimensions must be >= 0. */
vt_tensor vt_tensor_1d(void *data, vt_dtype t, vt_device_id dev, int64_t d0);
vt_tensor vt_tensor_2d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1);
vt_tensor vt_tensor_3d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1, int64_t d2);
vt_tensor vt_tensor_4d(void *data, vt_dtype t, vt_device_id dev, int64_t d0, int64_t d1, int64_t d2, int64_t d3);
/** Sub-range of one dimension, same rank; for the last dimension of a block type begin and n are whole blocks. */
vt_tensor vt_tensor_slice(vt_tensor t, int dim, int64_t begin, int64_t n);
/** Split the last dimension of t into [d_last / inner, inner]: a view, one more dimension (rank < 4). */
vt_tensor vt_tensor_split_last(vt_tensor t, int64_t inner);
bool vt_tensor_is_contiguous(const vt_tensor *t);
int64_t vt_tensor_elems(const vt_tensor *t); /* 0 for no tensor, -1 when the number does not fit */
/** Bytes spanned by a contiguous tensor; false on overflow or partial blocks. */
NODISCARD bool vt_tensor_bytes(const vt_tensor *t, size_t *out);
/** Address of row i of dimension 0. */
void *vt_tensor_row(const vt_tensor *t, int64_t i);

#endif
