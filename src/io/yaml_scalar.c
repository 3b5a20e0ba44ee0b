/* What plain scalars mean, and scalars written so that they mean the same again. */
#include "io/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum Scalar { SCALAR_TEXT, SCALAR_NULL, SCALAR_TRUE, SCALAR_FALSE } Scalar;

// clang-format off
static const struct { const char *text; Scalar is; } words[] = {
    {"", SCALAR_NULL}, {"~", SCALAR_NULL}, {"null", SCALAR_NULL}, {"Null", SCALAR_NULL}, {"NULL", SCALAR_NULL},
    {"true", SCALAR_TRUE}, {"True", SCALAR_TRUE}, {"TRUE", SCALAR_TRUE},
    {"false", SCALAR_FALSE}, {"False", SCALAR_FALSE}, {"FALSE", SCALAR_FALSE},
};
// clang-format on

static size_t skip_digits(const char *text, size_t i)
{
    while (isdigit((unsigned char)text[i])) i++;
    return i;
}

/* [-+]? [0-9]+ */
static bool looks_decimal(const char *text)
{
    size_t i = text[0] == '-' || text[0] == '+', end = skip_digits(text, i);
    return end > i && !text[end];
}

/* 0o[0-7]+ and 0x[0-9a-fA-F]+; 0: neither */
static int looks_based(const char *text)
{
    if (text[0] != '0' || (text[1] != 'o' && text[1] != 'x')) return 0;
    const char *digits = text[1] == 'o' ? "01234567" : "0123456789abcdefABCDEF";
    size_t n = strspn(text + 2, digits);
    return n && !text[2 + n] ? (text[1] == 'o' ? 8 : 16) : 0;
}

/* [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool looks_real(const char *text)
{
    size_t i = text[0] == '-' || text[0] == '+', end = skip_digits(text, i);
    bool digits = end > i;
    if (text[end] == '.') {
        size_t fraction = skip_digits(text, end + 1);
        digits = digits || fraction > end + 1;
        end = fraction;
    }
    if (digits && (text[end] == 'e' || text[end] == 'E')) {
        size_t sign = end + 1;
        if (text[sign] == '-' || text[sign] == '+') sign++;
        end = skip_digits(text, sign);
        if (end == sign) return false;
    }
    return digits && !text[end];
}

static bool looks_infinite(const char *text)
{
    static const char *const names[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    if (text[0] == '-' || text[0] == '+') text++;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(text, names[i])) return true;
    return false;
}

static json_t *plain_integer(const char *digits, int base, const char **why)
{
    errno = 0;
    long long value = strtoll(digits, NULL, base);
    if (errno) {
        *why = "a whole number beyond 64 bits";
        return NULL;
    }
    return json_integer(value);
}

json_t *yaml_plain(const char *text, size_t bytes, const char **why)
{
    if (strlen(text) != bytes) return json_stringn(text, bytes);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].text)) continue;
        return words[i].is == SCALAR_NULL ? json_null() : json_boolean(words[i].is == SCALAR_TRUE);
    }
    if (looks_decimal(text)) return plain_integer(text, 10, why);
    int base = looks_based(text);
    if (base) return plain_integer(text + 2, base, why);
    if (looks_real(text)) {
        double value = strtod(text, NULL);
        if (isfinite(value)) return json_real(value);
        *why = "a number beyond the range of a double";
        return NULL;
    }
    if (looks_infinite(text)) {
        *why = "a number that is not finite";
        return NULL;
    }
    return json_stringn(text, bytes);
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* Letters that mean nothing to YAML wherever they stand in a plain scalar. */
static bool plain_is_safe(const char *text)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
    if (!*text || text[strspn(text, safe)] || *text == '-') return false;
    const char *why;
    json_t *value = yaml_plain(text, strlen(text), &why);
    bool is_text = json_is_string(value);
    json_decref(value);
    /* Words that other readers of YAML take for something else. */
    static const char *const old[] = {"yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        size_t k = 0;
        while (old[i][k] && tolower((unsigned char)text[k]) == old[i][k]) k++;
        if (!old[i][k] && !text[k]) return false;
    }
    return is_text;
}

/* One code point of valid UTF-8; its bytes. */
static size_t decode(const char *text, uint32_t *code)
{
    unsigned char c = (unsigned char)text[0];
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (!text[i]) return i;
        *code = *code << 6 | ((unsigned char)text[i] & 0x3f);
    }
    return n;
}

static bool shows(uint32_t code)
{
    return (code >= 0x20 && code < 0x7f) ||
           (code >= 0xa0 && code != 0x2028 && code != 0x2029 && code != 0xfeff && code < 0xfffe) ||
           (code >= 0x10000 && code <= 0x10ffff);
}

void yaml_append_text(TextBuffer *out, const char *text)
{
    if (plain_is_safe(text)) {
        text_append(out, text, strlen(text));
        return;
    }
    text_append(out, "\"", 1);
    while (*text) {
        uint32_t code;
        size_t n = decode(text, &code);
        if (code == '"' || code == '\\')
            text_append_format(out, "\\%c", (char)code);
        else if (code == '\n')
            text_append(out, "\\n", 2);
        else if (code == '\t')
            text_append(out, "\\t", 2);
        else if (shows(code))
            text_append(out, text, n);
        else
            text_append_format(out, code < 0x10000 ? "\\u%04X" : "\\U%08X", (unsigned)code);
        text += n;
    }
    text_append(out, "\"", 1);
}

void yaml_append_real(TextBuffer *out, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    /* A point always: readers of YAML 1.1 take 1e-08 for a text. */
    size_t mantissa = strcspn(text, "e");
    text_append(out, text, mantissa);
    if (!memchr(text, '.', mantissa)) text_append(out, ".0", 2);
    text_append(out, text + mantissa, strlen(text + mantissa));
}
