/* SPDX-License-Identifier: Apache-2.0 */
/* Inverse frequencies against what Transformers' modeling_rope_utils computes for the same parameters (in float32). */
#include "support/test_case.h"

#include <math.h>
#include <string.h>

#include "model/model.h"

typedef struct rope_case {
    const char *name;
    rope_hparams h;
    int64_t n_dims, n_ctx;
    float mscale;
    int n;
    float inv[32];
} rope_case;

/* clang-format off */
static const rope_case cases[] = {
    {"linear", {.type = "linear", .theta = 1e6, .factor = 8, .partial = 1}, 16, 512, 1.0f, 8,
     {0.125f, 0.0222284924f, 0.00395284733f, 0.000702926656f, 0.000125000006f, 2.22284925e-05f, 3.95284678e-06f, 7.02926684e-07f}},
    {"linear, half of the head", {.type = "linear", .theta = 1e4, .factor = 2, .partial = 0.5}, 16, 512, 1.0f, 4,
     {0.5f, 0.0500000007f, 0.00499999989f, 0.000500000024f}},
    {"llama3", {.type = "llama3", .theta = 5e5, .factor = 8, .partial = 1, .low_freq_factor = 1, .high_freq_factor = 4, .original_ctx = 64}, 16, 512, 1.0f, 8,
     {1.0f, 0.079403013f, 0.00470075384f, 0.000911583134f, 0.000176776681f, 3.42810235e-05f, 6.64787058e-06f, 1.28917316e-06f}},
    {"proportional", {.type = "proportional", .theta = 1e6, .partial = 0.25}, 32, 512, 1.0f, 16,
     {1.0f, 0.421696514f, 0.177827939f, 0.0749894157f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},
    {"proportional, divided", {.type = "proportional", .theta = 1e4, .factor = 4, .partial = 0.5}, 16, 512, 1.0f, 8,
     {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.0f, 0.0f, 0.0f, 0.0f}},
    {"yarn", {.type = "yarn", .theta = 1e4, .factor = 4, .partial = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1, .original_ctx = 512}, 16, 4096, 1.13862944f, 8,
     {1.0f, 0.25693506f, 0.0625f, 0.0138349654f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
    {"yarn, two mscales", {.type = "yarn", .theta = 1e4, .factor = 40, .partial = 1, .beta_fast = 32, .beta_slow = 1, .mscale = 0.707, .mscale_all_dim = 1, .truncate = 1, .original_ctx = 4096}, 16, 163840, 0.921042355f, 8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0239147246f, 0.00512499968f, 0.000849862176f, 2.49999994e-05f, 7.90569447e-06f}},
    {"yarn, not truncated", {.type = "yarn", .theta = 150000, .factor = 32, .partial = 1, .beta_fast = 32, .beta_slow = 1, .original_ctx = 4096}, 64, 131072, 1.34657359f, 32,
     {1.0f, 0.689044297f, 0.47478205f, 0.327145845f, 0.225418001f, 0.155322984f, 0.107024424f, 0.0737445652f, 0.05081328f, 0.0317056961f, 0.0193350017f, 0.0115920492f, 0.00679495931f, 0.00386035908f, 0.00209379266f, 0.00105260219f, 0.000456483918f, 0.000129318694f, 3.83088118e-05f, 2.63964721e-05f, 1.8188337e-05f, 1.25325696e-05f, 8.63549576e-06f, 5.95023948e-06f, 4.09997847e-06f, 2.82506676e-06f, 1.94659629e-06f, 1.34129107e-06f, 9.24208962e-07f, 6.36820914e-07f, 4.38797855e-07f, 3.0235114e-07f}},
    {"yarn, attention factor", {.type = "yarn", .theta = 1e4, .factor = 4, .partial = 1, .beta_fast = 16, .beta_slow = 2, .attention_factor = 1.5, .truncate = 1, .original_ctx = 512}, 16, 4096, 1.5f, 8,
     {1.0f, 0.316227764f, 0.0749999955f, 0.0158113893f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
    {"yarn, context of training", {.type = "yarn", .theta = 1e4, .factor = 4, .partial = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1}, 16, 512, 1.13862944f, 8,
     {1.0f, 0.25693506f, 0.0625f, 0.0138349654f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
    {"yarn, factor from the contexts", {.type = "yarn", .theta = 1e4, .partial = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1, .original_ctx = 512}, 16, 2048, 1.13862944f, 8,
     {1.0f, 0.25693506f, 0.0625f, 0.0138349654f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
};
/* clang-format on */
enum { N_CASES = sizeof cases / sizeof cases[0] };

static mem *m;
static model mo;

static int set_up(void **state) {
    (void)state;
    mo = (model){0};
    return mem_create(&m) == STATUS_OK && arena_create(m, MEM_MODEL, 4096, &mo.arena) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    arena_destroy(mo.arena);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static status add(const rope_hparams *h, int64_t n_dims, int64_t n_ctx, error *err) {
    int32_t index = -1;
    mo.n_ropes = 0;
    mo.hp.n_ctx_train = n_ctx;
    const status rc = model_add_rope(&mo, h, n_dims, &index, err);
    if (rc == STATUS_OK) assert_int_equal(index, 0);
    return rc;
}

static void test_frequencies(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const rope_case *c = &cases[i];
        error err = {0};
        if (add(&c->h, c->n_dims, c->n_ctx, &err) != STATUS_OK) fail_msg("%s: %s", c->name, err.text);
        assert_int_equal(mo.ropes[0].n_rot, 2 * c->n);
        if (fabsf(mo.ropes[0].mscale - c->mscale) > 1e-6f) fail_msg("%s: mscale %.9g, expected %.9g", c->name, (double)mo.ropes[0].mscale, (double)c->mscale);
        for (int k = 0; k < c->n; k++) {
            const float got = mo.rope_host[0][k], want = c->inv[k];
            if (!(fabsf(got - want) <= 1e-6f * want)) fail_msg("%s: [%d] is %.9g, expected %.9g", c->name, k, (double)got, (double)want);
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    const struct {
        rope_hparams h;
        int64_t n_dims;
        status rc;
        const char *text;
    } bad[] = {
        {{.type = "longrope", .theta = 1e4, .partial = 1}, 16, STATUS_UNSUPPORTED, "\"longrope\" is not implemented"},
        {{.type = "linear", .theta = 1e4, .partial = 1}, 16, STATUS_FORMAT, "needs a factor"},
        {{.type = "llama3", .theta = 1e4, .factor = 8, .partial = 1, .low_freq_factor = 4, .high_freq_factor = 4}, 16, STATUS_FORMAT, "low_freq_factor < high_freq_factor"},
        {{.type = "yarn", .theta = 1, .factor = 8, .partial = 1, .beta_fast = 32, .beta_slow = 1}, 16, STATUS_FORMAT, "rope_theta > 1"},
        {{.type = "yarn", .theta = 1e4, .factor = 8, .partial = 1, .beta_fast = 32}, 16, STATUS_FORMAT, "positive beta_fast"},
        {{.type = "default", .theta = 1e4, .partial = 0}, 16, STATUS_FORMAT, "rotary dimensions 0"},
        {{.type = "default", .theta = 1e4, .partial = 0.2}, 16, STATUS_FORMAT, "rotary dimensions 3"},
        {{.type = "default", .theta = 1e4, .partial = 1}, 1 << 20, STATUS_FORMAT, "an even number from 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error err = {0};
        assert_int_equal(add(&bad[i].h, bad[i].n_dims, 512, &err), bad[i].rc);
        if (strstr(err.text, bad[i].text) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frequencies, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
