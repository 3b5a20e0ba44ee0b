#pragma once
/**
 * The inside of a Tokenizer, shared by the tokenizer_*.c files only:
 *   load         tokenizer.json -> Tokenizer        vocab        strings, ids and merges
 *   unicode      UTF-8, byte letters, versions      normalize    NFC, NFD, NFKC, NFKD
 *   regex, sets  HuggingFace's patterns in PCRE2    search       one match after another
 *   pretokenize  text -> words                      pipeline     the four parts of tokenizer.json
 *   added        added tokens in a text             bpe          word -> ids
 *   encode       all of these in order, decode
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer.h"
#include "io/json.h"

#include <pcre2.h>
#include <pthread.h>

/* ---- unicode ---- */

/** Offset of the first byte that is not part of valid UTF-8; n: all is valid. */
size_t utf8_check(const char *text, size_t n);
/** The code point at text, which is valid UTF-8; *length is its bytes. */
int32_t utf8_decode(const char *text, int *length);
int utf8_encode(int32_t point, char *out); /* 1 to 4 bytes; returns how many */
/** The letter that stands for a byte in a byte-level vocabulary, and back (-1: no such letter). */
int32_t byte_letter(int byte);
int byte_of_letter(int32_t point);
/**
 * The code point PCRE2 is shown instead of this one: same UTF-8 length, and the category that the
 * point has in HuggingFace's Unicode version. The point itself where both agree.
 */
int32_t pattern_stand_in(int32_t point);
/** Unknown to HuggingFace's (older) normalisation tables: such a point stays and joins nothing. */
bool normalize_is_inert(int32_t point);
bool unicode_is_space(int32_t point); /* White_Space */

/* ---- growing memory of a workspace ---- */

typedef struct Bytes {
    char *at;
    size_t n, capacity;
} Bytes;

/** Make room for n elements of the given size in *at; *capacity counts elements. */
Status grow(void *at, size_t *capacity, size_t n, size_t size) MUST_USE;
Status bytes_append(Bytes *bytes, const char *at, size_t n) MUST_USE;

/* ---- vocab ---- */

enum { TOKEN_ID_LIMIT = 1 << 22 }; /* ids above are taken for an error */

typedef struct Vocab {
    const char **token; /* [n_ids] by id; NULL: a hole */
    int32_t n_ids;      /* highest id + 1 */
    int32_t n_tokens;
    int32_t capacity;
    int32_t *slot; /* [mask + 1] id + 1, 0 empty; by hash of the string */
    uint32_t mask;
} Vocab;

typedef struct Merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* place in the file; -1: empty slot */
    int32_t id;    /* of the merged token */
} Merge;

typedef struct Bpe {
    Merge *merge; /* [merge_mask + 1] by hash of the pair */
    uint32_t merge_mask;
    int32_t byte_id[256]; /* -1: the vocabulary has no token for this byte */
    int32_t unk_id;       /* -1: none */
    bool fuse_unk, ignore_merges;
} Bpe;

/** place: for messages, down to this object. n_more: room for that many tokens besides. */
Status vocab_load(Vocab *vocab, json_t *object, int64_t n_more, const char *place,
                  Arena *arena) MUST_USE;
int32_t vocab_find(const Vocab *vocab, const char *token, size_t n);
Status vocab_add(Vocab *vocab, const char *token, int32_t id, const char *place) MUST_USE;
Status bpe_load(Bpe *bpe, const Vocab *vocab, const json_t *model, const char *place,
                Arena *arena) MUST_USE;
/** Rank and result of merging a pair; NULL: no such merge. */
const Merge *bpe_find(const Bpe *bpe, int32_t left, int32_t right);

typedef struct RegexWork {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} RegexWork;

/* ---- added tokens ---- */

typedef struct AddedToken {
    const char *content;
    const char *pattern; /* what is looked for: the content, normalised if `normalized` */
    size_t n_pattern;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool in_model; /* the model's own vocabulary has it too */
} AddedToken;

/** Those found at one of the two stages, sorted by pattern. */
typedef struct AddedSet {
    const AddedToken **at;
    int n;
    bool starts[256]; /* bytes some pattern starts with */
} AddedSet;

/** A part of a text: plain, or an added token. */
typedef struct TextPart {
    size_t start, n;
    int32_t id; /* -1: plain text */
} TextPart;

typedef struct TextParts {
    TextPart *at;
    size_t n, capacity;
} TextParts;

void added_set_sort(AddedSet *set);
/** Cut text at the set's tokens. Overwrites parts. */
Status added_split(const Tokenizer *tokenizer, const AddedSet *set, const char *text, size_t n,
                   RegexWork *work, TextParts *parts) MUST_USE;

/* ---- normalize ---- */

typedef enum NormalForm { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD, FORM_COUNT } NormalForm;

typedef struct NormalizeWork {
    int32_t *point;
    size_t capacity;
} NormalizeWork;

/** Overwrites out. */
Status normalize_text(NormalForm form, const char *text, size_t n, NormalizeWork *work,
                      Bytes *out) MUST_USE;

/* ---- regex ---- */

/** A set of characters, as PCRE2 has it. */
typedef struct RegexSet {
    const char *name;
    const char *inside;     /* what stands for it within a class */
    const char *inside_not; /* and for all but it; NULL: cannot be said there */
    const char *alone;      /* the same outside of classes where it differs, else NULL */
} RegexSet;

#define REGEX_WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Oniguruma's table for Latin-1 has six more (² ³ ¹ ¼ ½ ¾), which it uses outside of classes only. */
#define REGEX_WORD REGEX_WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/** The set that \s, \P{Lu}, \p{^Han} … at *at names, which is moved past it; NULL: none known. */
const RegexSet *regex_read_set(const char **at, bool *negated);
/** Translate an Oniguruma pattern and compile it. Errors name the pattern. */
Status regex_compile(pcre2_code **out, const char *pattern, const char *place,
                     Arena *arena) MUST_USE;
/** The same for a literal string. */
Status regex_compile_literal(pcre2_code **out, const char *text, const char *place,
                             Arena *arena) MUST_USE;

Status regex_work_init(RegexWork *work) MUST_USE;
void regex_work_free(RegexWork *work);
/** The next match at or after `from`: *found says if there is one. */
Status regex_search(const pcre2_code *code, const char *text, size_t n, size_t from,
                    RegexWork *work, bool *found, size_t *start, size_t *end) MUST_USE;

/* ---- pretokenize ---- */

typedef enum SplitBehavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
    SPLIT_COUNT
} SplitBehavior;

typedef struct PreStep {
    pcre2_code *code; /* NULL: put a space in front of words that have none */
    SplitBehavior behavior;
    bool invert;
} PreStep;

typedef struct Word {
    size_t start, n;
} Word;

typedef struct Words {
    Word *at;
    size_t n, capacity;
} Words;

typedef struct PretokenizeWork {
    RegexWork regex;
    Bytes text, shadow;
    Words words, next;
    struct SplitRun *run; /* matches and gaps of one word */
    size_t run_capacity;
} PretokenizeWork;

/** *out_text and work->words are valid until the next call. */
Status pretokenize(const Tokenizer *tokenizer, const char *text, size_t n, PretokenizeWork *work,
                   const char **out_text) MUST_USE;
void pretokenize_work_free(PretokenizeWork *work);

/* ---- bpe ---- */

enum { CACHE_BITS = 14, CACHE_BYTES = 24, CACHE_IDS = 8 };

/** The ids of a short word seen before; a newer word with the same slot replaces it. */
typedef struct CachedWord {
    uint8_t n_bytes, n_ids; /* n_bytes 0: empty */
    char bytes[CACHE_BYTES];
    int32_t id[CACHE_IDS];
} CachedWord;

typedef struct BpeWork {
    struct Symbol *symbol;
    size_t symbol_capacity;
    struct Candidate *heap;
    size_t heap_capacity;
    Bytes letters;
    CachedWord *cache; /* [1 << CACHE_BITS] */
} BpeWork;

/** Append the ids of one word (n >= 1 bytes). */
Status bpe_encode_word(const Tokenizer *tokenizer, const char *word, size_t n, BpeWork *work,
                       TokenBuffer *out) MUST_USE;
void bpe_work_free(BpeWork *work);

/* ---- the whole ---- */

/** What one encode call needs; lent from the tokenizer's pool. */
typedef struct TokenizerWork {
    struct TokenizerWork *next; /* in the pool */
    TextParts raw_parts, normal_parts;
    Bytes normal[2];
    NormalizeWork normalize;
    PretokenizeWork pretokenize;
    BpeWork bpe;
    TokenBuffer spare;
} TokenizerWork;

typedef struct TemplateItem {
    bool is_text;      /* here go the ids of the text */
    const int32_t *id; /* else these */
    int64_t n;
} TemplateItem;

typedef struct Template {
    TemplateItem *item;
    int n;
} Template;

struct Tokenizer {
    Vocab vocab;
    Bpe bpe;
    AddedToken *added; /* in the file's order */
    int n_added;
    const AddedToken **added_of_id; /* [vocab.n_ids]; NULL: not an added token */
    /* What is looked for in the raw text and in the normalised one. */
    AddedSet all_added[2], not_special[2];
    NormalForm *form;
    int n_forms;
    PreStep *step;
    int n_steps;
    Template *template;
    int n_templates;
    bool decode_bytes;       /* decoder ByteLevel; false: none, tokens are joined by spaces */
    pcre2_code *word_letter; /* \w, for single_word */
    int32_t eos;
    struct TokenizerPool *pool;
};

typedef struct TokenizerPool {
    pthread_mutex_t lock;
    TokenizerWork *first;
} TokenizerPool;

enum { PARTS_MAX = 32 }; /* of a normalizer, pre_tokenizer or post_processor Sequence, in all */

/** Read normalizer, pre_tokenizer, post_processor and decoder; vocab must be complete. */
Status pipeline_load(Tokenizer *tokenizer, const json_t *root, const char *place,
                     Arena *arena) MUST_USE;
/** ERR_UNSUPPORTED if the object has a key that is not in the NULL-ended list. */
Status check_keys(json_t *object, const char *place, const char *const *known) MUST_USE;

Status tokenizer_normalize(const Tokenizer *tokenizer, const char *text, size_t n,
                           TokenizerWork *work, const char **out, size_t *n_out) MUST_USE;
void tokenizer_work_free(TokenizerWork *work);
