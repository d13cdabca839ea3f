/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 activations against the answers of an independent implementation that computed in float32 (--act bf16): the relative L2 error of each prompt's logits stays below TOLERANCE, and
 * the choice is the same wherever the reference's best logit is clear of its second. With experts: prompt 0, whose routing was recorded, with the recorded choice in the place of the
 * router's, since one choice that flips moves logits at a stroke; how often the router itself would have chosen otherwise is told. Each with an F16 and an F32 cache, and without experts also with a BF16 one, which adds its own
 * rounding (1.1e-1 in all for gemma4-moe-fp8); there a device with matrix units also rounds queries and probabilities to the cache's BF16, so half of TOLERANCE more is its limit.
 * Usage: check_bf16 FIXTURE TOLERANCE [DEVICE]
 */
#include "model/model_support.h"

#include <math.h>

#include "engine/engine.h"

enum { MAX_PROMPTS = 16, MAX_LAYERS = 64 };
static const double clear_gap = 0.4;

static const char *fixture, *device = "cpu";
static double tolerance, limit;
static char answers_file[512];

static struct {
    int32_t *ids[MAX_LAYERS]; /* [n_rows, k] as recorded; NULL: a layer without experts */
    int64_t n_rows, k, at[MAX_LAYERS]; /* rows forced so far */
    long n_choices, n_flips;
} recorded;

static bool load_recorded(void) {
    bool any = false;
    for (int l = 0; l < MAX_LAYERS; l++) {
        char name[32];
        snprintf(name, sizeof name, "router.%d.ids", l);
        recorded.ids[l] = support_has_tensor(answers_file, name) ? support_tensor_i32(answers_file, name, &recorded.n_rows, &recorded.k) : NULL;
        any = any || recorded.ids[l] != NULL;
    }
    return any;
}

static bool among(int32_t id, const int32_t *ids, int32_t k) {
    for (int32_t j = 0; j < k; j++) {
        if (ids[j] == id) return true;
    }
    return false;
}

/* The prompt is alone: its rows come in order, in one step or several. */
static void force_recorded(void *ctx, int layer, int32_t *ids, int32_t n_rows, int32_t k) {
    (void)ctx;
    assert_true(layer < MAX_LAYERS && recorded.ids[layer] != NULL);
    assert_true(recorded.at[layer] + n_rows <= recorded.n_rows);
    assert_int_equal(k, recorded.k);
    const int32_t *want = recorded.ids[layer] + recorded.at[layer] * k;
    recorded.at[layer] += n_rows;
    for (int32_t i = 0; i < n_rows * k; i++) {
        recorded.n_choices++;
        recorded.n_flips += !among(ids[i], want + i / k * k, k);
    }
    memcpy(ids, want, (size_t)(n_rows * k) * sizeof *ids);
}

/* The best of n, and how far it is above the second. */
static int64_t best_of(const float *x, int64_t n, double *gap) {
    int64_t best = 0;
    float second = -INFINITY;
    for (int64_t k = 1; k < n; k++) {
        if (x[k] > x[best]) {
            second = x[best];
            best = k;
        } else if (x[k] > second) {
            second = x[k];
        }
    }
    *gap = (double)x[best] - (double)second;
    return best;
}

static void compare(const support_run *r, const float *want, int64_t vocab, int prompt, long *n_clear) {
    double wrong = 0, all = 0, gap, own;
    for (int64_t k = 0; k < r->n_rows * vocab; k++) {
        const double d = (double)r->logits[k] - (double)want[k];
        wrong += d * d;
        all += (double)want[k] * (double)want[k];
    }
    const double off = sqrt(wrong / all);
    print_message("prompt %d: relative error %.2e over %d rows\n", prompt, off, (int)r->n_rows);
    if (!(off <= limit)) fail_msg("prompt %d: the relative error %.3e exceeds %.3e", prompt, off, limit);
    if (!(off > 1e-5)) fail_msg("prompt %d: the relative error %.3e is that of float32: nothing was rounded to BF16", prompt, off);
    for (int64_t i = 0; i < r->n_rows; i++) {
        const int64_t best = best_of(want + i * vocab, vocab, &gap);
        if (!(gap > clear_gap)) continue;
        ++*n_clear;
        if (best_of(r->logits + i * vocab, vocab, &own) != best) fail_msg("prompt %d, row %lld: another choice, and the reference is clear by %g", prompt, (long long)i, gap);
    }
}

static void logits_are_near(const char *kv) {
    support_prompt prompts[MAX_PROMPTS];
    char path[512];
    snprintf(path, sizeof path, "%s/expected.json", fixture);
    snprintf(answers_file, sizeof answers_file, "%s/expected.safetensors", fixture);
    const int n = support_prompts(path, prompts, MAX_PROMPTS);
    memset(&recorded, 0, sizeof recorded);
    const bool experts = load_recorded();
    limit = strcmp(kv, "bf16") == 0 && strcmp(device, "cpu") != 0 ? 1.5 * tolerance : tolerance;
    headrace_engine *e = support_load(fixture, "device", device, "kv-dtype", kv, "act", "bf16", "threads", "2", NULL);
    if (experts) e->model->opt.override_routing = force_recorded;
    long n_clear = 0, n_compared = 0;
    for (int i = 0; i < (experts ? 1 : n); i++) {
        char name[32];
        int64_t rows, vocab;
        snprintf(name, sizeof name, "logits.%d", i);
        float *want = support_tensor(answers_file, name, &rows, &vocab);
        support_run r = {.ids = prompts[i].forced, .n_ids = prompts[i].n_forced, .want_logits = true};
        support_go(e, &r, 1);
        assert_int_equal(r.n_rows, rows);
        assert_int_equal(r.n_vocab, vocab);
        compare(&r, want, vocab, i, &n_clear);
        n_compared++;
        support_run_free(&r);
        free(want);
    }
    print_message("%s: %ld prompts, %ld clear choices equal", kv, n_compared, n_clear);
    if (experts) print_message("; the router would have chosen otherwise %ld times of %ld", recorded.n_flips, recorded.n_choices);
    print_message("\n");
    assert_true(n_compared > 0 && n_clear > 0 && (!experts || recorded.n_choices > 0));
    headrace_free(e);
    support_prompts_free(prompts, n);
    for (int l = 0; l < MAX_LAYERS; l++) free(recorded.ids[l]);
}

static void with_f16_cache(void **state) {
    (void)state;
    logits_are_near("auto");
}

static void with_bf16_cache(void **state) {
    (void)state;
    logits_are_near("bf16");
}

static void with_f32_cache(void **state) {
    (void)state;
    logits_are_near("f32");
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: check_bf16 FIXTURE TOLERANCE [DEVICE]\n");
        return 2;
    }
    fixture = argv[1];
    tolerance = atof(argv[2]);
    if (argc == 4) device = argv[3];
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_f16_cache), cmocka_unit_test(with_f32_cache)};
    const struct CMUnitTest without_experts[] = {cmocka_unit_test(with_f16_cache), cmocka_unit_test(with_f32_cache), cmocka_unit_test(with_bf16_cache)};
    char path[512];
    snprintf(path, sizeof path, "%s/expected.safetensors", fixture);
    if (support_has_tensor(path, "router.0.ids") || support_has_tensor(path, "router.1.ids")) return cmocka_run_group_tests(tests, NULL, NULL);
    return cmocka_run_group_tests(without_experts, NULL, NULL);
}
