/* SPDX-License-Identifier: Apache-2.0 */
/* What cmocka wants included before it, and a few helpers of unit tests of base. Include it first. */
#ifndef HEADRACE_TESTS_TEST_CASE_H
#define HEADRACE_TESTS_TEST_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"

/** An allocator for one test; test_mem_check fails when anything is left in it. */
static inline mem *test_mem(void) {
    mem *m = NULL;
    assert_int_equal(mem_create(&m), STATUS_OK);
    return m;
}

static inline void test_mem_check(mem *m) { assert_int_equal(mem_destroy(m), STATUS_OK); }

/** Fails with the whole text when `part` is not in it. */
#define assert_contains(text, part)                                                                                                        \
    do {                                                                                                                                   \
        if (!strstr((text), (part))) fail_msg("\"%s\" does not contain \"%s\"", (text), (part));                                           \
    } while (0)

#endif
