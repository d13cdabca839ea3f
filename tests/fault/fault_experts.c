/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streamed experts when reading goes wrong under a running engine: below the reader and with real files, as published and from a packed bank, by each way of reading, on the processor and by way of slots on a device. Several requests are in a
 * step together; those that need what cannot be read fail, with file, offset and reason; the others have the bits that they have alone, nothing stays held, and the same requests are right
 * once the trouble is over.
 * Usage: fault_experts FIXTURE
 */
#include "model/model_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "moe/expert_pack.h"
#include "support/posed_device.h"
#include "support/read_faults.h"

enum { REQUESTS = 6, FEW = 3, LONG = 100, MORE = 12, MAX_LAYERS = 64, MAX_EXPERTS = 64 };

static const char *fixture;
static atomic_int errors_logged;

/* Where experts are read from, and how; and whether they go on to slots of a device whose memory the host cannot touch. */
typedef struct setting {
    const char *reader; /* NULL: as published, where fixtures are read buffered */
    bool on_device;
} setting;
static const setting settings[] = {{NULL, false}, {"buffered", false}, {"pread", false}, {"io_uring", false}, {NULL, true}, {"io_uring", true}};
enum { SETTINGS = sizeof settings / sizeof settings[0], LATEST = 3 };
static bool have[SETTINGS];

static support_folder place;
static char *const folder = place.path;
static char tensors[PATH_MAX], bank[PATH_MAX]; /* a copy that may be damaged */
static int32_t ids[REQUESTS][FEW], long_ids[LONG];
static support_run alone[REQUESTS], alone_long;
static bool needs[REQUESTS][MAX_LAYERS][MAX_EXPERTS];
static int n_layers, n_experts;

static void on_log(void *user, log_level level, const char *line) {
    (void)user;
    if (level != LOG_LEVEL_ERROR) return;
    atomic_fetch_add(&errors_logged, 1);
    fprintf(stderr, "logged: %s\n", line);
}

/* ---- files ---- */

static void copy_file(const char *from, const char *to) {
    static char block[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    if (in == NULL || out == NULL) fail_msg("%s cannot be copied to %s", from, to);
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;) assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
    const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}}; /* so that any write is later by the coarsest clock */
    assert_int_equal(utimensat(AT_FDCWD, to, old, 0), 0);
}

static void fresh_tensors(void) {
    char from[PATH_MAX];
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    (void)unlink(tensors);
    copy_file(from, tensors);
}

static void flip(const char *path, uint64_t off) {
    char c;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, (off_t)off), 1);
    c ^= 16;
    assert_int_equal(pwrite(fd, &c, 1, (off_t)off), 1);
    close(fd);
}

static void fresh_bank(void) {
    headrace_config *c = NULL;
    headrace_error err = {0};
    headrace_pack_result made = {.size = sizeof made};
    (void)unlink(bank);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", folder, &err), HEADRACE_OK);
    if (headrace_pack(c, bank, NULL, NULL, &made, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    headrace_config_destroy(c);
}

/* ---- engines ---- */

static const char *prefetch = "on";

static headrace_engine *load(const setting *s, const char *slots) {
    const char *const device = s->on_device ? "cuda" : "cpu";
    const bool least = s->on_device;
    if (s->reader == NULL) return support_load(folder, "experts", "stream", "host-experts", slots, "threads", "2", "device", device, least ? "device-experts" : "ctx", least ? "min" : "0", "expert-prefetch", prefetch, NULL);
    return support_load(folder, "experts", "stream", "host-experts", slots, "threads", "2", "expert-bank", bank, "expert-reader", s->reader, "device", device, least ? "device-experts" : "ctx", least ? "min" : "0",
                        "expert-prefetch", prefetch, NULL);
}

static const char *file_of(const setting *s) { return s->reader == NULL ? "model.safetensors" : "bank"; }

static void finish(headrace_engine *e) {
    bool more;
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_false(more);
    const headrace_stats st = support_stats(e);
    assert_int_equal(st.kv_pages_used, 0);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.n_hot_allocations, 0);
    headrace_free(e); /* a lease that stayed, or memory, is logged as an error */
    assert_int_equal(atomic_exchange(&errors_logged, 0), 0);
}

static void go(headrace_engine *e, support_run *r, int n_ids) {
    for (int i = 0; i < REQUESTS; i++) r[i] = (support_run){.ids = ids[i], .n_ids = n_ids, .want_logits = true, .may_fail = true};
    support_go(e, r, REQUESTS);
}

static void check_right(const support_run *r, const support_run *want) {
    if (r->finish != HEADRACE_FINISH_LENGTH) fail_msg("a request ended with %d: %s", (int)r->finish, r->error);
    assert_int_equal(r->n_rows, want->n_rows);
    assert_memory_equal(r->logits, want->logits, (size_t)r->n_rows * (size_t)r->n_vocab * sizeof(float));
}

static void check_failed(const support_run *r, const char *file, const char *why) {
    assert_int_equal(r->finish, HEADRACE_FINISH_ERROR);
    assert_int_equal(r->status, HEADRACE_IO);
    const char *const parts[] = {"expert ", " of layer ", file, "offset ", why};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strstr(r->error, parts[i]) == NULL) fail_msg("\"%s\" does not say \"%s\"", r->error, parts[i]);
    }
}

/* All requests in a step together: those that fail are those of whom `fails` is true. Returns how many. */
static int run_mixed(headrace_engine *e, const bool *fails, const char *file, const char *why) {
    support_run r[REQUESTS];
    const uint64_t steps = support_stats(e).n_steps;
    int n = 0;
    go(e, r, FEW);
    assert_int_equal(support_stats(e).n_steps, steps + 1);
    for (int i = 0; i < REQUESTS; i++) {
        if (fails[i])
            check_failed(&r[i], file, why);
        else
            check_right(&r[i], &alone[i]);
        n += fails[i];
        support_run_free(&r[i]);
    }
    return n;
}

static const bool nobody[REQUESTS] = {false};

/* ---- who needs what ---- */

static bool (*asking)[MAX_EXPERTS];
static void on_routing(void *ctx, int layer, const int32_t *chosen, const float *weights, int32_t n_rows, int32_t k) {
    (void)ctx, (void)weights;
    for (int32_t i = 0; i < n_rows * k; i++) asking[layer][chosen[i]] = true;
}

static int setup(void **state) {
    (void)state;
    char text[] = "/tmp/headrace-faults-XXXXXX";
    log_set(on_log, NULL, LOG_LEVEL_WARN);
    const char *const base = mkdtemp(text);
    assert_non_null(base);
    snprintf(place.path, sizeof place.path, "%s", base);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", base);
    snprintf(bank, sizeof bank, "%s/bank", base);
    DIR *d = opendir(fixture);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char from[PATH_MAX], to[PATH_MAX];
        if (e->d_name[0] == '.' || strcmp(e->d_name, "model.safetensors") == 0) continue;
        snprintf(from, sizeof from, "%s/%s", fixture, e->d_name);
        snprintf(to, sizeof to, "%s/%s", base, e->d_name);
        copy_file(from, to);
    }
    closedir(d);
    fresh_tensors();
    fresh_bank();
    uint32_t x = 1;
    for (int i = 0; i < REQUESTS * FEW + LONG; i++) {
        x = x * 1664525u + 1013904223u;
        *(i < REQUESTS * FEW ? &ids[i / FEW][i % FEW] : &long_ids[i - REQUESTS * FEW]) = 3 + (int32_t)((x >> 8) % 200u);
    }
    headrace_engine *e = support_load(folder, "experts", "resident", "device", "cpu", "threads", "2", NULL);
    n_layers = (int)e->model->hp.n_layers;
    n_experts = (int)e->model->hp.n_experts;
    assert_true(n_layers <= MAX_LAYERS && n_experts <= MAX_EXPERTS);
    e->model->opt.observe_routing = on_routing;
    for (int i = 0; i < REQUESTS; i++) {
        asking = needs[i];
        alone[i] = (support_run){.ids = ids[i], .n_ids = FEW, .want_logits = true};
        support_go(e, &alone[i], 1);
    }
    static bool ignored[MAX_LAYERS][MAX_EXPERTS];
    asking = ignored;
    alone_long = (support_run){.ids = long_ids, .n_ids = LONG, .max_tokens = MORE};
    support_go(e, &alone_long, 1);
    headrace_free(e);
    for (int i = 0; i < SETTINGS; i++) {
        headrace_config *c = NULL;
        headrace_error err = {0};
        assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
        const char *const keys[][2] = {{"model", folder}, {"experts", "stream"}, {"device", settings[i].on_device ? "cuda" : "cpu"}, {"expert-bank", bank}, {"expert-reader", settings[i].reader}};
        for (size_t k = 0; k < (settings[i].reader == NULL ? 3 : 5); k++) assert_int_equal(headrace_config_set(c, keys[k][0], keys[k][1], &err), HEADRACE_OK);
        have[i] = headrace_load(c, NULL, NULL, &e, &err) == HEADRACE_OK;
        headrace_config_destroy(c);
        if (have[i])
            headrace_free(e);
        else
            print_message("left out: %s: %s\n", settings[i].reader, err.text);
    }
    assert_true(have[0] && have[1] && have[2] && have[4]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < REQUESTS; i++) support_run_free(&alone[i]);
    support_run_free(&alone_long);
    support_folder_remove(&place);
    return 0;
}

/* The expert that about half of the requests need, and who does. */
typedef struct victim {
    int layer, expert;
    bool fails[REQUESTS];
    uint64_t off, n_bytes; /* of one part as published, or of the record */
} victim;

static victim choose(const headrace_engine *e, const setting *s) {
    const expert_bank *b = &e->model->moe->bank;
    victim v = {.layer = -1};
    int best = REQUESTS;
    for (int l = 0; l < n_layers; l++) {
        for (int x = 0; x < b->layers[l].n_experts; x++) {
            int n = 0;
            for (int i = 0; i < REQUESTS; i++) n += needs[i][l][x];
            if (n == 0 || n == REQUESTS || abs(2 * n - REQUESTS) >= best) continue;
            best = abs(2 * n - REQUESTS);
            v.layer = l;
            v.expert = x;
        }
    }
    if (v.layer < 0) fail_msg("no expert that some need and some do not");
    for (int i = 0; i < REQUESTS; i++) v.fails[i] = needs[i][v.layer][v.expert];
    const expert_layer *el = &b->layers[v.layer];
    const expert_span *span = &el->spans[v.expert * el->n_parts];
    v.off = span->tensor->off + span->off;
    v.n_bytes = el->parts[0].n_bytes;
    if (s->reader != NULL) {
        v.off = b->packed[el->first_packed + (uint64_t)v.expert].off;
        v.n_bytes = b->packed[el->first_packed + (uint64_t)v.expert].n_bytes;
    }
    return v;
}

/* ---- faults below the reader ---- */

static void a_read_error_fails_those_who_need_it(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        headrace_engine *e = load(&settings[k], "min");
        const victim v = choose(e, &settings[k]);
        for (int round = 0; round < 3; round++) {
            fault.fail_begin = v.off + v.n_bytes / 2;
            fault.fail_end = fault.fail_begin + 1;
            const int n = run_mixed(e, v.fails, file_of(&settings[k]), "Input/output error");
            assert_true(n > 0 && n < REQUESTS);
            assert_int_equal(support_stats(e).expert_failures, round + 1);
            read_faults_reset();
            (void)run_mixed(e, nobody, "", "");
        }
        finish(e);
    }
}

/* Pages of a sequence that failed are nobody's prefix. */
static void a_failed_prompt_leaves_no_prefix(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        headrace_engine *e = load(&settings[k], "min");
        const victim v = choose(e, &settings[k]);
        int spared = 0;
        while (v.fails[spared]) spared++;
        fault.fail_begin = v.off;
        fault.fail_end = v.off + 1;
        support_run r[2] = {{.ids = long_ids, .n_ids = LONG, .max_tokens = MORE, .may_fail = true}, {.ids = ids[spared], .n_ids = FEW, .want_logits = true}};
        support_go(e, r, 2);
        check_failed(&r[0], file_of(&settings[k]), "Input/output error");
        check_right(&r[1], &alone[spared]);
        read_faults_reset();
        for (int round = 0; round < 2; round++) { /* the second finds the pages of the first */
            support_run again = {.ids = long_ids, .n_ids = LONG, .max_tokens = MORE};
            support_go(e, &again, 1);
            assert_int_equal(again.n_tokens, alone_long.n_tokens);
            assert_memory_equal(again.tokens, alone_long.tokens, (size_t)again.n_tokens * sizeof *again.tokens);
            if (round == 0) assert_int_equal(again.usage.prefix_hit_tokens, 0);
            if (round == 1) assert_true(again.usage.prefix_hit_tokens > 0);
            support_run_free(&again);
        }
        support_run_free(&r[0]);
        support_run_free(&r[1]);
        finish(e);
    }
}

static void short_and_interrupted_reads_go_on(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        headrace_engine *e = load(&settings[k], "min");
        read_faults_reset();
        fault.short_every = 2;
        fault.interrupt_every = 3;
        for (int round = 0; round < 3; round++) (void)run_mixed(e, nobody, "", "");
        assert_true(fault.n > 20);
        read_faults_reset();
        finish(e);
    }
}

/* One read five seconds late: everybody waits, nobody fails, and the figures say what was waited for. */
static void a_read_five_seconds_late(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        const int ms = k == LATEST ? 5000 : 300;
        headrace_engine *e = load(&settings[k], "min");
        read_faults_reset();
        fault.late_ms = ms;
        (void)run_mixed(e, nobody, "", "");
        assert_int_equal(fault.n_late, 1);
        assert_true(support_stats(e).expert_stall_ns >= (uint64_t)ms * 900000u);
        read_faults_reset();
        finish(e);
    }
}

/* ---- cancels ---- */

static struct {
    headrace_engine *e;
    headrace_id id;
    atomic_int left; /* reads until then; -1: not armed */
    atomic_int n_cancelled;
} canceller;

static void cancel_at_read(void *ctx) {
    (void)ctx;
    if (atomic_fetch_sub(&canceller.left, 1) != 0) return;
    if (headrace_cancel(canceller.e, canceller.id) == HEADRACE_OK) atomic_fetch_add(&canceller.n_cancelled, 1);
}

static void on_answer(const headrace_event *ev) {
    support_run *r = ev->user;
    if (ev->kind == HEADRACE_EVENT_TOKEN) {
        r->n_tokens++;
        if (r->n_tokens == 2 && r->max_tokens > 2) atomic_store(&canceller.left, r->chunk); /* in the midst of its generation */
    }
    if (ev->kind == HEADRACE_EVENT_DONE) r->finish = ev->finish;
}

/* While a read is under way, in a prompt and between tokens: that request ends, the other has its bits, and the same prompt is right afterwards. */
static void cancel_during_a_read(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        headrace_engine *e = load(&settings[k], "min");
        for (int decode = 0; decode < 2; decode++) {
            for (int at = 0; at < 12; at += 4) {
                headrace_error err = {0};
                support_run mine = {.max_tokens = decode ? 200 : 1, .chunk = at}, other = {.ids = ids[0], .n_ids = FEW, .want_logits = true};
                headrace_request q = HEADRACE_REQUEST_INIT;
                q.ids = long_ids;
                q.n_ids = decode ? FEW : LONG;
                q.max_tokens = mine.max_tokens;
                q.chunk = decode ? 0 : 8; /* more steps of the prompt would follow */
                q.ignore_end = q.no_prefix_cache = true;
                q.callback = on_answer;
                q.user = &mine;
                canceller.e = e;
                atomic_store(&canceller.n_cancelled, 0);
                atomic_store(&canceller.left, decode ? -1 : at);
                fault.on_read = cancel_at_read;
                assert_int_equal(headrace_submit(e, &q, &canceller.id, &err), HEADRACE_OK);
                support_go(e, &other, 1);
                read_faults_reset();
                assert_int_equal(atomic_load(&canceller.n_cancelled), 1);
                assert_int_equal(mine.finish, HEADRACE_FINISH_CANCELLED);
                assert_true(decode ? mine.n_tokens >= 2 && mine.n_tokens < 200 : mine.n_tokens == 0);
                check_right(&other, &alone[0]);
                support_run_free(&other);
                assert_int_equal(support_stats(e).kv_pages_used, 0);
            }
        }
        (void)run_mixed(e, nobody, "", "");
        finish(e);
    }
}

/* ---- real files ---- */

static void a_flipped_bit(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k] || settings[k].reader == NULL) continue;
        headrace_engine *e = load(&settings[k], "min");
        const victim v = choose(e, &settings[k]);
        flip(bank, v.off + v.n_bytes - 1);
        const int n = run_mixed(e, v.fails, "bank", "is damaged: expected checksum");
        assert_true(n > 0 && n < REQUESTS);
        flip(bank, v.off + v.n_bytes - 1);
        (void)run_mixed(e, nobody, "", "");
        finish(e);
    }
}

/* Where the bank is cut: behind all that some request needs, and in front of something that another does. */
static uint64_t choose_cut(const headrace_engine *e, bool *fails) {
    const expert_bank *b = &e->model->moe->bank;
    uint64_t end[REQUESTS] = {0}, least = UINT64_MAX;
    for (int i = 0; i < REQUESTS; i++) {
        for (int l = 0; l < n_layers; l++) {
            for (int x = 0; x < b->layers[l].n_experts; x++) {
                const expert_pack_entry *r = &b->packed[b->layers[l].first_packed + (uint64_t)x];
                if (needs[i][l][x] && r->off + r->n_bytes > end[i]) end[i] = r->off + r->n_bytes;
            }
        }
        if (end[i] < least) least = end[i];
    }
    for (int i = 0; i < REQUESTS; i++) fails[i] = end[i] > least;
    return least;
}

static void a_bank_cut_short(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k] || settings[k].reader == NULL) continue;
        headrace_engine *e = load(&settings[k], "min");
        bool fails[REQUESTS];
        const uint64_t cut = choose_cut(e, fails);
        assert_int_equal(truncate(bank, (off_t)cut), 0);
        const int n = run_mixed(e, fails, "bank", "the file ends there");
        assert_true(n > 0 && n < REQUESTS);
        finish(e);
        headrace_config *c = NULL; /* and it does not load any more */
        headrace_error err = {0};
        assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
        const char *const keys[][2] = {{"model", folder}, {"experts", "stream"}, {"expert-bank", bank}};
        for (size_t i = 0; i < 3; i++) assert_int_equal(headrace_config_set(c, keys[i][0], keys[i][1], &err), HEADRACE_OK);
        assert_int_equal(headrace_load(c, NULL, NULL, &e, &err), HEADRACE_FORMAT);
        assert_non_null(strstr(err.text, "bank"));
        headrace_config_destroy(c);
        fresh_bank();
    }
}

/*
 * A checkpoint that somebody writes to while it runs, in four ways. Published files have no checksums: what is read afterwards may be anything, so whoever needs it fails by name; experts that are
 * held are what they were.
 */
static void a_checkpoint_written_to(void **state) {
    (void)state;
    prefetch = "off"; /* what was read ahead before is still right, and is held */
    for (int how = 0; how < 4; how++) {
        support_run r[REQUESTS], first = {.ids = ids[0], .n_ids = FEW, .want_logits = true};
        headrace_engine *e = load(&settings[0], "all");
        support_go(e, &first, 1);
        check_right(&first, &alone[0]);
        support_run_free(&first);
        struct stat st;
        assert_int_equal(stat(tensors, &st), 0);
        const victim v = choose(e, &settings[0]);
        if (how == 0) flip(tensors, v.off);
        if (how == 1) assert_int_equal(truncate(tensors, st.st_size / 2), 0);
        if (how == 2) assert_int_equal(truncate(tensors, st.st_size + 4096), 0);
        if (how == 3) { /* as cp does: emptied, then filled with other numbers */
            assert_int_equal(truncate(tensors, 0), 0);
            assert_int_equal(truncate(tensors, st.st_size), 0);
        }
        go(e, r, FEW);
        int n = 0;
        for (int i = 0; i < REQUESTS; i++) {
            bool held = true; /* by what request 0 has read */
            for (int l = 0; l < n_layers; l++) {
                for (int x = 0; x < n_experts; x++) held = held && (!needs[i][l][x] || needs[0][l][x]);
            }
            n += !held;
            if (held)
                check_right(&r[i], &alone[i]);
            else
                check_failed(&r[i], "model.safetensors", strstr(r[i].error, "ends there") != NULL && how == 1 ? "expected" : "was written to after it was opened");
            support_run_free(&r[i]);
        }
        assert_true(n > 0);
        finish(e);
        fresh_tensors();
    }
    prefetch = "on";
}

/* Another file under the same name, as a download that ends does it: the open one goes on. */
static void another_file_under_the_name(void **state) {
    (void)state;
    char old[PATH_MAX + 8];
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        const char *path = settings[k].reader == NULL ? tensors : bank;
        headrace_engine *e = load(&settings[k], "min");
        snprintf(old, sizeof old, "%s.new", path);
        copy_file(path, old);
        struct stat st;
        assert_int_equal(stat(old, &st), 0);
        for (off_t at = st.st_size / 2; at < st.st_size; at += 64) flip(old, (uint64_t)at);
        assert_int_equal(rename(old, path), 0);
        for (int round = 0; round < 2; round++) (void)run_mixed(e, nobody, "", "");
        assert_true(support_stats(e).expert_evictions > 0);
        finish(e);
        if (settings[k].reader == NULL)
            fresh_tensors();
        else
            fresh_bank();
    }
}

/* Experts in the mapping itself: numbers that change under it are used by nobody. */
static void a_mapped_checkpoint_written_to(void **state) {
    (void)state;
    support_run r[REQUESTS];
    headrace_engine *e = support_load(folder, "experts", "resident", "load", "map", "device", "cpu", "threads", "2", NULL);
    const victim v = choose(e, &settings[0]);
    (void)run_mixed(e, nobody, "", "");
    flip(tensors, v.off);
    go(e, r, FEW);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(r[i].finish, HEADRACE_FINISH_ERROR);
        if (strstr(r[i].error, "changed while its weights were mapped") == NULL) fail_msg("\"%s\"", r[i].error);
        support_run_free(&r[i]);
    }
    finish(e);
    fresh_tensors();
}

/* Nothing of the checkpoint or the bank is in the address space of a process that streams. */
static void nothing_is_mapped(void **state) {
    (void)state;
    for (int k = -1; k < SETTINGS; k++) {
        if (k >= 0 && !have[k]) continue;
        char line[PATH_MAX + 256];
        int n = 0;
        headrace_engine *e = k >= 0 ? load(&settings[k], "min") : support_load(folder, "experts", "resident", "load", "map", "device", "cpu", NULL);
        (void)run_mixed(e, nobody, "", "");
        FILE *f = fopen("/proc/self/maps", "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f) != NULL) n += strstr(line, folder) != NULL;
        fclose(f);
        assert_int_equal(n, k >= 0 ? 0 : 1); /* the resident one is seen by this way of looking */
        finish(e);
    }
}

/* Of the files that hold experts, a load reads headers and dense weights. */
static void no_expert_is_read_at_load(void **state) {
    (void)state;
    for (int k = 0; k < SETTINGS; k++) {
        if (!have[k]) continue;
        read_faults_reset();
        headrace_engine *e = load(&settings[k], "all");
        assert_true(fault.n_reads > 0);
        const int n_reads = fault.n_reads;
        const victim v = choose(e, &settings[k]);
        const headrace_stats before = support_stats(e);
        assert_int_equal(before.expert_reads + before.expert_bytes_read + before.expert_misses, 0);
        (void)run_mixed(e, nobody, "", "");
        assert_true(fault.n_reads > n_reads && support_stats(e).expert_reads > 0);
        finish(e);
        if (settings[k].reader != NULL) continue; /* faults are at places of any file */
        fault.fail_begin = v.off; /* the same load, where an expert cannot be read */
        fault.fail_end = v.off + v.n_bytes;
        e = load(&settings[k], "all");
        (void)run_mixed(e, v.fails, file_of(&settings[k]), "Input/output error");
        read_faults_reset();
        finish(e);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    fixture = argv[1];
    (void)posed_add(VT_DEVICE_CUDA);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_error_fails_those_who_need_it),
        cmocka_unit_test(a_failed_prompt_leaves_no_prefix),
        cmocka_unit_test(short_and_interrupted_reads_go_on),
        cmocka_unit_test(a_read_five_seconds_late),
        cmocka_unit_test(cancel_during_a_read),
        cmocka_unit_test(a_flipped_bit),
        cmocka_unit_test(a_bank_cut_short),
        cmocka_unit_test(a_checkpoint_written_to),
        cmocka_unit_test(another_file_under_the_name),
        cmocka_unit_test(a_mapped_checkpoint_written_to),
        cmocka_unit_test(nothing_is_mapped),
        cmocka_unit_test(no_expert_is_read_at_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
