/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one buffer to another, the best of a few rounds: straight, and through a ring as experts go whose slots are not pinned. */
#include "engine/device_link.h"

#include <string.h>

#include "base/os.h"
#include "moe/staging_ring.h"

enum { LINK_MIB = 32, COPIES = 4, ROUNDS = 3 };

typedef struct link_test {
    vt_device *device;
    vt_queue *queue;
    pool *threads;
    vt_buffer to, from;
    void *ordinary;
    staging_ring ring;
} link_test;

static status copy_once(link_test *t, bool staged) {
    const size_t bytes = t->to.bytes;
    const staging_span all = {.n_bytes = bytes, .from = t->ordinary};
    bool waited;
    return staged ? staging_ring_gather(&t->ring, t->queue, t->threads, t->to.data, bytes, &all, 1, &waited)
                  : vt_copy(t->queue, t->to.data, t->from.data, bytes);
}

static double measure(link_test *t, bool staged) {
    double best = 0;
    for (int round = 0; round <= ROUNDS; round++) { /* the first warms up */
        const uint64_t begin = os_now_ns();
        status rc = STATUS_OK;
        for (int i = 0; rc == STATUS_OK && i < COPIES; i++) rc = copy_once(t, staged);
        const status end = vt_queue_sync(t->queue);
        if (rc != STATUS_OK || end != STATUS_OK) return 0;
        const double speed = (double)t->to.bytes * COPIES * 1e9 / (double)(os_now_ns() - begin + 1);
        if (round > 0 && speed > best) best = speed;
    }
    return best;
}

static void measure_both(link_test *t, mem *m, device_link *out) {
    const size_t bytes = (size_t)LINK_MIB << 20;
    if (vt_buffer_alloc_host(t->device, MEM_STAGING, bytes, "copies that are measured", &t->from, NULL) != STATUS_OK ||
        vt_buffer_alloc(t->device, MEM_STAGING, bytes, "copies that are measured", &t->to, NULL) != STATUS_OK)
        return;
    out->bytes_per_s = measure(t, false);
    out->pinned = t->from.pinned;
    t->ordinary = mem_alloc(m, MEM_STAGING, bytes);
    if (t->ordinary == NULL ||
        staging_ring_open(&t->ring, t->device, staging_shape_of(bytes, 1), "staging that is measured", NULL) != STATUS_OK ||
        !staging_ring_pinned(&t->ring))
        return;
    memset(t->ordinary, 1, bytes); /* pages of its own */
    out->staged_bytes_per_s = measure(t, true);
    out->staging_bytes = t->ring.host.bytes;
}

bool device_link_measure(vt_runtime *rt, mem *m, int n_threads, vt_device_type type, device_link *out) {
    link_test t = {0};
    *out = (device_link){0};
    if (vt_device_open(rt, (vt_device_id){.type = type}, m, &t.device, NULL) != STATUS_OK) return false;
    const bool own = (vt_device_caps(t.device) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0;
    if (own && pool_create(m, n_threads, &t.threads, NULL) == STATUS_OK) {
        pool_step_begin(t.threads);
        if (vt_queue_create(t.device, NULL, &t.queue, NULL) == STATUS_OK) measure_both(&t, m, out);
        pool_step_end(t.threads);
    }
    vt_buffer_free(&t.to);
    vt_buffer_free(&t.from);
    staging_ring_close(&t.ring);
    mem_free(m, t.ordinary);
    vt_queue_destroy(t.queue);
    vt_device_close(t.device);
    pool_destroy(t.threads);
    return out->bytes_per_s > 0;
}
