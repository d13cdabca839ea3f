/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device store: slots in device memory, allocated once, filled from a lower store over the vtable. An expert that is missing is leased below, its parts are copied on the copy queue,
 * and it is given out at once with a fence that says when they are there. The lower lease goes back when that fence is done, and the slot is emptied when it failed. A slot that was
 * released stays protected until its consumer's fence is done.
 *
 * Where the lower slots are not pinned, parts go through a ring that is (staging_ring.h): the engine's threads fill a piece while those before it are copied, and the lower lease goes back
 * when the last byte is in the ring.
 *
 * A miss that the processor computes gets no slot: the lower lease itself is given out. When it comes back, and the layer wanted no copies, the expert may be copied behind: the lower lease is
 * then kept until that copy is over, as with any other. Such copies are few at a time, and whoever asks for the expert while one is under way has a hit that waits for its fence.
 *
 * A hint's experts are copied ahead, the same way, when everything of the layer has its copy queued: the link then has something to do until the next layer's choice is known. A few at a time,
 * because what is queued there cannot be taken back, and only what the lower store holds.
 */
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "moe/expert_ahead.h"
#include "moe/expert_wave.h"

typedef struct retiring {
    int32_t slot;
    vt_fence last_use;
} retiring;

/* A copy that is under way, and the lower lease that it reads, if it does. */
typedef struct sending {
    expert_lease from;
    bool reads; /* the lower lease is held */
    int32_t slot;
    uint64_t generation;
    bool behind; /* of an expert that nobody waits for: the slot's protection is the copy's own */
} sending;

typedef struct device_store {
    expert_store base;
    mem *m;
    vt_device *device;
    vt_queue *copies;
    expert_store *below;
    expert_policy *policy;
    vt_buffer memory;
    int32_t n_slots, n_fences;
    size_t slot_bytes;
    uint64_t *generation;
    size_t *part_off;      /* [n_slots][EXPERT_MAX_PARTS]: where its parts lie in a slot */
    vt_fence *ready;       /* [n_slots]: the last copy into the slot */
    vt_fence early;        /* what comes first of the last expert of a wave */
    bool has_early, is_early; /* it was made; it is of the newest copy */
    retiring *leaving;     /* ring [n_slots], oldest first: released, and not yet done with */
    int32_t first_leaving, n_leaving;
    sending *sent;         /* ring [sent_places], oldest first; the copy queue keeps their order */
    int32_t first_sent, n_sent, n_read; /* n_read: of n_sent, those that hold a lower lease */
    status late;           /* what a fence said of work that had been given out already; for the next answer */

    expert_wave wave;                     /* misses that have been given turn -1 */
    int32_t *sizes, n_sizes, next_size;   /* waves of the lower store over what was placed last */
    int32_t next_below;                   /* first of misses that the next of them is about */
    bool below_active;

    expert_device_options opt;
    const int32_t *rows;          /* of the layer's experts, by the step; NULL: not said */
    int32_t n_copied;             /* of the wave's misses; those behind are the processor's, and get no slots */
    int32_t most_behind;
    int64_t below_slots;
    int64_t n_host_leases;

    expert_ahead ahead; /* the hint; slots: of those that were copied ahead */
    bool copies_ahead;  /* the lower store says what it holds, and has slots to spare */
    bool wanted_below, wanted_ahead; /* of the hint to come */
    bool hint_waits;    /* until the layer has what it wants, and its consumer is queued: copies of theirs would wait behind those ahead */
    bool wave_over;     /* everything of it was given out */
    int64_t n_leases;
    expert_counters counters;
} device_store;

static device_store *self(expert_store *base) { return (device_store *)base; }

/* Of a wave, and behind the one before. */
static int32_t sent_places(const expert_bank *bank) { return bank->max_experts + EXPERT_MOST_BEHIND; }

/* Who says nothing of rows computes nothing on the host. */
static expert_miss_mode miss_mode(const device_store *s) { return s->rows != NULL ? s->opt.miss : EXPERT_MISS_UPLOAD; }

/* ---- slots that wait for their last consumer ---- */

static void let_go(device_store *s) {
    expert_policy_protect(s->policy, s->leaving[s->first_leaving].slot, false);
    s->first_leaving = (s->first_leaving + 1) % s->n_slots;
    s->n_leaving--;
}

/* Those of a wave share a fence, which is asked once. */
static void let_go_of_the_done(device_store *s) {
    for (const void *done = NULL; s->n_leaving > 0; let_go(s)) {
        const vt_fence f = s->leaving[s->first_leaving].last_use;
        if (f.handle != done && !vt_fence_done(s->device, f)) return;
        done = f.handle;
    }
}

static void await_oldest(device_store *s) {
    const status rc = vt_fence_wait_host(s->device, s->leaving[s->first_leaving].last_use);
    if (rc != STATUS_OK) s->late = rc;
    let_go(s);
}

static void enter(expert_store *base, int32_t layer) {
    device_store *s = self(base);
    expert_wave_enter(&s->wave, s->policy, layer);
    if (s->ahead.layer >= 0 && layer != s->ahead.layer) expert_ahead_end(&s->ahead);
    if (s->below->enter != NULL) s->below->enter(s->below, layer); /* however often it is asked in this layer, or not at all */
}

static int32_t waves(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, int32_t *sizes) {
    (void)layer;
    (void)ids;
    device_store *s = self(base);
    const int32_t room = s->n_slots - (int32_t)s->n_leases; /* what is leaving can be waited for */
    return expert_wave_cut(n, miss_mode(s) == EXPERT_MISS_HOST ? n : room, sizes); /* what is computed elsewhere needs no slot */
}

static void rows(expert_store *base, const int32_t *n_rows) { self(base)->rows = n_rows; }

/* ---- copies under way ---- */

static void give_back_below(device_store *s, sending *c) {
    if (!c->reads) return;
    s->below->release(s->below, &c->from, (vt_fence){0});
    c->reads = false;
    s->n_read--;
}

/* The oldest copy is over, and has been waited for: its lower lease goes back; what did not arrive, or may not have, is not there. */
static void drop_oldest_copy(device_store *s, bool doubtful) {
    const sending *c = &s->sent[s->first_sent];
    if (s->late != STATUS_OK || doubtful) { /* whose failure a device tells is not said */
        s->counters.failed++;
        if (s->generation[c->slot] == c->generation) expert_policy_forget(s->policy, c->slot);
    }
    if (c->behind) expert_policy_protect(s->policy, c->slot, false);
    give_back_below(s, &s->sent[s->first_sent]);
    s->first_sent = (s->first_sent + 1) % sent_places(s->base.bank);
    s->n_sent--;
}

static void await_copy(device_store *s, int32_t place) {
    const status rc = vt_fence_wait_host(s->device, s->ready[s->sent[place].slot]);
    if (rc != STATUS_OK) s->late = rc;
}

static void end_oldest_copy(device_store *s, bool doubtful) {
    await_copy(s, s->first_sent);
    drop_oldest_copy(s, doubtful);
}

/* Where the newest is over all are: between layers, when the link has nothing to do until this is through, that is one question instead of one for each. */
static void end_done_copies(device_store *s) {
    const int32_t newest = (s->first_sent + s->n_sent - 1) % sent_places(s->base.bank);
    if (s->n_sent > 1 && vt_fence_done(s->device, s->ready[s->sent[newest].slot])) {
        await_copy(s, newest);
        while (s->n_sent > 0) drop_oldest_copy(s, false);
    }
    while (s->n_sent > 0 && vt_fence_done(s->device, s->ready[s->sent[s->first_sent].slot])) end_oldest_copy(s, false);
}

static void end_all_copies(device_store *s, bool doubtful) {
    while (s->n_sent > 0) end_oldest_copy(s, doubtful);
}

static void end_copies_that_read(device_store *s) {
    while (s->n_read > 0) end_oldest_copy(s, false);
}

/* What failed behind the back of those it was given to fails the wave that asks next: it belongs to the same step, whose end waits for the device. */
static status take_late(device_store *s, error *err) {
    const status rc = s->late;
    s->late = STATUS_OK;
    return rc == STATUS_OK ? rc : error_set(err, rc, "experts: the device failed while it copied or used experts (%s)", status_name(rc));
}

/* ---- a wave ---- */

/* The lower store has its slots for what comes; or enough of them, where those of copies behind and ahead are few. */
static void free_below(device_store *s) {
    end_done_copies(s);
    if (s->below_slots - s->n_read < s->base.bank->max_top_k) end_copies_that_read(s);
}

/* Slots for as many missing experts as there are, and the lower store asked for them; for those of the processor too, once all others have slots. */
static void place_misses(device_store *s) {
    const int32_t first = s->wave.next_miss;
    free_below(s);
    let_go_of_the_done(s);
    while (s->wave.next_miss < s->n_copied) {
        int32_t slot;
        while ((slot = expert_policy_place(s->policy, s->wave.layer, s->wave.misses[s->wave.next_miss], s->n_slots, &s->counters.evictions)) < 0 && s->n_leaving + s->n_sent > 0) {
            if (s->n_leaving > 0)
                await_oldest(s);
            else
                end_oldest_copy(s, false); /* behind or ahead, and of no use to the wave */
        }
        if (slot < 0) break;
        expert_policy_protect(s->policy, slot, true);
        s->generation[slot]++;
        s->wave.next_miss++;
    }
    if (s->wave.next_miss == s->n_copied) s->wave.next_miss = s->wave.n_misses;
    s->next_below = first;
    s->next_size = 0;
    s->n_sizes = s->wave.next_miss > first ? s->below->waves(s->below, s->wave.layer, s->wave.misses + first, s->wave.next_miss - first, s->sizes) : 0;
}

/* Which of those that were copied ahead the wave takes. */
static void take_ahead(device_store *s) {
    expert_ahead *a = &s->ahead;
    int32_t n = 0;
    for (int32_t i = 0; i < a->n_slots; i++) {
        bool taken = false;
        for (int32_t h = 0; a->layer == s->wave.layer && h < s->wave.n_hits; h++) taken = taken || s->wave.hits[h] == a->slots[i];
        if (!taken) {
            a->slots[n++] = a->slots[i];
            continue;
        }
        a->n_taken++;
        s->counters.n_prefetch_used++;
        s->counters.prefetch_used += s->base.bank->layers[a->layer].file_bytes;
    }
    a->n_slots = n;
}

static status begin(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, error *err) {
    device_store *s = self(base);
    TRY(expert_wave_check(&s->wave, s->base.bank, layer, n, s->next_size < s->n_sizes || s->below_active, err));
    end_done_copies(s); /* what did not arrive is no hit */
    TRY(take_late(s, err));
    s->wave_over = false;
    expert_wave_begin(&s->wave, s->policy, &s->counters, layer, ids, n);
    take_ahead(s);
    s->n_copied = expert_miss_split(miss_mode(s), &s->opt.costs, s->rows, s->wave.misses, s->wave.n_misses);
    place_misses(s);
    return STATUS_OK;
}

static uint8_t *address(const device_store *s, int32_t slot) { return (uint8_t *)s->memory.data + (size_t)slot * s->slot_bytes; }

static void give(device_store *s, int32_t expert, int32_t slot, expert_lease *lease) {
    const expert_layer *el = &s->base.bank->layers[s->wave.layer];
    *lease = (expert_lease){.layer = s->wave.layer, .expert = expert, .slot = slot, .generation = s->generation[slot], .ready = s->ready[slot]};
    for (int32_t p = 0; p < el->n_parts; p++) lease->part[p] = address(s, slot) + s->part_off[(size_t)slot * EXPERT_MAX_PARTS + (size_t)p];
    s->n_leases++;
}

/* A lease of the lower store, for the processor. */
static void give_on_host(device_store *s, const expert_lease *from, expert_lease *lease) {
    *lease = *from;
    lease->on_host = true;
    s->n_host_leases++;
    s->counters.n_on_host++;
    s->counters.bytes_on_host += s->base.bank->layers[from->layer].file_bytes;
    expert_policy_use(s->policy, from->layer, from->expert);
}

/* Whether it is to be copied. */
static bool mark_given(device_store *s, int32_t expert) {
    bool copied = false;
    for (int32_t i = 0; i < s->wave.next_miss; i++) {
        if (s->wave.misses[i] != expert) continue;
        s->wave.misses[i] = -1;
        copied = i < s->n_copied;
    }
    return copied;
}

/* Nothing else of the wave is to be copied. */
static bool is_last(const device_store *s) {
    for (int32_t i = 0; i < s->n_copied; i++) {
        if (s->wave.misses[i] >= 0) return false;
    }
    return true;
}

static void empty_slot(device_store *s, int32_t expert) {
    const int32_t slot = expert_policy_find(s->policy, s->wave.layer, expert);
    if (slot < 0) return;
    expert_policy_forget(s->policy, slot);
    expert_policy_protect(s->policy, slot, false);
}

/* Where parts lie below, in one stretch that holds little else, they lie in a slot as well: a link is faster at one large copy. Its bytes from *begin on; 0: they lie apart. */
static size_t one_stretch(const device_store *s, const expert_lease *from, const uint8_t **begin, size_t *off) {
    const expert_layer *el = &s->base.bank->layers[from->layer];
    uintptr_t first = UINTPTR_MAX, end = 0;
    for (int32_t p = 0; p < el->n_parts; p++) {
        const uintptr_t at = (uintptr_t)from->part[p];
        if (at < first) first = at;
        if (at + el->parts[p].n_bytes > end) end = at + el->parts[p].n_bytes;
    }
    const size_t n = (size_t)(end - first);
    if (n > s->slot_bytes || n > el->slot_bytes + el->slot_bytes / 16) return 0;
    for (int32_t p = 0; p < el->n_parts; p++) {
        off[p] = (size_t)((uintptr_t)from->part[p] - first);
        if (off[p] % EXPERT_PART_ALIGN != 0) return 0;
        if (off[p] == 0) *begin = from->part[p];
    }
    return n;
}

/* Where a stretch of n bytes is cut so that the layer's late parts are on one side and all others on the other; 0: nowhere. *late_first: which. */
static size_t cut_of(const expert_layer *el, const size_t *off, size_t n, bool *late_first) {
    size_t begin[2] = {n, n}, end[2] = {0, 0}; /* of the late ones, and of the others */
    for (int32_t p = 0; p < el->n_parts; p++) {
        const int side = (el->late_parts >> p & 1) == 0;
        if (off[p] < begin[side]) begin[side] = off[p];
        if (off[p] + el->parts[p].n_bytes > end[side]) end[side] = off[p] + el->parts[p].n_bytes;
    }
    *late_first = begin[0] < begin[1];
    if (end[0] == 0 || end[1] == 0) return 0;
    return end[0] <= begin[1] ? begin[1] : end[1] <= begin[0] ? begin[0] : 0;
}

/* One stretch; the last of a wave in two, so that what needs no late part can begin. */
static status copy_stretch(device_store *s, const expert_layer *el, int32_t slot, const uint8_t *begin, size_t n, const size_t *off, bool last) {
    bool late_first = false;
    const size_t cut = last ? cut_of(el, off, n, &late_first) : 0;
    const size_t from = late_first ? cut : 0, to = late_first || cut == 0 ? n : cut; /* what goes first */
    TRY(vt_copy(s->copies, address(s, slot) + from, begin + from, to - from));
    if (cut == 0) return STATUS_OK;
    TRY(vt_fence_record(s->copies, s->early));
    s->is_early = true;
    s->counters.reads++;
    return late_first ? vt_copy(s->copies, address(s, slot), begin, cut) : vt_copy(s->copies, address(s, slot) + cut, begin + cut, n - cut);
}

static status copy_parts(device_store *s, const expert_lease *from, int32_t slot, bool last) {
    const expert_layer *el = &s->base.bank->layers[from->layer];
    const uint8_t *begin = NULL;
    size_t *off = s->part_off + (size_t)slot * EXPERT_MAX_PARTS;
    const size_t n = one_stretch(s, from, &begin, off);
    s->counters.reads += n > 0 ? 1 : (uint64_t)el->n_parts;
    if (n > 0) return copy_stretch(s, el, slot, begin, n, off, last);
    for (int32_t p = 0; p < el->n_parts; p++) {
        off[p] = el->parts[p].slot_off;
        TRY(vt_copy(s->copies, address(s, slot) + off[p], from->part[p], el->parts[p].n_bytes));
    }
    return STATUS_OK;
}

/* A ring that fails to free a piece tells of an expert that was given out before. */
static status stage_parts(device_store *s, const expert_lease *from, int32_t slot) {
    const expert_layer *el = &s->base.bank->layers[from->layer];
    staging_span spans[EXPERT_MAX_PARTS];
    bool waited;
    size_t *off = s->part_off + (size_t)slot * EXPERT_MAX_PARTS;
    for (int32_t p = 0; p < el->n_parts; p++) off[p] = el->parts[p].slot_off;
    for (int32_t p = 0; p < el->n_parts; p++) spans[p] = (staging_span){.off = el->parts[p].slot_off, .n_bytes = el->parts[p].n_bytes, .from = from->part[p]};
    const status rc = staging_ring_gather(s->opt.staging, s->copies, s->opt.threads, address(s, slot), el->slot_bytes, spans, el->n_parts, &waited);
    if (rc != STATUS_OK && waited) s->late = rc;
    if (rc == STATUS_OK) s->counters.bytes_staged += el->file_bytes;
    s->counters.reads += (uint64_t)el->n_parts;
    return rc;
}

/* Copies of all parts of one expert into its slot are under way; the lower lease goes back when nothing reads it any more, or at once when they cannot be. */
static status upload(device_store *s, const expert_lease *from, int32_t slot, bool behind, bool last, error *err) {
    const expert_layer *el = &s->base.bank->layers[from->layer];
    s->is_early = false;
    status rc = s->opt.staging != NULL ? stage_parts(s, from, slot) : copy_parts(s, from, slot, last);
    if (rc == STATUS_OK) rc = vt_fence_record(s->copies, s->ready[slot]);
    if (rc != STATUS_OK) {
        (void)!vt_queue_sync(s->copies); /* no copy may read the lower slot after this */
        s->below->release(s->below, from, (vt_fence){0});
        return error_set(err, rc, "experts: copying expert %d of layer %d to the device failed", from->expert, from->layer);
    }
    sending *c = &s->sent[(s->first_sent + s->n_sent++) % sent_places(s->base.bank)];
    *c = (sending){.from = *from, .reads = true, .slot = slot, .generation = s->generation[slot], .behind = behind};
    s->n_read++;
    if (s->opt.staging != NULL) give_back_below(s, c);
    s->counters.bytes_read += el->file_bytes;
    return STATUS_OK;
}

/* Slots for the likeliest of those that the lower store holds; their number, and which, ascending. */
static int32_t place_ahead(device_store *s, int32_t *ids) {
    expert_ahead *a = &s->ahead;
    int32_t n = 0;
    if (!s->copies_ahead || !s->wanted_ahead || s->opt.miss != EXPERT_MISS_UPLOAD) return 0;
    end_done_copies(s);
    let_go_of_the_done(s);
    for (int32_t i = 0; i < a->n && n < s->most_behind; i++) {
        if (expert_policy_find(s->policy, a->layer, a->ids[i]) >= 0 || !s->below->holds(s->below, a->layer, a->ids[i])) continue;
        const int32_t slot = expert_policy_place_ahead(s->policy, a->layer, a->ids[i], s->n_slots, &s->counters.evictions);
        if (slot < 0) break;
        expert_policy_protect(s->policy, slot, true);
        s->generation[slot]++;
        int32_t at = n++;
        for (; at > 0 && ids[at - 1] > a->ids[i]; at--) ids[at] = ids[at - 1];
        ids[at] = a->ids[i];
    }
    return n;
}

/* Copies ahead are under way, as far as the lower store gives them out; nobody is told of one that is not. */
static void copy_ahead(device_store *s) {
    expert_ahead *a = &s->ahead;
    int32_t ids[EXPERT_MOST_BEHIND];
    const int32_t n = place_ahead(s, ids);
    if (n == 0) return;
    bool left[EXPERT_MOST_BEHIND] = {false};
    status rc = s->below->begin(s->below, a->layer, ids, n, NULL);
    for (expert_lease from; rc == STATUS_OK;) {
        rc = s->below->next_ready(s->below, &from, NULL);
        if (rc == STATUS_IO && from.expert >= 0) rc = STATUS_OK;
        else if (rc == STATUS_OK) {
            const int32_t slot = expert_policy_find(s->policy, a->layer, from.expert);
            if (upload(s, &from, slot, true, false, NULL) != STATUS_OK) continue;
            for (int32_t i = 0; i < n; i++) left[i] = left[i] || ids[i] == from.expert;
            a->slots[a->n_slots++] = slot;
            a->n_read++;
            s->counters.n_prefetched++;
        }
    }
    if (rc != STATUS_NOT_FOUND) s->below->cancel(s->below);
    for (int32_t i = 0; i < n; i++) {
        if (left[i]) continue;
        const int32_t slot = expert_policy_find(s->policy, a->layer, ids[i]);
        s->counters.failed++;
        expert_policy_forget(s->policy, slot);
        expert_policy_protect(s->policy, slot, false);
    }
}

/* What the device does not hold either, and is not getting, may be read ahead below. */
static void use_hint(device_store *s) {
    expert_ahead *a = &s->ahead;
    int32_t n = 0;
    if (!s->hint_waits) return;
    s->hint_waits = false;
    copy_ahead(s);
    for (int32_t i = 0; i < a->n; i++) {
        if (expert_policy_find(s->policy, a->layer, a->ids[i]) < 0) a->ids[n++] = a->ids[i];
    }
    a->n = n;
    if (n > 0 && s->wanted_below) s->below->hint(s->below, a->layer, a->ids, n);
}

/* Where nothing is copied ahead, as soon as all reads of the layer are queued: slots below come back one by one, as copies end, and the disk goes on into them. */
static void hint_below(device_store *s) {
    if (!s->copies_ahead && s->next_size == s->n_sizes && s->wave.next_miss == s->wave.n_misses) use_hint(s);
}

static void hint(expert_store *base, int32_t layer, const int32_t *ids, int32_t n) {
    device_store *s = self(base);
    expert_ahead_set(&s->ahead, layer, ids, n);
    s->hint_waits = true;
    hint_below(s);
}

/* The next expert that the lower store has ready; STATUS_NOT_FOUND when all that were placed have been given. */
static status next_from_below(device_store *s, expert_lease *from, error *err) {
    for (;;) {
        if (!s->below_active) {
            if (s->next_size == s->n_sizes) return STATUS_NOT_FOUND;
            const int32_t n = s->sizes[s->next_size++], first = s->next_below;
            s->next_below += n;
            if (s->next_size > 1) end_copies_that_read(s); /* out of the slots that this wave of the lower store takes */
            const status rc = s->below->begin(s->below, s->wave.layer, s->wave.misses + first, n, err);
            if (rc != STATUS_OK) {
                from->expert = s->wave.misses[first];
                for (int32_t i = first; i < first + n; i++) {
                    empty_slot(s, s->wave.misses[i]);
                    s->wave.misses[i] = -1;
                }
                return rc;
            }
            s->below_active = true;
            hint_below(s);
        }
        const status rc = s->below->next_ready(s->below, from, err);
        if (rc != STATUS_NOT_FOUND) return rc;
        s->below_active = false;
    }
}

static bool wants_hint(expert_store *base, int32_t layer, int64_t n_asked) {
    device_store *s = self(base);
    s->wanted_below = s->below->hint != NULL && s->below->wants_hint != NULL && s->below->wants_hint(s->below, layer, n_asked);
    s->wanted_ahead = s->copies_ahead && s->opt.miss == EXPERT_MISS_UPLOAD && expert_ahead_wants(&s->ahead, n_asked, s->base.bank->layers[layer].n_experts);
    return s->wanted_below || s->wanted_ahead;
}

static status next_ready(expert_store *base, expert_lease *lease, error *err) {
    device_store *s = self(base);
    let_go_of_the_done(s);
    end_done_copies(s);
    *lease = (expert_lease){.layer = s->wave.layer, .expert = -1, .slot = -1};
    TRY(take_late(s, err));
    int32_t expert;
    const int32_t hit = expert_wave_next_hit(&s->wave, s->policy, &expert);
    if (hit >= 0) {
        give(s, expert, hit, lease);
        return STATUS_OK;
    }
    expert_lease from = {.expert = -1};
    status rc = next_from_below(s, &from, err);
    if (rc == STATUS_NOT_FOUND && s->wave.next_miss < s->wave.n_misses) {
        place_misses(s);
        rc = next_from_below(s, &from, err);
        if (rc == STATUS_NOT_FOUND) {
            *lease = (expert_lease){.layer = s->wave.layer, .expert = s->wave.misses[s->wave.next_miss], .slot = -1};
            return error_set(err, STATUS_DOES_NOT_FIT, "experts: expert %d of layer %d finds no slot on the device: %lld of %d are leased", lease->expert, s->wave.layer, (long long)s->n_leases, s->n_slots);
        }
    }
    if (rc == STATUS_NOT_FOUND) {
        TRY(take_late(s, err));
        s->wave_over = true;
        if (s->n_leases == 0) use_hint(s);
        return rc;
    }
    const bool copied = mark_given(s, from.expert);
    if (rc == STATUS_OK && !copied) {
        give_on_host(s, &from, lease);
        return STATUS_OK;
    }
    if (rc == STATUS_OK) {
        const int32_t slot = expert_policy_find(s->policy, s->wave.layer, from.expert);
        rc = upload(s, &from, slot, false, is_last(s), err);
        if (rc == STATUS_OK) {
            give(s, from.expert, slot, lease);
            if (s->is_early) lease->early = s->early;
            return STATUS_OK;
        }
    }
    s->counters.failed++;
    if (copied) empty_slot(s, from.expert);
    *lease = (expert_lease){.layer = s->wave.layer, .expert = from.expert, .slot = -1};
    return rc;
}

/* An expert that the processor has computed is copied behind, if nothing of the layer waits for the link; false: it is not. Then the lower lease is still the caller's. */
static bool copy_behind(device_store *s, const expert_lease *from) {
    end_done_copies(s);
    let_go_of_the_done(s);
    if (s->n_copied > 0 || s->n_sent >= s->most_behind || s->late != STATUS_OK) return false;
    const int32_t slot = expert_policy_place_used(s->policy, from->layer, from->expert, s->n_slots, &s->counters.evictions);
    if (slot < 0) return false;
    expert_policy_protect(s->policy, slot, true);
    s->generation[slot]++;
    if (upload(s, from, slot, true, false, NULL) == STATUS_OK) {
        s->counters.n_behind++;
        return true;
    }
    s->counters.failed++; /* nobody waits for it */
    expert_policy_forget(s->policy, slot);
    expert_policy_protect(s->policy, slot, false);
    return true; /* it went back */
}

static void take_back(device_store *s, const expert_lease *lease) {
    expert_lease from = *lease;
    from.on_host = false;
    s->n_host_leases--;
    if (!copy_behind(s, &from)) s->below->release(s->below, &from, (vt_fence){0});
}

static void release(expert_store *base, const expert_lease *lease, vt_fence last_use) {
    device_store *s = self(base);
    if (lease->on_host) {
        take_back(s, lease);
        return;
    }
    if (lease->slot < 0 || lease->slot >= s->n_slots || lease->generation != s->generation[lease->slot]) {
        log_error("experts: a lease of device slot %d is released that is not held", lease->slot);
        return;
    }
    s->n_leases--;
    const bool last = s->n_leases == 0 && s->wave_over;
    if (last_use.handle == NULL) { /* whoever gives no fence is done */
        expert_policy_protect(s->policy, lease->slot, false);
    } else {
        if (s->n_leaving == s->n_slots) await_oldest(s);
        s->leaving[(s->first_leaving + s->n_leaving++) % s->n_slots] = (retiring){.slot = lease->slot, .last_use = last_use};
    }
    if (last) use_hint(s);
}

static void cancel(expert_store *base) {
    device_store *s = self(base);
    expert_wave_drop_hits(&s->wave, s->policy);
    end_all_copies(s, true); /* the step has failed: nobody knows whether they arrived */
    s->late = STATUS_OK;
    if (s->below_active) s->below->cancel(s->below);
    for (int32_t i = 0; i < s->wave.next_miss; i++) {
        if (s->wave.misses[i] >= 0) empty_slot(s, s->wave.misses[i]); /* placed and never filled */
    }
    s->below_active = false;
    s->hint_waits = false;
    s->ahead.layer = -1; /* nothing is to be learnt from it */
    expert_ahead_end(&s->ahead);
    s->n_sizes = s->next_size = 0;
    s->wave.next_miss = s->wave.n_misses;
    s->rows = NULL;
}

static void counters(expert_store *base, expert_counters *out) {
    device_store *s = self(base);
    *out = s->counters;
    expert_wave_count(&s->wave, s->policy, s->n_slots, s->slot_bytes, out);
}

static status close_store(expert_store *base) {
    device_store *s = self(base);
    const status rc = s->n_leases == 0 && s->n_host_leases == 0 ? STATUS_OK : STATUS_BUG;
    if (s->policy != NULL) {
        cancel(base);
        s->below->cancel(s->below); /* it may read ahead still, and what it reads by may end with the model */
        while (s->n_leaving > 0) await_oldest(s);
    }
    for (int32_t i = 0; i < s->n_fences; i++) vt_fence_destroy(s->device, s->ready[i]);
    if (s->has_early) vt_fence_destroy(s->device, s->early);
    expert_policy_destroy(s->policy);
    vt_buffer_free(&s->memory);
    expert_wave_deinit(&s->wave, s->m);
    expert_ahead_deinit(&s->ahead, s->m);
    void *const blocks[] = {s->generation, s->part_off, s->ready, s->leaving, s->sent, s->sizes};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) mem_free(s->m, blocks[i]);
    mem_free(s->m, s);
    return rc;
}

staging_shape expert_store_device_staging(const expert_bank *bank) { return staging_shape_of(bank->max_slot_bytes, EXPERT_STAGED); }

size_t expert_store_device_table_bytes(const expert_bank *bank, int64_t n_slots) {
    if (n_slots < 1 || n_slots > INT32_MAX / 2) return SIZE_MAX;
    const size_t slots = (size_t)n_slots, experts = (size_t)bank->max_experts, policy = expert_policy_bytes((int32_t)n_slots, bank->n_layers, bank->max_experts);
    if (policy == SIZE_MAX) return SIZE_MAX;
    return policy + sizeof(device_store) + slots * (sizeof(uint64_t) + EXPERT_MAX_PARTS * sizeof(size_t) + sizeof(vt_fence) + sizeof(retiring)) + experts * sizeof(int32_t) + (size_t)sent_places(bank) * sizeof(sending) + expert_wave_bytes(bank) +
           expert_ahead_bytes(bank->max_experts) + 7 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

static status create(device_store *s, error *err) {
    const expert_bank *bank = s->base.bank;
    const size_t slots = (size_t)s->n_slots, experts = (size_t)bank->max_experts;
    const expert_policy_kind kind = (expert_policy_kind)expert_stream_policy(bank, s->n_slots);
    const struct { void *at; size_t n, size; } arrays[] = {
        {&s->generation, slots, sizeof *s->generation}, {&s->ready, slots, sizeof *s->ready},     {&s->leaving, slots, sizeof *s->leaving},
        {&s->part_off, slots, EXPERT_MAX_PARTS * sizeof *s->part_off},
        {&s->sizes, experts, sizeof *s->sizes},         {&s->sent, (size_t)sent_places(bank), sizeof *s->sent},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        void *p = mem_calloc(s->m, MEM_MODEL, arrays[i].n, arrays[i].size);
        if (p == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the tables of %d device slots", s->n_slots);
        memcpy(arrays[i].at, &p, sizeof p);
    }
    if (!expert_wave_init(&s->wave, s->m, bank) || !expert_ahead_init(&s->ahead, s->m, s->opt.ahead, bank->max_experts)) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the tables of %d device slots", s->n_slots);
    TRY(vt_buffer_alloc(s->device, MEM_EXPERTS, slots * s->slot_bytes, "expert slots", &s->memory, err));
    for (; s->n_fences < s->n_slots; s->n_fences++) {
        const status rc = vt_fence_create(s->device, &s->ready[s->n_fences]);
        if (rc != STATUS_OK) return error_set(err, rc, "experts: the device gives %d of %d fences", s->n_fences, s->n_slots);
    }
    const status rc = vt_fence_create(s->device, &s->early);
    if (rc != STATUS_OK) return error_set(err, rc, "experts: the device gives no fence for copies in two");
    s->has_early = true;
    return expert_policy_create(s->m, kind, s->n_slots, bank->n_layers, bank->max_experts, &s->policy, err);
}

static bool holds(const expert_store *base, int32_t layer, int32_t expert) { return expert_policy_find(((const device_store *)base)->policy, layer, expert) >= 0; }

status expert_store_device_create(mem *m, const expert_bank *bank, vt_device *device, vt_queue *copy_queue, expert_store *below, const expert_device_options *opt, expert_store **out,
                                  error *err) {
    const int64_t least = expert_stream_min_slots(bank), most = expert_stream_all_slots(bank);
    if (bank->stream_slot_bytes == 0 || most > INT32_MAX / 2) return error_set(err, STATUS_BUG, "experts: a store for a model of %lld experts", (long long)most);
    const size_t n = opt->budget_bytes / bank->stream_slot_bytes;
    if (n < (size_t)least) {
        return error_set(err, STATUS_DOES_NOT_FIT, "experts: %zu bytes on the device hold %zu of the %lld experts that one layer of one token takes; the least is %lld bytes", opt->budget_bytes, n,
                         (long long)least, (long long)least * (long long)bank->stream_slot_bytes);
    }
    device_store *s = mem_calloc(m, MEM_MODEL, 1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a store");
    s->base = (expert_store){"device", bank, waves, begin, next_ready, release, hint, cancel, counters, close_store, holds, enter, wants_hint, NULL, rows};
    s->m = m;
    s->device = device;
    s->copies = copy_queue;
    s->below = below;
    s->n_slots = n < (size_t)most ? (int32_t)n : (int32_t)most;
    s->slot_bytes = bank->stream_slot_bytes;
    s->opt = *opt;
    expert_counters lower;
    below->counters(below, &lower);
    s->below_slots = lower.n_slots > 0 ? (int64_t)lower.n_slots : INT64_MAX;
    const int64_t spare = s->below_slots - least;
    s->most_behind = spare < 1 ? 1 : spare < EXPERT_MOST_BEHIND ? (int32_t)spare : EXPERT_MOST_BEHIND;
    if (s->most_behind > bank->max_experts) s->most_behind = bank->max_experts;
    s->copies_ahead = opt->ahead == EXPERT_AHEAD_ON && below->holds != NULL && spare > EXPERT_MOST_BEHIND;
    const status rc = create(s, err);
    if (rc != STATUS_OK) {
        (void)close_store(&s->base);
        return rc;
    }
    *out = &s->base;
    return STATUS_OK;
}
