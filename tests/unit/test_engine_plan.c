/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a memory plan: a pure function of the plan and the machine's totals, with texts that can be acted on. */
#include "support/test_case.h"

#include "engine/plan.h"

enum { MIB = 1048576 };

static engine_plan a_plan(void) {
    engine_plan p = {.n_ctx = 4096, .page_tokens = 16, .kv_bytes_per_token = 1024};
    p.bytes[MEM_WEIGHTS] = (size_t)100 * MIB;
    p.bytes[MEM_KV] = (size_t)64 * MIB;
    p.bytes[MEM_ACTIVATIONS] = (size_t)20 * MIB;
    p.bytes[MEM_PROCESS] = (size_t)16 * MIB;
    p.total_bytes = (size_t)200 * MIB;
    return p;
}

static void fits_exactly(void **state) {
    (void)state;
    const engine_plan p = a_plan();
    error err = {0};
    plan_machine pm = {.total_bytes = (uint64_t)200 * MIB, .available_bytes = 1};
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK); /* what is available now is not its business */
    pm.total_bytes--;
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    pm = (plan_machine){.total_bytes = 1, .available_bytes = (uint64_t)200 * MIB};
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_OK); /* and the other way round */
    pm.available_bytes--;
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_NOT_NOW);
    pm = (plan_machine){0}; /* unknown */
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_OK);
}

static void texts_name_the_numbers(void **state) {
    (void)state;
    const engine_plan p = a_plan();
    error err = {0};
    plan_machine pm = {.total_bytes = (uint64_t)150 * MIB, .available_bytes = (uint64_t)150 * MIB};
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "200.0 MiB are needed");
    assert_contains(err.text, "weights 100.0");
    assert_contains(err.text, "KV 64.0");
    assert_contains(err.text, "activations 20.0");
    assert_contains(err.text, "rest 16.0");
    assert_contains(err.text, "150.0 MiB are all that this machine or its cgroup has");
    assert_contains(err.text, "--kv-mem 14M would fit"); /* 50 too much of 64, and 14 still hold a sequence of 4 MiB */
    error live = {0};
    assert_int_equal(plan_live_check(&p, &pm, &live), STATUS_NOT_NOW);
    assert_contains(live.text, "150.0 MiB are available now");
    assert_contains(live.text, "--kv-mem 14M would fit");
    pm.total_is_set = true;
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "150.0 MiB are all that --mem allows");
}

static void the_smallest_change(void **state) {
    (void)state;
    engine_plan p = a_plan();
    error err = {0};
    plan_machine pm = {.total_bytes = (uint64_t)138 * MIB}; /* 2 MiB of KV remain: less than one sequence */
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "--ctx 2048 --kv-mem 2M would fit");
    pm.total_bytes = (uint64_t)120 * MIB; /* not even without KV */
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "without any KV pages 16.0 MiB would still be missing");
    assert_contains(err.text, "missing: --load map, a smaller --max-batch-tokens");
    p.bytes[MEM_WEIGHTS] = 0; /* mapped already: mapping them helps nobody */
    p.total_bytes -= (size_t)100 * MIB;
    pm.total_bytes = (uint64_t)20 * MIB;
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "missing: a smaller --max-batch-tokens");
    p = a_plan();
    pm.total_bytes = (uint64_t)136 * MIB; /* nothing is left of them */
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "would still be missing");
}

/* What the text offers is true: with the change applied to the plan the verdict is a pass. */
static void the_change_would_fit(void **state) {
    (void)state;
    int n = 0;
    for (uint64_t have = 137; have < 200; have++, n++) {
        engine_plan p = a_plan();
        error err = {0};
        const plan_machine pm = {.total_bytes = have * MIB + 12345};
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
        const char *at = strstr(err.text, "--kv-mem ");
        assert_non_null(at);
        const size_t kv = (size_t)strtoul(at + 9, NULL, 10) * MIB;
        p.total_bytes = p.total_bytes - p.bytes[MEM_KV] + kv;
        p.bytes[MEM_KV] = kv;
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
    }
    assert_int_equal(n, 63);
}

static void the_table_shows_every_class(void **state) {
    (void)state;
    const engine_plan p = a_plan();
    mem *m = test_mem();
    textbuf b;
    textbuf_init(&b, m, MEM_PROCESS);
    plan_print(&p, NULL, &b);
    const char *const lines[] = {"weights", "kv", "activations", "process", "total", "mapped"};
    for (size_t i = 0; i < 6; i++) assert_contains(textbuf_text(&b), lines[i]);
    assert_null(strstr(textbuf_text(&b), "in use"));
    textbuf_clear(&b);
    plan_print(&p, m, &b);
    assert_contains(textbuf_text(&b), "in use");
    textbuf_deinit(&b);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fits_exactly),         cmocka_unit_test(texts_name_the_numbers),      cmocka_unit_test(the_smallest_change),
        cmocka_unit_test(the_change_would_fit), cmocka_unit_test(the_table_shows_every_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
