#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* A match, or what lies between two. */
typedef struct SplitRun {
    size_t start, end;
    bool match;
} SplitRun;

static Status add_run(PretokenizeWork *work, size_t *n, size_t start, size_t end, bool match)
{
    TRY(grow(&work->run, &work->run_capacity, *n + 1, sizeof *work->run));
    work->run[(*n)++] = (SplitRun){start, end, match};
    return OK;
}

/* All matches of a step in one word, and the gaps between. */
static Status find_runs(const PreStep *step, const char *text, size_t n, PretokenizeWork *work,
                        size_t *n_runs)
{
    size_t from = 0, done = 0;
    bool first = true;
    *n_runs = 0;
    while (from <= n) {
        bool found;
        size_t start, end;
        TRY(regex_search(step->code, text, n, from, &work->regex, &found, &start, &end));
        if (!found) break;
        if (start == end && end == done && !first) { /* empty, right after a match: no match */
            int length = 1;
            if (from < n) utf8_decode(text + from, &length);
            from += (size_t)length;
            continue;
        }
        first = false;
        from = end;
        if (done != start) TRY(add_run(work, n_runs, done, start, step->invert));
        TRY(add_run(work, n_runs, start, end, !step->invert));
        done = end;
    }
    if (done != n) TRY(add_run(work, n_runs, done, n, step->invert));
    return OK;
}

static Status add_word(Words *words, size_t start, size_t end)
{
    if (start == end) return OK;
    TRY(grow(&words->at, &words->capacity, words->n + 1, sizeof *words->at));
    words->at[words->n++] = (Word){start, end - start};
    return OK;
}

/* Does the run at i belong to the one before it? */
static bool joins_previous(SplitBehavior behavior, const SplitRun *run, size_t i)
{
    switch (behavior) {
    case SPLIT_CONTIGUOUS: return run[i].match == run[i - 1].match;
    case SPLIT_MERGED_WITH_PREVIOUS: return run[i].match && !run[i - 1].match;
    case SPLIT_MERGED_WITH_NEXT: /* a match goes to what follows, unless that is a match too */
        return run[i - 1].match && !run[i].match;
    default: return false;
    }
}

static Status split_word(const PreStep *step, const char *shadow, Word word, PretokenizeWork *work)
{
    size_t n;
    TRY(find_runs(step, shadow + word.start, word.n, work, &n));
    for (size_t i = 0; i < n;) {
        size_t first = i++;
        while (i < n && joins_previous(step->behavior, work->run, i)) i++;
        if (step->behavior == SPLIT_REMOVED && work->run[first].match) continue;
        TRY(add_word(&work->next, word.start + work->run[first].start,
                     word.start + work->run[i - 1].end));
    }
    return OK;
}

/* ByteLevel's add_prefix_space: every word gets one. The text is written anew into `to`. */
static Status prefix_spaces(const char *text, PretokenizeWork *work, Bytes *to)
{
    to->n = 0;
    for (size_t i = 0; i < work->words.n; i++) {
        Word word = work->words.at[i];
        size_t start = to->n;
        if (text[word.start] != ' ') TRY(bytes_append(to, " ", 1));
        TRY(bytes_append(to, text + word.start, word.n));
        TRY(add_word(&work->next, start, to->n));
    }
    return OK;
}

/* The text as patterns are to see it; the text itself if that is the same. */
static Status make_shadow(const char *text, size_t n, Bytes *shadow, const char **out)
{
    *out = text;
    for (size_t i = 0; i < n;) {
        if ((unsigned char)text[i] < 0xE0) { /* no stand-in is shorter than three bytes */
            i++;
            continue;
        }
        int length;
        int32_t point = utf8_decode(text + i, &length);
        int32_t shown = pattern_stand_in(point);
        if (shown != point) {
            if (*out == text) {
                shadow->n = 0;
                TRY(bytes_append(shadow, text, n));
                *out = shadow->at;
            }
            utf8_encode(shown, shadow->at + i);
        }
        i += (size_t)length;
    }
    return OK;
}

Status pretokenize(const Tokenizer *tokenizer, const char *text, size_t n, PretokenizeWork *work,
                   const char **out_text)
{
    const char *shadow;
    TRY(regex_work_init(&work->regex));
    TRY(make_shadow(text, n, &work->shadow, &shadow));
    work->words.n = 0;
    TRY(add_word(&work->words, 0, n));
    for (int i = 0; i < tokenizer->n_steps; i++) {
        const PreStep *step = &tokenizer->step[i];
        work->next.n = 0;
        if (step->code) {
            for (size_t w = 0; w < work->words.n; w++) {
                TRY(split_word(step, shadow, work->words.at[w], work));
            }
        } else {
            TRY(prefix_spaces(text, work, &work->text));
            text = work->text.at;
            TRY(make_shadow(text, work->text.n, &work->shadow, &shadow));
        }
        Words words = work->words;
        work->words = work->next;
        work->next = words;
    }
    *out_text = text;
    return OK;
}

void pretokenize_work_free(PretokenizeWork *work)
{
    regex_work_free(&work->regex);
    free(work->text.at);
    free(work->shadow.at);
    free(work->words.at);
    free(work->next.at);
    free(work->run);
    *work = (PretokenizeWork){0};
}
