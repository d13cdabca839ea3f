/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's half of the reader. The kernel holds up to `depth` pieces; each time the engine's thread comes by, what has ended is taken in and as many new ones are handed over. A ring
 * that fails as a whole (none of the reasons is known) fails every piece that it holds.
 */
#include <string.h>

#include "base/log.h"
#include "moe/expert_reader_impl.h"

status reader_ring_create(expert_reader *r, error *err) {
    const int32_t depth = r->opt.depth;
    TRY(os_ring_create(r->m, depth, &r->ring, err));
    r->pieces = mem_calloc(r->m, MEM_MODEL, (size_t)depth, sizeof *r->pieces);
    r->free_pieces = mem_calloc(r->m, MEM_MODEL, (size_t)depth, sizeof *r->free_pieces);
    if (r->pieces == NULL || r->free_pieces == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for %d reads", depth);
    for (int32_t i = 0; i < depth; i++) r->free_pieces[r->n_free++] = i;
    if (r->opt.memory != NULL) {
        r->registered = os_ring_register(r->ring, r->opt.memory, r->opt.memory_bytes);
        if (!r->registered) log_debug("experts: %zu bytes of slots are not registered with the kernel: the limit of locked memory (ulimit -l)", r->opt.memory_bytes);
    }
    return STATUS_OK;
}

/* One piece is over or has to be asked for again. */
static void take_in(expert_reader *r, uint64_t user, int64_t got) {
    const int32_t i = (int32_t)user;
    reader_piece *p = &r->pieces[i];
    error err = {0};
    status rc;
    if (!reader_judge(r, p, got, &rc, &err)) {
        os_ring_read(r->ring, r->direct[p->range.file], p->off, p->dst, p->n, user);
        os_ring_submit(r->ring);
        return;
    }
    r->n_flying--;
    r->free_pieces[r->n_free++] = i;
    pthread_mutex_lock(&r->lock);
    reader_complete(r, p->fill, rc, err.text);
    pthread_mutex_unlock(&r->lock);
}

/* The ring is broken and has given all that the kernel held: the rest will never come, and nothing writes to its memory. */
static void give_up(expert_reader *r) {
    bool is_free[EXPERT_READER_MAX_DEPTH] = {false};
    for (int32_t i = 0; i < r->n_free; i++) is_free[r->free_pieces[i]] = true;
    for (int32_t i = 0; i < r->opt.depth; i++) {
        if (!is_free[i]) take_in(r, (uint64_t)i, -5); /* EIO */
    }
}

void reader_ring_pump(expert_reader *r) {
    int32_t n = 0;
    for (; r->n_free > 0; n++) {
        const int32_t i = r->free_pieces[r->n_free - 1];
        reader_piece *p = &r->pieces[i];
        pthread_mutex_lock(&r->lock);
        const bool some = reader_take(r, p);
        pthread_mutex_unlock(&r->lock);
        if (!some) break;
        r->n_free--;
        r->n_flying++;
        os_ring_read(r->ring, r->direct[p->range.file], p->off, p->dst, p->n, (uint64_t)i);
    }
    if (n > 0) os_ring_submit(r->ring);
}

void reader_ring_collect(expert_reader *r, bool wait) {
    uint64_t user;
    int64_t got;
    do {
        reader_ring_pump(r);
        while (os_ring_next(r->ring, false, &user, &got)) take_in(r, user, got);
        reader_ring_pump(r);
        if (!wait || reader_has_ready(r) || r->n_flying == 0) return;
        if (os_ring_next(r->ring, true, &user, &got))
            take_in(r, user, got);
        else
            give_up(r);
    } while (!reader_has_ready(r));
    reader_ring_pump(r);
}

void reader_ring_destroy(expert_reader *r) {
    uint64_t user;
    int64_t got;
    if (r->ring != NULL && r->wanted.jobs != NULL) expert_reader_drop(r);
    while (r->ring != NULL && r->n_flying > 0 && os_ring_next(r->ring, true, &user, &got)) take_in(r, user, got); /* the kernel writes to the slots until then */
    os_ring_destroy(r->ring);
    mem_free(r->m, r->pieces);
    mem_free(r->m, r->free_pieces);
}
