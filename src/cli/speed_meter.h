/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Speed of a batch, by steps. The prefill phase is every step until each request has its first token (or has ended without one); the decode
 * phase is what follows. Tokens and time of a phase are those of its steps, so nothing of one phase is divided by the time of the other.
 */
#ifndef HEADRACE_CLI_SPEED_METER_H
#define HEADRACE_CLI_SPEED_METER_H

#include "headrace/headrace.h"

typedef struct speed_meter {
    size_t n_requests, n_started, n_done;
    size_t started_before, done_before; /* as the running step began */
    bool only_full;                     /* decode counts only steps in which all requests take part */
    uint64_t step_tokens;
    uint64_t prefill_ns, decode_ns, decode_tokens;
} speed_meter;

void speed_meter_init(speed_meter *s, size_t n_requests, bool only_full);
/** A token of a request, `first` if its first. */
void speed_meter_token(speed_meter *s, bool first);
/** The end of a request; `started` if it had a token. */
void speed_meter_done(speed_meter *s, bool started);
/** The end of a step; its events have come before. */
void speed_meter_step(speed_meter *s, uint64_t before_ns, uint64_t after_ns);

#endif
