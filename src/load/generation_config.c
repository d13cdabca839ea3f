/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the same kind as hyper-parameters. */
#include "load/generation_config.h"

#include <string.h>

#include "load/hparams.h"

typedef struct fields {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t do_sample, top_k;
} fields;

enum { UNSAID = -2 };

#define ROW(field, type, hf, gguf, min, max) HPARAM_IN(fields, field, type, "@generation_config." hf, gguf, min, max, UNSAID, 0)
static const hparam_row rows[] = {
    ROW(temperature, HPARAM_NUMBER, "temperature", "=general.sampling.temp", 0, 100),
    ROW(top_k, HPARAM_COUNT, "top_k", "=general.sampling.top_k", -1, 1 << 24), /* -1 is a way to write "off" */
    ROW(top_p, HPARAM_NUMBER, "top_p", "=general.sampling.top_p", 0, 1),
    ROW(min_p, HPARAM_NUMBER, "min_p", "=general.sampling.min_p", 0, 1),
    ROW(repetition_penalty, HPARAM_NUMBER, "repetition_penalty", "=general.sampling.penalty_repeat", 0.01, 100),
    HPARAM_IN(fields, do_sample, HPARAM_FLAG, "@generation_config.do_sample", NULL, 0, 1, UNSAID, 0),
};

static bool said(double v) { return v > UNSAID + 0.5; }

/* The report's lines as one, keys without the mark of their file. */
static status refuse(mem *m, const source *s, const textbuf *report, error *err) {
    textbuf all;
    textbuf_init(&all, m, MEM_MODEL);
    for (const char *line = textbuf_text(report); *line != '\0';) {
        size_t n = strcspn(line, "\n"), skip = line[0] == '@';
        textbuf_adds(&all, "; ");
        textbuf_add(&all, line + skip, n - skip);
        line += n + (line[n] == '\n');
    }
    status rc = error_set(err, STATUS_FORMAT, "load: %s: sampling defaults%s", source_path(s), textbuf_text(&all));
    textbuf_deinit(&all);
    return rc;
}

status generation_config_read(mem *m, const source *s, generation_config *out, error *err) {
    fields f = {0};
    textbuf report;
    textbuf_init(&report, m, MEM_MODEL);
    status rc = hparams_read(&f, source_meta(s), "", rows, sizeof rows / sizeof rows[0], &report);
    if (rc == STATUS_NO_MEMORY) rc = error_set(err, rc, "load: no memory for sampling defaults");
    if (rc == STATUS_FORMAT) rc = refuse(m, s, &report, err);
    textbuf_deinit(&report);
    TRY(rc);
    bool hf = source_container(s) == META_HF;
    *out = (generation_config){.temperature = said(f.temperature) ? f.temperature : 1, .top_p = 1, .repetition_penalty = 1};
    out->given = said(f.temperature) || said((double)f.top_k) || said(f.top_p) || said(f.min_p) || said(f.repetition_penalty) ||
                 said((double)f.do_sample);
    if ((hf && f.do_sample != 1) || !out->given) out->temperature = 0;
    if (f.top_k > 0) out->top_k = f.top_k;
    if (said(f.top_p)) out->top_p = f.top_p;
    if (said(f.min_p)) out->min_p = f.min_p;
    if (said(f.repetition_penalty)) out->repetition_penalty = f.repetition_penalty;
    return STATUS_OK;
}
