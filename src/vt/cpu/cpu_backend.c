/* SPDX-License-Identifier: Apache-2.0 */
/* The vtable of the processor itself: what it can do, and memory through the host. Everything is synchronous, so there are no queues,
 * fences or captures. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/os.h"
#include "vt/cpu/cpu_limits.h"
#include "vt/cpu/cpu_rows.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { DEVICE_ALIGN = 256 };

typedef struct cpu_device {
    const vt_host_api *host;
    uint64_t caps;
} cpu_device;

#if defined(__x86_64__)
/* Register state that the system saves on a task switch. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint64_t detect(void) {
    enum { STATE_YMM = 0x6, STATE_ZMM = 0xe6 };
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool avx_usable = (c & bit_OSXSAVE) && (c & bit_AVX), fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!avx_usable || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint64_t state = saved_state(), caps = 0;
    if ((b & bit_AVX2) && fma && f16c && (state & STATE_YMM) == STATE_YMM) caps |= VT_CAP_BIT(VT_CAP_X86_AVX2);
    uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (caps && (b & avx512) == avx512 && (state & STATE_ZMM) == STATE_ZMM) {
        caps |= VT_CAP_BIT(VT_CAP_X86_AVX512);
        if (c & bit_AVX512VNNI) caps |= VT_CAP_BIT(VT_CAP_X86_VNNI);
    }
    return caps;
}
#else
static uint64_t detect(void) { return 0; }
#endif

/* The instruction sets up to the level that was asked for; a level that the processor lacks is an error, not a fall. */
static status choose_isa(const char *level, uint64_t *caps, error *err) {
    static const uint64_t avx2 = VT_CAP_BIT(VT_CAP_X86_AVX2);
    static const uint64_t avx512 = VT_CAP_BIT(VT_CAP_X86_AVX512);
    uint64_t have = detect();
    if (!level || strcmp(level, "auto") == 0) {
        *caps = have;
        return STATUS_OK;
    }
    bool is_avx2 = strcmp(level, "avx2") == 0, is_avx512 = strcmp(level, "avx512") == 0;
    if (!is_avx2 && !is_avx512 && strcmp(level, "scalar") != 0)
        return error_set(err, STATUS_INVALID, "cpu: cpu-isa is '%s', expected auto, scalar, avx2 or avx512", level);
    if ((is_avx2 && !(have & avx2)) || (is_avx512 && !(have & avx512)))
        return error_set(err, STATUS_UNSUPPORTED, "cpu: cpu-isa asks for %s, which this processor or system lacks", level);
    *caps = is_avx512 ? have : is_avx2 ? have & avx2 : 0;
    return STATUS_OK;
}

static status cpu_open(const vt_host_api *host, int32_t index, void **dev, error *err) {
    if (index != 0) return error_set(err, STATUS_NOT_FOUND, "cpu: there is one device, cpu:0, not cpu:%d", index);
    uint64_t caps = 0;
    TRY(choose_isa(host->option ? host->option(host->ctx, "cpu-isa") : NULL, &caps, err));
    cpu_device *d = host->host_alloc(host->ctx, sizeof *d);
    if (!d) return error_set(err, STATUS_NO_MEMORY, "cpu: %zu bytes for the device refused", sizeof *d);
    *d = (cpu_device){host, caps | VT_CAP_BIT(VT_CAP_UNIFIED) | VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)};
    *dev = d;
    return STATUS_OK;
}

static void cpu_close(void *dev) {
    cpu_device *d = dev;
    if (d) d->host->host_free(d->host->ctx, d);
}

static uint64_t cpu_caps(void *dev) { return ((const cpu_device *)dev)->caps; }

static void cpu_describe(void *dev, char *text, size_t n) {
    const cpu_device *d = dev;
    char name[128];
    os_cpu_name(name, sizeof name);
    const char *isa = d->caps & VT_CAP_BIT(VT_CAP_X86_VNNI)     ? "avx512 with vnni"
                      : d->caps & VT_CAP_BIT(VT_CAP_X86_AVX512) ? "avx512"
                      : d->caps & VT_CAP_BIT(VT_CAP_X86_AVX2)   ? "avx2"
                                                                : "scalar";
    snprintf(text, n, "%s, %d cores, rows up to %s", name, os_core_count(), isa);
}


static status cpu_memory_info(void *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)dev;
    os_memory m;
    os_get_memory(&m);
    *total_bytes = os_smaller_known(m.total_bytes, m.cgroup_limit_bytes);
    *free_bytes = m.available_bytes;
    if (m.cgroup_limit_bytes) {
        uint64_t room = m.cgroup_limit_bytes > m.cgroup_used_bytes ? m.cgroup_limit_bytes - m.cgroup_used_bytes : 0;
        if (*free_bytes == 0 || room < *free_bytes) *free_bytes = room;
    }
    return STATUS_OK;
}

/* The host aligns less than a backend owes, so a block starts with the address to give back. */
static status cpu_alloc(void *dev, size_t bytes, void **out) {
    const cpu_device *d = dev;
    size_t whole;
    if (!checked_add_size(bytes, DEVICE_ALIGN + sizeof(void *), &whole)) return STATUS_NO_MEMORY;
    uint8_t *p = d->host->host_alloc(d->host->ctx, whole);
    if (!p) return STATUS_NO_MEMORY;
    uintptr_t at = ((uintptr_t)p + sizeof(void *) + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    uint8_t *aligned = p + (at - (uintptr_t)p);
    memcpy(aligned - sizeof(void *), &p, sizeof p);
    *out = aligned;
    return STATUS_OK;
}

static void cpu_free(void *dev, void *p) {
    const cpu_device *d = dev;
    if (!p) return;
    void *whole;
    memcpy(&whole, (uint8_t *)p - sizeof whole, sizeof whole);
    d->host->host_free(d->host->ctx, whole);
}

static status cpu_copy(void *dev, void *handle, void *dst, const void *src, size_t bytes) {
    (void)dev, (void)handle;
    if (bytes) memmove(dst, src, bytes);
    return STATUS_OK;
}

static status cpu_fill(void *dev, void *handle, void *dst, int value, size_t bytes) {
    (void)dev, (void)handle;
    if (bytes) memset(dst, value, bytes);
    return STATUS_OK;
}

static const vt_backend vtable = {
    .size = sizeof vtable,
    .abi = VT_BACKEND_ABI,
    .name = "cpu",
    .type = VT_DEVICE_CPU,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .caps = cpu_caps,
    .memory_info = cpu_memory_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .fill = cpu_fill,
};

static const vt_row rows[] = {
#define ROW VT_ROW_DEFINE
#include "vt/cpu/kernel_rows.def"
#undef ROW
};

const vt_backend_tables vt_cpu_tables = {sizeof vt_cpu_tables, &vtable, rows, (int32_t)(sizeof rows / sizeof rows[0])};
