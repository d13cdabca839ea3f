/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench: speed of prefill and decode for numbers of sequences at once.
 *
 * Prompts are fixed pseudo-random ids, different for each sequence and each run, so that nothing can be taken from an earlier run. A decode
 * step reads the weights once for all sequences and the keys and values of each: bytes a token = weights / sequences + KV at the mean
 * length. Its share of the read bandwidth, measured in the same run, says how much of what the machine can do is used.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/disk_bandwidth.h"
#include "cli/experts_out.h"
#include "cli/json_out.h"
#include "cli/read_bandwidth.h"
#include "cli/session.h"
#include "cli/speed_meter.h"

enum { N_SAMPLES = 16, DISK_MS = 1000, MAX_POINTS = 64, MAX_SEQS = 4096, WARM_UP_PROMPT = 32, WARM_UP_TOKENS = 4 };

typedef struct spread {
    double median, min, max; /* NAN: not measured */
} spread;

typedef struct point {
    int n_seqs;
    spread prefill, decode; /* tokens a second */
    /* streamed experts: bytes a second that the disk gives by itself, and that decode and prefill read; decode's bytes, in parts of the
     * disk's */
    spread disk, disk_latency, read, prefill_read, disk_share, prefill_share;
    /* of prefill in seconds: what the disk takes for its bytes, and what was not spent waiting for reads; its time in parts of the larger.
     * Decode's time in parts of what the disk takes */
    spread disk_time, compute_time, prefill_over, decode_over;
    double ahead_used, ahead_wasted; /* bytes read ahead and taken, or given up, in all runs */
    spread step_disk, step_latency; /* the disk between the steps of decode */
    double *samples; /* [N_SAMPLES, n_repeat], in the order of the runs */
    double read_per_token, hit_share;
    double bytes_per_token, share; /* decode; share: of the read bandwidth */
    double distinct;               /* experts that a decode step takes in a layer; NAN: none */
    spread upload, upload_share;   /* bytes a second that decode copies to a device's slots, in parts of what copies give */
} point;

struct bench;

/* Bursts between decode steps, of one expert and of several by turns: what the disk is like while a run goes on. */
typedef struct step_bursts {
    uint64_t n[2];
    double bytes[2], seconds[2];
    bool failed;
} step_bursts;

enum { LARGE_BURST_EXPERTS = 6 };


typedef struct bench_sequence {
    struct bench *b;
    bool started;
} bench_sequence;

typedef struct bench {
    cli *x;
    headrace_engine *engine;
    headrace_model_info info;
    int64_t n_prompt, n_generate;
    int n_repeat, n_points, most_seqs;
    point points[MAX_POINTS];
    double bandwidth;                      /* bytes a second that weights can be read at; NAN: could not be measured */
    double upload;                         /* bytes a second that copies bring to the device; NAN: it computes in the host's memory */
    double *samples, *sorted;              /* [n_points, N_SAMPLES, n_repeat]; [n_repeat] */
    disk_bandwidth *disk;                  /* NULL: nothing is streamed */
    step_bursts bursts;
    headrace_stats before, between, after; /* a run, its decode, its end */
    int32_t *ids;
    bench_sequence *sequences;
    headrace_id *request_ids;
    uint64_t run; /* the one that runs: its number in this call, and the lengths of its sequences */
    int64_t run_prompt, run_generate;
    speed_meter speed;
    bool muted, stop;
    status code;
    error why;
} bench;

/* splitmix64 of the place. */
static int32_t id_at(uint64_t run, uint64_t seq, uint64_t pos, int32_t n_vocab) {
    uint64_t z = (run << 48) + (seq << 32) + pos + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (int32_t)((z ^ (z >> 31)) % (uint64_t)n_vocab);
}

static void on_event(const headrace_event *event) {
    bench_sequence *s = event->user;
    bench *b = s->b;
    if (b->muted) return;
    if (event->kind == HEADRACE_EVENT_TOKEN) {
        speed_meter_token(&b->speed, !s->started);
        s->started = true;
    }
    if (event->kind != HEADRACE_EVENT_DONE) return;
    speed_meter_done(&b->speed, s->started);
    if (b->stop || event->finish == HEADRACE_FINISH_LENGTH) return;
    const char *why;
    status code = session_outcome(event, &why);
    b->stop = true;
    b->code = code == STATUS_OK ? STATUS_BUG : code;
    error_note(&b->why, b->code, "bench: %s", code == STATUS_OK ? "a sequence ended early" : why);
}

static status submit(void *user, size_t i, headrace_id *out, error *err) {
    bench *b = user;
    for (int64_t p = 0; p < b->run_prompt; p++) b->ids[p] = id_at(b->run, i, (uint64_t)p, b->info.n_vocab);
    b->sequences[i] = (bench_sequence){.b = b};
    headrace_error why = {0};
    headrace_request r = HEADRACE_REQUEST_INIT;
    r.ids = b->ids;
    r.n_ids = (size_t)b->run_prompt;
    r.max_tokens = (int32_t)b->run_generate;
    r.ignore_end = true;
    r.callback = on_event;
    r.user = &b->sequences[i];
    return session_status(headrace_submit(b->engine, &r, out, &why), &why, err);
}

static void take_stats(bench *b, headrace_stats *out) {
    *out = (headrace_stats){.size = sizeof *out};
    if (headrace_get_stats(b->engine, out) != HEADRACE_OK) *out = (headrace_stats){0};
}

static void step_burst(bench *b) {
    step_bursts *s = &b->bursts;
    const int large = s->n[0] > s->n[1];
    uint64_t bytes;
    const double seconds = disk_bandwidth_burst(b->disk, b->after.expert_slot_bytes * (large ? LARGE_BURST_EXPERTS : 1), &bytes);
    s->failed = s->failed || bytes == 0;
    s->n[large]++;
    s->bytes[large] += (double)bytes;
    s->seconds[large] += seconds;
}

/* What both sizes took: so much from asking on, and so much for each byte. */
static disk_rates step_rates(const step_bursts *s) {
    if (s->n[1] == 0 || s->failed) return (disk_rates){NAN, NAN};
    const double n0 = (double)s->n[0], n1 = (double)s->n[1], small = s->seconds[0] / n0, more = s->seconds[1] / n1 - small, bytes = s->bytes[1] / n1 - s->bytes[0] / n0;
    disk_rates r = {.bytes_per_s = more > 0 && bytes > 0 ? bytes / more : NAN};
    r.latency_s = small - s->bytes[0] / n0 / r.bytes_per_s;
    if (r.latency_s >= 0) return r;
    return (disk_rates){.bytes_per_s = (s->bytes[0] + s->bytes[1]) / (s->seconds[0] + s->seconds[1])};
}

static void on_step(void *user, uint64_t before_ns, uint64_t after_ns) {
    bench *b = user;
    speed_meter_step(&b->speed, before_ns, after_ns);
    if (b->disk != NULL && b->speed.decode_ns > 0 && !b->bursts.failed) step_burst(b);
    if (b->info.n_experts_used > 0 && b->speed.decode_ns == 0) take_stats(b, &b->between);
}

/* One run: n_seqs prompts of n_prompt ids, n_generate tokens each; its speeds are in b->speed afterwards. */
static status run_once(bench *b, int n_seqs, int64_t n_prompt, int64_t n_generate, error *err) {
    b->run++;
    b->run_prompt = n_prompt;
    b->run_generate = n_generate;
    speed_meter_init(&b->speed, (size_t)n_seqs, true);
    b->bursts = (step_bursts){0};
    session_run_args args = {
        .engine = b->engine, .ids = b->request_ids, .n = (size_t)n_seqs, .submit = submit, .on_step = on_step, .user = b, .stop = &b->stop};
    TRY(session_run(&args, err));
    return b->code == STATUS_OK ? STATUS_OK : error_set(err, b->code, "%s", b->why.text);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of what is a figure: no number has a place in an order that NAN is in. */
static spread spread_of(const double *samples, double *v, int n) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(samples[i])) v[kept++] = samples[i];
    }
    n = kept;
    qsort(v, (size_t)n, sizeof *v, ascending);
    if (n == 0) return (spread){NAN, NAN, NAN};
    return (spread){n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[0], v[n - 1]};
}

static double rate(double count, uint64_t ns) { return ns && count > 0 ? count * 1e9 / (double)ns : NAN; }

/* 0 where nothing was missing. */
static double read_rate(uint64_t bytes, uint64_t ns) { return bytes == 0 && ns > 0 ? 0 : rate((double)bytes, ns); }

static int64_t at_least_one(int64_t n) { return n < 1 ? 1 : n; }

/* What the disk gives by itself, in front of a run and behind it. */
static status measure_disk(bench *b, disk_rates *out, error *err) {
    *out = (disk_rates){NAN, NAN};
    return b->disk != NULL ? disk_bandwidth_measure(b->disk, DISK_MS, b->after.expert_slot_bytes, out, err) : STATUS_OK;
}

/* The places of a point's samples. */
enum {
    PREFILL,
    DECODE,
    DISK,
    READ,
    PREFILL_READ,
    DISK_SHARE,
    PREFILL_SHARE,
    DISK_LATENCY,
    STEP_DISK,
    STEP_LATENCY,
    UPLOAD,
    UPLOAD_SHARE,
    DISK_TIME,
    COMPUTE_TIME,
    PREFILL_OVER,
    DECODE_OVER,
};

static double larger(double a, double b) { return a > b ? a : b; }

/* Times of prefill and decode beside what they cannot be shorter than. */
static void take_times(const bench *b, double *const *v, int r) {
    const double prefill = (double)b->speed.prefill_ns / 1e9, disk = v[DISK][r];
    const double waited = (double)(b->between.expert_stall_ns - b->before.expert_stall_ns) / 1e9;
    v[DISK_TIME][r] = (double)(b->between.expert_bytes_read - b->before.expert_bytes_read) / disk;
    v[COMPUTE_TIME][r] = larger(prefill - waited, 0);
    v[PREFILL_OVER][r] = b->n_prompt > 0 ? prefill / larger(v[DISK_TIME][r], v[COMPUTE_TIME][r]) : NAN;
    v[DECODE_OVER][r] =
        (double)b->speed.decode_ns / 1e9 / ((double)(b->after.expert_bytes_read - b->between.expert_bytes_read) / disk);
}

static status measure(bench *b, point *p, error *err) {
    double *v[N_SAMPLES];
    disk_rates before;
    uint64_t decode_bytes = 0, decode_tokens = 0, hits = 0, asked = 0, needed = 0, steps = 0;
    for (int i = 0; i < N_SAMPLES; i++) v[i] = p->samples + i * b->n_repeat;
    TRY(measure_disk(b, &before, err));
    for (int r = 0; r < b->n_repeat; r++) {
        take_stats(b, &b->before);
        TRY(run_once(b, p->n_seqs, at_least_one(b->n_prompt), at_least_one(b->n_generate), err));
        take_stats(b, &b->after);
        v[PREFILL][r] = b->n_prompt > 0 ? rate((double)b->n_prompt * p->n_seqs, b->speed.prefill_ns) : NAN;
        v[DECODE][r] = rate((double)b->speed.decode_tokens, b->speed.decode_ns);
        disk_rates after;
        TRY(measure_disk(b, &after, err));
        v[DISK][r] = (before.bytes_per_s + after.bytes_per_s) / 2;
        v[DISK_LATENCY][r] = (before.latency_s + after.latency_s) / 2;
        const disk_rates steps_disk = step_rates(&b->bursts);
        v[STEP_DISK][r] = steps_disk.bytes_per_s;
        v[STEP_LATENCY][r] = steps_disk.latency_s;
        v[READ][r] = read_rate(b->after.expert_bytes_read - b->between.expert_bytes_read, b->speed.decode_ns);
        v[PREFILL_READ][r] = read_rate(b->between.expert_bytes_read - b->before.expert_bytes_read, b->speed.prefill_ns);
        v[DISK_SHARE][r] = v[READ][r] / v[DISK][r];
        v[PREFILL_SHARE][r] = v[PREFILL_READ][r] / v[DISK][r];
        v[UPLOAD][r] = read_rate(b->after.device_expert_bytes - b->between.device_expert_bytes, b->speed.decode_ns);
        v[UPLOAD_SHARE][r] = v[UPLOAD][r] / b->upload;
        needed += b->after.expert_bytes_needed - b->between.expert_bytes_needed;
        steps += b->after.n_steps - b->between.n_steps;
        take_times(b, v, r);
        p->ahead_used += (double)(b->after.expert_prefetch_used - b->before.expert_prefetch_used);
        p->ahead_wasted += (double)(b->after.expert_prefetch_wasted - b->before.expert_prefetch_wasted);
        before = after;
        decode_bytes += b->after.expert_bytes_read - b->between.expert_bytes_read;
        decode_tokens += b->speed.decode_tokens;
        hits += b->after.expert_hits - b->between.expert_hits;
        asked += b->after.expert_hits + b->after.expert_misses - b->between.expert_hits - b->between.expert_misses;
    }
    spread *const to[N_SAMPLES] = {&p->prefill,      &p->decode,     &p->disk,          &p->read,
                                   &p->prefill_read, &p->disk_share, &p->prefill_share, &p->disk_latency, &p->step_disk, &p->step_latency, &p->upload, &p->upload_share,
                                   &p->disk_time,    &p->compute_time, &p->prefill_over, &p->decode_over};
    for (int i = 0; i < N_SAMPLES; i++) *to[i] = spread_of(v[i], b->sorted, b->n_repeat);
    p->read_per_token = decode_tokens > 0 ? (double)decode_bytes / (double)decode_tokens : NAN;
    p->hit_share = asked > 0 ? (double)hits / (double)asked : NAN;
    double mean_length = (double)b->n_prompt + (double)b->n_generate / 2, dense = (double)(b->info.weight_bytes - b->info.expert_bytes), experts = 0;
    p->distinct = NAN;
    if (b->info.n_experts_used > 0) { /* a step reads the union of what its rows take in each layer */
        experts = steps > 0 && needed > 0 ? (double)needed / (double)steps : NAN; /* nobody notes what resident experts a device finds by tables */
        p->distinct = experts / (double)b->info.expert_bytes * b->info.n_experts_used;
    }
    p->bytes_per_token = (dense + experts) / p->n_seqs + (double)b->info.kv_bytes_per_token * mean_length;
    p->share = p->bytes_per_token * p->decode.median / b->bandwidth;
    return STATUS_OK;
}

/* ---- settings ---- */

static status bad_seqs(const char *text, error *err) {
    return error_set(err, STATUS_INVALID, "bench: --seqs: '%s' is not a list of 1 to %d numbers from 1 to %d, such as 1,8", text,
                     MAX_POINTS, MAX_SEQS);
}

static status parse_seqs(const char *text, int *counts, int *n, error *err) {
    *n = 0;
    for (const char *p = text;; p++) {
        char item[16];
        size_t len = strcspn(p, ",");
        int64_t value;
        if (len >= sizeof item || *n == MAX_POINTS) return bad_seqs(text, err);
        memcpy(item, p, len);
        item[len] = 0;
        if (!config_parse_count(item, &value) || value < 1 || value > MAX_SEQS) return bad_seqs(text, err);
        counts[(*n)++] = (int)value;
        p += len;
        if (*p == 0) return STATUS_OK;
    }
}

static status read_settings(const config *c, bench *b, error *err) {
    int counts[MAX_POINTS];
    TRY(parse_seqs(config_text(c, CONFIG_KEY_BENCH_SEQS), counts, &b->n_points, err));
    for (int i = 0; i < b->n_points; i++) {
        b->points[i].n_seqs = counts[i];
        if (counts[i] > b->most_seqs) b->most_seqs = counts[i];
    }
    b->n_prompt = config_count(c, CONFIG_KEY_BENCH_PROMPT);
    b->n_generate = config_count(c, CONFIG_KEY_BENCH_GENERATE);
    b->n_repeat = (int)config_count(c, CONFIG_KEY_BENCH_REPEAT);
    if (b->n_prompt + b->n_generate == 0) return error_set(err, STATUS_INVALID, "bench: -p 0 -n 0 leaves nothing to measure");
    return STATUS_OK;
}

static int64_t tokens_needed(const bench *b) {
    int64_t measured = at_least_one(b->n_prompt) + at_least_one(b->n_generate), warm_up = WARM_UP_PROMPT + WARM_UP_TOKENS;
    return measured > warm_up ? measured : warm_up;
}

/* Room for exactly what is measured. */
static status set_defaults(config *c, error *err) {
    bench b = {0};
    char text[32];
    TRY(read_settings(c, &b, err));
    snprintf(text, sizeof text, "%" PRId64, tokens_needed(&b));
    TRY(config_set(c, "ctx", text, CONFIG_FROM_DEFAULT, err));
    snprintf(text, sizeof text, "%d", b.most_seqs);
    return config_set(c, "max-seqs", text, CONFIG_FROM_DEFAULT, err);
}

static status check_room(const bench *b, error *err) {
    if (b->info.n_ctx < tokens_needed(b))
        return error_set(err, STATUS_INVALID,
                         "bench: -p %" PRId64 " -n %" PRId64 " needs sequences of %" PRId64 " tokens; this engine has %d (--ctx)",
                         b->n_prompt, b->n_generate, tokens_needed(b), (int)b->info.n_ctx);
    if (b->info.max_seqs < b->most_seqs)
        return error_set(err, STATUS_INVALID, "bench: --seqs %d is more than this engine runs at the same time, %d (--max-seqs)",
                         b->most_seqs, (int)b->info.max_seqs);
    return STATUS_OK;
}

/* ---- results ---- */

static json_t *spread_json(const bench *b, const spread *s, const double *samples) {
    if (!isfinite(s->median)) return json_null();
    json_t *each = json_array();
    for (int i = 0; i < b->n_repeat; i++) (void)json_array_append_new(each, json_number(samples[i]));
    return json_pack("{s:o, s:o, s:o, s:o}", "median", json_number(s->median), "min", json_number(s->min), "max", json_number(s->max),
                     "runs", each);
}

static json_t *sample_json(const bench *b, const point *p, const spread *s, int place) {
    return spread_json(b, s, p->samples + place * b->n_repeat);
}

static status print_json(const bench *b, error *err) {
    json_t *runs = json_array();
    for (int i = 0; runs && i < b->n_points; i++) {
        const point *p = &b->points[i];
        json_t *one = json_pack("{s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "seqs", p->n_seqs, "prompt", (json_int_t)b->n_prompt, "generate",
                                (json_int_t)b->n_generate, "prefill_tokens_per_s", sample_json(b, p, &p->prefill, PREFILL),
                                "decode_tokens_per_s", sample_json(b, p, &p->decode, DECODE), "bytes_per_token",
                                json_number(p->bytes_per_token), "bandwidth_share", json_number(p->share));
        if (b->info.n_experts_used > 0 && one != NULL) json_object_set_new(one, "distinct_experts_per_layer", json_number(p->distinct));
        if (b->after.device_expert_slots > 0 && one != NULL) {
            json_object_set_new(one, "decode_upload_bytes_per_s", sample_json(b, p, &p->upload, UPLOAD));
            json_object_set_new(one, "decode_upload_share", sample_json(b, p, &p->upload_share, UPLOAD_SHARE));
        }
        if (b->disk != NULL && one != NULL) {
            json_object_set_new(one, "disk_bytes_per_s", sample_json(b, p, &p->disk, DISK));
            json_object_set_new(one, "disk_latency_s", sample_json(b, p, &p->disk_latency, DISK_LATENCY));
            json_object_set_new(one, "step_disk_bytes_per_s", sample_json(b, p, &p->step_disk, STEP_DISK));
            json_object_set_new(one, "step_disk_latency_s", sample_json(b, p, &p->step_latency, STEP_LATENCY));
            json_object_set_new(one, "decode_read_bytes_per_s", sample_json(b, p, &p->read, READ));
            json_object_set_new(one, "prefill_read_bytes_per_s", sample_json(b, p, &p->prefill_read, PREFILL_READ));
            json_object_set_new(one, "decode_disk_share", sample_json(b, p, &p->disk_share, DISK_SHARE));
            json_object_set_new(one, "prefill_disk_share", sample_json(b, p, &p->prefill_share, PREFILL_SHARE));
            json_object_set_new(one, "decode_read_bytes_per_token", json_number(p->read_per_token));
            json_object_set_new(one, "decode_hit_share", json_number(p->hit_share));
            json_object_set_new(one, "prefill_disk_s", sample_json(b, p, &p->disk_time, DISK_TIME));
            json_object_set_new(one, "prefill_compute_s", sample_json(b, p, &p->compute_time, COMPUTE_TIME));
            json_object_set_new(one, "prefill_time_over_larger", sample_json(b, p, &p->prefill_over, PREFILL_OVER));
            json_object_set_new(one, "decode_time_over_disk", sample_json(b, p, &p->decode_over, DECODE_OVER));
            json_object_set_new(one, "prefetch_used_bytes", json_number(p->ahead_used));
            json_object_set_new(one, "prefetch_wasted_bytes", json_number(p->ahead_wasted));
        }
        if (json_array_append_new(runs, one) == 0) continue;
        json_decref(runs);
        runs = NULL;
    }
    const char *path = config_text(b->x->c, CONFIG_KEY_MODEL);
    json_t *all = json_pack("{s:o, s:i, s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "model", json_text(b->x->m, path, strlen(path)), "threads",
                                (int)b->info.n_threads, "repeat", b->n_repeat, "read_bandwidth_gb_s", json_number(b->bandwidth / 1e9),
                                "upload_bandwidth_gb_s", json_number(b->upload / 1e9), "captured_steps", (json_int_t)b->after.n_captured_steps, "replayed_steps", (json_int_t)b->after.n_replayed_steps,
                                "device_planned_bytes", (json_int_t)b->info.device_bytes, "device_peak_bytes", (json_int_t)b->after.device_peak_bytes, "device_open_bytes", (json_int_t)b->after.device_open_bytes,
                                "memory_planned_bytes", (json_int_t)b->after.memory_planned_bytes, "memory_peak_bytes",
                                (json_int_t)b->after.memory_peak_bytes, "runs", runs);
    if (!experts_add_json(all, b->engine)) {
        json_decref(all);
        all = NULL;
    }
    return json_print(all, err);
}

static void print_spread(const spread *s) {
    char text[64] = "-";
    if (isfinite(s->median)) snprintf(text, sizeof text, "%.1f (%.1f..%.1f)", s->median, s->min, s->max);
    printf("  %26s", text);
}

static void print_table(const bench *b) {
    printf("%s, %d threads, device %s\n", b->info.architecture, (int)b->info.n_threads, b->info.device);
    if (b->info.activations != NULL) printf("products: %s\n", b->info.activations);
    if (isfinite(b->upload))
        printf("device reads %.1f GB/s, host to device %.1f GB/s; %.1f MiB planned there, %.1f MiB seen, beside %.1f MiB when it was opened\n", b->bandwidth / 1e9, b->upload / 1e9, (double)b->info.device_bytes / 1048576.0,
               (double)b->after.device_peak_bytes / 1048576.0, (double)b->after.device_open_bytes / 1048576.0);
    else if (isfinite(b->bandwidth))
        printf("read bandwidth %.2f GB/s (%d MiB, %d threads)\n", b->bandwidth / 1e9, READ_BANDWIDTH_BYTES >> 20, (int)b->info.n_threads);
    const bool experts = b->info.n_experts_used > 0;
    printf("%5s  %7s  %9s  %26s  %26s  %9s  %6s%s\n", "seqs", "prompt", "generate", "prefill tok/s (min..max)", "decode tok/s (min..max)",
           "MB/token", "share", experts ? "  distinct" : "");
    for (int i = 0; i < b->n_points; i++) {
        const point *p = &b->points[i];
        printf("%5d  %7" PRId64 "  %9" PRId64, p->n_seqs, b->n_prompt, b->n_generate);
        print_spread(&p->prefill);
        print_spread(&p->decode);
        if (isfinite(p->bytes_per_token))
            printf("  %9.2f", p->bytes_per_token / 1e6);
        else
            printf("  %9s", "-");
        if (isfinite(p->share))
            printf("  %5.1f%%", 100 * p->share);
        else
            printf("  %6s", "-");
        if (isfinite(p->distinct)) printf("  %8.1f", p->distinct);
        printf("\n");
    }
}

/* What a device's slots were sent. */
static void print_uploads(const bench *b) {
    for (int i = 0; b->after.device_expert_slots > 0 && i < b->n_points; i++) {
        const point *p = &b->points[i];
        printf("%5d  decode copies %.2f GB/s to the device, %.1f %% of what copies give (%.1f..%.1f)\n", p->n_seqs, p->upload.median / 1e9, 100 * p->upload_share.median, 100 * p->upload_share.min, 100 * p->upload_share.max);
    }
}

/* Reads of streamed experts beside what the disk gave by itself, before and after each run. */
static void print_stream(const bench *b) {
    printf("\nexperts streamed; disk by itself, read by decode and by prefill in GB/s (min..max), their share\n");
    for (int i = 0; i < b->n_points; i++) {
        const point *p = &b->points[i];
        printf("%5d  disk %.2f (%.2f..%.2f) after %.2f ms  decode %.2f, %.1f %% (%.1f..%.1f)  prefill %.2f, %.1f %% (%.1f..%.1f)  %.1f "
               "MB/token, %.1f %% hits\n",
               p->n_seqs, p->disk.median / 1e9, p->disk.min / 1e9, p->disk.max / 1e9, 1e3 * p->disk_latency.median, p->read.median / 1e9,
               100 * p->disk_share.median, 100 * p->disk_share.min, 100 * p->disk_share.max, p->prefill_read.median / 1e9,
               100 * p->prefill_share.median, 100 * p->prefill_share.min, 100 * p->prefill_share.max, p->read_per_token / 1e6,
               100 * p->hit_share);
        printf("       prefill: disk time of its bytes %.2f s (%.2f..%.2f), not waiting for reads %.2f s (%.2f..%.2f), time over the larger "
               "%.2f (%.2f..%.2f)\n",
               p->disk_time.median, p->disk_time.min, p->disk_time.max, p->compute_time.median, p->compute_time.min, p->compute_time.max,
               p->prefill_over.median, p->prefill_over.min, p->prefill_over.max);
        printf("       decode: time over disk time of its bytes %.2f (%.2f..%.2f); read ahead and taken %.1f MB, given up %.1f MB\n",
               p->decode_over.median, p->decode_over.min, p->decode_over.max, p->ahead_used / 1e6, p->ahead_wasted / 1e6);
    }
    printf("%llu of %llu experts taken so far\n", (unsigned long long)b->after.experts_distinct,
           (unsigned long long)b->after.experts_total);
}

/* ---- the command ---- */

/* For streamed experts: the disk that they are on. */
static status open_disk(bench *b, error *err) {
    take_stats(b, &b->after);
    if (b->after.experts_tier != HEADRACE_EXPERTS_STREAM) return STATUS_OK;
    error why = {0};
    const status rc = disk_bandwidth_open(b->x->m, headrace_expert_file(b->engine), &b->disk, &why);
    if (rc == STATUS_UNSUPPORTED || rc == STATUS_INVALID || rc == STATUS_NOT_FOUND) {
        cli_complain(b->x, why.text); /* no figures of the disk, then */
        return STATUS_OK;
    }
    return rc == STATUS_OK ? rc : error_set(err, rc, "%s", why.text);
}

static status allocate(bench *b, error *err) {
    mem *m = b->x->m;
    const size_t each = N_SAMPLES * (size_t)b->n_repeat;
    b->samples = mem_calloc(m, MEM_PROCESS, each * (size_t)b->n_points, sizeof *b->samples);
    b->sorted = mem_calloc(m, MEM_PROCESS, (size_t)b->n_repeat, sizeof *b->sorted);
    for (int i = 0; b->samples != NULL && i < b->n_points; i++) b->points[i].samples = b->samples + (size_t)i * each;
    b->ids = mem_calloc(m, MEM_PROCESS, (size_t)tokens_needed(b), sizeof *b->ids);
    b->sequences = mem_calloc(m, MEM_PROCESS, (size_t)b->most_seqs, sizeof *b->sequences);
    b->request_ids = mem_calloc(m, MEM_PROCESS, (size_t)b->most_seqs, sizeof *b->request_ids);
    if (b->samples && b->sorted && b->ids && b->sequences && b->request_ids) return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "bench: no memory for the prompts");
}

static status run(bench *b, error *err) {
    cli *x = b->x;
    TRY(read_settings(x->c, b, err));
    TRY(session_load(x, &b->engine, &b->info, err));
    TRY(check_room(b, err));
    TRY(allocate(b, err));
    error why = {0};
    b->bandwidth = NAN;
    b->upload = NAN;
    headrace_device_speed speed = {.size = sizeof speed};
    headrace_error no;
    if (b->info.device_bytes > 0 && headrace_measure_device(b->engine, &speed, &no) == HEADRACE_OK) {
        b->bandwidth = speed.read_bytes_per_s;
        b->upload = speed.upload_bytes_per_s;
    } else if (b->info.device_bytes > 0)
        cli_complain(x, no.text);
    else if (read_bandwidth_measure(x->m, b->info.n_threads, &b->bandwidth, &why) != STATUS_OK) cli_complain(x, why.text);
    TRY(run_once(b, 1, WARM_UP_PROMPT, WARM_UP_TOKENS, err)); /* every weight once */
    TRY(open_disk(b, err));
    for (int i = 0; i < b->n_points; i++) TRY(measure(b, &b->points[i], err));
    if (x->json) return print_json(b, err);
    print_table(b);
    print_uploads(b);
    if (b->disk != NULL) print_stream(b);
    return STATUS_OK;
}

static status run_bench(cli *x, error *err) {
    bench b = {.x = x};
    status rc = run(&b, err);
    b.muted = true;
    headrace_free(b.engine);
    disk_bandwidth_close(b.disk);
    mem_free(x->m, b.samples);
    mem_free(x->m, b.sorted);
    mem_free(x->m, b.ids);
    mem_free(x->m, b.sequences);
    mem_free(x->m, b.request_ids);
    return rc;
}

const cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure the speed of prefill and decode",
    .usage = "-m MODEL [-p 512] [-n 128] [--seqs 1,8] [-r 5] [options]",
    .about = "For each number of sequences: prompts of -p tokens, then -n generated tokens each, -r times. Prints median, minimum\n"
             "and maximum, the bytes a decoded token reads, and their share of the read bandwidth measured in the same run.\n"
             "With --replay FILE (from --record-routing) experts are taken as recorded. For streamed experts it adds how fast the file\n"
             "that they are read from can be read by itself.\n"
             "Unless given, ctx is what the runs need and max-seqs the largest number of --seqs.\n",
    .examples = "bench -m model.gguf\n"
                "bench -m model.gguf -p 1024 -n 64 --seqs 1,4,16 -r 3 --json\n",
    .where = CONFIG_COMMON | CONFIG_BENCH,
    .set_defaults = set_defaults,
    .run = run_bench,
};
