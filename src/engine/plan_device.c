/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where experts go when the device does not compute in host memory: all onto it when they fit there, slots on it over slots on the host otherwise. Pure. On a shared pool a byte that both
 * tiers hold is there twice, so the host's slots are few unless a size is asked for.
 */
#include <stdio.h>

#include "engine/plan.h"

static const double MIB = 1024.0 * 1024.0;
enum { DEVICE_SLACK = 512 }; /* alignment of one buffer */

/* Room for slots: on the device, and on the host; on a shared pool both, and their sum. */
typedef struct rooms {
    uint64_t device, host, both;
    bool host_known;
} rooms;

static uint64_t less(uint64_t have, uint64_t used) { return have > used ? have - used : 0; }

static rooms rooms_of(const expert_bank *bank, const engine_plan *p, const plan_machine *pm, uint64_t device_have, uint64_t host_have) {
    const uint64_t tables = expert_store_device_table_bytes(bank, expert_stream_all_slots(bank));
    rooms r = {.device = less(device_have, p->device_total_bytes + DEVICE_SLACK), .both = UINT64_MAX, .host_known = host_have > 0};
    if (p->pool == PLAN_POOL_SHARED) {
        const uint64_t one = os_smaller_known(host_have, pm->device_total_bytes);
        r.host_known = one > 0;
        r.both = one > 0 ? less(one, p->total_bytes + DEVICE_SLACK + tables) : UINT64_MAX;
        r.host = r.both;
        if (r.both < r.device) r.device = r.both;
    } else {
        r.host = less(host_have, p->total_bytes - p->device_total_bytes + tables);
    }
    return r;
}

static uint64_t host_bytes(const expert_bank *bank, int64_t n) {
    return (uint64_t)expert_store_stream_slot_bytes(bank, n) + expert_store_stream_table_bytes(bank, n);
}

static int64_t clamp(uint64_t n, int64_t most) { return n < (uint64_t)most ? (int64_t)n : most; }

static status no_room(const expert_bank *bank, const char *flag, int64_t n, uint64_t room, const char *where, error *err) {
    char size[32], change[96];
    const int64_t fit = clamp(room / bank->stream_slot_bytes, expert_stream_all_slots(bank));
    plan_typed_size(bank, fit, size, sizeof size);
    if (fit >= expert_stream_min_slots(bank))
        snprintf(change, sizeof change, "%s %s would fit", flag, size);
    else
        snprintf(change, sizeof change, "the least is %.1f MiB; a smaller --ctx, --kv-mem or --max-batch-tokens makes room", (double)expert_stream_min_slots(bank) * (double)bank->stream_slot_bytes / MIB);
    return error_set(err, STATUS_DOES_NOT_FIT, "plan: %.1f MiB of slots for experts exceed the %.1f MiB that are left %s beside everything else; %s", (double)n * (double)bank->stream_slot_bytes / MIB,
                     (double)room / MIB, where, change);
}

uint64_t plan_pinned_limit(const plan_machine *pm) { return pm->pinned_given ? pm->pinned_bytes : pm->total_bytes > 0 ? pm->total_bytes / 2 : UINT64_MAX; }

/* What slots of a size that nobody asked for take at most: half of the host, which nobody else gets once it is pinned, or more where more may be pinned; less what else is. */
static uint64_t most_unasked(const engine_plan *p, const plan_machine *pm, uint64_t host) {
    const uint64_t most = pm->pinned_given && pm->pinned_bytes > host / 2 ? pm->pinned_bytes : host / 2;
    return less(most, p->bytes[MEM_STAGING]);
}

/* What steps exchange is pinned first; then the slots, or the ring, which is a part of p's staging. */
static void choose_pins(const expert_bank *bank, const engine_plan *p, const plan_machine *pm, plan_experts *out) {
    const uint64_t limit = plan_pinned_limit(pm), left = less(limit, p->bytes[MEM_STAGING]);
    out->pinned_limit_bytes = limit;
    out->staging_bytes = staging_ring_bytes(expert_store_device_staging(bank));
    out->exchanged_bytes = less(p->bytes[MEM_STAGING], out->staging_bytes);
    out->pin = limit < p->bytes[MEM_STAGING] ? PLAN_PIN_DRIVER : PLAN_PIN_RING;
    if (out->pin == PLAN_PIN_RING && p->pool == PLAN_POOL_OWN && expert_store_stream_slot_bytes(bank, out->n_slots) <= left) out->pin = PLAN_PIN_SLOTS;
}

void plan_pin_print(const plan_experts *x, textbuf *out) {
    const double slots = (double)x->n_slots * (double)x->slot_bytes / MIB, ring = (double)x->staging_bytes / MIB;
    char most[48] = "";
    if (x->pinned_limit_bytes != UINT64_MAX) snprintf(most, sizeof most, " (of %.1f MiB that may be)", (double)x->pinned_limit_bytes / MIB);
    const char *const why = x->pin_refused ? "pinning refused" : "not pinned";
    if (x->pin == PLAN_PIN_SLOTS) textbuf_addf(out, "host slots: pinned%s\n", most);
    if (x->pin == PLAN_PIN_RING) textbuf_addf(out, "host slots: %s, %.1f MiB%s: copies are staged through %.1f MiB\n", why, slots, most, ring);
    if (x->pin == PLAN_PIN_DRIVER) textbuf_addf(out, "host slots: %s, %.1f MiB, nor the %.1f MiB to stage them beside %.1f MiB of other staging%s: copies go through the driver\n", why, slots, ring, (double)x->exchanged_bytes / MIB, most);
}

static status choose_slots(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    rooms room = rooms_of(bank, p, pm, plan_device_limit(pm), pm->total_bytes);
    uint64_t most = most_unasked(p, pm, pm->total_bytes);
    const bool shared = p->pool == PLAN_POOL_SHARED;
    TRY(plan_asked_slots(out, r->device, r->device_bytes, "--device-experts", &out->device_slots, err));
    TRY(plan_asked_slots(out, r->host, r->host_bytes, "--host-experts", &out->n_slots, err));
    out->device_size_chosen = r->device == PLAN_HOST_AUTO;
    out->size_chosen = r->host == PLAN_HOST_AUTO;
    if (live) { /* what is open shrinks to what is there now */
        const uint64_t host_now = os_smaller_known(pm->total_bytes, pm->available_bytes);
        const rooms now = rooms_of(bank, p, pm, os_smaller_known(plan_device_limit(pm), pm->device_available_bytes), host_now);
        most = most_unasked(p, pm, host_now);
        if (out->device_size_chosen) room.device = now.device;
        if (out->size_chosen) room.host = now.host;
        if (out->device_size_chosen && out->size_chosen) room.both = now.both;
    }
    if (out->size_chosen) {
        const uint64_t of_it = shared ? room.both / 8 : room.host < most ? room.host : most;
        out->n_slots = room.host_known ? plan_host_slots_within(bank, of_it) : out->cycle_slots;
        if (out->n_slots < out->min_slots) out->n_slots = out->min_slots;
    }
    const uint64_t host = host_bytes(bank, out->n_slots);
    if (room.host_known && host > room.host && !(live && out->size_chosen)) return no_room(bank, "--host-experts", out->n_slots, room.host, "on the host", err);
    if (shared && room.both != UINT64_MAX && less(room.both, host) < room.device) room.device = less(room.both, host);
    if (out->device_size_chosen) {
        out->device_slots = clamp(room.device / out->slot_bytes, out->all_slots);
        if (out->device_slots < out->min_slots && live) out->device_slots = out->min_slots; /* the live check refuses */
        if (out->device_slots < out->min_slots) return no_room(bank, "--device-experts", out->min_slots, room.device, "on the device", err);
    }
    if (!(live && out->device_size_chosen) && (uint64_t)out->device_slots * out->slot_bytes > room.device) return no_room(bank, "--device-experts", out->device_slots, room.device, "on the device", err);
    choose_pins(bank, p, pm, out);
    return STATUS_OK;
}

status plan_experts_choose_device(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    *out = plan_experts_of(bank, r->tier);
    const bool sizes = r->host != PLAN_HOST_AUTO || r->device != PLAN_HOST_AUTO;
    if (r->tier == PLAN_EXPERTS_RESIDENT && sizes) return error_set(err, STATUS_INVALID, "config: --host-experts and --device-experts are for --experts stream");
    if (plan_device_limit(pm) == 0) return error_set(err, STATUS_DOES_NOT_FIT, "plan: the device does not say how much memory it has; nothing is put there without --device-mem SIZE");
    const rooms room = rooms_of(bank, p, pm, plan_device_limit(pm), pm->total_bytes);
    const uint64_t need = expert_store_resident_copy_bytes(bank, false);
    const bool fits = need <= room.device;
    if (out->tier == PLAN_EXPERTS_NONE) {
        out->tier_chosen = true;
        out->tier = sizes || !fits ? PLAN_EXPERTS_STREAM : PLAN_EXPERTS_RESIDENT;
    }
    if (out->tier == PLAN_EXPERTS_STREAM) return choose_slots(bank, r, p, pm, live, out, err);
    out->device_slots = out->all_slots;
    if (fits) return STATUS_OK;
    char size[32], change[96] = "even --device-experts min does not fit";
    const int64_t fit = clamp(room.device / bank->stream_slot_bytes, out->all_slots);
    plan_typed_size(bank, fit, size, sizeof size);
    if (fit >= out->min_slots) snprintf(change, sizeof change, "--experts stream --device-experts %s would fit", size);
    return error_set(err, STATUS_DOES_NOT_FIT, "plan: resident experts of %.1f MiB exceed the %.1f MiB that are left on the device beside everything else; %s", (double)need / MIB,
                     (double)room.device / MIB, change);
}
