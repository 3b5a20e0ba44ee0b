/* Bytes as a checkpoint's manifest.json: whatever it lists lies within the folder. */
#include "fuzz_document.h"
#include "train/manifest.h"

static void check_file(const ManifestFile *file)
{
    const char *slash = strchr(file->name, '/');
    must(file->name[0] && file->name[0] != '.' && file->name[0] != '/' && file->hash);
    must(!slash || (slash[1] && slash[1] != '.' && !strchr(slash + 1, '/')));
    must(file->bytes >= 0);
}

static void use(const json_t *root, Arena *arena)
{
    Manifest manifest;
    Status status = manifest_of_json(&manifest, root, PLACE, arena);
    must_name_place(status);
    for (int i = 0; status == OK && i < manifest.n; i++) check_file(&manifest.file[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_document(data, n, use);
}
