/* SPDX-License-Identifier: Apache-2.0 */
/* Rows for one step, with pages for them. */
#include "engine/sched.h"

#include <assert.h>
#include <stddef.h>

static int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- lists ---- */

static void insert_after(sequence_list *l, sequence *before, sequence *s) {
    s->prev = before;
    s->next = before != NULL ? before->next : l->first;
    *(s->prev != NULL ? &s->prev->next : &l->first) = s;
    *(s->next != NULL ? &s->next->prev : &l->last) = s;
    l->n++;
}

void sequence_list_push(sequence_list *l, sequence *s) { insert_after(l, l->last, s); }

void sequence_list_remove(sequence_list *l, sequence *s) {
    *(s->prev != NULL ? &s->prev->next : &l->first) = s->next;
    *(s->next != NULL ? &s->next->prev : &l->last) = s->prev;
    s->prev = s->next = NULL;
    l->n--;
}

static bool better(const sequence *a, const sequence *b) { return a->rank != b->rank ? a->rank < b->rank : a->order < b->order; }

/* From the back: most arrivals are the last. */
static void insert_by_rank(sequence_list *l, sequence *s) {
    sequence *before = l->last;
    while (before != NULL && better(s, before)) before = before->prev;
    insert_after(l, before, s);
}

void sched_init(sched *s, sched_limits limits, kv_cache *kv, int32_t *free_slots) {
    *s = (sched){.limits = limits, .kv = kv, .free_slots = free_slots, .n_free_slots = limits.max_seqs, .round = 1};
    for (int32_t i = 0; i < limits.max_seqs; i++) free_slots[i] = limits.max_seqs - 1 - i;
}

void sched_set_cost(sched *s, sched_cost *cost, const void *ctx) {
    s->cost = cost;
    s->cost_ctx = ctx;
}

uint64_t sched_step_bytes(const sched *s, int32_t n_rows) { return s->cost != NULL && n_rows > 0 ? s->cost(s->cost_ctx, n_rows) : 0; }

static void enqueue(sched *s, sequence *q, int64_t rank) {
    q->rank = rank;
    q->order = s->n_arrived++;
    q->slot = -1;
    q->state = SEQUENCE_WAITING;
    kv_table_begin(s->kv, &q->kv, q->salt);
    insert_by_rank(&s->waiting, q);
}

void sched_add(sched *s, sequence *q) { enqueue(s, q, (int64_t)s->step - (int64_t)q->priority * SCHED_STEPS_PER_PRIORITY); }

void sched_add_beside(sched *s, sequence *q, const sequence *first) { enqueue(s, q, first->rank); }

static void stop_running(sched *s, sequence *q) {
    kv_release(s->kv, &q->kv);
    kv_table_begin(s->kv, &q->kv, q->salt);
    sequence_list_remove(&s->running, q);
    s->free_slots[s->n_free_slots++] = q->slot;
    s->refused = NULL;
    q->slot = -1;
    q->step_rows = 0;
}

void sched_remove(sched *s, sequence *q) {
    if (q->state == SEQUENCE_RUNNING) {
        stop_running(s, q);
    } else {
        sequence_list_remove(&s->waiting, q);
        if (s->refused == q) s->refused = NULL;
    }
    q->state = SEQUENCE_DONE;
}

static void preempt(sched *s, sequence *q) {
    stop_running(s, q);
    q->n_computed = 0;
    q->n_preempted++;
    q->state = SEQUENCE_WAITING;
    insert_by_rank(&s->waiting, q);
    s->n_preempted++;
}

bool sched_can_ever_run(const kv_cache *kv, int32_t max_positions, int32_t *group, int32_t *needs) {
    for (int32_t g = 0; g < kv->opt.n_groups; g++) {
        const int32_t n = kv_pages_at_most(kv, g, max_positions, 1);
        if (n <= kv->pools[g].n_pages) continue;
        *group = g;
        *needs = n;
        return false;
    }
    return true;
}

/* ---- rows ---- */

static bool decodes(const sequence *q) { return q->n_computed >= q->n_prompt && sequence_pending(q) == 1; }

/* Gives q up to `want` rows with pages for them, preempting from the worst rank while there is none for even one. *budget: rows left in the step. */
static void give(sched *s, sequence *q, int32_t want, int32_t *budget) {
    want = min_i32(want, min_i32(*budget, kv_next_snapshot(s->kv, &q->kv, q->n_computed, q->n_prompt) - q->n_computed));
    while (want > 0 && q->state == SEQUENCE_RUNNING) {
        const int32_t rows = min_i32(want, kv_room(s->kv, &q->kv) - q->n_computed);
        if (rows > 0) {
            const bool grown = kv_grow(s->kv, &q->kv, q->n_computed + rows);
            assert(grown);
            (void)grown;
            q->step_rows = rows;
            *budget -= rows;
            return;
        }
        sequence *victim = s->running.last;
        *budget += victim->step_rows;
        preempt(s, victim);
    }
}

/*
 * Rows for at most `most` decodes that have not been served in this round, in order of rank. A victim of preemption is always the last of the list, so `next` is read after giving.
 */
static int32_t give_decodes(sched *s, int32_t most, int32_t *budget) {
    int32_t n = 0;
    for (sequence *q = s->running.first, *next; q != NULL && n < most; q = next) {
        if (decodes(q) && q->step_rows == 0 && q->round < s->round) {
            give(s, q, 1, budget);
            if (q->state != SEQUENCE_RUNNING) break; /* it was the last itself */
            q->round = s->round;
            n++;
        }
        next = q->next;
    }
    return n;
}

/* Round robin: those that are still owed a row of this round, then the next round begins. */
static void serve_decodes(sched *s, int32_t most, int32_t *budget) {
    const int32_t n = give_decodes(s, most, budget);
    if (n == most) return;
    s->round++;
    (void)give_decodes(s, most - n, budget);
}

static int32_t chunk_of(const sequence *q) {
    const int32_t n = sequence_pending(q);
    return q->chunk > 0 ? min_i32(n, q->chunk) : n;
}

static void give_prompts(sched *s, int32_t *budget) {
    for (sequence *q = s->running.first, *next; q != NULL && *budget > 0; q = next) {
        if (!decodes(q) && q->step_rows == 0) give(s, q, chunk_of(q), budget);
        if (q->state != SEQUENCE_RUNNING) break;
        next = q->next;
    }
}

/* ---- admission ---- */

/* Pages of group g that a sequence will hold at most while its known tokens are computed. */
static int32_t prompt_pages(const sched *s, const sequence *q, int32_t g) {
    const int32_t chunk = q->chunk > 0 ? min_i32(q->chunk, s->limits.max_rows) : s->limits.max_rows;
    return kv_pages_at_most(s->kv, g, q->n_tokens, chunk);
}

static int32_t held_pages(const kv_table *t, int32_t g) { return t->n_pages - t->first[g]; }

/* Room for the rest of q's tokens, for what the running prompts still need, and for a page more of every fourth that runs: a decode needs one every page_tokens steps. */
static bool has_room(const sched *s, const sequence *q) {
    for (int32_t g = 0; g < s->kv->opt.n_groups; g++) {
        if (!s->kv->opt.groups[g].paged) continue;
        int64_t need = prompt_pages(s, q, g) - held_pages(&q->kv, g) + (s->running.n + 3) / 4;
        for (const sequence *r = s->running.first; r != NULL; r = r->next) {
            const int32_t more = prompt_pages(s, r, g) - held_pages(&r->kv, g);
            if (more > 0) need += more;
        }
        if (need > kv_available(s->kv, g)) return false;
    }
    return true;
}

static bool admit_first(sched *s) {
    sequence *q = s->waiting.first;
    if (s->running.n > 0 && s->refused == q && s->refused_at == s->kv->changes) return false;
    const int32_t hit = kv_attach(s->kv, &q->kv, q->tokens, sequence_hit_limit(q));
    if (s->running.n > 0 && !has_room(s, q)) {
        kv_release(s->kv, &q->kv);
        kv_table_begin(s->kv, &q->kv, q->salt);
        s->refused = q;
        s->refused_at = s->kv->changes;
        return false;
    }
    q->n_computed = hit;
    if (q->n_preempted == 0) { /* what a preempted one finds again was its own work */
        q->n_hit_tokens = hit;
        s->n_hit_tokens += (uint64_t)hit;
    }
    sequence_list_remove(&s->waiting, q);
    q->slot = s->free_slots[--s->n_free_slots];
    q->state = SEQUENCE_RUNNING;
    insert_by_rank(&s->running, q);
    return true;
}

int32_t sched_step(sched *s) {
    int32_t budget = s->limits.max_rows;
    const uint64_t preempted = s->n_preempted;
    bool prompts = s->waiting.first != NULL && s->n_free_slots > 0;
    for (sequence *q = s->running.first; q != NULL; q = q->next) {
        q->step_rows = 0;
        prompts |= !decodes(q);
    }
    const bool turn_of_prompts = prompts && s->limits.max_rows == 1 && s->step % 2 == 0;
    if (!turn_of_prompts) serve_decodes(s, prompts && s->limits.max_rows > 1 ? s->limits.max_rows - 1 : s->limits.max_rows, &budget);
    give_prompts(s, &budget);
    while (budget > 0 && s->waiting.first != NULL && s->n_free_slots > 0 && s->n_preempted == preempted) {
        sequence *q = s->waiting.first;
        if (!admit_first(s)) break;
        give(s, q, chunk_of(q), &budget);
    }
    if (turn_of_prompts && budget > 0) serve_decodes(s, budget, &budget); /* nobody could be admitted after all */
    s->step++;
    const int32_t rows = s->limits.max_rows - budget;
    s->step_bytes = sched_step_bytes(s, rows);
    s->sum_bytes += s->step_bytes;
    return rows;
}

int32_t sched_computed(sched *s, sequence *q) {
    if (q->n_computed < q->n_prompt) q->round = s->round; /* as a decode it joins the next round */
    q->n_computed += q->step_rows;
    kv_advance(s->kv, &q->kv, q->tokens, q->n_computed);
    return kv_keep_state(s->kv, &q->kv, q->n_computed, q->n_prompt);
}

/* ---- check ---- */

static bool check_list(const sequence_list *l, sequence_state state) {
    int32_t n = 0;
    for (const sequence *q = l->first, *before = NULL; q != NULL; before = q, q = q->next) {
        if (++n > l->n || q->state != state || q->prev != before || (before != NULL && !better(before, q))) return false;
        if (q->next == NULL && l->last != q) return false;
        if (state == SEQUENCE_WAITING && (q->slot >= 0 || q->n_computed != 0 || q->kv.n_pages != 0 || q->kv.restore >= 0)) return false;
        if (q->n_computed < 0 || q->n_computed > q->n_tokens || q->n_tokens > q->n_prompt + q->max_new) return false;
    }
    return n == l->n && (n > 0 || (l->first == NULL && l->last == NULL));
}

static bool check_slots(const sched *s, uint8_t *seen) {
    if (s->n_free_slots + s->running.n != s->limits.max_seqs) return false;
    for (int32_t i = 0; i < s->n_free_slots; i++) {
        if (seen[s->free_slots[i]]++ > 0) return false;
    }
    for (const sequence *q = s->running.first; q != NULL; q = q->next) {
        if (q->slot < 0 || q->slot >= s->limits.max_seqs || seen[q->slot]++ > 0) return false;
        if (q->kv.n_pages < kv_pages_for(s->kv, q->n_computed)) return false;
    }
    return true;
}

bool sched_check(const sched *s) {
    if (!check_list(&s->waiting, SEQUENCE_WAITING) || !check_list(&s->running, SEQUENCE_RUNNING)) return false;
    const size_t n = (size_t)s->running.n;
    const kv_table **tables = mem_alloc(s->kv->m, MEM_ENGINE, (n + 1) * sizeof *tables);
    uint8_t *seen = mem_calloc(s->kv->m, MEM_ENGINE, (size_t)s->limits.max_seqs, 1);
    bool good = tables != NULL && seen != NULL && check_slots(s, seen);
    if (good) {
        size_t i = 0;
        for (const sequence *q = s->running.first; q != NULL; q = q->next) tables[i++] = &q->kv;
        good = kv_cache_check(s->kv, tables, (int32_t)n);
    }
    mem_free(s->kv->m, tables);
    mem_free(s->kv->m, seen);
    return good;
}
