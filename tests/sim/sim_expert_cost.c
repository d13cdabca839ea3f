/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a step in bytes of experts, before it is routed, against steps that are: rows draw distinct experts from a popularity of each
 * layer, and what n rows took (the union of each layer, counted here) is compared with what was expected of n rows, also with a part of the
 * experts held. Usage: sim_expert_cost [STEPS].
 */
#include "support/test_case.h"

#include <math.h>

#include "moe/expert_cost.h"

enum { LAYERS = 5, EXPERTS = 32, TOP = 4, MAX_ROWS = 64 };

static long n_steps = 20000;
static uint64_t rng = 88172645463325252u;

static uint32_t rnd(uint32_t n) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

typedef struct world {
    mem *m;
    expert_bank bank;
    expert_layer layers[LAYERS];
    double weight[LAYERS][EXPERTS];
    expert_cost *cost;
} world;

/* Layer 2 has no experts; sizes differ. */
static void world_open(world *w) {
    error err = {0};
    *w = (world){.m = test_mem()};
    w->bank = (expert_bank){.n_layers = LAYERS, .layers = w->layers, .max_experts = EXPERTS, .max_top_k = TOP};
    for (int l = 0; l < LAYERS; l++) {
        if (l == 2) continue;
        w->layers[l] = (expert_layer){.n_experts = l == 1 ? EXPERTS / 2 : EXPERTS, .top_k = TOP, .file_bytes = 1000u * (size_t)(l + 1)};
        for (int e = 0; e < w->layers[l].n_experts; e++) w->weight[l][e] = 1.0 / (1 + e % 7 * (l + 1));
    }
    assert_int_equal(expert_cost_create(w->m, &w->bank, &w->cost, &err), STATUS_OK);
    mem_usage u;
    mem_get_usage(w->m, MEM_MODEL, &u);
    assert_true(u.used_bytes <= expert_cost_table_bytes(&w->bank));
}

static void world_close(world *w) {
    expert_cost_destroy(w->cost);
    test_mem_check(w->m);
}

/* TOP distinct experts of a row, likelier the heavier they are. */
static void draw_row(const world *w, int l, int32_t *ids) {
    bool taken[EXPERTS] = {false};
    for (int j = 0; j < TOP; j++) {
        double sum = 0, at;
        for (int e = 0; e < w->layers[l].n_experts; e++) sum += taken[e] ? 0 : w->weight[l][e];
        at = sum * rnd(1u << 30) / (1u << 30);
        int e = 0;
        for (;; e++) {
            if (taken[e]) continue;
            at -= w->weight[l][e];
            if (at < 0 || e == w->layers[l].n_experts - 1) break;
        }
        while (taken[e]) e--;
        taken[e] = true;
        ids[j] = e;
    }
}

typedef struct fake_store {
    expert_store base;
    bool held[LAYERS][EXPERTS];
} fake_store;

static bool holds(const expert_store *s, int32_t layer, int32_t expert) {
    return ((const fake_store *)(const void *)s)->held[layer][expert];
}

/* One step: noted, and its unions counted the plain way: *all, and *missing without what the store holds. */
static void step(world *w, const fake_store *s, int n_rows, uint64_t *all, uint64_t *missing) {
    static int32_t ids[MAX_ROWS * TOP];
    *all = *missing = 0;
    for (int l = 0; l < LAYERS; l++) {
        bool in[EXPERTS] = {false};
        if (w->layers[l].n_experts == 0) continue;
        for (int r = 0; r < n_rows; r++) draw_row(w, l, ids + r * TOP);
        for (int i = 0; i < n_rows * TOP; i++) in[ids[i]] = true;
        for (int e = 0; e < EXPERTS; e++) {
            if (in[e]) *all += w->layers[l].file_bytes;
            if (in[e] && !s->held[l][e]) *missing += w->layers[l].file_bytes;
        }
        expert_cost_note(w->cost, l, ids, n_rows, TOP);
    }
}

static void near(double got, double want, double part, const char *what, int n_rows) {
    if (!(fabs(got - want) <= part * want)) fail_msg("%s, %d rows: %.0f expected, %.0f taken", what, n_rows, got, want);
}

static void expectations_are_met(void **state) {
    (void)state;
    static const int rows[] = {1, 2, 7, 16, 64};
    world w;
    fake_store s = {.base = {.name = "fake", .holds = holds}};
    uint64_t all, missing, total = 0;
    world_open(&w);
    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++) s.held[l][e] = rnd(3) == 0;
    }
    for (int i = 0; i < 400; i++) {
        step(&w, &s, 8, &all, &missing);
        total += all;
    }
    for (int change = 0; change < 2; change++) {
        for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
            double sum_all = 0, sum_missing = 0, want_all = 0, want_missing = 0;
            const long n = n_steps / (10 * rows[k]) + 200;
            for (long i = 0; i < n; i++) {
                want_all += (double)expert_cost_expected_bytes(w.cost, rows[k], NULL, NULL);
                want_missing += (double)expert_cost_expected_bytes(w.cost, rows[k], &s.base, NULL);
                step(&w, &s, rows[k], &all, &missing);
                total += all;
                sum_all += (double)all;
                sum_missing += (double)missing;
            }
            near(want_all, sum_all, 0.02, "all", rows[k]);
            near(want_missing, sum_missing, 0.03, "missing", rows[k]);
        }
        /* the text changes, and the shares follow it */
        for (int l = 0; l < LAYERS; l++) {
            for (int e = 0; e < w.layers[l].n_experts; e++) w.weight[l][e] = 1.0 / (1 + (e + 3) % 5 * (l + 1));
        }
        for (int i = 0; i < 2000; i++) {
            step(&w, &s, MAX_ROWS, &all, &missing);
            total += all;
        }
    }
    assert_int_equal(expert_cost_noted_bytes(w.cost), total);
    world_close(&w);
}

static void what_a_policy_may_rely_on(void **state) {
    (void)state;
    world w;
    fake_store s = {.base = {.name = "fake", .holds = holds}}, everything = {.base = {.name = "all"}};
    uint64_t bank = 0, one = 0, all, missing;
    world_open(&w);
    for (int l = 0; l < LAYERS; l++) {
        bank += (uint64_t)w.layers[l].n_experts * w.layers[l].file_bytes;
        one += (uint64_t)w.layers[l].top_k * w.layers[l].file_bytes;
    }
    assert_in_range(expert_cost_expected_bytes(w.cost, 1, NULL, NULL), one - 1, one); /* before anything was seen: top_k of each layer */
    assert_int_equal(expert_cost_expected_bytes(w.cost, 5, &everything.base, NULL), 0);
    assert_int_equal(expert_cost_expected_bytes(w.cost, 5, &s.base, &everything.base), 0);
    for (int round = 0; round < 50; round++) {
        uint64_t before = 0;
        for (int n = 1; n < 5000; n = n * 3 / 2 + 1) {
            const uint64_t now = expert_cost_expected_bytes(w.cost, n, NULL, NULL),
                           less = expert_cost_expected_bytes(w.cost, n, &s.base, NULL);
            assert_true(now >= before && now <= bank && less <= now);
            before = now;
        }
        s.held[rnd(LAYERS)][rnd(EXPERTS)] = true;
        step(&w, &s, 1 + (int)rnd(MAX_ROWS), &all, &missing);
    }
    world_close(&w);
}

int main(int argc, char **argv) {
    if (argc > 1) n_steps = strtol(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(expectations_are_met), cmocka_unit_test(what_a_policy_may_rely_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
