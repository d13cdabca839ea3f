/* SPDX-License-Identifier: Apache-2.0 */
/* SA_RESETHAND gives the second signal its usual effect without a line of code in the handler. */
#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t noted; /* the one thing a handler may write */

static void note(int number) {
    (void)number;
    noted = 1;
}

static void handle(int number) {
    struct sigaction old;
    if (sigaction(number, NULL, &old) != 0 || old.sa_handler == SIG_IGN)
        return; /* started with nohup or in the background: stays ignored */
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

static void restore(int number) {
    struct sigaction old;
    if (sigaction(number, NULL, &old) != 0 || old.sa_handler == SIG_IGN) return;
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

void interrupt_begin(void) {
    handle(SIGINT);
    handle(SIGTERM);
}

bool interrupt_requested(void) { return noted != 0; }

void interrupt_end(void) {
    restore(SIGINT);
    restore(SIGTERM);
}
