#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Up to this many symbols, looking at all pairs for each merge beats a heap. */
enum { SCAN_MAX = 48 };

typedef struct Symbol {
    int32_t id;
    int32_t rank;   /* of merging with the next one; INT32_MAX: no merge */
    int32_t merged; /* and the token that makes */
    int64_t prev, next;
} Symbol;

typedef struct Candidate {
    int32_t rank;
    int32_t id; /* what it would make; stale if the pair at `at` makes something else by now */
    int64_t at;
} Candidate;

static void find_merge(const Bpe *bpe, Symbol *left, int32_t right_id)
{
    const Merge *merge = bpe_find(bpe, left->id, right_id);
    left->rank = merge ? merge->rank : INT32_MAX;
    left->merged = merge ? merge->id : -1;
}

/* One symbol a byte; bytes without a token become the unknown token, or nothing if there is none. */
static size_t first_symbols(const Bpe *bpe, const char *word, size_t n, Symbol *symbol)
{
    size_t count = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = bpe->byte_id[(unsigned char)word[i]];
        bool unk = id < 0;
        if (unk) {
            if (bpe->unk_id < 0 || (bpe->fuse_unk && after_unk)) continue;
            id = bpe->unk_id;
        }
        after_unk = unk;
        symbol[count++].id = id;
    }
    return count;
}

static size_t merge_by_scan(const Bpe *bpe, Symbol *symbol, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) find_merge(bpe, &symbol[i], symbol[i + 1].id);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (symbol[i].rank < symbol[best].rank) best = i;
        }
        if (symbol[best].rank == INT32_MAX) break;
        symbol[best].id = symbol[best].merged;
        memmove(&symbol[best + 1], &symbol[best + 2], (n - best - 2) * sizeof *symbol);
        n--;
        if (best + 1 < n) find_merge(bpe, &symbol[best], symbol[best + 1].id);
        if (best > 0) find_merge(bpe, &symbol[best - 1], symbol[best].id);
    }
    return n;
}

static bool comes_before(Candidate a, Candidate b)
{
    return a.rank < b.rank || (a.rank == b.rank && a.at < b.at);
}

static void heap_push(Candidate *heap, size_t *n, Candidate c)
{
    size_t i = (*n)++;
    for (; i > 0 && comes_before(c, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static Candidate heap_pop(Candidate *heap, size_t *n)
{
    Candidate top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && comes_before(heap[child + 1], heap[child])) child++;
        if (!comes_before(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void offer(const Bpe *bpe, BpeWork *work, size_t *n_heap, int64_t at)
{
    Symbol *s = &work->symbol[at];
    s->rank = INT32_MAX;
    if (s->next < 0) return;
    find_merge(bpe, s, work->symbol[s->next].id);
    if (s->rank < INT32_MAX) heap_push(work->heap, n_heap, (Candidate){s->rank, s->merged, at});
}

/* Long words: symbols in a linked list, candidates in a heap by rank, then place. */
static Status merge_by_heap(const Bpe *bpe, BpeWork *work, size_t *n)
{
    /* every merge takes one symbol away and adds at most two candidates */
    TRY(grow(&work->heap, &work->heap_capacity, 3 * *n, sizeof *work->heap));
    Symbol *symbol = work->symbol;
    size_t n_heap = 0;
    for (size_t i = 0; i < *n; i++) {
        symbol[i].prev = (int64_t)i - 1;
        symbol[i].next = i + 1 < *n ? (int64_t)i + 1 : -1;
    }
    for (size_t i = 0; i < *n; i++) offer(bpe, work, &n_heap, (int64_t)i);
    while (n_heap > 0) {
        Candidate top = heap_pop(work->heap, &n_heap);
        Symbol *left = &symbol[top.at];
        if (left->id < 0 || left->rank != top.rank || left->merged != top.id) continue;
        Symbol *right = &symbol[left->next];
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbol[left->next].prev = top.at;
        offer(bpe, work, &n_heap, top.at);
        if (left->prev >= 0) offer(bpe, work, &n_heap, left->prev);
    }
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        if (symbol[i].id >= 0) symbol[kept++].id = symbol[i].id;
    }
    *n = kept;
    return OK;
}

/* With ignore_merges a word that is a token is that token, whatever the merges say. */
static Status whole_word(const Tokenizer *tokenizer, const char *word, size_t n, BpeWork *work,
                         int32_t *id)
{
    TRY(grow(&work->letters.at, &work->letters.capacity, 2 * n, 1));
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t letter = byte_letter((unsigned char)word[i]);
        length += (size_t)utf8_encode(letter, work->letters.at + length);
    }
    *id = vocab_find(&tokenizer->vocab, work->letters.at, length);
    if (*id >= 0 && tokenizer->added_of_id[*id] && !tokenizer->added_of_id[*id]->in_model) *id = -1;
    return OK;
}

static Status encode_uncached(const Tokenizer *tokenizer, const char *word, size_t n, BpeWork *work,
                              TokenBuffer *out)
{
    const Bpe *bpe = &tokenizer->bpe;
    if (bpe->ignore_merges) {
        int32_t id;
        TRY(whole_word(tokenizer, word, n, work, &id));
        if (id >= 0) return token_buffer_append(out, &id, 1);
    }
    TRY(grow(&work->symbol, &work->symbol_capacity, n, sizeof *work->symbol));
    size_t count = first_symbols(bpe, word, n, work->symbol);
    if (count <= SCAN_MAX) {
        count = merge_by_scan(bpe, work->symbol, count);
    } else {
        TRY(merge_by_heap(bpe, work, &count));
    }
    for (size_t i = 0; i < count; i++) TRY(token_buffer_append(out, &work->symbol[i].id, 1));
    return OK;
}

Status bpe_encode_word(const Tokenizer *tokenizer, const char *word, size_t n, BpeWork *work,
                       TokenBuffer *out)
{
    if (n > CACHE_BYTES) return encode_uncached(tokenizer, word, n, work, out);
    if (!work->cache) {
        work->cache = calloc((size_t)1 << CACHE_BITS, sizeof *work->cache);
        if (!work->cache) return FAIL(ERR_MEMORY, "tokenizer: no memory for the word cache");
    }
    CachedWord *known = &work->cache[XXH3_64bits(word, n) >> (64 - CACHE_BITS)];
    if (known->n_bytes == n && memcmp(known->bytes, word, n) == 0) {
        return token_buffer_append(out, known->id, known->n_ids);
    }
    int64_t before = out->n;
    TRY(encode_uncached(tokenizer, word, n, work, out));
    if (out->n - before > CACHE_IDS) return OK;
    known->n_bytes = (uint8_t)n;
    known->n_ids = (uint8_t)(out->n - before);
    memcpy(known->bytes, word, n);
    for (int i = 0; i < known->n_ids; i++) known->id[i] = out->id[before + i];
    return OK;
}

void bpe_work_free(BpeWork *work)
{
    free(work->symbol);
    free(work->heap);
    free(work->letters.at);
    free(work->cache);
    *work = (BpeWork){0};
}
