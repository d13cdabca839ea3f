/* SPDX-License-Identifier: Apache-2.0 */
/* Writes docs/OWED.md from the manifests: which op x signature each backend lacks. owed FILE writes it, owed --check FILE fails when it is
 * not current. The switches of a build make no difference: a row that is left out is written, so it is not owed. */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "vt/backend_manifest.h"

enum { MAX_NEEDS = 4096 };

typedef struct signatures {
    vt_need needs[MAX_NEEDS];
    int n;
} signatures;

static bool same(vt_sig a, vt_sig b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Every signature that some backend has, op by op in the order of op.def, signatures in the order of the tables. */
static bool collect(signatures *s) {
    for (int op = 0; op < VT_OP_COUNT; op++) {
        int first = s->n;
        for (int32_t i = 0; i < vt_manifest_count; i++) {
            for (int32_t r = 0; r < vt_manifest_list[i].n_rows; r++) {
                const vt_manifest_row *row = &vt_manifest_list[i].rows[r];
                bool known = row->op != (vt_op)op;
                for (int k = first; k < s->n && !known; k++) known = same(s->needs[k].sig, row->sig);
                if (known) continue;
                if (s->n == MAX_NEEDS) return false;
                s->needs[s->n++] = (vt_need){(vt_op)op, row->sig};
            }
        }
    }
    return true;
}

static bool has_row(const vt_manifest *m, const vt_need *need) {
    for (int32_t r = 0; r < m->n_rows; r++)
        if (m->rows[r].op == need->op && same(m->rows[r].sig, need->sig)) return true;
    return false;
}

static int count_owed(const vt_manifest *m, const signatures *s) {
    int n = 0;
    for (int k = 0; k < s->n; k++) n += !has_row(m, &s->needs[k]);
    return n;
}

static void write_summary(textbuf *out, const signatures *s) {
    textbuf_addf(out, "\n%d ops, %d signatures that some backend has.\n\n", VT_OP_COUNT, s->n);
    textbuf_adds(out, "| backend | folder | written | owed |\n| --- | --- | --- | --- |\n");
    for (int32_t i = 0; i < vt_manifest_count; i++) {
        const vt_manifest *m = &vt_manifest_list[i];
        int owed = count_owed(m, s);
        textbuf_addf(out, "| %s | `%s` | %d | %d |\n", m->backend, m->folder, s->n - owed, owed);
    }
    textbuf_adds(out, "\nDevice types without a backend folder, where every row is owed:");
    bool any = false;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        bool has = type == VT_DEVICE_TEST; /* its backend belongs to the tests */
        for (int32_t i = 0; i < vt_manifest_count; i++) has = has || vt_manifest_list[i].type == (vt_device_type)type;
        if (has) continue;
        textbuf_addf(out, "%s %s", any ? "," : "", vt_device_type_name((vt_device_type)type));
        any = true;
    }
    textbuf_adds(out, any ? ".\n" : " none.\n");
    for (int op = 0; op < VT_OP_COUNT; op++) {
        bool written = false;
        for (int k = 0; k < s->n; k++) written = written || s->needs[k].op == (vt_op)op;
        if (!written) textbuf_addf(out, "\n`%s` has no row in any backend.\n", vt_op_name((vt_op)op));
    }
}

static void write_table(textbuf *out, const signatures *s) {
    textbuf_adds(out, "\n| op | signature |");
    for (int32_t i = 0; i < vt_manifest_count; i++) textbuf_addf(out, " %s |", vt_manifest_list[i].backend);
    textbuf_adds(out, "\n| --- | --- |");
    for (int32_t i = 0; i < vt_manifest_count; i++) textbuf_adds(out, " --- |");
    textbuf_adds(out, "\n");
    for (int k = 0; k < s->n; k++) {
        char sig[128];
        vt_sig_format(s->needs[k].op, s->needs[k].sig, sig, sizeof sig);
        textbuf_addf(out, "| %s | %s |", vt_op_name(s->needs[k].op), sig);
        for (int32_t i = 0; i < vt_manifest_count; i++) {
            textbuf_adds(out, has_row(&vt_manifest_list[i], &s->needs[k]) ? " written |" : " owed |");
        }
        textbuf_adds(out, "\n");
    }
}

static int check(mem *m, const char *path, const textbuf *expected) {
    char *text;
    size_t n;
    error err = {0};
    if (os_read_text(m, MEM_PROCESS, path, 1 << 24, &text, &n, &err) != STATUS_OK) {
        fprintf(stderr, "owed: %s\n", err.text);
        return 1;
    }
    bool current = n == expected->len && memcmp(text, expected->data, n) == 0;
    mem_free(m, text);
    if (!current) fprintf(stderr, "owed: %s is not what the tables say; run: cmake --build BUILD --target owed\n", path);
    return current ? 0 : 1;
}

static int write_file(const char *path, const textbuf *text) {
    FILE *f = fopen(path, "w");
    bool ok = f && fwrite(text->data, 1, text->len, f) == text->len;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "owed: %s could not be written\n", path);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    bool is_check = argc == 3 && strcmp(argv[1], "--check") == 0;
    mem *m;
    static signatures s;
    if ((argc != 2 && !is_check) || mem_create(&m) != STATUS_OK) {
        fprintf(stderr, "usage: owed [--check] FILE\n");
        return 2;
    }
    textbuf text;
    textbuf_init(&text, m, MEM_PROCESS);
    textbuf_adds(
        &text,
        "# Owed kernels\n\nWritten by `cmake --build BUILD --target owed` from the `kernel_rows.def` of each backend; a test fails when "
        "it is not current.\n*Owed*: some other backend has the op with this signature; this one has not, and refuses by name.\n");
    int rc = 1;
    if (collect(&s) && s.n > 0) {
        write_summary(&text, &s);
        write_table(&text, &s);
        if (!text.failed) rc = is_check ? check(m, argv[2], &text) : write_file(argv[1], &text);
    }
    printf("%d cases: signatures x %d backends\n", s.n * (int)vt_manifest_count, (int)vt_manifest_count);
    textbuf_deinit(&text);
    if (mem_destroy(m) != STATUS_OK) rc = 1;
    return rc;
}
