/* SPDX-License-Identifier: Apache-2.0 */
/** The manifests of the tree with that of the test backend, as a runtime of a test gets them. */
#ifndef HEADRACE_TESTS_TEST_MANIFEST_H
#define HEADRACE_TESTS_TEST_MANIFEST_H

#include "vt/backend_manifest.h"

enum { TEST_MANIFESTS_MAX = 16 };

typedef struct test_manifests {
    vt_manifest list[TEST_MANIFESTS_MAX];
    int32_t n;
} test_manifests;

/** The generated list, the test backend last. */
test_manifests test_manifests_all(void);
/** The test backend alone. */
test_manifests test_manifests_only(void);
/** A runtime that knows all manifests and looks for libraries in `dir` alone (the plugin folder of that name; NULL: nowhere). Fails the
 * test when refused. */
vt_runtime *test_runtime_create(mem *m, const char *plugin);

#endif
