/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest useful client of libheadrace: load a model, complete each prompt given, print the texts as they come.
 *
 *   cc complete.c $(pkg-config --cflags --libs headrace) -o complete && ./complete model.gguf "The capital of France is" "Once upon a time"
 *
 * All prompts run as one batch. Callbacks run on the thread that calls headrace_run, so they need no lock.
 */
#include <headrace/headrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct answer {
    const char *prompt;
    char *text;
    size_t n;
    int failed;
} answer;

static void on_event(const headrace_event *ev) {
    answer *a = ev->user;
    if (ev->n_text > 0) { /* TOKEN and DONE carry text that has become certain */
        char *p = realloc(a->text, a->n + ev->n_text + 1);
        if (p == NULL) exit(1);
        a->text = p;
        memcpy(a->text + a->n, ev->text, ev->n_text);
        a->n += ev->n_text;
        a->text[a->n] = '\0';
    }
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    a->failed = ev->finish == HEADRACE_FINISH_ERROR;
    if (a->failed) fprintf(stderr, "%s\n", ev->error);
    printf("%s%s\n[%d tokens, %d of the prompt's %d from the prefix cache]\n", a->prompt, a->text != NULL ? a->text : "", ev->usage.completion_tokens, ev->usage.prefix_hit_tokens,
           ev->usage.prompt_tokens);
}

static int complain(const char *what, const headrace_error *err) {
    fprintf(stderr, "%s: %s\n", what, err->text);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: complete MODEL PROMPT...\n");
        return 2;
    }
    headrace_error err = {0};
    headrace_config *config = NULL;
    headrace_engine *engine = NULL;
    int failed = 0;
    if (headrace_config_create(&config, &err) != HEADRACE_OK) return complain("configuration", &err);
    if (headrace_config_set(config, "model", argv[1], &err) != HEADRACE_OK) return complain("configuration", &err);
    if (headrace_load(config, NULL, NULL, &engine, &err) != HEADRACE_OK) return complain("load", &err);
    headrace_config_destroy(config); /* it was copied */

    const int n = argc - 2;
    answer *answers = calloc((size_t)n, sizeof *answers);
    if (answers == NULL) return 1;
    const char *const stop[] = {"\n\n"};
    for (int i = 0; i < n; i++) {
        answers[i].prompt = argv[2 + i];
        headrace_request r = HEADRACE_REQUEST_INIT;
        r.prompt = answers[i].prompt;
        r.n_prompt = strlen(r.prompt);
        r.max_tokens = 32;
        r.temperature = 0.7f;
        r.top_p = 0.95f;
        r.seed = 1;
        r.stop = stop;
        r.n_stop = 1;
        r.callback = on_event;
        r.user = &answers[i];
        if (headrace_submit(engine, &r, NULL, &err) != HEADRACE_OK) failed = complain(r.prompt, &err);
    }
    if (headrace_run(engine, &err) != HEADRACE_OK) failed = complain("run", &err);
    headrace_free(engine);
    for (int i = 0; i < n; i++) {
        failed |= answers[i].failed;
        free(answers[i].text);
    }
    free(answers);
    return failed;
}
