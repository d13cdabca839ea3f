/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration files, environment variables, which of them wins, and print-config as a file. */
#include "support/test_case.h"
#include "support/temp_dir.h"

#include "base/config.h"

static const uint32_t complete = CONFIG_COMMON | CONFIG_COMPLETE;

static config *fresh(mem *m) {
    config *c = NULL;
    assert_int_equal(config_create(m, &c, NULL), STATUS_OK);
    return c;
}

/* Reads n bytes as a file into a new configuration. */
static status read_bytes(const void *bytes, size_t n, config **c, mem *m, error *err) {
    temp_dir d = temp_dir_make();
    char path[512];
    temp_dir_write(&d, "settings", bytes, n, path);
    *c = fresh(m);
    status rc = config_read_file(*c, path, err);
    temp_dir_remove(&d);
    return rc;
}

static void file_refused(const void *bytes, size_t n, const char *part, const char *part2) {
    mem *m = test_mem();
    config *c = NULL;
    error err = {0};
    status rc = read_bytes(bytes, n, &c, m, &err);
    if (rc != STATUS_INVALID) fail_msg("wanted \"%s\", got %s", part, status_name(rc));
    assert_contains(err.text, "config: ");
    assert_contains(err.text, "settings");
    assert_contains(err.text, part);
    if (part2) assert_contains(err.text, part2);
    config_destroy(c);
    test_mem_check(m);
}

#define FILE_REFUSED(text, part, part2) file_refused(text, sizeof(text) - 1, part, part2)

static void a_file_sets_what_it_says(void **state) {
    (void)state;
    static const char text[] = "\xEF\xBB\xBF# a comment\n"
                               "\n"
                               "   \t \r\n"
                               "max-seqs = 8\n"
                               "  ctx=32K # as many\n"
                               "\tkv-mem\t=\t1.5G\t# a tab\r\n"
                               "model = /models/it's #1 of gr\xC3\xBC\xC3\x9F.gguf\n" /* " #" begins a comment */
                               "device = \"cpu\"   # quoted\n"
                               "json = on\n"
                               "#max-batch-tokens = 1\n"
                               "act = f32"; /* no newline at the end */
    mem *m = test_mem();
    config *c = NULL;
    error err = {0};
    status rc = read_bytes(text, sizeof text - 1, &c, m, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(rc, STATUS_OK);
    assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 8);
    assert_int_equal(config_origin_of(c, CONFIG_KEY_MAX_SEQS), CONFIG_FROM_FILE);
    assert_int_equal(config_count(c, CONFIG_KEY_CTX), 32768);
    assert_int_equal(config_bytes(c, CONFIG_KEY_KV_MEM), 1610612736);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "/models/it's");
    assert_string_equal(config_text(c, CONFIG_KEY_DEVICE), "cpu");
    assert_true(config_bool(c, CONFIG_KEY_JSON));
    assert_string_equal(config_text(c, CONFIG_KEY_ACT), "f32");
    assert_int_equal(config_origin_of(c, CONFIG_KEY_MAX_BATCH_TOKENS), CONFIG_FROM_DEFAULT);
    config_destroy(c);
    /* What needs quotes. */
    static const char quoted[] = "model = \"/a \\\"b\\\" #1\\\\\\n\\t\\xff\\x01\" # end";
    rc = read_bytes(quoted, sizeof quoted - 1, &c, m, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(rc, STATUS_OK);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "/a \"b\" #1\\\n\t\xff\x01");
    config_destroy(c);
    assert_int_equal(read_bytes("model=\"\"", 8, &c, m, &err), STATUS_OK);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "");
    config_destroy(c);
    assert_int_equal(read_bytes("", 0, &c, m, &err), STATUS_OK);
    config_destroy(c);
    assert_int_equal(read_bytes("model = a#b", 11, &c, m, &err), STATUS_OK);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "a#b");
    config_destroy(c);
    test_mem_check(m);
}

static void lines_that_are_refused(void **state) {
    (void)state;
    FILE_REFUSED("max-seqs = 8\nmax-seq = 9\n", ":2: unknown key \"max-seq\"", "did you mean max-seqs?");
    FILE_REFUSED("max_seqs = 9\n", ":1: unknown key", "did you mean max-seqs?");
    FILE_REFUSED("max-seqs = 8\n\n# x\nmax-seqs = 8\n", ":4: max-seqs", "line 1");
    FILE_REFUSED("[server]\n", ":1: sections", NULL);
    FILE_REFUSED("ctx\n", ":1: \"ctx\"", "key = value");
    FILE_REFUSED("= 3\n", ":1: unknown key \"\"", NULL);
    FILE_REFUSED("ctx = \n", ":1: ctx: no value", NULL);
    FILE_REFUSED("ctx = # 3\n", ":1: ctx: no value", NULL);
    FILE_REFUSED("ctx = 3 4\n", ":1: ctx: \"3 4\" is not a whole number", NULL);
    FILE_REFUSED("\nmax-seqs = 4097\n", ":2: max-seqs: 4097 is out of range, 1 to 4096", NULL);
    FILE_REFUSED("device = gpu\n", ":1: device: \"gpu\" is not one of auto|cpu", NULL);
    FILE_REFUSED("temp = 1\n", ":1: temp is for the command line only", NULL);
    FILE_REFUSED("prompt = x\n", ":1: prompt is for the command line only", NULL);
    FILE_REFUSED("config = other\n", ":1: config is for the command line only", NULL);
    FILE_REFUSED("print-config = true\n", ":1: print-config is for the command line only", NULL);
    FILE_REFUSED("--ctx = 3\n", ":1: unknown key \"--ctx\"", NULL);
    FILE_REFUSED("model = \"abc\n", ":1: model: the closing quote is missing", NULL);
    FILE_REFUSED("model = \"abc\\\"\n", "the closing quote is missing", NULL);
    FILE_REFUSED("model = \"abc\\", "unknown escape", NULL);
    FILE_REFUSED("model = \"abc\\q\"\n", "unknown escape", NULL);
    FILE_REFUSED("model = \"abc\\x\"\n", "\\x wants two digits", NULL);
    FILE_REFUSED("model = \"abc\\x4\"\n", "\\x wants two digits", NULL);
    FILE_REFUSED("model = \"abc\\x00\"\n", "\\x wants two digits", NULL);
    FILE_REFUSED("model = \"abc\\x4", "\\x wants two digits", NULL);
    FILE_REFUSED("model = \"abc\" x\n", "text after the closing quote", NULL);
}

static void bytes_that_are_refused(void **state) {
    (void)state;
    FILE_REFUSED("ctx = 3\nmodel = a\0b\n", ":2: control character 0x00 in column 10", NULL);
    FILE_REFUSED("\0", ":1: control character 0x00 in column 1", NULL);
    FILE_REFUSED("model = a\x1B[2Jb\n", ":1: control character 0x1b", NULL);
    FILE_REFUSED("model = a\rb\n", ":1: control character 0x0d", NULL);
    FILE_REFUSED("model = a\xFF\n", ":1: column 10 is not UTF-8", NULL);
    FILE_REFUSED("# \xC0\xAF in a comment\n", ":1: column 3 is not UTF-8", NULL);
    FILE_REFUSED("model = \xE2\x82", ":1: column 9 is not UTF-8", NULL);
    FILE_REFUSED("\xFF\xFE"
                 "c\0t\0x\0",
                 ":1:", NULL); /* UTF-16 */
    enum { BIG = 1 << 20 };
    char *text = malloc(BIG + 100);
    assert_non_null(text);
    memset(text, 'x', BIG + 100);
    file_refused(text, BIG, ":1: the line is longer than", NULL);
    file_refused(text, BIG + 1, "more than 1048576 bytes", NULL);
    memcpy(text, "model = ", 8);
    text[16384] = '\n';
    text[16385] = '#';
    text[16386] = '\n';
    mem *m = test_mem();
    config *c = NULL;
    error err = {0};
    assert_int_equal(read_bytes(text, 16387, &c, m, &err), STATUS_OK); /* a line as long as one may be */
    assert_int_equal(strlen(config_text(c, CONFIG_KEY_MODEL)), 16384 - 8);
    config_destroy(c);
    memset(text, '\n', BIG);
    assert_int_equal(read_bytes(text, BIG, &c, m, &err), STATUS_OK);
    config_destroy(c);
    test_mem_check(m);
    text[BIG - 1] = '?';
    file_refused(text, BIG, ":1048576: \"?\"", NULL);
    memset(text, '[', BIG);
    file_refused(text, 10000, ":1: sections", NULL);
    memset(text, '=', BIG);
    file_refused(text, 10000, ":1: unknown key \"\"", NULL);
    memset(text, '"', BIG);
    file_refused(text, 10000, ":1: \"\"\"", NULL);
    free(text);
}

static void ten_thousand_keys(void **state) {
    (void)state;
    mem *m = test_mem();
    textbuf b;
    textbuf_init(&b, m, MEM_PROCESS);
    for (int i = 0; i < 10000; i++) textbuf_addf(&b, "key%d = %d\n", i, i);
    file_refused(b.data, b.len, ":1: unknown key \"key0\"", NULL);
    textbuf_clear(&b);
    for (int i = 0; i < 10000; i++) textbuf_addf(&b, "ctx = %d\n", i);
    file_refused(b.data, b.len, ":2: ctx is set in line 1", NULL);
    textbuf_deinit(&b);
    test_mem_check(m);
}

static void what_is_no_file(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    assert_int_equal(config_read_file(c, "/no/such/file", &err), STATUS_NOT_FOUND);
    assert_contains(err.text, "config: os: /no/such/file");
    assert_int_equal(config_read_file(c, "/", &err), STATUS_INVALID);
    assert_int_equal(config_read_file(c, "/dev/zero", &err), STATUS_INVALID);
    assert_contains(err.text, "is a device, pipe or socket, not a file");
    config_destroy(c);
    test_mem_check(m);
}

/* ---- the environment ---- */

static const char *const ours[] = {"HEADRACE_MAX_SEQS", "HEADRACE_CTX",          "HEADRACE_MAXSEQS", "HEADRACE_TEMP", "HEADRACE_CONFIG",
                                   "HEADRACE_TEST_X",   "HEADRACE_PRINT_CONFIG", "HEADRACE_MODEL",   "HEADRACE_",     "HEADRACE_max_seqs",
                                   "HEADRACE"};

static void clear_variables(void) {
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) unsetenv(ours[i]);
}

static int clear(void **state) {
    (void)state;
    clear_variables();
    return 0;
}

static void variable_refused(const char *name, const char *value, const char *part, const char *part2) {
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    assert_int_equal(setenv(name, value, 1), 0);
    assert_int_equal(config_read_environment(c, &err), STATUS_INVALID);
    unsetenv(name);
    assert_contains(err.text, name);
    assert_contains(err.text, part);
    if (part2) assert_contains(err.text, part2);
    config_destroy(c);
    test_mem_check(m);
}

static void variables(void **state) {
    (void)state;
    mem *m = test_mem();
    config *c = fresh(m);
    error err = {0};
    setenv("HEADRACE_MAX_SEQS", "4", 1);
    setenv("HEADRACE_TEST_X", "left to tests", 1);
    setenv("HEADRACE", "another program's", 1);
    setenv("HEADRACE_MODEL", "/a # b\nc", 1); /* taken as it is */
    assert_int_equal(config_read_environment(c, &err), STATUS_OK);
    clear_variables();
    assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 4);
    assert_int_equal(config_origin_of(c, CONFIG_KEY_MAX_SEQS), CONFIG_FROM_ENVIRONMENT);
    assert_string_equal(config_text(c, CONFIG_KEY_MODEL), "/a # b\nc");
    config_destroy(c);
    test_mem_check(m);
    variable_refused("HEADRACE_MAXSEQS", "4", "unknown environment variable", "did you mean HEADRACE_MAX_SEQS?");
    variable_refused("HEADRACE_max_seqs", "4", "unknown environment variable", NULL);
    variable_refused("HEADRACE_", "4", "unknown environment variable", NULL);
    variable_refused("HEADRACE_MAX_SEQS", "5000", "HEADRACE_MAX_SEQS: 5000 is out of range, 1 to 4096", NULL);
    variable_refused("HEADRACE_MAX_SEQS", "", "is not a whole number", NULL);
    variable_refused("HEADRACE_TEMP", "1", "temp is for the command line only", NULL);
    variable_refused("HEADRACE_PRINT_CONFIG", "1", "print-config is for the command line only", NULL);
}

/* ---- precedence ---- */

static config *from_all(mem *m, char *argument, const char *file_line, const char *variable) {
    temp_dir d = temp_dir_make();
    char path[512], flag[600];
    temp_dir_write(&d, "settings", file_line ? file_line : "", file_line ? strlen(file_line) : 0, path);
    snprintf(flag, sizeof flag, "--config=%s", path);
    if (variable) assert_int_equal(setenv("HEADRACE_MAX_SEQS", variable, 1), 0);
    config *c = fresh(m);
    error err = {0};
    char *argv[] = {flag, argument};
    const char *rest[2];
    int n_rest = 0;
    assert_int_equal(config_read_command_line(c, complete, argument ? 2 : 1, argv, rest, &n_rest, &err), STATUS_OK);
    clear_variables();
    temp_dir_remove(&d);
    return c;
}

static void the_higher_origin_wins(void **state) {
    (void)state;
    mem *m = test_mem();
    for (int i = 0; i < 8; i++) {
        config *c = from_all(m, i & 1 ? "--max-seqs=3" : NULL, i & 2 ? "max-seqs = 5\n" : NULL, i & 4 ? "7" : NULL);
        int64_t expected = i & 1 ? 3 : i & 2 ? 5 : i & 4 ? 7 : 32;
        config_origin origin = i & 1   ? CONFIG_FROM_COMMAND_LINE
                               : i & 2 ? CONFIG_FROM_FILE
                               : i & 4 ? CONFIG_FROM_ENVIRONMENT
                                       : CONFIG_FROM_DEFAULT;
        assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), expected);
        assert_int_equal(config_origin_of(c, CONFIG_KEY_MAX_SEQS), origin);
        config_destroy(c);
    }
    test_mem_check(m);
}

static void the_file_can_come_from_the_environment(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512], path2[512], flag[600];
    temp_dir_write(&d, "one", "ctx = 1\n", 8, path);
    temp_dir_write(&d, "two", "ctx = 2\n", 8, path2);
    setenv("HEADRACE_CONFIG", path, 1);
    setenv("HEADRACE_CTX", "3", 1);
    snprintf(flag, sizeof flag, "--config=%s", path2);
    for (int given = 0; given < 2; given++) {
        config *c = fresh(m);
        char *argv[] = {flag};
        const char *rest[1];
        int n_rest = 0;
        assert_int_equal(config_read_command_line(c, complete, given, argv, rest, &n_rest, NULL), STATUS_OK);
        assert_int_equal(config_count(c, CONFIG_KEY_CTX), given ? 2 : 1);
        config_destroy(c);
    }
    clear_variables();
    temp_dir_remove(&d);
    test_mem_check(m);
}

/* ---- print-config ---- */

static void what_is_printed_reads_back(void **state) {
    (void)state;
    static const char *const models[] = {"/plain/path.gguf",
                                         "",
                                         " ",
                                         "a b",
                                         "a # b",
                                         "#x",
                                         "\"quoted\"",
                                         "back\\slash",
                                         "line\nbreak\ttab",
                                         "gr\xC3\xBC\xC3\x9F",
                                         "not \xFF utf-8 \xC3\xBC",
                                         "\x01\x7F",
                                         "x ",
                                         "a=b",
                                         "[x]"};
    mem *m = test_mem();
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        config *c = fresh(m);
        char flag[100];
        snprintf(flag, sizeof flag, "--model=%s", models[i]);
        char *argv[] = {flag,     "--kv-mem=1.5G", "--max-seqs=7",  "-p", "a prompt\nof two lines", "--temp=0.25",
                        "--json", "--no-bos",      "--print-config"};
        const char *rest[9];
        int n_rest = 0;
        assert_int_equal(config_read_command_line(c, complete, 9, argv, rest, &n_rest, NULL), STATUS_OK);
        textbuf b;
        textbuf_init(&b, m, MEM_PROCESS);
        config_print(c, complete, &b);
        assert_false(b.failed);
        config *d = NULL;
        error err = {0};
        status rc = read_bytes(b.data, b.len, &d, m, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(rc, STATUS_OK);
        int n_common = 0;
        for (int k = 0; k < CONFIG_KEY_COUNT; k++) {
            if (!(config_rows[k].where & CONFIG_COMMON) || k == CONFIG_KEY_PRINT_CONFIG || !config_is_set(c, (config_key)k)) continue;
            assert_string_equal(config_value_text(c, (config_key)k), config_value_text(d, (config_key)k));
            assert_int_equal(config_origin_of(d, (config_key)k), CONFIG_FROM_FILE);
            n_common++;
        }
        assert_true(n_common > 8);
        assert_int_equal(config_origin_of(d, CONFIG_KEY_TEMP), CONFIG_FROM_DEFAULT); /* not for files: a comment */
        assert_false(config_is_set(d, CONFIG_KEY_BOS));
        assert_contains(textbuf_text(&b), "max-seqs = 7  # command line\n");
        assert_contains(textbuf_text(&b), "ctx = 0  # default\n");
        assert_contains(textbuf_text(&b), "# temp = 0.25  # command line\n");
        assert_contains(textbuf_text(&b), "# prompt = \"a prompt\\nof two lines\"  # command line\n");
        assert_contains(textbuf_text(&b), "# file is not set\n");
        assert_contains(textbuf_text(&b), "# print-config = true  # command line\n");
        textbuf_deinit(&b);
        config_destroy(c);
        config_destroy(d);
    }
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_sets_what_it_says),
        cmocka_unit_test(lines_that_are_refused),
        cmocka_unit_test(bytes_that_are_refused),
        cmocka_unit_test(ten_thousand_keys),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(variables),
        cmocka_unit_test(the_higher_origin_wins),
        cmocka_unit_test(the_file_can_come_from_the_environment),
        cmocka_unit_test(what_is_printed_reads_back),
    };
    return cmocka_run_group_tests(tests, clear, clear);
}
