/* SPDX-License-Identifier: Apache-2.0 */
/* The log callback. A line is formatted on the stack, made safe to show, and handed over whole. */
#include "base/log.h"

#include <stdio.h>

#include "base/printable.h"

static const char *const level_names[] = {"error", "warning", "info", "debug"};

static void write_stderr(void *user, log_level level, const char *line) {
    (void)user;
    fprintf(stderr, "headrace: %s: %s\n", level_names[level], line);
}

static struct {
    log_fn *fn;
    void *user;
    log_level max_level;
} sink = {write_stderr, NULL, LOG_LEVEL_INFO};

void log_set(log_fn *fn, void *user, log_level max_level) {
    sink.fn = fn ? fn : write_stderr;
    sink.user = user;
    sink.max_level = max_level;
}

bool log_enabled(log_level level) { return level <= sink.max_level; }

void log_write(log_level level, const char *fmt, ...) {
    if (!log_enabled(level)) return;
    char line[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    printable_vformat(line, sizeof line, fmt, args);
    va_end(args);
    for (char *p = line; *p; p++)
        if (*p == '\n') *p = ' ';
    sink.fn(sink.user, level, line);
}
