/* SPDX-License-Identifier: Apache-2.0 */
/** What every command does with the engine: settings from the option table into a headrace_config, loading with progress, running until
 * done or Ctrl-C. */
#ifndef HEADRACE_CLI_SESSION_H
#define HEADRACE_CLI_SESSION_H

#include "cli/cli.h"

/** A failure of the public interface as one of ours: the same code and text. */
NODISCARD status session_status(headrace_status code, const headrace_error *from, error *err);

/** Every setting of model and engine, as text. Destroy with headrace_config_destroy. */
NODISCARD status session_config(const cli *x, headrace_config **out, error *err);
/** STATUS_INVALID when there is no model among the settings. */
NODISCARD status session_vocab(const cli *x, headrace_vocab **out, error *err);
NODISCARD status session_load(const cli *x, headrace_engine **out, headrace_model_info *info, error *err);

/** How a request ended, from its last event: STATUS_OK, or what went wrong with the reason in *text (borrowed from the event). */
status session_outcome(const headrace_event *done, const char **text);

typedef struct session_run_args {
    headrace_engine *engine;
    headrace_id *ids; /* [n]: the requests, filled in as they are submitted */
    size_t n;
    status (*submit)(void *user, size_t i, headrace_id *out, error *err); /* hand request i to the engine */
    void (*on_step)(void *user, uint64_t before_ns, uint64_t after_ns);   /* after each step; may be NULL */
    void *user;
    const bool *stop; /* a callback gave up: cancels what runs; may be NULL */
} session_run_args;

/**
 * Submit all requests (as many as the engine's queue holds, the others as places come free) and run steps until none is left. A request
 * that is refused ends this with the refusal. After Ctrl-C, or *stop, what was submitted is cancelled once and runs out, and what was not
 * is dropped: it has no last event.
 */
NODISCARD status session_run(const session_run_args *a, error *err);

#endif
