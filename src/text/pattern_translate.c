/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Oniguruma's dialect to PCRE2's. What differs and is rewritten:
 *   \s \S \w \W \h \H      by Unicode property, as Oniguruma defines them (PCRE2's \s has U+180E, its \w is another set)
 *   \b \B                  by that \w
 *   \v \uHHHH              vertical tab; code point
 *   \p{Script}             the script itself, not its extensions
 *   {n,m}+ {n}? {,m}       a repeated repeat, not possessive; optional repeat; {0,m}
 *   (?m)                   "dot matches newline", PCRE2's (?s)
 *   [a[bc]]                a union
 *   ^ $                    at lines (an option of the compilation)
 * Everything that is not known to mean the same is refused.
 */
#include <stdio.h>
#include <string.h>

#include "text/pattern.h"
#include "base/utf8.h"

enum { MAX_GROUPS = 100 };

typedef struct translator {
    const char *s;
    size_t n, i;
    textbuf *out;
    error *err;
    size_t atom; /* where the last atom starts in out; SIZE_MAX = nothing to repeat */
    size_t group[MAX_GROUPS];
    int depth;
    bool branch_empty; /* nothing has been read in this branch */
    bool branched;     /* this group had a '|' before */
} translator;

static status refuse(translator *t, const char *what) {
    int shown = t->n < 120 ? (int)t->n : 120;
    return error_set(t->err, STATUS_UNSUPPORTED, "tokenizer: pattern '%.*s': %s at byte %zu is not translated", shown, t->s, what, t->i);
}

static void put(translator *t, const char *text) { textbuf_adds(t->out, text); }

/* What Oniguruma's Unicode tables have and those of PCRE2 10.42 (Unicode 14) do not. */
static const struct {
    uint32_t first, last;
    char set[4];
} since_14[] = {
#define RANGE(first, last, set) {first, last, set},
#define LOWER(first, last, step)
#include "text/unicode_since_14.def"
#undef RANGE
#undef LOWER
};

/* Ranges of a general category of one or two letters, or of a script. */
static void put_new_ranges(translator *t, const char *set) {
    size_t n = strlen(set);
    for (size_t i = 0; i < sizeof since_14 / sizeof since_14[0]; i++) {
        bool same = n == 1 ? since_14[i].set[0] == set[0] && strlen(since_14[i].set) == 2 : strcmp(since_14[i].set, set) == 0;
        if (same) textbuf_addf(t->out, "\\x{%x}-\\x{%x}", since_14[i].first, since_14[i].last);
    }
}

/* \w without brackets around it. Within a class Oniguruma leaves out the superscripts and fractions of Latin-1 that it counts in elsewhere.
 */
static void put_word_set(translator *t, bool in_class) {
    static const char *const sets[] = {"L", "M", "Nd", "Pc"};
    put(t, "\\p{Alphabetic}");
    if (!in_class) put(t, "\\xb2\\xb3\\xb9\\xbc-\\xbe");
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        textbuf_addf(t->out, "\\p{%s}", sets[i]);
        put_new_ranges(t, sets[i]);
    }
}

/* A look around for or against \w. */
static void put_word_look(translator *t, const char *look) {
    textbuf_addf(t->out, "(?%s[", look);
    put_word_set(t, false);
    put(t, "])");
}

/* "Upper_case letter" -> "uppercaseletter" */
static bool simple_name(const char *s, size_t n, char *out, size_t room) {
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == ' ' || c == '_' || c == '-') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) || o + 1 >= room) return false;
        out[o++] = c;
    }
    out[o] = '\0';
    return o > 0;
}

static const char *const property_names[][2] = {{"letter", "L"},
                                                {"uppercaseletter", "Lu"},
                                                {"lowercaseletter", "Ll"},
                                                {"titlecaseletter", "Lt"},
                                                {"modifierletter", "Lm"},
                                                {"otherletter", "Lo"},
                                                {"mark", "M"},
                                                {"nonspacingmark", "Mn"},
                                                {"spacingmark", "Mc"},
                                                {"enclosingmark", "Me"},
                                                {"number", "N"},
                                                {"decimalnumber", "Nd"},
                                                {"letternumber", "Nl"},
                                                {"othernumber", "No"},
                                                {"punctuation", "P"},
                                                {"connectorpunctuation", "Pc"},
                                                {"dashpunctuation", "Pd"},
                                                {"openpunctuation", "Ps"},
                                                {"closepunctuation", "Pe"},
                                                {"initialpunctuation", "Pi"},
                                                {"finalpunctuation", "Pf"},
                                                {"otherpunctuation", "Po"},
                                                {"symbol", "S"},
                                                {"mathsymbol", "Sm"},
                                                {"currencysymbol", "Sc"},
                                                {"modifiersymbol", "Sk"},
                                                {"othersymbol", "So"},
                                                {"separator", "Z"},
                                                {"spaceseparator", "Zs"},
                                                {"lineseparator", "Zl"},
                                                {"paragraphseparator", "Zp"},
                                                {"other", "C"},
                                                {"control", "Cc"},
                                                {"format", "Cf"},
                                                {"alpha", "Alphabetic"},
                                                {"alphabetic", "Alphabetic"},
                                                {"upper", "Uppercase"},
                                                {"uppercase", "Uppercase"},
                                                {"lower", "Lowercase"},
                                                {"lowercase", "Lowercase"},
                                                {"space", "wspace"},
                                                {"whitespace", "wspace"},
                                                {"digit", "Nd"},
                                                {"any", "Any"},
                                                {"cntrl", "Cc"}};

static const char categories[] =
    " c cc cf cn co cs l ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps s sc sk sm so z zl zp zs ";
static const char not_scripts[] =
    " alnum punct graph print word xdigit ascii assigned "; /* names that mean something else in the two dialects */

/* \p{...} at t->i (behind the p or P). */
static status property(translator *t, bool negated, bool in_class) {
    const char *close = t->i < t->n && t->s[t->i] == '{' ? memchr(t->s + t->i, '}', t->n - t->i) : NULL;
    if (!close) return refuse(t, "\\p without {name}");
    size_t begin = t->i + 1, end = (size_t)(close - t->s);
    if (begin < end && t->s[begin] == '^') {
        negated = !negated;
        begin++;
    }
    char name[64], spaced[68];
    if (!simple_name(t->s + begin, end - begin, name, sizeof name)) return refuse(t, "this property");
    snprintf(spaced, sizeof spaced, " %s ", name);
    const char *known = NULL, *kind = "";
    for (size_t k = 0; k < sizeof property_names / sizeof property_names[0]; k++)
        if (strcmp(property_names[k][0], name) == 0) known = property_names[k][1];
    if (!known) {
        if (strstr(not_scripts, spaced)) return refuse(t, "this property");
        if (!strstr(categories, spaced)) kind = "sc:";
        if (name[0] >= 'a' && name[0] <= 'z') name[0] = (char)(name[0] - 'a' + 'A');
        known = name;
    }
    t->i = end + 1;
    if (in_class) { /* in a class there is no way to write "but not these", so the negated form goes without the new code points */
        textbuf_addf(t->out, "\\%c{%s%s}", negated ? 'P' : 'p', kind, known);
        if (!negated) put_new_ranges(t, known);
        return STATUS_OK;
    }
    textbuf_addf(t->out, "[%s\\p{%s%s}", negated ? "^" : "", kind, known);
    put_new_ranges(t, known);
    put(t, "]");
    return STATUS_OK;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \xHH, \x{H...}, \uHHHH at t->i (behind the letter). */
static status code_point(translator *t, char letter) {
    size_t i = t->i, digits = 0, most = letter == 'u' ? 4 : 2;
    bool braces = letter == 'x' && i < t->n && t->s[i] == '{';
    uint32_t cp = 0;
    if (braces) {
        i++;
        most = 8;
    }
    while (i < t->n && digits < most && hex_value(t->s[i]) >= 0) {
        cp = cp << 4 | (uint32_t)hex_value(t->s[i++]);
        digits++;
    }
    if (digits == 0 || (letter == 'u' && digits < 4) || (braces && (i >= t->n || t->s[i] != '}'))) return refuse(t, "this code point");
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff) || (!braces && letter == 'x' && cp > 0x7f)) return refuse(t, "this code point");
    t->i = braces ? i + 1 : i;
    textbuf_addf(t->out, "\\x{%x}", cp);
    return STATUS_OK;
}

/* An escape at t->i (behind the backslash). */
static status escape(translator *t, bool in_class) {
    if (t->i >= t->n) return refuse(t, "a backslash at the end");
    char c = t->s[t->i];
    if ((unsigned char)c >= 0x80 || !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) {
        if ((unsigned char)c >= 0x80) return STATUS_OK; /* the character itself, read next */
        char escaped[] = {'\\', c, '\0'};
        if (c == '\0') return refuse(t, "a NUL");
        put(t, escaped);
        t->i++;
        return STATUS_OK;
    }
    t->i++;
    const char *text = NULL;
    switch (c) {
    case 'n':
        text = "\\n";
        break;
    case 'r':
        text = "\\r";
        break;
    case 't':
        text = "\\t";
        break;
    case 'f':
        text = "\\f";
        break;
    case 'a':
        text = "\\x07";
        break;
    case 'e':
        text = "\\x1b";
        break;
    case 'v':
        text = "\\x0b";
        break;
    case 's':
        text = "\\p{wspace}";
        break;
    case 'S':
        text = "\\P{wspace}";
        break;
    case 'p':
        return property(t, false, in_class);
    case 'P':
        return property(t, true, in_class);
    case 'x':
    case 'u':
        return code_point(t, c);
    case 'h':
        text = in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
        break;
    case 'H':
        text = in_class ? NULL : "[^0-9A-Fa-f]";
        break;
    case 'b':
        text = in_class ? "\\x08" : NULL;
        break;
    case 'A':
    case 'z':
    case 'Z':
        if (!in_class) {
            char anchor[] = {'\\', c, '\0'};
            put(t, anchor);
            return STATUS_OK;
        }
        break;
    default:
        break;
    }
    if (text) {
        put(t, text);
        return STATUS_OK;
    }
    if (c == 'd' || (c == 'D' && !in_class)) {
        if (!in_class) put(t, c == 'D' ? "[^" : "[");
        put(t, "\\p{Nd}");
        put_new_ranges(t, "Nd");
        if (!in_class) put(t, "]");
        return STATUS_OK;
    }
    if (c == 'w' || (c == 'W' && !in_class)) {
        if (!in_class) put(t, c == 'W' ? "[^" : "[");
        put_word_set(t, in_class);
        if (!in_class) put(t, "]");
        return STATUS_OK;
    }
    if ((c == 'b' || c == 'B') && !in_class) {
        put(t, "(?:");
        put_word_look(t, "<=");
        put_word_look(t, c == 'b' ? "!" : "=");
        put(t, "|");
        put_word_look(t, "<!");
        put_word_look(t, c == 'b' ? "=" : "!");
        put(t, ")");
        return STATUS_OK;
    }
    if (c >= '1' && c <= '9' && !in_class && (t->i >= t->n || t->s[t->i] < '0' || t->s[t->i] > '9')) {
        char reference[] = {'\\', c, '\0'};
        put(t, reference);
        return STATUS_OK;
    }
    char what[] = "the escape \\?";
    what[sizeof what - 2] = c;
    t->i--;
    return refuse(t, what);
}

/* A character class at t->i (behind the '['); nested ones are read into the same one. */
static status character_class(translator *t, bool nested) {
    bool negated = t->i < t->n && t->s[t->i] == '^', first = true;
    if (negated) t->i++;
    if (nested && negated) return refuse(t, "a class with '^' within a class");
    if (!nested) put(t, negated ? "[^" : "[");
    for (; t->i < t->n; first = false) {
        char c = t->s[t->i];
        if (c == ']' && !first) {
            t->i++;
            if (!nested) put(t, "]");
            return STATUS_OK;
        }
        if (c == '&' && t->i + 1 < t->n && t->s[t->i + 1] == '&') return refuse(t, "an intersection");
        if (c == '[') {
            if (t->i + 1 < t->n && t->s[t->i + 1] == ':') return refuse(t, "a POSIX bracket");
            if (nested) return refuse(t, "a class within a class within a class");
            t->i++;
            TRY(character_class(t, true));
            continue;
        }
        if (c == '\\') {
            t->i++;
            TRY(escape(t, true));
            continue;
        }
        uint32_t cp;
        size_t len = utf8_decode(t->s + t->i, t->n - t->i, &cp);
        if (len == 0 || cp == 0) return refuse(t, "a byte that is not text");
        if (c == ']' || c == '^') put(t, "\\");
        textbuf_add(t->out, t->s + t->i, len);
        t->i += len;
    }
    return refuse(t, "a class without end");
}

/* Put a group around the last atom and its repeat, so that what follows repeats the whole. */
static void wrap_atom(translator *t) {
    size_t end = t->out->len;
    put(t, "(?:)");
    if (t->out->failed) return;
    char *text = t->out->data;
    memmove(text + t->atom + 3, text + t->atom, end - t->atom);
    memcpy(text + t->atom, "(?:", 3);
    text[end + 3] = ')';
}

static status repeat_range(translator *t) {
    size_t i = t->i + 1;
    char low[8] = "", high[8] = "";
    size_t n_low = 0, n_high = 0;
    bool comma = false;
    while (i < t->n && t->s[i] >= '0' && t->s[i] <= '9' && n_low < 6) low[n_low++] = t->s[i++];
    if (i < t->n && t->s[i] == ',') {
        comma = true;
        i++;
        while (i < t->n && t->s[i] >= '0' && t->s[i] <= '9' && n_high < 6) high[n_high++] = t->s[i++];
    }
    bool range = i < t->n && t->s[i] == '}' && (n_low > 0 || n_high > 0);
    if (!range || t->atom == SIZE_MAX) { /* an ordinary brace */
        t->atom = t->out->len;
        put(t, "\\{");
        t->i++;
        return STATUS_OK;
    }
    t->i = i + 1;
    textbuf_addf(t->out, "{%s%s%s}", n_low > 0 ? low : "0", comma ? "," : "", high);
    char next = t->i < t->n ? t->s[t->i] : '\0';
    if (next == '+' || (next == '?' && !comma)) {
        wrap_atom(t);
    } else if (next == '?') {
        put(t, "?");
        t->i++;
    }
    return STATUS_OK;
}

static status open_group(translator *t) {
    if (t->depth == MAX_GROUPS) return refuse(t, "a group nested this deep");
    size_t start = t->out->len;
    const char *s = t->s + t->i;
    size_t left = t->n - t->i;
    if (left >= 2 && s[1] == '*') return refuse(t, "(*");
    if (left >= 2 && s[1] == '?') {
        char c = left > 2 ? s[2] : '\0', d = left > 3 ? s[3] : '\0';
        if (c == '#') {
            const char *close = memchr(s, ')', left);
            if (!close) return refuse(t, "a comment without end");
            t->i += (size_t)(close - s) + 1;
            return STATUS_OK;
        }
        if (c == ':' || c == '=' || c == '!' || c == '>') {
            char open[] = {'(', '?', c, '\0'};
            put(t, open);
            t->i += 3;
        } else if (c == '<' && (d == '=' || d == '!')) {
            put(t, d == '=' ? "(?<=" : "(?<!");
            t->i += 4;
        } else {
            bool empty = t->branch_empty && !t->branched, off = false;
            put(t, "(?");
            t->i += 2;
            for (; t->i < t->n && t->s[t->i] != ':' && t->s[t->i] != ')'; t->i++) {
                c = t->s[t->i];
                if (c == '-' && !off) {
                    off = true;
                    put(t, "-");
                } else if (c == 'i' || c == 'm') {
                    put(t, c == 'i' ? "i" : "s");
                } else {
                    return refuse(t, "this kind of group");
                }
            }
            if (t->i >= t->n) return refuse(t, "a group without end");
            if (t->s[t->i++] == ')') { /* to the end of the enclosing group; with a '|' behind it the dialects differ */
                if (!empty) return refuse(t, "an option in the middle of a group");
                put(t, ")");
                return STATUS_OK;
            }
            put(t, ":");
        }
    } else {
        put(t, "(");
        t->i++;
    }
    t->group[t->depth++] = start;
    t->atom = SIZE_MAX;
    t->branch_empty = true;
    t->branched = false;
    return STATUS_OK;
}

static status step(translator *t) {
    char c = t->s[t->i];
    if (c == '(') return open_group(t);
    if (c == ')') {
        if (t->depth == 0) return refuse(t, "a closing parenthesis");
        t->atom = t->group[--t->depth];
        t->branch_empty = false;
        t->branched = true; /* whether the enclosing group had one is not kept: an option behind a group is refused anyway */
        put(t, ")");
        t->i++;
        return STATUS_OK;
    }
    if (c == '|') {
        put(t, "|");
        t->atom = SIZE_MAX;
        t->branch_empty = t->branched = true;
        t->i++;
        return STATUS_OK;
    }
    t->branch_empty = false;
    if (c == '{') return repeat_range(t);
    if (c == '*' || c == '+' || c == '?') {
        char repeat[] = {c, '\0'};
        put(t, repeat);
        t->i++;
        return STATUS_OK;
    }
    t->atom = t->out->len;
    if (c == '[') {
        t->i++;
        return character_class(t, false);
    }
    if (c == '\\') {
        t->i++;
        return escape(t, false);
    }
    uint32_t cp;
    size_t len = utf8_decode(t->s + t->i, t->n - t->i, &cp);
    if (len == 0 || cp == 0) return refuse(t, "a byte that is not text");
    textbuf_add(t->out, t->s + t->i, len);
    t->i += len;
    return STATUS_OK;
}

status pattern_translate(const char *source, size_t n, textbuf *out, error *err) {
    translator t = {.s = source, .n = n, .out = out, .err = err, .atom = SIZE_MAX, .branch_empty = true};
    if (n > PATTERN_MAX_BYTES)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: a pattern of %zu bytes; at most %d are read", n, PATTERN_MAX_BYTES);
    while (t.i < t.n && !out->failed) TRY(step(&t));
    if (out->failed) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a pattern");
    if (t.depth > 0) return refuse(&t, "a group without end");
    return STATUS_OK;
}
