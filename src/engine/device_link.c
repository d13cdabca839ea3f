/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one buffer to another, the best of a few rounds. */
#include "engine/device_link.h"

#include "base/os.h"

enum { LINK_MIB = 32, COPIES = 4, ROUNDS = 3 };

static double measure(vt_device *d, vt_queue *q, vt_buffer *from, vt_buffer *to) {
    const size_t bytes = (size_t)LINK_MIB << 20;
    double best = 0;
    if (vt_buffer_alloc_host(d, MEM_STAGING, bytes, "copies that are measured", from, NULL) != STATUS_OK || vt_buffer_alloc(d, MEM_STAGING, bytes, "copies that are measured", to, NULL) != STATUS_OK) return 0;
    for (int round = 0; round <= ROUNDS; round++) { /* the first warms up */
        const uint64_t begin = os_now_ns();
        status rc = STATUS_OK;
        for (int i = 0; rc == STATUS_OK && i < COPIES; i++) rc = vt_copy(q, to->data, from->data, bytes);
        const status end = vt_queue_sync(q);
        if (rc != STATUS_OK || end != STATUS_OK) return 0;
        const double speed = (double)bytes * COPIES * 1e9 / (double)(os_now_ns() - begin + 1);
        if (round > 0 && speed > best) best = speed;
    }
    return best;
}

double device_link_measure(vt_runtime *rt, mem *m, vt_device_type type) {
    vt_device *d;
    vt_queue *q = NULL;
    vt_buffer from = {0}, to = {0};
    double speed = 0;
    if (vt_device_open(rt, (vt_device_id){.type = type}, m, &d, NULL) != STATUS_OK) return 0;
    const bool own = (vt_device_caps(d) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0;
    if (own && vt_queue_create(d, NULL, &q, NULL) == STATUS_OK) speed = measure(d, q, &from, &to);
    vt_buffer_free(&to);
    vt_buffer_free(&from);
    vt_queue_destroy(q);
    vt_device_close(d);
    return speed;
}
