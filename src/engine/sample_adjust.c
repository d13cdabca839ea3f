/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a row before the draw, the ranges of the parameters, and log-probabilities. */
#include <math.h>

#include "engine/sample.h"

static bool within(float x, float lo, float hi) { return x >= lo && x <= hi; } /* false for NaN */

status sample_params_check(const sample_params *sp, error *err) {
    const struct {
        const char *name;
        float value, lo, hi;
    } rows[] = {
        {"temperature", sp->temperature, 0, 100},
        {"top_p", sp->top_p, 0, 1},
        {"min_p", sp->min_p, 0, 1},
        {"frequency_penalty", sp->frequency, -100, 100},
        {"presence_penalty", sp->presence, -100, 100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (within(rows[i].value, rows[i].lo, rows[i].hi)) continue;
        return error_set(err, STATUS_INVALID, "request: %s %g is not in %g .. %g", rows[i].name, (double)rows[i].value, (double)rows[i].lo, (double)rows[i].hi);
    }
    if (sp->repetition != 0.0f && !within(sp->repetition, 0.01f, 100.0f)) {
        return error_set(err, STATUS_INVALID, "request: repetition_penalty %g is not in 0.01 .. 100 (0 and 1: off)", (double)sp->repetition);
    }
    if (sp->top_k < 0) return error_set(err, STATUS_INVALID, "request: top_k %d is negative", sp->top_k);
    if (sp->min_tokens < 0) return error_set(err, STATUS_INVALID, "request: min_tokens %d is negative", sp->min_tokens);
    for (int32_t i = 0; i < sp->n_biases; i++) {
        if (within(sp->biases[i].bias, -1000, 1000)) continue;
        return error_set(err, STATUS_INVALID, "request: logit_bias %g of id %d is not in -1000 .. 1000", (double)sp->biases[i].bias, sp->biases[i].id);
    }
    return STATUS_OK;
}

static bool repeats(const sample_params *sp) { return sp->repetition != 0.0f && sp->repetition != 1.0f; }

bool sample_params_adjust(const sample_params *sp) {
    return repeats(sp) || sp->frequency != 0.0f || sp->presence != 0.0f || sp->min_tokens > 0 || sp->n_biases > 0 || sp->n_allowed > 0 || sp->n_bad_words > 0;
}

/* Each id of the text once: the count is its mark, and zero again afterwards. */
static void penalise_repetition(sampler *s, float *row, float penalty, const int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (s->count[tokens[i]]++ > 0) continue;
        float *x = &row[tokens[i]];
        *x = *x < 0 ? *x * penalty : *x / penalty;
    }
    for (int32_t i = 0; i < n; i++) s->count[tokens[i]] = 0;
}

static void penalise_answer(sampler *s, float *row, const sample_params *sp, const int32_t *answer, int32_t n) {
    for (int32_t i = 0; i < n; i++) s->count[answer[i]]++;
    for (int32_t i = 0; i < n; i++) {
        const int32_t times = s->count[answer[i]];
        if (times == 0) continue;
        row[answer[i]] -= sp->frequency * (float)times + sp->presence;
        s->count[answer[i]] = 0;
    }
}

static void keep_allowed(sampler *s, float *row, const sample_params *sp) {
    for (int32_t i = 0; i < sp->n_allowed; i++) s->count[sp->allowed[i]] = 1;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (s->count[i] == 0) row[i] = -INFINITY;
    }
    for (int32_t i = 0; i < sp->n_allowed; i++) s->count[sp->allowed[i]] = 0;
}

static void forbid_bad_words(float *row, const sample_params *sp, const int32_t *tokens, int32_t n) {
    const int32_t *word = sp->bad_words;
    for (int32_t i = 0; i < sp->n_bad_words; i++, word += word[0] + 1) {
        const int32_t len = word[0];
        bool begun = len - 1 <= n;
        for (int32_t k = 0; begun && k + 1 < len; k++) begun = tokens[n - (len - 1) + k] == word[1 + k];
        if (begun) row[word[len]] = -INFINITY;
    }
}

void sampler_adjust(sampler *s, float *row, const sample_params *sp, const int32_t *tokens, int32_t n_prompt, int32_t n_tokens) {
    for (int32_t i = 0; i < sp->n_biases; i++) row[sp->biases[i].id] += sp->biases[i].bias;
    if (repeats(sp)) penalise_repetition(s, row, sp->repetition, tokens, n_tokens);
    if (sp->frequency != 0.0f || sp->presence != 0.0f) penalise_answer(s, row, sp, tokens + n_prompt, n_tokens - n_prompt);
    if (sp->n_allowed > 0) keep_allowed(s, row, sp);
    forbid_bad_words(row, sp, tokens, n_tokens);
    for (int32_t i = 0; n_tokens - n_prompt < sp->min_tokens && i < sp->n_end_ids; i++) row[sp->end_ids[i]] = -INFINITY;
}

void sampler_logprobs(const sampler *s, const float *row, int32_t id, int32_t n_top, sample_logprobs *out) {
    float best = row[0];
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 1; i < s->n_vocab; i++) best = row[i] > best ? row[i] : best;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        sum += exp((double)row[i] - (double)best);
        if (n_top == 0 || (n == n_top && !(row[i] > row[out->top_ids[n - 1]]))) continue;
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && row[i] > row[out->top_ids[at - 1]]; at--) out->top_ids[at] = out->top_ids[at - 1];
        out->top_ids[at] = i;
    }
    const double norm = (double)best + log(sum);
    out->n_top = n;
    out->logprob = (float)((double)row[id] - norm);
    for (int32_t i = 0; i < n; i++) out->top_logprobs[i] = (float)((double)row[out->top_ids[i]] - norm);
}
