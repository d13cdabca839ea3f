/* SPDX-License-Identifier: Apache-2.0 */
/* Status names and the writing of error detail. Text is made safe to show, because it quotes files and requests. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#include "base/printable.h"

static const char *const names[STATUS_COUNT] = {
#define X(id, name, text) [id] = name,
    STATUS_LIST(X)
#undef X
};

const char *status_name(status code) {
    if ((int)code < 0 || code >= STATUS_COUNT) return "unknown";
    return names[code];
}

static void error_vset(error *err, status code, const char *fmt, va_list args) {
    if (!err) return;
    err->code = code;
    printable_vformat(err->text, sizeof err->text, fmt, args);
}

status error_set(error *err, status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    error_vset(err, code, fmt, args);
    va_end(args);
    return code;
}

void error_note(error *err, status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    error_vset(err, code, fmt, args);
    va_end(args);
}

void error_prefix(error *err, const char *fmt, ...) {
    if (!err) return;
    char prefix[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    printable_vformat(prefix, sizeof prefix, fmt, args);
    va_end(args);
    error_note(err, err->code, "%s: %s", prefix, err->text);
}
