/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Engines and requests for tests: load the tiny Llama with settings, submit with a recorder, and free with the accountant's verdict: whatever the engine logs as an error
 * (memory not given back) fails the test. Include it first; link hr_engine and the backends.
 */
#ifndef HEADRACE_TESTS_ENGINE_CASE_H
#define HEADRACE_TESTS_ENGINE_CASE_H

#include <stdatomic.h>

#include "support/test_case.h"

#include "base/log.h"
#include "engine/engine.h"

#define ENGINE_CASE_MODEL HEADRACE_TEST_DATA "/llama_fixture_bf16.gguf"

static atomic_int engine_case_errors;

static inline void engine_case_log(void *user, log_level level, const char *line) {
    (void)user;
    if (level == LOG_LEVEL_ERROR) {
        atomic_fetch_add(&engine_case_errors, 1);
        fprintf(stderr, "logged: %s\n", line);
    }
}

/** Setup of a group: error lines are counted from here on. */
static inline int engine_case_setup(void **state) {
    (void)state;
    log_set(engine_case_log, NULL, LOG_LEVEL_WARN);
    return 0;
}

/** key, value, ..., NULL on top of the model. */
static inline headrace_config *engine_case_config(const char *path, va_list ap) {
    headrace_error err = {0};
    headrace_config *c = NULL;
    if (headrace_config_create(&c, &err) != HEADRACE_OK || headrace_config_set(c, "model", path, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    for (const char *key = va_arg(ap, const char *); key != NULL; key = va_arg(ap, const char *)) {
        if (headrace_config_set(c, key, va_arg(ap, const char *), &err) != HEADRACE_OK) fail_msg("%s", err.text);
    }
    return c;
}

__attribute__((sentinel)) static inline headrace_engine *engine_case_load(const char *path, ...) {
    headrace_error err = {0};
    headrace_engine *e = NULL;
    va_list ap;
    va_start(ap, path);
    headrace_config *c = engine_case_config(path, ap);
    va_end(ap);
    if (headrace_load(c, NULL, NULL, &e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    headrace_config_destroy(c);
    return e;
}

/** Fails when memory was still in use, or anything else was logged as an error. */
static inline void engine_case_free(headrace_engine *e) {
    headrace_free(e);
    assert_int_equal(atomic_exchange(&engine_case_errors, 0), 0);
}

typedef struct engine_answer {
    int32_t tokens[2048];
    int32_t n_tokens, n_rows, n_done;
    char text[16384];
    size_t n_text;
    headrace_finish finish;
    headrace_status status;
    char error[HEADRACE_ERROR_TEXT_BYTES];
    headrace_usage usage;
} engine_answer;

static inline void engine_case_record(const headrace_event *ev) {
    engine_answer *a = ev->user;
    assert_int_equal(a->n_done, 0);
    if (ev->kind == HEADRACE_EVENT_LOGITS) a->n_rows += ev->n_rows;
    if (ev->kind == HEADRACE_EVENT_TOKEN) {
        assert_true(a->n_tokens < 2048);
        a->tokens[a->n_tokens++] = ev->token;
    }
    if (ev->n_text > 0) {
        assert_true(a->n_text + ev->n_text < sizeof a->text);
        memcpy(a->text + a->n_text, ev->text, ev->n_text);
        a->n_text += ev->n_text;
        a->text[a->n_text] = '\0';
    }
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    a->n_done++;
    a->finish = ev->finish;
    a->status = ev->status;
    a->usage = ev->usage;
    snprintf(a->error, sizeof a->error, "%s", ev->error != NULL ? ev->error : "");
}

/** n ids that look like a prompt, from a seed: all below 416, the vocabulary of the fixture. */
static inline void engine_case_ids(int32_t *ids, int32_t n, uint32_t seed) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 3 + (int32_t)((seed >> 8) % 400u);
    }
}

static inline headrace_request engine_case_request(engine_answer *a, const int32_t *ids, int32_t n_ids, int32_t max_tokens) {
    headrace_request r = HEADRACE_REQUEST_INIT;
    r.ids = ids;
    r.n_ids = (size_t)n_ids;
    r.max_tokens = max_tokens;
    r.ignore_end = true;
    r.callback = engine_case_record;
    r.user = a;
    return r;
}

static inline headrace_id engine_case_submit(headrace_engine *e, const headrace_request *r) {
    headrace_error err = {0};
    headrace_id id = 0;
    if (headrace_submit(e, r, &id, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    return id;
}

static inline void engine_case_run(headrace_engine *e) {
    headrace_error err = {0};
    if (headrace_run(e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
}

#endif
