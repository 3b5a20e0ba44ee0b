#include "data/tokenizer_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/*
 * HuggingFace's patterns are Oniguruma's (its own syntax, Unicode 16); ours run in PCRE2. What means
 * the same in both passes, what is written or meant differently is rewritten, and what is left is
 * refused by name rather than guessed at.
 */

// clang-format off
static const struct {
    char letter;
    int32_t point;
} controls[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}, {'a', '\a'}, {'e', 27}};
static const struct {
    const char *open;
    enum { FOLD_KEEP, FOLD_ON, FOLD_OFF } fold;
} groups[] = {
    {"(?i:", FOLD_ON}, {"(?-i:", FOLD_OFF}, {"(?:", FOLD_KEEP}, {"(?=", FOLD_KEEP},
    {"(?!", FOLD_KEEP}, {"(?<=", FOLD_KEEP}, {"(?<!", FOLD_KEEP}, {"(?>", FOLD_KEEP},
};
// clang-format on

enum { GROUPS_MAX = 200 };

typedef struct Translation {
    const char *pattern, *at; /* all of it, and what is left */
    const char *place;
    TextBuffer out;
    size_t atom;      /* where in out the last atom starts, for quantifiers that wrap it */
    int32_t previous; /* the literal just written; 0: something else */
    bool fold;        /* ignoring case here */
    int depth;
    struct {
        size_t start;
        bool fold;
    } group[GROUPS_MAX];
} Translation;

static Status unsupported(const Translation *t, const char *what)
{
    return FAIL(ERR_UNSUPPORTED, "%s: pattern \"%s\": %s at \"%.12s\" is not supported", t->place,
                t->pattern, what, t->at);
}

static void put(Translation *t, const char *text)
{
    text_append(&t->out, text, strlen(text));
}

static bool read_hex(const char *p, size_t n, int32_t *value)
{
    *value = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)p[i])) return false;
        int digit =
            isdigit((unsigned char)p[i]) ? p[i] - '0' : tolower((unsigned char)p[i]) - 'a' + 10;
        *value = *value * 16 + digit;
    }
    return n > 0;
}

/* One character, written plainly or escaped. */
static Status read_literal(Translation *t, bool in_class, int32_t *point)
{
    const char *p = t->at;
    int length;
    if (p[0] != '\\') {
        *point = utf8_decode(p, &length);
        t->at += length;
        return OK;
    }
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        if (p[1] != controls[i].letter) continue;
        *point = controls[i].point;
        t->at += 2;
        return OK;
    }
    if (in_class && p[1] == 'b') {
        *point = '\b';
        t->at += 2;
        return OK;
    }
    if (p[1] == 'x' || p[1] == 'u') {
        const char *end = p[1] == 'x' && p[2] == '{' ? strchr(p, '}') : NULL;
        size_t digits = end ? (size_t)(end - p - 3) : p[1] == 'x' ? 2 : 4;
        const char *first = end ? p + 3 : p + 2;
        if (digits > 6 || !read_hex(first, digits, point) || *point > 0x10FFFF ||
            (*point >= 0xD800 && *point <= 0xDFFF) ||
            (p[1] == 'x' && !end && *point > 0x7F)) { /* a byte, not a character */
            return unsupported(t, "this escape");
        }
        t->at = end ? end + 1 : first + digits;
        return OK;
    }
    if (p[1] == '\0' || isalnum((unsigned char)p[1])) return unsupported(t, "this escape");
    *point = utf8_decode(p + 1, &length);
    t->at += 1 + length;
    return OK;
}

static Status check_folded(const Translation *t, int32_t point)
{
    if (!t->fold) return OK;
    /* Oniguruma also folds one character to several (ß and ss); with ASCII these are the ligatures'. */
    static const char *const several[] = {"ff", "fi", "fl", "ss", "st"};
    if (point > 0x7F) return unsupported(t, "a letter beyond ASCII with (?i)");
    for (size_t i = 0; i < sizeof several / sizeof *several; i++) {
        if (tolower(t->previous) == several[i][0] && tolower(point) == several[i][1]) {
            return unsupported(t, "a pair of letters that has a ligature, with (?i),");
        }
    }
    return OK;
}

static Status translate_class(Translation *t)
{
    const char *start = t->at;
    t->at++;
    put(t, "[");
    bool negated = *t->at == '^';
    if (negated) {
        put(t, "^");
        t->at++;
    }
    if (*t->at == ']') return unsupported(t, "an empty class");
    while (*t->at != ']') {
        if (*t->at == '\0') {
            return FAIL(ERR_FORMAT, "%s: pattern \"%s\": no ] for \"%.12s\"", t->place, t->pattern,
                        start);
        }
        if (*t->at == '[') return unsupported(t, "a class within a class");
        if (t->at[0] == '&' && t->at[1] == '&') return unsupported(t, "&& in a class");
        bool set_negated;
        const RegexSet *set = regex_read_set(&t->at, &set_negated);
        if (set) {
            const char *items = set_negated ? set->inside_not : set->inside;
            if (!items) return unsupported(t, "the negated set before this, in a class,");
            if (t->fold) return unsupported(t, "a set in a class with (?i), before this,");
            put(t, items);
            if (t->at[0] == '-' && t->at[1] != ']') return unsupported(t, "a range from a set");
            continue;
        }
        int32_t first, last;
        TRY(read_literal(t, true, &first));
        last = first;
        if (t->at[0] == '-' && t->at[1] != ']' && t->at[1] != '\0') {
            t->at++;
            if (*t->at == '[' || regex_read_set(&t->at, &set_negated))
                return unsupported(t, "a range to a set");
            TRY(read_literal(t, true, &last));
        }
        if (t->fold && last > 0x7F)
            return unsupported(t, "a letter beyond ASCII with (?i), before this,");
        text_append_format(&t->out, "\\x{%x}", (unsigned)first);
        if (last != first) text_append_format(&t->out, "-\\x{%x}", (unsigned)last);
    }
    t->at++;
    put(t, "]");
    return OK;
}

/* {n}, {n,}, {n,m} or {,m} at t->at; false: a plain brace. */
static bool read_interval(Translation *t, long *low, long *high)
{
    char *end;
    const char *p = t->at + 1;
    *low = 0;
    bool has_low = isdigit((unsigned char)*p);
    if (has_low) {
        *low = strtol(p, &end, 10);
        p = end;
    }
    *high = *low;
    if (*p == ',') {
        p++;
        *high = -1;
        if (isdigit((unsigned char)*p)) {
            *high = strtol(p, &end, 10);
            p = end;
        } else if (!has_low) {
            return false;
        }
    } else if (!has_low) {
        return false;
    }
    if (*p != '}') return false;
    t->at = p + 1;
    return true;
}

/* Put what was written since the last atom into a group, for a second quantifier. */
static void wrap_atom(Translation *t)
{
    size_t n = t->out.length - t->atom;
    char *copy = text_copy_n(t->out.arena, t->out.text + t->atom, n);
    t->out.length = t->atom;
    put(t, "(?:");
    text_append(&t->out, copy, n);
    put(t, ")");
}

static Status translate_interval(Translation *t, long low, long high)
{
    if (low > 1000 || high > 1000) return unsupported(t, "a repeat beyond 1000 before this, which");
    if (high >= 0 && high < low) return unsupported(t, "a falling repeat before this, which");
    text_append_format(&t->out,
                       high == low ? "{%ld}"
                       : high < 0  ? "{%ld,}"
                                   : "{%ld,%ld}",
                       low, high);
    if (*t->at == '?' && high != low) {
        put(t, "?");
        t->at++;
    } else if (*t->at == '?' || *t->at == '+') { /* neither lazy nor possessive here: once more */
        wrap_atom(t);
        put(t, *t->at == '?' ? "?" : "+");
        t->at++;
    }
    return OK;
}

static Status open_group(Translation *t)
{
    if (t->depth == GROUPS_MAX) return unsupported(t, "so deep a nesting");
    if (t->at[1] == '*') return unsupported(t, "a callout");
    t->group[t->depth].start = t->out.length;
    t->group[t->depth++].fold = t->fold;
    if (t->at[1] != '?') { /* nothing refers to captures */
        put(t, "(?:");
        t->at++;
        return OK;
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (strncmp(t->at, groups[i].open, strlen(groups[i].open)) != 0) continue;
        put(t, groups[i].open);
        t->at += strlen(groups[i].open);
        if (groups[i].fold != FOLD_KEEP) t->fold = groups[i].fold == FOLD_ON;
        return OK;
    }
    return unsupported(t, "this group");
}

static Status translate_escape(Translation *t, bool *done)
{
    *done = true;
    bool negated;
    const RegexSet *set = regex_read_set(&t->at, &negated);
    if (set) {
        if (t->fold && (set->inside[0] == '\\' && set->inside[1] == 'p' && set->inside[3] == 'L')) {
            return unsupported(t, "a set of letters with (?i), before this,");
        }
        put(t, negated ? "[^" : "[");
        put(t, set->alone ? set->alone : set->inside);
        put(t, "]");
        return OK;
    }
    // clang-format off
    static const struct { char letter; const char *out; } anchors[] = {
        {'b', "(?:(?<=[" REGEX_WORD "])(?![" REGEX_WORD "])|(?<![" REGEX_WORD "])(?=[" REGEX_WORD "]))"},
        {'B', "(?:(?<=[" REGEX_WORD "])(?=[" REGEX_WORD "])|(?<![" REGEX_WORD "])(?![" REGEX_WORD "]))"},
        {'A', "\\A"}, {'z', "\\z"}, {'Z', "\\Z"}, {'N', "[^\\x{a}]"},
        {'R', "(?>\\x{d}\\x{a}|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])"},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++) {
        if (t->at[1] != anchors[i].letter) continue;
        put(t, anchors[i].out);
        t->at += 2;
        return OK;
    }
    *done = false;
    return OK;
}

/* One element; t->atom is where it starts. */
static Status translate_one(Translation *t)
{
    size_t start = t->out.length;
    int32_t previous = 0;
    char c = *t->at;
    long low, high;
    if (c == '*' || c == '+' || c == '?') {
        text_append(&t->out, t->at++, 1);
        if (*t->at == '?' || *t->at == '+') text_append(&t->out, t->at++, 1);
        start = t->atom;
    } else if (c == '{' && read_interval(t, &low, &high)) {
        TRY(translate_interval(t, low, high));
        start = t->atom;
    } else if (c == '[') {
        TRY(translate_class(t));
    } else if (c == '(') {
        TRY(open_group(t));
    } else if (c == ')') {
        if (t->depth == 0)
            return FAIL(ERR_FORMAT, "%s: pattern \"%s\": a ) too many", t->place, t->pattern);
        put(t, ")");
        t->at++;
        start = t->group[--t->depth].start;
        t->fold = t->group[t->depth].fold;
    } else if (c == '|' || c == '.' || c == '^' || c == '$') {
        put(t, c == '|' ? "|" : c == '.' ? "[^\\x{a}]" : c == '^' ? "(?m:^)" : "(?m:$)");
        t->at++;
    } else {
        bool done = false;
        if (c == '\\') TRY(translate_escape(t, &done));
        if (!done) {
            int32_t point;
            TRY(read_literal(t, false, &point));
            TRY(check_folded(t, point));
            text_append_format(&t->out, "\\x{%x}", (unsigned)point);
            previous = point;
        }
    }
    t->atom = start;
    t->previous = previous;
    return OK;
}

static Status compile(pcre2_code **out, const char *text, const char *shown, const char *place)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!code) {
        PCRE2_UCHAR message[160] = "";
        pcre2_get_error_message(error, message, sizeof message);
        return FAIL(ERR_FORMAT, "%s: pattern \"%s\" does not compile: %s", place, shown,
                    (char *)message);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is no JIT, it is only slower */
    *out = code;
    return OK;
}

Status regex_compile(pcre2_code **out, const char *pattern, const char *place, Arena *arena)
{
    Translation t = {.pattern = pattern, .at = pattern, .place = place};
    text_buffer_init(&t.out, arena);
    if (strncmp(pattern, "(?i)", 4) == 0) {
        t.fold = true;
        t.at += 4;
        put(&t, "(?i)");
    }
    while (*t.at) TRY(translate_one(&t));
    if (t.depth > 0) return FAIL(ERR_FORMAT, "%s: pattern \"%s\": a ) is missing", place, pattern);
    return compile(out, t.out.text ? t.out.text : "", pattern, place);
}

Status regex_compile_literal(pcre2_code **out, const char *text, const char *place, Arena *arena)
{
    TextBuffer quoted;
    text_buffer_init(&quoted, arena);
    for (const char *p = text; *p;) {
        int length;
        text_append_format(&quoted, "\\x{%x}", (unsigned)utf8_decode(p, &length));
        p += length;
    }
    return compile(out, quoted.text ? quoted.text : "", text, place);
}
