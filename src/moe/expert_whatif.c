/* SPDX-License-Identifier: Apache-2.0 */
/* Two walks through a trace, with the policy and with the future. */
#include "moe/expert_whatif.h"

#include <string.h>

typedef struct walker {
    const expert_trace *t;
    expert_trace_cursor cursor;
    expert_trace_record rec;
    bool have;
    uint8_t *mark;           /* [n_experts] */
    int32_t *set, n;         /* [n_experts]: of the layer, ascending */
    int32_t *misses, *slots; /* [n_experts] of them */
    int32_t layer;
    bool new_step;
} walker;

static void walker_rewind(walker *w) {
    w->cursor = (expert_trace_cursor){0};
    w->have = expert_trace_next(w->t, &w->cursor, &w->rec);
}

static bool walker_init(walker *w, mem *m, const expert_trace *t) {
    *w = (walker){.t = t};
    w->mark = mem_calloc(m, MEM_PROCESS, (size_t)t->n_experts, 1);
    w->set = mem_calloc(m, MEM_PROCESS, (size_t)t->n_experts, sizeof *w->set);
    w->misses = mem_calloc(m, MEM_PROCESS, (size_t)t->n_experts, sizeof *w->misses);
    w->slots = mem_calloc(m, MEM_PROCESS, (size_t)t->n_experts, sizeof *w->slots);
    walker_rewind(w);
    return w->mark != NULL && w->set != NULL && w->misses != NULL && w->slots != NULL;
}

static void walker_deinit(walker *w, mem *m) {
    mem_free(m, w->mark);
    mem_free(m, w->set);
    mem_free(m, w->misses);
    mem_free(m, w->slots);
}

/* The distinct experts of the next layer of the next step; false at the end. */
static bool walker_next(walker *w) {
    if (!w->have) return false;
    w->layer = w->rec.layer;
    w->new_step = w->rec.new_step;
    memset(w->mark, 0, (size_t)w->t->n_experts);
    do {
        for (int32_t i = 0; i < w->rec.n_rows * w->t->top_k; i++) w->mark[w->rec.ids[i]] = 1;
        w->have = expert_trace_next(w->t, &w->cursor, &w->rec);
    } while (w->have && !w->rec.new_step && w->rec.layer == w->layer);
    w->n = 0;
    for (int32_t e = 0; e < w->t->n_experts; e++) {
        if (w->mark[e]) w->set[w->n++] = e;
    }
    return true;
}

/* ---- with a policy ---- */

/*
 * The next layer's set, as a rolling store takes it: what is held is protected first; an expert goes back when a missing one needs its
 * slot, those that were held before those that were read, which are taken to arrive in the order of the set.
 */
static void policy_set(expert_policy *p, walker *w, int32_t n_slots, expert_whatif *out) {
    uint64_t evicted = 0;
    int32_t n_misses = 0, taken = 0, back = 0;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t slot = expert_policy_find(p, w->layer, w->set[i]);
        if (slot < 0) {
            w->misses[n_misses++] = w->set[i];
            continue;
        }
        expert_policy_touch(p, slot);
        expert_policy_protect(p, slot, true);
        w->slots[taken++] = slot;
    }
    out->hits += (uint64_t)taken;
    out->misses += (uint64_t)n_misses;
    for (int32_t i = 0; i < n_misses; i++) {
        int32_t slot;
        while ((slot = expert_policy_place(p, w->layer, w->misses[i], n_slots, &evicted)) < 0 && back < taken)
            expert_policy_protect(p, w->slots[back++], false);
        if (slot < 0) continue;
        expert_policy_protect(p, slot, true);
        w->slots[taken++] = slot;
    }
    while (back < taken) expert_policy_protect(p, w->slots[back++], false);
}

typedef struct watcher {
    expert_whatif_set each; /* NULL: nobody asks */
    void *ctx;
} watcher;

/* n_walks times through the trace, each counted into its own place. */
static status run_policy(mem *m, walker *w, int32_t policy, int32_t n_slots, int32_t n_walks, watcher told, expert_whatif *out,
                         error *err) {
    expert_policy *p;
    TRY(expert_policy_create(m, (expert_policy_kind)policy, n_slots, w->t->n_layers, w->t->n_experts, &p, err));
    for (int32_t walk = 0; walk < n_walks; walk++, walker_rewind(w)) {
        for (bool first = walk == 0; walker_next(w); first = false) {
            const uint64_t before = out[walk].misses;
            if (w->new_step && !first) expert_policy_step(p);
            policy_set(p, w, n_slots, &out[walk]);
            if (told.each != NULL) told.each(told.ctx, walk, w->layer, w->n, (int32_t)(out[walk].misses - before));
        }
    }
    expert_policy_destroy(p);
    return STATUS_OK;
}

static void computed_set(expert_policy *p, walker *w, int32_t n_slots, int32_t most_behind, expert_whatif_computed *out) {
    uint64_t evicted = 0;
    int32_t n_behind = 0, n_hits = 0;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t slot = expert_policy_find(p, w->layer, w->set[i]);
        if (slot < 0) continue;
        expert_policy_touch(p, slot);
        expert_policy_protect(p, slot, true);
        w->slots[n_hits++] = slot;
    }
    for (int32_t i = 0; i < w->n; i++) {
        if (expert_policy_find(p, w->layer, w->set[i]) >= 0) continue;
        expert_policy_use(p, w->layer, w->set[i]);
        if (n_behind < most_behind && expert_policy_place_used(p, w->layer, w->set[i], n_slots, &evicted) >= 0) n_behind++;
    }
    out->hits += (uint64_t)n_hits;
    out->misses += (uint64_t)(w->n - n_hits);
    out->behind += (uint64_t)n_behind;
    while (n_hits > 0) expert_policy_protect(p, w->slots[--n_hits], false);
}

status expert_whatif_compute(mem *m, const expert_trace *t, expert_policy_kind policy, int32_t n_slots, int32_t most_behind, expert_whatif_computed *out, error *err) {
    walker w;
    expert_policy *p = NULL;
    *out = (expert_whatif_computed){0};
    status rc = walker_init(&w, m, t) ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "experts: no memory to walk through a trace");
    if (rc == STATUS_OK) rc = expert_policy_create(m, policy, n_slots, t->n_layers, t->n_experts, &p, err);
    for (bool first = true; rc == STATUS_OK && walker_next(&w); first = false) {
        if (w.new_step && !first) expert_policy_step(p);
        computed_set(p, &w, n_slots, most_behind, out);
    }
    expert_policy_destroy(p);
    walker_deinit(&w, m);
    return rc;
}

/* ---- with the future ---- */

typedef struct oracle {
    uint32_t *key, *next; /* of each access: whose, and which access is the next of the same; UINT32_MAX: none */
    uint32_t n;
    uint32_t *held;   /* [n_slots]: the access that will come next for what is there, or UINT32_MAX: never again */
    uint32_t *who;    /* [n_slots]: its key */
    int32_t *slot_of; /* [keys] */
    int32_t n_slots, n_held;
} oracle;

static status build_oracle(mem *m, walker *w, int32_t n_slots, oracle *o, error *err) {
    const size_t keys = (size_t)w->t->n_layers * (size_t)w->t->n_experts;
    const size_t most = w->t->n_words; /* no more accesses than ids */
    o->key = mem_alloc(m, MEM_PROCESS, most * sizeof *o->key);
    o->next = mem_alloc(m, MEM_PROCESS, most * sizeof *o->next);
    o->held = mem_alloc(m, MEM_PROCESS, (size_t)n_slots * sizeof *o->held);
    o->who = mem_alloc(m, MEM_PROCESS, (size_t)n_slots * sizeof *o->who);
    o->slot_of = mem_alloc(m, MEM_PROCESS, keys * sizeof *o->slot_of);
    if (o->key == NULL || o->next == NULL || o->held == NULL || o->who == NULL || o->slot_of == NULL || most >= UINT32_MAX)
        return error_set(err, STATUS_NO_MEMORY, "experts: no memory to look ahead in a trace");
    o->n_slots = n_slots;
    while (walker_next(w)) {
        for (int32_t i = 0; i < w->n; i++) o->key[o->n++] = (uint32_t)((size_t)w->layer * (size_t)w->t->n_experts + (size_t)w->set[i]);
    }
    for (size_t i = 0; i < keys; i++) o->slot_of[i] = -1;
    for (uint32_t i = o->n; i-- > 0;) { /* slot_of serves as the place of the last access seen from behind */
        o->next[i] = o->slot_of[o->key[i]] < 0 ? UINT32_MAX : (uint32_t)o->slot_of[o->key[i]];
        o->slot_of[o->key[i]] = (int32_t)i;
    }
    for (size_t i = 0; i < keys; i++) o->slot_of[i] = -1;
    return STATUS_OK;
}

/* One access; what belongs to the wave (accesses from `begin` on that have come) is not given up: its next use counts as now. */
static void access_one(oracle *o, uint32_t i, expert_whatif *out) {
    int32_t slot = o->slot_of[o->key[i]];
    if (slot >= 0) {
        out->hits++;
    } else {
        out->misses++;
        if (o->n_held < o->n_slots) {
            slot = o->n_held++;
        } else {
            slot = 0;
            for (int32_t s = 1; s < o->n_slots; s++) {
                if (o->held[s] > o->held[slot]) slot = s;
            }
            o->slot_of[o->who[slot]] = -1;
        }
        o->who[slot] = o->key[i];
        o->slot_of[o->key[i]] = slot;
    }
    o->held[slot] = o->next[i];
}

static status run_oracle(mem *m, walker *w, int32_t n_slots, expert_whatif *out, error *err) {
    oracle o = {0};
    const status rc = build_oracle(m, w, n_slots, &o, err);
    for (uint32_t i = 0; rc == STATUS_OK && i < o.n; i++) access_one(&o, i, out);
    void *const blocks[] = {o.key, o.next, o.held, o.who, o.slot_of};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) mem_free(m, blocks[i]);
    return rc;
}

/* ---- both ---- */

static status count_distinct(const expert_trace *t, mem *m, uint64_t *out, error *err) {
    const size_t keys = (size_t)t->n_layers * (size_t)t->n_experts;
    uint8_t *seen = mem_calloc(m, MEM_PROCESS, keys, 1);
    uint64_t n = 0;
    expert_trace_record r;
    if (seen == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a trace");
    for (expert_trace_cursor c = {0}; expert_trace_next(t, &c, &r);) {
        for (int32_t i = 0; i < r.n_rows * t->top_k; i++) {
            uint8_t *s = &seen[(size_t)r.layer * (size_t)t->n_experts + r.ids[i]];
            n += *s == 0;
            *s = 1;
        }
    }
    mem_free(m, seen);
    *out = n;
    return STATUS_OK;
}

static status run(mem *m, const expert_trace *t, int32_t policy, int32_t n_slots, int32_t n_walks, watcher told, expert_whatif *out,
                  error *err) {
    walker w;
    for (int32_t i = 0; i < n_walks; i++) out[i] = (expert_whatif){0};
    TRY(count_distinct(t, m, &out->distinct, err));
    for (int32_t i = 1; i < n_walks; i++) out[i].distinct = out->distinct;
    status rc = n_slots < 1 ? error_set(err, STATUS_INVALID, "experts: %d slots", n_slots) : STATUS_OK;
    if (!walker_init(&w, m, t) && rc == STATUS_OK) rc = error_set(err, STATUS_NO_MEMORY, "experts: no memory for a trace");
    if (rc == STATUS_OK)
        rc = policy == EXPERT_WHATIF_BELADY ? run_oracle(m, &w, n_slots, out, err)
                                            : run_policy(m, &w, policy, n_slots, n_walks, told, out, err);
    walker_deinit(&w, m);
    return rc;
}

status expert_whatif_run(mem *m, const expert_trace *t, int32_t policy, int32_t n_slots, expert_whatif *out, error *err) {
    return run(m, t, policy, n_slots, 1, (watcher){0}, out, err);
}

status expert_whatif_walks(mem *m, const expert_trace *t, expert_policy_kind policy, int32_t n_slots, expert_whatif_set each, void *ctx,
                           expert_whatif out[2], error *err) {
    return run(m, t, (int32_t)policy, n_slots, 2, (watcher){each, ctx}, out, err);
}

status expert_whatif_overlap(const expert_trace *t, double *out, error *err) {
    uint64_t same = 0, n = 0;
    expert_trace_record r;
    const uint16_t **last = mem_calloc(t->m, MEM_PROCESS, (size_t)t->n_layers, sizeof *last); /* the row before, by layer */
    if (last == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a trace");
    for (expert_trace_cursor c = {0}; expert_trace_next(t, &c, &r);) {
        for (int32_t row = 0; row < r.n_rows; row++) {
            const uint16_t *ids = r.ids + (size_t)row * (size_t)t->top_k, *before = last[r.layer];
            for (int32_t i = 0; before != NULL && i < t->top_k; i++, n++) {
                for (int32_t j = 0; j < t->top_k; j++) same += ids[i] == before[j];
            }
            last[r.layer] = ids;
        }
    }
    mem_free(t->m, (void *)last);
    *out = n > 0 ? (double)same / (double)n : 0;
    return STATUS_OK;
}
