/* SPDX-License-Identifier: Apache-2.0 */
/* The line is one write, so that it never mixes with a log line of another thread. No colours are used, so NO_COLOR has nothing to turn
 * off. */
#include "cli/progress_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"

enum { REDRAW_NS = 100 * 1000 * 1000 };

void progress_init(progress *p) {
    const char *term = os_env("TERM");
    *p = (progress){.verb = "loading", .enabled = os_stream_is_tty(STDERR_FILENO) && term && strcmp(term, "") != 0 && strcmp(term, "dumb") != 0};
}

void progress_update(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    progress *p = user;
    if (!p->enabled || total_bytes == 0) return;
    uint64_t now = os_now_ns();
    if (p->shown && done_bytes < total_bytes && now - p->last_ns < REDRAW_NS) return;
    p->last_ns = now;
    p->shown = true;
    if (done_bytes > total_bytes) done_bytes = total_bytes;
    int percent = (int)(100.0 * (double)done_bytes / (double)total_bytes);
    fprintf(stderr, "\r\033[K%s: %d %% (%" PRIu64 " of %" PRIu64 " MiB)", p->verb, percent, done_bytes >> 20, total_bytes >> 20);
    fflush(stderr);
}

void progress_clear(progress *p) {
    if (!p->shown) return;
    p->shown = false;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
