/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of check_device share: the fixture's answers on the processor, the posed device, and what the log said. One program, one
 * thread. */
#ifndef HEADRACE_TESTS_CHECK_DEVICE_H
#define HEADRACE_TESTS_CHECK_DEVICE_H

#include "model/model_support.h"

#include "engine/engine.h"
#include "support/posed_device.h"

extern const char *fixture;
extern posed_gpu *gpu;
extern int warnings_logged;
extern char warning[4096]; /* the last one */

typedef struct reference {
    support_alone alone; /* on the processor */
    bool experts;
    uint64_t least, all, slot_bytes, moe_layers;
    vt_need needs[256];
    int32_t n_needs;
    uint64_t grouped; /* layers that go by tables on the device */
} reference;

headrace_model_info info_of(headrace_engine *e);
int32_t bank_layers(const headrace_engine *e);
/** Nothing of the posed device is held, and no error was logged. */
void nothing_left(void);
/** Loads the fixture with settings: key, value, ... NULL. */
headrace_status try_load(headrace_engine **out, headrace_error *err, const char *const *settings);

/* check_device_rows.c: */
void grouped_rows_step_aside(void **state);
void fused_rows_step_aside(void **state);
void heads_step_aside(void **state);
void each_op_removed(void **state);
void what_is_not_needed(void **state);
void memory_decides_too(void **state);
void passed_over_leaves_nothing(void **state);
void all_that_is_free(void **state);
void unpinned(void **state);

/* check_device_pinned.c: */
void pinned_or_staged(void **state);
void pinned_refused(void **state);
/** Of the plan with these settings; as --pinned-mem, room for all of it and no slots. */
uint64_t planned_staging(const char *const *settings);

#endif
