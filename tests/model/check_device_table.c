/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend's list of rows (src/vt/cuda/kernel_rows.def), on a device that poses with these rows and no others: it takes every model that it should, resident and streamed, with F32 and
 * with BF16 activations, whatever the cache's dtype; and without any one of its rows that is needed, the model is refused with the row's name before anything is touched, or goes another way
 * that does not need it.
 * Usage: check_device_table MODEL
 */
#include "model/model_support.h"

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "support/posed_device.h"
#include "vt/backend_manifest.h"

static const char *fixture;
static posed_gpu *gpu;
static bool experts;

typedef struct way {
    const char *act, *kv, *experts;
} way;
static const way ways[] = {{"f32", "f32", "resident"}, {"f32", "f16", "stream"}, {"f32", "bf16", "resident"}, {"bf16", "f16", "resident"}, {"bf16", "bf16", "stream"}, {"auto", "f16", "resident"}, {"q8", "f16", "resident"}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };
static bool makes_sense[N_WAYS]; /* for this model: what the processor takes */

static headrace_status try_load_on(const char *device, const way *w, headrace_engine **out, headrace_error *err) {
    headrace_config *c = NULL;
    *out = NULL;
    const char *const settings[][2] = {{"model", fixture}, {"device", device}, {"threads", "1"}, {"act", w->act}, {"kv-dtype", w->kv}, {"experts", experts ? w->experts : "auto"}};
    assert_int_equal(headrace_config_create(&c, err), HEADRACE_OK);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) assert_int_equal(headrace_config_set(c, settings[i][0], settings[i][1], err), HEADRACE_OK);
    const headrace_status rc = headrace_load(c, NULL, NULL, out, err);
    headrace_config_destroy(c);
    return rc;
}

static headrace_status try_load(const way *w, headrace_engine **out, headrace_error *err) { return try_load_on("cuda", w, out, err); }

static bool needs(const headrace_engine *e, const vt_manifest_row *r) {
    for (int32_t i = 0; i < e->model->recorder.n; i++) {
        const vt_need *n = &e->model->recorder.needs[i];
        if (n->op == r->op && memcmp(&n->sig, &r->sig, sizeof n->sig) == 0) return true;
    }
    return false;
}

/* Nothing that is launched lacks its row, or the request would fail. */
static void runs(headrace_engine *e) {
    static const int32_t ids[] = {3, 4, 5, 6, 7};
    support_run r = {.ids = ids, .n_ids = 5, .max_tokens = 3};
    support_go(e, &r, 1);
    assert_int_equal(r.n_tokens, 3);
    support_run_free(&r);
}

static const vt_manifest *cuda_rows(void) {
    for (int32_t i = 0; i < vt_manifest_count; i++) {
        if (vt_manifest_list[i].type == VT_DEVICE_CUDA) return &vt_manifest_list[i];
    }
    fail_msg("no rows of CUDA are listed");
    return NULL;
}

static int setup(void **state) {
    (void)state;
    gpu->listed = true;
    gpu->caps |= VT_CAP_BIT(VT_CAP_TENSOR_BF16) | VT_CAP_BIT(VT_CAP_TENSOR_F16);
    headrace_engine *e = support_load(fixture, "device", "cpu", NULL);
    experts = e->model->moe->any;
    headrace_free(e);
    for (int w = 0; w < N_WAYS; w++) {
        headrace_error err = {0};
        makes_sense[w] = try_load_on("cpu", &ways[w], &e, &err) == HEADRACE_OK;
        headrace_free(e);
    }
    assert_true(makes_sense[0] && makes_sense[1] && makes_sense[2] && makes_sense[5]);
    return 0;
}

static void its_rows_are_enough(void **state) {
    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        headrace_engine *e;
        headrace_error err = {0};
        if (!makes_sense[i]) continue;
        posed_clear(gpu);
        if (try_load(&ways[i], &e, &err) != HEADRACE_OK) fail_msg("%s, KV %s, %s: %s", ways[i].act, ways[i].kv, ways[i].experts, err.text);
        runs(e);
        headrace_free(e);
    }
}

/* Without this row. Returns whether it was refused. */
static bool removed(const way *w, const vt_manifest_row *r) {
    headrace_engine *e;
    headrace_error err = {0};
    char sig[96], line[160];
    posed_clear(gpu);
    gpu->removed_row = (vt_need){r->op, r->sig};
    const headrace_status rc = try_load(w, &e, &err);
    gpu->removed_row = (vt_need){0};
    if (rc == HEADRACE_OK) {
        assert_false(needs(e, r));
        runs(e);
        headrace_free(e);
        return false;
    }
    vt_sig_format(r->op, r->sig, sig, sizeof sig);
    snprintf(line, sizeof line, "\n%s %s: not written", vt_op_name(r->op), sig);
    if (strstr(err.text, "--act bf16 needs") != NULL) strcpy(line, "--act bf16 needs");
    if (rc != HEADRACE_UNSUPPORTED || strstr(err.text, line) == NULL) fail_msg("%d \"%s\" does not say \"%s\"", (int)rc, err.text, line);
    assert_int_equal(gpu->n.uploads + gpu->n.allocs + gpu->n.kernels, 0);
    assert_int_equal(gpu->n.open + gpu->n.live_queues + gpu->n.live_pinned, 0);
    return true;
}

static void each_row_removed(void **state) {
    (void)state;
    const vt_manifest *m = cuda_rows();
    int n_refused = 0, n_aside = 0;
    for (int w = 0; w < N_WAYS; w++) {
        headrace_engine *whole;
        headrace_error err = {0};
        if (!makes_sense[w]) continue;
        posed_clear(gpu);
        assert_int_equal(try_load(&ways[w], &whole, &err), HEADRACE_OK);
        bool needed[512] = {false};
        assert_in_range(m->n_rows, 1, 512);
        for (int32_t i = 0; i < m->n_rows; i++) {
            needed[i] = needs(whole, &m->rows[i]);
            for (int32_t k = 0; k < i; k++) needed[i] = needed[i] && !(needed[k] && m->rows[k].op == m->rows[i].op && memcmp(&m->rows[k].sig, &m->rows[i].sig, sizeof m->rows[k].sig) == 0);
        }
        headrace_free(whole);
        for (int32_t i = 0; i < m->n_rows; i++) {
            if (needed[i]) ++*(removed(&ways[w], &m->rows[i]) ? &n_refused : &n_aside);
        }
    }
    print_message("%d refused, %d went another way\n", n_refused, n_aside);
    assert_true(n_refused >= 7 * 4 && (n_aside > 0 || !experts));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    fixture = argv[1];
    log_set(NULL, NULL, LOG_LEVEL_ERROR);
    gpu = posed_add(VT_DEVICE_CUDA);
    const struct CMUnitTest tests[] = {cmocka_unit_test(its_rows_are_enough), cmocka_unit_test(each_row_removed)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
