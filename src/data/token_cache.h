#pragma once
/**
 * Tokenised files on disk, so that a second run starts without tokenising. One cache file per data file, named
 * by a hash of all that its content depends on: the data file's bytes, tokenizer.json's bytes, the options and
 * the version of this format. A cache is never wrong for being old: another input has another name.
 */
#include "base/log.h"
#include "data/token_store.h"
#include "io/hash.h"

typedef struct TokenCounts {
    int64_t n_lines;  /* samples read, bad ones left out */
    int64_t n_bad;    /* lines skipped under skip_bad_lines */
    int64_t n_empty;  /* samples without a token, left out */
    int64_t n_no_eos; /* text samples that got no eos since none is known */
} TokenCounts;

typedef struct TokenCacheFile {
    char *path; /* DIR/NAME-KEY.tokens, NAME the data file's */
    char key[HASH_HEX_BYTES];
} TokenCacheFile;

/**
 * The cache file of a data file; options tells in words all else that the ids depend on.
 *
 * Errors: ERR_IO when the data file cannot be read.
 */
Status token_cache_find(TokenCacheFile *out, const char *cache_dir, const char *data_path,
                        const char *options, Arena *arena) MUST_USE;

/**
 * Append the content of a cache file to the store. *found is false, and the store as it was, when there is no
 * such file or it is damaged (wrong size, checksum, version, key or inner structure; a warning says which): it is
 * then to be made again.
 *
 * Errors: ERR_MEMORY.
 */
Status token_cache_read(TokenStore *store, TokenCounts *counts, bool *found,
                        const TokenCacheFile *file, int64_t vocab_size, Log *log) MUST_USE;

/** Write it, atomically; the folder is created. ERR_IO, ERR_MEMORY. */
Status token_cache_write(const TokenStore *store, const TokenCounts *counts,
                         const TokenCacheFile *file) MUST_USE;
