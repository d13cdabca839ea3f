/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a GGUF file. */
#include "support/load_probe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    error err = {0};
    (void)!load_probe_bytes(data, n, n % 2 == 0 ? LOAD_MAP : LOAD_READ, &err);
    return 0;
}
