/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: levels, one line per call, and nothing in them that a file could use against a terminal. */
#include "support/test_case.h"

#include "base/log.h"

typedef struct lines {
    int n;
    log_level level;
    char last[4096];
} lines;

static void take(void *user, log_level level, const char *line) {
    lines *l = user;
    l->n++;
    l->level = level;
    snprintf(l->last, sizeof l->last, "%s", line);
}

static void levels_select(void **state) {
    (void)state;
    lines l = {0};
    log_set(take, &l, LOG_LEVEL_WARN);
    assert_true(log_enabled(LOG_LEVEL_ERROR));
    assert_true(log_enabled(LOG_LEVEL_WARN));
    assert_false(log_enabled(LOG_LEVEL_INFO));
    log_info("not %s", "shown");
    log_debug("not shown");
    assert_int_equal(l.n, 0);
    log_warn("slow: %d", 3);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.level, LOG_LEVEL_WARN);
    assert_string_equal(l.last, "slow: 3");
    log_set(take, &l, LOG_LEVEL_DEBUG);
    log_debug("now");
    assert_int_equal(l.level, LOG_LEVEL_DEBUG);
    log_set(NULL, NULL, LOG_LEVEL_INFO);
    log_error("this goes to stderr");
    assert_int_equal(l.n, 2);
}

static void lines_are_single_safe_and_bounded(void **state) {
    (void)state;
    lines l = {0};
    log_set(take, &l, LOG_LEVEL_INFO);
    log_info("name: %s", "a\nb\x1B]0;x\x07\xFF");
    assert_string_equal(l.last, "name: a b?]0;x??");
    char text[10000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_info("%s", text);
    assert_int_equal(strlen(l.last), ERROR_TEXT_BYTES - 1);
    log_set(NULL, NULL, LOG_LEVEL_INFO);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_select), cmocka_unit_test(lines_are_single_safe_and_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
