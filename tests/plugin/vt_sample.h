/* SPDX-License-Identifier: Apache-2.0 */
/** A small valid call of any op and signature, for tests that go through every row: zeros as data are valid arguments of every op. */
#ifndef HEADRACE_TESTS_VT_SAMPLE_H
#define HEADRACE_TESTS_VT_SAMPLE_H

#include "vt/vt.h"

enum { VT_SAMPLE_BYTES = 1 << 16 };

typedef struct vt_sample {
    vt_op op;
    vt_tensor t[VT_CALL_MAX_TENSORS];
} vt_sample;

/** Tensors are placed in data[VT_SAMPLE_BYTES], which is not touched; the output comes first. */
vt_sample vt_sample_make(vt_op op, vt_sig sig, vt_device_id dev, void *data);
/** VT_SAMPLE_BYTES that no one may read or write, so that whoever touches a sample's data there dies. Never freed. */
void *vt_sample_forbidden(void);
/** The typed call. */
status vt_sample_run(const vt_sample *s, vt_queue *q, error *err);

#endif
