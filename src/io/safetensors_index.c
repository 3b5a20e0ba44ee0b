#include "io/safetensors_index.h"
#include "io/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ---------------------------------------------------------------- the index file */

bool shard_name_is_plain(const char *name)
{
    return name[0] != '.' && !strchr(name, '/') && text_matches("*.safetensors", name);
}

/* Shards lie beside the index: nothing that could lead elsewhere is followed. */
static Status check_shard_name(const char *path, const char *tensor, const char *shard)
{
    if (shard_name_is_plain(shard)) return OK;
    return FAIL(ERR_FORMAT,
                "%s: tensor %s: shard %s: expected the name of a *.safetensors file in the same "
                "folder, not a hidden one",
                path, tensor, shard);
}

typedef struct MapEntry {
    const char *tensor, *shard;
} MapEntry;

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const MapEntry *)a)->tensor, ((const MapEntry *)b)->tensor);
}

static Status read_weight_map(ShardMap *map, const json_t *root, Arena *arena)
{
    json_t *weight_map;
    TRY(json_get_object(root, map->path, "weight_map", &weight_map));
    size_t n = json_object_size(weight_map);
    if (n == 0) return FAIL(ERR_FORMAT, "%s: key weight_map: no tensors", map->path);
    MapEntry *entry = NULL;
    TRY(arena_alloc(arena, &entry, n, sizeof *entry));
    TRY(arena_alloc(arena, &map->tensor, n, sizeof *map->tensor));
    TRY(arena_alloc(arena, &map->shard, n, sizeof *map->shard));
    TRY(arena_alloc(arena, &map->by_name, n, sizeof *map->by_name));
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value)
    {
        if (!json_is_string(value))
            return FAIL(ERR_FORMAT, "%s: tensor %s: expected the name of a shard (found %s)",
                        map->path, tensor, json_kind_name(value));
        TRY(check_shard_name(map->path, tensor, json_string_value(value)));
        entry[map->n++] = (MapEntry){.tensor = text_copy(arena, tensor),
                                     .shard = text_copy(arena, json_string_value(value))};
    }
    qsort(entry, n, sizeof *entry, compare_entries);
    for (size_t i = 0; i < n; i++) {
        map->tensor[i] = entry[i].tensor;
        map->shard[i] = map->by_name[i] = entry[i].shard;
    }
    qsort(map->by_name, n, sizeof *map->by_name, compare_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(map->by_name[i], map->by_name[i - 1]) != 0)
            map->by_name[map->n_shards++] = map->by_name[i];
    return OK;
}

Status shard_map_parse(ShardMap *out, const char *path, const char *text, size_t n, Arena *arena)
{
    ShardMap map = {.path = text_copy(arena, path)};
    JsonDoc doc;
    TRY(json_doc_parse(&doc, path, text, n));
    json_t *metadata = NULL;
    Status st = json_expect_object(doc.root, path);
    if (st == OK) st = read_weight_map(&map, doc.root, arena);
    if (st == OK) st = json_get_object_or_null(doc.root, path, "metadata", &metadata);
    if (st == OK && metadata && json_object_get(metadata, "total_size")) {
        map.has_total_size = true;
        st = json_get_real(metadata, path, "total_size", &map.total_size);
    }
    json_doc_free(&doc);
    if (st == OK) *out = map;
    return st;
}

/* ---------------------------------------------------------------- joining */

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const ShardTensor *)a)->name, ((const ShardTensor *)b)->name);
}

/* All tensors of all files, by name. */
static Status collect(ShardIndex *index, Arena *arena)
{
    size_t n = 0;
    for (int f = 0; f < index->n_files; f++) n += (size_t)index->file[f]->n;
    if (n > INT32_MAX) return FAIL(ERR_FORMAT, "%s: too many tensors (%zu)", index->path, n);
    TRY(arena_alloc(arena, &index->tensor, n, sizeof *index->tensor));
    for (int f = 0; f < index->n_files; f++) {
        const SafetensorsFile *file = index->file[f];
        for (int i = 0; i < file->n; i++) {
            index->tensor[index->n++] = (ShardTensor){.name = file->entry[i].name,
                                                      .file = file,
                                                      .entry = &file->entry[i],
                                                      .unlisted = true};
            index->total_size += (int64_t)file->entry[i].bytes;
        }
    }
    if (n) qsort(index->tensor, n, sizeof *index->tensor, compare_tensors);
    for (int i = 1; i < index->n; i++)
        if (strcmp(index->tensor[i].name, index->tensor[i - 1].name) == 0)
            return FAIL(ERR_FORMAT, "%s: tensor %s: also in %s", index->tensor[i].file->path,
                        index->tensor[i].name, index->tensor[i - 1].file->path);
    return OK;
}

/* Every entry of the map must be in the very shard it names. */
static Status check_map(ShardIndex *index, const ShardMap *map, Log *log)
{
    int64_t listed_size = 0;
    for (int i = 0; i < map->n; i++) {
        const char *const *at = bsearch(&map->shard[i], map->by_name, (size_t)map->n_shards,
                                        sizeof *map->by_name, compare_text);
        const SafetensorsFile *want = index->file[at - map->by_name];
        ShardTensor key = {.name = map->tensor[i]};
        ShardTensor *found =
            index->n ? bsearch(&key, index->tensor, (size_t)index->n, sizeof key, compare_tensors)
                     : NULL;
        if (!found || found->file != want)
            return FAIL(ERR_FORMAT, "%s: tensor %s: not in the shard it is listed for, %s%s%s%s",
                        map->path, map->tensor[i], map->shard[i], found ? " (found in " : "",
                        found ? found->file->path : "", found ? ")" : "");
        found->unlisted = false;
        listed_size += (int64_t)found->entry->bytes;
    }
    for (int i = 0; i < index->n; i++) index->n_unlisted += index->tensor[i].unlisted;
    /* With a tensor missing from the map the size may still be that of all: one fault, one warning. */
    if (map->has_total_size && map->total_size != (double)listed_size &&
        map->total_size != (double)index->total_size)
        log_warning(log, "%s: key total_size: %.17g, but the listed tensors have %" PRId64 " bytes",
                    map->path, map->total_size, listed_size);
    return OK;
}

Status shard_index_join(ShardIndex **out, const char *path, const ShardMap *map,
                        SafetensorsFile **file, int n_files, Arena *arena, Log *log)
{
    ShardIndex *index = NULL;
    TRY(arena_alloc(arena, &index, 1, sizeof *index));
    *index = (ShardIndex){
        .path = text_copy(arena, path), .has_index = map != NULL, .n_files = n_files, .file = file};
    TRY(collect(index, arena));
    if (map)
        TRY(check_map(index, map, log));
    else
        for (int i = 0; i < index->n; i++) index->tensor[i].unlisted = false;
    *out = index;
    return OK;
}

/* ---------------------------------------------------------------- opening */

static void close_files(SafetensorsFile **file, int n)
{
    for (int i = 0; i < n; i++) safetensors_close(&file[i]);
}

/* Opens dir/name for all names; on failure none stays open. */
static Status open_files(SafetensorsFile **file, const char *dir, const char *const *names, int n,
                         Arena *arena)
{
    for (int i = 0; i < n; i++) {
        Status st = safetensors_open(&file[i], path_join(arena, dir, names[i]), arena);
        if (st == OK) continue;
        close_files(file, i);
        return st;
    }
    return OK;
}

static Status open_shards(ShardIndex **out, const char *dir, const ShardMap *map, Arena *arena,
                          Log *log)
{
    int n = map->n_shards;
    SafetensorsFile **file = NULL;
    TRY(arena_alloc(arena, &file, (size_t)n, sizeof *file));
    TRY(open_files(file, dir, map->by_name, n, arena));
    Status st = shard_index_join(out, map->path, map, file, n, arena, log);
    if (st != OK) close_files(file, n);
    return st;
}

static Status open_single(ShardIndex **out, const char *path, Arena *arena)
{
    SafetensorsFile **file = NULL;
    TRY(arena_alloc(arena, &file, 1, sizeof *file));
    TRY(safetensors_open(&file[0], path, arena));
    Status st = shard_index_join(out, path, NULL, file, 1, arena, NULL);
    if (st != OK) safetensors_close(&file[0]);
    return st;
}

/* A shard that is not there is the index's fault: say which entry asks for it. */
static Status check_shards_exist(const ShardMap *map, const char *dir, Arena *arena)
{
    for (int i = 0; i < map->n; i++)
        if (!file_exists(path_join(arena, dir, map->shard[i])))
            return FAIL(ERR_IO, "%s: tensor %s: shard %s is missing", map->path, map->tensor[i],
                        map->shard[i]);
    return OK;
}

Status shard_index_open(ShardIndex **out, const char *path, Arena *arena, Log *log)
{
    if (!dir_exists(path)) return open_single(out, path, arena);
    const char *single = path_join(arena, path, single_name);
    const char *index = path_join(arena, path, index_name);
    bool has_single = file_exists(single);
    if (!file_exists(index)) {
        if (!has_single)
            return FAIL(ERR_IO, "%s: holds neither %s nor %s", path, single_name, index_name);
        return open_single(out, single, arena);
    }
    char *text;
    size_t n;
    ShardMap map;
    TRY(file_read(arena, index, &text, &n));
    TRY(shard_map_parse(&map, index, text, n, arena));
    const char *key = single_name;
    if (has_single &&
        !bsearch(&key, map.by_name, (size_t)map.n_shards, sizeof *map.by_name, compare_text)) {
        log_warning(log, "%s: does not name %s, which is read instead", index, single_name);
        return open_single(out, single, arena);
    }
    TRY(check_shards_exist(&map, path, arena));
    return open_shards(out, path, &map, arena, log);
}

void shard_index_close(ShardIndex **index)
{
    if (*index) close_files((*index)->file, (*index)->n_files);
    *index = NULL;
}

const ShardTensor *shard_index_find(const ShardIndex *index, const char *name)
{
    if (!index->n) return NULL;
    ShardTensor key = {.name = name};
    return bsearch(&key, index->tensor, (size_t)index->n, sizeof key, compare_tensors);
}

Status shard_tensor_read(const ShardTensor *tensor, int64_t first, int64_t count, DType dtype,
                         void *dst)
{
    return safetensors_read(tensor->file, tensor->entry, first, count, dtype, dst);
}
