/* SPDX-License-Identifier: Apache-2.0 */
/* The option table, numbers, the four origins and their order, and what each of them refuses. */
#include "support/test_case.h"

#include "base/config.h"
#include "base/config_source.h"

enum { MAX_ARGS = 32 };

static config *fresh(mem *m) {
    config *c = NULL;
    error err = {0};
    assert_int_equal(config_create(m, &c, &err), STATUS_OK);
    return c;
}

/* Arguments up to NULL; what is left of them is joined by "|" in `rest`. */
static status read_args(config *c, uint32_t where, char rest[500], error *err, ...) {
    char *argv[MAX_ARGS];
    const char *left[MAX_ARGS];
    int argc = 0, n_left = -1;
    va_list args;
    va_start(args, err);
    for (char *a; (a = va_arg(args, char *)) != NULL;) argv[argc++] = a;
    va_end(args);
    status rc = config_read_command_line(c, where, argc, argv, left, &n_left, err);
    if (rc != STATUS_OK) assert_int_equal(n_left, -1);
    if (rest) rest[0] = 0;
    for (int i = 0; rest && i < n_left; i++) snprintf(rest + strlen(rest), 500 - strlen(rest), "%s%s", i ? "|" : "", left[i]);
    return rc;
}

#define ARGS(...) __VA_ARGS__, (char *)NULL

/* The one or two arguments must be refused, with the parts in the text. */
static void refused(uint32_t where, char *a, char *b, const char *part, const char *part2) {
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    status rc = read_args(c, where, NULL, &err, a, b, (char *)NULL);
    if (rc != STATUS_INVALID && rc != STATUS_NOT_FOUND) fail_msg("%s %s: %s", a, b ? b : "", status_name(rc));
    assert_contains(err.text, part);
    if (part2) assert_contains(err.text, part2);
    config_destroy(c);
    test_mem_check(m);
}

static const uint32_t complete = CONFIG_COMMON | CONFIG_COMPLETE;

/* ---- the table ---- */

static void the_table_is_sound(void **state) {
    (void)state;
    assert_true(CONFIG_KEY_COUNT > 20);
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *r = &config_rows[i];
        assert_int_equal(r->id, i);
        assert_true(strlen(r->key) > 1 && strlen(r->key) < 40);
        assert_int_equal(strspn(r->key, "abcdefghijklmnopqrstuvwxyz0123456789-"), strlen(r->key));
        assert_true(strncmp(r->key, "no-", 3) != 0); /* would be taken for the negation of a key */
        assert_true(strncmp(r->key, "test-", 5) != 0);
        assert_true(r->where != 0);
        assert_true(strlen(r->help) > 5);
        assert_int_equal(r->metavar == NULL, r->type == CONFIG_BOOL);
        assert_int_equal(r->choices != NULL, r->type == CONFIG_CHOICE);
        if (r->type == CONFIG_COUNT || r->type == CONFIG_BYTES || r->type == CONFIG_REAL) assert_true(r->min < r->max && r->def != NULL);
        if (r->type == CONFIG_LIST) assert_null(r->def);
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(r->key, config_rows[k].key);
            /* No command may know two options by one letter. */
            if (r->short_flag && r->short_flag == config_rows[k].short_flag) assert_int_equal(r->where & config_rows[k].where, 0);
        }
    }
}

static void defaults_are_those_of_the_table(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    int n_set = 0;
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *r = &config_rows[i];
        assert_int_equal(config_is_set(c, r->id), r->def != NULL);
        if (!r->def) continue;
        n_set++;
        assert_int_equal(config_origin_of(c, r->id), CONFIG_FROM_DEFAULT);
        assert_string_equal(config_value_text(c, r->id), r->def);
    }
    assert_true(n_set > 10);
    assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 32);
    assert_string_equal(config_text(c, CONFIG_KEY_DEVICE), "auto");
    assert_true(config_bool(c, CONFIG_KEY_SPECIAL));
    assert_false(config_bool(c, CONFIG_KEY_BOS));
    assert_true(config_real(c, CONFIG_KEY_TOP_P) == 1.0);
    assert_null(config_text(c, CONFIG_KEY_MODEL));
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 0);
    config_destroy(c);
    config_destroy(NULL);
    test_mem_check(m);
}

/* ---- numbers ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"7", 7},
                {"007", 7},
                {"-1", -1},
                {"-32k", -32000},
                {"32k", 32000},
                {"32K", 32768},
                {"1.5k", 1500},
                {"0.125m", 125000},
                {"2m", 2000000},
                {"2M", 2097152},
                {"3g", 3000000000},
                {"3G", 3221225472},
                {"1.000000001g", 1000000001},
                {"1.50000000000000000000k", 1500},
                {"9007199254740993", 9007199254740993},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775807", -INT64_MAX},
                {"8589934591G", 8589934591 * (int64_t)1073741824}};
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "+1",
                                      "--1",
                                      "-",
                                      "k",
                                      "1kk",
                                      "1kB",
                                      "1Ki",
                                      "1T",
                                      "1t",
                                      "1.5",
                                      "1.5K",
                                      "1.5M",
                                      "1.k",
                                      ".5k",
                                      "1..5k",
                                      "1,5k",
                                      "1e3",
                                      "0x10",
                                      "0x",
                                      "1_000",
                                      "nan",
                                      "inf",
                                      "1.0005k",
                                      "9223372036854775808",
                                      "9223372036854775807k",
                                      "8589934592G",
                                      "99999999999999999999",
                                      "1\n",
                                      "\xC2\xB2",
                                      "1k-"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t v = 12345;
        if (!config_parse_count(good[i].text, &v) || v != good[i].value) fail_msg("%s gave %lld", good[i].text, (long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t v = 12345;
        if (config_parse_count(bad[i], &v)) fail_msg("\"%s\" was taken for %lld", bad[i], (long long)v);
        assert_int_equal(v, 12345);
    }
}

static void bytes(void **state) {
    (void)state;
    /* 0.1G is floor(0.1 * 2^30). */
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"512", 512},
                {"1K", 1024},
                {"1k", 1000},
                {"512M", 536870912},
                {"8G", 8589934592},
                {"8g", 8000000000},
                {"1.5G", 1610612736},
                {"0.1G", 107374182},
                {"0.30000000000000000000000000001T", 329853488332},
                {"1.25T", 1374389534720},
                {"2.5k", 2500},
                {"0.9999K", 1023},
                {"18446744073709551615", UINT64_MAX},
                {"16777215T", UINT64_C(16777215) << 40}};
    static const char *const bad[] = {"",          "-1",   "-0",  "1.5", "1GB", "1GiB", "1P", "G", "1.G", "1 G", "18446744073709551616",
                                      "16777216T", "0x1G", "1e9", "inf"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 12345;
        if (!config_parse_bytes(good[i].text, &v) || v != good[i].value) fail_msg("%s gave %llu", good[i].text, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 12345;
        if (config_parse_bytes(bad[i], &v)) fail_msg("\"%s\" was taken for %llu", bad[i], (unsigned long long)v);
        assert_int_equal(v, 12345);
    }
}

static void reals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},      {"1", 1},      {"-1.5", -1.5},
                {"0.1", 0.1},  {"1e3", 1000}, {"2.5E-1", 0.25},
                {"1e+2", 100}, {"1e-400", 0}, {"1.7976931348623157e308", 1.7976931348623157e308}};
    static const char *const bad[] = {"",     "-",    ".",    ".5",   "5.",       "1e",    "1e+",    "nan",
                                      "NaN",  "-nan", "inf",  "-inf", "infinity", "1e999", "-1e999", "0x1p3",
                                      "0x10", "1,5",  "1.5 ", " 1.5", "1.5k",     "+1",    "1.5.2",  "1d3"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double v = 12345;
        if (!config_parse_real(good[i].text, &v) || v != good[i].value) fail_msg("%s gave %g", good[i].text, v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double v = 12345;
        if (config_parse_real(bad[i], &v)) fail_msg("\"%s\" was taken for %g", bad[i], v);
        assert_true(v == 12345);
    }
}

/* ---- the command line ---- */

static void forms_of_options(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    char rest[500];
    status rc = read_args(c, complete, rest, &err,
                          ARGS("first", "--max-seqs", "8", "-m", "a b.gguf", "--temp=0.5", "--no-bos", "-v", "--ignore-eos=on", "-p", "one",
                               "-", "--prompt=two=2", "-p", "", "--kv-mem", "1.5G", "-n", "2k", "--", "--temp", "-p"));
    assert_string_equal(err.text, "");
    assert_int_equal(rc, STATUS_OK);
    assert_string_equal(rest, "first|-|--temp|-p");
    assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 8);
    assert_int_equal(config_origin_of(c, CONFIG_KEY_MAX_SEQS), CONFIG_FROM_COMMAND_LINE);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "a b.gguf");
    assert_true(config_real(c, CONFIG_KEY_TEMP) == 0.5);
    assert_true(config_is_set(c, CONFIG_KEY_BOS));
    assert_false(config_bool(c, CONFIG_KEY_BOS));
    assert_true(config_bool(c, CONFIG_KEY_VERBOSE));
    assert_true(config_bool(c, CONFIG_KEY_IGNORE_EOS));
    assert_int_equal(config_bytes(c, CONFIG_KEY_KV_MEM), 1610612736);
    assert_int_equal(config_count(c, CONFIG_KEY_N_PREDICT), 2000);
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 3);
    assert_string_equal(config_list_item(c, CONFIG_KEY_PROMPT, 0), "one");
    assert_string_equal(config_list_item(c, CONFIG_KEY_PROMPT, 1), "two=2");
    assert_string_equal(config_list_item(c, CONFIG_KEY_PROMPT, 2), "");
    assert_int_equal(config_count(c, CONFIG_KEY_CTX), 0);
    assert_int_equal(config_origin_of(c, CONFIG_KEY_CTX), CONFIG_FROM_DEFAULT);
    config_destroy(c);
    test_mem_check(m);
}

static void a_letter_belongs_to_the_command(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    assert_int_equal(read_args(c, CONFIG_COMMON | CONFIG_BENCH, NULL, &err, ARGS("-p", "64", "-n", "3")), STATUS_OK);
    assert_int_equal(config_count(c, CONFIG_KEY_BENCH_PROMPT), 64);
    assert_int_equal(config_count(c, CONFIG_KEY_BENCH_GENERATE), 3);
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 0);
    config_destroy(c);
    test_mem_check(m);
}

static void options_that_are_refused(void **state) {
    (void)state;
    refused(complete, "--max-seq", "8", "--max-seq", "did you mean --max-seqs?");
    refused(complete, "--max_seqs=8", NULL, "unknown option --max_seqs;", "did you mean --max-seqs?");
    refused(complete, "--modle", "x", "--modle", "did you mean --model?");
    refused(complete, "--no-boss", NULL, "--no-boss", "did you mean --no-bos?");
    refused(complete, "--decode", NULL, "--decode is no option of this command", "tokenize");
    refused(CONFIG_DOCTOR, "-m", "x", "-m is no option of this command", "pack");
    refused(complete, "-ngl", "99", "unknown option -ngl; here --device and --device-mem", NULL);
    refused(complete, "--max-tokens=5", NULL, "unknown option --max-tokens; here it is --n-predict", NULL);
    refused(complete, "-s", "5", "unknown option -s; here it is --seed", NULL);
    refused(CONFIG_COMMON | CONFIG_BENCH, "-b", "5", "unknown option -b; here it is --max-batch-tokens", NULL);
    refused(complete, "-o", "x", "-o is no option of this command", "logits");
    refused(CONFIG_INSPECT, "--ctx", "5", "--ctx is no option", "commands that load a model");
    refused(complete, "-x", NULL, "unknown option -x", NULL);
    refused(complete, "-mfile", NULL, "-mfile", "-m and its value are two arguments");
    refused(complete, "-m", NULL, "-m wants a value", "PATH");
    refused(complete, "--prompt", NULL, "--prompt wants a value", NULL);
    refused(complete, "--no-ctx", NULL, "--no-ctx", "yes-or-no");
    refused(complete, "--no-bos=true", NULL, "--no-bos takes no value", NULL);
    refused(complete, "--bos=maybe", NULL, "--bos: \"maybe\"", "true, false");
    refused(complete, "--bos", "--no-bos", "--bos is given twice", NULL);
    refused(complete, "--temp=1", "--temp=1", "--temp is given twice", NULL);
    refused(complete, "--max-seqs", "0", "--max-seqs: 0 is out of range, 1 to 4096", NULL);
    refused(complete, "--max-seqs", "4097", "--max-seqs: 4097 is out of range, 1 to 4096", NULL);
    refused(complete, "--max-seqs", "-1", "--max-seqs: -1 is out of range", NULL);
    refused(complete, "--max-seqs", "99999999999999999999", "--max-seqs: 99999999999999999999 is out of range, 1 to 4096", NULL);
    refused(complete, "--seed", "-99999999999999999999", "is out of range, 0 to", NULL);
    refused(complete, "--max-seqs", "-", "\"-\" is not a whole number", NULL);
    refused(complete, "--kv-mem", "99999999999999999999", "is out of range, at most 909T", NULL);
    refused(complete, "--kv-mem", "-1", "\"-1\" is not a number of bytes", NULL);
    refused(complete, "--max-seqs", "1e3", "--max-seqs: \"1e3\" is not a whole number", NULL);
    refused(complete, "--seed", "9007199254740992", "out of range, 0 to 9007199254740991", NULL);
    refused(complete, "--temp", "nan", "--temp: \"nan\"", NULL);
    refused(complete, "--temp", "-0.01", "--temp: -0.01 is out of range, 0 to 100", NULL);
    refused(complete, "--top-p", "1.0000001", "--top-p: 1.0000001 is out of range, 0 to 1", NULL);
    refused(complete, "--kv-mem", "2000T", "--kv-mem: 2000T is out of range", NULL);
    refused(complete, "--kv-mem", "8GB", "--kv-mem: \"8GB\"", NULL);
    refused(complete, "--device", "gpu", "--device: \"gpu\" is not one of auto|cpu|cuda|hip|vulkan|metal", NULL);
    refused(complete, "--device", "auto|cpu", "is not one of", NULL);
    refused(complete, "--device", "", "is not one of", NULL);
    refused(complete, "--device", "cp", "is not one of", NULL);
    refused(complete, "--=3", NULL, "unknown option --", NULL);
    refused(complete, "---", NULL, "unknown option ---", NULL);
    refused(complete, "--no-", NULL, "unknown option --no-", NULL);
    refused(complete, "--config", "/no/such/file", "/no/such/file", NULL);
    static char huge[1 << 20];
    memset(huge, 'x', sizeof huge - 1);
    refused(complete, "--max-seqs", huge, "--max-seqs: \"xxx", NULL);
    memset(huge, '9', sizeof huge - 1);
    refused(complete, "--max-seqs", huge, "--max-seqs: 999", "is out of range");
    memset(huge, '-', sizeof huge - 1);
    refused(complete, huge, NULL, "unknown option ---", NULL);
}

static void a_hint_is_given_only_when_near(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    static const char *const far[] = {"--nonsense", "--a", "--maximum-sequences", "--xxxxxxxx", "--ct-"};
    for (int i = 0; i < 5; i++) {
        char text[40], expected[80];
        snprintf(text, sizeof text, "%s", far[i]);
        assert_int_equal(read_args(c, complete, NULL, &err, ARGS(text)), STATUS_INVALID);
        snprintf(expected, sizeof expected, "config: unknown option %s", far[i]);
        if (i != 4) assert_string_equal(err.text, expected);
    }
    assert_string_equal(err.text, "config: unknown option --ct-; did you mean --ctx?");
    config_destroy(c);
    test_mem_check(m);
}

/* What the rows of other engines' flags send people to is there, and none of the flags is one of ours. */
static void foreign_flags_lead_somewhere(void **state) {
    (void)state;
    int n_keys = 0;
    for (size_t i = 0; i < config_n_foreign_rows; i++) {
        for (const char *p = config_foreign_rows[i].here; (p = strstr(p, "--")) != NULL; n_keys++) {
            const size_t n = strspn(p += 2, "abcdefghijklmnopqrstuvwxyz-");
            if (config_find(p, n) == NULL && (n < 4 || memcmp(p, "no-", 3) != 0 || config_find(p + 3, n - 3) == NULL)) fail_msg("--%.*s is no option", (int)n, p);
        }
        for (const char *p = config_foreign_rows[i].flags; *p != '\0'; p += *p == '|') {
            const size_t n = strcspn(p, "|");
            assert_true(n >= 2 && p[0] == '-');
            if (p[1] == '-' && config_find(p + 2, n - 2) != NULL) fail_msg("%.*s is an option here", (int)n, p);
            p += n;
        }
    }
    assert_true(n_keys > 15);
}

static void lists_grow_in_order(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    enum { N = 500 };
    static char *argv[2 * N];
    static char values[N][16];
    const char *rest[2 * N];
    int n_rest = 0;
    for (int i = 0; i < N; i++) {
        snprintf(values[i], sizeof values[i], "p%d", i);
        argv[2 * i] = "--prompt";
        argv[2 * i + 1] = values[i];
    }
    assert_int_equal(config_read_command_line(c, complete, 2 * N, argv, rest, &n_rest, &err), STATUS_OK);
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), N);
    for (int i = 0; i < N; i++) assert_string_equal(config_list_item(c, CONFIG_KEY_PROMPT, i), values[i]);
    config_destroy(c);
    test_mem_check(m);
}

static void set_obeys_the_origins(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    static const config_origin origins[] = {CONFIG_FROM_FILE, CONFIG_FROM_ENVIRONMENT, CONFIG_FROM_COMMAND_LINE, CONFIG_FROM_FILE,
                                            CONFIG_FROM_COMMAND_LINE};
    static const char *const texts[] = {"2", "3", "4", "5", "6"};
    static const int64_t after[] = {2, 2, 4, 4, 6};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(config_set(c, "max-seqs", texts[i], origins[i], &err), STATUS_OK);
        assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), after[i]);
    }
    /* A value that loses is checked all the same. */
    assert_int_equal(config_set(c, "max-seqs", "5000", CONFIG_FROM_FILE, &err), STATUS_INVALID);
    assert_string_equal(err.text, "config: max-seqs: 5000 is out of range, 1 to 4096 is allowed");
    assert_int_equal(config_set(c, "max-seqs", "", CONFIG_FROM_COMMAND_LINE, &err), STATUS_INVALID);
    assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 6);
    assert_int_equal(config_set(c, "maxseqs", "1", CONFIG_FROM_COMMAND_LINE, &err), STATUS_INVALID);
    assert_string_equal(err.text, "config: unknown key \"maxseqs\"; did you mean max-seqs?");
    /* A higher origin starts a list anew. */
    assert_int_equal(config_set(c, "prompt", "a", CONFIG_FROM_FILE, &err), STATUS_OK);
    assert_int_equal(config_set(c, "prompt", "b", CONFIG_FROM_FILE, &err), STATUS_OK);
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 2);
    assert_int_equal(config_set(c, "prompt", "c", CONFIG_FROM_COMMAND_LINE, &err), STATUS_OK);
    assert_int_equal(config_set(c, "prompt", "d", CONFIG_FROM_FILE, &err), STATUS_OK);
    assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 1);
    assert_string_equal(config_list_item(c, CONFIG_KEY_PROMPT, 0), "c");
    config_destroy(c);
    test_mem_check(m);
}

/* ---- text ---- */

static void help_fits_and_names_every_option(void **state) {
    (void)state;
    mem *m = test_mem();
    textbuf b;
    textbuf_init(&b, m, MEM_PROCESS);
    for (uint32_t where = 2; where <= CONFIG_PACK; where = (where & ~(uint32_t)CONFIG_COMMON) << 1) {
        if ((where & (CONFIG_TOKENIZE | CONFIG_INSPECT | CONFIG_DOCTOR | CONFIG_MAKE_MODEL | CONFIG_PACK)) == 0) where |= CONFIG_COMMON;
        textbuf_clear(&b);
        config_help(where, &b);
        assert_false(b.failed);
        int n_rows = 0;
        for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
            char flag[60];
            snprintf(flag, sizeof flag, "%s", config_rows[i].key);
            if (!(config_rows[i].where & where)) continue;
            n_rows++;
            assert_contains(textbuf_text(&b), flag);
        }
        assert_true(n_rows > 3);
        int n_flags = 0;
        for (const char *line = textbuf_text(&b); *line;) {
            const char *end = strchr(line, '\n');
            assert_non_null(end);
            assert_true(end - line <= 100);
            assert_true(end == line || end[-1] != ' ');
            n_flags += end - line > 8 && line[0] == ' ' && (line[2] == '-' || (line[6] == '-' && line[7] == '-'));
            line = end + 1;
        }
        assert_int_equal(n_flags, n_rows);
    }
    textbuf_clear(&b);
    config_help(complete, &b);
    assert_contains(textbuf_text(&b), "This command:\n");
    assert_contains(textbuf_text(&b), "\nModel and engine:\n");
    assert_contains(textbuf_text(&b), "  -m, --model PATH              model: a .gguf file, a folder of safetensors, or org/name from the\n");
    assert_contains(textbuf_text(&b), "      --[no-]special ");
    assert_contains(textbuf_text(&b), "[auto|map|read] (default auto)");
    textbuf_deinit(&b);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(counts),
        cmocka_unit_test(bytes),
        cmocka_unit_test(reals),
        cmocka_unit_test(forms_of_options),
        cmocka_unit_test(a_letter_belongs_to_the_command),
        cmocka_unit_test(options_that_are_refused),
        cmocka_unit_test(a_hint_is_given_only_when_near),
        cmocka_unit_test(foreign_flags_lead_somewhere),
        cmocka_unit_test(lists_grow_in_order),
        cmocka_unit_test(set_obeys_the_origins),
        cmocka_unit_test(help_fits_and_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
