/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streamed experts give the bits of resident ones: every prompt of a fixture at several budgets from one wave to everything, 1 to 5 prompts together. And what goes wrong goes wrong for
 * those who were there: budgets below one wave, files cut short, an allocation refused.
 * Usage: check_experts MODEL [FIXTURE]: the fixture whose prompts are run, if it is not the model.
 */
#include "model/model_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"

static const char *fixture, *prompts_dir;

static int run_resident(void **state) {
    support_alone *a = calloc(1, sizeof *a); /* with resident experts */
    headrace_engine *e = support_load(fixture, "experts", "resident", "threads", "2", NULL);
    support_alone_run(a, e, prompts_dir);
    const headrace_stats st = support_stats(e);
    assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_RESIDENT);
    assert_true(st.expert_hits > 0 && st.expert_misses == 0 && st.experts_distinct <= st.experts_total);
    headrace_free(e);
    *state = a;
    return 0;
}

static int free_resident(void **state) {
    support_alone *a = *state;
    support_alone_free(a);
    free(a);
    return 0;
}

/* Slots of one wave, of one token, and of all; bytes of one. */
typedef struct sizes {
    uint64_t least, all, slot_bytes;
    bool one_layer; /* of experts: there is no next to read ahead for */
} sizes;

static sizes read_sizes(void) {
    sizes s = {0};
    headrace_engine *e = support_load(fixture, "experts", "stream", "host-experts", "min", NULL);
    support_run r = {.ids = (const int32_t[]){3}, .n_ids = 1, .want_logits = true};
    support_go(e, &r, 1);
    support_run_free(&r);
    const headrace_stats st = support_stats(e);
    s = (sizes){.least = st.expert_slots, .all = st.experts_total, .slot_bytes = st.expert_slot_bytes};
    int n_layers = 0;
    for (int32_t l = 0; l < e->model->moe->bank.n_layers; l++) n_layers += e->model->moe->bank.layers[l].n_experts > 0;
    s.one_layer = n_layers == 1;
    headrace_free(e);
    assert_true(s.least > 0 && s.least < s.all && s.slot_bytes > 0);
    return s;
}

static void budgets_of(const support_alone *a, const char *prefetch) {
    const sizes s = read_sizes();
    const bool off = strcmp(prefetch, "off") == 0;
    const uint64_t budgets[] = {s.least, s.least + 1, s.all / 4 > s.least ? s.all / 4 : s.least + 2, s.all / 2, s.all - 1, s.all};
    long compared = 0;
    uint64_t n_ahead = 0;
    for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
        char size[32];
        snprintf(size, sizeof size, "%llu", (unsigned long long)(budgets[b] * s.slot_bytes));
        const char *const as[] = {b == 0 ? "min" : size, budgets[b] == s.all ? "all" : size};
        headrace_engine *e = support_load(fixture, "experts", "stream", "host-experts", as[b == 0 ? 0 : 1], "threads", b % 2 ? "1" : "2", "max-batch-tokens", b % 3 ? "512" : "37", "prefix-cache", "false", "expert-prefetch", prefetch, NULL);
        for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n++) compared += support_same_bits(a, e, n - 1, n, n == 2 ? 1 : n == 3 ? 3 : 0);
        const headrace_stats st = support_stats(e);
        print_message("%s, prefetch %s: %llu slots: %llu hits, %llu misses, %llu evictions, %llu bytes, %llu of %llu distinct; %llu read ahead, %llu of them taken, %llu given up\n", as[b == 0 ? 0 : 1],
                      prefetch, (unsigned long long)st.expert_slots, (unsigned long long)st.expert_hits, (unsigned long long)st.expert_misses, (unsigned long long)st.expert_evictions,
                      (unsigned long long)st.expert_bytes_read, (unsigned long long)st.experts_distinct, (unsigned long long)st.experts_total, (unsigned long long)st.experts_prefetched,
                      (unsigned long long)st.experts_prefetch_used, (unsigned long long)st.experts_prefetch_wasted);
        assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_STREAM);
        assert_int_equal(st.expert_slots, budgets[b]);
        assert_int_equal(st.n_hot_allocations, 0);
        assert_int_equal(st.expert_failures, 0);
        assert_true(st.memory_peak_bytes > 0 && st.memory_peak_bytes <= st.memory_planned_bytes);
        /* an expert is read when it is missing, or ahead; what was read ahead is taken, given up, or waits */
        const uint64_t brought = st.expert_misses + st.experts_prefetch_used;
        assert_true(st.expert_misses > 0 && brought >= st.experts_distinct && st.expert_bytes_read > 0 && st.expert_reads >= brought);
        assert_true(st.experts_prefetched >= st.experts_prefetch_used + st.experts_prefetch_wasted);
        assert_true(st.expert_bytes_read * st.experts_prefetch_used == st.expert_prefetch_used * (st.expert_misses + st.experts_prefetched)); /* experts of a fixture are of one size */
        assert_true(off ? st.experts_prefetched == 0 : st.experts_prefetched > 0 || st.experts_prefetch_used == 0);
        if (budgets[b] < st.experts_distinct)
            assert_true(st.expert_evictions > 0 && brought > st.experts_distinct);
        else if (budgets[b] == s.all)
            assert_true(st.expert_evictions == 0 && brought == st.experts_distinct && st.expert_hits > 0);
        n_ahead += st.experts_prefetch_used;
        headrace_free(e);
    }
    assert_int_equal(compared, 6 * (1 + 2 + 3 + 4 + 5));
    assert_true((off || s.one_layer) == (n_ahead == 0));
}

static void every_budget(void **state) {
    budgets_of(*state, "off");
    budgets_of(*state, "on");
}

/* From a packed bank: one read an expert, the same bits; and with resident experts, which leave it alone. */
static void packed(void **state) {
    const support_alone *a = *state;
    const sizes s = read_sizes();
    char dir[] = "/tmp/headrace-bank-XXXXXX", path[64], size[32];
    headrace_config *c = NULL;
    headrace_error err = {0};
    headrace_pack_result made = {.size = sizeof made};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/bank", dir);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, &err), HEADRACE_OK);
    if (headrace_pack(c, path, NULL, NULL, &made, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    headrace_config_destroy(c);
    assert_int_equal(made.n_records, s.all);
    long compared = 0;
    uint64_t n_ahead = 0;
    for (int b = 0; b < 9; b++) { /* two budgets and resident; each way to read, with and without reading ahead */
        static const char *const ways[] = {"io_uring", "pread", "buffered"};
        const bool resident = b == 8, ahead = b < 6;
        /* a slot of a bank is whole pages: as many as make a third of the experts, or all */
        snprintf(size, sizeof size, "%llu", (unsigned long long)((s.all / 3 > s.least ? s.all / 3 : s.least) * ((s.slot_bytes + 4095) / 4096 * 4096)));
        headrace_engine *e = support_load(fixture, "experts", resident ? "resident" : "stream", resident ? "ctx" : "host-experts", resident ? "0" : b % 2 == 0 ? "min" : size, "expert-bank", path, "threads", "2",
                                          "expert-prefetch", ahead ? "on" : resident ? "auto" : "off", "expert-reader", resident ? "auto" : ways[b / 2 % 3], NULL);
        for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n += 2) compared += support_same_bits(a, e, n, n, 0);
        const headrace_stats st = support_stats(e);
        assert_true(resident ? st.expert_misses == 0 : st.expert_misses > 0 && st.expert_evictions > 0);
        if (!resident && !ahead) assert_int_equal(st.expert_reads, st.expert_misses);
        assert_true(ahead || st.experts_prefetched == 0);
        n_ahead += st.experts_prefetch_used;
        headrace_free(e);
    }
    assert_true(s.one_layer == (n_ahead == 0));
    assert_int_equal(compared, 9 * (1 + 3 + 5));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static headrace_status try_load(headrace_error *err, const char *experts, const char *host, const char *load) {
    headrace_config *c = NULL;
    headrace_engine *e = NULL;
    assert_int_equal(headrace_config_create(&c, err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, err), HEADRACE_OK);
    if (experts != NULL) assert_int_equal(headrace_config_set(c, "experts", experts, err), HEADRACE_OK);
    if (host != NULL) assert_int_equal(headrace_config_set(c, "host-experts", host, err), HEADRACE_OK);
    if (load != NULL) assert_int_equal(headrace_config_set(c, "load", load, err), HEADRACE_OK);
    const headrace_status rc = headrace_load(c, NULL, NULL, &e, err);
    headrace_config_destroy(c);
    headrace_free(e);
    return rc;
}

static void settings_that_cannot_be(void **state) {
    (void)state;
    const sizes s = read_sizes();
    headrace_error err = {0};
    char size[32], least[64];
    snprintf(size, sizeof size, "%llu", (unsigned long long)(s.least * s.slot_bytes - 1));
    snprintf(least, sizeof least, "the least is %llu bytes", (unsigned long long)(s.least * s.slot_bytes));
    assert_int_equal(try_load(&err, "stream", size, NULL), HEADRACE_DOES_NOT_FIT);
    if (strstr(err.text, least) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, least);
    assert_int_equal(try_load(&err, "stream", "999999G", NULL), HEADRACE_OK); /* clamped to all of them */
    assert_int_equal(try_load(&err, "resident", "min", NULL), HEADRACE_INVALID);
    assert_int_equal(try_load(&err, "stream", NULL, "map"), HEADRACE_INVALID);
    assert_int_equal(try_load(&err, "stream", "plenty", NULL), HEADRACE_INVALID);
    assert_int_equal(try_load(&err, NULL, "min", NULL), HEADRACE_OK);
    assert_int_equal(try_load(&err, "resident", NULL, "read"), HEADRACE_OK);
}

static uint64_t progress_done, progress_total;
static void on_progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    assert_true(done >= progress_done && done <= total);
    progress_done = done;
    progress_total = total;
}

/* Of a load that leaves the experts on the disk: to its end, which is not that of the file. */
static void progress_of_a_load(void **state) {
    (void)state;
    headrace_config *c = NULL;
    headrace_engine *e = NULL;
    headrace_error err = {0};
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, &err), HEADRACE_OK);
    uint64_t total[2], experts = 0;
    for (int i = 0; i < 2; i++) {
        progress_done = progress_total = 0;
        assert_int_equal(headrace_config_set(c, "experts", i == 0 ? "stream" : "resident", &err), HEADRACE_OK);
        assert_int_equal(headrace_config_set(c, "load", "read", &err), HEADRACE_OK);
        if (headrace_load(c, on_progress, NULL, &e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
        experts = e->model->moe->bank.total_bytes;
        headrace_free(e);
        assert_true(progress_done > 0);
        assert_int_equal(progress_done, progress_total);
        total[i] = progress_total;
    }
    headrace_config_destroy(c);
    assert_int_equal(total[1] - total[0], experts);
}

/* ---- faults ---- */

/* A folder of its own with a copy of the tensors, so that it can be damaged. */
static support_folder copied_fixture(char tensors[PATH_MAX]) {
    support_folder f = support_published(fixture);
    char from[PATH_MAX];
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    snprintf(tensors, PATH_MAX, "%s/model.safetensors", f.path);
    assert_int_equal(unlink(tensors), 0);
    FILE *in = fopen(from, "rb"), *out = fopen(tensors, "wb");
    assert_true(in != NULL && out != NULL);
    static char block[65536];
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;) assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
    return f;
}

static headrace_finish finish;
static char reason[HEADRACE_ERROR_TEXT_BYTES];
static void on_end(const headrace_event *ev) {
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    finish = ev->finish;
    snprintf(reason, sizeof reason, "%s", ev->error != NULL ? ev->error : "");
}

static void a_file_cut_short(void **state) {
    const support_alone *a = *state;
    char tensors[PATH_MAX];
    headrace_error err = {0};
    const support_folder f = copied_fixture(tensors);
    headrace_engine *e = support_load(f.path, "experts", "stream", "host-experts", "min", "prefix-cache", "false", NULL);
    (void)support_same_bits(a, e, 0, 1, 0);
    struct stat whole;
    assert_int_equal(stat(tensors, &whole), 0);
    assert_int_equal(truncate(tensors, 2000), 0);
    headrace_request q = HEADRACE_REQUEST_INIT;
    q.ids = a->prompts[0].forced;
    q.n_ids = (size_t)a->prompts[0].n_forced;
    q.want_logits = true;
    q.callback = on_end;
    assert_int_equal(headrace_submit(e, &q, NULL, &err), HEADRACE_OK);
    assert_int_equal(headrace_run(e, &err), HEADRACE_OK);
    assert_int_equal(finish, HEADRACE_FINISH_ERROR);
    if (strstr(reason, "expert ") == NULL || strstr(reason, "model.safetensors") == NULL || strstr(reason, "expected") == NULL || strstr(reason, "got") == NULL) fail_msg("\"%s\"", reason);
    /* the file is whole again, and says that it never changed: so are the answers, and nothing stayed leased */
    char from[PATH_MAX];
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    FILE *in = fopen(from, "rb"), *out = fopen(tensors, "rb+");
    static char block[65536];
    for (size_t k; (k = fread(block, 1, sizeof block, in)) > 0;) assert_int_equal(fwrite(block, 1, k, out), k);
    fclose(in);
    assert_int_equal(ftell(out), whole.st_size);
    fclose(out);
    const struct timespec times[2] = {whole.st_atim, whole.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, tensors, times, 0), 0);
    (void)support_same_bits(a, e, 0, 3, 0);
    assert_true(support_stats(e).expert_failures > 0);
    headrace_free(e);
    support_folder_remove(&f);
}

static int errors_logged;
static void on_log(void *user, log_level level, const char *line) {
    (void)user;
    if (level != LOG_LEVEL_ERROR) return;
    errors_logged++;
    fprintf(stderr, "logged: %s\n", line);
}

static void every_allocation_of_the_load(void **state) {
    (void)state;
    headrace_error herr = {0};
    headrace_config *c = NULL;
    assert_int_equal(headrace_config_create(&c, &herr), HEADRACE_OK);
    static const char *const settings[][2] = {{"model", NULL}, {"experts", "stream"}, {"host-experts", "min"}, {"threads", "1"}, {"ctx", "64"}, {"max-seqs", "2"}, {"max-batch-tokens", "16"}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        assert_int_equal(headrace_config_set(c, settings[i][0], i == 0 ? fixture : settings[i][1], &herr), HEADRACE_OK);
    }
    log_set(on_log, NULL, LOG_LEVEL_WARN);
    int n_failed = 0;
    uint64_t total = 0;
    for (uint64_t n = UINT64_MAX;;) { /* first without a failure, to count */
        mem *m = NULL;
        error err = {0};
        headrace_engine *e = NULL;
        assert_int_equal(mem_create(&m), STATUS_OK);
        mem_fail_after(m, n);
        const status rc = engine_load(m, c->c, NULL, NULL, &e, &err);
        if (rc == STATUS_OK) {
            mem_fail_off(m);
            if (total > 0) {
                headrace_free(e);
                break;
            }
            total = mem_alloc_count(m);
            headrace_free(e);
            n = 0;
            continue;
        }
        if (rc != STATUS_NO_MEMORY) fail_msg("allocation %llu: %s: %s", (unsigned long long)n, status_name(rc), err.text);
        n_failed++;
        n += n + 120 < total ? 1 + total / 100 : 1; /* of the many for headers some, then every one */
    }
    print_message("%d of %llu allocations refused\n", n_failed, (unsigned long long)total);
    assert_true(n_failed > 50);
    assert_int_equal(errors_logged, 0);
    headrace_config_destroy(c);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) return 2;
    fixture = argv[1];
    prompts_dir = argv[argc - 1];
    log_set(on_log, NULL, LOG_LEVEL_WARN);
    const struct CMUnitTest of_files[] = {
        cmocka_unit_test(every_budget), cmocka_unit_test(packed),
        cmocka_unit_test(settings_that_cannot_be),
        cmocka_unit_test(progress_of_a_load),
        cmocka_unit_test(every_allocation_of_the_load),
    };
    const struct CMUnitTest of_folders[] = {cmocka_unit_test(a_file_cut_short)};
    const int failed = cmocka_run_group_tests(of_files, run_resident, free_resident);
    if (failed != 0 || argc == 3) return failed;
    return cmocka_run_group_tests(of_folders, run_resident, free_resident);
}
