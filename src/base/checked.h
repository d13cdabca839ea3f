/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Checked size arithmetic. Every size that comes from a file or a request goes through these; each returns false and
 * leaves *out alone when the exact result is not representable.
 */
#ifndef HEADRACE_BASE_CHECKED_H
#define HEADRACE_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

NODISCARD static inline bool checked_add_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

NODISCARD static inline bool checked_mul_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

NODISCARD static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

NODISCARD static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

NODISCARD static inline bool checked_add_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

NODISCARD static inline bool checked_mul_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/** Round up to a power of two `align`. */
NODISCARD static inline bool checked_align_size(size_t a, size_t align, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

/** uint64 to size_t and to int64; false when the value does not fit. */
NODISCARD static inline bool checked_u64_to_size(uint64_t v, size_t *out) {
    if (v > SIZE_MAX) return false;
    *out = (size_t)v;
    return true;
}

NODISCARD static inline bool checked_u64_to_i64(uint64_t v, int64_t *out) {
    if (v > INT64_MAX) return false;
    *out = (int64_t)v;
    return true;
}

#endif
