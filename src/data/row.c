#include "data/row.h"

#include "io/jsonl.h"

enum { LABEL_UNTRAINED = -100 };

/** A list of integers in [low, high], or exactly `also`; NULL in *out when the key is absent or null. */
static Status read_ints(int32_t **out, int64_t *n, const json_t *line, const char *place,
                        const char *key, int64_t low, int64_t high, int64_t also, Arena *arena)
{
    const json_t *list = json_object_get(line, key);
    *out = NULL;
    *n = 0;
    if (!list || json_is_null(list)) return OK;
    if (!json_is_array(list))
        return FAIL(ERR_FORMAT, "%s: %s: not a list (found %s)", place, key, json_kind_name(list));
    size_t size = json_array_size(list);
    if (size > INT32_MAX)
        return FAIL(ERR_FORMAT, "%s: %s: too long (found %zu entries, expected at most %d)", place,
                    key, size, INT32_MAX);
    int32_t *values = NULL;
    TRY(arena_alloc(arena, &values, size + 1, sizeof *values)); /* +1: never an empty block */
    for (size_t i = 0; i < size; i++) {
        const json_t *entry = json_array_get(list, i);
        if (!json_is_integer(entry))
            return FAIL(ERR_FORMAT, "%s: %s[%zu]: not an integer (found %s)", place, key, i,
                        json_kind_name(entry));
        json_int_t value = json_integer_value(entry);
        if ((value < low || value > high) && value != also)
            return FAIL(ERR_FORMAT,
                        "%s: %s[%zu]: out of range (found %lld, expected %lld ... %lld)", place,
                        key, i, (long long)value, (long long)low, (long long)high);
        values[i] = (int32_t)value;
    }
    *out = values;
    *n = (int64_t)size;
    return OK;
}

static Status check_bounds(const int32_t *cu, int64_t n, int64_t n_tokens, const char *place)
{
    if (n < 2)
        return FAIL(ERR_FORMAT, "%s: cu_seqlens: found %lld entries, expected at least 2", place,
                    (long long)n);
    if (cu[0] != 0)
        return FAIL(ERR_FORMAT, "%s: cu_seqlens[0]: found %d, expected 0", place, cu[0]);
    for (int64_t i = 1; i < n; i++)
        if (cu[i] <= cu[i - 1])
            return FAIL(ERR_FORMAT,
                        "%s: cu_seqlens[%lld]: not above the one before (found %d after %d)", place,
                        (long long)i, cu[i], cu[i - 1]);
    if (cu[n - 1] != n_tokens)
        return FAIL(ERR_FORMAT, "%s: cu_seqlens: last entry %d, expected the %lld input_ids", place,
                    cu[n - 1], (long long)n_tokens);
    return OK;
}

Status row_parse(Row *out, const json_t *line, const char *place, int64_t vocab_size, Arena *arena)
{
    TRY(json_expect_object(line, place));
    int64_t last = vocab_size - 1, n_tokens, n_labels, n_bounds;
    int32_t *id, *label, *cu;
    TRY(read_ints(&id, &n_tokens, line, place, "input_ids", 0, last, 0, arena));
    if (!id) return FAIL(ERR_FORMAT, "%s: no input_ids", place);
    if (n_tokens == 0) return FAIL(ERR_FORMAT, "%s: input_ids: empty", place);
    TRY(read_ints(&label, &n_labels, line, place, "labels", 0, last, LABEL_UNTRAINED, arena));
    if (label && n_labels != n_tokens)
        return FAIL(ERR_FORMAT, "%s: labels: found %lld entries, expected %lld as input_ids has",
                    place, (long long)n_labels, (long long)n_tokens);
    TRY(read_ints(&cu, &n_bounds, line, place, "cu_seqlens", INT32_MIN, INT32_MAX, 0, arena));
    if (cu) {
        TRY(check_bounds(cu, n_bounds, n_tokens, place));
    } else {
        TRY(arena_alloc(arena, &cu, 2, sizeof *cu));
        cu[1] = (int32_t)n_tokens;
        n_bounds = 2;
    }
    uint8_t *trained = NULL;
    TRY(arena_alloc(arena, &trained, (size_t)n_tokens, sizeof *trained));
    bool own_labels = false;
    for (int64_t t = 0; t < n_tokens; t++) {
        trained[t] = !label || label[t] != LABEL_UNTRAINED;
        own_labels |= label && trained[t] && label[t] != id[t];
    }
    *out = (Row){.n_tokens = n_tokens,
                 .id_t = id,
                 .trained_t = trained,
                 .label_t = own_labels ? label : NULL,
                 .n_segments = (int)(n_bounds - 1),
                 .cu_seqlens = cu};
    return OK;
}

Status row_read_file(Row **out, int64_t *n_rows, const char *path, int64_t vocab_size, Arena *arena)
{
    JsonlReader reader;
    TRY(jsonl_open(&reader, path));
    Row *rows = NULL;
    int64_t n = 0, capacity = 0;
    json_t *value;
    Status st;
    while ((st = jsonl_next(&reader, &value)) == OK && value) {
        if (n == capacity) {
            int64_t more = capacity ? 2 * capacity : 16;
            Row *grown = NULL;
            if ((st = arena_alloc(arena, &grown, (size_t)more, sizeof *grown)) != OK) break;
            for (int64_t i = 0; i < n; i++) grown[i] = rows[i];
            rows = grown;
            capacity = more;
        }
        if ((st = row_parse(&rows[n], value, reader.place, vocab_size, arena)) != OK) break;
        n++;
    }
    jsonl_close(&reader);
    TRY(st);
    if (n == 0) return FAIL(ERR_FORMAT, "%s: no rows", path);
    *out = rows;
    *n_rows = n;
    return OK;
}
