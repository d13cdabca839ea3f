/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler's distribution against a reference written for this test in float64: sort by probability, cut, renormalise, in the order of Transformers' warpers. For each filter
 * and their combinations 100,000 draws are compared by chi-square, and no id outside the cut may ever be drawn.
 */
#include "support/test_case.h"

#include <math.h>

#include "engine/sample.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { VOCAB = 60, DRAWS = 10000 }; /* one thread and no memory of its own: a sanitizer sees as much in a tenth */
#else
enum { VOCAB = 60, DRAWS = 100000 };
#endif

static float logits[VOCAB];
static sampler s;
static mem *m;

static int setup(void **state) {
    (void)state;
    m = test_mem();
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < VOCAB; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        logits[i] = (float)(x % 9000) / 1000.0f - 4.0f;
    }
    logits[7] = logits[21]; /* a tie, and ids that cannot be */
    logits[40] = -INFINITY;
    error err = {0};
    assert_int_equal(sampler_init(&s, m, VOCAB, &err), STATUS_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sampler_deinit(&s);
    test_mem_check(m);
    return 0;
}

static int by_probability(const void *a, const void *b);
static double ref_p[VOCAB];

static int by_probability(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return ref_p[x] != ref_p[y] ? (ref_p[x] < ref_p[y] ? 1 : -1) : x - y;
}

static void renormalise(void) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += ref_p[i];
    for (int i = 0; i < VOCAB; i++) ref_p[i] /= sum;
}

static void reference(const sample_params *sp) {
    int order[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        ref_p[i] = exp((double)logits[i] / (double)sp->temperature);
        order[i] = i;
    }
    renormalise();
    qsort(order, VOCAB, sizeof order[0], by_probability);
    if (sp->top_k > 0) {
        for (int i = sp->top_k; i < VOCAB; i++) ref_p[order[i]] = 0;
        renormalise();
    }
    if (sp->top_p > 0 && sp->top_p < 1) {
        double sum = 0;
        for (int i = 0; i < VOCAB; i++) {
            const double p = ref_p[order[i]];
            if (sum >= (double)sp->top_p) ref_p[order[i]] = 0;
            sum += p;
        }
        renormalise();
    }
    if (sp->min_p > 0) {
        const double floor = ref_p[order[0]] * (double)sp->min_p;
        for (int i = 0; i < VOCAB; i++) {
            if (ref_p[i] < floor) ref_p[i] = 0;
        }
        renormalise();
    }
}

/* A chi-square of df degrees above this has a chance below one in a million (Wilson and Hilferty). */
static double limit_of(int df) {
    const double k = 2.0 / (9.0 * df), z = 4.7534;
    return df * pow(1 - k + z * sqrt(k), 3);
}

static void check(const sample_params *sp) {
    long count[VOCAB] = {0};
    error err = {0};
    for (int32_t i = 0; i < DRAWS; i++) {
        int32_t id = -1;
        assert_int_equal(sampler_draw(&s, logits, sp, i, &id, &err), STATUS_OK);
        assert_in_range(id, 0, VOCAB - 1);
        count[id]++;
    }
    reference(sp);
    double chi = 0, rest_expected = 0, rest_count = 0;
    int bins = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double expected = ref_p[i] * DRAWS;
        if (ref_p[i] == 0 && count[i] > 0) fail_msg("id %d was drawn %ld times and is cut (k %d, p %g, min %g)", i, count[i], sp->top_k, (double)sp->top_p, (double)sp->min_p);
        if (expected < 8) { /* pooled */
            rest_expected += expected;
            rest_count += (double)count[i];
            continue;
        }
        chi += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
        bins++;
    }
    if (rest_expected > 8) {
        chi += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
        bins++;
    }
    if (bins < 2) return;
    if (chi > limit_of(bins - 1)) {
        fail_msg("chi-square %g over %d bins: temperature %g, k %d, p %g, min %g", chi, bins, (double)sp->temperature, sp->top_k, (double)sp->top_p, (double)sp->min_p);
    }
}

static void filters_match_the_reference(void **state) {
    (void)state;
    static const float temperatures[] = {0.6f, 1.3f}, top_p[] = {0.0f, 0.55f, 0.93f}, min_p[] = {0.0f, 0.08f};
    static const int32_t top_k[] = {0, 1, 12};
    int n = 0;
    for (int t = 0; t < 2; t++) {
        for (int k = 0; k < 3; k++) {
            for (int p = 0; p < 3; p++) {
                for (int q = 0; q < 2; q++, n++) {
                    const sample_params sp = {.temperature = temperatures[t], .top_k = top_k[k], .top_p = top_p[p], .min_p = min_p[q], .seed = (uint64_t)n * 7919};
                    check(&sp);
                }
            }
        }
    }
    assert_int_equal(n, 36);
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    float x[VOCAB];
    error err = {0};
    const sample_params sp = {.temperature = 0};
    int32_t id = -1;
    for (int i = 0; i < VOCAB; i++) x[i] = -1;
    assert_int_equal(sampler_draw(&s, x, &sp, 3, &id, &err), STATUS_OK);
    assert_int_equal(id, 0);
    x[VOCAB - 1] = x[33] = x[34] = 2.5f;
    assert_int_equal(sampler_draw(&s, x, &sp, 3, &id, &err), STATUS_OK);
    assert_int_equal(id, 33);
    x[33] = nextafterf(2.5f, 0);
    assert_int_equal(sampler_draw(&s, x, &sp, 3, &id, &err), STATUS_OK);
    assert_int_equal(id, 34);
    const sample_params top1 = {.temperature = 5, .top_k = 1, .seed = 9}; /* and so does a cut to one */
    for (int32_t i = 0; i < 100; i++) {
        assert_int_equal(sampler_draw(&s, x, &top1, i, &id, &err), STATUS_OK);
        assert_int_equal(id, 34);
    }
}

static void logits_that_are_no_numbers(void **state) {
    (void)state;
    float x[VOCAB];
    for (int t = 0; t < 2; t++) {
        const sample_params sp = {.temperature = (float)t, .seed = 1};
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 3; b++) {
            error err = {0};
            int32_t id = 77;
            for (int i = 0; i < VOCAB; i++) x[i] = b == 2 ? bad[b] : (float)i;
            x[20] = bad[b];
            assert_int_equal(sampler_draw(&s, x, &sp, 5, &id, &err), STATUS_FAILED);
            assert_int_equal(id, 77);
            assert_contains(err.text, "position 4");
        }
    }
}

/* Smallest and largest temperatures: the most likely one, and nearly uniform; never outside. */
static void extreme_temperatures(void **state) {
    (void)state;
    error err = {0};
    int32_t greedy, id;
    const sample_params zero = {0};
    assert_int_equal(sampler_draw(&s, logits, &zero, 0, &greedy, &err), STATUS_OK);
    const sample_params cold = {.temperature = 1e-40f, .seed = 4}, hot = {.temperature = 100, .seed = 4};
    bool seen[VOCAB] = {false};
    for (int32_t i = 0; i < 5000; i++) {
        assert_int_equal(sampler_draw(&s, logits, &cold, i, &id, &err), STATUS_OK);
        assert_int_equal(id, greedy);
        assert_int_equal(sampler_draw(&s, logits, &hot, i, &id, &err), STATUS_OK);
        seen[id] = true;
    }
    for (int i = 0; i < VOCAB; i++) assert_int_equal(seen[i], i != 40);
}

static void noise_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        const double u = sample_uniform(i / 100, i % 100);
        assert_true(u >= 0 && u < 1);
        assert_true(u == sample_uniform(i / 100, i % 100));
        sum += u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
    assert_true(sample_uniform(1, 2) != sample_uniform(2, 1));
    assert_true(sample_uniform(0, 0) != sample_uniform(0, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_match_the_reference), cmocka_unit_test(greedy_takes_the_lowest_of_equals),        cmocka_unit_test(logits_that_are_no_numbers),
        cmocka_unit_test(extreme_temperatures),        cmocka_unit_test(noise_depends_on_seed_and_position_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
