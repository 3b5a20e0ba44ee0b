#include "train/manifest.h"
#include "io/file.h"
#include "io/hash.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { FORMAT_VERSION = 1 };

static const char own_name[] = "manifest.json";

/* Of the file itself: a link would lead to bytes that may be anybody's. */
static Status size_of(const char *path, int64_t *bytes)
{
    struct stat info;
    if (lstat(path, &info) != 0) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return FAIL(ERR_FORMAT, "%s: expected a file (found a %s)", path,
                    S_ISLNK(info.st_mode)   ? "link"
                    : S_ISDIR(info.st_mode) ? "folder"
                                            : "special file");
    *bytes = info.st_size;
    return OK;
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

typedef Status FileVisit(void *context, const char *name, const char *path);

/* All files of a folder, those one level down too; hidden ones and the manifest are none of it. */
static Status each_file(const char *dir, const char *below, FileVisit *visit, void *context,
                        Arena *arena)
{
    char **names;
    int n;
    TRY(dir_list(arena, below ? path_join(arena, dir, below) : dir, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *name = below ? path_join(arena, below, names[i]) : names[i];
        const char *path = path_join(arena, dir, name);
        if (names[i][0] == '.' || !strcmp(name, own_name)) continue;
        if (!below && dir_exists(path) && !is_link(path))
            TRY(each_file(dir, name, visit, context, arena));
        else
            TRY(visit(context, name, path));
    }
    return OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static Status add_file(void *files, const char *name, const char *path)
{
    int64_t bytes;
    char hex[HASH_HEX_BYTES];
    TRY(size_of(path, &bytes));
    TRY(hash_file(hex, path));
    json_object_set_new(files, name,
                        json_pack("{sI ss}", "bytes", (json_int_t)bytes, "xxh3_128", hex));
    return OK;
}

Status manifest_write(const Engine *e, const char *dir, Arena *arena)
{
    json_t *files = json_object();
    Status status = each_file(dir, NULL, add_file, files, arena);
    json_t *root =
        json_pack("{si ss ss so so}", "format", FORMAT_VERSION, "weights", "f32", "moments",
                  e->config->optimizer.type == OPTIMIZER_ADAMW ? "f32" : "none", "files", files,
                  "source", hf_layout_to_json(e->layout));
    if (!root) return FAIL(ERR_MEMORY, "%s: cannot make %s", dir, own_name);
    if (status == OK) status = json_write_file(path_join(arena, dir, own_name), root);
    json_decref(root);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* A file of the folder, or of a folder in it. */
static bool stays_within(const char *name)
{
    const char *slash = strchr(name, '/');
    if (name[0] == '\0' || name[0] == '.' || slash == name) return false;
    return !slash || (slash[1] != '\0' && slash[1] != '.' && !strchr(slash + 1, '/'));
}

static Status read_file(ManifestFile *out, const char *name, const json_t *value, const char *place,
                        Arena *arena)
{
    if (!stays_within(name))
        return FAIL(ERR_FORMAT, "%s: file %s: outside the folder", place, name);
    if (!json_is_object(value))
        return FAIL(ERR_FORMAT, "%s: file %s: expected an object (found %s)", place, name,
                    json_kind_name(value));
    const char *hash;
    out->name = text_copy(arena, name);
    TRY(json_get_int(value, place, "bytes", &out->bytes));
    if (out->bytes < 0)
        return FAIL(ERR_FORMAT, "%s: file %s: %lld bytes (expected 0 or more)", place, name,
                    (long long)out->bytes);
    TRY(json_get_string(value, place, "xxh3_128", &hash));
    out->hash = text_copy(arena, hash);
    return OK;
}

Status manifest_of_json(Manifest *out, const json_t *root, const char *place, Arena *arena)
{
    int64_t format;
    json_t *files, *value;
    TRY(json_expect_object(root, place));
    TRY(json_get_int(root, place, "format", &format));
    if (format != FORMAT_VERSION)
        return FAIL(ERR_UNSUPPORTED, "%s: key format: not available (found %lld, expected %d)",
                    place, (long long)format, FORMAT_VERSION);
    TRY(json_get_object(root, place, "files", &files));
    Manifest manifest = {0};
    TRY(arena_alloc(arena, &manifest.file, json_object_size(files), sizeof *manifest.file));
    const char *name;
    json_object_foreach(files, name, value)
    {
        TRY(read_file(&manifest.file[manifest.n], name, value, place, arena));
        manifest.n++;
    }
    *out = manifest;
    return OK;
}

/* What the folder is checked against. */
typedef struct Check {
    const Manifest *manifest;
    const char *path;
} Check;

static Status is_listed(void *context, const char *name, const char *path)
{
    const Check *check = context;
    for (int i = 0; i < check->manifest->n; i++)
        if (!strcmp(check->manifest->file[i].name, name)) return OK;
    return FAIL(ERR_FORMAT, "%s: not in %s: it belongs to no save, or to another one", path,
                check->path);
}

static Status check_size(const ManifestFile *file, const char *dir, Arena *arena)
{
    const char *slash = strchr(file->name, '/'), *path = path_join(arena, dir, file->name);
    int64_t bytes;
    if (slash && is_link(path_join(arena, dir,
                                   text_copy_n(arena, file->name, (size_t)(slash - file->name)))))
        return FAIL(ERR_FORMAT, "%s: its folder is a link", path);
    TRY(size_of(path, &bytes));
    if (bytes != file->bytes)
        return FAIL(ERR_FORMAT, "%s: %lld bytes (expected %lld from the manifest)", path,
                    (long long)bytes, (long long)file->bytes);
    return OK;
}

static Status check_hash(const ManifestFile *file, const char *dir, Arena *arena)
{
    const char *path = path_join(arena, dir, file->name);
    char hex[HASH_HEX_BYTES];
    TRY(hash_file(hex, path));
    if (strcmp(file->hash, hex) != 0)
        return FAIL(ERR_FORMAT, "%s: checksum %s (expected %s from the manifest)", path, hex,
                    file->hash);
    return OK;
}

/* Moments are in folders of their own. */
static bool is_moment(const ManifestFile *file)
{
    return strchr(file->name, '/') != NULL;
}

Status manifest_check(const char *dir, bool moments, Arena *arena)
{
    const char *path = path_join(arena, dir, own_name);
    JsonDoc doc;
    Manifest manifest;
    int64_t bytes;
    if (!file_exists(path))
        return FAIL(ERR_FORMAT, "%s: missing, so the checkpoint is incomplete", path);
    TRY(size_of(path, &bytes));
    TRY(json_doc_read(&doc, path));
    Status status = manifest_of_json(&manifest, doc.root, path, arena);
    json_doc_free(&doc);
    TRY(status);
    /* Sizes first: most damage is found in no time. */
    for (int i = 0; i < manifest.n; i++) TRY(check_size(&manifest.file[i], dir, arena));
    TRY(each_file(dir, NULL, is_listed, &(Check){&manifest, path}, arena));
    for (int i = 0; i < manifest.n; i++)
        if (moments || !is_moment(&manifest.file[i]))
            TRY(check_hash(&manifest.file[i], dir, arena));
    return OK;
}
