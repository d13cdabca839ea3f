/* SPDX-License-Identifier: Apache-2.0 */
/* Data types against the published GGUF list and the conversions against their definition in double precision. */
#include "vt/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* From the GGUF specification: type id, elements and bytes per block. */
static const struct {
    uint32_t id;
    const char *name;
    vt_dtype dtype;
    int64_t elems;
    size_t bytes;
} published[] = {
    {0, "f32", VT_F32, 1, 4},        {1, "f16", VT_F16, 1, 2},          {2, "q4_0", VT_Q4_0, 32, 18},
    {3, "q4_1", VT_Q4_1, 32, 20},    {8, "q8_0", VT_Q8_0, 32, 34},      {14, "q6_k", VT_Q6_K, 256, 210},
    {24, "i8", VT_I8, 1, 1},         {26, "i32", VT_I32, 1, 4},         {27, "i64", VT_I64, 1, 8},
    {30, "bf16", VT_BF16, 1, 2},     {6, "q5_0", VT_Q5_0, 32, 22},      {7, "q5_1", VT_Q5_1, 32, 24},
    {10, "q2_k", VT_Q2_K, 256, 84},  {11, "q3_k", VT_Q3_K, 256, 110},   {12, "q4_k", VT_Q4_K, 256, 144},
    {13, "q5_k", VT_Q5_K, 256, 176}, {20, "iq4_nl", VT_IQ4_NL, 32, 18}, {23, "iq4_xs", VT_IQ4_XS, 256, 136},
    {39, "mxfp4", VT_MXFP4, 32, 17},
};

static void gguf_types(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        vt_dtype t;
        assert_true(vt_dtype_from_gguf(published[i].id, &t));
        assert_int_equal(t, published[i].dtype);
        assert_string_equal(vt_dtype_name(t), published[i].name);
        assert_string_equal(vt_gguf_type_name(published[i].id), published[i].name);
        assert_int_equal(vt_dtype_block_elems(t), published[i].elems);
        assert_int_equal(vt_dtype_block_bytes(t), published[i].bytes);
        assert_int_equal(vt_dtype_is_block(t), published[i].elems > 1);
    }
    /* types that exist, but not here: refused with their name */
    static const struct {
        uint32_t id;
        const char *name;
    } others[] = {{9, "q8_1"},    {15, "q8_k"},    {16, "iq2_xxs"}, {21, "iq3_s"},        {29, "iq1_m"},          {34, "tq1_0"},
                  {4, "unknown"}, {31, "unknown"}, {40, "unknown"}, {1000000, "unknown"}, {UINT32_MAX, "unknown"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        vt_dtype t = VT_NONE;
        assert_false(vt_dtype_from_gguf(others[i].id, &t));
        assert_string_equal(vt_gguf_type_name(others[i].id), others[i].name);
    }
}

static void names(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < VT_DTYPE_COUNT; i++, n++) {
        vt_dtype t;
        assert_true(vt_dtype_from_name(vt_dtype_name((vt_dtype)i), &t));
        assert_int_equal(t, i);
    }
    assert_int_equal(n, VT_DTYPE_COUNT);
    vt_dtype t;
    assert_false(vt_dtype_from_name("q4_9", &t));
    assert_string_equal(vt_dtype_name((vt_dtype)-1), "unknown");
    assert_string_equal(vt_dtype_name(VT_DTYPE_COUNT), "unknown");
    assert_int_equal(vt_dtype_q8_activation(VT_Q4_1), VT_Q8_A32);
    assert_int_equal(vt_dtype_q8_activation(VT_Q6_K), VT_Q8_A256);
    assert_int_equal(vt_dtype_q8_activation(VT_Q5_0), VT_Q8_A32);
    assert_int_equal(vt_dtype_q8_activation(VT_Q4_K), VT_Q8_A256);
    assert_int_equal(vt_dtype_q8_activation(VT_MXFP4), VT_F32);
    assert_int_equal(vt_dtype_q8_activation(VT_BF16), VT_F32);
    assert_int_equal(vt_dtype_q8_activation(VT_I32), VT_NONE);
}

static void row_bytes(void **state) {
    (void)state;
    size_t n = 7;
    assert_true(vt_dtype_row_bytes(VT_Q4_1, 64, &n));
    assert_int_equal(n, 40);
    assert_true(vt_dtype_row_bytes(VT_F32, 0, &n));
    assert_int_equal(n, 0);
    n = 7;
    assert_false(vt_dtype_row_bytes(VT_Q4_1, 33, &n));
    assert_false(vt_dtype_row_bytes(VT_F32, -1, &n));
    assert_false(vt_dtype_row_bytes(VT_F32, INT64_MAX, &n));
    assert_false(vt_dtype_row_bytes(VT_DTYPE_COUNT, 1, &n));
    assert_int_equal(n, 7);
}

/* The value of a half that is not NaN, from its fields. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31 ? (double)INFINITY : exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -v : v;
}

static bool half_is_nan(unsigned h) { return (h & 0x7FFF) > 0x7C00; }

static void f16_widening(void **state) {
    (void)state;
    int n = 0;
    for (unsigned h = 0; h < 65536; h++, n++) {
        float f = vt_f16_to_f32((uint16_t)h);
        if (half_is_nan(h)) {
            assert_true(isnan(f));
        } else {
            assert_true((double)f == half_value((uint16_t)h) && (signbit(f) != 0) == (h >> 15 != 0));
        }
    }
    assert_int_equal(n, 65536);
}

static void expect_half(float f, unsigned h) {
    if (vt_f32_to_f16(f) != h) fail_msg("%a gives %04x, expected %04x", (double)f, vt_f32_to_f16(f), h);
}

/* Each half, the middle to the next one (to even), and the nearest floats on both sides of the middle. */
static void f16_narrowing(void **state) {
    (void)state;
    int n = 0;
    for (unsigned h = 0; h < 0x7BFF; h++, n++) {
        float low = (float)half_value((uint16_t)h), high = (float)half_value((uint16_t)(h + 1));
        float middle = low + (high - low) / 2; /* exact: one more bit */
        unsigned even = h & 1 ? h + 1 : h;
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
            float s = sign ? -1.0f : 1.0f;
            expect_half(s * low, sign | h);
            expect_half(s * middle, sign | even);
            expect_half(s * nextafterf(middle, 0), sign | h);
            expect_half(s * nextafterf(middle, INFINITY), sign | (h + 1));
        }
    }
    assert_int_equal(n, 0x7BFF);
    expect_half(65504, 0x7BFF);
    expect_half(nextafterf(65520, 0), 0x7BFF);
    expect_half(65520, 0x7C00);
    expect_half(-1e30f, 0xFC00);
    expect_half(INFINITY, 0x7C00);
    expect_half(1e-40f, 0);
    assert_true(half_is_nan(vt_f32_to_f16(NAN)) && half_is_nan(vt_f32_to_f16(-NAN)));
    uint32_t low_payload = 0x7F800001u; /* must not become infinity */
    float f;
    memcpy(&f, &low_payload, sizeof f);
    assert_true(half_is_nan(vt_f32_to_f16(f)));
}

static float bf16_value(unsigned h) {
    uint32_t bits = h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void bf16(void **state) {
    (void)state;
    int n = 0;
    for (unsigned h = 0; h < 0x7F7F; h++, n++) { /* all finite but the last */
        assert_true(vt_bf16_to_f32((uint16_t)h) == bf16_value(h));
        float low = bf16_value(h), high = bf16_value(h + 1), middle = low + (high - low) / 2;
        if (h > 0 && low > 0x1p-120f) { /* the middle of tiny ones is not exact in F32 when they are subnormal */
            assert_int_equal(vt_f32_to_bf16(middle), h & 1 ? h + 1 : h);
            assert_int_equal(vt_f32_to_bf16(nextafterf(middle, 0)), h);
            assert_int_equal(vt_f32_to_bf16(nextafterf(middle, INFINITY)), h + 1);
            assert_int_equal(vt_f32_to_bf16(-nextafterf(middle, INFINITY)), 0x8000 | (h + 1));
        }
        assert_int_equal(vt_f32_to_bf16(low), h);
    }
    assert_int_equal(n, 0x7F7F);
    assert_int_equal(vt_f32_to_bf16(3.4028235e38f), 0x7F80); /* rounds to infinity */
    assert_int_equal(vt_f32_to_bf16(-INFINITY), 0xFF80);
    assert_true(isnan(vt_bf16_to_f32(vt_f32_to_bf16(NAN))));
    uint32_t low_payload = 0x7F800001u;
    float f;
    memcpy(&f, &low_payload, sizeof f);
    assert_true(isnan(vt_bf16_to_f32(vt_f32_to_bf16(f))));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf_types),   cmocka_unit_test(names),         cmocka_unit_test(row_bytes),
                                       cmocka_unit_test(f16_widening), cmocka_unit_test(f16_narrowing), cmocka_unit_test(bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
