/* SPDX-License-Identifier: Apache-2.0 */
/** Timing of rows: median of several runs, beside the bandwidth with which this machine reads memory and the scalar row of the same
 * signature. */
#ifndef HEADRACE_CHECK_BENCH_H
#define HEADRACE_CHECK_BENCH_H

#include "check_case.h"

typedef struct bench_options {
    uint64_t seed;
    int repeat;  /* times the number of cases, or of measurements */
    int threads; /* 0: one per processor */
    int shape;   /* -1: all of an op */
    const char *op, *row;
    const char *backend; /* NULL: every one that is here */
    const char *library; /* where shared backends are looked for; NULL: beside the program */
    int cases;           /* of a row; 0: all */
    int part, parts;     /* rows of which the number in the table is `part` modulo `parts`: several programs share an op; parts 0: all */
    bool bench, csv;
    bool once; /* the smallest shape of each op, once, printing nothing: so that a test runs this code */
} bench_options;

typedef struct bench_target {
    const char *name;
    vt_queue *queue;
    const vt_row *rows;
    int32_t n_rows;
} bench_target;

/** Whether options ask for the row that has this number in its table. */
bool bench_wants(const bench_options *o, const vt_row *row, int32_t index);

/** Measure the rows that the options want. 0 when something was measured and nothing failed. */
int bench_rows(bench_target *t, check_case *c, const bench_options *o);

#endif
