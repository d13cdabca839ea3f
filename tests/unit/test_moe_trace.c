/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded routing: what is written is what is read, what is no trace is refused, rows are handed out again in order, and what policies would do is what a hand finds. */
#include "support/test_case.h"

#include <unistd.h>

#include "moe/expert_whatif.h"
#include "support/scratch_dir.h"

typedef struct trace_case {
    scratch_dir dir;
    char path[SCRATCH_PATH_BYTES];
    mem *m;
} trace_case;

static void open_case(trace_case *k) {
    k->m = test_mem();
    assert_true(scratch_dir_create(&k->dir));
    scratch_dir_path(&k->dir, "routing", k->path);
}

static void close_case(trace_case *k) {
    test_mem_check(k->m);
    scratch_dir_destroy(&k->dir);
}

/* Layer by layer, one row a step: ids[step][layer][top_k]. */
static void write_steps(trace_case *k, int n_layers, int n_experts, int top_k, int n_steps, const int32_t *ids) {
    error err = {0};
    expert_trace_writer *w;
    assert_int_equal(expert_trace_writer_open(k->m, k->path, n_layers, n_experts, top_k, &w, &err), STATUS_OK);
    for (int s = 0; s < n_steps; s++) {
        for (int l = 0; l < n_layers; l++) expert_trace_writer_add(w, l, ids + (s * n_layers + l) * top_k, 1);
    }
    assert_int_equal(expert_trace_writer_close(w, &err), STATUS_OK);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    expert_trace_writer *w;
    enum { ROWS = EXPERT_TRACE_MAX_ROWS + 3 };
    int32_t *many = test_malloc(ROWS * 2 * sizeof *many);
    for (int i = 0; i < ROWS; i++) {
        many[2 * i] = i % 100;
        many[2 * i + 1] = 100 + i % 27;
    }
    assert_int_equal(expert_trace_writer_open(k.m, k.path, 3, 200, 2, &w, &err), STATUS_OK);
    const uint64_t allocs = mem_alloc_count(k.m);
    for (int step = 0; step < 4; step++) {
        expert_trace_writer_add(w, 1, many, step % 2 ? 1 : ROWS); /* layer 0 has no experts */
        expert_trace_writer_add(w, 2, many + 2, 5);
    }
    expert_trace_writer_add(w, 2, many, 7); /* a step that has this layer only */
    assert_int_equal(mem_alloc_count(k.m), allocs);
    assert_int_equal(expert_trace_writer_close(w, &err), STATUS_OK);
    expert_trace t;
    if (expert_trace_read(k.m, k.path, (expert_trace_shape){3, 200, 2}, &t, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(t.n_layers * 10000 + t.n_experts * 10 + t.top_k, 32002);
    assert_int_equal(t.n_steps, 5);
    assert_int_equal(t.n_rows, 2 * ROWS + 2);
    int64_t rows[3] = {0}, row = 0;
    expert_trace_record r;
    for (expert_trace_cursor c = {0}; expert_trace_next(&t, &c, &r);) {
        if (r.layer == 1 && r.new_step) row = 0;
        for (int i = 0; r.layer == 1 && i < r.n_rows; i++, row++) assert_int_equal(r.ids[2 * i], row % 100);
        rows[r.layer] += r.n_rows;
    }
    assert_int_equal(rows[0], 0);
    assert_int_equal(rows[2], 27);
    expert_trace_free(&t);
    test_free(many);
    close_case(&k);
}

static void what_is_no_trace_is_refused(void **state) {
    (void)state;
    trace_case k;
    open_case(&k);
    static const int32_t ids[] = {0, 1, 2, 3};
    write_steps(&k, 1, 4, 2, 2, ids);
    uint8_t good[64];
    FILE *f = fopen(k.path, "rb");
    const size_t n = fread(good, 1, sizeof good, f);
    fclose(f);
    assert_int_equal(n, 20 + 2 * 2 * 4);
    static const struct {
        size_t at;
        uint8_t with;
        const char *says;
    } cases[] = {{0, 'X', "no trace of routing"}, {7, '2', "another version"}, {8, 0, "no trace"}, {16, 9, "no trace"}, {12, 5, "of 1 layers of 5 experts, top 2; this model has 1 of 4"}, {20, 1, "no such layer"}, {22, 0, "no whole record"}, {22, 9, "no whole record"},
                 {24, 4, "no such expert"},       {26, 0, "twice"},            {30, 2, "no whole record"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {0};
        expert_trace t;
        uint8_t bad[64];
        memcpy(bad, good, n);
        bad[cases[i].at] = cases[i].with;
        f = fopen(k.path, "wb");
        assert_int_equal(fwrite(bad, 1, n, f), n);
        fclose(f);
        if (expert_trace_read(k.m, k.path, (expert_trace_shape){1, 4, 2}, &t, &err) == STATUS_OK) fail_msg("case %zu", i);
        assert_contains(err.text, cases[i].says);
    }
    for (size_t cut = 0; cut < n; cut++) {
        error err = {0};
        expert_trace t;
        f = fopen(k.path, "wb");
        assert_int_equal(fwrite(good, 1, cut, f), cut);
        fclose(f);
        if (cut == 28) continue; /* one whole record */
        assert_int_not_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, 4, 2}, &t, &err), STATUS_OK);
    }
    close_case(&k);
}

/* As many experts chosen as a file can claim: checked in time that grows with the file alone. */
static void the_widest_rows(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    expert_trace t;
    enum { N = 65535, ROWS = 64 };
    open_case(&k);
    int32_t *ids = test_malloc((size_t)N * ROWS * sizeof *ids);
    for (int i = 0; i < N * ROWS; i++) ids[i] = i % N;
    write_steps(&k, 1, N, N, ROWS, ids);
    alarm(60);
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, N, N}, &t, &err), STATUS_OK);
    assert_int_equal(t.n_rows, ROWS);
    expert_trace_free(&t);
    alarm(0);
    ids[N * ROWS - 1] = 0;
    write_steps(&k, 1, N, N, ROWS, ids);
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, N, N}, &t, &err), STATUS_FORMAT);
    assert_contains(err.text, "twice");
    test_free(ids);
    close_case(&k);
}

static void rows_come_again_in_order(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    static const int32_t ids[] = {0, 1, /**/ 4, 5, /**/ 2, 3, /**/ 6, 7, /**/ 1, 0, /**/ 5, 4};
    write_steps(&k, 2, 8, 2, 3, ids);
    expert_replay *r;
    assert_int_equal(expert_replay_create(k.m, k.path, 2, 9, 2, &r, &err), STATUS_INVALID);
    assert_contains(err.text, "2 layers of 8 experts, top 2; this model has 2 of 9");
    assert_int_equal(expert_replay_create(k.m, k.path, 2, 8, 2, &r, &err), STATUS_OK);
    int32_t got[8];
    expert_replay_take(r, 0, got, 2);
    static const int32_t first[] = {0, 1, 2, 3}, wrapped[] = {1, 0, 0, 1, 2, 3}, other[] = {4, 5};
    assert_memory_equal(got, first, sizeof first);
    expert_replay_take(r, 0, got, 3);
    assert_memory_equal(got, wrapped, sizeof wrapped);
    expert_replay_take(r, 1, got, 1);
    assert_memory_equal(got, other, sizeof other);
    expert_replay_destroy(r);
    close_case(&k);
}

/* a b c a d c, one at a time through two slots. LRU keeps a b | c b -> ... : hits none but the future's choice hits a and c. */
static void what_a_hand_finds(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    static const int32_t ids[] = {0, 1, 2, 0, 3, 2};
    write_steps(&k, 1, 4, 1, 6, ids);
    expert_trace t;
    expert_whatif w;
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, 4, 1}, &t, &err), STATUS_OK);
    assert_int_equal(expert_whatif_run(k.m, &t, EXPERT_POLICY_LRU, 2, &w, &err), STATUS_OK);
    assert_int_equal(w.hits * 100 + w.misses, 6); /* a b, c for a, a for b, d for c, c for a */
    assert_int_equal(expert_whatif_run(k.m, &t, EXPERT_WHATIF_BELADY, 2, &w, &err), STATUS_OK);
    assert_int_equal(w.hits * 100 + w.misses, 204); /* a b, c for b, a, d for a, c */
    for (int policy = EXPERT_WHATIF_BELADY; policy <= EXPERT_POLICY_BLEND; policy++) {
        assert_int_equal(expert_whatif_run(k.m, &t, policy, 4, &w, &err), STATUS_OK);
        assert_int_equal(w.hits * 100 + w.misses, 204);
        assert_int_equal(w.distinct, 4);
    }
    double overlap = -1;
    assert_int_equal(expert_whatif_overlap(&t, &overlap, &err), STATUS_OK);
    assert_true(overlap >= 0 && overlap <= 0);
    expert_trace_free(&t);
    close_case(&k);
}

typedef struct seen_waves {
    int32_t n[2], missing[2][16];
} seen_waves;

static void note_wave(void *ctx, int32_t walk, int32_t layer, int32_t n, int32_t n_missing) {
    seen_waves *s = ctx;
    assert_int_equal(layer, 0);
    assert_int_equal(n, 1);
    assert_in_range(walk, 0, 1);
    assert_in_range(s->n[walk], 0, 15);
    s->missing[walk][s->n[walk]++] = n_missing;
}

/* a b c a d c twice, by hand, for LRU: the second time begins with what the first one left. */
static void a_second_walk_is_warm(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    static const int32_t ids[] = {0, 1, 2, 0, 3, 2}, first[] = {1, 1, 1, 0, 1, 0}, second[] = {0, 1, 0, 0, 1, 0};
    write_steps(&k, 1, 4, 1, 6, ids);
    expert_trace t;
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, 4, 1}, &t, &err), STATUS_OK);
    static const uint64_t hits[5][2] = {{0, 0}, {0, 0}, {0, 0}, {2, 4}, {2, 6}}; /* by slots */
    for (int32_t slots = 2; slots <= 4; slots++) {
        expert_whatif w[2];
        seen_waves s = {0};
        assert_int_equal(expert_whatif_walks(k.m, &t, EXPERT_POLICY_LRU, slots, note_wave, &s, w, &err), STATUS_OK);
        for (int walk = 0; walk < 2; walk++) {
            assert_int_equal(w[walk].hits, hits[slots][walk]);
            assert_int_equal(w[walk].misses, 6 - hits[slots][walk]);
            assert_int_equal(w[walk].distinct, 4);
            assert_int_equal(s.n[walk], 6);
        }
        if (slots != 3) continue;
        for (int i = 0; i < 6; i++) {
            assert_int_equal(s.missing[0][i], first[i]);
            assert_int_equal(s.missing[1][i], second[i]);
        }
    }
    expert_trace_free(&t);
    close_case(&k);
}

/* a b a c c b with misses that the processor computes: a free slot is filled at once, that of another by what is used again. */
static void computed_by_hand(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    static const int32_t ids[] = {0, 1, 0, 2, 2, 1};
    write_steps(&k, 1, 4, 1, 6, ids);
    expert_trace t;
    expert_whatif_computed c;
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){1, 4, 1}, &t, &err), STATUS_OK);
    static const uint64_t want[][5] = {{2, 1, 1, 5, 4}, {2, 0, 0, 6, 0}, {4, 1, 3, 3, 3}}; /* slots, copies behind at most; hits, misses, behind */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(expert_whatif_compute(k.m, &t, EXPERT_POLICY_BLEND, (int32_t)want[i][0], (int32_t)want[i][1], &c, &err), STATUS_OK);
        assert_int_equal(c.hits, want[i][2]);
        assert_int_equal(c.misses, want[i][3]);
        assert_int_equal(c.behind, want[i][4]);
    }
    expert_trace_free(&t);
    close_case(&k);
}

/* On random traces no policy beats the one that knows the future, and every failing allocation is told. */
static void nobody_beats_the_future(void **state) {
    (void)state;
    trace_case k;
    error err = {0};
    open_case(&k);
    enum { STEPS = 200, LAYERS = 3, EXPERTS = 12 };
    static int32_t ids[STEPS * LAYERS * 2];
    uint64_t r = 9;
    for (int i = 0; i < STEPS * LAYERS; i++) {
        r = r * UINT64_C(6364136223846793005) + 1442695040888963407u;
        ids[2 * i] = (int32_t)((r >> 33) % EXPERTS * ((r >> 40) % EXPERTS) / EXPERTS); /* more often small */
        ids[2 * i + 1] = (ids[2 * i] + 1 + (int32_t)((r >> 50) % (EXPERTS - 1))) % EXPERTS;
    }
    write_steps(&k, LAYERS, EXPERTS, 2, STEPS, ids);
    expert_trace t;
    assert_int_equal(expert_trace_read(k.m, k.path, (expert_trace_shape){LAYERS, EXPERTS, 2}, &t, &err), STATUS_OK);
    for (int32_t slots = 2; slots <= LAYERS * EXPERTS; slots++) {
        expert_whatif best, w;
        assert_int_equal(expert_whatif_run(k.m, &t, EXPERT_WHATIF_BELADY, slots, &best, &err), STATUS_OK);
        assert_int_equal(best.hits + best.misses, STEPS * LAYERS * 2);
        for (int policy = 0; policy <= EXPERT_POLICY_BLEND; policy++) {
            assert_int_equal(expert_whatif_run(k.m, &t, policy, slots, &w, &err), STATUS_OK);
            assert_int_equal(w.hits + w.misses, best.hits + best.misses);
            assert_true(w.misses >= best.misses && best.misses >= w.distinct);
        }
    }
    int n_failed = 0;
    for (int policy = EXPERT_WHATIF_BELADY; policy <= 0; policy++) {
        for (uint64_t n = 0;; n++) {
            expert_whatif w;
            mem_fail_after(k.m, n);
            const status rc = expert_whatif_run(k.m, &t, policy, 5, &w, &err);
            mem_fail_off(k.m);
            if (rc == STATUS_OK && n > 1) break;
            n_failed++;
        }
    }
    assert_true(n_failed > 8);
    expert_trace_free(&t);
    close_case(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_written_is_read), cmocka_unit_test(what_is_no_trace_is_refused), cmocka_unit_test(the_widest_rows), cmocka_unit_test(rows_come_again_in_order), cmocka_unit_test(what_a_hand_finds), cmocka_unit_test(a_second_walk_is_warm), cmocka_unit_test(computed_by_hand),
                                       cmocka_unit_test(nobody_beats_the_future)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
