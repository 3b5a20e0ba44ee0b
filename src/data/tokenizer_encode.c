#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

Status token_buffer_append(TokenBuffer *buffer, const int32_t *id, int64_t n)
{
    if (n == 0) return OK;
    size_t capacity = (size_t)buffer->capacity;
    TRY(grow(&buffer->id, &capacity, (size_t)(buffer->n + n), sizeof *buffer->id));
    buffer->capacity = (int64_t)capacity;
    memcpy(buffer->id + buffer->n, id, (size_t)n * sizeof *id);
    buffer->n += n;
    return OK;
}

void token_buffer_free(TokenBuffer *buffer)
{
    free(buffer->id);
    *buffer = (TokenBuffer){0};
}

static Status work_take(const Tokenizer *tokenizer, TokenizerWork **out)
{
    TokenizerPool *pool = tokenizer->pool;
    pthread_mutex_lock(&pool->lock);
    TokenizerWork *work = pool->first;
    if (work) pool->first = work->next;
    pthread_mutex_unlock(&pool->lock);
    if (!work) work = calloc(1, sizeof *work);
    if (!work) return FAIL(ERR_MEMORY, "tokenizer: no memory for %zu bytes", sizeof *work);
    *out = work;
    return OK;
}

static void work_give_back(const Tokenizer *tokenizer, TokenizerWork *work)
{
    TokenizerPool *pool = tokenizer->pool;
    pthread_mutex_lock(&pool->lock);
    work->next = pool->first;
    pool->first = work;
    pthread_mutex_unlock(&pool->lock);
}

void tokenizer_work_free(TokenizerWork *work)
{
    free(work->raw_parts.at);
    free(work->normal_parts.at);
    free(work->normal[0].at);
    free(work->normal[1].at);
    free(work->normalize.point);
    pretokenize_work_free(&work->pretokenize);
    bpe_work_free(&work->bpe);
    token_buffer_free(&work->spare);
    free(work);
}

Status tokenizer_normalize(const Tokenizer *tokenizer, const char *text, size_t n,
                           TokenizerWork *work, const char **out, size_t *n_out)
{
    *out = text;
    *n_out = n;
    for (int i = 0; i < tokenizer->n_forms; i++) {
        Bytes *to = &work->normal[i % 2];
        TRY(normalize_text(tokenizer->form[i], *out, *n_out, &work->normalize, to));
        *out = to->n ? to->at : "";
        *n_out = to->n;
    }
    return OK;
}

static Status encode_plain(const Tokenizer *tokenizer, const char *text, size_t n,
                           TokenizerWork *work, TokenBuffer *out)
{
    const char *words;
    TRY(pretokenize(tokenizer, text, n, &work->pretokenize, &words));
    for (size_t i = 0; i < work->pretokenize.words.n; i++) {
        Word word = work->pretokenize.words.at[i];
        TRY(bpe_encode_word(tokenizer, words + word.start, word.n, &work->bpe, out));
    }
    return OK;
}

/* The two stages' added tokens that the flags ask for; NULL: none. */
static const AddedSet *wanted_added(const Tokenizer *tokenizer, unsigned flags)
{
    if (flags & TOKENIZE_SPECIAL) return tokenizer->all_added;
    return flags & TOKENIZE_ADDED ? tokenizer->not_special : NULL;
}

/* Text in which no token of the raw stage is left. */
static Status encode_raw_part(const Tokenizer *tokenizer, const char *text, size_t n,
                              unsigned flags, TokenizerWork *work, TokenBuffer *out)
{
    TRY(tokenizer_normalize(tokenizer, text, n, work, &text, &n));
    const AddedSet *added = wanted_added(tokenizer, flags);
    if (!added || added[1].n == 0) return encode_plain(tokenizer, text, n, work, out);
    TextParts *parts = &work->normal_parts;
    TRY(added_split(tokenizer, &added[1], text, n, &work->pretokenize.regex, parts));
    for (size_t i = 0; i < parts->n; i++) {
        TextPart part = parts->at[i];
        if (part.id >= 0) {
            TRY(token_buffer_append(out, &part.id, 1));
        } else {
            TRY(encode_plain(tokenizer, text + part.start, part.n, work, out));
        }
    }
    return OK;
}

static Status encode_text(const Tokenizer *tokenizer, const char *text, size_t n, unsigned flags,
                          TokenizerWork *work, TokenBuffer *out)
{
    const AddedSet *added = wanted_added(tokenizer, flags);
    if (!added) return encode_raw_part(tokenizer, text, n, flags, work, out);
    TextParts *parts = &work->raw_parts;
    TRY(added_split(tokenizer, &added[0], text, n, &work->pretokenize.regex, parts));
    for (size_t i = 0; i < parts->n; i++) {
        TextPart part = parts->at[i];
        if (part.id >= 0) {
            TRY(token_buffer_append(out, &part.id, 1));
        } else {
            TRY(encode_raw_part(tokenizer, text + part.start, part.n, flags, work, out));
        }
    }
    return OK;
}

static Status apply_templates(const Tokenizer *tokenizer, int64_t from, TokenBuffer *spare,
                              TokenBuffer *out)
{
    for (int i = 0; i < tokenizer->n_templates; i++) {
        const Template *template = &tokenizer->template[i];
        spare->n = 0;
        if (out->n > from) TRY(token_buffer_append(spare, out->id + from, out->n - from));
        out->n = from;
        for (int j = 0; j < template->n; j++) {
            const TemplateItem *item = &template->item[j];
            TRY(token_buffer_append(out, item->is_text ? spare->id : item->id,
                                    item->is_text ? spare->n : item->n));
        }
    }
    return OK;
}

Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t n, unsigned flags,
                        TokenBuffer *out)
{
    size_t valid = utf8_check(text, n);
    if (valid < n) {
        return FAIL(ERR_FORMAT, "text is not UTF-8 at byte %zu (found 0x%02X)", valid,
                    (unsigned)(unsigned char)text[valid]);
    }
    TokenizerWork *work = NULL;
    TRY(work_take(tokenizer, &work));
    int64_t from = out->n;
    Status status = encode_text(tokenizer, text, n, flags, work, out);
    if (status == OK && (flags & TOKENIZE_TEMPLATE)) {
        status = apply_templates(tokenizer, from, &work->spare, out);
    }
    if (status != OK) out->n = from;
    work_give_back(tokenizer, work);
    return status;
}
