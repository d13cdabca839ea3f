/* SPDX-License-Identifier: Apache-2.0 */
/** Pinned host memory as a budget of a device. */
#ifndef HEADRACE_VT_PINNED_H
#define HEADRACE_VT_PINNED_H

#include "vt/vt.h"

/** From now on the device is asked for no more pinned memory than so much at a time; beyond it vt_buffer_alloc_host gives ordinary memory.
 * At first there is no limit. */
void vt_device_limit_pinned(vt_device *d, uint64_t bytes);

#endif
