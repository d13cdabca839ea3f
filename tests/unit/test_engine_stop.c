/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings over text in pieces: however the text is cut, what gets out is the text up to the first stop string, and never a byte of that. */
#include "support/test_case.h"

#include "engine/block_hash.h"
#include "engine/stop.h"

typedef struct scene {
    const char *text, *stops[4], *out;
    bool stopped;
} scene;

static const scene scenes[] = {
    {"hello world", {"lo w"}, "hel", true},
    {"aaab", {"aab"}, "a", true},
    {"ababac", {"abac"}, "ab", true},
    {"one two three", {"three", "two"}, "one ", true},
    {"xabcy", {"abcd", "bc"}, "xa", true},    /* the longer one begins first and never comes */
    {"xabcy", {"abc", "bc"}, "x", true},      /* both end together: the one that begins first */
    {"xabcd", {"abcd", "ab"}, "x", true},     /* what ends first */
    {"no such thing", {"thingy", "soch"}, "no such thing", false},
    {"partial sto", {"stop"}, "partial sto", false},
    {"stop", {"stop"}, "", true},
    {"sstop", {"stop"}, "s", true},
    {"\xc3\xa9t\xc3\xa9!", {"t\xc3\xa9"}, "\xc3\xa9", true},
    {"a\nb\n\nc", {"\n\n"}, "a\nb", true},
    {"nothing", {NULL}, "nothing", false},
};

static void check(mem *m, const scene *sc, size_t first, size_t second) {
    stop_string strings[4];
    stop_filter f;
    textbuf out;
    int32_t n = 0;
    for (; n < 4 && sc->stops[n] != NULL; n++) strings[n] = (stop_string){sc->stops[n], strlen(sc->stops[n])};
    textbuf_init(&out, m, MEM_REQUEST);
    assert_int_equal(stop_filter_init(&f, m, strings, n, 64), STATUS_OK);
    const size_t len = strlen(sc->text), cuts[4] = {0, first, second, len};
    for (int i = 0; i < 3; i++) {
        stop_filter_add(&f, sc->text + cuts[i], cuts[i + 1] - cuts[i], true, &out);
        /* never more than the answer, whatever comes */
        assert_true(out.len <= strlen(sc->out));
    }
    assert_int_equal(f.stopped, sc->stopped);
    stop_filter_finish(&f, &out);
    if (strcmp(textbuf_text(&out), sc->out) != 0) fail_msg("\"%s\" cut at %zu and %zu: \"%s\"", sc->text, first, second, textbuf_text(&out));
    stop_filter_deinit(&f);
    textbuf_deinit(&out);
}

static void any_cut_gives_the_same(void **state) {
    (void)state;
    mem *m = test_mem();
    long n = 0;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        const size_t len = strlen(scenes[i].text);
        for (size_t a = 0; a <= len; a++) {
            for (size_t b = a; b <= len; b++, n++) check(m, &scenes[i], a, b);
        }
    }
    assert_true(n > 500);
    test_mem_check(m);
}

/* While it is not armed nothing is looked for, also not across the moment it becomes so. */
static void not_armed(void **state) {
    (void)state;
    mem *m = test_mem();
    const stop_string s = {"ab", 2};
    stop_filter f;
    textbuf out;
    textbuf_init(&out, m, MEM_REQUEST);
    assert_int_equal(stop_filter_init(&f, m, &s, 1, 64), STATUS_OK);
    stop_filter_add(&f, "xaba", 4, false, &out);
    assert_string_equal(textbuf_text(&out), "xaba");
    stop_filter_add(&f, "b", 1, true, &out);
    assert_false(f.stopped);
    stop_filter_add(&f, "ab", 2, true, &out);
    assert_true(f.stopped);
    stop_filter_add(&f, "more", 4, true, &out);
    stop_filter_finish(&f, &out);
    assert_string_equal(textbuf_text(&out), "xabab");
    stop_filter_deinit(&f);
    textbuf_deinit(&out);
    test_mem_check(m);
}

/* Reference vectors of SipHash-2-4 with 128 bits: key 00..0f, message 00.. of the length. */
static void block_names_are_siphash(void **state) {
    (void)state;
    static const struct {
        size_t n;
        uint8_t out[16];
    } vectors[] = {
        {0, {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}},
        {1, {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}},
        {2, {0x81, 0x77, 0x22, 0x8d, 0xa4, 0xa4, 0x5d, 0xc7, 0xfc, 0xa3, 0x8b, 0xde, 0xf6, 0x0a, 0xff, 0xe4}},
    };
    const block_name key = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    uint8_t in[64];
    for (int i = 0; i < 64; i++) in[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const block_name got = block_hash(key, in, vectors[i].n);
        uint8_t bytes[16];
        for (int k = 0; k < 8; k++) {
            bytes[k] = (uint8_t)(got.a >> (8 * k));
            bytes[8 + k] = (uint8_t)(got.b >> (8 * k));
        }
        assert_memory_equal(bytes, vectors[i].out, 16);
    }
    for (int32_t n = 1; n <= 12; n++) { /* the chained form is the plain one over name and ids */
        uint8_t joined[16 + 4 * 12];
        int32_t ids[12];
        const block_name before = {123456789, UINT64_MAX - 5};
        for (int32_t i = 0; i < n; i++) ids[i] = 1000003 * (i + 1) - 7;
        for (int k = 0; k < 8; k++) {
            joined[k] = (uint8_t)(before.a >> (8 * k));
            joined[8 + k] = (uint8_t)(before.b >> (8 * k));
        }
        for (int32_t i = 0; i < n; i++) {
            for (int k = 0; k < 4; k++) joined[16 + 4 * i + k] = (uint8_t)((uint32_t)ids[i] >> (8 * k));
        }
        const block_name a = block_hash(key, joined, 16 + 4 * (size_t)n), b = block_hash_next(key, before, ids, n);
        assert_true(a.a == b.a && a.b == b.b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut_gives_the_same), cmocka_unit_test(not_armed), cmocka_unit_test(block_names_are_siphash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
