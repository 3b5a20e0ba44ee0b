#include "data/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2's pattern, ByteLevel's own. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct Loader {
    Tokenizer *tokenizer;
    Arena *arena;
    bool byte_level_seen;
} Loader;

/** One of a kind of parts: how its object is read. */
typedef struct PartType {
    const char *type;
    Status (*read)(Loader *loader, json_t *object, const char *place);
    const char *const *keys;
    const char *members; /* Sequence: the key with the list of parts in it */
} PartType;

#define KEYS(...) ((const char *const[]){"type", __VA_ARGS__, NULL})

Status check_keys(json_t *object, const char *place, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0) k++;
        if (!*k) return FAIL(ERR_UNSUPPORTED, "%s: key %s is not supported", place, key);
    }
    return OK;
}

static Status read_part(Loader *loader, const PartType *types, json_t *object, const char *place,
                        int depth)
{
    const char *type;
    TRY(json_expect_object(object, place));
    TRY(json_get_string(object, place, "type", &type));
    const PartType *part = types;
    while (part->type && strcmp(part->type, type) != 0) part++;
    if (!part->type || depth > 8) {
        return FAIL(ERR_UNSUPPORTED, "%s: type %s is not supported", place, type);
    }
    TRY(check_keys(object, place, part->keys));
    if (!part->members) return part->read(loader, object, place);
    json_t *list;
    TRY(json_get_array(object, place, part->members, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(read_part(loader, types, json_array_get(list, i),
                      text_format(loader->arena, "%s[%zu]", place, i), depth + 1));
    }
    return OK;
}

static Status too_many(const char *place)
{
    return FAIL(ERR_UNSUPPORTED, "%s: more than %d parts are not supported", place, PARTS_MAX);
}

/* ---- normalizer ---- */

static const char *const form_names[FORM_COUNT] = {"NFC", "NFD", "NFKC", "NFKD"};

static Status read_form(Loader *loader, json_t *object, const char *place)
{
    Tokenizer *t = loader->tokenizer;
    const char *type;
    TRY(json_get_string(object, place, "type", &type));
    if (t->n_forms == PARTS_MAX) return too_many(place);
    for (int i = 0; i < FORM_COUNT; i++) {
        if (strcmp(form_names[i], type) == 0) t->form[t->n_forms++] = (NormalForm)i;
    }
    return OK;
}

/* ---- pre_tokenizer ---- */

static Status add_step(Loader *loader, PreStep step, const char *place)
{
    Tokenizer *t = loader->tokenizer;
    if (loader->byte_level_seen || t->n_steps == PARTS_MAX) {
        pcre2_code_free(step.code);
        if (!loader->byte_level_seen) return too_many(place);
        return FAIL(ERR_UNSUPPORTED, "%s: a part after ByteLevel is not supported", place);
    }
    t->step[t->n_steps++] = step;
    return OK;
}

static Status read_split(Loader *loader, json_t *object, const char *place)
{
    static const char *const behaviors[SPLIT_COUNT] = {"Removed", "Isolated", "MergedWithPrevious",
                                                       "MergedWithNext", "Contiguous"};
    const char *behavior, *regex, *literal;
    json_t *pattern;
    PreStep step = {.behavior = SPLIT_COUNT};
    TRY(json_get_string(object, place, "behavior", &behavior));
    for (int i = 0; i < SPLIT_COUNT; i++) {
        if (strcmp(behaviors[i], behavior) == 0) step.behavior = (SplitBehavior)i;
    }
    if (step.behavior == SPLIT_COUNT) {
        return FAIL(ERR_UNSUPPORTED, "%s: behavior %s is not supported", place, behavior);
    }
    TRY(json_get_bool(object, place, "invert", &step.invert));
    TRY(json_get_object(object, place, "pattern", &pattern));
    TRY(check_keys(pattern, place, (const char *const[]){"Regex", "String", NULL}));
    TRY(json_get_string_or(pattern, place, "Regex", NULL, &regex));
    TRY(json_get_string_or(pattern, place, "String", NULL, &literal));
    if (!regex == !literal) {
        return FAIL(ERR_FORMAT, "%s: pattern: expected either Regex or String", place);
    }
    TRY(regex ? regex_compile(&step.code, regex, place, loader->arena)
              : regex_compile_literal(&step.code, literal, place, loader->arena));
    return add_step(loader, step, place);
}

static Status read_digits(Loader *loader, json_t *object, const char *place)
{
    bool each;
    PreStep step = {0};
    TRY(json_get_bool(object, place, "individual_digits", &each));
    step.behavior = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    /* here HuggingFace asks Rust, whose tables are newer (Unicode 17) than its patterns' */
    TRY(regex_compile(&step.code, "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]", place,
                      loader->arena));
    return add_step(loader, step, place);
}

static Status read_byte_level(Loader *loader, json_t *object, const char *place)
{
    bool prefix, regex;
    TRY(json_get_bool(object, place, "add_prefix_space", &prefix));
    TRY(json_get_bool_or(object, place, "use_regex", true, &regex));
    if (prefix) TRY(add_step(loader, (PreStep){.code = NULL}, place));
    if (regex) {
        PreStep step = {.behavior = SPLIT_ISOLATED};
        TRY(regex_compile(&step.code, byte_level_pattern, place, loader->arena));
        TRY(add_step(loader, step, place));
    }
    if (loader->byte_level_seen) {
        return FAIL(ERR_UNSUPPORTED, "%s: a second ByteLevel is not supported", place);
    }
    loader->byte_level_seen = true;
    return OK;
}

/* ---- post_processor ---- */

/* Only offsets, which nobody here asks for. */
static Status read_offsets_only(Loader *loader, json_t *object, const char *place)
{
    (void)loader;
    (void)object;
    (void)place;
    return OK;
}

static Status read_template_token(Loader *loader, json_t *specials, json_t *piece,
                                  TemplateItem *item, const char *place)
{
    const char *name;
    json_t *entry;
    int64_t *ids, vocab_size = loader->tokenizer->vocab.n_ids;
    TRY(json_get_string(piece, place, "id", &name));
    TRY(json_get_object(specials, place, name, &entry));
    TRY(json_get_int_array(loader->arena, entry, place, "ids", &ids, &item->n));
    int32_t *copy;
    TRY(arena_alloc(loader->arena, &copy, (size_t)item->n + 1, sizeof *copy));
    for (int64_t i = 0; i < item->n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            return FAIL(ERR_FORMAT, "%s: token %s: id %lld is outside of the vocabulary", place,
                        name, (long long)ids[i]);
        }
        copy[i] = (int32_t)ids[i];
    }
    item->id = copy;
    return OK;
}

static Status read_template(Loader *loader, json_t *object, const char *place)
{
    Tokenizer *t = loader->tokenizer;
    json_t *single, *specials;
    TRY(json_get_array(object, place, "single", &single));
    TRY(json_get_object(object, place, "special_tokens", &specials));
    if (t->n_templates == PARTS_MAX) return too_many(place);
    Template template = {.n = 0};
    size_t n = json_array_size(single);
    if (n > 1024) return FAIL(ERR_UNSUPPORTED, "%s: single: %zu pieces are too many", place, n);
    TRY(arena_alloc(loader->arena, &template.item, n + 1, sizeof *template.item));
    for (size_t i = 0; i < n; i++) {
        TemplateItem *item = &template.item[template.n++];
        json_t *piece = json_array_get(single, i), *token, *text;
        const char *here = text_format(loader->arena, "%s: single[%zu]", place, i);
        TRY(json_expect_object(piece, here));
        TRY(check_keys(piece, here, (const char *const[]){"SpecialToken", "Sequence", NULL}));
        TRY(json_get_object_or_null(piece, here, "SpecialToken", &token));
        TRY(json_get_object_or_null(piece, here, "Sequence", &text));
        if (!token == !text) {
            return FAIL(ERR_FORMAT, "%s: expected either SpecialToken or Sequence", here);
        }
        if (token) {
            TRY(read_template_token(loader, specials, token, item, here));
            continue;
        }
        const char *which;
        TRY(json_get_string(text, here, "id", &which));
        if (strcmp(which, "A") != 0) {
            return FAIL(ERR_UNSUPPORTED, "%s: Sequence %s is not supported (expected A)", here,
                        which);
        }
        item->is_text = true;
    }
    t->template[t->n_templates++] = template;
    return OK;
}

/* ---- decoder ---- */

static Status read_byte_decoder(Loader *loader, json_t *object, const char *place)
{
    (void)object;
    if (loader->tokenizer->decode_bytes) {
        return FAIL(ERR_UNSUPPORTED, "%s: a second ByteLevel is not supported", place);
    }
    loader->tokenizer->decode_bytes = true;
    return OK;
}

/* ---- all four ---- */

/** A top-level key with the types its object may have. */
typedef struct PartKind {
    const char *key;
    PartType types[6];
} PartKind;

// clang-format off
#define BYTE_LEVEL KEYS("add_prefix_space", "trim_offsets", "use_regex")
static const PartKind kinds[] = {
    {"normalizer", {
        {"NFC",                read_form,         KEYS(NULL),                                   NULL},
        {"NFD",                read_form,         KEYS(NULL),                                   NULL},
        {"NFKC",               read_form,         KEYS(NULL),                                   NULL},
        {"NFKD",               read_form,         KEYS(NULL),                                   NULL},
        {"Sequence",           NULL,              KEYS("normalizers"),                 "normalizers"}}},
    {"pre_tokenizer", {
        {"Split",              read_split,        KEYS("pattern", "behavior", "invert"),        NULL},
        {"Digits",             read_digits,       KEYS("individual_digits"),                    NULL},
        {"ByteLevel",          read_byte_level,   BYTE_LEVEL,                                   NULL},
        {"Sequence",           NULL,              KEYS("pretokenizers"),             "pretokenizers"}}},
    {"post_processor", {
        {"ByteLevel",          read_offsets_only, BYTE_LEVEL,                                   NULL},
        {"TemplateProcessing", read_template,     KEYS("single", "pair", "special_tokens"),     NULL},
        {"Sequence",           NULL,              KEYS("processors"),                   "processors"}}},
    {"decoder", {
        {"ByteLevel",          read_byte_decoder, BYTE_LEVEL,                                   NULL},
        {"Sequence",           NULL,              KEYS("decoders"),                       "decoders"}}},
};
// clang-format on

Status pipeline_load(Tokenizer *tokenizer, const json_t *root, const char *place, Arena *arena)
{
    Loader loader = {.tokenizer = tokenizer, .arena = arena};
    TRY(arena_alloc(arena, &tokenizer->form, PARTS_MAX, sizeof *tokenizer->form));
    TRY(arena_alloc(arena, &tokenizer->step, PARTS_MAX, sizeof *tokenizer->step));
    TRY(arena_alloc(arena, &tokenizer->template, PARTS_MAX, sizeof *tokenizer->template));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        json_t *object = json_object_get(root, kinds[i].key);
        if (!object || json_is_null(object)) continue;
        TRY(read_part(&loader, kinds[i].types, object,
                      text_format(arena, "%s: %s", place, kinds[i].key), 0));
    }
    if (!loader.byte_level_seen) {
        return FAIL(ERR_UNSUPPORTED, "%s: pre_tokenizer: one without ByteLevel is not supported",
                    place);
    }
    return OK;
}
