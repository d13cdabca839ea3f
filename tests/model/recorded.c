/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded answers of llama.cpp: reading them, feeding them, and the perplexity. */
#include "model/recorded.h"

#include <math.h>

enum { WINDOW = 512 };

json_t *recorded_json(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", HEADRACE_TEST_DATA, name);
    json_t *j = json_load_file(path, 0, NULL);
    if (j == NULL) fail_msg("%s cannot be read", path);
    return j;
}

static int32_t *ints(const json_t *p, const char *key, int32_t n) {
    const json_t *a = json_object_get(p, key);
    assert_int_equal(json_array_size(a), n);
    int32_t *out = malloc((size_t)n * sizeof *out);
    for (int32_t k = 0; k < n; k++) out[k] = (int32_t)json_integer_value(json_array_get(a, (size_t)k));
    return out;
}

static double *reals(const json_t *p, const char *key, int32_t n) {
    const json_t *a = json_object_get(p, key);
    assert_int_equal(json_array_size(a), n);
    double *out = malloc((size_t)n * sizeof *out);
    for (int32_t k = 0; k < n; k++) out[k] = json_number_value(json_array_get(a, (size_t)k));
    return out;
}

int recorded_load(const char *name, int32_t n_steps, recorded out[RECORDED_MAX_PROMPTS]) {
    json_t *j = recorded_json(name), *list = json_object_get(j, "prompts");
    const int n = (int)json_array_size(list);
    assert_true(n > 0 && n <= RECORDED_MAX_PROMPTS);
    for (int i = 0; i < n; i++) {
        json_t *p = json_array_get(list, (size_t)i), *ids = json_object_get(p, "prompt_ids"), *next = json_object_get(p, "ids");
        recorded *r = &out[i];
        r->n_prompt = (int32_t)json_array_size(ids);
        r->n_steps = (int32_t)json_array_size(next);
        assert_int_equal(r->n_steps, n_steps);
        r->n_forced = r->n_prompt + r->n_steps - 1;
        r->forced = malloc((size_t)r->n_forced * sizeof(int32_t));
        for (int32_t k = 0; k < r->n_forced; k++) {
            r->forced[k] = (int32_t)json_integer_value(k < r->n_prompt ? json_array_get(ids, (size_t)k) : json_array_get(next, (size_t)(k - r->n_prompt)));
        }
        r->argmax = ints(p, "argmax", r->n_steps);
        r->f32_argmax = ints(p, "f32_argmax", r->n_steps);
        r->margin_low = reals(p, "margin_low", r->n_steps);
        r->f32_margin = reals(p, "f32_margin", r->n_steps);
    }
    json_decref(j);
    return n;
}

void recorded_free(recorded *r, int n) {
    for (int i = 0; i < n; i++) {
        free(r[i].forced);
        free(r[i].argmax);
        free(r[i].f32_argmax);
        free(r[i].margin_low);
        free(r[i].f32_margin);
    }
}

static int argmax(const float *x, int n) {
    int best = 0;
    for (int k = 1; k < n; k++) {
        if (x[k] > x[best]) best = k;
    }
    return best;
}

recorded_tally recorded_force(headrace_engine *e, const recorded *rec, int n, bool f32, double limit) {
    recorded_tally t = {0};
    for (int i = 0; i < n; i++) {
        support_run r = {.ids = rec[i].forced, .n_ids = rec[i].n_forced, .want_logits = true};
        support_go(e, &r, 1);
        for (int32_t k = 0; k < rec[i].n_steps; k++) {
            const int got = argmax(r.logits + (size_t)(rec[i].n_prompt - 1 + k) * (size_t)r.n_vocab, r.n_vocab);
            const bool same = got == (f32 ? rec[i].f32_argmax[k] : rec[i].argmax[k]);
            const bool clear = (f32 ? rec[i].f32_margin[k] : rec[i].margin_low[k]) > limit;
            t.total++;
            t.same += same;
            t.clear += clear;
            t.clear_other += clear && !same;
            if (clear && !same) print_message("prompt %d, step %d: id %d\n", i, k, got);
        }
        support_run_free(&r);
    }
    return t;
}

static double nll(const float *row, int n, int32_t id) {
    double max = row[0], sum = 0;
    for (int k = 1; k < n; k++) max = row[k] > max ? row[k] : max;
    for (int k = 0; k < n; k++) sum += exp((double)row[k] - max);
    return log(sum) + max - (double)row[id];
}

/* Windows of 512 tokens that begin with BOS where the model wants one, predictions of positions 257 .. 511 scored, as the recorded file's `method` says. */
static double perplexity_of(headrace_engine *e, int32_t *ids, size_t n_ids, int32_t bos, long *n_scored) {
    double sum = 0;
    *n_scored = 0;
    for (size_t w = 0; w + WINDOW <= n_ids; w += WINDOW) {
        if (bos >= 0) ids[w] = bos;
        support_run r = {.ids = ids + w, .n_ids = WINDOW, .want_logits = true};
        support_go(e, &r, 1);
        for (int p = WINDOW / 2; p < WINDOW - 1; p++, ++*n_scored) sum += nll(r.logits + (size_t)p * (size_t)r.n_vocab, r.n_vocab, ids[w + (size_t)p + 1]);
        support_run_free(&r);
    }
    return exp(sum / (double)*n_scored);
}

static char *read_text(const char *name, size_t *n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", HEADRACE_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = malloc(1 << 20);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

void recorded_check_perplexity(const char *name, const char *model_path, double tolerance, double f32_tolerance) {
    json_t *j = recorded_json(name);
    headrace_error err = {0};
    headrace_config *c;
    headrace_vocab *v;
    int32_t *ids, *first, bos = -1;
    size_t n_text, n_ids, n_first;
    long scored;
    char *text = read_text("perplexity_text.txt", &n_text);
    if (n_text > 0 && text[n_text - 1] == '\n') n_text--;
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", model_path, &err), HEADRACE_OK);
    if (headrace_vocab_open(c, &v, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    assert_int_equal(headrace_encode(v, text, n_text, 0, false, &ids, &n_ids, &err), HEADRACE_OK);
    assert_int_equal(n_ids, json_integer_value(json_object_get(j, "n_tokens")));
    assert_int_equal(headrace_encode(v, "", 0, 0, false, &first, &n_first, &err), HEADRACE_OK);
    if (n_first > 0) bos = first[0];

    headrace_engine *e = support_load(model_path, NULL);
    const double q8 = perplexity_of(e, ids, n_ids, bos, &scored), expected = json_number_value(json_object_get(j, "perplexity"));
    headrace_free(e);
    assert_int_equal(scored, json_integer_value(json_object_get(j, "n_scored")));
    e = support_load(model_path, "act", "f32", "kv-dtype", "f32", NULL);
    const double f32 = perplexity_of(e, ids, n_ids, bos, &scored), f32_expected = json_number_value(json_object_get(j, "f32_perplexity"));
    headrace_free(e);
    print_message("perplexity %.4f (llama.cpp %.4f); F32 activations and cache %.4f (llama.cpp %.4f)\n", q8, expected, f32, f32_expected);
    assert_true(fabs(q8 - expected) <= tolerance * expected);
    assert_true(fabs(f32 - f32_expected) <= f32_tolerance * f32_expected);
    headrace_ids_free(ids);
    headrace_ids_free(first);
    headrace_vocab_free(v);
    headrace_config_destroy(c);
    free(text);
    json_decref(j);
}
