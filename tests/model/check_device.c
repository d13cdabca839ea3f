/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole model on a device whose memory the host cannot touch (support/posed_device.h): dense weights, pages, states and experts there, resident and streamed through both tiers, give the
 * bits of the processor. What cannot run there is refused with every missing row, or passed over, before anything is uploaded. Whatever fails fails the requests that were there, and no more.
 * Usage: check_device FIXTURE bits|rows|pinned|faults, check_device FIXTURE two FIXTURE
 */
#include "model/check_device.h"

#include "base/log.h"
#include "model/block_moe.h"

const char *fixture;
static const char *other_fixture;
posed_gpu *gpu;

int warnings_logged;
char warning[4096];
static int errors_logged;
static void on_log(void *user, log_level level, const char *line) {
    (void)user;
    if (level == LOG_LEVEL_ERROR) {
        errors_logged++;
        fprintf(stderr, "logged: %s\n", line);
    }
    if (level != LOG_LEVEL_WARN) return;
    warnings_logged++;
    snprintf(warning, sizeof warning, "%s", line);
}

headrace_model_info info_of(headrace_engine *e) {
    headrace_model_info i = {.size = sizeof i};
    assert_int_equal(headrace_get_model_info(e, &i), HEADRACE_OK);
    return i;
}

int32_t bank_layers(const headrace_engine *e) { return e->model->moe->bank.n_layers; }

static int run_reference(void **state) {
    reference *a = calloc(1, sizeof *a);
    headrace_engine *e = support_load(fixture, "device", "cpu", "threads", "2", NULL);
    support_alone_run(&a->alone, e, fixture);
    const headrace_stats st = support_stats(e);
    const expert_bank *bank = &e->model->moe->bank;
    a->experts = st.experts_tier != HEADRACE_EXPERTS_NONE;
    a->all = st.experts_total;
    a->slot_bytes = bank->stream_slot_bytes;
    a->least = (uint64_t)bank->max_top_k;
    for (int32_t l = 0; l < bank->n_layers; l++) a->moe_layers += bank->layers[l].n_experts > 0;
    headrace_free(e);
    e = support_load(fixture, "device", "cuda", NULL); /* which goes by tables where the processor goes expert by expert */
    a->n_needs = e->model->recorder.n;
    memcpy(a->needs, e->model->recorder.needs, (size_t)a->n_needs * sizeof *a->needs);
    for (int32_t l = 0; a->experts && l < bank_layers(e); l++) a->grouped += e->model->moe->parts[l].grouped;
    headrace_free(e);
    *state = a;
    return 0;
}

static int free_reference(void **state) {
    reference *a = *state;
    support_alone_free(&a->alone);
    free(a);
    return 0;
}

static int all_batches(const reference *a, headrace_engine *e) {
    int compared = 0;
    for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n++) compared += support_same_bits(&a->alone, e, n - 1, n, n == 2 ? 1 : n == 3 ? 3 : 0);
    return compared;
}

void nothing_left(void) {
    assert_null(gpu->wrong);
    assert_int_equal(gpu->n.live_allocs, 0);
    assert_int_equal(gpu->n.live_fences, 0);
    assert_int_equal(gpu->n.live_queues, 0);
    assert_int_equal(gpu->n.live_pinned, 0);
    assert_int_equal(gpu->n.live_graphs, 0);
    assert_int_equal(gpu->n.open, 0);
    assert_int_equal(errors_logged, 0);
}

headrace_status try_load(headrace_engine **out, headrace_error *err, const char *const *settings) {
    headrace_config *c = NULL;
    *out = NULL;
    assert_int_equal(headrace_config_create(&c, err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, err), HEADRACE_OK);
    for (; settings[0] != NULL; settings += 2) {
        if (headrace_config_set(c, settings[0], settings[1], err) != HEADRACE_OK) fail_msg("%s", err->text);
    }
    const headrace_status rc = headrace_load(c, NULL, NULL, out, err);
    headrace_config_destroy(c);
    return rc;
}

/* ---- bits ---- */

/* Whether some layer has work that needs nothing of its experts. */
static bool has_beside(const headrace_engine *e) {
    bool found = false;
    for (int32_t l = 0; e->model->moe->any && l < bank_layers(e); l++) {
        found |= e->model->moe->bank.layers[l].n_experts > 0 && (e->model->arch->dense_beside_experts || model_weight(e->model, W_SHARED_GATE, l)->n_dims != 0);
    }
    return found;
}

static void resident(void **state) {
    const reference *a = *state;
    int compared = 0;
    for (posed_time t = POSED_LATE; t <= POSED_MIXED; t++) {
        posed_clear(gpu);
        gpu->time = t;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", t == POSED_SOON ? "1" : "2", "prefix-cache", t == POSED_LATE ? "true" : "false", "max-batch-tokens", t == POSED_MIXED ? "37" : "512", NULL);
        assert_true(gpu->n.uploads > 0 && gpu->n.kernels == 0);
        assert_int_equal(gpu->n.downloads, 0);
        const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences, syncs = gpu->n.syncs, steps = support_stats(e).n_steps;
        compared += all_batches(a, e);
        const headrace_stats st = support_stats(e);
        assert_int_equal(gpu->n.allocs, allocs); /* nothing after warm-up */
        assert_int_equal(gpu->n.fences, fences);
        assert_int_equal(st.n_hot_allocations, 0);
        assert_true(gpu->n.kernels > 0);
        assert_int_equal(gpu->n.branches > 0, has_beside(e)); /* which there come last: they share no memory with what is beside them */
        /* none in a layer: resident experts go by tables; one for the step, one for each head */
        assert_int_equal(a->grouped, a->moe_layers);
        assert_true(gpu->n.syncs - syncs <= st.n_steps - steps + gpu->n.downloads);
        if (a->experts) {
            assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_RESIDENT);
            assert_int_equal(st.expert_hits + st.expert_misses, 0); /* nobody asked the store */
        }
        assert_string_equal(info_of(e).device_type, "cuda");
        assert_true(info_of(e).device_bytes > 0);
        headrace_free(e);
        nothing_left();
    }
    assert_int_equal(compared, 3 * 15);
}

/* Slots that were filled at the load are found filled; what the device has in use, as it says itself, is within the plan; its speed can be asked between steps and leaves no trace. */
static void warmed(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    for (int k = 0; k < 2; k++) {
        char host[32];
        snprintf(host, sizeof host, "%llu", (unsigned long long)((a->all - 1) * a->slot_bytes));
        posed_clear(gpu);
        gpu->exact = true;
        gpu->queue_bytes = gpu->alloc_unit = 1 << 20;
        gpu->others = 1 << 18;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", "2", "experts", "stream", "device-experts", "min", "host-experts", k == 0 ? "all" : host, "warm-experts", "true", NULL);
        expert_counters c;
        e->experts_below->counters(e->experts_below, &c);
        const uint64_t read = c.bytes_read;
        assert_int_equal(c.misses, k == 0 ? a->all : a->all - 1);
        assert_int_equal(gpu->n.kernels, 0);
        headrace_device_speed speed = {.size = sizeof speed};
        headrace_error err = {0};
        assert_int_equal(headrace_measure_device(e, &speed, &err), HEADRACE_OK);
        assert_true(speed.read_bytes_per_s > 0 && speed.upload_bytes_per_s > 0);
        assert_int_equal(all_batches(a, e), 15);
        const headrace_stats st = support_stats(e);
        if (k == 0) assert_int_equal(st.expert_bytes_read, read);
        assert_true(st.expert_bytes_read - read <= 15 * 64 * a->slot_bytes);
        assert_int_equal(st.device_open_bytes, 1 << 18);
        assert_in_range(st.device_peak_bytes, info_of(e).device_bytes / 3, info_of(e).device_bytes);
        headrace_free(e);
        gpu->exact = false;
        gpu->queue_bytes = gpu->alloc_unit = gpu->others = 0;
        nothing_left();
    }
    headrace_engine *e = support_load(fixture, "device", "cpu", NULL);
    headrace_device_speed speed = {.size = sizeof speed};
    headrace_error err = {0};
    assert_int_equal(headrace_measure_device(e, &speed, &err), HEADRACE_UNSUPPORTED);
    headrace_free(e);
}

/* Whatever is missing, the host waits once in a layer. */
static void streamed(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    const uint64_t budgets[] = {a->least, a->least + 1, a->all / 2, a->all};
    int n_both = 0;
    uint64_t n_ahead = 0, n_copied_ahead = 0;
    for (int d = 0; d < 4; d++) {
        for (int h = 0; h < 4; h += d % 2 == 0 ? 1 : 3) {
            char device[32], host[32];
            snprintf(device, sizeof device, "%llu", (unsigned long long)(budgets[d] * a->slot_bytes));
            snprintf(host, sizeof host, "%llu", (unsigned long long)(budgets[h] * a->slot_bytes));
            posed_clear(gpu);
            gpu->time = (posed_time)((d + h) % 3);
            headrace_engine *e = support_load(fixture, "device", "cuda", "experts", "stream", "device-experts", d == 0 ? "min" : d == 3 ? "all" : device, "host-experts", h == 0 ? "min" : h == 3 ? "all" : host, "threads",
                                              "2", "prefix-cache", "false", "max-batch-tokens", (d + h) % 2 ? "37" : "512", "expert-prefetch", (d / 2 + h) % 2 ? "off" : "on", NULL);
            const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences, syncs = gpu->n.syncs, before = support_stats(e).n_steps;
            assert_int_equal(all_batches(a, e), 15);
            const headrace_stats st = support_stats(e);
            const uint64_t waits = gpu->n.syncs - syncs, n_steps = st.n_steps - before;
            if ((d + h) % 2) assert_int_equal(waits, n_steps * (a->moe_layers + 1)); /* one in a layer, for its router, and one for the step */
            assert_true(waits <= n_steps * (a->moe_layers + 1) + n_steps / 4);    /* and for heads of more rows than come with a step */
            assert_int_equal(gpu->n.allocs, allocs);
            assert_int_equal(gpu->n.fences, fences);
            assert_int_equal(st.n_hot_allocations, 0);
            assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_STREAM);
            assert_int_equal(st.device_expert_slots, budgets[d]);
            assert_int_equal(st.expert_slots, budgets[h]);
            assert_int_equal(st.expert_failures, 0);
            assert_int_equal(st.expert_hits + st.expert_misses, st.device_expert_misses + st.device_experts_ahead); /* the host is asked for what the device lacks, or may come to */
            assert_true(st.device_expert_misses + st.device_experts_ahead >= st.experts_distinct && st.device_expert_bytes > 0);
            assert_true((d / 2 + h) % 2 == 0 || st.device_experts_ahead == 0);
            n_copied_ahead += st.device_experts_ahead_used;
            const uint64_t brought = st.expert_misses + st.experts_prefetch_used; /* to the host: missing, or read ahead */
            const bool device_full = budgets[d] < st.experts_distinct, host_full = budgets[h] < st.experts_distinct;
            if (device_full) assert_true(st.device_expert_evictions > 0 && st.device_expert_misses + st.device_experts_ahead > st.experts_distinct);
            if (device_full && host_full) {
                assert_true(st.expert_evictions > 0 && brought > st.experts_distinct);
                n_both++;
            }
            if (budgets[d] == a->all) assert_true(st.device_expert_evictions == 0 && st.device_expert_hits > 0);
            if (budgets[h] == a->all) assert_int_equal(brought, st.experts_distinct);
            assert_true((d / 2 + h) % 2 == 0 || st.experts_prefetched == 0);
            n_ahead += st.experts_prefetch_used;
            headrace_free(e);
            nothing_left();
        }
    }
    assert_true(n_both > 0);
    assert_true((a->moe_layers == 1) == (n_ahead == 0));
    assert_true((a->moe_layers == 1) == (n_copied_ahead == 0));
}

/*
 * What the device lacks is computed by the processor, whose kernels are those of a posed device too, so that the bits are the same: no expert is copied but behind, where slots are free or worth
 * less, and what was copied behind is found. With auto each miss is either computed or copied.
 */
static void missed(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    const uint64_t budgets[] = {a->least, a->all / 2, a->all};
    uint64_t n_behind = 0, n_copied = 0;
    for (int i = 0; i < 12; i++) {
        const uint64_t d = budgets[i % 3], h = budgets[i / 3 % 2 * 2];
        const bool measured = i >= 6;
        char device[32], host[32];
        snprintf(device, sizeof device, "%llu", (unsigned long long)(d * a->slot_bytes));
        snprintf(host, sizeof host, "%llu", (unsigned long long)(h * a->slot_bytes));
        posed_clear(gpu);
        gpu->time = (posed_time)(i % 3);
        headrace_engine *e = support_load(fixture, "device", "cuda", "experts", "stream", "device-experts", device, "host-experts", host, "miss", measured ? "auto" : "cpu", "threads", "2", "prefix-cache", "false",
                                          "max-batch-tokens", i % 2 ? "37" : "512", "expert-prefetch", i / 2 % 2 ? "off" : "on", NULL);
        const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences;
        assert_int_equal(all_batches(a, e), 15);
        assert_int_equal(all_batches(a, e), 15);
        const headrace_stats st = support_stats(e);
        assert_int_equal(gpu->n.allocs, allocs);
        assert_int_equal(gpu->n.fences, fences);
        assert_int_equal(st.n_hot_allocations, 0);
        assert_int_equal(st.expert_failures, 0);
        assert_int_equal(st.expert_hits + st.expert_misses, st.device_expert_misses);
        assert_int_equal(measured, st.miss_copy_bytes_per_s > 0 && st.miss_cpu_bytes_per_s > 0);
        const uint64_t each = st.device_experts_on_cpu > 0 ? st.device_expert_bytes_on_cpu / st.device_experts_on_cpu : 0;
        if (!measured) {
            assert_int_equal(st.device_experts_on_cpu, st.device_expert_misses);
            assert_int_equal(st.device_expert_bytes, st.device_experts_behind * each);
            assert_true(st.device_experts_behind >= d || d == a->all); /* slots that were free first */
            if (d == a->all) assert_true(st.device_expert_hits > 0 && st.device_experts_behind <= a->all && st.device_expert_evictions == 0);
            n_behind += st.device_experts_behind;
        } else if (each > 0) {
            assert_int_equal(st.device_expert_bytes, (st.device_expert_misses - st.device_experts_on_cpu + st.device_experts_behind) * each);
            n_copied += st.device_expert_misses - st.device_experts_on_cpu;
        }
        headrace_free(e);
        nothing_left();
    }
    assert_true(n_behind > 0);
    print_message("%llu experts copied behind, %llu beside the processor\n", (unsigned long long)n_behind, (unsigned long long)n_copied);
}

/* The plan asks the processor too, and names what it lacks. */
static void processor_without_kernels(void) {
    mem *m;
    headrace_config *c;
    headrace_engine *e;
    headrace_error err = {0};
    error refused = {0}, why = {0};
    const char *const settings[] = {"model", fixture, "device", "cuda", "experts", "stream", "miss", "cpu"};
    assert_int_equal(mem_create(&m), STATUS_OK);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i += 2) assert_int_equal(headrace_config_set(c, settings[i], settings[i + 1], &err), HEADRACE_OK);
    assert_int_equal(engine_load_plan(m, c->c, false, &e, &refused, &why), STATUS_OK);
    assert_int_equal(refused.code, STATUS_OK);
    model_options opt = e->model->opt;
    vt_queue nobody = vt_queue_pose(e->runtime, (vt_device_id){.type = VT_DEVICE_METAL}, 0);
    opt.host_queue = &nobody;
    assert_int_equal(model_plan(e->model, e->queue, &opt, &why), STATUS_UNSUPPORTED);
    if (strstr(why.text, "--miss") == NULL || strstr(why.text, "matmul") == NULL) fail_msg("\"%s\"", why.text);
    headrace_free(e);
    headrace_config_destroy(c);
    nothing_left();
}

/* doctor says how fast the device is copied to, and leaves nothing there. */
static void link_is_told(void) {
    static const struct {
        uint64_t most_pinned;
        int64_t fails;
        const char *says, *never;
    } cases[] = {{0, -1, "memory that is not pinned staged through 32.0 MiB", "refused"}, {1, -1, "pinning refused: by the driver", "staged"}, {0, 0, "pinning refused: staged through 32.0 MiB", "not pinned"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        headrace_config *c;
        headrace_error err = {0};
        char *text;
        posed_clear(gpu);
        gpu->most_pinned = cases[i].most_pinned;
        gpu->fail.pinned = cases[i].fails;
        assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
        assert_int_equal(headrace_inspect(c, HEADRACE_REPORT_DOCTOR, false, &text, &err), HEADRACE_OK);
        if (strstr(text, "copies_to_cuda") == NULL || strstr(text, cases[i].says) == NULL || strstr(text, cases[i].never) != NULL) fail_msg("%s", text);
        headrace_text_free(text);
        headrace_config_destroy(c);
        gpu->most_pinned = 0;
        nothing_left();
    }
}

/* Where nothing is copied, or the processor lacks a kernel, the flag is refused by name. */
static void missed_refused(void **state) {
    const reference *a = *state;
    headrace_engine *e;
    const struct {
        const char *device, *experts, *miss, *says;
        bool with, without; /* experts */
    } cases[] = {
        {"cpu", "auto", "cpu", "--miss cpu: ", true, true}, {"cpu", "auto", "auto", "--miss auto: ", true, true}, {"cuda", "resident", "cpu", "--miss is of streamed experts", true, false}, {"cuda", "auto", "cpu", "has no experts", false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        headrace_error err = {0};
        if (!(a->experts ? cases[i].with : cases[i].without)) continue;
        posed_clear(gpu);
        assert_int_equal(try_load(&e, &err, (const char *const[]){"device", cases[i].device, "miss", cases[i].miss, cases[i].experts[0] == 'a' ? NULL : "experts", cases[i].experts, NULL}), HEADRACE_INVALID);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("\"%s\"", err.text);
        nothing_left();
    }
    if (!a->experts) return;
    processor_without_kernels();
    link_is_told();
    warnings_logged = 0;
    e = support_load(fixture, "device", "cuda", "miss", "cpu", NULL); /* all of them fit */
    assert_int_equal(warnings_logged, 1);
    if (strstr(warning, "--miss changes nothing") == NULL) fail_msg("\"%s\"", warning);
    assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
    headrace_free(e);
    nothing_left();
}

/* The tokens of a few prompts at once, `of` of them, generated from what is most likely. */
static void tokens_of(const reference *a, headrace_engine *e, int of, int32_t max_tokens, int32_t (*tokens)[512]) {
    support_run r[SUPPORT_MOST_TOGETHER];
    for (int i = 0; i < of; i++) r[i] = (support_run){.ids = a->alone.prompts[i % a->alone.n].ids, .n_ids = a->alone.prompts[i % a->alone.n].n_ids, .max_tokens = max_tokens - 3 * i};
    support_go(e, r, of);
    for (int i = 0; i < of; i++) {
        assert_int_equal(r[i].n_tokens, max_tokens - 3 * i);
        memcpy(tokens[i], r[i].tokens, (size_t)r[i].n_tokens * sizeof **tokens);
        support_run_free(&r[i]);
    }
}

/* Decode steps that repeat are replayed with the bits of those that were launched: other ids, positions, pages and slots each time, also of more pages than a graph was captured for. */
static void captured(void **state) {
    const reference *a = *state;
    static int32_t want[SUPPORT_MOST_TOGETHER][512], got[SUPPORT_MOST_TOGETHER][512];
    const int32_t many = 260; /* behind the 16 pages that the first graphs have */
    headrace_engine *cpu = support_load(fixture, "device", "cpu", "threads", "2", "prefix-cache", "false", NULL);
    for (int i = 0; i < SUPPORT_MOST_TOGETHER; i++) memset(want[i], 0, sizeof want[i]);
    tokens_of(a, cpu, 3, many, want);
    const uint64_t needed = support_stats(cpu).expert_bytes_needed;
    headrace_free(cpu);
    for (posed_time t = POSED_LATE; t <= POSED_MIXED; t++) {
        posed_clear(gpu);
        gpu->time = t;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", "1", "prefix-cache", "false", NULL);
        const uint64_t allocs = gpu->n.allocs;
        for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n++) assert_int_equal(support_same_bits(&a->alone, e, n, n, 1), n);
        const uint64_t captures = gpu->n.captures;
        for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n++) assert_int_equal(support_same_bits(&a->alone, e, 0, n, 1), n);
        assert_true(gpu->n.captures <= captures + 3); /* nothing but other numbers of rows where prompts of other lengths end */
        memset(got, 0, sizeof got);
        const uint64_t before = support_stats(e).expert_bytes_needed;
        tokens_of(a, e, 3, many, got);
        assert_int_equal(support_stats(e).expert_bytes_needed - before, needed); /* of replayed steps too, whose routers nobody reads in between */
        for (int i = 0; i < 3; i++) assert_memory_equal(got[i], want[i], sizeof want[i]);
        assert_int_equal(support_stats(e).n_hot_allocations, 0);
        assert_int_equal(gpu->n.allocs, allocs);
        assert_true(gpu->n.captures > 4 && gpu->n.replays > 3 * (uint64_t)many / 2);
        headrace_free(e);
        nothing_left();
    }
    posed_clear(gpu);
    headrace_engine *e = support_load(fixture, "device", "cuda", "capture", "off", NULL);
    assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 1), 2);
    assert_int_equal(gpu->n.captures + gpu->n.replays, 0);
    headrace_free(e);
    nothing_left();
}

/* BF16 activations go by tables too, where weights take them, and streamed experts give the tokens of resident ones, whose choices are noted once as well, whichever way a step goes. */
static void rounded(void **state) {
    const reference *a = *state;
    uint64_t needed[2];
    static int32_t want[SUPPORT_MOST_TOGETHER][512], got[SUPPORT_MOST_TOGETHER][512];
    if (!a->experts) return;
    for (int stream = 0; stream < 2; stream++) {
        posed_clear(gpu);
        headrace_engine *e = support_load(fixture, "device", "cuda", "act", "bf16", "threads", "2", "experts", stream ? "stream" : "resident", "prefix-cache", "false", NULL);
        for (int32_t l = 0; l < bank_layers(e); l++) {
            const expert_layer *el = &e->model->moe->bank.layers[l];
            const moe_parts *mp = &e->model->moe->parts[l];
            if (el->n_experts > 0 && el->parts[mp->down].view.dtype == VT_BF16) assert_true(mp->grouped && (mp->mid_dtype == VT_BF16 || mp->down_transposed));
            if (el->n_experts > 0 && mp->down_scale >= 0) assert_true(mp->grouped && mp->x_dtype == VT_BF16 && mp->mid_dtype == VT_BF16); /* also where dense products of FP8 are not rounded for */
        }
        memset(stream ? got : want, 0, sizeof want);
        tokens_of(a, e, SUPPORT_MOST_TOGETHER, 40, stream ? got : want);
        needed[stream] = support_stats(e).expert_bytes_needed;
        headrace_free(e);
        nothing_left();
    }
    for (int i = 0; i < SUPPORT_MOST_TOGETHER; i++) assert_memory_equal(got[i], want[i], sizeof want[i]);
    assert_int_equal(needed[0], needed[1]);
}

/* A device that captures no more is used without, and it is said once. */
static void capture_fails(void **state) {
    const reference *a = *state;
    if (a->experts) return;
    for (int k = 0; k < 6; k++) {
        posed_clear(gpu);
        warnings_logged = 0;
        *(k % 2 == 0 ? &gpu->fail.capture_begin : &gpu->fail.capture_end) = k / 2;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", "1", NULL);
        for (int n = 1; n <= 4; n++) assert_int_equal(support_same_bits(&a->alone, e, 0, n, 1), n);
        assert_int_equal(gpu->n.faults, 1);
        assert_int_equal(warnings_logged, 1);
        if (strstr(warning, "not captured") == NULL) fail_msg("\"%s\"", warning);
        assert_int_equal(gpu->n.captures, k / 2);
        headrace_free(e);
        nothing_left();
    }
}

static void generated(void **state) {
    const reference *a = *state;
    posed_clear(gpu);
    gpu->time = POSED_LATE;
    for (int i = 0; i < 2; i++) {
        headrace_engine *e = support_load(fixture, "device", i == 0 ? "cpu" : "cuda", "threads", "2", NULL);
        support_run r = {.ids = a->alone.prompts[0].ids, .n_ids = a->alone.prompts[0].n_ids, .max_tokens = a->alone.prompts[0].n_greedy};
        support_go(e, &r, 1);
        assert_int_equal(r.n_tokens, a->alone.prompts[0].n_greedy);
        static int32_t first[512];
        if (i == 0) memcpy(first, r.tokens, (size_t)r.n_tokens * sizeof *first);
        assert_memory_equal(r.tokens, first, (size_t)r.n_tokens * sizeof *first);
        support_run_free(&r);
        r = (support_run){.ids = a->alone.prompts[0].ids, .n_ids = a->alone.prompts[0].n_ids, .max_tokens = a->alone.prompts[0].n_greedy}; /* from what the device remembers: pages, and snapshots of states */
        support_go(e, &r, 1);
        assert_int_equal(r.usage.prefix_hit_tokens, (r.n_ids - 1) / 16 * 16);
        assert_true(r.usage.prefix_hit_tokens > 0);
        assert_memory_equal(r.tokens, first, (size_t)r.n_tokens * sizeof *first);
        support_run_free(&r);
        headrace_free(e);
    }
    nothing_left();
}

/* ---- faults ---- */

enum { SHORT_IDS = 6, SHORT_TOKENS = 3 };

typedef struct fault_kind {
    const char *name;
    size_t at; /* of its counter in posed_gpu.fail */
} fault_kind;
static const fault_kind kinds[] = {
#define X(field) {#field, offsetof(posed_gpu, fail.field)},
    POSED_FAULTS(X)
#undef X
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static void arm(const fault_kind *f, int64_t k) {
    posed_clear(gpu);
    memcpy((char *)gpu + f->at, &k, sizeof k);
}

/* One that fills pages in steps that nobody wants logits of. */
static const support_prompt *longest(const reference *a) {
    const support_prompt *best = &a->alone.prompts[0];
    for (int i = 1; i < a->alone.n; i++) {
        if (a->alone.prompts[i].n_ids > best->n_ids) best = &a->alone.prompts[i];
    }
    assert_true(best->n_ids > 16);
    return best;
}

/* Two requests, one after the other (max-seqs 1): scores of a beginning, and a short answer. Returns how many failed; what did not has the right bits. */
static int two_requests(const reference *a, headrace_engine *e, const int32_t *answer) {
    const support_prompt *p = longest(a);
    support_run r[2] = {
        {.ids = a->alone.prompts[0].forced, .n_ids = SHORT_IDS, .chunk = 4, .want_logits = true, .may_fail = true},
        {.ids = p->ids, .n_ids = p->n_ids, .max_tokens = SHORT_TOKENS, .may_fail = true},
    };
    int n_failed = 0;
    support_go(e, r, 2);
    for (int i = 0; i < 2; i++) {
        if (r[i].finish == HEADRACE_FINISH_ERROR) {
            n_failed++;
            assert_true(r[i].error[0] != '\0' && r[i].status != HEADRACE_OK);
        } else if (i == 0) {
            assert_int_equal(r[i].n_rows, SHORT_IDS);
            assert_memory_equal(r[i].logits, a->alone.runs[0].logits, (size_t)SHORT_IDS * (size_t)r[i].n_vocab * sizeof(float));
        } else {
            assert_int_equal(r[i].n_tokens, SHORT_TOKENS);
            assert_memory_equal(r[i].tokens, answer, SHORT_TOKENS * sizeof *answer);
        }
        support_run_free(&r[i]);
    }
    return n_failed;
}

/* miss "staged": upload, through the ring. What the processor computes is copied behind, and with "ahead" what may be wanted is copied ahead, for nobody: such a copy may fail unseen, or be told to whoever comes next. */
static void faults_of_steps(const reference *a, bool stream, const char *miss) {
    char device[32];
    const bool ahead = strcmp(miss, "ahead") == 0, staged = strcmp(miss, "staged") == 0;
    char pinned[32] = "";
    snprintf(device, sizeof device, "%llu", (unsigned long long)((a->least + (ahead ? 4 : 1)) * a->slot_bytes));
    posed_clear(gpu);
    if (staged) snprintf(pinned, sizeof pinned, "%llu", (unsigned long long)planned_staging((const char *const[]){"device", "cuda", "experts", "stream", "device-experts", device, "host-experts", "min", "max-seqs", "1", "max-batch-tokens", "16", NULL}));
    headrace_engine *e = stream ? support_load(fixture, "device", "cuda", "experts", "stream", "miss", ahead || staged ? "upload" : miss, "device-experts", device, "host-experts", ahead ? "all" : "min", "expert-prefetch", ahead ? "on" : "auto", "max-seqs", "1", "threads", "1", "max-batch-tokens", "16", staged ? "pinned-mem" : NULL, pinned, NULL)
                                : support_load(fixture, "device", "cuda", "max-seqs", "1", "threads", "1", "max-batch-tokens", "16", NULL);
    support_run first = {.ids = longest(a)->ids, .n_ids = longest(a)->n_ids, .max_tokens = SHORT_TOKENS};
    support_go(e, &first, 1);
    assert_int_equal(first.n_tokens, SHORT_TOKENS);
    assert_int_equal(support_stats(e).device_expert_bytes_staged > 0, staged);
    for (size_t f = 0; f < N_KINDS; f++) {
        int n_fired = 0;
        if (strncmp(kinds[f].name, "capture", 7) == 0) continue; /* fails nobody: capture_fails */
        for (int64_t k = 0;; k++) {
            gpu->time = (posed_time)(k % 3);
            arm(&kinds[f], k);
            const int n_failed = two_requests(a, e, first.tokens);
            const bool fired = gpu->n.faults > 0;
            const bool behind = strcmp(miss, "upload") != 0 && !staged && (strstr(kinds[f].name, "upload") != NULL || strncmp(kinds[f].name, "fence", 5) == 0);
            if (behind ? n_failed > fired : n_failed != fired) fail_msg("%s %lld: %d requests failed", kinds[f].name, (long long)k, n_failed);
            assert_int_equal(e->model->moe->n_held, 0);
            posed_clear(gpu);
            if (behind && n_failed == 0 && fired) assert_true(two_requests(a, e, first.tokens) <= 1);
            assert_int_equal(two_requests(a, e, first.tokens), 0); /* the next answer is right */
            if (!fired) break;
            n_fired++;
        }
        print_message("%s: %s: %d faults\n", stream ? "streamed" : "resident", kinds[f].name, n_fired);
        const bool of_a_step = strcmp(kinds[f].name, "alloc") != 0 && strcmp(kinds[f].name, "pinned") != 0 && strcmp(kinds[f].name, "fence_create") != 0 && strcmp(kinds[f].name, "queue") != 0;
        const bool of_experts = strncmp(kinds[f].name, "fence", 5) == 0 && !stream; /* resident experts are not leased */
        const bool of_replays = strcmp(kinds[f].name, "replay") == 0 && gpu->n.live_graphs == 0;
        assert_true((n_fired > 0) == (of_a_step && !of_experts && !of_replays)); /* and nothing is allocated in a step */
    }
    assert_int_equal(support_stats(e).n_hot_allocations, 0);
    assert_true((support_stats(e).expert_failures > 0) == stream); /* nothing was read badly: the device's */
    support_run_free(&first);
    headrace_free(e);
    nothing_left(); /* no lease stayed: closing would have said so */
}

static void every_fault_of_a_step(void **state) {
    const reference *a = *state;
    faults_of_steps(a, false, "upload");
    if (a->experts) faults_of_steps(a, true, "upload");
    if (a->experts) faults_of_steps(a, true, "staged");
    if (a->experts) faults_of_steps(a, true, "cpu");
    if (a->experts && a->moe_layers > 1) faults_of_steps(a, true, "ahead");
}

/* A step whose failure is only seen later leaves nothing behind: a prompt that begins alike finds no page of it. */
static void no_page_of_a_failed_step(void **state) {
    const reference *a = *state;
    const support_prompt *p = longest(a);
    int32_t *ids = malloc((size_t)p->n_ids * sizeof *ids);
    posed_clear(gpu);
    gpu->time = POSED_LATE;
    headrace_engine *cpu = support_load(fixture, "device", "cpu", "threads", "1", "prefix-cache", "false", NULL);
    headrace_engine *e = support_load(fixture, "device", "cuda", "max-seqs", "1", "threads", "1", "max-batch-tokens", "16", NULL);
    int n_fired = 0;
    memcpy(ids, p->ids, (size_t)p->n_ids * sizeof *ids);
    for (int64_t k = 0; k < 150; k += 3) {
        support_run want = {.ids = ids, .n_ids = p->n_ids, .max_tokens = 8}, r = want;
        ids[1] = 3 + (int32_t)k; /* unknown so far */
        support_go(cpu, &want, 1);
        arm(&kinds[1], k);
        r.may_fail = true;
        support_go(e, &r, 1);
        n_fired += gpu->n.faults > 0;
        assert_int_equal(r.finish == HEADRACE_FINISH_ERROR, gpu->n.faults > 0);
        posed_clear(gpu);
        support_run_free(&r);
        r = (support_run){.ids = ids, .n_ids = p->n_ids, .max_tokens = 8};
        support_go(e, &r, 1);
        assert_int_equal(r.n_tokens, want.n_tokens);
        assert_memory_equal(r.tokens, want.tokens, (size_t)r.n_tokens * sizeof *r.tokens);
        support_run_free(&r);
        support_run_free(&want);
    }
    assert_true(n_fired > 40);
    headrace_free(e);
    headrace_free(cpu);
    free(ids);
    nothing_left();
}

static void every_fault_of_a_load(void **state) {
    const reference *a = *state;
    for (int stream = 0; stream <= (a->experts ? 2 : 0); stream++) { /* 2: through a ring */
        char pinned[32] = "";
        const char *settings[] = {"device", "cuda", "threads", "1", "max-seqs", "2", "experts", stream ? "stream" : "auto", stream ? "device-experts" : NULL, "min", "host-experts", "min", NULL, pinned, NULL};
        if (stream == 2) {
            snprintf(pinned, sizeof pinned, "%llu", (unsigned long long)planned_staging(settings));
            settings[12] = "pinned-mem";
        }
        int n_fired = 0;
        for (size_t f = 0; f < N_KINDS; f++) {
            for (int64_t k = 0;; k++) {
                headrace_engine *e;
                headrace_error err = {0};
                gpu->time = (posed_time)(k % 3);
                arm(&kinds[f], k);
                const headrace_status rc = try_load(&e, &err, settings);
                const bool fired = gpu->n.faults > 0;
                const bool goes_on = strcmp(kinds[f].name, "pinned") == 0; /* in ordinary memory */
                if ((rc == HEADRACE_OK) == (fired && !goes_on)) fail_msg("%s %lld: %s", kinds[f].name, (long long)k, err.text);
                posed_clear(gpu);
                if (rc == HEADRACE_OK) assert_int_equal(support_same_bits(&a->alone, e, 0, 1, 0), 1);
                if (rc != HEADRACE_OK) assert_true(err.text[0] != '\0');
                headrace_free(e);
                nothing_left();
                if (!fired) break;
                n_fired++;
            }
        }
        print_message("%s: %d loads failed\n", stream ? "streamed" : "resident", n_fired);
        assert_true(n_fired > 20);
    }
}

/* ---- two models, two devices ---- */

static headrace_engine *load_all_slots(const char *path, const char *device) {
    return support_load(path, "device", device, "experts", "stream", "device-experts", "all", "host-experts", "min", "threads", "1", "prefix-cache", "false", NULL);
}

/* Two models on two devices in one process, in turn: nobody clears what the other holds, nobody finds what the other left. */
static void two_of_each(void **state) {
    reference *a = *state, *b = NULL;
    void *other = NULL;
    const char *const mine = fixture;
    posed_gpu *second = posed_add(VT_DEVICE_VULKAN), *const first = gpu;
    assert_non_null(second);
    fixture = other_fixture;
    assert_int_equal(run_reference(&other), 0);
    b = other;
    for (int round = 0; round < 3; round++) { /* each model on each device, at addresses that the other had before */
        posed_clear(first);
        posed_clear(second);
        headrace_engine *x = load_all_slots(mine, round % 2 == 0 ? "cuda" : "vulkan"), *y = load_all_slots(other_fixture, round % 2 == 0 ? "vulkan" : "cuda");
        assert_int_equal(support_same_bits(&a->alone, x, 0, 1, 0), 1);
        assert_int_equal(support_same_bits(&b->alone, y, 0, 1, 0), 1);
        const headrace_stats sx = support_stats(x), sy = support_stats(y);
        assert_true(sx.device_expert_misses > 0 && sy.device_expert_misses > 0);
        const uint64_t allocs = first->n.allocs + second->n.allocs;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(support_same_bits(&a->alone, x, 0, 1, i), 1);
            assert_int_equal(support_same_bits(&b->alone, y, 0, 1, i), 1);
        }
        assert_int_equal(support_stats(x).device_expert_misses, sx.device_expert_misses); /* all of it was still there */
        assert_int_equal(support_stats(y).device_expert_misses, sy.device_expert_misses);
        assert_true(support_stats(x).device_expert_hits > sx.device_expert_hits && support_stats(y).device_expert_hits > sy.device_expert_hits);
        assert_int_equal(support_stats(x).device_expert_evictions + support_stats(y).device_expert_evictions, 0);
        assert_int_equal(first->n.allocs + second->n.allocs, allocs);
        headrace_free(round == 1 ? y : x);
        assert_int_equal(support_same_bits(round == 1 ? &a->alone : &b->alone, round == 1 ? x : y, 0, 2, 0), 2); /* the one that stays */
        headrace_free(round == 1 ? x : y);
        nothing_left();
        gpu = second;
        nothing_left();
        gpu = first;
    }
    assert_int_equal(free_reference(&other), 0);
    fixture = mine;
}

/* A test that ended in its middle leaves an engine at work, whose late copies nobody waits for: the tests after it would crash in its stead. */
static int begin_clean(void **state) {
    (void)state;
    return gpu->n.open == 0 ? 0 : -1;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) return 2;
    fixture = argv[1];
    log_set(on_log, NULL, LOG_LEVEL_WARN);
    gpu = posed_add(VT_DEVICE_CUDA);
    const struct CMUnitTest bits[] = {cmocka_unit_test_setup(resident, begin_clean), cmocka_unit_test_setup(streamed, begin_clean), cmocka_unit_test_setup(missed, begin_clean), cmocka_unit_test_setup(missed_refused, begin_clean), cmocka_unit_test_setup(warmed, begin_clean), cmocka_unit_test_setup(generated, begin_clean), cmocka_unit_test_setup(captured, begin_clean), cmocka_unit_test_setup(rounded, begin_clean), cmocka_unit_test_setup(capture_fails, begin_clean)};
    const struct CMUnitTest rows[] = {cmocka_unit_test_setup(grouped_rows_step_aside, begin_clean), cmocka_unit_test_setup(fused_rows_step_aside, begin_clean), cmocka_unit_test_setup(heads_step_aside, begin_clean), cmocka_unit_test_setup(each_op_removed, begin_clean), cmocka_unit_test_setup(what_is_not_needed, begin_clean), cmocka_unit_test_setup(memory_decides_too, begin_clean),
                                      cmocka_unit_test_setup(passed_over_leaves_nothing, begin_clean), cmocka_unit_test_setup(all_that_is_free, begin_clean),
                                      cmocka_unit_test_setup(unpinned, begin_clean)};
    const struct CMUnitTest faults[] = {cmocka_unit_test_setup(every_fault_of_a_step, begin_clean), cmocka_unit_test_setup(no_page_of_a_failed_step, begin_clean), cmocka_unit_test_setup(every_fault_of_a_load, begin_clean)};
    if (strcmp(argv[2], "bits") == 0) return cmocka_run_group_tests(bits, run_reference, free_reference);
    if (strcmp(argv[2], "rows") == 0) return cmocka_run_group_tests(rows, run_reference, free_reference);
    const struct CMUnitTest pinned[] = {cmocka_unit_test_setup(pinned_or_staged, begin_clean), cmocka_unit_test_setup(pinned_refused, begin_clean)};
    if (strcmp(argv[2], "pinned") == 0) return cmocka_run_group_tests(pinned, run_reference, free_reference);
    if (strcmp(argv[2], "faults") == 0) return cmocka_run_group_tests(faults, run_reference, free_reference);
    other_fixture = argc == 4 ? argv[3] : NULL;
    const struct CMUnitTest two[] = {cmocka_unit_test_setup(two_of_each, begin_clean)};
    if (strcmp(argv[2], "two") == 0 && argc == 4) return cmocka_run_group_tests(two, run_reference, free_reference);
    return 2;
}
