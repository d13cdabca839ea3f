/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Opens bytes that may be anything as a checkpoint file and, when they load, walks all of it and checks what source.h promises. Used by the
 * tests of malformed files and by fuzzing. A broken promise ends the process.
 */
#ifndef HEADRACE_TESTS_LOAD_PROBE_H
#define HEADRACE_TESTS_LOAD_PROBE_H

#include <stdint.h>

#include "load/source.h"

/** The status of opening; OK after a walk without a fault. Everything that was allocated is given back. err may be NULL. */
status load_probe_bytes(const uint8_t *data, size_t n, load_mode mode, error *err);
/** The same for a path, with an allocator of the caller's. */
status load_probe_path(mem *m, const char *path, load_mode mode, error *err);

#endif
