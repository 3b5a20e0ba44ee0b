#include "data/token_cache.h"

#include "base/text.h"
#include "io/file.h"

#include <stdlib.h>
#include <string.h>

/* Raise when the bytes of the file, or the ids of the same text, come out differently. */
enum { TOKEN_CACHE_VERSION = 1 };
static const char magic[8] = {'S', 'W', 'T', 'O', 'K', 'E', 'N', 'S'};

/* The file: this header, then the arrays of TokenStore, wide ones first so that all are aligned when mapped. */
typedef struct Header {
    char magic[8];
    uint32_t version, has_labels;
    char key[HASH_HEX_BYTES + 7]; /* padded to keep what follows aligned */
    uint64_t checksum;            /* of this header with 0 here, and of all that follows it */
    TokenCounts counts;
    int64_t n_items, n_tokens, n_bounds;
} Header;

typedef struct Part {
    void **array;
    size_t bytes;
} Part;
enum { N_PARTS = 7 };

/** The arrays in the order of the file; sizes in bytes. */
static void list_parts(Part part[N_PARTS], TokenStore *s, bool has_labels)
{
    size_t items = (size_t)s->n_items, tokens = (size_t)s->n_tokens, bounds = (size_t)s->n_bounds;
    // clang-format off
    const Part all[N_PARTS] = {
        {(void **)&s->start,    (items + 1) * sizeof *s->start},
        {(void **)&s->cu_start, (items + 1) * sizeof *s->cu_start},
        {(void **)&s->cu,       bounds * sizeof *s->cu},
        {(void **)&s->id,       tokens * sizeof *s->id},
        {(void **)&s->label,    has_labels ? tokens * sizeof *s->label : 0},
        {(void **)&s->trained,  tokens * sizeof *s->trained},
        {(void **)&s->fixed,    items * sizeof *s->fixed},
    };
    // clang-format on
    memcpy(part, all, sizeof all);
}

static uint64_t checksum(const Header *header, const void *payload, size_t bytes)
{
    Header blank = *header;
    blank.checksum = 0;
    uint64_t both[2] = {hash_bytes(&blank, sizeof blank), hash_bytes(payload, bytes)};
    return hash_bytes(both, sizeof both);
}

Status token_cache_find(TokenCacheFile *out, const char *cache_dir, const char *data_path,
                        const char *options, Arena *arena)
{
    char data_hash[HASH_HEX_BYTES];
    TRY(hash_file(data_hash, data_path));
    char *text = text_format(arena, "cache %d of %s\n%s\n%s", TOKEN_CACHE_VERSION, SW_VERSION,
                             data_hash, options);
    hash_hex(out->key, text, strlen(text));
    const char *slash = strrchr(data_path, '/'), *name = slash ? slash + 1 : data_path;
    out->path = path_join(arena, cache_dir, text_format(arena, "%.100s-%s.tokens", name, out->key));
    return OK;
}

/** What is wrong inside, NULL: nothing. Only a foreign hand can get here: the checksum was right. */
static const char *structure_fault(const TokenStore *s, int64_t vocab_size)
{
    if (s->start[0] != 0 || s->cu_start[0] != 0) return "first offset";
    for (int64_t i = 0; i < s->n_items; i++) {
        int64_t n = s->start[i + 1] - s->start[i], n_cu = s->cu_start[i + 1] - s->cu_start[i];
        if (n < 1 || s->start[i + 1] > s->n_tokens) return "offsets of tokens";
        if (n_cu < 2 || s->cu_start[i + 1] > s->n_bounds) return "offsets of segments";
        const int32_t *cu = s->cu + s->cu_start[i];
        if (cu[0] != 0 || cu[n_cu - 1] != n) return "segments";
        for (int64_t c = 1; c < n_cu; c++)
            if (cu[c] <= cu[c - 1]) return "segments";
        if (s->fixed[i] > 1) return "kinds of items";
    }
    if (s->start[s->n_items] != s->n_tokens || s->cu_start[s->n_items] != s->n_bounds)
        return "last offset";
    for (int64_t t = 0; t < s->n_tokens; t++) {
        if (s->id[t] < 0 || s->id[t] >= vocab_size) return "ids";
        if (s->trained[t] > 1) return "mask";
        if (s->label && s->label[t] != -100 && (s->label[t] < 0 || s->label[t] >= vocab_size))
            return "labels";
    }
    return NULL;
}

/** Point a store into the mapped file; what is wrong with it, or NULL. */
static const char *map_store(TokenStore *view, Header *header, const MappedFile *map,
                             const char *key, int64_t vocab_size)
{
    if (map->bytes < sizeof *header) return "too short";
    memcpy(header, map->data, sizeof *header);
    if (memcmp(header->magic, magic, sizeof magic) != 0) return "not a token cache";
    if (header->version != TOKEN_CACHE_VERSION) return "another version";
    if (memcmp(header->key, key, HASH_HEX_BYTES) != 0) return "another key";
    int64_t most =
        (int64_t)map->bytes; /* every count costs at least a byte: no product can overflow */
    if (header->n_items < 0 || header->n_items > most || header->n_tokens < 0 ||
        header->n_tokens > most || header->n_bounds < 0 || header->n_bounds > most)
        return "counts";
    token_store_init(view);
    view->n_items = header->n_items;
    view->n_tokens = header->n_tokens;
    view->n_bounds = header->n_bounds;
    Part part[N_PARTS];
    list_parts(part, view, header->has_labels != 0);
    size_t at = sizeof *header;
    for (int i = 0; i < N_PARTS; i++) {
        if (part[i].bytes > map->bytes - at) return "too short";
        /* The view is only read; TokenStore has no const twin. */
        void *start = (void *)(uintptr_t)(map->data + at);
        if (part[i].bytes > 0) memcpy(part[i].array, &start, sizeof start);
        at += part[i].bytes;
    }
    if (at != map->bytes) return "too long";
    if (checksum(header, map->data + sizeof *header, map->bytes - sizeof *header) !=
        header->checksum)
        return "checksum";
    return structure_fault(view, vocab_size);
}

Status token_cache_read(TokenStore *store, TokenCounts *counts, bool *found,
                        const TokenCacheFile *file, int64_t vocab_size, Log *log)
{
    *found = false;
    if (!file_exists(file->path)) return OK;
    MappedFile map;
    if (file_map(&map, file->path) != OK) {
        log_warning(log, "%s: made again", status_message());
        return OK;
    }
    TokenStore view;
    Header header;
    const char *fault = map_store(&view, &header, &map, file->key, vocab_size);
    Status st = OK;
    if (fault)
        log_warning(log, "%s: damaged token cache (%s), made again", file->path, fault);
    else
        st = token_store_append(store, &view);
    file_unmap(&map);
    TRY(st);
    *found = !fault;
    if (*found) *counts = header.counts;
    return OK;
}

Status token_cache_write(const TokenStore *store, const TokenCounts *counts,
                         const TokenCacheFile *file)
{
    TokenStore view = *store;
    int64_t zero = 0;
    if (!view.start) view.start = view.cu_start = &zero; /* an empty store has no arrays yet */
    Part part[N_PARTS];
    list_parts(part, &view, store->label != NULL);
    size_t bytes = sizeof(Header);
    for (int i = 0; i < N_PARTS; i++) bytes += part[i].bytes;
    char *buffer = malloc(bytes);
    if (!buffer) return FAIL(ERR_MEMORY, "%s: out of memory (%zu bytes)", file->path, bytes);
    Header header = {.version = TOKEN_CACHE_VERSION,
                     .has_labels = store->label != NULL,
                     .counts = *counts,
                     .n_items = store->n_items,
                     .n_tokens = store->n_tokens,
                     .n_bounds = store->n_bounds};
    memcpy(header.magic, magic, sizeof magic);
    memcpy(header.key, file->key, HASH_HEX_BYTES);
    size_t at = sizeof header;
    for (int i = 0; i < N_PARTS; i++) {
        void *array;
        memcpy(&array, part[i].array, sizeof array);
        if (part[i].bytes > 0) memcpy(buffer + at, array, part[i].bytes);
        at += part[i].bytes;
    }
    header.checksum = checksum(&header, buffer + sizeof header, bytes - sizeof header);
    memcpy(buffer, &header, sizeof header);
    char *slash = strrchr(file->path, '/');
    Status st = OK;
    if (slash && slash != file->path) {
        *slash = '\0';
        st = dir_create(file->path);
        *slash = '/';
    }
    if (st == OK) st = file_write_atomic(file->path, buffer, bytes);
    free(buffer);
    return st;
}
