/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random events on the eviction policy against a plain model that follows the definition word by word: a list of what is held, searched from end to end. Usage: sim_expert_policy
 * [EVENTS]; 10^5 of each kind without an argument. What is held, who was given up, and every refusal must be the same; the invariants are walked as it goes.
 */
#include "support/test_case.h"

#include "moe/expert_policy.h"

enum { MAX_SLOTS = 64, MAX_LAYERS = 6, MAX_EXPERTS = 12 };

static long n_events = 100000;

typedef struct item {
    int layer, expert, n_protect; /* layer -1: empty and protected */
    double score;
    uint64_t last;
    int32_t slot; /* as the policy numbers it: identity only */
} item;

typedef struct plain {
    expert_policy_kind kind;
    int n_slots, n;
    item items[MAX_SLOTS];
    bool seen[MAX_LAYERS];
    uint64_t clock, n_evicted;
    struct { float slow, fast; uint32_t step; } history[MAX_LAYERS][MAX_EXPERTS]; /* BLEND: of all uses, whether held or not */
    uint32_t step, visited[MAX_LAYERS];
} plain;

static float after(float decay, uint32_t steps) {
    float v = 1;
    for (uint32_t i = 0; i < steps; i++) v *= decay;
    return steps < 1024 ? v : 0;
}

static void note_use(plain *m, int layer, int expert) {
    const uint32_t age = m->step - m->history[layer][expert].step;
    m->history[layer][expert].slow = 1 + m->history[layer][expert].slow * after(0.98f, age);
    m->history[layer][expert].fast = 1 + m->history[layer][expert].fast * after(0.3f, age);
    m->history[layer][expert].step = m->visited[layer] = m->step;
}

static float blend(const plain *m, const item *it) {
    const uint32_t age = m->visited[it->layer] - m->history[it->layer][it->expert].step;
    return m->history[it->layer][it->expert].slow * after(0.98f, age) + 8.0f * m->history[it->layer][it->expert].fast * after(0.3f, age);
}

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static int count_of(const plain *m, int layer) {
    int n = 0;
    for (int i = 0; i < m->n; i++) n += m->items[i].layer == layer ? 1 : 0;
    return n;
}

static int victim_among(const plain *m, const bool *candidate) {
    int best = -1;
    for (int i = 0; i < m->n; i++) {
        if (!candidate[i] || m->items[i].layer < 0 || m->items[i].n_protect > 0) continue;
        const item *a = &m->items[i], *b = best < 0 ? NULL : &m->items[best];
        if (b == NULL) {
            best = i;
        } else if (m->kind == EXPERT_POLICY_DECAY && a->score != b->score) {
            if (a->score < b->score) best = i;
        } else if (m->kind == EXPERT_POLICY_BLEND && blend(m, a) != blend(m, b)) {
            if (blend(m, a) < blend(m, b)) best = i;
        } else if (a->last < b->last) {
            best = i;
        }
    }
    return best;
}

static int plain_victim(const plain *m, int layer, int limit) {
    bool all[MAX_SLOTS], some[MAX_SLOTS];
    int n_seen = 0;
    for (int l = 0; l < MAX_LAYERS; l++) n_seen += m->seen[l] ? 1 : 0;
    for (int i = 0; i < MAX_SLOTS; i++) all[i] = true;
    if (m->kind == EXPERT_POLICY_LAYER_QUOTA && n_seen > 0) {
        int quota = limit / n_seen;
        if (quota < 1) quota = 1;
        const bool own = layer >= 0 && count_of(m, layer) >= quota;
        for (int i = 0; i < m->n; i++) some[i] = m->items[i].layer >= 0 && (own ? m->items[i].layer == layer : count_of(m, m->items[i].layer) > quota);
        const int v = victim_among(m, some);
        if (v >= 0) return v;
    }
    return victim_among(m, all);
}

static void take_out(plain *m, int i) { m->items[i] = m->items[--m->n]; }

static bool plain_evict(plain *m, int layer, int limit) {
    const int v = plain_victim(m, layer, limit);
    if (v < 0) return false;
    take_out(m, v);
    m->n_evicted++;
    return true;
}

static int plain_find(const plain *m, int layer, int expert) {
    for (int i = 0; i < m->n; i++) {
        if (m->items[i].layer == layer && m->items[i].expert == expert) return i;
    }
    return -1;
}

static void place(expert_policy *p, plain *m, int layer, int expert, int limit) {
    uint64_t n_evicted = 0, before = m->n_evicted;
    m->visited[layer] = m->step;
    const int32_t slot = expert_policy_place(p, layer, expert, limit, &n_evicted);
    m->seen[layer] = true;
    if (limit > m->n_slots) limit = m->n_slots;
    while (m->n >= limit && plain_evict(m, layer, limit)) {
    }
    assert_int_equal(n_evicted, m->n_evicted - before);
    if (m->n >= limit) {
        assert_int_equal(slot, -1);
        return;
    }
    assert_true(slot >= 0 && slot < m->n_slots);
    for (int i = 0; i < m->n; i++) assert_int_not_equal(m->items[i].slot, slot);
    note_use(m, layer, expert);
    m->items[m->n++] = (item){.layer = layer, .expert = expert, .score = 1, .last = ++m->clock, .slot = slot};
}

static void protect(expert_policy *p, plain *m, int i, bool on) {
    item *it = &m->items[i];
    expert_policy_protect(p, it->slot, on);
    it->n_protect += on ? 1 : -1;
    if (it->n_protect == 0 && it->layer < 0) take_out(m, i);
}

static void forget(expert_policy *p, plain *m, int i) {
    expert_policy_forget(p, m->items[i].slot);
    if (m->items[i].layer < 0) return;
    m->items[i].layer = -1;
    if (m->items[i].n_protect == 0) take_out(m, i);
}

static void compare(const expert_policy *p, const plain *m) {
    int n_protected = 0;
    for (int i = 0; i < m->n; i++) n_protected += m->items[i].n_protect > 0 ? 1 : 0;
    assert_int_equal(expert_policy_used(p), m->n);
    assert_int_equal(expert_policy_n_protected(p), n_protected);
    for (int l = 0; l < MAX_LAYERS; l++) {
        for (int e = 0; e < MAX_EXPERTS; e++) {
            const int i = plain_find(m, l, e);
            assert_int_equal(expert_policy_find(p, l, e), i < 0 ? -1 : m->items[i].slot);
        }
    }
}

static long one_event(expert_policy *p, plain *m, uint64_t r, uint64_t r2) {
    const int what = (int)(r % 100), layer = (int)(r2 % MAX_LAYERS), expert = (int)(r2 / MAX_LAYERS % MAX_EXPERTS);
    const int some = m->n > 0 ? (int)(r / 100 % (uint64_t)m->n) : -1;
    int limit = m->n_slots;
    if (r / 1000 % 4 == 0) limit = (int)(r2 / 100 % (uint64_t)(m->n_slots + 3));
    if (what < 50) {
        const int i = plain_find(m, layer, expert);
        if (i < 0) {
            place(p, m, layer, expert, limit);
        } else {
            expert_policy_touch(p, m->items[i].slot);
            m->items[i].score += 1;
            note_use(m, layer, expert);
            m->items[i].last = ++m->clock;
        }
    } else if (what < 70 && some >= 0) {
        protect(p, m, some, true);
    } else if (what < 93) {
        for (int i = 0, n = m->n; i < n; i++) {
            const int k = (some + i) % n;
            if (m->items[k].n_protect == 0) continue;
            protect(p, m, k, false);
            break;
        }
    } else if (what < 94 && some >= 0) {
        forget(p, m, some);
    } else if (what < 95) {
        const uint64_t before = m->n_evicted;
        while (m->n > limit && plain_evict(m, -1, limit > 0 ? limit : 1)) {
        }
        assert_int_equal(expert_policy_shrink(p, limit), m->n_evicted - before);
    } else {
        expert_policy_step(p);
        m->step++;
        for (int i = 0; i < m->n; i++) m->items[i].score *= 0.98;
    }
    return 1;
}

static void replay(expert_policy_kind kind, uint64_t seed) {
    mem *a = test_mem();
    error err = {0};
    long done = 0;
    uint64_t evicted = 0;
    static const int sizes[] = {1, 2, 7, 24, MAX_SLOTS};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        expert_policy *p;
        plain m = {.kind = kind, .n_slots = sizes[k]};
        assert_int_equal(expert_policy_create(a, kind, sizes[k], MAX_LAYERS, MAX_EXPERTS, &p, &err), STATUS_OK);
        const uint64_t allocs = mem_alloc_count(a);
        for (long i = 0; i < n_events / 5; i++) {
            const uint64_t r = next_random(&seed), r2 = next_random(&seed);
            done += one_event(p, &m, r, r2);
            if (i % 16 == 0) compare(p, &m);
            if (i % 64 == 0) assert_true(expert_policy_check(p));
            assert_true(expert_policy_used(p) <= sizes[k]);
        }
        assert_int_equal(mem_alloc_count(a), allocs);
        evicted += m.n_evicted;
        expert_policy_destroy(p);
    }
    print_message("%ld events, %llu victims\n", done, (unsigned long long)evicted);
    assert_true(done >= n_events && evicted > (uint64_t)n_events / 100);
    test_mem_check(a);
}

static void least_recently_used(void **state) {
    (void)state;
    replay(EXPERT_POLICY_LRU, 0x9e3779b97f4a7c15u);
}

static void decayed_frequency(void **state) {
    (void)state;
    replay(EXPERT_POLICY_DECAY, 0xd1b54a32d192ed03u);
}

static void quota_per_layer(void **state) {
    (void)state;
    replay(EXPERT_POLICY_LAYER_QUOTA, 0x2545f4914f6cdd1du);
}

static void frequency_and_recency(void **state) {
    (void)state;
    replay(EXPERT_POLICY_BLEND, 0x6a09e667f3bcc909u);
}

int main(int argc, char **argv) {
    if (argc > 1) n_events = atol(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(least_recently_used), cmocka_unit_test(decayed_frequency), cmocka_unit_test(quota_per_layer), cmocka_unit_test(frequency_and_recency)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
