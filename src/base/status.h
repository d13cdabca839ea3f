/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Status codes and error detail. Whatever can fail returns a `status`; results go through out-parameters that are written
 * on success only. The reason, as a sentence for a person, goes into an optional `error` the caller owns.
 */
#ifndef HEADRACE_BASE_STATUS_H
#define HEADRACE_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* X(enumerator, name, what it means to a caller) */
#define STATUS_LIST(X)                                                                                                 \
    X(STATUS_OK, "ok", "done")                                                                                         \
    X(STATUS_FAILED, "failed", "an outside operation failed")                                                          \
    X(STATUS_INVALID, "invalid", "an argument, option or request field has a value that is not allowed")               \
    X(STATUS_UNSUPPORTED, "unsupported", "refused by name: nothing here implements it")                                \
    X(STATUS_FORMAT, "format", "a file's content breaks its format")                                                   \
    X(STATUS_IO, "io", "reading or writing failed")                                                                    \
    X(STATUS_NOT_FOUND, "not_found", "no such file, key, tensor or id")                                                \
    X(STATUS_NO_MEMORY, "no_memory", "the system or a budget refused an allocation")                                   \
    X(STATUS_DOES_NOT_FIT, "does_not_fit", "the plan exceeds a budget whatever else runs")                             \
    X(STATUS_NOT_NOW, "does_not_fit_now", "it would fit, but not beside what runs at present")                         \
    X(STATUS_FULL, "full", "a bounded queue is full")                                                                  \
    X(STATUS_CANCELLED, "cancelled", "the caller cancelled it")                                                        \
    X(STATUS_BUG, "bug", "one of our own invariants does not hold")

typedef enum status {
#define X(id, name, text) id,
    STATUS_LIST(X)
#undef X
        STATUS_COUNT
} status;

enum { ERROR_TEXT_BYTES = 2048 };

/** Detail of one failure: owned by the caller, no pointers, zero-initialise before use. */
typedef struct error {
    status code;
    char text[ERROR_TEXT_BYTES]; /* NUL-terminated UTF-8; truncated at a code point when too long */
} error;

/** Name of a code ("no_memory"); "unknown" outside the list. Static string. */
const char *status_name(status code);

/**
 * Write `code` and the formatted text into *err (if not NULL) and return `code`, so that
 * `return error_set(err, STATUS_FORMAT, "gguf: ...")` both reports and fails. Text starts with the origin ("gguf: ").
 */
NODISCARD status error_set(error *err, status code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/** As error_set for call sites that go on to clean up; result intentionally not returned. */
void error_note(error *err, status code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/** Put "text: " in front of what *err already says; keeps the code. NULL err is allowed. */
void error_prefix(error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/** Forward a failure. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        status try_status_ = (expr);                                                                                   \
        if (try_status_ != STATUS_OK) return try_status_;                                                              \
    } while (0)

/** Forward a failure to a clean-up label `fail` through a local variable `rc`. */
#define TRY_GOTO(expr)                                                                                                 \
    do {                                                                                                               \
        rc = (expr);                                                                                                   \
        if (rc != STATUS_OK) goto fail;                                                                                \
    } while (0)

#endif
