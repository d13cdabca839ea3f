/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to a row before the draw, against logits that Transformers' processors gave for the same rows and texts (tests/data/logits_processors.json, written by
 * tools/record_processors.py); the parameters' ranges; log-probabilities against float64.
 */
#include "support/test_case.h"

#include <jansson.h>
#include <math.h>

#include "engine/sample.h"

typedef struct scene {
    mem *m;
    json_t *j;
} scene;

static int setup(void **state) {
    static scene sc;
    sc.m = test_mem();
    sc.j = json_load_file(HEADRACE_TEST_DATA "/logits_processors.json", 0, NULL);
    assert_non_null(sc.j);
    *state = &sc;
    return 0;
}

static int teardown(void **state) {
    scene *sc = *state;
    json_decref(sc->j);
    test_mem_check(sc->m);
    return 0;
}

static int32_t *ints(const json_t *a, int32_t *n) {
    *n = (int32_t)json_array_size(a);
    int32_t *out = calloc((size_t)*n + 1, sizeof *out);
    assert_non_null(out);
    for (int32_t i = 0; i < *n; i++) out[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    return out;
}

/* null is minus infinity */
static float number(const json_t *v) { return json_is_null(v) ? -INFINITY : (float)json_number_value(v); }

static void processors_agree_with_transformers(void **state) {
    scene *sc = *state;
    const json_t *cases = json_object_get(sc->j, "cases");
    size_t i;
    json_t *c;
    int n_masked = 0;
    json_array_foreach(cases, i, c) {
        const json_t *in = json_object_get(c, "logits"), *want = json_object_get(c, "expected"), *biases = json_object_get(c, "bias");
        const int32_t vocab = (int32_t)json_array_size(in);
        sampler s;
        error err = {0};
        assert_int_equal(sampler_init(&s, sc->m, vocab, &err), STATUS_OK);
        int32_t n_tokens, n_bad, n_bias = (int32_t)json_array_size(biases);
        sample_params sp = {.repetition = (float)json_number_value(json_object_get(c, "repetition_penalty")), .min_tokens = (int32_t)json_integer_value(json_object_get(c, "min_tokens"))};
        int32_t *tokens = ints(json_object_get(c, "tokens"), &n_tokens), *bad = ints(json_object_get(c, "bad_words"), &n_bad);
        int32_t *end = ints(json_object_get(c, "end_ids"), &sp.n_end_ids), *allowed = ints(json_object_get(c, "allowed"), &sp.n_allowed);
        sample_bias bias[16];
        for (int32_t k = 0; k < n_bias; k++) {
            const json_t *b = json_array_get(biases, (size_t)k);
            bias[k] = (sample_bias){(int32_t)json_integer_value(json_array_get(b, 0)), (float)json_number_value(json_array_get(b, 1))};
        }
        for (int32_t k = 0; k < n_bad; k += bad[k] + 1) sp.n_bad_words++;
        sp.bad_words = bad;
        sp.end_ids = end;
        sp.allowed = allowed;
        sp.biases = bias;
        sp.n_biases = n_bias;
        float *row = calloc((size_t)vocab, sizeof *row);
        for (int32_t k = 0; k < vocab; k++) row[k] = number(json_array_get(in, (size_t)k));
        assert_true(sample_params_adjust(&sp));
        sampler_adjust(&s, row, &sp, tokens, (int32_t)json_integer_value(json_object_get(c, "n_prompt")), n_tokens);
        for (int32_t k = 0; k < vocab; k++) {
            const float w = number(json_array_get(want, (size_t)k));
            n_masked += isinf(w) != 0;
            if (isinf(w) ? row[k] != w : fabsf(row[k] - w) > 1e-6f * (1 + fabsf(w))) fail_msg("case %zu, id %d: %g, Transformers %g", i, k, (double)row[k], (double)w);
            assert_int_equal(s.count[k], 0);
        }
        free(row);
        free(tokens);
        free(bad);
        free(end);
        free(allowed);
        sampler_deinit(&s);
    }
    assert_true(i >= 20 && n_masked > 0);
}

/* Of the answer alone: frequency for each time, presence once. The definition is OpenAI's: mu[j] - c[j] * frequency - (c[j] > 0) * presence. */
static void penalties_of_the_answer(void **state) {
    scene *sc = *state;
    sampler s;
    error err = {0};
    assert_int_equal(sampler_init(&s, sc->m, 6, &err), STATUS_OK);
    float row[6] = {1, 2, 3, 4, 5, 6};
    const int32_t tokens[] = {0, 0, 1, /* answer */ 1, 2, 1, 5};
    const sample_params sp = {.frequency = 0.5f, .presence = 0.25f};
    sampler_adjust(&s, row, &sp, tokens, 3, 7);
    const float want[6] = {1, 2 - 2 * 0.5f - 0.25f, 3 - 0.75f, 4, 5, 6 - 0.75f};
    for (int i = 0; i < 6; i++) assert_true(row[i] == want[i]);
    sampler_deinit(&s);
}

static void ranges_are_named(void **state) {
    (void)state;
    static const sample_bias bad_bias[] = {{3, 0.5f}, {4, NAN}}, far_bias[] = {{9, 1001.0f}};
    const struct {
        sample_params sp;
        const char *part;
    } cases[] = {
        {{.repetition = NAN}, "repetition_penalty"},    {{.repetition = -1}, "repetition_penalty"},         {{.repetition = 101}, "repetition_penalty"},
        {{.repetition = 0.001f}, "repetition_penalty"}, {{.frequency = NAN}, "frequency_penalty"},          {{.frequency = -101}, "frequency_penalty"},
        {{.presence = INFINITY}, "presence_penalty"},   {{.presence = 100.5f}, "presence_penalty"},         {{.min_tokens = -1}, "min_tokens"},
        {{.top_k = -1}, "top_k"},                       {{.biases = bad_bias, .n_biases = 2}, "id 4"},      {{.biases = far_bias, .n_biases = 1}, "logit_bias 1001"},
        {{.temperature = NAN}, "temperature"},          {{.top_p = 2}, "top_p"},                            {{.min_p = -1}, "min_p"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {0};
        assert_int_equal(sample_params_check(&cases[i].sp, &err), STATUS_INVALID);
        assert_contains(err.text, cases[i].part);
    }
    const sample_params good = {.temperature = 100, .top_p = 1, .min_p = 1, .repetition = 0.01f, .frequency = -100, .presence = 100, .top_k = INT32_MAX};
    error err = {0};
    assert_int_equal(sample_params_check(&good, &err), STATUS_OK);
}

static void logprobs_are_of_the_softmax(void **state) {
    scene *sc = *state;
    enum { VOCAB = 97 };
    sampler s;
    error err = {0};
    float row[VOCAB];
    assert_int_equal(sampler_init(&s, sc->m, VOCAB, &err), STATUS_OK);
    uint32_t x = 7;
    for (int trial = 0; trial < 50; trial++) {
        double sum = 0;
        for (int i = 0; i < VOCAB; i++) {
            x = x * 1664525u + 1013904223u;
            row[i] = (float)(x >> 20) / 100.0f - 20.0f; /* with ties */
            if (trial % 5 == 4 && i % 7 == 3) row[i] = -INFINITY;
            sum += exp((double)row[i]);
        }
        const int32_t n_top = trial % 6 == 0 ? 0 : 1 + trial % SAMPLE_MAX_TOP;
        sample_logprobs lp;
        sampler_logprobs(&s, row, trial, n_top, &lp);
        if (isinf(row[trial])) {
            assert_true(isinf(lp.logprob));
        } else {
            assert_true(fabs((double)lp.logprob - ((double)row[trial] - log(sum))) < 1e-5);
        }
        assert_int_equal(lp.n_top, n_top);
        bool taken[VOCAB] = {false};
        for (int32_t k = 0; k < lp.n_top; k++) { /* each is the best of what is left, the lowest of equals */
            int best = -1;
            for (int i = 0; i < VOCAB; i++) {
                if (!taken[i] && (best < 0 || row[i] > row[best])) best = i;
            }
            taken[best] = true;
            assert_int_equal(lp.top_ids[k], best);
            if (!isinf(row[best])) assert_true(fabs((double)lp.top_logprobs[k] - ((double)row[best] - log(sum))) < 1e-5);
        }
    }
    sampler_deinit(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_agree_with_transformers),
        cmocka_unit_test(penalties_of_the_answer),
        cmocka_unit_test(ranges_are_named),
        cmocka_unit_test(logprobs_are_of_the_softmax),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
