/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the engine, so that the command line is tested without one: headrace.h over arithmetic that the tests can redo.
 *
 *   vocabulary  300 ids: 0..255 are bytes, 256 is BOS ("<s>", text adds it when the model's path holds "bos"), 257 the end, the rest say
 * nothing next token  token k is id prompt[k % n_prompt]; so a text is repeated. Not for id 33 ('!'), which is followed by the end token
 *   logits      row of position p: 10 at ids[p], else ids[p] / 100 at its successor (mod 300), else 5 at ids[0], else 0
 *
 * The model's path is the script: words in it make loads and requests fail, or slow (see headrace_load and step_one).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "headrace/headrace.h"

enum { N_VOCAB = 300, ID_BOS = 256, ID_END = 257, MAX_REQUESTS = 64, N_KEYS = 32 };

struct headrace_config {
    char keys[N_KEYS][32], values[N_KEYS][256];
    int n;
};

typedef struct fake_request {
    headrace_request r;
    headrace_id id;
    int32_t *ids;
    size_t n_ids, n_computed;
    int32_t n_done;
    char held[8];
    size_t n_held;
    bool live, cancelled;
} fake_request;

struct headrace_engine {
    char model[256];
    int n_ctx, max_seqs, max_batch, threads;
    fake_request requests[MAX_REQUESTS];
    int n_requests;
    headrace_stats stats;
};

struct headrace_vocab {
    bool adds_bos;
};

static headrace_status say(headrace_error *err, headrace_status code, const char *text) {
    if (err) {
        err->code = code;
        snprintf(err->text, sizeof err->text, "%s", text);
    }
    return code;
}

const char *headrace_version(void) { return "0.0.0-fake"; }
const char *headrace_status_name(headrace_status code) { return code == HEADRACE_OK ? "ok" : "failed"; }

/* ---- configuration ---- */

headrace_status headrace_config_create(headrace_config **out, headrace_error *err) {
    *out = calloc(1, sizeof **out);
    return *out ? HEADRACE_OK : say(err, HEADRACE_NO_MEMORY, "fake: no memory");
}

headrace_status headrace_config_set(headrace_config *c, const char *key, const char *value, headrace_error *err) {
    if (c->n == N_KEYS || strcmp(key, "json") == 0 || strcmp(key, "temp") == 0)
        return say(err, HEADRACE_BUG, "fake: not a setting of the engine");
    snprintf(c->keys[c->n], sizeof c->keys[0], "%s", key);
    snprintf(c->values[c->n], sizeof c->values[0], "%s", value);
    c->n++;
    return HEADRACE_OK;
}

void headrace_config_destroy(headrace_config *c) { free(c); }

static const char *get(const headrace_config *c, const char *key) {
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->keys[i], key) == 0) return c->values[i];
    return "";
}

static int number(const headrace_config *c, const char *key, int unset) {
    int v = atoi(get(c, key));
    return v ? v : unset;
}

/* ---- engine ---- */

headrace_status headrace_load(const headrace_config *c, headrace_progress *progress, void *user, headrace_engine **out,
                              headrace_error *err) {
    const char *model = get(c, "model");
    for (uint64_t i = 0; i <= 4; i++) progress(user, i << 20, 4 << 20);
    if (strstr(model, "missing")) return say(err, HEADRACE_NOT_FOUND, "fake: no such file");
    if (strstr(model, "broken")) return say(err, HEADRACE_FORMAT, "fake: not a model");
    if (strstr(model, "too-big")) return say(err, HEADRACE_DOES_NOT_FIT, "fake: needs 9 GiB of 8 GiB; --ctx 1024 would fit");
    if (strstr(model, "busy")) return say(err, HEADRACE_NOT_NOW, "fake: does not fit now");
    headrace_engine *e = calloc(1, sizeof *e);
    if (!e) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    snprintf(e->model, sizeof e->model, "%s", model);
    e->n_ctx = number(c, "ctx", 4096);
    e->max_seqs = number(c, "max-seqs", 32);
    e->max_batch = number(c, "max-batch-tokens", 512);
    e->threads = number(c, "threads", 1);
    *out = e;
    return HEADRACE_OK;
}

static headrace_event event_of(const fake_request *q, headrace_event_kind kind) {
    headrace_event v = {.size = sizeof v, .kind = kind, .id = q->id, .user = q->r.user, .n_vocab = N_VOCAB};
    return v;
}

static void end(headrace_engine *e, fake_request *q, headrace_finish finish) {
    headrace_event v = event_of(q, HEADRACE_EVENT_DONE);
    v.finish = finish;
    v.status = finish == HEADRACE_FINISH_ERROR ? HEADRACE_IO : finish == HEADRACE_FINISH_CANCELLED ? HEADRACE_CANCELLED : HEADRACE_OK;
    v.error = finish == HEADRACE_FINISH_ERROR ? "fake: the disk went away" : NULL;
    if (q->n_held) { /* half a character */
        v.text = "\xEF\xBF\xBD";
        v.n_text = 3;
    }
    v.usage = (headrace_usage){.prompt_tokens = (int32_t)q->n_ids, .completion_tokens = q->n_done};
    v.timings = (headrace_timings){
        .first_token_ns = q->n_done ? 2000000 : 0, .prefill_ns = 1000000, .decode_ns = q->n_done > 1 ? 500000 : 0, .total_ns = 3000000};
    q->live = false;
    e->stats.n_finished++;
    q->r.callback(&v);
    free(q->ids);
    q->ids = NULL;
}

void headrace_free(headrace_engine *e) {
    if (!e) return;
    for (int i = 0; i < e->n_requests; i++)
        if (e->requests[i].live) end(e, &e->requests[i], HEADRACE_FINISH_CANCELLED);
    free(e);
}

headrace_status headrace_model_sampling(const headrace_engine *e, headrace_request *r, headrace_error *err) {
    (void)e, (void)err;
    r->temperature = 0.5f;
    return HEADRACE_OK;
}

headrace_status headrace_get_model_info(const headrace_engine *e, headrace_model_info *out) {
    if (out->size != sizeof *out) return HEADRACE_INVALID;
    *out = (headrace_model_info){.size = sizeof *out,
                                 .architecture = "fake",
                                 .device = "cpu",
                                 .n_vocab = N_VOCAB,
                                 .n_layers = 1,
                                 .n_ctx = e->n_ctx,
                                 .n_threads = e->threads,
                                 .max_seqs = e->max_seqs,
                                 .max_batch_tokens = e->max_batch,
                                 .weight_bytes = 1000000,
                                 .kv_bytes_per_token = 100,
                                 .load_ns = 250000000};
    return HEADRACE_OK;
}

/* ---- requests ---- */

static size_t encode(const char *text, size_t n, bool bos, bool no_special, int32_t *out) {
    size_t k = 0;
    if (bos) out[k++] = ID_BOS;
    for (size_t i = 0; i < n; i++) {
        if (!no_special && n - i >= 3 && memcmp(text + i, "<s>", 3) == 0) {
            out[k++] = ID_BOS;
            i += 2;
        } else {
            out[k++] = (unsigned char)text[i];
        }
    }
    return k;
}

static bool wants_bos(bool model_adds, int32_t add_bos) { return add_bos > 0 || (add_bos == 0 && model_adds); }

headrace_status headrace_submit(headrace_engine *e, const headrace_request *r, headrace_id *out, headrace_error *err) {
    if (r->size != sizeof *r || !r->callback) return say(err, HEADRACE_INVALID, "fake: bad request structure");
    int n_live = 0;
    for (int i = 0; i < e->n_requests; i++) n_live += e->requests[i].live;
    if (n_live == 2 * e->max_seqs || strstr(e->model, "full")) return say(err, HEADRACE_FULL, "fake: queue full");
    fake_request *q = NULL;
    for (int i = 0; i < MAX_REQUESTS && !q; i++) /* places are used again */
        if (!e->requests[i].live) q = &e->requests[i], e->n_requests = i >= e->n_requests ? i + 1 : e->n_requests;
    if (!q) return say(err, HEADRACE_FULL, "fake: queue full");
    size_t n = r->ids ? r->n_ids : r->n_prompt + 1;
    int32_t *ids = calloc(n + 1, sizeof *ids);
    if (!ids) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    if (r->ids)
        memcpy(ids, r->ids, n * sizeof *ids);
    else
        n = encode(r->prompt, r->n_prompt, wants_bos(strstr(e->model, "bos") != NULL, r->add_bos), r->no_special, ids);
    const char *wrong = n == 0                                            ? "fake: the prompt is empty"
                        : n + (r->want_logits ? 0 : 1) > (size_t)e->n_ctx ? "fake: the prompt is too long"
                                                                          : NULL;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= N_VOCAB) wrong = "fake: id out of range";
    if (wrong) {
        free(ids);
        return say(err, HEADRACE_INVALID, wrong);
    }
    static headrace_id last;
    *q = (fake_request){.r = *r, .id = ++last, .ids = ids, .n_ids = n, .live = true};
    if (q->r.max_tokens > e->n_ctx - (int)n) q->r.max_tokens = e->n_ctx - (int)n;
    *out = q->id;
    return HEADRACE_OK;
}

headrace_status headrace_cancel(headrace_engine *e, headrace_id id) {
    for (int i = 0; i < e->n_requests; i++) {
        if (!e->requests[i].live || e->requests[i].id != id) continue;
        e->requests[i].cancelled = true;
        return HEADRACE_OK;
    }
    return HEADRACE_NOT_FOUND;
}

static void give_rows(const fake_request *q, size_t first, size_t n) {
    float *rows = calloc(n * N_VOCAB, sizeof *rows);
    if (!rows) return;
    for (size_t i = 0; i < n; i++) {
        int32_t id = q->ids[first + i];
        rows[i * N_VOCAB + (size_t)q->ids[0]] = 5;
        rows[i * N_VOCAB + (size_t)((id + 1) % N_VOCAB)] = (float)id / 100;
        rows[i * N_VOCAB + (size_t)id] = 10;
    }
    headrace_event v = event_of(q, HEADRACE_EVENT_LOGITS);
    v.logits = rows;
    v.n_rows = (int32_t)n;
    v.first_pos = (int32_t)first;
    q->r.callback(&v);
    free(rows);
}

static size_t whole_character(const char *s, size_t n) {
    unsigned char b = (unsigned char)s[0];
    size_t need = b < 0xC0 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    return n >= need ? need : 0;
}

static void give_token(fake_request *q, int32_t token) {
    headrace_event v = event_of(q, HEADRACE_EVENT_TOKEN);
    char text[8];
    v.token = token;
    v.text = text;
    if (token < 256) q->held[q->n_held++] = (char)token;
    v.n_text = q->n_held ? whole_character(q->held, q->n_held) : 0;
    memcpy(text, q->held, v.n_text);
    if (v.n_text) q->n_held = 0;
    q->n_done++;
    q->r.callback(&v);
}

static void step_one(headrace_engine *e, fake_request *q, size_t *rows_left) {
    if (q->cancelled) {
        end(e, q, HEADRACE_FINISH_CANCELLED);
        return;
    }
    if (strstr(e->model, "fails") && q->ids[0] == 'F' && q->n_computed + (size_t)q->n_done >= 3) {
        end(e, q, HEADRACE_FINISH_ERROR);
        return;
    }
    if (q->n_computed < q->n_ids) {
        size_t n = q->n_ids - q->n_computed;
        if (q->r.chunk > 0 && n > (size_t)q->r.chunk) n = (size_t)q->r.chunk;
        if (n > *rows_left) n = *rows_left;
        if (n == 0) return;
        *rows_left -= n;
        if (q->r.want_logits) give_rows(q, q->n_computed, n);
        q->n_computed += n;
        e->stats.n_prompt_tokens += n;
        if (q->n_computed < q->n_ids) return;
    }
    if (q->r.max_tokens == 0) {
        end(e, q, HEADRACE_FINISH_LENGTH);
        return;
    }
    int32_t last = q->n_done ? q->ids[(size_t)(q->n_done - 1) % q->n_ids] : q->ids[q->n_ids - 1];
    int32_t next = last == '!' ? ID_END : q->ids[(size_t)q->n_done % q->n_ids];
    give_token(q, next);
    if (next == ID_END && !q->r.ignore_end)
        end(e, q, HEADRACE_FINISH_STOP);
    else if (q->n_done >= q->r.max_tokens)
        end(e, q, HEADRACE_FINISH_LENGTH);
}

headrace_status headrace_step(headrace_engine *e, bool *more, headrace_error *err) {
    size_t rows_left = (size_t)e->max_batch;
    e->stats.n_steps++;
    if (strstr(e->model, "slow")) usleep(5000);
    while (strstr(e->model, "stuck") && e->stats.n_steps > 1) sleep(60);
    if (strstr(e->model, "dies") && e->stats.n_steps == 4) return say(err, HEADRACE_FAILED, "fake: the engine cannot go on");
    *more = false;
    for (int i = 0; i < e->n_requests; i++)
        if (e->requests[i].live) step_one(e, &e->requests[i], &rows_left);
    for (int i = 0; i < e->n_requests; i++) *more = *more || e->requests[i].live;
    return HEADRACE_OK;
}

headrace_status headrace_measure_device(headrace_engine *e, headrace_device_speed *out, headrace_error *err) {
    (void)e;
    (void)out;
    (void)err;
    return HEADRACE_UNSUPPORTED;
}

headrace_status headrace_get_stats(headrace_engine *e, headrace_stats *out) {
    if (out->size != sizeof *out) return HEADRACE_INVALID;
    *out = e->stats;
    out->size = sizeof *out;
    return HEADRACE_OK;
}

headrace_status headrace_allow_writing(const headrace_engine *e, const char *path, headrace_error *err) {
    return strcmp(e->model, path) == 0 ? say(err, HEADRACE_INVALID, "fake: the model is there") : HEADRACE_OK;
}

const char *headrace_expert_file(const headrace_engine *e) {
    (void)e;
    return NULL;
}

/* ---- vocabulary ---- */

headrace_status headrace_vocab_open(const headrace_config *c, headrace_vocab **out, headrace_error *err) {
    const char *model = get(c, "model");
    if (strstr(model, "missing")) return say(err, HEADRACE_NOT_FOUND, "fake: no such file");
    *out = calloc(1, sizeof **out);
    if (!*out) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    (*out)->adds_bos = strstr(model, "bos") != NULL;
    return HEADRACE_OK;
}

void headrace_vocab_free(headrace_vocab *v) { free(v); }

headrace_status headrace_encode(const headrace_vocab *v, const char *text, size_t n, int32_t add_bos, bool no_special, int32_t **ids,
                                size_t *n_ids, headrace_error *err) {
    int32_t *list = calloc(n + 2, sizeof *list);
    if (!list) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    *n_ids = encode(text, n, wants_bos(v->adds_bos, add_bos), no_special, list);
    *ids = list;
    return HEADRACE_OK;
}

headrace_status headrace_decode(const headrace_vocab *v, const int32_t *ids, size_t n_ids, bool skip_special, char **text, size_t *n,
                                headrace_error *err) {
    (void)v;
    char *out = calloc(n_ids * 3 + 1, 1);
    size_t k = 0;
    if (!out) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= N_VOCAB) {
            free(out);
            return say(err, HEADRACE_INVALID, "fake: id out of range");
        }
        if (ids[i] < 256) out[k++] = (char)ids[i];
        if (ids[i] == ID_BOS && !skip_special) memcpy(out + k, "<s>", 3), k += 3;
    }
    *text = out;
    *n = k;
    return HEADRACE_OK;
}

int32_t headrace_vocab_bos(const headrace_vocab *v) {
    (void)v;
    return ID_BOS;
}

bool headrace_vocab_adds_bos(const headrace_vocab *v) { return v->adds_bos; }
void headrace_ids_free(int32_t *ids) { free(ids); }
void headrace_text_free(char *text) { free(text); }

/* ---- reports: what was asked, and every setting that came through ---- */

headrace_status headrace_pack(const headrace_config *c, const char *path, headrace_progress *progress, void *user, headrace_pack_result *out, headrace_error *err) {
    (void)c;
    (void)path;
    (void)progress;
    (void)user;
    (void)out;
    return say(err, HEADRACE_FAILED, "fake: nothing to pack");
}

headrace_status headrace_inspect(const headrace_config *c, headrace_report what, bool json, char **text, headrace_error *err) {
    static const char *const names[] = {"model", "tensors", "kernels", "doctor"};
    char *out = calloc(1, 16384);
    if (!out) return say(err, HEADRACE_NO_MEMORY, "fake: no memory");
    int n = sprintf(out, json ? "{\"report\":\"%s\"" : "report %s", names[what]);
    for (int i = 0; i < c->n; i++) n += sprintf(out + n, json ? ",\"%s\":\"%s\"" : "\n%s=%s", c->keys[i], c->values[i]);
    sprintf(out + n, json ? "}" : "\n");
    *text = out;
    return HEADRACE_OK;
}
