/* SPDX-License-Identifier: Apache-2.0 */
/* Whole-model helpers for tests. */
#include "model/model_support.h"

#include <dirent.h>
#include <limits.h>
#include <unistd.h>

#include <jansson.h>

headrace_engine *support_load(const char *model, ...) {
    headrace_error err = {0};
    headrace_config *c = NULL;
    headrace_engine *e = NULL;
    va_list ap;
    if (headrace_config_create(&c, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    if (headrace_config_set(c, "model", model, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    va_start(ap, model);
    for (const char *key = va_arg(ap, const char *); key != NULL; key = va_arg(ap, const char *)) {
        if (headrace_config_set(c, key, va_arg(ap, const char *), &err) != HEADRACE_OK) fail_msg("%s", err.text);
    }
    va_end(ap);
    if (headrace_load(c, NULL, NULL, &e, &err) != HEADRACE_OK) fail_msg("%s: %s", model, err.text);
    headrace_config_destroy(c);
    return e;
}

static void on_event(const headrace_event *ev) {
    support_run *r = ev->user;
    switch (ev->kind) {
    case HEADRACE_EVENT_LOGITS: {
        const size_t row = (size_t)ev->n_vocab;
        assert_int_equal(ev->first_pos, r->n_rows);
        r->logits = realloc(r->logits, (size_t)(r->n_rows + ev->n_rows) * row * sizeof(float));
        assert_non_null(r->logits);
        memcpy(r->logits + (size_t)r->n_rows * row, ev->logits, (size_t)ev->n_rows * row * sizeof(float));
        r->n_rows += ev->n_rows;
        r->n_vocab = ev->n_vocab;
        break;
    }
    case HEADRACE_EVENT_TOKEN:
        if (r->n_tokens == r->cap_tokens) {
            r->cap_tokens = r->cap_tokens > 0 ? 2 * r->cap_tokens : 64;
            r->tokens = realloc(r->tokens, (size_t)r->cap_tokens * sizeof *r->tokens);
            assert_non_null(r->tokens);
        }
        r->tokens[r->n_tokens++] = ev->token;
        break;
    case HEADRACE_EVENT_PROMPT:
    case HEADRACE_EVENT_EMBEDDING: break;
    case HEADRACE_EVENT_DONE:
        r->finish = ev->finish;
        r->status = ev->status;
        r->usage = ev->usage;
        snprintf(r->error, sizeof r->error, "%s", ev->error != NULL ? ev->error : "");
        break;
    }
    if (ev->n_text > 0) {
        r->text = realloc(r->text, r->n_text + ev->n_text + 1);
        assert_non_null(r->text);
        memcpy(r->text + r->n_text, ev->text, ev->n_text);
        r->n_text += ev->n_text;
        r->text[r->n_text] = '\0';
    }
}

void support_go(headrace_engine *e, support_run *runs, int n) {
    headrace_error err = {0};
    for (int i = 0; i < n; i++) {
        headrace_request q = HEADRACE_REQUEST_INIT;
        q.ids = runs[i].ids;
        q.n_ids = (size_t)runs[i].n_ids;
        q.max_tokens = runs[i].max_tokens;
        q.chunk = runs[i].chunk;
        q.want_logits = runs[i].want_logits;
        q.ignore_end = true;
        q.callback = on_event;
        q.user = &runs[i];
        if (headrace_submit(e, &q, NULL, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    }
    if (headrace_run(e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < n; i++) {
        if (runs[i].finish != HEADRACE_FINISH_LENGTH && !runs[i].may_fail) fail_msg("request %d ended with %d: %s", i, (int)runs[i].finish, runs[i].error);
    }
}

void support_run_free(support_run *r) {
    free(r->logits);
    free(r->tokens);
    free(r->text);
    r->logits = NULL;
    r->tokens = NULL;
    r->text = NULL;
    r->n_rows = r->n_tokens = r->cap_tokens = 0;
    r->n_text = 0;
}

static void *read_tensor(const char *path, const char *name, const char *dtype, int64_t *rows, int64_t *cols) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s cannot be opened", path);
    uint64_t n = 0;
    assert_int_equal(fread(&n, sizeof n, 1, f), 1);
    char *header = malloc(n);
    assert_non_null(header);
    assert_int_equal(fread(header, 1, n, f), n);
    json_t *j = json_loadb(header, n, 0, NULL), *t = json_object_get(j, name);
    if (t == NULL) fail_msg("%s has no %s", path, name);
    assert_string_equal(json_string_value(json_object_get(t, "dtype")), dtype);
    json_t *shape = json_object_get(t, "shape"), *off = json_object_get(t, "data_offsets");
    *rows = json_integer_value(json_array_get(shape, 0));
    *cols = json_integer_value(json_array_get(shape, 1));
    void *out = malloc((size_t)(*rows * *cols) * 4); /* both dtypes take four bytes */
    assert_non_null(out);
    assert_int_equal(fseek(f, (long)(8 + n + (uint64_t)json_integer_value(json_array_get(off, 0))), SEEK_SET), 0);
    assert_int_equal(fread(out, 4, (size_t)(*rows * *cols), f), *rows * *cols);
    json_decref(j);
    free(header);
    fclose(f);
    return out;
}

float *support_tensor(const char *path, const char *name, int64_t *rows, int64_t *cols) { return read_tensor(path, name, "F32", rows, cols); }
int32_t *support_tensor_i32(const char *path, const char *name, int64_t *rows, int64_t *cols) { return read_tensor(path, name, "I32", rows, cols); }

static json_t *header_of(const char *path) {
    FILE *f = fopen(path, "rb");
    uint64_t n = 0;
    if (f == NULL || fread(&n, sizeof n, 1, f) != 1) fail_msg("%s cannot be read", path);
    char *header = malloc(n);
    assert_non_null(header);
    assert_int_equal(fread(header, 1, n, f), n);
    json_t *j = json_loadb(header, n, 0, NULL);
    assert_non_null(j);
    free(header);
    fclose(f);
    return j;
}

bool support_has_tensor(const char *path, const char *name) {
    json_t *j = header_of(path);
    const bool there = json_object_get(j, name) != NULL;
    json_decref(j);
    return there;
}

bool support_has_dtype(const char *path, const char *dtype) {
    json_t *j = header_of(path);
    bool there = false;
    const char *name;
    json_t *tensor;
    json_object_foreach(j, name, tensor) {
        const char *is = json_string_value(json_object_get(tensor, "dtype"));
        there = there || (is != NULL && strcmp(is, dtype) == 0);
    }
    json_decref(j);
    return there;
}

static int32_t *int_array(const json_t *a, int32_t *n) {
    *n = (int32_t)json_array_size(a);
    int32_t *out = malloc(((size_t)*n + 1) * sizeof *out);
    assert_non_null(out);
    for (int32_t i = 0; i < *n; i++) out[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    return out;
}

int support_prompts(const char *path, support_prompt *out, int max) {
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, NULL), *list = json_object_get(j, "prompts"); /* a decoded text may hold U+0000 */
    int n = (int)json_array_size(list);
    if (n < 1 || n > max) fail_msg("%s: %d prompts", path, n);
    for (int i = 0; i < n; i++) {
        json_t *p = json_array_get(list, (size_t)i);
        out[i].ids = int_array(json_object_get(p, "ids") ? json_object_get(p, "ids") : NULL, &out[i].n_ids);
        out[i].greedy = int_array(json_object_get(p, "greedy"), &out[i].n_greedy);
        out[i].n_forced = out[i].n_ids + (out[i].n_greedy > 0 ? out[i].n_greedy - 1 : 0);
        out[i].forced = malloc(((size_t)out[i].n_forced + 1) * sizeof *out[i].forced);
        memcpy(out[i].forced, out[i].ids, (size_t)out[i].n_ids * sizeof *out[i].ids);
        memcpy(out[i].forced + out[i].n_ids, out[i].greedy, (size_t)(out[i].n_forced - out[i].n_ids) * sizeof *out[i].greedy);
        out[i].text = strdup(json_string_value(json_object_get(p, "text")));
        out[i].gap = malloc(((size_t)out[i].n_greedy + 1) * sizeof(double));
        for (int32_t k = 0; k < out[i].n_greedy; k++) out[i].gap[k] = json_number_value(json_array_get(json_object_get(p, "gap"), (size_t)k));
    }
    json_decref(j);
    return n;
}

void support_prompts_free(support_prompt *p, int n) {
    for (int i = 0; i < n; i++) {
        free(p[i].ids);
        free(p[i].greedy);
        free(p[i].forced);
        free(p[i].gap);
        free(p[i].text);
    }
}

headrace_stats support_stats(headrace_engine *e) {
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    return st;
}

static support_run forced_run(const support_prompt *p, int chunk) { return (support_run){.ids = p->forced, .n_ids = p->n_forced, .chunk = chunk, .want_logits = true}; }

void support_alone_run(support_alone *a, headrace_engine *e, const char *fixture) {
    char path[512];
    snprintf(path, sizeof path, "%s/expected.json", fixture);
    a->n = support_prompts(path, a->prompts, SUPPORT_MAX_PROMPTS);
    for (int i = 0; i < a->n; i++) {
        a->runs[i] = forced_run(&a->prompts[i], 0);
        support_go(e, &a->runs[i], 1);
    }
}

void support_alone_free(support_alone *a) {
    for (int i = 0; i < a->n; i++) support_run_free(&a->runs[i]);
    support_prompts_free(a->prompts, a->n);
}

int support_same_bits(const support_alone *a, headrace_engine *e, int first, int n, int chunk) {
    support_run r[SUPPORT_MOST_TOGETHER];
    assert_true(n <= SUPPORT_MOST_TOGETHER);
    for (int i = 0; i < n; i++) r[i] = forced_run(&a->prompts[(first + i) % a->n], chunk);
    support_go(e, r, n);
    for (int i = 0; i < n; i++) {
        const support_run *want = &a->runs[(first + i) % a->n];
        if (r[i].finish == HEADRACE_FINISH_ERROR) fail_msg("%s", r[i].error);
        assert_int_equal(r[i].n_rows, want->n_rows);
        assert_memory_equal(r[i].logits, want->logits, (size_t)want->n_rows * (size_t)want->n_vocab * sizeof(float));
        support_run_free(&r[i]);
    }
    return n;
}

static void link_file(const support_folder *f, const char *fixture, const char *name, const char *as) {
    char relative[PATH_MAX], target[PATH_MAX], link[PATH_MAX];
    snprintf(relative, sizeof relative, "%s/%s", fixture, name);
    snprintf(link, sizeof link, "%s/%s", f->path, as);
    if (realpath(relative, target) == NULL || symlink(target, link) != 0) fail_msg("%s cannot be linked as %s", relative, link);
}

static void link_others(const support_folder *f, const char *fixture, const char *but, const char *and_but) {
    DIR *d = opendir(fixture);
    if (d == NULL) fail_msg("%s cannot be listed", fixture);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.' && strcmp(e->d_name, but) != 0 && strcmp(e->d_name, and_but) != 0) link_file(f, fixture, e->d_name, e->d_name);
    }
    closedir(d);
}

static support_folder folder_of(const char *what) {
    support_folder f;
    const char *base = getenv("TMPDIR");
    snprintf(f.path, sizeof f.path, "%s/headrace-%s-XXXXXX", base != NULL && strlen(base) < 150 ? base : "/tmp", what);
    assert_non_null(mkdtemp(f.path));
    return f;
}

support_folder support_published(const char *fixture) {
    support_folder f = folder_of("published");
    link_others(&f, fixture, "config.json", "config.published.json");
    link_file(&f, fixture, "config.published.json", "config.json");
    return f;
}

/* The header with other names, and two tensors more, whose data is behind the others'. */
static json_t *wrap_names(const json_t *header, const char *prefix, const char *head_prefix, size_t n_data) {
    static const char *const more[] = {"model.vision_tower.encoder.layer.0.weight", "mtp.layers.0.input_layernorm.weight"};
    json_t *out = json_object(), *t;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)header, key, t) {
        char name[512];
        const bool head = strncmp(key, "lm_head.", 8) == 0, inner = strncmp(key, "model.", 6) == 0;
        snprintf(name, sizeof name, "%s%s", head ? head_prefix : inner ? prefix : "", inner ? key + 6 : key);
        json_object_set(out, name, t);
    }
    for (size_t i = 0; i < 2; i++, n_data += 4) {
        json_object_set_new(out, more[i], json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "BF16", "shape", 2, "data_offsets", (json_int_t)n_data, (json_int_t)n_data + 4));
    }
    return out;
}

static void write_wrapped_tensors(const char *from, const char *to, const char *prefix, const char *head_prefix) {
    FILE *f = fopen(from, "rb"), *g = fopen(to, "wb");
    uint64_t n;
    assert_true(f != NULL && g != NULL);
    assert_int_equal(fread(&n, sizeof n, 1, f), 1);
    char *text = malloc(n);
    assert_int_equal(fread(text, 1, n, f), n);
    json_t *header = json_loadb(text, n, 0, NULL);
    free(text);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const size_t n_data = (size_t)ftell(f) - 8 - n;
    char *data = calloc(1, n_data + 8);
    assert_int_equal(fseek(f, (long)(8 + n), SEEK_SET), 0);
    assert_int_equal(fread(data, 1, n_data, f), n_data);
    json_t *wrapped = wrap_names(header, prefix, head_prefix, n_data);
    char *out = json_dumps(wrapped, JSON_COMPACT);
    const size_t len = strlen(out);
    n = len | 1; /* an odd length puts every tensor at an odd byte */
    assert_int_equal(fwrite(&n, sizeof n, 1, g), 1);
    assert_int_equal(fwrite(out, 1, len, g), len);
    if (n > len) fputc(' ', g);
    assert_int_equal(fwrite(data, 1, n_data + 8, g), n_data + 8);
    free(out);
    free(data);
    json_decref(wrapped);
    json_decref(header);
    fclose(f);
    assert_int_equal(fclose(g), 0);
}

support_folder support_wrapped(const char *fixture, const char *prefix, const char *head_prefix) {
    support_folder f = folder_of("wrapped");
    link_others(&f, fixture, "config.json", "model.safetensors");
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof from, "%s/config.json", fixture);
    snprintf(to, sizeof to, "%s/config.json", f.path);
    json_t *text = json_load_file(from, 0, NULL);
    const char *name = json_string_value(json_array_get(json_object_get(text, "architectures"), 0));
    const char *whole = strncmp(name, "Gemma", 5) != 0 ? name : strncmp(name, "Gemma3", 6) == 0 ? "Gemma3ForConditionalGeneration" : "Gemma4ForConditionalGeneration";
    json_t *config = json_pack("{s:[s], s:s, s:O, s:{s:i, s:i}}", "architectures", whole, "model_type", "whole", "text_config", text, "vision_config", "hidden_size", 7, "num_hidden_layers", 1);
    assert_int_equal(json_dump_file(config, to, 0), 0);
    json_decref(config);
    json_decref(text);
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    snprintf(to, sizeof to, "%s/model.safetensors", f.path);
    write_wrapped_tensors(from, to, prefix, head_prefix);
    return f;
}

void support_folder_remove(const support_folder *f) {
    DIR *d = opendir(f->path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", f->path, e->d_name);
        if (e->d_name[0] != '.') assert_int_equal(unlink(path), 0);
    }
    closedir(d);
    assert_int_equal(rmdir(f->path), 0);
}

const char *support_env(const char *name) { return getenv(name); }
