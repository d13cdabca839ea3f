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

typedef struct session_run_args {
    headrace_engine *engine;
    const headrace_id *ids; /* what Ctrl-C cancels */
    size_t n_ids;
    const bool *stop;                                                   /* a callback gave up: cancels as well; may be NULL */
    void (*on_step)(void *user, uint64_t before_ns, uint64_t after_ns); /* after each step; may be NULL */
    void *user;
} session_run_args;

/** Steps until no request is left. After Ctrl-C, or *stop, cancels all requests once and goes on until their callbacks have been called. */
NODISCARD status session_run(const session_run_args *a, error *err);

#endif
