/* SPDX-License-Identifier: Apache-2.0 */
/* The eviction policy: a table from keys to slots, a record per slot, and one scan for the victim. */
#include "moe/expert_policy.h"

#include "base/checked.h"

static const double DECAY_PER_STEP = 0.98;

/* Of BLEND. */
enum { BLEND_AGES = 1024 }; /* older than that, a score is nothing */
static const float BLEND_SLOW = 0.98f, BLEND_FAST = 0.3f, BLEND_WEIGHT = 8.0f;
static const float BLEND_AGAIN = 1.25f; /* the slow score of what is used again within some 70 steps */

typedef struct policy_history {
    float slow, fast; /* as of `step` */
    uint32_t step;
} policy_history;

typedef struct policy_slot {
    int32_t layer, expert; /* layer -1: empty */
    int32_t n_protect;
    double score;
    uint64_t last_use; /* a count of uses, so no two are equal */
} policy_slot;

struct expert_policy {
    mem *m;
    expert_policy_kind kind;
    int32_t n_slots, n_layers, max_experts;
    int32_t n_used, n_protected, n_layers_seen;
    uint64_t n_uses;
    policy_slot *slots;
    int32_t *slot_of; /* [n_layers * max_experts]; -1: not held */
    int32_t *held;    /* [n_layers]: slots of each layer */
    bool *seen;       /* [n_layers] */
    int32_t *free_slots, n_free;
    /* BLEND only */
    policy_history *history; /* [n_layers * max_experts] */
    uint32_t *visited;       /* [n_layers]: the last step that took experts of the layer */
    uint32_t step;
    float slow_after[BLEND_AGES], fast_after[BLEND_AGES]; /* what is left of a score after so many steps */
};

static bool table_size(int32_t n_layers, int32_t max_experts, size_t *out) { return checked_mul_size((size_t)n_layers, (size_t)max_experts, out); }

size_t expert_policy_bytes(int32_t n_slots, int32_t n_layers, int32_t max_experts) {
    size_t table;
    if (n_slots < 1 || n_layers < 1 || max_experts < 1 || !table_size(n_layers, max_experts, &table) || table > (size_t)INT32_MAX) return SIZE_MAX;
    return sizeof(expert_policy) + (size_t)n_slots * (sizeof(policy_slot) + sizeof(int32_t)) + table * sizeof(int32_t) +
           (size_t)n_layers * (sizeof(int32_t) + sizeof(bool) + sizeof(uint32_t)) + table * sizeof(policy_history) + 8 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

status expert_policy_create(mem *m, expert_policy_kind kind, int32_t n_slots, int32_t n_layers, int32_t max_experts, expert_policy **out, error *err) {
    if (expert_policy_bytes(n_slots, n_layers, max_experts) == SIZE_MAX) {
        return error_set(err, STATUS_INVALID, "experts: a policy for %d slots, %d layers and %d experts", n_slots, n_layers, max_experts);
    }
    expert_policy *p = mem_calloc(m, MEM_MODEL, 1, sizeof *p);
    if (p == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a policy");
    p->m = m;
    p->kind = kind;
    p->n_slots = n_slots;
    p->n_layers = n_layers;
    p->max_experts = max_experts;
    const size_t table = (size_t)n_layers * (size_t)max_experts;
    p->slots = mem_calloc(m, MEM_MODEL, (size_t)n_slots, sizeof *p->slots);
    p->free_slots = mem_calloc(m, MEM_MODEL, (size_t)n_slots, sizeof *p->free_slots);
    p->slot_of = mem_calloc(m, MEM_MODEL, table, sizeof *p->slot_of);
    p->held = mem_calloc(m, MEM_MODEL, (size_t)n_layers, sizeof *p->held);
    p->seen = mem_calloc(m, MEM_MODEL, (size_t)n_layers, sizeof *p->seen);
    if (kind == EXPERT_POLICY_BLEND) {
        p->history = mem_calloc(m, MEM_MODEL, table, sizeof *p->history);
        p->visited = mem_calloc(m, MEM_MODEL, (size_t)n_layers, sizeof *p->visited);
        p->slow_after[0] = p->fast_after[0] = 1;
        for (int i = 1; i < BLEND_AGES; i++) {
            p->slow_after[i] = p->slow_after[i - 1] * BLEND_SLOW;
            p->fast_after[i] = p->fast_after[i - 1] * BLEND_FAST;
        }
    }
    if ((kind == EXPERT_POLICY_BLEND && (p->history == NULL || p->visited == NULL)) || p->slots == NULL || p->free_slots == NULL || p->slot_of == NULL || p->held == NULL || p->seen == NULL) {
        expert_policy_destroy(p);
        return error_set(err, STATUS_NO_MEMORY, "experts: no memory for a policy of %d slots", n_slots);
    }
    for (size_t i = 0; i < table; i++) p->slot_of[i] = -1;
    for (int32_t i = 0; i < n_slots; i++) {
        p->slots[i].layer = -1;
        p->free_slots[i] = n_slots - 1 - i; /* the lowest first */
    }
    p->n_free = n_slots;
    *out = p;
    return STATUS_OK;
}

void expert_policy_destroy(expert_policy *p) {
    if (p == NULL) return;
    mem_free(p->m, p->slots);
    mem_free(p->m, p->free_slots);
    mem_free(p->m, p->slot_of);
    mem_free(p->m, p->held);
    mem_free(p->m, p->seen);
    mem_free(p->m, p->history);
    mem_free(p->m, p->visited);
    mem_free(p->m, p);
}

static int32_t *entry(const expert_policy *p, int32_t layer, int32_t expert) { return &p->slot_of[(size_t)layer * (size_t)p->max_experts + (size_t)expert]; }

int32_t expert_policy_find(const expert_policy *p, int32_t layer, int32_t expert) { return *entry(p, layer, expert); }

/* A use of an expert, into its history. */
static void remember(expert_policy *p, int32_t layer, int32_t expert) {
    policy_history *h = &p->history[(size_t)layer * (size_t)p->max_experts + (size_t)expert];
    const uint32_t age = p->step - h->step;
    h->slow = 1 + (age < BLEND_AGES ? h->slow * p->slow_after[age] : 0);
    h->fast = 1 + (age < BLEND_AGES ? h->fast * p->fast_after[age] : 0);
    h->step = p->visited[layer] = p->step;
}

void expert_policy_touch(expert_policy *p, int32_t slot) {
    if (p->kind == EXPERT_POLICY_BLEND) remember(p, p->slots[slot].layer, p->slots[slot].expert);
    p->slots[slot].score += 1;
    p->slots[slot].last_use = ++p->n_uses;
}

/* An empty slot that nobody protects any more. */
static void set_free(expert_policy *p, int32_t slot) {
    p->free_slots[p->n_free++] = slot;
    p->n_used--;
}

void expert_policy_forget(expert_policy *p, int32_t slot) {
    policy_slot *s = &p->slots[slot];
    if (s->layer < 0) return;
    *entry(p, s->layer, s->expert) = -1;
    p->held[s->layer]--;
    s->layer = -1;
    s->score = 0;
    if (s->n_protect == 0) set_free(p, slot);
}

void expert_policy_protect(expert_policy *p, int32_t slot, bool on) {
    policy_slot *s = &p->slots[slot];
    const bool was = s->n_protect > 0;
    s->n_protect += on ? 1 : -1;
    if (!was && s->n_protect > 0) p->n_protected++;
    if (was && s->n_protect == 0) {
        p->n_protected--;
        if (s->layer < 0) set_free(p, slot);
    }
}

void expert_policy_step(expert_policy *p) {
    p->step++;
    if (p->kind != EXPERT_POLICY_DECAY) return;
    for (int32_t i = 0; i < p->n_slots; i++) p->slots[i].score *= DECAY_PER_STEP;
}

/* ---- victims ---- */

static bool is_colder(const expert_policy *p, const policy_slot *a, const policy_slot *b) {
    if (p->kind == EXPERT_POLICY_DECAY && (a->score < b->score || a->score > b->score)) return a->score < b->score;
    return a->last_use < b->last_use;
}

/* The coldest unprotected slot among those of `layer` (-1: any), or of layers that hold more than `above` slots. */
static int32_t coldest(const expert_policy *p, int32_t layer, int32_t above) {
    int32_t best = -1;
    for (int32_t i = 0; i < p->n_slots; i++) {
        const policy_slot *s = &p->slots[i];
        if (s->layer < 0 || s->n_protect > 0) continue;
        if (layer >= 0 ? s->layer != layer : p->held[s->layer] <= above) continue;
        if (best < 0 || is_colder(p, s, &p->slots[best])) best = i;
    }
    return best;
}

static const policy_history *history_of(const expert_policy *p, int32_t layer, int32_t expert) { return &p->history[(size_t)layer * (size_t)p->max_experts + (size_t)expert]; }

static float blended(const expert_policy *p, int32_t layer, int32_t expert, uint32_t now) {
    const policy_history *h = history_of(p, layer, expert);
    const uint32_t age = now - h->step;
    return age < BLEND_AGES ? h->slow * p->slow_after[age] + BLEND_WEIGHT * h->fast * p->fast_after[age] : 0;
}

/* The unprotected slot of the lowest blended score. */
static int32_t least_blended(const expert_policy *p) {
    int32_t best = -1;
    float least = 0;
    for (int32_t i = 0; i < p->n_slots; i++) {
        const policy_slot *s = &p->slots[i];
        if (s->layer < 0 || s->n_protect > 0) continue;
        const float score = blended(p, s->layer, s->expert, p->visited[s->layer]);
        if (best >= 0 && (score > least || (!(score < least) && s->last_use > p->slots[best].last_use))) continue;
        best = i;
        least = score;
    }
    return best;
}

static int32_t find_victim(const expert_policy *p, int32_t layer, int32_t limit) {
    if (p->kind == EXPERT_POLICY_LAYER_QUOTA && p->n_layers_seen > 0) {
        const int32_t quota = limit / p->n_layers_seen > 1 ? limit / p->n_layers_seen : 1;
        const int32_t own = layer >= 0 && p->held[layer] >= quota;
        const int32_t victim = own ? coldest(p, layer, 0) : coldest(p, -1, quota);
        if (victim >= 0) return victim;
    }
    return p->kind == EXPERT_POLICY_BLEND ? least_blended(p) : coldest(p, -1, 0);
}

static bool evict(expert_policy *p, int32_t layer, int32_t limit) {
    const int32_t victim = find_victim(p, layer, limit);
    if (victim < 0) return false;
    expert_policy_forget(p, victim);
    return true;
}

static void note_layer(expert_policy *p, int32_t layer) {
    if (p->seen[layer]) return;
    p->seen[layer] = true;
    p->n_layers_seen++;
}

static int32_t take_free(expert_policy *p, int32_t layer, int32_t expert) {
    const int32_t slot = p->free_slots[--p->n_free];
    p->n_used++;
    policy_slot *s = &p->slots[slot];
    s->layer = layer;
    s->expert = expert;
    s->score = 0;
    s->last_use = ++p->n_uses;
    *entry(p, layer, expert) = slot;
    p->held[layer]++;
    return slot;
}

int32_t expert_policy_place(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted) {
    if (limit > p->n_slots) limit = p->n_slots;
    if (p->kind == EXPERT_POLICY_BLEND) p->visited[layer] = p->step;
    note_layer(p, layer);
    while (p->n_used >= limit && evict(p, layer, limit)) ++*n_evicted;
    if (p->n_used >= limit) return -1;
    const int32_t slot = take_free(p, layer, expert);
    expert_policy_touch(p, slot);
    return slot;
}

/* Whether a slot would be given up before the expert, once that has been used so many times more. */
static bool is_worth_less(const expert_policy *p, int32_t slot, int32_t layer, int32_t expert, int uses) {
    const policy_slot *s = &p->slots[slot];
    if (p->kind == EXPERT_POLICY_DECAY) return s->score <= 1;
    if (p->kind != EXPERT_POLICY_BLEND) return true;
    return blended(p, s->layer, s->expert, p->visited[s->layer]) <= blended(p, layer, expert, p->step) + (float)uses * (1 + BLEND_WEIGHT);
}

/* A free slot, or that of a victim which is worth less. */
static int32_t place_if_worth(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, int uses, uint64_t *n_evicted) {
    if (limit > p->n_slots) limit = p->n_slots;
    if (p->n_used > limit) return -1;
    if (p->n_used == limit) {
        const int32_t victim = find_victim(p, layer, limit);
        if (victim < 0 || !is_worth_less(p, victim, layer, expert, uses)) return -1;
        expert_policy_forget(p, victim);
        ++*n_evicted;
    }
    note_layer(p, layer);
    return take_free(p, layer, expert);
}

int32_t expert_policy_place_ahead(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted) {
    return place_if_worth(p, layer, expert, limit, 1, n_evicted);
}

void expert_policy_use(expert_policy *p, int32_t layer, int32_t expert) {
    note_layer(p, layer);
    if (p->kind == EXPERT_POLICY_BLEND) remember(p, layer, expert);
}

int32_t expert_policy_place_used(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted) {
    const bool again = p->kind != EXPERT_POLICY_BLEND || history_of(p, layer, expert)->slow >= BLEND_AGAIN;
    return again || p->n_used < (limit < p->n_slots ? limit : p->n_slots) ? place_if_worth(p, layer, expert, limit, 0, n_evicted) : -1;
}

int32_t expert_policy_shrink(expert_policy *p, int32_t limit) {
    int32_t n = 0;
    while (p->n_used > limit && evict(p, -1, limit > 0 ? limit : 1)) n++;
    return n;
}

/* ---- looking ---- */

int32_t expert_policy_used(const expert_policy *p) { return p->n_used; }
int32_t expert_policy_n_protected(const expert_policy *p) { return p->n_protected; }

void expert_policy_holds(const expert_policy *p, int32_t slot, int32_t *layer, int32_t *expert) {
    *layer = p->slots[slot].layer;
    *expert = p->slots[slot].expert;
}

bool expert_policy_check(const expert_policy *p) {
    int32_t used = 0, protect = 0, held = 0, entries = 0;
    for (int32_t i = 0; i < p->n_slots; i++) {
        const policy_slot *s = &p->slots[i];
        if (s->n_protect < 0) return false;
        if (s->n_protect > 0) protect++;
        if (s->layer >= 0 || s->n_protect > 0) used++;
        if (s->layer >= 0 && *entry(p, s->layer, s->expert) != i) return false;
        if (s->layer >= 0) held++;
    }
    for (int32_t l = 0; l < p->n_layers; l++) {
        int32_t n = 0;
        for (int32_t e = 0; e < p->max_experts; e++) n += *entry(p, l, e) >= 0 ? 1 : 0;
        if (n != p->held[l]) return false;
        entries += n;
    }
    for (int32_t i = 0; i < p->n_free; i++) {
        const policy_slot *s = &p->slots[p->free_slots[i]];
        if (s->layer >= 0 || s->n_protect > 0) return false;
    }
    return used == p->n_used && protect == p->n_protected && held == entries && p->n_free == p->n_slots - used;
}
