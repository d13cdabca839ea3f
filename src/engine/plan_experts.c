/* SPDX-License-Identifier: Apache-2.0 */
/* Where experts go: resident when they fit the machine beside everything else, streamed through as many slots as fit otherwise. Pure. */
#include <stdio.h>

#include "engine/plan.h"

static const double MIB = 1024.0 * 1024.0;

static size_t stream_bytes(const expert_bank *bank, int64_t n_slots) {
    const size_t slots = expert_store_stream_slot_bytes(bank, n_slots), tables = expert_store_stream_table_bytes(bank, n_slots);
    return slots == SIZE_MAX || tables == SIZE_MAX || slots > SIZE_MAX - tables ? SIZE_MAX : slots + tables;
}

/* The most slots whose memory on the host is at most `room`; 0: none. */
int64_t plan_host_slots_within(const expert_bank *bank, uint64_t room) {
    int64_t lo = 0, hi = expert_stream_all_slots(bank);
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo + 1) / 2;
        if ((uint64_t)stream_bytes(bank, mid) <= room)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static uint64_t room_beside(const engine_plan *p, uint64_t have) { return have > p->total_bytes ? have - p->total_bytes : 0; }

void plan_typed_size(const expert_bank *bank, int64_t n_slots, char *text, size_t n) {
    const uint64_t mib = (uint64_t)MIB, slot = bank->stream_slot_bytes, bytes = (uint64_t)n_slots * slot, up = (bytes + mib - 1) / mib * mib;
    if (n_slots <= expert_stream_min_slots(bank))
        snprintf(text, n, "min");
    else if (up / slot == (uint64_t)n_slots)
        snprintf(text, n, "%lluM", (unsigned long long)(up / mib));
    else if (bytes / mib * mib / slot >= (uint64_t)expert_stream_min_slots(bank))
        snprintf(text, n, "%lluM", (unsigned long long)(bytes / mib));
    else
        snprintf(text, n, "%llu", (unsigned long long)bytes);
}

static status does_not_fit_stream(const expert_bank *bank, const engine_plan *p, const plan_machine *pm, int64_t n_slots, error *err) {
    const uint64_t have = pm->total_bytes;
    const int64_t fit = plan_host_slots_within(bank, room_beside(p, have)), least = expert_stream_min_slots(bank);
    char size[32];
    plan_typed_size(bank, fit, size, sizeof size);
    if (fit >= least) {
        return error_set(err, STATUS_DOES_NOT_FIT, "plan: %.1f MiB of slots for experts and %.1f MiB for everything else exceed the %.1f MiB that %s; --host-experts %s would fit",
                         (double)expert_store_stream_slot_bytes(bank, n_slots) / MIB, (double)p->total_bytes / MIB, (double)have / MIB, plan_machine_total_text(pm), size);
    }
    return error_set(err, STATUS_DOES_NOT_FIT,
                     "plan: even the least slots for experts, %lld of %.2f MiB, and %.1f MiB for everything else exceed the %.1f MiB that %s; a smaller --ctx, --kv-mem or --max-batch-tokens would have to make room for %.1f MiB",
                     (long long)least, (double)bank->stream_slot_bytes / MIB, (double)p->total_bytes / MIB, (double)have / MIB, plan_machine_total_text(pm), ((double)stream_bytes(bank, least) + (double)p->total_bytes - (double)have) / MIB);
}

static uint64_t resident_need(const expert_bank *bank, const engine_plan *p) { return (uint64_t)p->total_bytes + bank->total_bytes + expert_store_resident_table_bytes(bank); }

static status does_not_fit_resident(const expert_bank *bank, const engine_plan *p, const plan_machine *pm, error *err) {
    const uint64_t have = pm->total_bytes;
    const int64_t fit = plan_host_slots_within(bank, room_beside(p, have));
    char size[32], change[128];
    plan_typed_size(bank, fit, size, sizeof size);
    if (fit >= expert_stream_min_slots(bank))
        snprintf(change, sizeof change, "--experts stream --host-experts %s would fit", size);
    else
        snprintf(change, sizeof change, "streaming takes at least %.1f MiB", ((double)stream_bytes(bank, expert_stream_min_slots(bank)) + (double)p->total_bytes) / MIB);
    return error_set(err, STATUS_DOES_NOT_FIT, "plan: resident experts of %.1f MiB and %.1f MiB for everything else exceed the %.1f MiB that %s; %s", (double)bank->total_bytes / MIB,
                     (double)p->total_bytes / MIB, (double)have / MIB, plan_machine_total_text(pm), change);
}

status plan_asked_slots(const plan_experts *x, plan_host size, uint64_t bytes, const char *flag, int64_t *out, error *err) {
    if (size == PLAN_HOST_MIN) *out = x->min_slots;
    if (size == PLAN_HOST_ALL) *out = x->all_slots;
    if (size == PLAN_HOST_BYTES) *out = bytes / x->slot_bytes < (uint64_t)x->all_slots ? (int64_t)(bytes / x->slot_bytes) : x->all_slots;
    if (size != PLAN_HOST_BYTES || *out >= x->min_slots) return STATUS_OK;
    return error_set(err, STATUS_DOES_NOT_FIT, "plan: %s %llu holds %lld of the %lld experts that one layer of one token takes; the least is %llu bytes (%lld slots of %zu), %s min", flag,
                     (unsigned long long)bytes, (long long)*out, (long long)x->min_slots, (unsigned long long)x->min_slots * x->slot_bytes, (long long)x->min_slots, x->slot_bytes, flag);
}

static status choose_slots(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    const uint64_t have = pm->total_bytes;
    TRY(plan_asked_slots(out, r->host, r->host_bytes, "--host-experts", &out->n_slots, err));
    if (r->host == PLAN_HOST_AUTO) {
        out->size_chosen = true;
        out->n_slots = have > 0 ? plan_host_slots_within(bank, room_beside(p, have)) : out->cycle_slots; /* unknown: what one token takes */
        if (out->n_slots < out->min_slots) return does_not_fit_stream(bank, p, pm, out->min_slots, err);
        if (live && pm->available_bytes > 0) {
            int64_t now = plan_host_slots_within(bank, room_beside(p, pm->available_bytes));
            if (now < out->min_slots) now = out->min_slots; /* the live check refuses */
            if (now < out->n_slots) out->n_slots = now;
        }
    }
    if (have > 0 && (stream_bytes(bank, out->n_slots) > have || stream_bytes(bank, out->n_slots) > room_beside(p, have))) return does_not_fit_stream(bank, p, pm, out->n_slots, err);
    return STATUS_OK;
}

plan_experts plan_experts_of(const expert_bank *bank, plan_tier tier) {
    return (plan_experts){
        .tier = tier,
        .min_slots = expert_stream_min_slots(bank),
        .cycle_slots = expert_stream_cycle_slots(bank),
        .all_slots = expert_stream_all_slots(bank),
        .slot_bytes = bank->stream_slot_bytes,
        .file_bytes = bank->total_bytes,
    };
}

status plan_experts_choose(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    *out = plan_experts_of(bank, r->tier);
    if (r->tier == PLAN_EXPERTS_RESIDENT && r->host != PLAN_HOST_AUTO) return error_set(err, STATUS_INVALID, "config: --host-experts is for --experts stream");
    if (r->tier == PLAN_EXPERTS_STREAM && r->load == LOAD_MAP) return error_set(err, STATUS_INVALID, "config: --experts stream maps nothing; --load map cannot be honoured with it");
    const bool fits = pm->total_bytes == 0 || resident_need(bank, p) <= pm->total_bytes;
    if (out->tier == PLAN_EXPERTS_NONE) {
        out->tier_chosen = true;
        out->tier = r->host != PLAN_HOST_AUTO || (!fits && r->load != LOAD_MAP) ? PLAN_EXPERTS_STREAM : PLAN_EXPERTS_RESIDENT;
        if (out->tier == PLAN_EXPERTS_STREAM && r->load == LOAD_MAP) return error_set(err, STATUS_INVALID, "config: --host-experts streams experts, which maps nothing; --load map cannot be honoured with it");
    }
    if (out->tier == PLAN_EXPERTS_RESIDENT) return fits ? STATUS_OK : does_not_fit_resident(bank, p, pm, err);
    return choose_slots(bank, r, p, pm, live, out, err);
}

void plan_experts_print(const plan_experts *x, textbuf *out) {
    if (x->tier == PLAN_EXPERTS_NONE) return;
    if (x->device_slots > 0) {
        const bool all = x->tier == PLAN_EXPERTS_RESIDENT;
        if (all)
            textbuf_addf(out, "experts: resident, %lld of %.1f MiB on the device%s\n", (long long)x->all_slots, (double)x->file_bytes / MIB, x->tier_chosen ? " (they fit it)" : "");
        else
            textbuf_addf(out, "experts: streamed through %lld slots on the device and %lld on the host, of %.2f MiB (%.1f %% and %.1f %% of %lld experts; one token takes %lld, the least is %lld)%s\n",
                         (long long)x->device_slots, (long long)x->n_slots, (double)x->slot_bytes / MIB, 100.0 * (double)x->device_slots / (double)x->all_slots,
                         100.0 * (double)x->n_slots / (double)x->all_slots, (long long)x->all_slots, (long long)x->cycle_slots, (long long)x->min_slots,
                         x->tier_chosen && x->device_size_chosen ? "; all of them do not fit the device" : "");
        return;
    }
    if (x->tier == PLAN_EXPERTS_RESIDENT) {
        textbuf_addf(out, "experts: resident, %lld of %.1f MiB in the file%s\n", (long long)x->all_slots, (double)x->file_bytes / MIB, x->tier_chosen ? " (they fit this machine)" : "");
        return;
    }
    textbuf_addf(out, "experts: streamed through %lld slots of %.2f MiB (%.1f %% of %lld experts; one token takes %lld, the least is %lld)%s%s\n", (long long)x->n_slots, (double)x->slot_bytes / MIB,
                 100.0 * (double)x->n_slots / (double)x->all_slots, (long long)x->all_slots, (long long)x->cycle_slots, (long long)x->min_slots,
                 x->tier_chosen && x->size_chosen ? "; all of them do not fit this machine" : "", x->size_chosen ? "; as many slots as fit" : "");
}
