/* SPDX-License-Identifier: Apache-2.0 */
/* Nine digits of a real are more than any clock or mean here has. */
#include "cli/json_out.h"

#include <math.h>
#include <stdio.h>

#include "cli/utf8_text.h"

json_t *json_text(mem *m, const char *s, size_t n) {
    if (utf8_valid_bytes(s, n) == n) return json_stringn(s, n);
    textbuf valid;
    textbuf_init(&valid, m, MEM_PROCESS);
    utf8_add_valid(&valid, s, n);
    json_t *v = valid.failed ? NULL : json_stringn(textbuf_text(&valid), valid.len);
    textbuf_deinit(&valid);
    return v;
}

json_t *json_ids(const int32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        if (json_array_append_new(list, json_integer(ids[i])) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

json_t *json_number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

json_t *json_rate(double count, uint64_t ns) { return ns && count > 0 ? json_real(count * 1e9 / (double)ns) : json_null(); }

status json_print(json_t *v, error *err) {
    if (!v) return error_set(err, STATUS_NO_MEMORY, "json: no memory for the result");
    int rc = json_dumpf(v, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    json_decref(v);
    if (rc != 0) return error_set(err, STATUS_IO, "json: the result could not be written");
    putchar('\n');
    return STATUS_OK;
}
