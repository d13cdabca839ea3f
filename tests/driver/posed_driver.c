/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 for machines without one: it is found and says what DRIVER_VERSION it is, and nothing behind that works. With 0 it has nothing that a driver has. */
#include <stdint.h>
#include <string.h>

#if DRIVER_VERSION > 0
#define SHOWN __attribute__((visibility("default")))

SHOWN int cuDriverGetVersion(int *version);
SHOWN int cuInit(unsigned flags);
SHOWN int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

int cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}

enum { NOT_INITIALIZED = 3 };
static int nothing(void) { return NOT_INITIALIZED; }

/* Functions as data, the form that the caller asks for. */
#define GIVE(function, f)                                                                                              \
    do {                                                                                                               \
        __typeof__(&(f)) p_ = &(f);                                                                                    \
        memcpy((function), &p_, sizeof p_);                                                                            \
    } while (0)

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    (void)version, (void)flags;
    if (found) *found = 0;
    GIVE(function, nothing);
    if (strcmp(name, "cuDriverGetVersion") == 0) GIVE(function, cuDriverGetVersion);
    if (strcmp(name, "cuInit") == 0) GIVE(function, cuInit);
    if (strcmp(name, "cuGetProcAddress") == 0) GIVE(function, cuGetProcAddress_v2);
    return 0;
}
#else
extern const int posed_driver;
__attribute__((visibility("default"))) const int posed_driver = 0;
#endif
