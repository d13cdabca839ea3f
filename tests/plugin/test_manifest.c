/* SPDX-License-Identifier: Apache-2.0 */
/* The test backend's manifest, from the same kernel_rows.def as the library. */
#include "plugin/test_manifest.h"

#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

static const vt_manifest_row test_rows[] = {
#include "vt/manifest_begin.h"
#include "plugin/kernel_rows.def"
#include "vt/manifest_end.h"
};

static const vt_manifest test_manifest = {
    "test", VT_DEVICE_TEST, "tests/plugin", "HEADRACE_TESTS", true, test_rows, (int32_t)(sizeof test_rows / sizeof test_rows[0]),
    NULL,   true,
};

test_manifests test_manifests_all(void) {
    test_manifests all = {.n = 0};
    for (int32_t i = 0; i < vt_manifest_count && all.n < TEST_MANIFESTS_MAX - 1; i++) all.list[all.n++] = vt_manifest_list[i];
    all.list[all.n++] = test_manifest;
    return all;
}

test_manifests test_manifests_only(void) { return (test_manifests){.list = {test_manifest}, .n = 1}; }

vt_runtime *test_runtime_create(mem *m, const char *plugin) {
    static test_manifests all; /* must outlive the runtime */
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/%s", HEADRACE_TEST_PLUGINS, plugin ? plugin : "");
    const char *dirs[] = {plugin ? dir : NULL, NULL};
    all = test_manifests_all();
    vt_runtime_options opt = {.search_dirs = dirs, .manifests = all.list, .n_manifests = all.n};
    vt_runtime *rt = NULL;
    error err = {0};
    if (vt_runtime_create(m, &opt, &rt, &err) != STATUS_OK) fail_msg("%s", err.text);
    return rt;
}
