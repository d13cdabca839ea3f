/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream store. The engine's thread owns everything but the bytes of slots that are being filled: those belong to the readers between submit and the completion of the fill.
 *
 * A wave: experts that are held are protected first, so that none of them is given up for another; then the missing ones get slots and reads, as many as fit. Those that do not fit (the
 * wave is larger than the slots, the budget shrank since it was cut, or slots are still leased) follow as slots become free.
 *
 * What is read ahead (a hint) is placed once everything of the wave has its slot, as slots come back, and read once the last pieces of the wave are being read. Its slots are protected until the turn of the hinted layer; what is
 * then still being read and wanted becomes a part of the wave, and what is not wanted is dropped as far as no reader has begun it.
 */
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "moe/expert_ahead.h"
#include "moe/expert_pack.h"
#include "moe/expert_reader_choice.h"
#include "moe/expert_wave.h"

enum { LARGE_PAGE_BYTES = 2 << 20, LARGE_SLOTS_BYTES = 3 * LARGE_PAGE_BYTES };

typedef struct fill {
    int32_t layer, expert, slot;
    bool ahead;  /* asked for by a hint */
    bool wanted; /* by the wave */
} fill;

typedef struct stream_store {
    expert_store base;
    mem *m;
    expert_stream_options opt;
    expert_policy *policy;
    expert_reader *reader;
    void *block;          /* what was allocated; NULL with `pinned` */
    vt_buffer pinned;     /* instead, for copies to a device */
    uint8_t *memory;      /* [n_slots * slot_bytes] in it; whole pages where slots are padded */
    expert_reader_choice choice;
    int32_t n_slots, n_fills;
    size_t slot_bytes;
    uint64_t *generation; /* [n_slots] */
    int32_t *fill_of;     /* [n_slots]: the fill ahead that is under way; -1: none */
    int32_t *ahead_of;    /* [n_slots]: the layer of an expert that was read ahead and that nobody has taken yet; -1: none such */
    fill *fills;          /* [n_fills] */
    int32_t *free_fills, n_free_fills;

    expert_wave wave;
    int32_t n_wanted; /* fills of the wave that are under way */
    expert_ahead ahead;
    int64_t n_leases;
    uint64_t wave_ns, wave_stall_ns; /* when the wave began, and what had been waited for by then; 0: none is under way */
    expert_counters counters;
} stream_store;

static stream_store *self(expert_store *base) { return (stream_store *)base; }

/* Slots that may be in use now. */
static int32_t current_limit(const stream_store *s) {
    if (s->opt.budget == NULL) return s->n_slots;
    const size_t n = s->opt.budget(s->opt.budget_ctx) / s->slot_bytes;
    return n < (size_t)s->n_slots ? (int32_t)n : s->n_slots;
}

static int32_t waves(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, int32_t *sizes) {
    (void)layer;
    (void)ids;
    stream_store *s = self(base);
    const int32_t ahead = s->n_fills - s->n_free_fills - s->n_wanted; /* becomes a part of the wave, or is dropped */
    return expert_wave_cut(n, s->opt.rolling ? n : current_limit(s) - expert_policy_n_protected(s->policy) + ahead, sizes);
}

/* ---- a wave ---- */

static uint8_t *slot_at(const stream_store *s, int32_t slot) { return s->memory + (size_t)slot * s->slot_bytes; }

/* What was in the slot before and had been read ahead was read for nothing. */
static void note_wasted(stream_store *s, int32_t slot) {
    if (s->ahead_of[slot] < 0) return;
    s->counters.prefetch_wasted += s->base.bank->layers[s->ahead_of[slot]].file_bytes;
    s->counters.n_prefetch_wasted++;
    s->ahead_of[slot] = -1;
}

/* A slot that was chosen, and its reads. */
static void fill_slot(stream_store *s, int32_t layer, int32_t expert, int32_t slot, bool ahead) {
    note_wasted(s, slot);
    expert_policy_protect(s->policy, slot, true);
    s->generation[slot]++;
    const int32_t i = s->free_fills[--s->n_free_fills];
    expert_range ranges[EXPERT_MAX_PARTS];
    s->fills[i] = (fill){.layer = layer, .expert = expert, .slot = slot, .ahead = ahead, .wanted = !ahead};
    const int32_t n = expert_slot_ranges(s->base.bank, layer, expert, slot_at(s, slot), ranges);
    s->counters.reads += (uint64_t)n;
    if (ahead) {
        s->fill_of[slot] = i;
        expert_reader_submit_ahead(s->reader, i, ranges, n);
    } else {
        s->n_wanted++;
        expert_reader_submit(s->reader, i, ranges, n);
    }
}

static void place_misses(stream_store *s) {
    while (s->wave.next_miss < s->wave.n_misses && s->n_free_fills > 0) {
        const int32_t expert = s->wave.misses[s->wave.next_miss], slot = expert_policy_place(s->policy, s->wave.layer, expert, current_limit(s), &s->counters.evictions);
        if (slot < 0) return;
        s->wave.next_miss++;
        fill_slot(s, s->wave.layer, expert, slot, false);
    }
}

/* A fill is over: the bytes count when all came; a slot whose fill failed is empty. The slot stays protected when it succeeded. */
static status finish_fill(stream_store *s, int32_t i, error *err) {
    const fill *f = &s->fills[i];
    status rc = expert_reader_outcome(s->reader, i, err);
    if (rc == STATUS_OK) {
        rc = s->base.bank->packed != NULL ? expert_pack_check(s->base.bank, f->layer, f->expert, slot_at(s, f->slot), err) : expert_bank_intact(s->base.bank, f->layer, f->expert, err);
    }
    s->free_fills[s->n_free_fills++] = i;
    if (f->ahead) s->fill_of[f->slot] = -1;
    if (f->wanted) s->n_wanted--;
    if (rc == STATUS_OK) {
        s->counters.bytes_read += s->base.bank->layers[f->layer].file_bytes;
        expert_slot_settle(s->base.bank, f->layer, f->expert, slot_at(s, f->slot));
        return STATUS_OK;
    }
    expert_policy_forget(s->policy, f->slot);
    expert_policy_protect(s->policy, f->slot, false);
    return rc;
}

/* ---- ahead ---- */

static void note_used(stream_store *s, int32_t layer) {
    s->counters.prefetch_used += s->base.bank->layers[layer].file_bytes;
    s->counters.n_prefetch_used++;
}

/* One that the wave waited for. */
static void note_taken_late(stream_store *s, const fill *f) {
    s->counters.n_prefetched++;
    note_used(s, f->layer);
    if (f->layer != s->ahead.layer) return;
    s->ahead.n_read++;
    s->ahead.n_taken++;
}

/* A fill ahead that the wave does not want is over; it failed for nobody. Its slot is kept for the hint while that waits for its turn and the wave has all its slots. */
static void finish_ahead(stream_store *s, int32_t i) {
    const fill f = s->fills[i];
    if (finish_fill(s, i, NULL) != STATUS_OK) return;
    s->counters.n_prefetched++;
    s->ahead_of[f.slot] = f.layer;
    if (f.layer == s->ahead.layer) s->ahead.n_read++;
    if (f.layer == s->ahead.layer && !s->ahead.due && s->wave.next_miss == s->wave.n_misses)
        s->ahead.slots[s->ahead.n_slots++] = f.slot;
    else
        expert_policy_protect(s->policy, f.slot, false);
}

/* Between waves every fill is one ahead. */
static void take_in_ahead(stream_store *s) {
    for (int32_t i; s->n_wanted == 0 && (i = expert_reader_next(s->reader, false, &s->counters.stall_ns)) >= 0;) finish_ahead(s, i);
}

static void unprotect_ahead(stream_store *s) {
    while (s->ahead.n_slots > 0) expert_policy_protect(s->policy, s->ahead.slots[--s->ahead.n_slots], false);
}

static void end_hint(stream_store *s) {
    unprotect_ahead(s);
    expert_reader_drop_ahead(s->reader);
    expert_ahead_end(&s->ahead);
}

/* Slots for what is hinted, when everything that is wanted has one. */
static void advance(stream_store *s) {
    expert_ahead *a = &s->ahead;
    while (a->next < a->n && !a->due && s->wave.next_miss == s->wave.n_misses && s->n_free_fills > 0) {
        const int32_t expert = a->ids[a->next], held = expert_policy_find(s->policy, a->layer, expert);
        if (held >= 0 && s->fill_of[held] < 0) { /* not to be given up for another */
            expert_policy_protect(s->policy, held, true);
            a->slots[a->n_slots++] = held;
        } else if (held < 0) {
            const int32_t slot = expert_policy_place_ahead(s->policy, a->layer, expert, current_limit(s), &s->counters.evictions);
            if (slot < 0) return; /* until slots come back */
            fill_slot(s, a->layer, expert, slot, true);
        }
        a->next++;
    }
}

static void hint(expert_store *base, int32_t layer, const int32_t *ids, int32_t n) {
    stream_store *s = self(base);
    if (!expert_reader_can_read_ahead(s->reader)) return;
    end_hint(s);
    expert_ahead_set(&s->ahead, layer, ids, n);
    advance(s);
}

static bool wants_hint(expert_store *base, int32_t layer, int64_t n_asked) {
    stream_store *s = self(base);
    if (expert_policy_used(s->policy) == expert_stream_all_slots(base->bank)) return false; /* nothing is left to read: a guess would only hold up the layer */
    return expert_reader_can_read_ahead(s->reader) && expert_ahead_wants(&s->ahead, n_asked, s->base.bank->layers[layer].n_experts);
}

static void enter(expert_store *base, int32_t layer) {
    stream_store *s = self(base);
    expert_wave_enter(&s->wave, s->policy, layer);
    take_in_ahead(s);
    if (layer == s->ahead.layer) {
        unprotect_ahead(s);
        s->ahead.due = true;
    } else if (s->ahead.layer >= 0) {
        end_hint(s);
    }
}

/* The wave's hits that were read ahead, and those of them that are still under way: not to be given out before they are complete. What else is ahead waits no longer. */
static void claim_ahead(stream_store *s) {
    int32_t n = 0;
    for (int32_t h = 0; h < s->wave.n_hits; h++) {
        const int32_t slot = s->wave.hits[h], i = s->fill_of[slot];
        const bool counts = s->wave.layer == s->ahead.layer;
        if (s->ahead_of[slot] >= 0) {
            note_used(s, s->wave.layer);
            s->ahead_of[slot] = -1;
            s->ahead.n_taken += counts;
        }
        if (i < 0) {
            s->wave.hits[n++] = slot;
            continue;
        }
        s->fills[i].wanted = true;
        s->n_wanted++;
        expert_policy_protect(s->policy, slot, false); /* the fill's own protection becomes the lease's */
        expert_reader_want(s->reader, i);
    }
    s->wave.n_hits = n;
    if (s->ahead.due) expert_reader_drop_ahead(s->reader);
    unprotect_ahead(s);
}

/* ---- a wave, as it is given out ---- */

static status begin(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, error *err) {
    stream_store *s = self(base);
    TRY(expert_wave_check(&s->wave, s->base.bank, layer, n, s->n_wanted > 0, err));
    take_in_ahead(s);
    s->wave_ns = os_now_ns();
    s->wave_stall_ns = s->counters.stall_ns;
    expert_wave_begin(&s->wave, s->policy, &s->counters, layer, ids, n);
    claim_ahead(s);
    s->counters.evictions += (uint64_t)expert_policy_shrink(s->policy, current_limit(s));
    place_misses(s);
    return STATUS_OK;
}

static void give(stream_store *s, int32_t expert, int32_t slot, expert_lease *lease) {
    *lease = (expert_lease){.layer = s->wave.layer, .expert = expert, .slot = slot, .generation = s->generation[slot]};
    expert_slot_parts(s->base.bank, s->wave.layer, expert, slot_at(s, slot), lease->part);
    s->n_leases++;
}

/* What of the wave's time was not spent waiting for reads went into computing. */
static void end_wave(stream_store *s) {
    if (s->wave_ns != 0) s->counters.compute_ns += os_now_ns() - s->wave_ns - (s->counters.stall_ns - s->wave_stall_ns);
    s->wave_ns = 0;
}

/* What was read ahead and failed is read again for the wave, which is told if that fails too. */
static void read_again(stream_store *s, const fill *f) {
    s->counters.hits--;
    s->counters.misses++;
    s->wave.misses[s->wave.n_misses++] = f->expert; /* it was among the hits: there is room */
}

static status next_ready(expert_store *base, expert_lease *lease, error *err) {
    stream_store *s = self(base);
    int32_t expert;
    place_misses(s);
    advance(s);
    const int32_t slot = expert_wave_next_hit(&s->wave, s->policy, &expert);
    if (slot >= 0) {
        expert_reader_go_on(s->reader);
        give(s, expert, slot, lease);
        return STATUS_OK;
    }
    while (s->n_wanted > 0 || s->wave.next_miss < s->wave.n_misses) {
        const int32_t i = expert_reader_next(s->reader, true, &s->counters.stall_ns);
        if (i < 0) {
            *lease = (expert_lease){.layer = s->wave.layer, .expert = s->wave.misses[s->wave.next_miss], .slot = -1};
            return error_set(err, STATUS_DOES_NOT_FIT, "experts: expert %d of layer %d finds no slot: the budget allows %d of %zu bytes each, and %lld are leased", lease->expert, s->wave.layer,
                             current_limit(s), s->slot_bytes, (long long)s->n_leases);
        }
        const fill f = s->fills[i];
        if (!f.wanted) {
            finish_ahead(s, i);
            place_misses(s);
            continue;
        }
        const status rc = finish_fill(s, i, err);
        if (rc == STATUS_OK) {
            if (f.ahead) note_taken_late(s, &f);
            give(s, f.expert, f.slot, lease);
            return STATUS_OK;
        }
        if (f.ahead) {
            read_again(s, &f);
            place_misses(s);
            continue;
        }
        s->counters.failed++;
        *lease = (expert_lease){.layer = f.layer, .expert = f.expert, .slot = -1};
        error_prefix(err, "experts: expert %d of layer %d", f.expert, f.layer);
        return rc;
    }
    end_wave(s);
    return STATUS_NOT_FOUND;
}

static void release(expert_store *base, const expert_lease *lease, vt_fence last_use) {
    stream_store *s = self(base);
    if (lease->slot < 0 || lease->slot >= s->n_slots || lease->generation != s->generation[lease->slot]) {
        log_error("experts: a lease of slot %d is released that is not held", lease->slot);
        return;
    }
    if (last_use.handle != NULL && s->opt.consumer != NULL && vt_fence_wait_host(s->opt.consumer, last_use) != STATUS_OK) {
        log_warn("experts: the device has failed while it used slot %d", lease->slot);
    }
    expert_policy_protect(s->policy, lease->slot, false);
    s->n_leases--;
    advance(s);
}

static void cancel(expert_store *base) {
    stream_store *s = self(base);
    s->wave.next_miss = s->wave.n_misses;
    end_wave(s);
    expert_wave_drop_hits(&s->wave, s->policy);
    expert_reader_drop(s->reader);
    unprotect_ahead(s);
    s->ahead.layer = -1; /* nothing is to be learnt from it */
    expert_ahead_end(&s->ahead);
    for (int32_t i; (i = expert_reader_next(s->reader, true, &s->counters.stall_ns)) >= 0;) {
        const int32_t slot = s->fills[i].slot;
        if (!s->fills[i].wanted)
            finish_ahead(s, i);
        else if (finish_fill(s, i, NULL) == STATUS_OK)
            expert_policy_protect(s->policy, slot, false); /* it is there: it may as well be used */
    }
}

static void counters(expert_store *base, expert_counters *out) {
    stream_store *s = self(base);
    *out = s->counters;
    out->disk_ns = expert_reader_busy_ns(s->reader);
    out->disk_bytes_per_s = (uint64_t)s->choice.bytes_per_s;
    out->read_way = (int32_t)s->choice.way;
    out->read_depth = s->choice.depth;
    expert_wave_count(&s->wave, s->policy, s->n_slots, s->slot_bytes, out);
    out->bytes_untouched = s->pinned.pinned || expert_reader_registered(s->reader) ? 0 : out->n_slots * out->slot_bytes - out->bytes_resident;
}

static status close_store(expert_store *base) {
    stream_store *s = self(base);
    const status rc = s->n_leases == 0 ? STATUS_OK : STATUS_BUG;
    if (s->reader != NULL && s->policy != NULL) cancel(base);
    expert_reader_destroy(s->reader);
    expert_policy_destroy(s->policy);
    void *const blocks[] = {s->block, s->generation, s->fill_of, s->ahead_of, s->fills, s->free_fills};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) mem_free(s->m, blocks[i]);
    expert_wave_deinit(&s->wave, s->m);
    expert_ahead_deinit(&s->ahead, s->m);
    vt_buffer_free(&s->pinned);
    mem_free(s->m, s);
    return rc;
}

/* ---- sizes ---- */

int64_t expert_stream_min_slots(const expert_bank *bank) { return bank->max_top_k; }

int64_t expert_stream_cycle_slots(const expert_bank *bank) {
    int64_t n = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) n += bank->layers[l].top_k;
    return n;
}

int32_t expert_stream_policy(const expert_bank *bank, int64_t n_slots) {
    (void)bank;
    (void)n_slots;
    return EXPERT_POLICY_BLEND; /* the best at every budget that was measured: docs/EXPERTS.md */
}

int64_t expert_stream_all_slots(const expert_bank *bank) {
    int64_t n = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) n += bank->layers[l].n_experts;
    return n;
}

/* Those of a wave and those of a hint. */
static int32_t count_fills(const expert_bank *bank, int64_t n_slots) { return n_slots < 2 * (int64_t)bank->max_experts ? (int32_t)n_slots : 2 * bank->max_experts; }

/* Padded slots begin at a page, and where they are large enough at one of 2 MiB: what is read into the small ones in front of it comes at a fraction of a fast disk's rate. */
static size_t page_bytes(size_t slots_bytes) { return slots_bytes >= LARGE_SLOTS_BYTES ? LARGE_PAGE_BYTES : EXPERT_PAGE_BYTES; }
static size_t spare_bytes(const expert_bank *bank, size_t slots_bytes) { return bank->padded ? page_bytes(slots_bytes) : 0; }

size_t expert_store_stream_slot_bytes(const expert_bank *bank, int64_t n_slots) {
    size_t bytes;
    if (n_slots < 1 || n_slots > INT32_MAX / 2 || !checked_mul_size((size_t)n_slots, bank->stream_slot_bytes, &bytes) || !checked_add_size(bytes, MEM_HEADER_BYTES + MEM_ALIGN + spare_bytes(bank, bytes), &bytes)) {
        return SIZE_MAX;
    }
    return bytes;
}

size_t expert_store_stream_table_bytes(const expert_bank *bank, int64_t n_slots) {
    if (n_slots < 1 || n_slots > INT32_MAX / 2) return SIZE_MAX;
    const int32_t n_fills = count_fills(bank, n_slots);
    const size_t policy = expert_policy_bytes((int32_t)n_slots, bank->n_layers, bank->max_experts), reader = expert_reader_bytes(n_fills, EXPERT_MAX_PARTS);
    if (policy == SIZE_MAX || reader == SIZE_MAX) return SIZE_MAX;
    return policy + reader + sizeof(stream_store) + (size_t)n_slots * (sizeof(uint64_t) + 2 * sizeof(int32_t)) + (size_t)n_fills * (sizeof(fill) + sizeof(int32_t)) +
           expert_wave_bytes(bank) + expert_ahead_bytes(bank->max_experts) + 6 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

/* ---- create ---- */

static status allocate(stream_store *s, error *err) {
    const expert_bank *bank = s->base.bank;
    const size_t slots = (size_t)s->n_slots, n_fills = (size_t)s->n_fills;
    void *p;
    const size_t page = page_bytes(slots * s->slot_bytes), bytes = slots * s->slot_bytes + spare_bytes(bank, slots * s->slot_bytes);
    if (s->opt.copied_to != NULL) {
        TRY(vt_buffer_alloc_host(s->opt.copied_to, MEM_EXPERTS, bytes, "expert slots", &s->pinned, err));
        p = s->pinned.data;
    } else {
        TRY(mem_alloc_named(s->m, MEM_EXPERTS, bytes, "expert slots", &p, err));
        os_prefer_large_pages(p, bytes);
        s->block = p;
    }
    s->memory = bank->padded ? (uint8_t *)(((uintptr_t)p + page - 1) / page * page) : p;
    s->generation = mem_calloc(s->m, MEM_MODEL, slots, sizeof *s->generation);
    s->fill_of = mem_calloc(s->m, MEM_MODEL, slots, sizeof *s->fill_of);
    s->ahead_of = mem_calloc(s->m, MEM_MODEL, slots, sizeof *s->ahead_of);
    s->fills = mem_calloc(s->m, MEM_MODEL, n_fills, sizeof *s->fills);
    s->free_fills = mem_calloc(s->m, MEM_MODEL, n_fills, sizeof *s->free_fills);
    if (s->generation == NULL || s->fill_of == NULL || s->ahead_of == NULL || s->fills == NULL || s->free_fills == NULL || !expert_wave_init(&s->wave, s->m, bank) ||
        !expert_ahead_init(&s->ahead, s->m, (expert_ahead_mode)s->opt.ahead, bank->max_experts)) {
        return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the tables of %d slots", s->n_slots);
    }
    for (int32_t i = 0; i < s->n_slots; i++) s->fill_of[i] = s->ahead_of[i] = -1;
    for (int32_t i = 0; i < s->n_fills; i++) s->free_fills[s->n_free_fills++] = i;
    return STATUS_OK;
}

static status create(stream_store *s, error *err) {
    const expert_bank *bank = s->base.bank;
    const int64_t cycle = expert_stream_cycle_slots(bank);
    expert_policy_kind kind = (expert_policy_kind)expert_stream_policy(bank, s->n_slots);
    if (s->opt.policy > 0) kind = (expert_policy_kind)(s->opt.policy - 1);
    TRY(allocate(s, err));
    TRY(expert_policy_create(s->m, kind, s->n_slots, bank->n_layers, bank->max_experts, &s->policy, err));
    TRY(expert_reader_choose(s->m, bank, s->opt.read_way, s->opt.n_readers, s->n_fills, s->opt.ahead != EXPERT_AHEAD_OFF, s->memory, (size_t)s->n_slots * s->slot_bytes, &s->reader, &s->choice, err));
    static const char *const ahead[] = {"", "; experts of the next layer are read ahead while it pays", "; experts of the next layer are read ahead"};
    log_write(bank->padded ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "%s%s%s", s->choice.why, expert_reader_registered(s->reader) ? "; slots registered" : "",
              ahead[expert_reader_can_read_ahead(s->reader) ? s->ahead.mode : EXPERT_AHEAD_OFF]);
    if (s->n_slots < cycle) {
        log_info("experts: %d slots are fewer than the %lld experts that one token takes: few of them will be found again", s->n_slots, (long long)cycle);
    }
    return STATUS_OK;
}

void *expert_store_stream_memory(const expert_store *base, size_t *bytes) {
    const stream_store *s = (const stream_store *)base;
    *bytes = (size_t)s->n_slots * s->slot_bytes;
    return s->memory;
}

bool expert_store_stream_pinned(const expert_store *base) { return ((const stream_store *)base)->pinned.pinned; }

static bool holds(const expert_store *base, int32_t layer, int32_t expert) {
    const stream_store *s = (const stream_store *)base;
    const int32_t slot = expert_policy_find(s->policy, layer, expert);
    return slot >= 0 && s->fill_of[slot] < 0;
}

status expert_store_stream_create(mem *m, const expert_bank *bank, const expert_stream_options *opt, expert_store **out, error *err) {
    const int64_t least = expert_stream_min_slots(bank), most = expert_stream_all_slots(bank);
    if (bank->stream_slot_bytes == 0) return error_set(err, STATUS_BUG, "experts: a store for a model without experts");
    const size_t n = opt->budget_bytes / bank->stream_slot_bytes;
    if (n < (size_t)least) {
        return error_set(err, STATUS_DOES_NOT_FIT, "experts: %zu bytes hold %zu of the %lld experts that one layer of one token takes; the least is %lld bytes (%lld slots of %zu)",
                         opt->budget_bytes, n, (long long)least, (long long)least * (long long)bank->stream_slot_bytes, (long long)least, bank->stream_slot_bytes);
    }
    stream_store *s = mem_calloc(m, MEM_MODEL, 1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a store");
    s->base = (expert_store){"stream", bank, waves, begin, next_ready, release, hint, cancel, counters, close_store, holds, enter, wants_hint, NULL, NULL};
    s->m = m;
    s->opt = *opt;
    s->n_slots = n < (size_t)most ? (int32_t)n : (int32_t)most;
    s->slot_bytes = bank->stream_slot_bytes;
    s->n_fills = count_fills(bank, s->n_slots);
    const status rc = most > INT32_MAX / 2 ? error_set(err, STATUS_UNSUPPORTED, "experts: more than %d experts", INT32_MAX / 2) : create(s, err);
    if (rc != STATUS_OK) {
        (void)close_store(&s->base);
        return rc;
    }
    *out = &s->base;
    return STATUS_OK;
}
