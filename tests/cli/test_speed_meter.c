/* SPDX-License-Identifier: Apache-2.0 */
/* The speed meter over scripted steps; the expected sums were done by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "cli/speed_meter.h"

/* Two requests. Steps of 10, 20, 30, 40, 50 ns: A's prompt; A's token with B's prompt; both; A ends; B alone. */
static void play(speed_meter *s) {
    speed_meter_token(s, true); /* A, from its prompt */
    speed_meter_step(s, 1000, 1010);
    speed_meter_token(s, false);
    speed_meter_token(s, true); /* B, from its prompt */
    speed_meter_step(s, 2000, 2020);
    speed_meter_token(s, false);
    speed_meter_token(s, false);
    speed_meter_step(s, 3000, 3030);
    speed_meter_token(s, false);
    speed_meter_done(s, true); /* A */
    speed_meter_token(s, false);
    speed_meter_step(s, 4000, 4040);
    speed_meter_token(s, false);
    speed_meter_done(s, true); /* B */
    speed_meter_step(s, 5000, 5050);
}

static void counts_every_decode_step(void **state) {
    (void)state;
    speed_meter s;
    speed_meter_init(&s, 2, false);
    play(&s);
    assert_int_equal(s.prefill_ns, 10 + 20);
    assert_int_equal(s.decode_ns, 30 + 40 + 50);
    assert_int_equal(s.decode_tokens, 2 + 2 + 1);
}

/* The step in which A ends still had both; the one after has not. */
static void counts_full_steps_only(void **state) {
    (void)state;
    speed_meter s;
    speed_meter_init(&s, 2, true);
    play(&s);
    assert_int_equal(s.prefill_ns, 10 + 20);
    assert_int_equal(s.decode_ns, 30 + 40);
    assert_int_equal(s.decode_tokens, 2 + 2);
}

/* Prompts without an answer: all of it is prefill, and a step without tokens is no decode. */
static void ends_without_tokens(void **state) {
    (void)state;
    speed_meter s;
    speed_meter_init(&s, 1, false);
    speed_meter_step(&s, 0, 5);
    speed_meter_done(&s, false);
    speed_meter_step(&s, 5, 12);
    speed_meter_step(&s, 12, 20);
    assert_int_equal(s.prefill_ns, 12);
    assert_int_equal(s.decode_ns, 0);
    assert_int_equal(s.decode_tokens, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_every_decode_step),
        cmocka_unit_test(counts_full_steps_only),
        cmocka_unit_test(ends_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
