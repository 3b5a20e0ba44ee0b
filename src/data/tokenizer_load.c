#include "data/tokenizer_parts.h"
#include "io/file.h"

#include <stdlib.h>
#include <string.h>

static Status added_read_one(Tokenizer *t, AddedToken *added, json_t *object, int32_t n_model,
                             int32_t *highest, const char *place, Arena *arena)
{
    const char *content;
    int64_t id;
    TRY(json_expect_object(object, place));
    TRY(check_keys(object, place,
                   (const char *const[]){"id", "content", "single_word", "lstrip", "rstrip",
                                         "normalized", "special", NULL}));
    TRY(json_get_int(object, place, "id", &id));
    TRY(json_get_string(object, place, "content", &content));
    TRY(json_get_bool(object, place, "single_word", &added->single_word));
    TRY(json_get_bool(object, place, "lstrip", &added->lstrip));
    TRY(json_get_bool(object, place, "rstrip", &added->rstrip));
    TRY(json_get_bool(object, place, "normalized", &added->normalized));
    TRY(json_get_bool(object, place, "special", &added->special));
    if (*content == '\0') return FAIL(ERR_FORMAT, "%s: content is empty", place);

    /* HuggingFace goes by the vocabulary, else gives the next free id; the file must agree. */
    int32_t known = tokenizer_id(t, content);
    int32_t expected = known;
    if (known < 0) expected = *highest >= n_model ? *highest + 1 : n_model;
    if (id != expected) {
        return FAIL(ERR_FORMAT, "%s: \"%s\" has id %lld (expected %d, as HuggingFace numbers it)",
                    place, content, (long long)id, expected);
    }
    if (known >= 0 && t->added_of_id[known]) {
        return FAIL(ERR_FORMAT, "%s: \"%s\" is there twice", place, content);
    }
    added->in_model = known >= 0;
    added->content = text_copy(arena, content);
    added->id = expected;
    if (known < 0) TRY(vocab_add(&t->vocab, added->content, added->id, place));
    t->added_of_id[added->id] = added;
    if (added->id > *highest) *highest = added->id;
    return OK;
}

static Status added_load(Tokenizer *t, json_t *list, const char *place, Arena *arena)
{
    size_t n = json_array_size(list);
    int32_t n_model = t->vocab.n_tokens, highest = -1;
    TRY(arena_alloc(arena, &t->added, n + 1, sizeof *t->added));
    TRY(arena_alloc(arena, &t->added_of_id, (size_t)t->vocab.capacity + 1, sizeof *t->added_of_id));
    for (size_t i = 0; i < n; i++) {
        TRY(added_read_one(t, &t->added[i], json_array_get(list, i), n_model, &highest,
                           text_format(arena, "%s: added_tokens[%zu]", place, i), arena));
        t->n_added++;
    }
    return OK;
}

/* What to look for, once the normalizer is known. */
static Status added_make_sets(Tokenizer *t, const char *place, Arena *arena)
{
    AddedSet *sets[4] = {&t->all_added[0], &t->all_added[1], &t->not_special[0],
                         &t->not_special[1]};
    for (int s = 0; s < 4; s++) {
        TRY(arena_alloc(arena, &sets[s]->at, (size_t)t->n_added + 1, sizeof *sets[s]->at));
    }
    TokenizerWork *work = calloc(1, sizeof *work);
    if (!work) return FAIL(ERR_MEMORY, "%s: no memory", place);
    Status status = OK;
    for (int i = 0; i < t->n_added && status == OK; i++) {
        AddedToken *added = &t->added[i];
        const char *pattern = added->content;
        size_t n = strlen(pattern);
        if (added->normalized) status = tokenizer_normalize(t, pattern, n, work, &pattern, &n);
        if (status != OK) break;
        added->pattern = text_copy_n(arena, pattern, n);
        added->n_pattern = n;
        for (int s = added->normalized; s < (added->special ? 2 : 4); s += 2) {
            sets[s]->at[sets[s]->n++] = added;
        }
    }
    tokenizer_work_free(work);
    TRY(status);
    for (int s = 0; s < 4; s++) {
        added_set_sort(sets[s]);
        for (int i = 1; i < sets[s]->n; i++) {
            const AddedToken *a = sets[s]->at[i - 1], *b = sets[s]->at[i];
            if (strcmp(a->pattern, b->pattern) != 0) continue;
            return FAIL(ERR_FORMAT,
                        "%s: added_tokens \"%s\" (id %d) and \"%s\" (id %d) are the "
                        "same once normalised",
                        place, a->content, a->id, b->content, b->id);
        }
    }
    return OK;
}

static Status refuse_text(const json_t *model, const char *place, const char *key)
{
    const char *text;
    TRY(json_get_string_or(model, place, key, "", &text));
    if (*text == '\0') return OK;
    return FAIL(ERR_UNSUPPORTED, "%s: %s \"%s\" is not supported", place, key, text);
}

/* Refuse kinds of BPE whose words are not cut into bytes and merged by rank. */
static Status model_check(json_t *model, const char *place)
{
    const char *type;
    bool byte_fallback;
    double dropout;
    TRY(json_get_string_or(model, place, "type", "BPE", &type)); /* old files have none */
    if (strcmp(type, "BPE") != 0) {
        return FAIL(ERR_UNSUPPORTED, "%s: type %s is not supported (expected BPE)", place, type);
    }
    TRY(check_keys(model, place,
                   (const char *const[]){"type", "dropout", "unk_token",
                                         "continuing_subword_prefix", "end_of_word_suffix",
                                         "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                                         "merges", NULL}));
    TRY(json_get_bool_or(model, place, "byte_fallback", false, &byte_fallback));
    if (byte_fallback) return FAIL(ERR_UNSUPPORTED, "%s: byte_fallback is not supported", place);
    TRY(json_get_real_or(model, place, "dropout", 0, &dropout));
    if (dropout != 0) {
        return FAIL(ERR_UNSUPPORTED, "%s: dropout %g is not supported", place, dropout);
    }
    TRY(refuse_text(model, place, "continuing_subword_prefix"));
    return refuse_text(model, place, "end_of_word_suffix");
}

/* Keys that concern the whole file. */
static Status root_check(json_t *root, const char *place, Log *log)
{
    TRY(json_expect_object(root, place));
    if (check_keys(root, place,
                   (const char *const[]){"version", "truncation", "padding", "added_tokens",
                                         "normalizer", "pre_tokenizer", "post_processor", "decoder",
                                         "model", NULL}) != OK) {
        log_warning(log, "%s (ignored, as HuggingFace does)", status_message());
    }
    const char *version;
    TRY(json_get_string_or(root, place, "version", "1.0", &version));
    if (strcmp(version, "1.0") != 0) {
        return FAIL(ERR_UNSUPPORTED, "%s: version %s is not supported", place, version);
    }
    json_t *object;
    TRY(json_get_object_or_null(root, place, "truncation", &object));
    if (object) {
        return FAIL(ERR_UNSUPPORTED,
                    "%s: truncation is not supported (expected null): it would "
                    "cut texts silently",
                    place);
    }
    /* Padding to the longest of a batch leaves a single text as it is; to a length it does not. */
    TRY(json_get_object_or_null(root, place, "padding", &object));
    const json_t *strategy = json_object_get(object, "strategy"),
                 *multiple = json_object_get(object, "pad_to_multiple_of");
    const char *name = json_string_value(strategy);
    if (object && (!name || strcmp(name, "BatchLongest") != 0 || json_is_integer(multiple))) {
        return FAIL(ERR_UNSUPPORTED,
                    "%s: padding is not supported (expected null, or strategy "
                    "BatchLongest)",
                    place);
    }
    return OK;
}

static void warn_of_missing_bytes(const Tokenizer *t, const char *place, Log *log)
{
    int missing = 0;
    for (int byte = 0; byte < 0xF5; byte++) {
        bool never_in_utf8 = byte == 0xC0 || byte == 0xC1;
        if (t->bpe.byte_id[byte] < 0 && !never_in_utf8) missing++;
    }
    if (missing > 0 && t->bpe.unk_id < 0) {
        log_warning(log,
                    "%s: %d bytes have no token and there is no unk_token; such bytes are "
                    "left out of texts, as HuggingFace does",
                    place, missing);
    }
}

static Status load(Tokenizer *t, json_t *root, const char *place, Arena *arena, Log *log)
{
    json_t *model, *vocab, *added;
    TRY(root_check(root, place, log));
    TRY(json_get_object(root, place, "model", &model));
    const char *model_place = text_format(arena, "%s: model", place);
    TRY(model_check(model, model_place));
    TRY(json_get_object(model, model_place, "vocab", &vocab));
    TRY(json_get_array_or_null(root, place, "added_tokens", &added));
    TRY(vocab_load(&t->vocab, vocab, (int64_t)json_array_size(added), model_place, arena));
    TRY(bpe_load(&t->bpe, &t->vocab, model, model_place, arena));
    TRY(added_load(t, added, place, arena));
    TRY(pipeline_load(t, root, place, arena));
    TRY(regex_compile(&t->word_letter, "[\\w\\x{200c}\\x{200d}]", place, arena));
    TRY(added_make_sets(t, place, arena));
    warn_of_missing_bytes(t, place, log);
    return OK;
}

Status tokenizer_parse(Tokenizer **out, const char *json, size_t n, const char *place, Arena *arena,
                       Log *log)
{
    JsonDoc doc;
    Tokenizer *t;
    TRY(arena_alloc(arena, &t, 1, sizeof *t));
    t->eos = -1;
    TRY(json_doc_parse(&doc, place, json, n));
    Status status = load(t, doc.root, place, arena, log);
    json_doc_free(&doc);
    if (status == OK) {
        t->pool = calloc(1, sizeof *t->pool);
        if (!t->pool) status = FAIL(ERR_MEMORY, "%s: no memory", place);
    }
    if (status != OK) {
        tokenizer_free(&t);
        return status;
    }
    pthread_mutex_init(&t->pool->lock, NULL);
    *out = t;
    return OK;
}

void tokenizer_free(Tokenizer **tokenizer)
{
    Tokenizer *t = *tokenizer;
    if (!t) return;
    for (int i = 0; i < t->n_steps; i++) pcre2_code_free(t->step[i].code);
    pcre2_code_free(t->word_letter);
    if (t->pool) {
        for (TokenizerWork *work = t->pool->first, *next; work; work = next) {
            next = work->next;
            tokenizer_work_free(work);
        }
        pthread_mutex_destroy(&t->pool->lock);
        free(t->pool);
    }
    *tokenizer = NULL;
}

/* Given as a string or as an object with its content. */
static Status config_eos(Tokenizer *t, const json_t *root, const char *place, Log *log)
{
    const char *key = "eos_token";
    const json_t *value = json_object_get(root, key);
    const char *token;
    if (json_is_object(value)) {
        TRY(json_get_string(value, place, "content", &token));
    } else {
        TRY(json_get_string_or(root, place, key, NULL, &token));
    }
    if (!token) return OK;
    t->eos = tokenizer_id(t, token);
    if (t->eos < 0) {
        log_warning(log, "%s: %s \"%s\" is no token of tokenizer.json; it is left unset", place,
                    key, token);
    }
    return OK;
}

/* transformers lets this file add tokens and change the prefix space; ids come from tokenizer.json. */
static void config_warn(const Tokenizer *t, json_t *root, const char *place, Log *log)
{
    json_t *added = json_object_get(root, "added_tokens_decoder"), *entry;
    const char *key;
    json_object_foreach(added, key, entry)
    {
        const char *content = json_string_value(json_object_get(entry, "content"));
        int32_t id = content ? tokenizer_id(t, content) : -1;
        if (id < 0 || !t->added_of_id[id]) {
            log_warning(log,
                        "%s: added_tokens_decoder has \"%s\", which is not among "
                        "tokenizer.json's added_tokens; it is ignored",
                        place, content ? content : key);
            break;
        }
    }
    const json_t *prefix = json_object_get(root, "add_prefix_space");
    bool has_prefix = false;
    for (int i = 0; i < t->n_steps; i++) has_prefix = has_prefix || !t->step[i].code;
    if (json_is_boolean(prefix) && json_is_true(prefix) != has_prefix) {
        log_warning(log,
                    "%s: add_prefix_space is %s but not so in tokenizer.json, which is "
                    "followed",
                    place, json_is_true(prefix) ? "true" : "false");
    }
}

Status tokenizer_parse_config(Tokenizer *tokenizer, const char *json, size_t n, const char *place,
                              Log *log)
{
    /* model_max_length is often 1e30 written as an integer, which fits no integer type */
    json_error_t error;
    json_t *root =
        json_loadb(json ? json : "", n, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    if (!root) {
        return FAIL(ERR_FORMAT, "%s:%d:%d: %s", place, error.line, error.column, error.text);
    }
    Status status = json_expect_object(root, place);
    if (status == OK) status = config_eos(tokenizer, root, place, log);
    if (status == OK) config_warn(tokenizer, root, place, log);
    json_decref(root);
    return status;
}

static Status open_config(Tokenizer *tokenizer, const char *path, Log *log)
{
    if (!file_exists(path)) return OK;
    MappedFile file;
    TRY(file_map(&file, path));
    Status status =
        tokenizer_parse_config(tokenizer, (const char *)file.data, file.bytes, path, log);
    file_unmap(&file);
    return status;
}

Status tokenizer_open(Tokenizer **out, const char *model_dir, Arena *arena, Log *log)
{
    MappedFile file;
    Tokenizer *tokenizer;
    const char *path = path_join(arena, model_dir, "tokenizer.json");
    TRY(file_map(&file, path));
    Status status =
        tokenizer_parse(&tokenizer, (const char *)file.data, file.bytes, path, arena, log);
    file_unmap(&file);
    TRY(status);
    status = open_config(tokenizer, path_join(arena, model_dir, "tokenizer_config.json"), log);
    if (status != OK) {
        tokenizer_free(&tokenizer);
        return status;
    }
    *out = tokenizer;
    return OK;
}
