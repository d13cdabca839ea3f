/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Log lines below the command line go to a callback (default: stderr, from level INFO); nothing in the library prints
 * otherwise. The callback is one of the two allowed mutable globals (with the CPU mask); set it before other threads run.
 */
#ifndef HEADRACE_BASE_LOG_H
#define HEADRACE_BASE_LOG_H

#include "base/status.h"

typedef enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG } log_level;
/** May be called from any thread; `line` has no newline and is valid during the call only. */
typedef void log_fn(void *user, log_level level, const char *line);

void log_set(log_fn *fn, void *user, log_level max_level);
bool log_enabled(log_level level);
void log_write(log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
