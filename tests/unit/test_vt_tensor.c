/* SPDX-License-Identifier: Apache-2.0 */
/* Views: strides, slices, splits, sizes that do not fit. */
#include "vt/tensor.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const vt_device_id cpu = {VT_DEVICE_CPU, 0};

static void contiguous_views(void **state) {
    (void)state;
    float data[24];
    vt_tensor t = vt_tensor_3d(data, VT_F32, cpu, 2, 3, 4);
    assert_int_equal(t.stride[0], 12);
    assert_int_equal(t.stride[1], 4);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(t.dim[3], 1);
    assert_int_equal(vt_tensor_elems(&t), 24);
    assert_true(vt_tensor_is_contiguous(&t));
    size_t n;
    assert_true(vt_tensor_bytes(&t, &n));
    assert_int_equal(n, sizeof data);
    assert_ptr_equal(vt_tensor_row(&t, 1), data + 12);
    vt_tensor none = {0};
    assert_int_equal(vt_tensor_elems(&none), 0);
    vt_tensor empty = vt_tensor_2d(NULL, VT_F32, cpu, 0, 5);
    assert_int_equal(vt_tensor_elems(&empty), 0);
    assert_true(vt_tensor_bytes(&empty, &n) && n == 0);
}

static void block_views(void **state) {
    (void)state;
    uint8_t data[3 * 40];
    vt_tensor t = vt_tensor_2d(data, VT_Q4_1, cpu, 3, 64);
    size_t n;
    assert_true(vt_tensor_bytes(&t, &n));
    assert_int_equal(n, sizeof data);
    assert_ptr_equal(vt_tensor_row(&t, 2), data + 80);
    vt_tensor right = vt_tensor_slice(t, 1, 32, 32);
    assert_ptr_equal(right.data, data + 20);
    assert_ptr_equal(vt_tensor_row(&right, 1), data + 60);
    assert_false(vt_tensor_is_contiguous(&right));
    vt_tensor partial = vt_tensor_2d(data, VT_Q4_1, cpu, 2, 16); /* 32 elements, but no whole block in a row */
    assert_false(vt_tensor_bytes(&partial, &n));
}

static void slices_and_splits(void **state) {
    (void)state;
    float data[5 * 12];
    vt_tensor t = vt_tensor_2d(data, VT_F32, cpu, 5, 12);
    vt_tensor s = vt_tensor_slice(vt_tensor_slice(t, 0, 1, 3), 1, 4, 8);
    assert_ptr_equal(s.data, data + 12 + 4);
    assert_int_equal(s.dim[0], 3);
    assert_int_equal(s.dim[1], 8);
    assert_int_equal(s.stride[0], 12);
    assert_false(vt_tensor_is_contiguous(&s));
    vt_tensor h = vt_tensor_split_last(s, 4);
    assert_int_equal(h.n_dims, 3);
    assert_int_equal(h.dim[1], 2);
    assert_int_equal(h.dim[2], 4);
    assert_int_equal(h.stride[0], 12);
    assert_int_equal(h.stride[1], 4);
    assert_int_equal(h.stride[2], 1);
    vt_tensor one = vt_tensor_slice(t, 0, 4, 1);
    assert_true(vt_tensor_is_contiguous(&one));
    vt_tensor end = vt_tensor_slice(t, 0, 5, 0); /* past the last row, empty */
    assert_int_equal(vt_tensor_elems(&end), 0);
}

static void sizes_that_do_not_fit(void **state) {
    (void)state;
    size_t n;
    vt_tensor t = vt_tensor_4d(NULL, VT_F32, cpu, 1ll << 40, 1ll << 40, 1ll << 40, 1ll << 40);
    assert_int_equal(vt_tensor_elems(&t), -1);
    assert_false(vt_tensor_bytes(&t, &n));
    assert_int_equal(t.stride[0], INT64_MAX);
    vt_tensor big = vt_tensor_1d(NULL, VT_F32, cpu, INT64_MAX);
    assert_false(vt_tensor_bytes(&big, &n));
    vt_tensor zero = vt_tensor_4d(NULL, VT_F32, cpu, 1ll << 40, 1ll << 40, 1ll << 40, 0);
    assert_true(vt_tensor_bytes(&zero, &n) && n == 0);
}

static void device_names(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < VT_DEVICE_TYPE_COUNT; i++, n++) {
        vt_device_type t;
        assert_true(vt_device_type_from_name(vt_device_type_name((vt_device_type)i), &t));
        assert_int_equal(t, i);
    }
    assert_true(n > 0);
    vt_device_type t;
    assert_false(vt_device_type_from_name("abacus", &t));
    assert_string_equal(vt_device_type_name(VT_DEVICE_TYPE_COUNT), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(contiguous_views), cmocka_unit_test(block_views),
                                       cmocka_unit_test(slices_and_splits), cmocka_unit_test(sizes_that_do_not_fit),
                                       cmocka_unit_test(device_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
