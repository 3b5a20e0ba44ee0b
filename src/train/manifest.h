#pragma once
/**
 * manifest.json of a checkpoint: every file of the folder with size and checksum, and the tensor list of the folder that the
 * run started from. A checkpoint may come from elsewhere: what the manifest says is believed of nothing outside the folder.
 */
#include "io/json.h"
#include "train/engine.h"

typedef struct ManifestFile {
    const char *name; /* "state.json", or one level down "exp_avg/model.safetensors" */
    int64_t bytes;
    const char *hash; /* XXH3, 128 bits (io/hash.h) */
} ManifestFile;

typedef struct Manifest {
    ManifestFile *file; /* [n], as listed */
    int n;
} Manifest;

/** Of all files in dir, as they are on disk. Takes the time of reading them. */
Status manifest_write(const Engine *engine, const char *dir, Arena *arena) MUST_USE;

/** place stands for the file in messages. ERR_FORMAT: keys missing or wrong, a name that leads out of the folder, or to a hidden file. */
Status manifest_of_json(Manifest *out, const json_t *root, const char *place,
                        Arena *arena) MUST_USE;

/**
 * The folder's files are those listed, no more and no fewer, each a file itself (no link) with the size and then the checksum
 * that is listed. ERR_FORMAT or ERR_IO names the first that is not. moments false: their checksums, two thirds of the bytes, are left out.
 */
Status manifest_check(const char *dir, bool moments, Arena *arena) MUST_USE;
