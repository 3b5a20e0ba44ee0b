/* The text of model.safetensors.index.json, joined with two shards that never change. */
#include "fuzz_target.h"
#include "io/safetensors_index.h"

#include <stdlib.h>
#include <string.h>

#define SHARD_HEADER(a, b) \
    "{\"" a "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}," \
    "\"" b "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}"

/* Header length, header, two bytes of data. */
static size_t make_shard(char *bytes, const char *header)
{
    size_t n = strlen(header);
    memset(bytes, 0, 8);
    bytes[0] = (char)n;
    memcpy(bytes + 8, header, n);
    memcpy(bytes + 8 + n, "\1\2", 2);
    return 8 + n + 2;
}

static void check(const ShardIndex *index, const ShardMap *map)
{
    int unlisted = 0;
    for (int i = 0; i < index->n; i++) {
        if (shard_index_find(index, index->tensor[i].name) != &index->tensor[i]) abort();
        unlisted += index->tensor[i].unlisted;
    }
    if (unlisted != index->n_unlisted || map->n + unlisted != index->n) abort();
    for (int i = 0; i < map->n; i++) {
        const ShardTensor *tensor = shard_index_find(index, map->tensor[i]);
        if (!tensor || tensor->unlisted || strcmp(tensor->file->path, map->shard[i]) != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const name[2] = {"a", "b"};
    static const char *const header[2] = {SHARD_HEADER("w", "x"), SHARD_HEADER("y", "z")};
    char bytes[2][256];
    Arena arena;
    arena_init(&arena, "fuzz");
    ShardMap map;
    if (shard_map_parse(&map, "fuzz", (const char *)data, n, &arena) == OK) {
        SafetensorsFile *file[2];
        int n_files = 0;
        for (int i = 0; i < map.n_shards; i++)
            for (int s = 0; s < 2; s++)
                if (strcmp(map.by_name[i], name[s]) == 0) {
                    size_t size = make_shard(bytes[s], header[s]);
                    if (safetensors_open_memory(&file[n_files++], name[s], bytes[s], size,
                                                &arena) != OK)
                        abort();
                }
        ShardIndex *index;
        if (n_files == map.n_shards &&
            shard_index_join(&index, "fuzz", &map, file, n_files, &arena, NULL) == OK)
            check(index, &map);
    }
    arena_free(&arena);
    return 0;
}
