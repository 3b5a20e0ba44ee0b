#include "data/tokenizer_parts.h"

#include <string.h>
#include <utf8proc.h>

static const struct {
    utf8proc_option_t option;
    int32_t
        unchanged_below; /* code points under it are in this form and join nothing before them */
} forms[FORM_COUNT] = {
    [FORM_NFC] = {UTF8PROC_STABLE | UTF8PROC_COMPOSE, 0x300},
    [FORM_NFD] = {UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, 0x80},
    [FORM_NFKC] = {UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE, 0x80},
    [FORM_NFKD] = {UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE, 0x80},
};

/* Common scripts whose characters are already in NFC whatever stands beside them. */
static bool is_plain_nfc(int32_t c)
{
    return (c >= 0x400 && c <= 0x482) || (c >= 0x3400 && c <= 0x9FFF) ||
           (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
           (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x2010 && c <= 0x2027) ||
           (c >= 0x3001 && c <= 0x3020) || (c >= 0xFF01 && c <= 0xFF5E) ||
           (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x2190 && c <= 0x21FF);
}

static bool is_unchanged(NormalForm form, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        int length;
        int32_t c = utf8_decode(text + i, &length);
        if (c >= forms[form].unchanged_below && !(form == FORM_NFC && is_plain_nfc(c))) {
            return false;
        }
        i += (size_t)length;
    }
    return true;
}

static int combining_class(int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Sort each run of marks by class, keeping equals in order (canonical ordering). Counting sort: runs
   can be as long as the text. */
static Status order_marks(NormalizeWork *work, size_t n)
{
    int32_t *point = work->point;
    for (size_t i = 0; i < n;) {
        if (combining_class(point[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        bool sorted = true;
        for (; end < n && combining_class(point[end]) != 0; end++) {
            if (combining_class(point[end]) < combining_class(point[end - 1])) sorted = false;
        }
        if (!sorted) {
            size_t first[257] = {0};
            for (size_t j = i; j < end; j++) first[combining_class(point[j]) + 1]++;
            for (int c = 0; c < 256; c++) first[c + 1] += first[c];
            TRY(grow(&work->point, &work->capacity, n + (end - i), sizeof *work->point));
            point = work->point;
            memcpy(point + n, point + i, (end - i) * sizeof *point);
            for (size_t j = n; j < n + (end - i); j++) {
                point[i + first[combining_class(point[j])]++] = point[j];
            }
        }
        i = end;
    }
    return OK;
}

/* Text without inert characters. */
static Status normalize_part(NormalForm form, const char *text, size_t n, NormalizeWork *work,
                             Bytes *out)
{
    utf8proc_option_t option = forms[form].option;
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        int length, bound = 0;
        int32_t c = utf8_decode(text + i, &length);
        utf8proc_int32_t piece[32]; /* the longest decomposition has 18 */
        utf8proc_ssize_t pieces = utf8proc_decompose_char(c, piece, 32, option, &bound);
        if (pieces < 0 || pieces > 32) {
            return FAIL(ERR_FORMAT, "normalizer: U+%04X cannot be decomposed", (unsigned)c);
        }
        TRY(grow(&work->point, &work->capacity, count + (size_t)pieces, sizeof *work->point));
        memcpy(work->point + count, piece, (size_t)pieces * sizeof *piece);
        count += (size_t)pieces;
        i += (size_t)length;
    }
    TRY(order_marks(work, count));
    if (count > 0 && (option & UTF8PROC_COMPOSE)) {
        count = (size_t)utf8proc_normalize_utf32(work->point, (utf8proc_ssize_t)count, option);
    }
    TRY(grow(&out->at, &out->capacity, out->n + 4 * count, 1));
    for (size_t i = 0; i < count; i++) {
        out->n += (size_t)utf8_encode(work->point[i], out->at + out->n);
    }
    return OK;
}

Status normalize_text(NormalForm form, const char *text, size_t n, NormalizeWork *work, Bytes *out)
{
    out->n = 0;
    if (is_unchanged(form, text, n)) return bytes_append(out, text, n);
    size_t start = 0;
    for (size_t i = 0; i < n;) {
        int length;
        int32_t c = utf8_decode(text + i, &length);
        if (normalize_is_inert(c)) {
            TRY(normalize_part(form, text + start, i - start, work, out));
            TRY(bytes_append(out, text + i, (size_t)length));
            start = i + (size_t)length;
        }
        i += (size_t)length;
    }
    return normalize_part(form, text + start, n - start, work, out);
}
