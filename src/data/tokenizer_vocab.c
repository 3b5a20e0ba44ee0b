#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint32_t table_mask(int64_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size - 1;
}

static uint32_t hash_of(const char *text, size_t n)
{
    return (uint32_t)XXH3_64bits(text, n);
}

int32_t vocab_find(const Vocab *vocab, const char *token, size_t n)
{
    if (!vocab->slot) return -1;
    for (uint32_t i = hash_of(token, n) & vocab->mask;; i = (i + 1) & vocab->mask) {
        if (vocab->slot[i] == 0) return -1;
        const char *known = vocab->token[vocab->slot[i] - 1];
        if (strncmp(known, token, n) == 0 && known[n] == '\0') return vocab->slot[i] - 1;
    }
}

Status vocab_add(Vocab *vocab, const char *token, int32_t id, const char *place)
{
    if (vocab->token[id]) {
        return FAIL(ERR_FORMAT, "%s: \"%s\" and \"%s\" have the same id %d", place,
                    vocab->token[id], token, id);
    }
    uint32_t i = hash_of(token, strlen(token)) & vocab->mask;
    while (vocab->slot[i] != 0) i = (i + 1) & vocab->mask;
    vocab->slot[i] = id + 1;
    vocab->token[id] = token;
    vocab->n_tokens++;
    if (id >= vocab->n_ids) vocab->n_ids = id + 1;
    return OK;
}

Status vocab_load(Vocab *vocab, json_t *object, int64_t n_more, const char *place, Arena *arena)
{
    const char *key;
    json_t *value;
    size_t bytes = 0;
    int64_t highest = -1;
    json_object_foreach(object, key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= TOKEN_ID_LIMIT) {
            return FAIL(ERR_FORMAT, "%s.vocab: \"%s\" has no id (expected 0 to %d)", place, key,
                        TOKEN_ID_LIMIT - 1);
        }
        if (json_integer_value(value) > highest) highest = json_integer_value(value);
        bytes += strlen(key) + 1;
    }
    int64_t n = (int64_t)json_object_size(object) + n_more;
    vocab->capacity = (int32_t)(highest + 1 > n ? highest + 1 : n) + (int32_t)n_more;
    vocab->mask = table_mask(n);
    TRY(arena_alloc(arena, &vocab->token, (size_t)vocab->capacity + 1, sizeof *vocab->token));
    TRY(arena_alloc(arena, &vocab->slot, (size_t)vocab->mask + 1, sizeof *vocab->slot));
    char *text;
    TRY(arena_alloc(arena, &text, bytes + 1, 1));
    json_object_foreach(object, key, value)
    {
        size_t length = strlen(key) + 1;
        memcpy(text, key, length);
        TRY(vocab_add(vocab, text, (int32_t)json_integer_value(value), place));
        text += length;
    }
    return OK;
}

static uint32_t pair_hash(uint64_t pair)
{
    return (uint32_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

const Merge *bpe_find(const Bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    for (uint32_t i = pair_hash(pair) & bpe->merge_mask;; i = (i + 1) & bpe->merge_mask) {
        const Merge *m = &bpe->merge[i];
        if (m->rank < 0) return NULL;
        if (m->pair == pair) return m;
    }
}

/* The two halves of a merge, in either of the file's forms: "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char *half[2], size_t n[2])
{
    if (json_is_array(merge)) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(merge, i));
            if (!half[i]) return false;
            n[i] = strlen(half[i]);
        }
        return json_array_size(merge) == 2;
    }
    const char *text = json_string_value(merge);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return false;
    half[0] = text;
    n[0] = (size_t)(space - text);
    half[1] = space + 1;
    n[1] = strlen(space + 1);
    return true;
}

static Status merges_load(Bpe *bpe, const Vocab *vocab, const json_t *merges, const char *place,
                          Arena *arena)
{
    size_t count = json_array_size(merges);
    if (count > INT32_MAX / 4) return FAIL(ERR_FORMAT, "%s.merges: too many", place);
    bpe->merge_mask = table_mask((int64_t)count);
    TRY(arena_alloc(arena, &bpe->merge, (size_t)bpe->merge_mask + 1, sizeof *bpe->merge));
    for (uint32_t i = 0; i <= bpe->merge_mask; i++) bpe->merge[i].rank = -1;
    Bytes joined = {0};
    Status status = OK;
    int32_t rank = 0;
    for (size_t i = 0; i < count && status == OK; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *text = json_string_value(merge);
        if (text && strncmp(text, "#version", 8) == 0) continue; /* a merges.txt's first line */
        const char *half[2];
        size_t n[2];
        if (!merge_halves(merge, half, n)) {
            status = FAIL(ERR_FORMAT, "%s.merges[%zu] is not a pair of tokens", place, i);
            break;
        }
        joined.n = 0;
        if ((status = bytes_append(&joined, half[0], n[0])) != OK) break;
        if ((status = bytes_append(&joined, half[1], n[1])) != OK) break;
        int32_t left = vocab_find(vocab, half[0], n[0]), right = vocab_find(vocab, half[1], n[1]);
        int32_t id = vocab_find(vocab, joined.n ? joined.at : "", joined.n);
        if (left < 0 || right < 0 || id < 0) {
            status = FAIL(ERR_FORMAT, "%s.merges[%zu]: \"%.*s\" is not in the vocabulary", place, i,
                          (int)(left < 0    ? n[0]
                                : right < 0 ? n[1]
                                            : joined.n),
                          left < 0    ? half[0]
                          : right < 0 ? half[1]
                                      : joined.at);
            break;
        }
        uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
        uint32_t slot = pair_hash(pair) & bpe->merge_mask;
        while (bpe->merge[slot].rank >= 0 && bpe->merge[slot].pair != pair) {
            slot = (slot + 1) & bpe->merge_mask;
        }
        bpe->merge[slot] = (Merge){pair, rank++, id}; /* the last of equal ones counts */
    }
    free(joined.at);
    return status;
}

Status bpe_load(Bpe *bpe, const Vocab *vocab, const json_t *model, const char *place, Arena *arena)
{
    for (int byte = 0; byte < 256; byte++) {
        char letter[4];
        int n = utf8_encode(byte_letter(byte), letter);
        bpe->byte_id[byte] = vocab_find(vocab, letter, (size_t)n);
    }
    bpe->unk_id = -1;
    const char *unk;
    TRY(json_get_string_or(model, place, "unk_token", NULL, &unk));
    if (unk) {
        bpe->unk_id = vocab_find(vocab, unk, strlen(unk));
        if (bpe->unk_id < 0) {
            return FAIL(ERR_FORMAT, "%s.unk_token: \"%s\" is not in the vocabulary", place, unk);
        }
    }
    TRY(json_get_bool_or(model, place, "fuse_unk", false, &bpe->fuse_unk));
    TRY(json_get_bool_or(model, place, "ignore_merges", false, &bpe->ignore_merges));
    json_t *merges;
    TRY(json_get_array(model, place, "merges", &merges));
    return merges_load(bpe, vocab, merges, place, arena);
}
