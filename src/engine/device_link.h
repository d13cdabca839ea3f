/* SPDX-License-Identifier: Apache-2.0 */
/** How fast a device with memory of its own is copied to, asked without a model: for doctor. */
#ifndef HEADRACE_ENGINE_DEVICE_LINK_H
#define HEADRACE_ENGINE_DEVICE_LINK_H

#include "vt/vt.h"

/** Bytes a second from the host's memory (pinned, where the device pins it) to the first device of this type, which is opened for the question. 0: there is none, or it computes in host memory. */
double device_link_measure(vt_runtime *rt, mem *m, vt_device_type type);

#endif
