#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

static int compare_patterns(const void *a, const void *b)
{
    const AddedToken *x = *(const AddedToken *const *)a, *y = *(const AddedToken *const *)b;
    return strcmp(x->pattern, y->pattern);
}

void added_set_sort(AddedSet *set)
{
    if (set->n > 0) qsort(set->at, (size_t)set->n, sizeof *set->at, compare_patterns);
    for (int i = 0; i < set->n; i++) set->starts[(unsigned char)set->at[i]->pattern[0]] = true;
}

/* The longest pattern that text starts with. Patterns are sorted, so those that share the bytes read
   so far are a run [low, high), and the one that ends there is its first. */
static const AddedToken *longest_at(const AddedSet *set, const char *text, size_t n)
{
    if (!set->starts[(unsigned char)text[0]]) return NULL;
    const AddedToken *found = NULL;
    int low = 0, high = set->n;
    for (size_t i = 0;; i++) {
        if (set->at[low]->n_pattern == i) {
            found = set->at[low];
            if (++low == high) return found;
        }
        if (i == n) return found;
        unsigned char c = (unsigned char)text[i];
        int a = low, b = high;
        while (a < b) { /* first whose byte is c or more */
            int middle = (a + b) / 2;
            if ((unsigned char)set->at[middle]->pattern[i] < c) {
                a = middle + 1;
            } else {
                b = middle;
            }
        }
        low = a;
        b = high;
        while (a < b) { /* first whose byte is more than c */
            int middle = (a + b) / 2;
            if ((unsigned char)set->at[middle]->pattern[i] <= c) {
                a = middle + 1;
            } else {
                b = middle;
            }
        }
        high = a;
        if (low == high) return found;
    }
}

static size_t char_before(const char *text, size_t end)
{
    do end--;
    while (((unsigned char)text[end] & 0xC0) == 0x80);
    return end;
}

static Status is_word_letter(const Tokenizer *tokenizer, const char *text, RegexWork *work,
                             bool *yes)
{
    int length;
    char shown[4];
    size_t start, end;
    length = utf8_encode(pattern_stand_in(utf8_decode(text, &length)), shown);
    TRY(regex_work_init(work));
    return regex_search(tokenizer->word_letter, shown, (size_t)length, 0, work, yes, &start, &end);
}

static Status stands_alone(const Tokenizer *tokenizer, const char *text, size_t n, size_t start,
                           size_t end, RegexWork *work, bool *alone)
{
    bool before = false, after = false;
    if (start > 0) {
        TRY(is_word_letter(tokenizer, text + char_before(text, start), work, &before));
    }
    if (end < n) TRY(is_word_letter(tokenizer, text + end, work, &after));
    *alone = !before && !after;
    return OK;
}

static size_t spaces_start(const char *text, size_t end)
{
    while (end > 0) {
        int length;
        size_t start = char_before(text, end);
        if (!unicode_is_space(utf8_decode(text + start, &length))) break;
        end = start;
    }
    return end;
}

static size_t spaces_end(const char *text, size_t n, size_t start)
{
    while (start < n) {
        int length;
        if (!unicode_is_space(utf8_decode(text + start, &length))) break;
        start += (size_t)length;
    }
    return start;
}

static Status add_part(TextParts *parts, size_t start, size_t end, int32_t id)
{
    TRY(grow(&parts->at, &parts->capacity, parts->n + 1, sizeof *parts->at));
    parts->at[parts->n++] = (TextPart){start, end - start, id};
    return OK;
}

Status added_split(const Tokenizer *tokenizer, const AddedSet *set, const char *text, size_t n,
                   RegexWork *work, TextParts *parts)
{
    parts->n = 0;
    size_t done = 0;
    for (size_t i = 0; i < n && set->n > 0;) {
        const AddedToken *token = longest_at(set, text + i, n - i);
        if (!token) {
            i++;
            continue;
        }
        size_t start = i, end = i + token->n_pattern;
        i = end; /* the search goes on here even if the token is not taken, or takes spaces too */
        if (token->single_word) {
            bool alone;
            TRY(stands_alone(tokenizer, text, n, start, end, work, &alone));
            if (!alone) continue;
        }
        if (token->lstrip) {
            start = spaces_start(text, start);
            if (start < done) start = done;
        }
        if (token->rstrip) end = spaces_end(text, n, end);
        if (done < start) TRY(add_part(parts, done, start, -1));
        TRY(add_part(parts, start, end, token->id));
        done = end;
    }
    if (done != n) TRY(add_part(parts, done, n, -1));
    return OK;
}
