/* Bytes as a checkpoint's manifest.json: whatever it lists lies within the folder. */
#include "fuzz_target.h"
#include "train/manifest.h"

#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
    if (!condition) abort();
}

static void check_file(const ManifestFile *file)
{
    const char *slash = strchr(file->name, '/');
    must(file->name[0] && file->name[0] != '.' && file->name[0] != '/' && file->hash);
    must(!slash || (slash[1] && slash[1] != '.' && !strchr(slash + 1, '/')));
    must(file->bytes >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Arena arena;
    JsonDoc doc;
    arena_init(&arena, "fuzz");
    if (json_doc_parse(&doc, "fuzz.json", n ? (const char *)data : "", n) == OK) {
        Manifest manifest;
        Status status = manifest_of_json(&manifest, doc.root, "fuzz.json", &arena);
        must(status == OK || strstr(status_message(), "fuzz.json") != NULL);
        for (int i = 0; status == OK && i < manifest.n; i++) check_file(&manifest.file[i]);
        json_doc_free(&doc);
    }
    arena_free(&arena);
    return 0;
}
