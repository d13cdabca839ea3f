/* SPDX-License-Identifier: Apache-2.0 */
/* Captured passes: first eager, which also warms everything up; captured when the next step is alike; replayed from then on. */
#include "model/model_capture.h"

#include "base/log.h"

enum { FEWEST_PAGES = 16 };

bool model_capture_takes(const model *mo, const step *s) {
    return mo->capture != NULL && mo->capture->on && s->n_rows == s->n_segments && mo->opt.observe == NULL;
}

int32_t model_capture_pages(const model *mo, const step *s) {
    int64_t n = FEWEST_PAGES;
    if (s->n_rows != s->n_segments) return s->max_pages;
    while (n < s->max_pages) n *= 2; /* what grows is captured anew each time it doubles */
    return n < mo->opt.max_pages ? (int32_t)n : mo->opt.max_pages;
}

static bool same_key(const capture_key *a, const capture_key *b) {
    return a->n_rows == b->n_rows && a->n_segments == b->n_segments && a->max_pages == b->max_pages && a->n_head_rows == b->n_head_rows && a->best == b->best;
}

static captured_pass *find(model_capture *c, const capture_key *key) {
    for (int i = 0; i < CAPTURE_GRAPHS; i++) {
        if (c->passes[i].graph != NULL && same_key(&c->passes[i].key, key)) return &c->passes[i];
    }
    return NULL;
}

static captured_pass *least_recent(model_capture *c) {
    captured_pass *best = &c->passes[0];
    for (int i = 1; i < CAPTURE_GRAPHS; i++) {
        if (c->passes[i].last_use < best->last_use) best = &c->passes[i];
    }
    return best;
}

static void drop(model *mo, captured_pass *p) {
    vt_graph_destroy(mo->device, p->graph);
    *p = (captured_pass){0};
}

void model_capture_drop(model *mo) {
    if (mo->capture == NULL) return;
    for (int i = 0; i < CAPTURE_GRAPHS; i++) drop(mo, &mo->capture->passes[i]);
    mo->capture->has_last = false;
}

static status replay(model *mo, captured_pass *p, error *err) {
    mo->x = p->result.x;
    mo->head_logits = p->result.head_logits;
    mo->head_best = p->result.head_best;
    mo->ws_used = p->result.ws_used;
    p->last_use = ++mo->capture->clock;
    const status rc = vt_replay(mo->queue, p->graph);
    mo->capture->n_replayed += rc == STATUS_OK;
    return rc == STATUS_OK ? rc : error_set(err, rc, "model: the device replays no step (%s)", status_name(rc));
}

/* The pass as a graph; NULL: it cannot be one. Nothing has run then. */
static captured_pass *capture(model *mo, const capture_key *key, model_pass *pass, const step *s) {
    model_capture *c = mo->capture;
    captured_pass *p = least_recent(c);
    void *graph = NULL;
    error why = {0};
    drop(mo, p);
    status rc = vt_capture_begin(mo->queue);
    if (rc == STATUS_OK) {
        const status passed = pass(mo, s, &why);
        rc = vt_capture_end(mo->queue, &graph);
        if (passed != STATUS_OK) rc = passed;
        if (rc == STATUS_OK && mo->pass_waited) rc = STATUS_BUG;
    }
    if (rc != STATUS_OK) {
        vt_graph_destroy(mo->device, graph);
        log_warn("model: steps are not captured, which makes them slower: %s", why.text[0] != '\0' ? why.text : status_name(rc));
        c->on = false;
        return NULL;
    }
    *p = (captured_pass){.key = *key, .result = {mo->x, mo->head_logits, mo->head_best, mo->ws_used}, .graph = graph};
    c->n_captured++;
    return p;
}

status model_capture_run(model *mo, const capture_key *key, model_pass *pass, const step *s, error *err) {
    model_capture *c = mo->capture;
    mo->pass_waited = false;
    if (key == NULL || !c->on) {
        if (c != NULL) c->has_last = false;
        return pass(mo, s, err);
    }
    captured_pass *p = find(c, key);
    if (p == NULL && c->has_last && same_key(&c->last, key)) p = capture(mo, key, pass, s);
    c->has_last = false;
    if (p != NULL) return replay(mo, p, err);
    TRY(pass(mo, s, err));
    c->has_last = !mo->pass_waited;
    c->last = *key;
    return STATUS_OK;
}

size_t model_capture_bytes(const model *mo, const vt_device *device) { return mo->capture != NULL ? CAPTURE_GRAPHS * (size_t)vt_device_graph_bytes(device) : 0; }
