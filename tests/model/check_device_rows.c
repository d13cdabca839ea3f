/* SPDX-License-Identifier: Apache-2.0 */
/* The part of check_device about what a device lacks: kernel rows, memory, pinning. It refuses, is passed over, or steps aside, before
 * anything is uploaded. */
#include "model/check_device.h"

#include "model/block_moe.h"

/* The needs of this op. */
static int count_needs(const reference *a, vt_op op) {
    int n = 0;
    for (int32_t i = 0; i < a->n_needs; i++) n += a->needs[i].op == op;
    return n;
}

/* Nothing was sent there, nothing allocated, and nothing run. */
static void untouched(void) {
    assert_int_equal(gpu->n.uploads, 0);
    assert_int_equal(gpu->n.allocs, 0);
    assert_int_equal(gpu->n.kernels, 0);
    assert_int_equal(gpu->n.downloads, 0);
    nothing_left();
}

static void forced_is_refused(const reference *a, vt_op op, vt_op other) {
    headrace_engine *e;
    headrace_error err = {0};
    char line[128];
    for (int stream = 0; stream <= (a->experts ? 1 : 0); stream++) {
        posed_clear(gpu);
        assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cuda", "experts", stream ? "stream" : "auto", NULL}),
                         HEADRACE_UNSUPPORTED);
        snprintf(line, sizeof line, "cannot run %d of what is needed", count_needs(a, op) + (other != op ? count_needs(a, other) : 0));
        if (strstr(err.text, line) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, line);
        for (int32_t i = 0; i < a->n_needs; i++) { /* every missing row, in a line of its own */
            char sig[96];
            if (a->needs[i].op != op && a->needs[i].op != other) continue;
            vt_sig_format(a->needs[i].op, a->needs[i].sig, sig, sizeof sig);
            snprintf(line, sizeof line, "\n%s %s: not written", vt_op_name(a->needs[i].op), sig);
            if (strstr(err.text, line) == NULL && strstr(err.text, " more") == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, line);
        }
        untouched();
    }
}

/* The other path is announced and counted, and has the bits. */
static void auto_takes_the_next(const reference *a, vt_op op) {
    posed_clear(gpu);
    warnings_logged = 0;
    headrace_engine *e = support_load(fixture, "device", "auto", "threads", "2", NULL);
    assert_int_equal(warnings_logged, 1);
    if (strstr(warning, "posed cuda is passed over: ") == NULL || strstr(warning, vt_op_name(op)) == NULL) fail_msg("\"%s\"", warning);
    assert_string_equal(info_of(e).device_type, "cpu");
    assert_int_equal(info_of(e).n_devices_passed_over, 1);
    assert_int_equal(info_of(e).device_bytes, 0);
    assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
    headrace_free(e);
    untouched();
}

static bool is_grouped_op(int op) {
    return op == VT_OP_MOE_GROUP || op == VT_OP_MATMUL_GROUPED || op == VT_OP_MATMUL_GROUPED_SCALED || op == VT_OP_MATMUL_GROUPED_GATED;
}

/* Without the rows of grouped products, one op or all, the device is used expert by expert, with the bits. */
void grouped_rows_step_aside(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    int n = 0;
    for (int op = 0; op <= VT_OP_COUNT; op++) {
        if (op < VT_OP_COUNT && (!is_grouped_op(op) || count_needs(a, (vt_op)op) == 0)) continue;
        memset(gpu->removed, 0, sizeof gpu->removed);
        for (int i = 0; i < VT_OP_COUNT; i++) gpu->removed[i] = is_grouped_op(i) && (op == VT_OP_COUNT || i == op);
        for (int stream = 0; stream < 2; stream++) {
            posed_clear(gpu);
            headrace_engine *e = support_load(fixture, "device", "cuda", "experts", stream ? "stream" : "resident", "threads", "2", NULL);
            uint64_t grouped = 0;
            for (int32_t l = 0; l < bank_layers(e); l++) grouped += e->model->moe->parts[l].grouped;
            assert_int_equal(grouped, op == VT_OP_MATMUL_GROUPED_GATED ? a->moe_layers : 0);
            assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
            headrace_free(e);
            nothing_left();
        }
        n++;
    }
    memset(gpu->removed, 0, sizeof gpu->removed);
    assert_true(n >= 3);
}

static const vt_op fused_ops[] = {VT_OP_ADD_NORM, VT_OP_MATMUL_BT_SEVERAL, VT_OP_MATMUL_BT_GATED};
enum { N_FUSED = sizeof fused_ops / sizeof fused_ops[0] };

static bool is_fused_op(int op) {
    for (int i = 0; i < N_FUSED; i++) {
        if ((int)fused_ops[i] == op) return true;
    }
    return false;
}

/* Ops that stand for several: used where the device has them, each for itself, and stepped aside from where it has not, with the bits of
 * the processor, which never uses them. */
void fused_rows_step_aside(void **state) {
    const reference *a = *state;
    int n_used = 0;
    for (int rounded = 0; rounded < 2; rounded++) {
        support_alone alone = a->alone;
        headrace_engine *e;
        headrace_error err = {0};
        if (rounded) {
            if (try_load(&e, &err, (const char *const[]){"device", "cpu", "act", "bf16", NULL}) != HEADRACE_OK)
                continue; /* no weights that take it */
            assert_false(e->model->has_links || e->model->several != 0 || e->model->gated != 0);
            bool scaled = false;
            for (int32_t l = 0; a->experts && l < bank_layers(e); l++)
                scaled = scaled || (e->model->moe->bank.layers[l].n_experts > 0 && e->model->moe->parts[l].down_scale >= 0);
            if (scaled) { /* by tables they take rounded rows, one by one on the processor they do not: compared with the device without
                             these ops */
                headrace_free(e);
                for (int i = 0; i < N_FUSED; i++) gpu->removed[fused_ops[i]] = true;
                posed_clear(gpu);
                e = support_load(fixture, "device", "cuda", "act", "bf16", "threads", "2", "prefix-cache", "false", NULL);
            }
            support_alone_run(&alone, e, fixture);
            headrace_free(e);
        }
        for (int without = 0; without <= N_FUSED + 1; without++) { /* one of them, none of them, all of them */
            memset(gpu->removed, 0, sizeof gpu->removed);
            for (int i = 0; i < N_FUSED; i++) gpu->removed[fused_ops[i]] = i == without || without == N_FUSED + 1;
            posed_clear(gpu);
            e = support_load(fixture, "device", "cuda", "act", rounded ? "bf16" : "f32", "threads", "2", "prefix-cache", "false", NULL);
            assert_int_equal(e->model->has_links, !gpu->removed[VT_OP_ADD_NORM]);
            assert_int_equal(e->model->several != 0, !gpu->removed[VT_OP_MATMUL_BT_SEVERAL]);
            assert_int_equal(e->model->gated != 0, !gpu->removed[VT_OP_MATMUL_BT_GATED]);
            for (int32_t i = 0; i < e->model->recorder.n; i++) {
                const vt_op op = e->model->recorder.needs[i].op;
                assert_false(is_fused_op(op) && gpu->removed[op]);
                n_used += is_fused_op(op) && without == N_FUSED;
            }
            assert_int_equal(support_same_bits(&alone, e, 0, 3, 0), 3);
            headrace_free(e);
            nothing_left();
        }
        if (rounded) support_alone_free(&alone);
    }
    memset(gpu->removed, 0, sizeof gpu->removed);
    assert_true(n_used >= 1);
}

/* Without the row that prepares all heads at once, norms, rotations and the cache go one by one, with the bits. */
void heads_step_aside(void **state) {
    const reference *a = *state;
    for (int removed = 0; removed < 2; removed++) {
        memset(gpu->removed, 0, sizeof gpu->removed);
        gpu->removed[VT_OP_PREPARE_HEADS] = removed != 0;
        posed_clear(gpu);
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", "2", NULL);
        bool together = false, apart = false;
        for (int32_t i = 0; i < e->model->recorder.n; i++) {
            together = together || e->model->recorder.needs[i].op == VT_OP_PREPARE_HEADS;
            apart = apart || e->model->recorder.needs[i].op == VT_OP_KV_WRITE;
        }
        assert_true(together == (count_needs(a, VT_OP_PREPARE_HEADS) > 0 && !removed));
        assert_true(apart || !removed);
        assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
        headrace_free(e);
        nothing_left();
    }
    memset(gpu->removed, 0, sizeof gpu->removed);
}

void each_op_removed(void **state) {
    const reference *a = *state;
    int n = 0;
    vt_op last = VT_OP_COUNT;
    for (int op = 0; op < VT_OP_COUNT; op++) {
        if (count_needs(a, (vt_op)op) == 0 || is_grouped_op(op) || is_fused_op(op) || op == VT_OP_PREPARE_HEADS) continue;
        memset(gpu->removed, 0, sizeof gpu->removed);
        gpu->removed[op] = true;
        forced_is_refused(a, (vt_op)op, (vt_op)op);
        auto_takes_the_next(a, (vt_op)op);
        if (last != VT_OP_COUNT) {
            gpu->removed[last] = true;
            forced_is_refused(a, (vt_op)op, last);
        }
        last = (vt_op)op;
        n++;
    }
    memset(gpu->removed, 0, sizeof gpu->removed);
    assert_true(n >= 6);
    if (a->experts)
        assert_true(count_needs(a, VT_OP_ROUTER_TOPK) > 0 && count_needs(a, VT_OP_ADD_NORM) > 0 && count_needs(a, VT_OP_GATHER_ROWS) > 0);
}

/* An op that this model does not need may be missing; and with all rows there `auto` takes the device. */
void what_is_not_needed(void **state) {
    const reference *a = *state;
    int n = 0;
    for (int op = 0; op < VT_OP_COUNT; op++) n += gpu->removed[op] = count_needs(a, (vt_op)op) == 0;
    assert_true(n > 0);
    posed_clear(gpu);
    headrace_engine *e = support_load(fixture, "threads", "2", NULL);
    assert_string_equal(info_of(e).device_type, "cuda");
    assert_int_equal(info_of(e).n_devices_passed_over, 0);
    assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
    headrace_free(e);
    nothing_left();
    memset(gpu->removed, 0, sizeof gpu->removed);
}

/* Memory that is too small, or of unknown size, is a reason like another. */
void memory_decides_too(void **state) {
    const reference *a = *state;
    const uint64_t total = gpu->total_bytes, is_free = gpu->free_bytes;
    headrace_engine *e;
    headrace_error err = {0};
    static const struct {
        uint64_t total, is_free;
        headrace_status rc;
        const char *says;
    } cases[] = {
        {1 << 16, 1 << 16, HEADRACE_DOES_NOT_FIT, "device"},
        {0, 0, HEADRACE_DOES_NOT_FIT, "--device-mem"},
        {1 << 30, 1 << 16, HEADRACE_NOT_NOW, "available now"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        posed_clear(gpu);
        gpu->total_bytes = cases[i].total;
        gpu->free_bytes = cases[i].is_free;
        assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cuda", NULL}), cases[i].rc);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].says);
        e = support_load(fixture, "threads", "2", NULL);
        assert_string_equal(info_of(e).device_type, "cpu");
        assert_int_equal(info_of(e).n_devices_passed_over, 1);
        assert_int_equal(support_same_bits(&a->alone, e, 0, 1, 0), 1);
        headrace_free(e);
        untouched();
    }
    gpu->total_bytes = gpu->free_bytes = 0; /* unknown, and a budget */
    e = support_load(fixture, "threads", "2", "device-mem", "64M", NULL);
    assert_string_equal(info_of(e).device_type, "cuda");
    assert_int_equal(support_same_bits(&a->alone, e, 0, 1, 0), 1);
    headrace_free(e);
    nothing_left();
    gpu->total_bytes = total;
    gpu->free_bytes = is_free;
    assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cpu", "device-mem", "64M", NULL}), HEADRACE_INVALID);
    assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cuda", "load", "map", NULL}), HEADRACE_UNSUPPORTED);
    if (!a->experts) return;
    assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cpu", "device-experts", "min", NULL}), HEADRACE_INVALID);
    assert_int_equal(try_load(&e, &err, (const char *const[]){"device", "cuda", "experts", "resident", "device-experts", "min", NULL}),
                     HEADRACE_INVALID);
    /* one pool: slots on the host are promised when those of the device ask, and the probe does not know it */
    gpu->caps |= VT_CAP_BIT(VT_CAP_UNIFIED);
    e = support_load(fixture, "device", "cuda", "experts", "stream", "device-experts", "min", "host-experts", "min", NULL);
    const uint64_t slots = e->plan.device_bytes[MEM_EXPERTS], host = e->plan.experts.min_slots * e->plan.experts.slot_bytes;
    headrace_free(e);
    assert_true(slots > 0 && host > 0);
    for (int k = 0; k < 2; k++) { /* the device is asked when it is opened, for the plan, and when the slots are about to be allocated */
        posed_clear(gpu);
        gpu->free_bytes = is_free;
        gpu->probes = 2;
        gpu->free_then = slots + host - (k == 0 ? 1 : 0);
        assert_int_equal(
            try_load(&e, &err,
                     (const char *const[]){"device", "cuda", "experts", "stream", "device-experts", "min", "host-experts", "min", NULL}),
            k == 0 ? HEADRACE_NOT_NOW : HEADRACE_OK);
        if (k == 0 && strstr(err.text, "host and device share one pool") == NULL) fail_msg("\"%s\"", err.text);
        headrace_free(e);
        assert_int_equal(gpu->probes, -1);
    }
    gpu->free_bytes = is_free;
    gpu->caps &= ~VT_CAP_BIT(VT_CAP_UNIFIED);
    nothing_left();
}

/* A device that is there and gives no queue is passed over like one that is too small; what was planned for a device that was passed over
 * is not in the next one's plan. */
void passed_over_leaves_nothing(void **state) {
    const reference *a = *state;
    static const status refusals[] = {STATUS_NO_MEMORY, STATUS_NOT_NOW, STATUS_FAILED, STATUS_UNSUPPORTED};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        posed_clear(gpu);
        gpu->fail.queue = 0;
        gpu->refusal = refusals[i];
        warnings_logged = 0;
        headrace_engine *e = support_load(fixture, "threads", "2", NULL);
        assert_int_equal(gpu->n.faults, 1);
        assert_int_equal(warnings_logged, 1);
        if (strstr(warning, "cuda is passed over: ") == NULL || strstr(warning, "no queue") == NULL) fail_msg("\"%s\"", warning);
        assert_string_equal(info_of(e).device_type, "cpu");
        assert_int_equal(info_of(e).n_devices_passed_over, 1);
        assert_int_equal(support_same_bits(&a->alone, e, 0, 1, 0), 1);
        headrace_free(e);
        untouched();
    }
    gpu->refusal = STATUS_OK;
    const uint64_t is_free = gpu->free_bytes;
    const char *const tier = a->experts ? "resident" : "auto";
    char most[32];
    headrace_engine *e = support_load(fixture, "device", "cpu", "threads", "2", "load", "read", "experts", tier, NULL);
    snprintf(most, sizeof most, "%zu", e->plan.total_bytes + (size_t)64 * 1024);
    headrace_free(e);
    gpu->free_bytes = 1 << 16;
    e = support_load(fixture, "threads", "2", "load", "read", "experts", tier, "mem", most, NULL);
    assert_string_equal(info_of(e).device_type, "cpu");
    assert_int_equal(info_of(e).n_devices_passed_over, 1);
    headrace_free(e);
    gpu->free_bytes = is_free;
    untouched();
}

/* Queues take memory too, and pages are there before slots take what is left: a load that was planned finds what it was promised, and what
 * somebody else took meanwhile refuses the slots. */
void all_that_is_free(void **state) {
    const reference *a = *state;
    const uint64_t total = gpu->total_bytes;
    if (!a->experts) return;
    posed_clear(gpu);
    gpu->exact = true;
    gpu->queue_bytes = 1 << 20;
    headrace_engine *e =
        support_load(fixture, "device", "cuda", "kv-mem", "8M", "experts", "stream", "device-experts", "min", "host-experts", "min", NULL);
    const uint64_t least = e->plan.device_total_bytes;
    assert_int_equal(e->plan.device_bytes[MEM_PROCESS], 2 << 20);
    assert_in_range(e->plan.device_bytes[MEM_KV], 7 << 20, 9 << 20);
    headrace_free(e);
    for (uint64_t more = 0; more <= 3; more += 3) {
        gpu->total_bytes = least + more * a->slot_bytes + 512;
        e = support_load(fixture, "threads", "2", "kv-mem", "8M", "experts", "stream", "host-experts", "min", NULL);
        assert_string_equal(info_of(e).device_type, "cuda");
        assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
        assert_int_equal(support_stats(e).device_expert_slots, a->least + more);
        headrace_free(e);
        nothing_left();
    }
    headrace_error err = {0};
    gpu->total_bytes = least + 512;
    gpu->probes = 2;
    gpu->free_then = 4 << 20; /* more than the plan has to spare, less than the pages take */
    assert_int_equal(try_load(&e, &err,
                              (const char *const[]){"device", "cuda", "kv-mem", "8M", "experts", "stream", "device-experts", "min",
                                                    "host-experts", "min", NULL}),
                     HEADRACE_NOT_NOW);
    if (strstr(err.text, "slots for experts") == NULL) fail_msg("\"%s\"", err.text);
    gpu->exact = false;
    gpu->queue_bytes = gpu->others = 0;
    gpu->total_bytes = total;
    nothing_left();
}

/* Host slots that a device does not pin are ordinary memory; the answers are the same, and what has not been touched is known. */
void unpinned(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    int n_unpinned = 0;
    for (int64_t k = -1; k < 12; k++) {
        posed_clear(gpu);
        gpu->fail.pinned = k;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", "2", "experts", "stream", "device-experts", "min",
                                          "host-experts", "min", NULL);
        expert_counters c;
        e->experts_below->counters(e->experts_below, &c);
        assert_true(c.bytes_untouched == 0 || c.bytes_untouched == a->least * a->slot_bytes);
        n_unpinned += c.bytes_untouched > 0;
        assert_true(c.bytes_untouched == 0 || k >= 0);
        assert_int_equal(support_same_bits(&a->alone, e, 0, 2, 0), 2);
        headrace_free(e);
        nothing_left();
        if (k >= 0 && gpu->n.faults == 0) break;
    }
    assert_int_equal(n_unpinned, 1);
}
