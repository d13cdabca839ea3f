/* SPDX-License-Identifier: Apache-2.0 */
/* org/name[@revision] to a directory. */
#include "load/hub_cache.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"

enum { PART_BYTES = 96, REVISION_BYTES = 128, PATH_BYTES = 4096, COMMIT_BYTES = 128 };

typedef struct hub_name {
    char org[PART_BYTES + 1], name[PART_BYTES + 1], revision[REVISION_BYTES + 1];
} hub_name;

/* A part of a name: letters, digits, '-', '_' and '.', not beginning with '.' or '-'; a revision may also hold '/' between parts. */
static bool take(const char *p, size_t n, size_t max, bool slashes, char *out) {
    if (n == 0 || n > max) return false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        bool first = i == 0 || p[i - 1] == '/';
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        bool inner = !first && (c == '.' || c == '-' || (c == '/' && slashes && i + 1 < n));
        if (!letter && !inner) return false;
    }
    memcpy(out, p, n);
    out[n] = '\0';
    return true;
}

static bool parse(const char *text, hub_name *out) {
    const char *slash = strchr(text, '/'), *at = strchr(text, '@');
    if (slash == NULL || (at != NULL && at < slash)) return false;
    size_t n = at != NULL ? (size_t)(at - slash - 1) : strlen(slash + 1);
    if (!take(text, (size_t)(slash - text), PART_BYTES, false, out->org) || !take(slash + 1, n, PART_BYTES, false, out->name)) return false;
    if (at == NULL) {
        memcpy(out->revision, "main", sizeof "main");
        return true;
    }
    return take(at + 1, strlen(at + 1), REVISION_BYTES, true, out->revision);
}

bool hub_cache_is_name(const char *text) {
    hub_name name;
    return parse(text, &name);
}

/* An environment variable that is set to something. */
static const char *env(const char *name) {
    const char *v = os_env(name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

static bool fits(int n) { return n >= 0 && n < PATH_BYTES; }

/* A folder that a variable names, with the home for a leading ~, as the library that fills the cache reads it. */
static bool named_dir(const char *dir, const char *below, char *out) {
    const char *home = env("HOME");
    bool tilde = dir[0] == '~' && (dir[1] == '/' || dir[1] == '\0') && home != NULL;
    return fits(snprintf(out, PATH_BYTES, "%s%s%s", tilde ? home : "", tilde ? dir + 1 : dir, below));
}

static bool cache_dir(char *out) {
    const char *dir;
    if ((dir = env("HF_HUB_CACHE")) != NULL) return named_dir(dir, "", out);
    if ((dir = env("HF_HOME")) != NULL) return named_dir(dir, "/hub", out);
    if ((dir = env("XDG_CACHE_HOME")) != NULL) return fits(snprintf(out, PATH_BYTES, "%s/huggingface/hub", dir));
    if ((dir = env("HOME")) != NULL) return fits(snprintf(out, PATH_BYTES, "%s/.cache/huggingface/hub", dir));
    return false;
}

/* The commit that a branch or tag stands for; the revision itself when there is no such reference. */
static status commit_of(mem *m, const char *model_dir, const char *revision, char *out, error *err) {
    char path[PATH_BYTES];
    os_file *f = NULL;
    char text[COMMIT_BYTES + 1] = "";
    error why = {0};
    if (!fits(snprintf(path, sizeof path, "%s/refs/%s", model_dir, revision)))
        return error_set(err, STATUS_INVALID, "hub: %s: a path too long", revision);
    status rc = os_file_open(m, path, &f, &why);
    if (rc == STATUS_NO_MEMORY) return error_set(err, rc, "%s", why.text);
    if (rc != STATUS_OK) return take(revision, strlen(revision), COMMIT_BYTES, false, out) ? STATUS_OK : STATUS_NOT_FOUND;
    size_t n = os_file_size(f) <= COMMIT_BYTES ? (size_t)os_file_size(f) : 0;
    rc = os_file_read(f, 0, text, n, err);
    os_file_close(f);
    TRY(rc);
    n = strcspn(text, "\r\n");
    if (!take(text, n, COMMIT_BYTES, false, out)) return error_set(err, STATUS_FORMAT, "hub: %s does not hold a commit", path);
    return STATUS_OK;
}

static bool is_dir(mem *m, const char *path) {
    os_file *f = NULL;
    error why = {0};
    status rc = os_file_open(m, path, &f, &why);
    os_file_close(f);
    return rc == STATUS_INVALID; /* it is there and is no file */
}

static status not_found(const char *name, const hub_name *h, const char *cache, error *err) {
    bool main = strcmp(h->revision, "main") == 0;
    return error_set(err, STATUS_NOT_FOUND,
                     "hub: %s is no file and is not in the Hugging Face cache (%s); this would fetch it: hf download %s/%s%s%s", name,
                     cache, h->org, h->name, main ? "" : " --revision ", main ? "" : h->revision);
}

status hub_cache_find(mem *m, const char *name, char **out, error *err) {
    char cache[PATH_BYTES] = "", dir[PATH_BYTES], snapshot[PATH_BYTES], probe[PATH_BYTES], commit[COMMIT_BYTES + 1];
    hub_name h;
    error why = {0};
    os_file *f = NULL;
    if (!parse(name, &h)) return error_set(err, STATUS_INVALID, "hub: %s is not org/name[@revision]", name);
    if (!cache_dir(cache)) return not_found(name, &h, "unknown place: HOME is not set", err);
    if (!fits(snprintf(dir, sizeof dir, "%s/models--%s--%s", cache, h.org, h.name)))
        return error_set(err, STATUS_INVALID, "hub: %s: a path too long", cache);
    status rc = commit_of(m, dir, h.revision, commit, err);
    if (rc == STATUS_NOT_FOUND) return not_found(name, &h, cache, err);
    TRY(rc);
    if (!fits(snprintf(snapshot, sizeof snapshot, "%s/snapshots/%s", dir, commit)) ||
        !fits(snprintf(probe, sizeof probe, "%s/config.json", snapshot)))
        return error_set(err, STATUS_INVALID, "hub: %s: a path too long", cache);
    rc = os_file_open(m, probe, &f, &why);
    os_file_close(f);
    if (rc == STATUS_NOT_FOUND && is_dir(m, snapshot)) /* a download that was cut, or of GGUF files */
        return error_set(err, STATUS_NOT_FOUND,
                         "hub: %s has no config.json in the cache; name a .gguf of %s, or complete it: hf download %s/%s", name, snapshot,
                         h.org, h.name);
    if (rc == STATUS_NOT_FOUND) return not_found(name, &h, cache, err);
    if (rc != STATUS_OK) return error_set(err, rc, "%s", why.text);
    *out = mem_strdup(m, MEM_MODEL, snapshot);
    return *out != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "hub: no memory for a path");
}
