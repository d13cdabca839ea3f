/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One case of a kernel check: tensors with guarded memory, the values expected of the call, and what may not change.
 *
 * Each tensor lies in a region of its own between two pages that cannot be touched, and ends exactly at the upper page or begins near the
 * lower one (at a random alignment), with canaries on the other side. Everything that is not an element (padding between rows, canaries) is
 * poisoned with bytes of all ones, a NaN in each float type, and must be untouched afterwards.
 *
 * An op's file gives `make`, which builds the tensors of a random case and fills the inputs, and `expect`, which computes in double what
 * comes out, from values decoded by code of this folder (not of src/vt).
 */
#ifndef HEADRACE_CHECK_CASE_H
#define HEADRACE_CHECK_CASE_H

#include "vt/vt.h"

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
int64_t rng_below(rng *r, int64_t n); /* 0 .. n - 1 */
int64_t rng_pick(rng *r, const int64_t *list, int64_t n);
double rng_unit(rng *r); /* -1 .. 1 */
bool rng_one_in(rng *r, int64_t n);
#define RNG_PICK(r, ...) rng_pick(r, (const int64_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

enum { CASE_SLOTS = VT_CALL_MAX_TENSORS, CASE_MAX_VALUES = 1 << 18 };

/* One region: guard page, `bytes`, guard page; image holds what the case put there before a run. On a device that the host cannot address,
 * device is its twin. */
typedef struct slot {
    uint8_t *mem, *image;
    size_t bytes;
    uint8_t *begin, *end;           /* elements and padding of the tensor in it */
    uint8_t *watched, *watched_end; /* with the canaries */
    vt_buffer device;
} slot;

typedef struct check_case {
    rng r;
    const vt_row *row;
    vt_queue *queue;
    vt_call call;
    vt_tensor t[CASE_SLOTS]; /* call.t points here; data is the host's address */
    int n;
    uint32_t outputs;   /* bits of the tensors that are written; the first always is */
    bool aligned;       /* for rows of a device with a shape limit: data and strides are multiples of 64 bytes, K of 32 elements */
    bool special;       /* NaN and infinities among the inputs: bits are compared, expected values are not */
    uint32_t by_row;    /* tensors that are sliced together to run one row alone */
    uint32_t tables;    /* tensors of addresses of what lies in others (n_dims 1). Behind a table lie n_rows more, which run one part alone */
    int64_t n_rows;     /* 0: cannot be sliced */
    double *want, *mag; /* of the elements of the output in order; mag: sum of the magnitudes of the terms */
    slot slots[CASE_SLOTS];
    mem *m;
} check_case;

status case_init(check_case *c, mem *m, vt_queue *q, error *err);
void case_deinit(check_case *c);
void case_begin(check_case *c, const vt_row *row, uint64_t seed);

/** The next tensor of the call: guarded, poisoned; rows may get padding when `pad`. Returns its index, or -1 when it does not fit a slot.
 */
int case_add(check_case *c, vt_dtype dtype, int n_dims, const int64_t *dim, bool pad);
#define CASE_ADD(c, dtype, pad, ...)                                                                                                       \
    case_add(c, dtype, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}, pad)
int case_add_absent(check_case *c);
/** The tensor is another one already there (out may be x). */
int case_add_same(check_case *c, int index);

/** Random values: weights and activations of any dtype; float values scaled. With c->special some become NaN or infinite. */
void case_fill(check_case *c, int index, double scale);
void case_set_i32(check_case *c, int index, int64_t i, int32_t v);

/** Rows of the innermost dimension, their addresses, and their values in double (NaN for a poisoned block). */
int64_t tensor_rows(const vt_tensor *t);
uint8_t *tensor_row_at(const vt_tensor *t, int64_t r);
int64_t tensor_inner(const vt_tensor *t);
void decode_row(vt_dtype t, const uint8_t *p, int64_t n, double *out);
/** The magnitude that rounding of one decoded value scales with: |d q| + |m| for Q4_1, else |value|. */
void decode_row_mag(vt_dtype t, const uint8_t *p, int64_t n, double *out);
/** What a product with BF16 activations multiplies of weights in blocks: their values in F32, rounded to BF16. Others stay as they are. */
void decode_row_beside(vt_dtype activation, vt_dtype t, const uint8_t *p, int64_t n, double *out);
double decode_f16(uint16_t h);

/** Remember the inputs and the poisoned outputs; put the outputs back; run; compare. */
void case_freeze(check_case *c);
void case_restore(check_case *c);
status case_run(check_case *c, vt_kernel_fn *fn, pool *threads, error *err);
/** The same on the processor, whatever device the case is for: the scalar row beside which a device's row is put. */
status case_run_on_host(check_case *c, vt_queue *host, vt_kernel_fn *fn, error *err);
/** Upload the slots to a device that the host cannot address and turn *call into one on that device, whose tensors are twins. */
status case_to_device(check_case *c, vt_queue *q, vt_call *call, vt_tensor twins[CASE_SLOTS], error *err);
/** Run row by row through slices of the tensors in by_row. */
status case_run_alone(check_case *c, vt_kernel_fn *fn, error *err);
/** NULL, or what is wrong: an input or a byte that is no element of the output changed. */
const char *case_damage(check_case *c, char *text, size_t n);
/** The outputs' watched bytes; same_bits treats any two NaN as equal. */
size_t case_output_bytes(const check_case *c);
void case_copy_output(const check_case *c, uint8_t *to);
bool case_same_bits(const check_case *c, const uint8_t *saved, char *text, size_t n);

/** What an op brings. */
typedef struct check_op {
    vt_op op;
    double c_eps;                           /* tolerance: c_eps * eps(F32) * mag, plus one rounding of the output dtype */
    bool (*make)(check_case *c, int64_t i); /* the i-th case; false: no such case for this row (it counts as none) */
    void (*expect)(check_case *c);          /* fills want and mag */
    const char *(*verify)(check_case *c, char *text, size_t n); /* instead of comparing want; NULL: compare */
    void (*bench)(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n); /* see check_bench.c */
    int n_shapes;
} check_op;

const check_op *check_op_of(vt_op op);
extern const check_op check_matmul_bt, check_matmul_bt_alpha_beta, check_quantize_rows, check_gather_rows, check_rms_norm, check_rope,
    check_kv_write, check_prepare_heads, check_paged_attention, check_silu_and_mul, check_gelu_and_mul, check_mul_scalar, check_add, check_matmul_bt_scaled,
    check_matmul_kn, check_router_topk, check_moe_combine, check_swiglu_clamp_and_mul, check_mul_sigmoid, check_softcap,
    check_causal_conv_silu, check_gated_delta, check_moe_group, check_matmul_grouped, check_matmul_grouped_scaled, check_matmul_grouped_gated, check_argmax,
    check_add_norm, check_matmul_bt_several, check_matmul_bt_gated;

#endif
