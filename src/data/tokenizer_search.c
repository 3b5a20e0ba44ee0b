#include "data/tokenizer_parts.h"

Status regex_work_init(RegexWork *work)
{
    if (work->data) return OK;
    work->data = pcre2_match_data_create(1, NULL);
    work->context = pcre2_match_context_create(NULL);
    work->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)8 << 20, NULL);
    if (!work->data || !work->context || !work->stack) {
        regex_work_free(work);
        return FAIL(ERR_MEMORY, "tokenizer: no memory for matching");
    }
    pcre2_jit_stack_assign(work->context, NULL, work->stack);
    pcre2_set_heap_limit(work->context, 256 << 10); /* KiB */
    return OK;
}

void regex_work_free(RegexWork *work)
{
    pcre2_match_data_free(work->data);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    *work = (RegexWork){0};
}

Status regex_search(const pcre2_code *code, const char *text, size_t n, size_t from,
                    RegexWork *work, bool *found, size_t *start, size_t *end)
{
    /* Backtracking over a run of characters costs steps in proportion to it; more than a few times
       that is a pattern that explodes. */
    size_t limit = 1000000 + 64 * n;
    pcre2_set_match_limit(work->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    int rc =
        pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, work->data, work->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         work->data, work->context);
    }
    *found = rc >= 0;
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR message[160] = "";
        pcre2_get_error_message(rc, message, sizeof message);
        return FAIL(ERR_FORMAT,
                    "pre_tokenizer: a pattern cannot be matched on %zu bytes of text: %s", n,
                    (char *)message);
    }
    if (rc >= 0) {
        const PCRE2_SIZE *offset = pcre2_get_ovector_pointer(work->data);
        *start = offset[0];
        *end = offset[1];
    }
    return OK;
}
