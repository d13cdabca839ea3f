/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Checks of an op's arguments, for ops.c. A check collects the call while it looks: arguments are numbered in the order they are added,
 * which is the order of the op's declaration. The first complaint sticks and everything after it does nothing. Reads descriptions only,
 * never data.
 */
#ifndef HEADRACE_VT_OP_CHECK_H
#define HEADRACE_VT_OP_CHECK_H

#include "vt/vt.h"

typedef struct op_arg {
    const char *name;
    uintptr_t begin, end; /* bytes spanned; equal when there are none */
} op_arg;

typedef struct op_check {
    vt_queue *q;
    error *err;
    status rc;
    vt_call call;
    op_arg args[VT_CALL_MAX_TENSORS];
    bool any_inner_stride; /* the argument being added may have its elements apart */
    bool no_data;          /* ... is a description: its data are not looked at */
} op_check;

op_check op_check_begin(vt_queue *q, vt_op op, error *err);

/** A tensor of min_dims to max_dims dimensions; an output's elements must be distinct places. Dtype VT_NONE is not allowed. */
void op_check_in(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims);
/** As op_check_in; elements of a row may lie apart (element types only). */
void op_check_in_strided(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims);
/** As op_check_in_strided, or no tensor: a description of what lies elsewhere, whose data are not looked at. Returns whether it is there. */
bool op_check_view(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims);
void op_check_out(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims);
/** Elements of argument a are distinct places, as those of an output must be. */
void op_check_distinct(op_check *c, int a);
/** As op_check_in, or no tensor (NULL or n_dims 0). Returns whether it is there. */
bool op_check_optional(op_check *c, const char *name, const vt_tensor *t, int min_dims, int max_dims);

/** Dimension i of argument a equals dimension j of argument b; negative dimensions count from the last. */
void op_check_same_dim(op_check *c, int a, int i, int b, int j);
void op_check_same_shape(op_check *c, int a, int b);
/** For dtypes that are not part of the signature. */
void op_check_dtype(op_check *c, int a, vt_dtype dtype);
/** No byte in common, as far as bounds tell (interleaved views of one buffer are told apart where their row strides agree). */
void op_check_apart(op_check *c, int a, int b);
/** Apart, or the very same view. */
void op_check_apart_or_same(op_check *c, int a, int b);

/** A complaint of the op's own: "vt: OP: TEXT". Keeps the first. */
void op_check_fail(op_check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define OP_CHECK(c, condition, ...)                                                                                                        \
    do {                                                                                                                                   \
        if ((c)->rc == STATUS_OK && !(condition)) op_check_fail(c, __VA_ARGS__);                                                           \
    } while (0)

/** Dimension i (negative: from the last) of argument a; 1 after a complaint, so that arithmetic on it is harmless. */
int64_t op_check_dim(const op_check *c, int a, int i);
bool op_check_is_empty(const op_check *c, int a);

/** The dtypes of these arguments; -1: no place. */
vt_sig op_check_sig(const op_check *c, int a, int b, int d);
/** Refuses or runs, unless something was wrong; runs nothing when argument `writes` is empty. */
NODISCARD status op_check_run(op_check *c, vt_sig sig, int writes);

#endif
