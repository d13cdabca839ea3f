/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks of a step come before the step returns; speed_meter_step closes it. */
#include "cli/speed_meter.h"

void speed_meter_init(speed_meter *s, size_t n_requests, bool only_full) {
    *s = (speed_meter){.n_requests = n_requests, .only_full = only_full};
}

void speed_meter_token(speed_meter *s, bool first) {
    s->step_tokens++;
    if (first) s->n_started++;
}

void speed_meter_done(speed_meter *s, bool started) {
    s->n_done++;
    if (!started) s->n_started++;
}

void speed_meter_step(speed_meter *s, uint64_t before_ns, uint64_t after_ns) {
    bool decoding = s->started_before == s->n_requests;
    if (!decoding) {
        s->prefill_ns += after_ns - before_ns;
    } else if (s->step_tokens && !(s->only_full && s->done_before)) {
        s->decode_ns += after_ns - before_ns;
        s->decode_tokens += s->step_tokens;
    }
    s->started_before = s->n_started;
    s->done_before = s->n_done;
    s->step_tokens = 0;
}
