/* SPDX-License-Identifier: Apache-2.0 */
/* How the checkpoint says that answers are drawn, as the fields of a request. */
#include "engine/api_impl.h"
#include "engine/engine.h"
#include "load/generation_config.h"

headrace_status headrace_model_sampling(const headrace_engine *e, headrace_request *r, headrace_error *herr) {
    generation_config g;
    error err = {0};
    const status rc = generation_config_read(e->m, e->src, &g, &err);
    if (rc != STATUS_OK) return api_error(herr, rc, &err);
    r->temperature = g.top_p > 0 ? (float)g.temperature : 0; /* a mass of 0 is the most likely token; in a request 0 is off */
    r->top_k = (int32_t)g.top_k;
    r->top_p = (float)g.top_p;
    r->min_p = (float)g.min_p;
    r->repetition_penalty = (float)g.repetition_penalty;
    return HEADRACE_OK;
}
