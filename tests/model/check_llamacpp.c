/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GGUF against what llama.cpp computes on the same file (tools/record_llamacpp.py forced): at every recorded step the likeliest token is llama.cpp's wherever its lead is clear, and the
 * lead itself is the same. With BF16 activations (and weights of blocks rounded to BF16) the lead is within TOLERANCE, and clear where it exceeds that.
 * Usage: check_llamacpp MODEL RECORD [bf16 TOLERANCE [DEVICE]]
 */
#include "model/model_support.h"

#include <math.h>

#include <jansson.h>

static const char *model_path, *record_path, *act = "f32", *device = "cpu";
static double clear_margin = 0.05, margin_tolerance = 5e-3; /* llama.cpp looks GELU up in half precision */

static int32_t id_at(const json_t *a, size_t i) { return (int32_t)json_integer_value(json_array_get(a, i)); }

static int argmax(const float *x, int64_t n) {
    int best = 0;
    for (int k = 1; k < n; k++) {
        if (x[k] > x[best]) best = k;
    }
    return best;
}

static void every_clear_choice_is_the_same(void **state) {
    (void)state;
    json_t *j = json_load_file(record_path, 0, NULL), *list = json_object_get(j, "prompts");
    headrace_engine *e = support_load(model_path, "device", device, "kv-dtype", "f32", "act", act, "threads", "2", NULL);
    long total = 0, clear = 0;
    double worst = 0;
    assert_true(json_array_size(list) >= 1);
    for (size_t p = 0; p < json_array_size(list); p++) {
        const json_t *prompt = json_array_get(list, p), *ids = json_object_get(prompt, "prompt_ids"), *next = json_object_get(prompt, "ids");
        const size_t n_ids = json_array_size(ids), n_next = json_array_size(next);
        int32_t *forced = malloc((n_ids + n_next) * sizeof *forced);
        assert_non_null(forced);
        for (size_t i = 0; i < n_ids + n_next; i++) forced[i] = i < n_ids ? id_at(ids, i) : id_at(next, i - n_ids);
        support_run r = {.ids = forced, .n_ids = (int32_t)(n_ids + n_next - 1), .want_logits = true};
        support_go(e, &r, 1);
        for (size_t k = 0; k < n_next; k++, total++) {
            const float *row = r.logits + (n_ids - 1 + k) * (size_t)r.n_vocab;
            const int32_t first = id_at(json_object_get(prompt, "argmax"), k), second = id_at(json_object_get(prompt, "second"), k);
            const double margin = json_number_value(json_array_get(json_object_get(prompt, "margin"), k)), d = fabs((double)row[first] - (double)row[second] - margin);
            if (!(d <= margin_tolerance)) fail_msg("prompt %zu, step %zu: id %d leads id %d by %g, by llama.cpp's %g", p, k, first, second, (double)row[first] - (double)row[second], margin);
            worst = d > worst ? d : worst;
            if (margin <= clear_margin) continue;
            assert_int_equal(argmax(row, r.n_vocab), first);
            clear++;
        }
        support_run_free(&r);
        free(forced);
    }
    print_message("%ld of %ld steps are clear and equal; largest difference of a lead %.3g\n", clear, total, worst);
    assert_true(clear * 2 > total);
    if (strcmp(act, "f32") != 0) assert_true(worst > 1e-4); /* else nothing was rounded */
    headrace_free(e);
    json_decref(j);
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 5 && argc != 6) {
        fprintf(stderr, "usage: check_llamacpp MODEL RECORD [bf16 TOLERANCE [DEVICE]]\n");
        return 2;
    }
    model_path = argv[1];
    record_path = argv[2];
    if (argc > 3) {
        act = argv[3];
        clear_margin = margin_tolerance = atof(argv[4]);
    }
    if (argc > 5) device = argv[5];
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_clear_choice_is_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
