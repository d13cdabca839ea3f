/* SPDX-License-Identifier: Apache-2.0 */
/** How fast a device with memory of its own is copied to, asked without a model: for doctor. */
#ifndef HEADRACE_ENGINE_DEVICE_LINK_H
#define HEADRACE_ENGINE_DEVICE_LINK_H

#include "vt/vt.h"

typedef struct device_link {
    double bytes_per_s;        /* from the host's memory, pinned where the device pins it */
    bool pinned;               /* it does */
    double staged_bytes_per_s; /* from memory that is not pinned, through a ring that is; 0: not measured */
    size_t staging_bytes;      /* of that ring */
} device_link;

/** Of the first device of this type, which is opened for the question. false: there is none, it computes in host memory, or it cannot be
 * measured. */
bool device_link_measure(vt_runtime *rt, mem *m, int n_threads, vt_device_type type, device_link *out);

#endif
