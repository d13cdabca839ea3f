/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint against the answers of an independent implementation, at every position: teacher forcing, so that one difference does not hide the next.
 * Usage: check_fixture MODEL EXPECTED_DIR TOLERANCE [published|wrapped|DEVICE [miss]]: the folder MODEL with its config.published.json, or as part of a larger model, or on a device other than the processor (with miss: whose missing experts the processor computes, logits alone). The same logits must come out of one prefill, chunks of 1 and 3, and all prompts as one batch; those are compared bit by bit, but for FP8 weights on such a device.
 */
#include "model/model_support.h"

#include <math.h>
#include <unistd.h>

enum { MAX_PROMPTS = 16 };

static const char *model_path, *expected_dir, *device = "cpu";
static double tolerance;
static bool published, wrapped, missing;
static support_folder folder;
static long n_values;

typedef struct answers {
    support_prompt prompts[MAX_PROMPTS];
    float *logits[MAX_PROMPTS];
    int n;
    int64_t vocab;
} answers;

static int load_answers(void **state) {
    if (published) folder = support_published(model_path);
    if (wrapped) folder = support_wrapped(model_path, "model.language_model.", "");
    if (published || wrapped) model_path = folder.path;
    answers *a = calloc(1, sizeof *a);
    char path[512];
    snprintf(path, sizeof path, "%s/expected.json", expected_dir);
    a->n = support_prompts(path, a->prompts, MAX_PROMPTS);
    snprintf(path, sizeof path, "%s/expected.safetensors", expected_dir);
    for (int i = 0; i < a->n; i++) {
        char name[32];
        int64_t rows;
        snprintf(name, sizeof name, "logits.%d", i);
        a->logits[i] = support_tensor(path, name, &rows, &a->vocab);
        assert_int_equal(rows, a->prompts[i].n_forced);
    }
    *state = a;
    return 0;
}

static int free_answers(void **state) {
    answers *a = *state;
    support_prompts_free(a->prompts, a->n);
    for (int i = 0; i < a->n; i++) {
        free(a->logits[i]);
    }
    free(a);
    if (published || wrapped) support_folder_remove(&folder);
    return 0;
}

static void forced_run(const answers *a, int i, int chunk, support_run *r) { *r = (support_run){.ids = a->prompts[i].forced, .n_ids = a->prompts[i].n_forced, .chunk = chunk, .want_logits = true}; }

static int argmax(const float *x, int64_t n) {
    int best = 0;
    for (int k = 1; k < n; k++) {
        if (x[k] > x[best]) best = k;
    }
    return best;
}

/* On another device than the processor BF16 activations may be the default (check_bf16), with which a row's bits depend on how many there are. */
static const char *act(void) { return strcmp(device, "cpu") == 0 ? "auto" : "f32"; }

static void every_logit_agrees(void **state) {
    const answers *a = *state;
    headrace_engine *e = support_load(model_path, "device", device, "kv-dtype", "f32", "act", "f32", "threads", "2", missing ? "experts" : NULL, "stream", "device-experts", "min", "miss", "cpu", NULL);
    double worst = 0;
    for (int i = 0; i < a->n; i++) {
        support_run r;
        forced_run(a, i, 0, &r);
        support_go(e, &r, 1);
        assert_int_equal(r.n_rows, a->prompts[i].n_forced);
        assert_int_equal(r.n_vocab, a->vocab);
        for (int64_t k = 0; k < r.n_rows * a->vocab; k++) {
            const double d = fabs((double)r.logits[k] - (double)a->logits[i][k]);
            if (!(d <= tolerance)) fail_msg("prompt %d, row %lld, id %lld: %g, expected %g", i, (long long)(k / a->vocab), (long long)(k % a->vocab), (double)r.logits[k], (double)a->logits[i][k]);
            if (d > worst) worst = d;
            n_values++;
        }
        support_run_free(&r);
    }
    print_message("largest difference %.3g over %ld logits (tolerance %g)\n", worst, n_values, tolerance);
    assert_true(n_values > 0 && (support_stats(e).device_experts_on_cpu > 0) == missing);
    headrace_free(e);
}

/* Products by FP8 weights on a device's matrix units may give a row other bits beside many rows than beside few (docs/NUMERICS.md). */
static bool rows_stand_alone(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", model_path);
    return strcmp(device, "cpu") == 0 || access(path, R_OK) != 0 || !support_has_dtype(path, "F8_E4M3");
}

static float largest_difference(const float *a, const float *b, size_t n) {
    float worst = 0;
    for (size_t i = 0; i < n; i++) {
        const float d = fabsf(a[i] - b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

/* The same bits from one prefill, chunks of 1 and 3, and all prompts as one batch; where rows do not stand alone, from the same batch run twice, and logits within the tolerance from others. */
static void same_bits_however_split(void **state) {
    const answers *a = *state;
    const char *const threads[] = {"1", "2", "3"}, *const kv[] = {"f32", "f16"};
    const bool alone = rows_stand_alone();
    long compared = 0;
    for (size_t k = 0; k < (alone ? 2 : 1); k++) { /* what a rounded cache makes of other bits has no bound */
        support_run whole[MAX_PROMPTS], r[MAX_PROMPTS];
        headrace_engine *e = support_load(model_path, "device", device, "act", act(), "kv-dtype", kv[k], "threads", "2", NULL);
        for (int i = 0; i < a->n; i++) {
            forced_run(a, i, 0, &whole[i]);
            support_go(e, &whole[i], 1);
        }
        headrace_free(e);
        for (size_t t = 0; t < 3; t++) {
            e = support_load(model_path, "device", device, "act", act(), "kv-dtype", kv[k], "threads", threads[t], "max-batch-tokens", t == 1 ? "37" : "512", NULL);
            for (int chunk = 0; chunk <= 3; chunk += chunk == 0 ? 1 : 2) {
                for (int i = 0; i < a->n; i++) forced_run(a, i, chunk, &r[i]);
                support_go(e, r, a->n); /* all as one batch */
                for (int i = 0; i < a->n; i++) {
                    const size_t n = (size_t)whole[i].n_rows * (size_t)a->vocab;
                    assert_int_equal(r[i].n_rows, whole[i].n_rows);
                    if (alone)
                        assert_memory_equal(r[i].logits, whole[i].logits, n * sizeof(float));
                    else
                        assert_true(largest_difference(r[i].logits, whole[i].logits, n) <= (float)tolerance);
                    support_run_free(&r[i]);
                    compared++;
                }
            }
            for (int i = 0; i < a->n && !alone; i++) {
                forced_run(a, i, 0, &r[i]);
                support_go(e, &r[i], 1);
                if (t != 1) assert_memory_equal(r[i].logits, whole[i].logits, (size_t)whole[i].n_rows * (size_t)a->vocab * sizeof(float));
                support_run_free(&r[i]);
            }
            headrace_free(e);
        }
        for (int i = 0; i < a->n; i++) support_run_free(&whole[i]);
    }
    assert_int_equal(compared, (alone ? 2 : 1) * 3 * 3 * a->n);
}

/* Free-running greedy ids are equal up to the first position whose recorded gap is small. */
static void greedy_ids_agree(void **state) {
    const answers *a = *state;
    headrace_engine *e = support_load(model_path, "device", device, "kv-dtype", "f32", "act", "f32", NULL);
    long compared = 0;
    for (int i = 0; i < a->n; i++) {
        const support_prompt *p = &a->prompts[i];
        support_run r = {.ids = p->ids, .n_ids = p->n_ids, .max_tokens = p->n_greedy};
        support_go(e, &r, 1);
        assert_int_equal(r.n_tokens, p->n_greedy);
        for (int k = 0; k < p->n_greedy && p->gap[k] > 2e-3; k++) {
            assert_int_equal(r.tokens[k], p->greedy[k]);
            compared++;
        }
        support_run_free(&r);
    }
    print_message("%ld greedy ids compared\n", compared);
    assert_true(compared > 0);
    headrace_free(e);
}

/* A router that flips between two near experts, as it may with a rounded cache, changes a row's logits at a stroke; without experts there is no such step. */
static bool has_experts(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/expected.safetensors", expected_dir);
    return support_has_tensor(path, "router.1.ids") || support_has_tensor(path, "router.0.ids");
}

/* With the default cache and activations the choice is the same wherever the reference was not torn; with experts, at 19 of 20 such steps. */
static void defaults_choose_the_same(void **state) {
    const answers *a = *state;
    headrace_engine *e = support_load(model_path, "device", device, "act", act(), NULL);
    long compared = 0, same = 0;
    for (int i = 0; i < a->n; i++) {
        const support_prompt *p = &a->prompts[i];
        support_run r;
        forced_run(a, i, 0, &r);
        support_go(e, &r, 1);
        for (int k = 0; k < p->n_greedy; k++) {
            if (p->gap[k] <= 0.2) continue;
            same += argmax(r.logits + (size_t)(p->n_ids - 1 + k) * (size_t)a->vocab, a->vocab) == p->greedy[k];
            compared++;
        }
        support_run_free(&r);
    }
    print_message("%ld of %ld clear choices equal\n", same, compared);
    assert_true(has_experts() ? (double)same >= 0.95 * (double)compared : same == compared);
    assert_true(compared > 0);
    headrace_free(e);
}

/* prompt_ids: the text gives the reference's ids. */
static void prompts_encode_alike(void **state) {
    const answers *a = *state;
    headrace_error err = {0};
    headrace_config *c;
    headrace_vocab *v;
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", model_path, &err), HEADRACE_OK);
    if (headrace_vocab_open(c, &v, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < a->n; i++) {
        int32_t *ids;
        size_t n;
        if (headrace_encode(v, a->prompts[i].text, strlen(a->prompts[i].text), 0, false, &ids, &n, &err) != HEADRACE_OK) fail_msg("%s", err.text);
        assert_int_equal(n, a->prompts[i].n_ids);
        assert_memory_equal(ids, a->prompts[i].ids, n * sizeof *ids);
        headrace_ids_free(ids);
    }
    headrace_vocab_free(v);
    headrace_config_destroy(c);
}

int main(int argc, char **argv) {
    missing = argc == 6 && strcmp(argv[5], "miss") == 0;
    if (missing) argc = 5;
    published = argc == 5 && strcmp(argv[4], "published") == 0;
    wrapped = argc == 5 && strcmp(argv[4], "wrapped") == 0;
    if (argc == 5 && !published && !wrapped) device = argv[4];
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: check_fixture MODEL EXPECTED_DIR TOLERANCE [published|wrapped|DEVICE [miss]]\n");
        return 2;
    }
    model_path = argv[1];
    expected_dir = argv[2];
    tolerance = atof(argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_logit_agrees),
        cmocka_unit_test(same_bits_however_split),
        cmocka_unit_test(greedy_ids_agree),
        cmocka_unit_test(defaults_choose_the_same),
        cmocka_unit_test(prompts_encode_alike),
    };
    if (missing) return cmocka_run_group_tests((const struct CMUnitTest[]){tests[0]}, load_answers, free_answers);
    return cmocka_run_group_tests(tests, load_answers, free_answers);
}
