/* SPDX-License-Identifier: Apache-2.0 */
/* What the ops ask of their arguments. Every call is made on a queue that poses as a device without a backend, with data that nobody may
 * touch: a sound call is refused for want of a kernel (unsupported), an unsound one before that (invalid), and neither looks at data. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plugin/test_manifest.h"
#include "plugin/vt_sample.h"

static mem *m;
static vt_runtime *rt;
static vt_queue queue;
static vt_device_id id;
static char *data;
static int n_refused;

static int create(void **state) {
    (void)state;
    if (mem_create(&m) != STATUS_OK) return -1;
    rt = test_runtime_create(m, NULL);
    id = (vt_device_id){VT_DEVICE_VULKAN, 0};
    queue = vt_queue_pose(rt, id, UINT64_MAX);
    data = vt_sample_forbidden();
    return 0;
}

static int destroy(void **state) {
    (void)state;
    vt_runtime_destroy(rt);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static vt_tensor f32_at(size_t at, int64_t rows, int64_t columns) { return vt_tensor_2d(data + at, VT_F32, id, rows, columns); }

static void sound(status rc, const error *err) {
    if (rc != STATUS_UNSUPPORTED) fail_msg("expected a sound call, got %s: %s", status_name(rc), err->text);
}

static void unsound(status rc, const error *err, const char *part) {
    n_refused++;
    if (rc != STATUS_INVALID || !strstr(err->text, part)) fail_msg("expected invalid '%s', got %s: %s", part, status_name(rc), err->text);
}

/* A change to one argument of a sound call. */
typedef void spoil_fn(vt_tensor *t);
static void no_dtype(vt_tensor *t) { t->dtype = VT_NONE; }
static void wild_dtype(vt_tensor *t) { t->dtype = VT_DTYPE_COUNT; }
static void other_device(vt_tensor *t) { t->device.index = 1; }
static void other_type(vt_tensor *t) { t->device.type = VT_DEVICE_CPU; }
static void no_dims(vt_tensor *t) { t->n_dims = 0; }
static void negative_dims(vt_tensor *t) { t->n_dims = -1; }
static void wild_dims(vt_tensor *t) { t->n_dims = 1000; }
static void negative_dim(vt_tensor *t) { t->dim[0] = -1; }
static void dim_past_the_last(vt_tensor *t) { t->dim[VT_MAX_DIMS - 1] = t->n_dims == VT_MAX_DIMS ? -1 : 2; }
static void null_data(vt_tensor *t) { t->data = NULL; }
static void gap_in_row(vt_tensor *t) { t->stride[t->n_dims - 1] = 2; }
static void backwards(vt_tensor *t) { t->stride[0] = -1; }
static void far_stride(vt_tensor *t) { t->stride[0] = INT64_MAX; }
static void end_of_memory(vt_tensor *t) { t->data = (void *)(UINTPTR_MAX & ~(uintptr_t)255); }

static const struct {
    const char *name, *text;
    spoil_fn *spoil;
    int min_dim; /* spoils that need a first dimension of at least this, and one that is not the last */
    bool outer, optional_ok;
} spoils[] = {
    {"no dtype", "no such dtype", no_dtype, 0, false, false},
    {"wild dtype", "no such dtype", wild_dtype, 0, false, false},
    {"other device", "the queue on", other_device, 0, false, false},
    {"other device type", "the queue on", other_type, 0, false, false},
    {"no dims", "dimensions", no_dims, 0, false, true},
    {"negative dims", "dimensions", negative_dims, 0, false, false},
    {"wild dims", "dimensions", wild_dims, 0, false, false},
    {"negative dim", "dimension 0 is -1", negative_dim, 0, false, false},
    {"dim past the last", "dimension", dim_past_the_last, 0, false, false},
    {"null data", "no data", null_data, 0, false, false},
    {"gap in row", "side by side", gap_in_row, 0, false, false},
    {"backwards", "stride 0 is -1", backwards, 2, true, false},
    {"far stride", "too large", far_stride, 2, true, false},
    {"end of memory", "end of the address space", end_of_memory, 0, false, false},
};

static vt_sig sample_sig(vt_op op) {
    if (op == VT_OP_ROPE) return vt_sig_make(VT_F32, VT_NONE, VT_NONE);
    if (op == VT_OP_PREPARE_HEADS) return vt_sig_make(VT_F32, VT_F32, VT_NONE);
    return vt_sig_make(VT_F32, VT_F32, VT_F32);
}

/* A description: its data are not looked at, and it may lie anyhow. */
static bool is_view(vt_op op, int t) { return t == 4 && (op == VT_OP_MATMUL_GROUPED || op == VT_OP_MATMUL_GROUPED_SCALED || op == VT_OP_MATMUL_GROUPED_GATED); }

static bool applies(const vt_sample *s, int t, size_t k) {
    const vt_tensor *x = &s->t[t];
    if (is_view(s->op, t) && (spoils[k].spoil == null_data || spoils[k].spoil == gap_in_row || spoils[k].spoil == end_of_memory)) return false;
    int last = x->n_dims - 1;
    if (spoils[k].outer && (last == 0 || x->dim[0] < spoils[k].min_dim || vt_dtype_is_block(x->dtype))) return false;
    if (spoils[k].spoil == gap_in_row && (x->dim[last] < 2 || (s->op == VT_OP_MATMUL_KN && t == 2))) return false; /* its b may lie anyhow */
    if (spoils[k].spoil == end_of_memory) { /* only where it is longer than what is left there */
        size_t bytes;
        return vt_tensor_bytes(x, &bytes) && bytes > 256;
    }
    return true;
}

/* All but x, y, and index and weights, which come together. */
static bool is_optional_of_add_norm(int t) { return (t >= 1 && t <= 3) || t >= 7; }

/* Every argument of every op, spoiled in every way. */
static void every_argument(void **state) {
    (void)state;
    int n = 0;
    for (int op = 0; op < VT_OP_COUNT; op++) {
        vt_sample whole = vt_sample_make((vt_op)op, sample_sig((vt_op)op), id, data);
        error err = {0};
        sound(vt_sample_run(&whole, &queue, &err), &err);
        for (int t = 0; t < VT_CALL_MAX_TENSORS && whole.t[t].n_dims > 0; t++) {
            for (size_t k = 0; k < sizeof spoils / sizeof spoils[0]; k++) {
                if (!applies(&whole, t, k)) continue;
                vt_sample s = whole;
                spoils[k].spoil(&s.t[t]);
                err = (error){0};
                status rc = vt_sample_run(&s, &queue, &err);
                n++;
                if (spoils[k].optional_ok && ((op == VT_OP_RMS_NORM && t == 2) || (op == VT_OP_ROUTER_TOPK && t >= 3) || (op == VT_OP_ADD_NORM && is_optional_of_add_norm(t)) || (op == VT_OP_PREPARE_HEADS && t >= 2 && t <= 5))) {
                    sound(rc, &err);
                    continue;
                }
                char expected[64];
                snprintf(expected, sizeof expected, "vt: %s: ", vt_op_name((vt_op)op));
                unsound(rc, &err, expected);
                unsound(rc, &err, spoils[k].text);
            }
        }
    }
    print_message("%d spoiled calls\n", n);
    assert_true(n > 400);
}

static void missing_arguments(void **state) {
    (void)state;
    error err = {0};
    vt_tensor x = f32_at(0, 2, 8), y = f32_at(4096, 2, 8);
    unsound(vt_add(NULL, &x, &x, &y, &err), &err, "no queue");
    unsound(vt_add(&queue, NULL, &x, &y, &err), &err, "out: missing");
    unsound(vt_add(&queue, &x, &x, NULL, &err), &err, "b: missing");
    unsound(vt_rms_norm(&queue, &x, NULL, NULL, (vt_rms_norm_params){1e-5f, 0}, &err), &err, "x: missing");
    sound(vt_rms_norm(&queue, &x, &x, NULL, (vt_rms_norm_params){1e-5f, 0}, &err), &err);
    vt_tensor x3 = vt_tensor_3d(data, VT_F32, id, 2, 2, 8), cache = vt_tensor_4d(data + 4096, VT_F32, id, 1, 2, 16, 8);
    unsound(vt_kv_write(&queue, &cache, &x3, NULL, &err), &err, "rows: missing");
    assert_int_equal(vt_add(&queue, &x, &x, NULL, NULL), STATUS_INVALID);
}

static void block_types(void **state) {
    (void)state;
    error err = {0};
    vt_tensor out = f32_at(0, 2, 3), a = f32_at(1024, 2, 64), b = vt_tensor_2d(data + 8192, VT_Q4_1, id, 3, 64);
    sound(vt_matmul_bt(&queue, &out, &a, &b, &err), &err);
    vt_tensor part = b, a_part = f32_at(1024, 2, 48);
    part.dim[1] = 48;
    unsound(vt_matmul_bt(&queue, &out, &a_part, &part, &err), &err, "b: a row of 48 elements is not whole blocks of 32 (q4_1)");
    part = b;
    part.stride[0] = 80;
    unsound(vt_matmul_bt(&queue, &out, &a, &part, &err), &err, "b: stride 0 (80) is not whole blocks of 32");
    part.stride[0] = 96;
    sound(vt_matmul_bt(&queue, &out, &a, &part, &err), &err);
    part.data = data + 8193;
    unsound(vt_matmul_bt(&queue, &out, &a, &part, &err), &err, "b: data is not aligned to 2 bytes");
    vt_tensor act = vt_tensor_2d(data + 16386, VT_Q8_A32, id, 2, 64);
    unsound(vt_matmul_bt(&queue, &out, &act, &b, &err), &err, "a: data is not aligned to 4 bytes");
    vt_tensor odd = a;
    odd.data = data + 1026;
    unsound(vt_matmul_bt(&queue, &out, &odd, &b, &err), &err, "a: data is not aligned to 4 bytes");
}

static void matmul_shapes(void **state) {
    (void)state;
    error err = {0};
    vt_tensor a = f32_at(0, 2, 8), b = f32_at(1024, 3, 8), out = f32_at(2048, 2, 3);
    sound(vt_matmul_bt(&queue, &out, &a, &b, &err), &err);
    vt_tensor wrong = f32_at(2048, 3, 3);
    unsound(vt_matmul_bt(&queue, &wrong, &a, &b, &err), &err, "out has 3 where a has 2");
    wrong = f32_at(2048, 2, 4);
    unsound(vt_matmul_bt(&queue, &wrong, &a, &b, &err), &err, "out has 4 where b has 3");
    wrong = f32_at(1024, 3, 9);
    unsound(vt_matmul_bt_alpha_beta(&queue, &out, &a, &wrong, 1, 0, &err), &err, "a has 8 where b has 9");
    vt_tensor none = f32_at(0, 0, 8), out_none = f32_at(2048, 0, 3);
    none.data = out_none.data = NULL;
    sound(vt_matmul_bt(&queue, &out_none, &none, &b, &err), &err);
    vt_tensor huge = f32_at(0, 1ll << 40, 1ll << 40), out_huge = f32_at(0, 1ll << 40, 3);
    vt_tensor b_huge = f32_at(0, 3, 1ll << 40);
    unsound(vt_matmul_bt(&queue, &out_huge, &huge, &b_huge, &err), &err, "too large");
}

static void overlaps(void **state) {
    (void)state;
    error err = {0};
    vt_tensor a = f32_at(0, 4, 8), b = f32_at(1024, 4, 8), out = f32_at(64, 4, 4);
    unsound(vt_matmul_bt(&queue, &out, &a, &b, &err), &err, "out and a overlap");
    out = f32_at(1024 + 4 * 8 * 4 - 4, 4, 4);
    unsound(vt_matmul_bt(&queue, &out, &a, &b, &err), &err, "out and b overlap");
    out = f32_at(1024 + 4 * 8 * 4, 4, 4);
    sound(vt_matmul_bt(&queue, &out, &a, &b, &err), &err);
    /* in place where that is allowed, and nothing between */
    sound(vt_mul_scalar(&queue, &a, &a, 2, &err), &err);
    vt_tensor shifted = f32_at(4, 4, 8);
    unsound(vt_mul_scalar(&queue, &a, &shifted, 2, &err), &err, "overlap and are not the same view");
    vt_tensor narrow = a;
    narrow.dtype = VT_BF16;
    unsound(vt_mul_scalar(&queue, &narrow, &a, 2, &err), &err, "overlap and are not the same view");
    unsound(vt_add(&queue, &a, &b, &a, &err), &err, "out and b overlap");
    vt_tensor row = vt_tensor_1d(data + 64, VT_F32, id, 8);
    unsound(vt_add(&queue, &a, &a, &row, &err), &err, "out and b overlap");
    /* columns of one wide buffer are apart, although their bounds cross */
    vt_tensor wide = f32_at(0, 4, 24);
    vt_tensor left = vt_tensor_slice(wide, 1, 0, 8), middle = vt_tensor_slice(wide, 1, 8, 8), crossing = vt_tensor_slice(wide, 1, 7, 8);
    sound(vt_mul_scalar(&queue, &left, &middle, 2, &err), &err);
    sound(vt_mul_scalar(&queue, &middle, &left, 2, &err), &err);
    unsound(vt_mul_scalar(&queue, &left, &crossing, 2, &err), &err, "overlap");
    unsound(vt_mul_scalar(&queue, &crossing, &left, 2, &err), &err, "overlap");
    /* rows of one buffer, one further on */
    vt_tensor upper = vt_tensor_slice(wide, 0, 0, 3), lower = vt_tensor_slice(wide, 0, 1, 3);
    unsound(vt_mul_scalar(&queue, &lower, &upper, 2, &err), &err, "overlap");
    /* heads of q and k side by side in a row */
    vt_tensor heads = vt_tensor_split_last(wide, 4), q_heads = vt_tensor_slice(heads, 1, 0, 4), k_heads = vt_tensor_slice(heads, 1, 4, 2);
    vt_tensor v_heads = vt_tensor_slice(heads, 1, 2, 2);
    sound(vt_mul_scalar(&queue, &k_heads, &k_heads, 2, &err), &err);
    q_heads = vt_tensor_slice(q_heads, 1, 0, 2);
    sound(vt_mul_scalar(&queue, &q_heads, &v_heads, 2, &err), &err);
}

static void outputs_without_shared_places(void **state) {
    (void)state;
    error err = {0};
    vt_tensor x = f32_at(4096, 4, 8), out = f32_at(0, 4, 8);
    out.stride[0] = 0;
    unsound(vt_mul_scalar(&queue, &out, &x, 2, &err), &err, "out: strides make elements share a place");
    out.stride[0] = 7;
    unsound(vt_mul_scalar(&queue, &out, &x, 2, &err), &err, "share a place");
    out.stride[0] = 9;
    sound(vt_mul_scalar(&queue, &out, &x, 2, &err), &err);
    x.stride[0] = 0; /* an input may repeat a row */
    sound(vt_mul_scalar(&queue, &out, &x, 2, &err), &err);
    vt_tensor turned = vt_tensor_3d(data, VT_F32, id, 2, 3, 8); /* [3,2,8] seen as [2,3,8] */
    turned.stride[0] = 8;
    turned.stride[1] = 16;
    vt_tensor x3 = vt_tensor_3d(data + 4096, VT_F32, id, 2, 3, 8);
    sound(vt_mul_scalar(&queue, &turned, &x3, 2, &err), &err);
    turned.stride[1] = 8;
    unsound(vt_mul_scalar(&queue, &turned, &x3, 2, &err), &err, "share a place");
}

static void rows_and_lookups(void **state) {
    (void)state;
    error err = {0};
    vt_tensor out = f32_at(0, 2, 8), table = f32_at(4096, 5, 8), ids = vt_tensor_1d(data + 8192, VT_I32, id, 2);
    sound(vt_gather_rows(&queue, &out, &table, &ids, &err), &err);
    vt_tensor bad = ids;
    bad.dtype = VT_F32;
    unsound(vt_gather_rows(&queue, &out, &table, &bad, &err), &err, "ids is f32, expected i32");
    bad = ids;
    bad.dim[0] = 3;
    unsound(vt_gather_rows(&queue, &out, &table, &bad, &err), &err, "out has 2 where ids has 3");
    vt_tensor empty = f32_at(4096, 0, 8);
    unsound(vt_gather_rows(&queue, &out, &empty, &ids, &err), &err, "table has no rows");
    bad = f32_at(4096, 5, 9);
    unsound(vt_gather_rows(&queue, &out, &bad, &ids, &err), &err, "out has 8 where table has 9");
    vt_tensor q8 = vt_tensor_2d(data + 16384, VT_Q8_A32, id, 2, 32), x = f32_at(0, 2, 64);
    unsound(vt_quantize_rows(&queue, &q8, &x, &err), &err, "out has 32 where x has 64");
    vt_tensor gate = f32_at(4096, 2, 15);
    unsound(vt_silu_and_mul(&queue, &out, &gate, &err), &err, "x has rows of 15, expected twice 8");
    gate = f32_at(4096, 2, 18);
    unsound(vt_gelu_and_mul(&queue, &out, &gate, &err), &err, "x has rows of 18, expected twice 8");
    vt_tensor row = vt_tensor_1d(data + 4096, VT_F32, id, 9), three = vt_tensor_3d(data + 4096, VT_F32, id, 1, 2, 8);
    unsound(vt_add(&queue, &out, &out, &row, &err), &err, "b has 9 where a has 8");
    unsound(vt_add(&queue, &out, &out, &three, &err), &err, "b has 3 dimensions, a 2");
}

static void norm_and_rope(void **state) {
    (void)state;
    error err = {0};
    vt_tensor x = f32_at(0, 2, 8), w = vt_tensor_1d(data + 4096, VT_F32, id, 8), w9 = vt_tensor_1d(data + 4096, VT_F32, id, 9);
    vt_rms_norm_params ok = {1e-5f, 1.0f};
    sound(vt_rms_norm(&queue, &x, &x, &w, ok, &err), &err);
    unsound(vt_rms_norm(&queue, &x, &x, &w9, ok, &err), &err, "w has 9 where x has 8");
    unsound(vt_rms_norm(&queue, &x, &x, &w, (vt_rms_norm_params){-1, 0}, &err), &err, "eps is -1");
    unsound(vt_rms_norm(&queue, &x, &x, &w, (vt_rms_norm_params){NAN, 0}, &err), &err, "eps is");
    unsound(vt_rms_norm(&queue, &x, &x, &w, (vt_rms_norm_params){0, INFINITY}, &err), &err, "w_offset is");
    vt_tensor h = vt_tensor_3d(data, VT_F32, id, 2, 3, 8), pos = vt_tensor_1d(data + 4096, VT_I32, id, 2),
              freq = vt_tensor_1d(data + 8192, VT_F32, id, 4);
    vt_rope_params p = {VT_ROPE_ADJACENT, 1};
    sound(vt_rope(&queue, &h, &pos, &freq, p, &err), &err);
    vt_tensor bad = freq;
    bad.dim[0] = 5;
    unsound(vt_rope(&queue, &h, &pos, &bad, p, &err), &err, "inv_freq has 5 frequencies, more than half of 8 dimensions");
    bad.dim[0] = 3;
    sound(vt_rope(&queue, &h, &pos, &bad, p, &err), &err);
    bad.dtype = VT_F16;
    unsound(vt_rope(&queue, &h, &pos, &bad, p, &err), &err, "inv_freq is f16, expected f32");
    unsound(vt_rope(&queue, &h, &pos, &freq, (vt_rope_params){(vt_rope_pairing)7, 1}, &err), &err, "no such pairing (7)");
    unsound(vt_rope(&queue, &h, &pos, &freq, (vt_rope_params){VT_ROPE_HALF, NAN}, &err), &err, "mscale is");
    pos.dim[0] = 3;
    unsound(vt_rope(&queue, &h, &pos, &freq, p, &err), &err, "x has 2 where pos has 3");
}

static void pages(void **state) {
    (void)state;
    error err = {0};
    vt_tensor cache = vt_tensor_4d(data, VT_F16, id, 3, 2, 16, 8), x = vt_tensor_3d(data + 8192, VT_F32, id, 4, 2, 8);
    vt_rows rows = {vt_tensor_1d(data + 16384, VT_I32, id, 4), vt_tensor_1d(data + 20480, VT_I32, id, 4),
                    vt_tensor_2d(data + 24576, VT_I32, id, 2, 3)};
    sound(vt_kv_write(&queue, &cache, &x, &rows, &err), &err);
    vt_rows bad = rows;
    bad.pages.dim[1] = 0;
    unsound(vt_kv_write(&queue, &cache, &x, &bad, &err), &err, "pages is empty");
    bad = rows;
    bad.row_seg.dim[0] = 3;
    unsound(vt_kv_write(&queue, &cache, &x, &bad, &err), &err, "row_seg has 3 where x has 4");
    bad = rows;
    bad.pos.dtype = VT_I64;
    unsound(vt_kv_write(&queue, &cache, &x, &bad, &err), &err, "pos is i64, expected i32");
    vt_tensor none = vt_tensor_4d(data, VT_F16, id, 0, 2, 16, 8);
    unsound(vt_kv_write(&queue, &none, &x, &rows, &err), &err, "cache has no places");
    vt_tensor heads = vt_tensor_3d(data + 8192, VT_F32, id, 4, 3, 8);
    unsound(vt_kv_write(&queue, &cache, &heads, &rows, &err), &err, "x has 3 where cache has 2");
    bad = rows;
    bad.pages.data = data + 64;
    unsound(vt_kv_write(&queue, &cache, &x, &bad, &err), &err, "cache and pages overlap");

    vt_tensor q = vt_tensor_3d(data + 32768, VT_F32, id, 4, 4, 8), out = vt_tensor_3d(data + 40960, VT_F32, id, 4, 4, 8);
    vt_tensor v = vt_tensor_4d(data + 49152, VT_F16, id, 3, 2, 16, 8), sinks = vt_tensor_1d(data + 61440, VT_F32, id, 4), no_sinks = {0};
    vt_attention_params p = {0.5f, 0, 0};
    sound(vt_paged_attention(&queue, &out, &q, &cache, &v, &rows, &no_sinks, p, &err), &err);
    sound(vt_paged_attention(&queue, &out, &q, &cache, &cache, &rows, &sinks, p, &err), &err);
    vt_tensor wrong = v;
    wrong.dtype = VT_BF16;
    unsound(vt_paged_attention(&queue, &out, &q, &cache, &wrong, &rows, NULL, p, &err), &err, "k is f16, v is bf16");
    wrong = vt_tensor_4d(data + 49152, VT_F16, id, 3, 3, 16, 8);
    unsound(vt_paged_attention(&queue, &out, &q, &wrong, &wrong, &rows, NULL, p, &err), &err, "4 heads over 3 kv heads");
    wrong = sinks;
    wrong.dim[0] = 5;
    unsound(vt_paged_attention(&queue, &out, &q, &cache, &v, &rows, &wrong, p, &err), &err, "sinks has 5 where query has 4");
    wrong = q;
    unsound(vt_paged_attention(&queue, &q, &q, &cache, &v, &rows, NULL, p, &err), &err, "out and query overlap");
    unsound(vt_paged_attention(&queue, &out, &q, &cache, &v, &rows, NULL, (vt_attention_params){NAN, 0, 0}, &err), &err, "scale is");
    unsound(vt_paged_attention(&queue, &out, &q, &cache, &v, &rows, NULL, (vt_attention_params){1, -1, 0}, &err), &err, "softcap is -1");
    unsound(vt_paged_attention(&queue, &out, &q, &cache, &v, &rows, NULL, (vt_attention_params){1, 0, -1}, &err), &err, "window is -1");
    /* no rows: nothing is asked of the tables */
    vt_tensor no_q = vt_tensor_3d(NULL, VT_F32, id, 0, 4, 8);
    vt_rows no_rows = {vt_tensor_1d(NULL, VT_I32, id, 0), vt_tensor_1d(NULL, VT_I32, id, 0), vt_tensor_2d(NULL, VT_I32, id, 0, 0)};
    sound(vt_paged_attention(&queue, &no_q, &no_q, &cache, &v, &no_rows, NULL, p, &err), &err);
}

static void cases_were_counted(void **state) {
    (void)state;
    print_message("%d calls refused as unsound\n", n_refused);
    assert_true(n_refused > 800);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_argument),     cmocka_unit_test(missing_arguments), cmocka_unit_test(block_types),
        cmocka_unit_test(matmul_shapes),      cmocka_unit_test(overlaps),          cmocka_unit_test(outputs_without_shared_places),
        cmocka_unit_test(rows_and_lookups),   cmocka_unit_test(norm_and_rope),     cmocka_unit_test(pages),
        cmocka_unit_test(cases_were_counted),
    };
    return cmocka_run_group_tests(tests, create, destroy);
}
