/* SPDX-License-Identifier: Apache-2.0 */
/* vt_expf against exp() in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "vt/exp_constants.h"
#include "vt/vt.h"

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void expf_is_close(void **state) {
    (void)state;
    uint64_t n = 0;
    double worst = 0;
    float worst_x = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 251) { /* 251: odd, so that all low bits come up */
        float x = from_bits((uint32_t)bits);
        if (!(x >= VT_EXP_LO && x <= VT_EXP_HI)) continue;
        double exact = exp((double)x), off = fabs((double)vt_expf(x) - exact) / exact;
        n++;
        if (off <= worst) continue;
        worst = off;
        worst_x = x;
    }
    print_message("%llu arguments, worst relative error %.3g at %a\n", (unsigned long long)n, worst, (double)worst_x);
    assert_true(n > 8000000);
    if (worst > 2e-7) fail_msg("relative error %.3g at %a", worst, (double)worst_x);
}

/* Around the places where the reduction changes n, where the remainder is largest. */
static void expf_at_the_seams(void **state) {
    (void)state;
    int n = 0;
    for (int k = -251; k <= 255; k += 2) { /* x = k/2 * ln 2 */
        float x = (float)(k * 0.34657359027997264);
        for (int i = 0; i < 64; i++) x = nextafterf(x, -INFINITY);
        for (int i = 0; i < 128; i++, n++) {
            x = nextafterf(x, INFINITY);
            if (!(x >= VT_EXP_LO && x <= VT_EXP_HI)) continue;
            double exact = exp((double)x);
            if (fabs((double)vt_expf(x) - exact) > 2e-7 * exact) fail_msg("%a", (double)x);
        }
    }
    assert_true(n > 0);
}

static void expf_edges(void **state) {
    (void)state;
    assert_true(vt_expf(0.0f) == 1.0f && vt_expf(-0.0f) == 1.0f);
    assert_true(vt_expf(1e-40f) == 1.0f && vt_expf(-1e-40f) == 1.0f);
    float low = vt_expf(VT_EXP_LO), below = vt_expf(nextafterf(VT_EXP_LO, -INFINITY));
    assert_true(low > 0 && isnormal(low));
    assert_true(below == 0.0f && !signbit(below));
    assert_true(vt_expf(-INFINITY) == 0.0f && vt_expf(-1e30f) == 0.0f);
    float high = vt_expf(VT_EXP_HI);
    assert_true(isfinite(high) && high > 3.3e38f);
    assert_true(vt_expf(INFINITY) == high && vt_expf(89.0f) == high && vt_expf(3e38f) == high);
    assert_true(isnan(vt_expf(NAN)) && isnan(vt_expf(-NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(expf_is_close), cmocka_unit_test(expf_at_the_seams), cmocka_unit_test(expf_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
