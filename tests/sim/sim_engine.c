/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scheduler, page tables and prefix cache under random traces, against a plain model: what lies at each place of each page is remembered as a checksum of the tokens up to that position.
 * Before a row is "computed" every position that it can see must hold exactly its own sequence's past; nothing is ever written into a page that somebody else holds or that has a name.
 * A sequence's state is such a checksum too, and so is what a snapshot holds. Invariants are walked after every event. Usage: sim_engine EVENTS (of each kind).
 */
#include "support/test_case.h"

#include "engine/sched.h"

enum { MAX_CTX = 96, MAX_LIVE = 24, TABLES = 6, MAX_PAGES_IN_POOL = 112, MAX_PAGE_TOKENS = 8, MAX_SNAPSHOTS = 12 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static long n_events = 100000; /* one thread: a sanitizer sees as much in a tenth */
#else
static long n_events = 1000000;
#endif
static uint64_t rng;

static uint32_t rnd(uint32_t n) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* ---- what the pages hold ---- */

static uint64_t place[STEP_MAX_GROUPS][MAX_PAGES_IN_POOL][MAX_PAGE_TOKENS], kept[MAX_SNAPSHOTS];
static long n_restored, n_kept;

static uint64_t past(uint64_t salt, const int32_t *tokens, int32_t pos) {
    uint64_t h = 1469598103934665603u ^ salt;
    for (int32_t i = 0; i <= pos; i++) h = (h ^ (uint64_t)(uint32_t)(tokens[i] + 1)) * 1099511628211u;
    return h;
}

/* The state goes on from where it is, or from the snapshot that was found. */
static void compute_state(kv_cache *c, kv_table *t, uint64_t salt, const int32_t *tokens, int32_t first, int32_t n, uint64_t *state) {
    bool keeps = false;
    for (int32_t g = 0; g < c->opt.n_groups; g++) keeps |= !c->opt.groups[g].paged;
    if (!keeps) return;
    if (t->restore >= 0) {
        *state = kept[t->restore];
        kv_restored(c, t);
        n_restored++;
    }
    if (first > 0 && *state != past(salt, tokens, first - 1)) fail_msg("the state at position %d is not this sequence's", first);
    *state = past(salt, tokens, first + n - 1);
}

static void keep_state(int32_t snapshot, uint64_t state) {
    if (snapshot < 0) return;
    assert_in_range(snapshot, 0, MAX_SNAPSHOTS - 1);
    kept[snapshot] = state;
    n_kept++;
}

/* Rows first .. first + n - 1 are computed: each looks back, then is stored. */
static void compute(kv_cache *c, kv_table *t, uint64_t salt, const int32_t *tokens, int32_t first, int32_t n, uint64_t *state) {
    const int32_t page_tokens = c->opt.page_tokens;
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        if (!c->opt.groups[g].paged) continue;
        const int64_t window = c->opt.groups[g].window;
        const int64_t seen = window > 0 && first - window + 1 > 0 ? first - window + 1 : 0;
        for (int64_t pos = seen; pos < first; pos++) {
            const int32_t page = t->pages[g][pos / page_tokens];
            assert_in_range(page, 0, c->pools[g].n_pages - 1);
            if (place[g][page][pos % page_tokens] != past(salt, tokens, (int32_t)pos)) fail_msg("group %d: position %lld of page %d is not this sequence's", g, (long long)pos, page);
        }
        for (int32_t pos = first; pos < first + n; pos++) {
            const int32_t page = t->pages[g][pos / page_tokens];
            assert_in_range(page, 0, c->pools[g].n_pages - 1);
            assert_int_equal(c->pools[g].ref[page], 1);
            assert_int_equal(c->pools[g].block[page], -1);
            place[g][page][pos % page_tokens] = past(salt, tokens, pos);
        }
    }
    compute_state(c, t, salt, tokens, first, n, state);
}

static void random_cache(kv_cache *c, mem *m, bool all_fit) {
    kv_cache_options o = {.n_groups = 1 + (int32_t)rnd(3), .page_tokens = 1 + (int32_t)rnd(MAX_PAGE_TOKENS), .prefix = rnd(6) != 0, .key = {rng, 7}};
    o.max_pages = (MAX_CTX + o.page_tokens - 1) / o.page_tokens;
    for (int32_t g = 0; g < o.n_groups; g++) {
        o.groups[g] = (kv_group_plan){.paged = g == 0 || rnd(4) != 0, .window = rnd(2) == 0 ? 0 : 1 + (int64_t)rnd(20)};
        o.groups[g].n_pages = 1 + (int32_t)rnd(64);
        if (all_fit) o.groups[g].n_pages = rnd(4) == 0 ? o.groups[g].n_pages : o.max_pages + (int32_t)rnd(12); /* one sequence at least, and hardly two */
    }
    o.n_snapshots = (int32_t)rnd(MAX_SNAPSHOTS + 1);
    o.snapshot_blocks = (int32_t)rnd(6);
    error err = {0};
    assert_int_equal(kv_cache_init(c, m, &o, &err), STATUS_OK);
}

static block_name name_of(uint64_t salt) { return (block_name){salt, 99}; }

static void random_tokens(int32_t *tokens, int32_t n) {
    const uint32_t family = rnd(4); /* few beginnings, so that hits are common */
    const int32_t same = (int32_t)rnd((uint32_t)n + 1);
    for (int32_t i = 0; i < n; i++) tokens[i] = i < same ? (int32_t)(family * 5 + (uint32_t)i % 3) : (int32_t)rnd(3);
}

/* ---- tables alone ---- */

typedef struct holder {
    kv_table t;
    int32_t tokens[MAX_CTX];
    int32_t n_computed, n_prompt;
    uint64_t salt, state;
    bool live;
} holder;

static void tables_against_a_plain_model(void **state) {
    (void)state;
    long hits = 0, evicted = 0, refused = 0, freed_behind = 0;
    rng = 88172645463325252u;
    for (long done = 0; done < n_events;) {
        mem *m = test_mem();
        kv_cache c;
        static holder h[TABLES];
        static int32_t pages[TABLES][STEP_MAX_GROUPS][MAX_CTX];
        random_cache(&c, m, false);
        memset(h, 0, sizeof h);
        for (int i = 0; i < TABLES; i++) {
            for (int g = 0; g < STEP_MAX_GROUPS; g++) h[i].t.pages[g] = pages[i][g];
        }
        for (int k = 0; k < 400 && done < n_events; k++, done++) {
            holder *x = &h[rnd(TABLES)];
            const uint32_t what = rnd(10);
            if (!x->live) {
                x->salt = rnd(2);
                x->n_prompt = 1 + (int32_t)rnd(MAX_CTX);
                random_tokens(x->tokens, MAX_CTX);
                kv_table_begin(&c, &x->t, name_of(x->salt));
                x->n_computed = kv_attach(&c, &x->t, x->tokens, (int32_t)rnd(MAX_CTX));
                hits += x->n_computed > 0;
                x->live = true;
            } else if (what == 0) {
                kv_release(&c, &x->t);
                x->live = false;
            } else if (what == 1 && rnd(20) == 0) {
                kv_forget_all(&c);
                for (int32_t g = 0; g <= c.opt.n_groups; g++) assert_int_equal(c.pools[g].n_cached, 0);
            } else if (x->n_computed < MAX_CTX) {
                const int32_t left = MAX_CTX - x->n_computed, due = kv_next_snapshot(&c, &x->t, x->n_computed, x->n_prompt) - x->n_computed;
                int32_t n = 1 + (int32_t)rnd((uint32_t)(left < 12 ? left : 12));
                assert_true(due > 0);
                n = n < due ? n : due;
                const bool room = kv_room(&c, &x->t) >= x->n_computed + n;
                assert_int_equal(kv_grow(&c, &x->t, x->n_computed + n), room);
                refused += !room;
                if (room) {
                    compute(&c, &x->t, x->salt, x->tokens, x->n_computed, n, &x->state);
                    x->n_computed += n;
                    kv_advance(&c, &x->t, x->tokens, x->n_computed);
                    keep_state(kv_keep_state(&c, &x->t, x->n_computed, x->n_prompt), x->state);
                    for (int32_t g = 0; g < c.opt.n_groups; g++) {
                        freed_behind += x->t.first[g];
                        if (c.opt.groups[g].paged) assert_true(x->t.n_pages - x->t.first[g] <= kv_pages_at_most(&c, g, x->n_computed, 12));
                    }
                }
            }
            const kv_table *tables[TABLES];
            int n_tables = 0;
            for (int i = 0; i < TABLES; i++) {
                if (h[i].live) tables[n_tables++] = &h[i].t;
            }
            assert_true(kv_cache_check(&c, tables, n_tables));
        }
        evicted += (long)c.n_evicted;
        for (int i = 0; i < TABLES; i++) {
            if (h[i].live) kv_release(&c, &h[i].t);
        }
        assert_true(kv_cache_check(&c, NULL, 0));
        for (int32_t g = 0; g < c.opt.n_groups; g++) assert_int_equal(c.pools[g].n_free + c.pools[g].n_cached, c.pools[g].n_pages);
        kv_cache_deinit(&c);
        test_mem_check(m);
    }
    print_message("tables: %ld events, %ld hits, %ld pages evicted, %ld refusals, %ld given up behind windows, %ld states kept, %ld restored\n", n_events, hits, evicted, refused, freed_behind, n_kept,
                  n_restored);
    assert_true(hits > 0 && evicted > 0 && refused > 0 && freed_behind > 0 && n_kept > 0 && n_restored > 0);
}

/* The longest hit is as long as the common beginning allows, and another tenant has none. */
static void a_hit_is_as_long_as_can_be(void **state) {
    (void)state;
    long hits = 0, n = 0;
    rng = 362436069u;
    for (; n < n_events / 200 + 20; n++) {
        mem *m = test_mem();
        kv_cache c;
        error err = {0};
        static int32_t pages[2][STEP_MAX_GROUPS][MAX_CTX];
        kv_cache_options o = {.n_groups = 2, .page_tokens = 1 + (int32_t)rnd(6), .prefix = true, .key = {rng, 1}};
        o.max_pages = (MAX_CTX + o.page_tokens - 1) / o.page_tokens;
        for (int32_t g = 0; g < 2; g++) o.groups[g] = (kv_group_plan){.paged = true, .window = rnd(2) ? 0 : 2 + (int64_t)rnd(20), .n_pages = o.max_pages};
        assert_int_equal(kv_cache_init(&c, m, &o, &err), STATUS_OK);
        holder a = {0}, b = {0};
        for (int g = 0; g < STEP_MAX_GROUPS; g++) {
            a.t.pages[g] = pages[0][g];
            b.t.pages[g] = pages[1][g];
        }
        random_tokens(a.tokens, MAX_CTX);
        memcpy(b.tokens, a.tokens, sizeof a.tokens);
        kv_table_begin(&c, &a.t, name_of(3));
        kv_table_begin(&c, &b.t, name_of(3));
        const int32_t total = 1 + (int32_t)rnd(MAX_CTX - 1);
        assert_true(kv_grow(&c, &a.t, total)); /* in one chunk: nothing is given up before the end */
        kv_advance(&c, &a.t, a.tokens, total);
        const int32_t same = (int32_t)rnd(MAX_CTX), limit = (int32_t)rnd(MAX_CTX);
        b.tokens[same] += 1000;
        /* every block of the common beginning was named before its page was given up, and nothing was evicted */
        int32_t want = limit < same ? limit : same;
        want = (want < total ? want : total) / o.page_tokens * o.page_tokens;
        const int32_t got = kv_attach(&c, &b.t, b.tokens, limit);
        if (got != want) fail_msg("pages of %d: %d computed, %d alike, limit %d: hit %d, longest %d", o.page_tokens, total, same, limit, got, want);
        hits += got > 0;
        kv_release(&c, &b.t);
        kv_release(&c, &a.t);
        kv_table_begin(&c, &b.t, name_of(4)); /* another tenant sees nothing of it */
        assert_int_equal(kv_attach(&c, &b.t, a.tokens, MAX_CTX), 0);
        kv_cache_deinit(&c);
        test_mem_check(m);
    }
    print_message("longest hit: %ld cases, %ld hits\n", n, hits);
    assert_true(hits > 0);
}

/* With states a hit ends at a snapshot: in front of the prompt's last token, at every n-th block, and where a look-up found that two prompts part. */
static void a_hit_ends_at_a_snapshot(void **state) {
    (void)state;
    enum { PAGE = 4, PROMPT = 61, EVERY = 6 };
    mem *m = test_mem();
    kv_cache c;
    error err = {0};
    static int32_t pages[MAX_CTX];
    kv_cache_options o = {.n_groups = 2, .page_tokens = PAGE, .max_pages = MAX_CTX / PAGE, .prefix = true, .n_snapshots = 16, .snapshot_blocks = EVERY, .key = {5, 5}};
    o.groups[0] = (kv_group_plan){.paged = true, .n_pages = 64};
    assert_int_equal(kv_cache_init(&c, m, &o, &err), STATUS_OK);
    holder h = {0};
    h.t.pages[0] = pages;
    const struct { int32_t n_prompt, same, hit; } runs[] = {
        {PROMPT, 0, 0},                     /* the first: keeps 24 and 48 (every 6 blocks) and 60 (the prompt's end) */
        {PROMPT, PROMPT, 60},               /* the same again */
        {PROMPT, 40, 24},                   /* parts at 40: every page is known up to there, a state only at 24 */
        {PROMPT, 40, 40},                   /* now 40 is kept too */
        {PROMPT - 1, PROMPT - 1, 56 - 8},   /* the last token is computed anew, so 56 is the most; 48 is there */
        {MAX_CTX, PROMPT, 60},              /* a prompt that goes on */
    };
    for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
        for (int32_t i = 0; i < MAX_CTX; i++) h.tokens[i] = i < runs[k].same || k == 0 ? i : (int32_t)(1000 * k) + i;
        kv_table_begin(&c, &h.t, name_of(1));
        h.n_computed = kv_attach(&c, &h.t, h.tokens, runs[k].n_prompt - 1);
        if (h.n_computed != runs[k].hit) fail_msg("run %zu: hit %d, expected %d", k, h.n_computed, runs[k].hit);
        assert_int_equal(h.t.restore >= 0, h.n_computed > 0);
        while (h.n_computed < runs[k].n_prompt) {
            const int32_t due = kv_next_snapshot(&c, &h.t, h.n_computed, runs[k].n_prompt), to = due < runs[k].n_prompt ? due : runs[k].n_prompt;
            assert_true(kv_grow(&c, &h.t, to));
            compute(&c, &h.t, 1, h.tokens, h.n_computed, to - h.n_computed, &h.state);
            h.n_computed = to;
            kv_advance(&c, &h.t, h.tokens, to);
            keep_state(kv_keep_state(&c, &h.t, to, runs[k].n_prompt), h.state);
            const kv_table *t = &h.t;
            assert_true(kv_cache_check(&c, &t, 1));
        }
        kv_release(&c, &h.t);
    }
    kv_cache_deinit(&c);
    test_mem_check(m);
}

/* ---- the scheduler ---- */

typedef struct sim_seq {
    sequence q;
    bool live;
    uint64_t salt;
    int64_t arrived, bound; /* steps */
    int64_t idle;           /* steps in a row in which it was owed a row and had none */
    int32_t idle_since;     /* n_preempted then */
    bool decoded;           /* before the step */
    int32_t tokens[MAX_CTX], pages[STEP_MAX_GROUPS][MAX_CTX];
} sim_seq;

static sim_seq seqs[MAX_LIVE];

typedef struct sim {
    mem *m;
    kv_cache kv;
    sched s;
    int32_t slots[MAX_LIVE];
    uint64_t state[MAX_LIVE]; /* by slot */
    bool priorities;
    int64_t steps;
    long hits, preemptions, ended, cancelled, worst;
} sim;

static int64_t rows_of(const sim_seq *x) { return x->q.n_prompt + x->q.max_new; }

static int64_t steps_per_row(const sim *t) {
    const int64_t per = t->s.limits.max_rows > 1 ? t->s.limits.max_rows - 1 : 1;
    return (t->s.limits.max_rows > 1 ? 2 : 4) * ((t->s.limits.max_seqs + per - 1) / per + 1);
}

static void arrive(sim *t) {
    sim_seq *x = NULL;
    for (int i = 0; i < MAX_LIVE && x == NULL; i++) {
        if (!seqs[i].live) x = &seqs[i];
    }
    if (x == NULL) return;
    memset(x, 0, sizeof *x);
    sequence *q = &x->q;
    for (int g = 0; g < STEP_MAX_GROUPS; g++) q->kv.pages[g] = x->pages[g];
    q->tokens = x->tokens;
    q->n_prompt = q->n_tokens = 1 + (int32_t)rnd(MAX_CTX - 1);
    q->max_new = (int32_t)rnd((uint32_t)(MAX_CTX - q->n_prompt + 1));
    if (rnd(2) == 0 && q->max_new > 10) q->max_new = 10;
    q->chunk = rnd(2) == 0 ? 0 : 1 + (int32_t)rnd(9);
    q->priority = t->priorities ? (int32_t)rnd(5) - 2 : 0;
    q->no_prefix = rnd(10) == 0;
    q->want_logits = rnd(8) == 0;
    x->salt = rnd(2);
    q->salt = name_of(x->salt);
    random_tokens(x->tokens, q->n_prompt);
    int32_t group, needs;
    if (!sched_can_ever_run(&t->kv, sequence_max_positions(q), &group, &needs)) {
        assert_true(needs > t->kv.pools[group].n_pages);
        return;
    }
    x->live = true;
    x->arrived = t->steps;
    sched_add(&t->s, q);
    assert_int_equal(q->rank, t->steps - 64 * (int64_t)q->priority); /* headrace.h: a point is worth 64 steps */
    x->bound = 0;
    for (int i = 0; i < MAX_LIVE; i++) {
        if (!seqs[i].live) continue;
        x->bound += rows_of(&seqs[i]);
        /* whoever it passes waits for it, and for what the best of the running loses to it */
        if (&seqs[i] != x && q->rank < seqs[i].q.rank) seqs[i].bound += rows_of(x) + MAX_CTX;
    }
}

static void end(sim *t, sim_seq *x) {
    sched_remove(&t->s, &x->q);
    t->preemptions += x->q.n_preempted;
    x->live = false;
}

/* Some cost of a step that grows with its rows. */
static uint64_t cost_of(const void *ctx, int32_t n_rows) {
    (void)ctx;
    assert_true(n_rows > 0);
    return 1000 - 900 / (uint64_t)n_rows;
}

static bool decodes(const sequence *q) { return q->n_computed >= q->n_prompt && sequence_pending(q) == 1; }

/* Before a step: whether it has to keep a row back from those that decode now. */
static bool keeps_a_row(const sim *t) {
    bool prompts = t->s.waiting.first != NULL && t->s.n_free_slots > 0;
    for (int i = 0; i < MAX_LIVE; i++) seqs[i].decoded = false;
    for (sequence *q = t->s.running.first; q != NULL; q = q->next) {
        ((sim_seq *)(void *)q)->decoded = decodes(q);
        prompts |= !decodes(q);
    }
    return prompts && t->s.limits.max_rows > 1;
}

/* Of those that run: every decode, and the prompt of the best rank, has a row in any steps_per_row steps. */
static void nobody_is_left_out(const sim *t) {
    bool prompt_seen = false;
    for (sequence *q = t->s.running.first; q != NULL; q = q->next) {
        sim_seq *x = (sim_seq *)(void *)q;
        const bool decode = decodes(q), owed = decode || !prompt_seen;
        prompt_seen |= !decode;
        if (q->step_rows > 0 || !owed || q->n_preempted != x->idle_since) x->idle = 0;
        x->idle_since = q->n_preempted;
        if (q->step_rows > 0 || !owed) continue;
        if (++x->idle >= steps_per_row(t)) fail_msg("a %s had no row in %lld steps", decode ? "decode" : "prompt of the best rank", (long long)x->idle);
    }
}

static int32_t pages_to_come(const sim *t, const sequence *q, int32_t g) {
    const int32_t most = t->s.limits.max_rows, n = kv_pages_at_most(&t->kv, g, q->n_tokens, q->chunk > 0 && q->chunk < most ? q->chunk : most) - (q->kv.n_pages - q->kv.first[g]);
    return n > 0 ? n : 0;
}

/* Whoever was admitted beside others left them the pages that their prompts still need. */
static void whoever_runs_fits(const sim *t, int32_t n_waited, uint64_t preempted) {
    if (t->s.waiting.n >= n_waited || t->s.running.n < 2 || t->s.n_preempted > preempted) return;
    for (int32_t g = 0; g < t->kv.opt.n_groups; g++) {
        int64_t need = (t->s.running.n - 1 + 3) / 4;
        if (!t->kv.opt.groups[g].paged) continue;
        for (const sequence *r = t->s.running.first; r != NULL; r = r->next) need += pages_to_come(t, r, g);
        assert_true(need <= kv_available(&t->kv, g));
    }
}

/* Nobody waits who has a slot, a row and the pages that sched.h asks for, found again or not. */
static void whoever_fits_runs(const sim *t, int32_t rows, uint64_t preempted) {
    const sequence *q = t->s.waiting.first;
    if (q == NULL || t->s.n_free_slots == 0 || rows == t->s.limits.max_rows || t->s.n_preempted > preempted) return;
    for (int32_t g = 0; g < t->kv.opt.n_groups; g++) {
        int64_t need = pages_to_come(t, q, g) + (t->s.running.n + 3) / 4;
        if (!t->kv.opt.groups[g].paged) continue;
        for (const sequence *r = t->s.running.first; r != NULL; r = r->next) need += pages_to_come(t, r, g);
        if (need > kv_available(&t->kv, g)) return;
    }
    fail_msg("the first that waits has a slot, a row and %d pages, and is not admitted", kv_available(&t->kv, 0));
}

static void one_step(sim *t) {
    const uint64_t hits = t->s.n_hit_tokens;
    const sequence *best = t->s.running.first;
    const int32_t times = best != NULL ? best->n_preempted : 0;
    const uint64_t bytes = t->s.sum_bytes;
    const bool keeps = keeps_a_row(t);
    const uint64_t preempted = t->s.n_preempted;
    const int32_t n_waited = t->s.waiting.n;
    const int32_t rows = sched_step(&t->s);
    assert_int_equal(t->s.step_bytes, rows > 0 ? cost_of(NULL, rows) : 0);
    assert_int_equal(t->s.sum_bytes - bytes, t->s.step_bytes);
    assert_int_equal(sched_step_bytes(&t->s, rows), t->s.step_bytes);
    if (best != NULL) assert_int_equal(best->n_preempted, times); /* never the best of those that run */
    nobody_is_left_out(t);
    whoever_fits_runs(t, rows, preempted);
    whoever_runs_fits(t, n_waited, preempted);
    int32_t sum = 0, of_decodes = 0;
    t->steps++;
    t->hits += (long)(t->s.n_hit_tokens - hits);
    assert_true(rows <= t->s.limits.max_rows);
    if (t->s.running.n + t->s.waiting.n > 0) assert_true(rows > 0);
    for (sequence *q = t->s.running.first; q != NULL; q = q->next) {
        sim_seq *x = (sim_seq *)(void *)q;
        sum += q->step_rows;
        if (q->step_rows == 0) continue;
        of_decodes += x->decoded;
        assert_true(q->step_rows <= sequence_pending(q));
        if (q->chunk > 0) assert_true(q->step_rows <= q->chunk);
        compute(&t->kv, &q->kv, x->salt, q->tokens, q->n_computed, q->step_rows, &t->state[q->slot]);
    }
    assert_int_equal(sum, rows);
    assert_true(of_decodes < t->s.limits.max_rows || !keeps);
    for (sequence *q = t->s.running.first, *next; q != NULL; q = next) {
        sim_seq *x = (sim_seq *)(void *)q;
        next = q->next;
        if (q->step_rows == 0) continue;
        if (q->want_logits) q->n_scored = q->n_computed + q->step_rows > q->n_scored ? q->n_computed + q->step_rows : q->n_scored;
        keep_state(sched_computed(&t->s, q), t->state[q->slot]);
        if (q->n_computed < q->n_tokens) continue;
        if (q->n_tokens < q->n_prompt + q->max_new) q->tokens[q->n_tokens++] = (int32_t)rnd(3);
        if (q->n_tokens < q->n_prompt + q->max_new) continue;
        const int64_t took = t->steps - x->arrived, bound = steps_per_row(t) * x->bound;
        if (took > bound) fail_msg("a sequence took %lld steps, and the bound is %lld", (long long)took, (long long)bound);
        if (took > t->worst) t->worst = (long)took;
        end(t, x);
        t->ended++;
    }
}

static void scheduler_against_a_plain_model(void **state) {
    (void)state;
    sim total = {0};
    n_kept = n_restored = 0;
    rng = 2463534242u;
    for (long done = 0; done < n_events;) {
        sim t = {.m = test_mem(), .priorities = rnd(2) == 0};
        random_cache(&t.kv, t.m, true);
        sched_init(&t.s, (sched_limits){.max_rows = 1 + (int32_t)rnd(rnd(2) ? 4 : 30), .max_seqs = 1 + (int32_t)rnd(12)}, &t.kv, t.slots);
        sched_set_cost(&t.s, cost_of, NULL);
        const uint32_t busy = 2 + rnd(12);
        for (int k = 0; k < 600 && done < n_events; k++, done++) {
            const uint32_t what = rnd(16);
            if (what == 0) {
                sim_seq *x = &seqs[rnd(MAX_LIVE)];
                if (x->live) {
                    end(&t, x);
                    t.cancelled++;
                }
            } else if (what < busy / 2) {
                arrive(&t);
            } else {
                one_step(&t);
            }
            assert_true(sched_check(&t.s));
        }
        while (t.s.running.n + t.s.waiting.n > 0) one_step(&t); /* to the end: nothing may be left */
        assert_true(sched_check(&t.s));
        for (int i = 0; i < MAX_LIVE; i++) assert_false(seqs[i].live);
        for (int32_t g = 0; g < t.kv.opt.n_groups; g++) {
            const kv_pool *p = &t.kv.pools[g];
            assert_int_equal(p->n_free + p->n_cached, p->n_pages);
        }
        assert_int_equal(t.s.n_free_slots, t.s.limits.max_seqs);
        total.hits += t.hits;
        total.preemptions += t.preemptions;
        total.ended += t.ended;
        total.cancelled += t.cancelled;
        total.worst = t.worst > total.worst ? t.worst : total.worst;
        kv_cache_deinit(&t.kv);
        test_mem_check(t.m);
    }
    print_message("scheduler: %ld events, %ld ended, %ld cancelled, %ld preemptions, %ld tokens hit, %ld states kept, %ld restored, longest life %ld steps\n", n_events, total.ended, total.cancelled,
                  total.preemptions, total.hits, n_kept, n_restored, total.worst);
    assert_true(total.ended > 0 && total.cancelled > 0 && total.preemptions > 0 && total.hits > 0 && n_kept > 0 && n_restored > 0);
}

int main(int argc, char **argv) {
    if (argc > 1) n_events = strtol(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_against_a_plain_model),
        cmocka_unit_test(a_hit_is_as_long_as_can_be),
        cmocka_unit_test(a_hit_ends_at_a_snapshot),
        cmocka_unit_test(scheduler_against_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
