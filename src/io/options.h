#pragma once
/**
 * Options as data. One row says an option's name, type, place in a struct, default, limits and help;
 * reading from YAML and from the command line, range errors, help and the dump of the resolved values
 * all come from that row.
 *
 * Types and the fields they fill:
 *   OPT_BOOL      bool
 *   OPT_INT       int or int64_t (told apart by size)
 *   OPT_REAL      double
 *   OPT_TEXT      const char *
 *   OPT_NAME      const char *, one of the choices          OPT_ENUM   int-sized enum, a choice's value
 *   OPT_DURATION  double, seconds                           OPT_SIZE   int64_t, bytes
 *   OPT_INTS      IntList                                   OPT_PAIR   double[2]
 *   OPT_TEXTS     TextList
 *   OPT_NAMES     TextList, each one of the choices
 *   OPT_OBJECTS   a list {Item *at; int n;} of structs with rows of their own
 * A single value where a list is expected is a list of one; a list of objects takes the text of an
 * item's first field for the item.
 *
 * `unset` is a word ("null", "auto") that stands for no value. The field then holds -1 (OPT_INT, OPT_SIZE),
 * NAN (OPT_REAL, OPT_DURATION), NULL (OPT_TEXT) or the empty list with at == NULL. A list that can be
 * unset cannot be empty otherwise.
 *
 * `built` lists the values that are available (of OPT_NAMES: the items; of a list: "[]" or nothing);
 * the others are known and refused with ERR_UNSUPPORTED. Where the default is not among them, the first
 * one stands in.
 *
 * Errors: ERR_USAGE "PLACE: section.key: … (found …, expected …)", PLACE being FILE:LINE:COLUMN or "--set".
 */
#include "io/yaml.h"

typedef enum OptionType {
    OPT_BOOL,
    OPT_INT,
    OPT_REAL,
    OPT_TEXT,
    OPT_NAME,
    OPT_ENUM,
    OPT_DURATION,
    OPT_SIZE,
    OPT_INTS,
    OPT_PAIR,
    OPT_TEXTS,
    OPT_NAMES,
    OPT_OBJECTS
} OptionType;

typedef struct IntList {
    int64_t *at;
    int n;
} IntList;

typedef struct TextList {
    const char **at;
    int n;
} TextList;

typedef struct OptionChoice {
    const char *name; /* NULL ends the list */
    int value;        /* OPT_ENUM */
} OptionChoice;

typedef struct OptionSpec OptionSpec;

typedef struct OptionLimit {
    bool ranged;
    double min, max; /* of each number */
    bool above_min;  /* min itself is not allowed */
    bool below_max;  /* max itself is not allowed */
    const OptionChoice *choices;
    const OptionSpec *items; /* rows of an item of OPT_OBJECTS */
    size_t item_size;
} OptionLimit;

struct OptionSpec {
    const char *name; /* NULL ends a table */
    OptionType type;
    size_t offset, size;  /* of the field; see OPTION_AT */
    const char *fallback; /* the default, as YAML text; NULL: no value */
    OptionLimit limit;
    const char *help;
    const char *unset; /* NULL: a value is needed */
    const char *built; /* blank between; NULL: all */
    const char *value; /* command line: the value's name in the help (NULL: from the type) */
    bool numbers;      /* OPT_TEXT: a whole number needs no quotes */
    bool maths;        /* a change alters what is computed, beyond rounding */
    bool required;     /* command line: must be given */
    bool rest;         /* command line, lists: takes all arguments up to the next option */
};

#define OPTION_AT(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define OPTION_ANY \
    { \
        0 \
    }
#define OPTION_RANGE(low, high) \
    { \
        .ranged = true, .min = (low), .max = (high) \
    }
#define OPTION_AT_LEAST(low) \
    { \
        .ranged = true, .min = (low), .max = INFINITY \
    }
#define OPTION_ABOVE(low) \
    { \
        .ranged = true, .min = (low), .max = INFINITY, .above_min = true \
    }
#define OPTION_CHOICES(list) \
    { \
        .choices = (list) \
    }
#define OPTION_ITEMS(rows, item) \
    { \
        .items = (rows), .item_size = sizeof(item) \
    }

/** Rows under a common prefix; the last has no name. */
typedef struct OptionSection {
    const char *name;
    const OptionSpec *specs;
    size_t offset; /* of the section's struct */
    const char *help;
} OptionSection;

/** All defaults into base (a struct the rows fit). Errors: only those of a wrong row. */
Status option_defaults(void *base, const OptionSpec *specs, Arena *arena) MUST_USE;
/** One value from a tree; key names it in messages. */
Status option_read(void *base, const OptionSpec *spec, const char *place, const char *key,
                   const json_t *value, Arena *arena) MUST_USE;
/** One value from a command line's text. Texts are taken as they are, all else is read as YAML. Appends to OPT_TEXTS. */
Status option_read_text(void *base, const OptionSpec *spec, const char *place, const char *text,
                        Arena *arena) MUST_USE;
/** Append the value, as YAML in one line. */
void option_append(TextBuffer *out, const OptionSpec *spec, const void *base);
/** Append the default as it takes effect: the first available value where the default is not built. */
void option_append_default(TextBuffer *out, const OptionSpec *spec);
/** Append what the row allows: "a whole number of at least 1, or null". */
void option_append_expected(TextBuffer *out, const OptionSpec *spec);

Status options_defaults(void *base, const OptionSection *sections, Arena *arena) MUST_USE;
/** Read a whole tree over what base holds. An empty section is allowed; an unknown one is an error that names the nearest. */
Status options_read(void *base, const OptionSection *sections, const YamlDoc *yaml,
                    Arena *arena) MUST_USE;
/** One "section.key=value", the value a YAML scalar or flow list. */
Status options_set(void *base, const OptionSection *sections, const char *assignment,
                   Arena *arena) MUST_USE;
/** The whole as YAML that options_read reads back to the same values. */
void options_dump(TextBuffer *out, const OptionSection *sections, const void *base);
/** Visit the values that differ between two structs: key, both as YAML, and the row. */
void options_compare(const OptionSection *sections, const void *a, const void *b, Arena *arena,
                     void (*differs)(void *context, const char *key, const char *in_a,
                                     const char *in_b, const OptionSpec *spec),
                     void *context);
/** A line or two per key: name, default, what it is and may be. */
void options_help(TextBuffer *out, const OptionSection *sections);

/** "90", "90s", "10m", "1h30m", "2d" to seconds; a number without a unit stands alone. False: not a duration. */
bool option_duration(const char *text, double *seconds);
/** "1000", "512MiB", "5GB", "5G" (= 5e9) to bytes. False: not a size, or beyond 2^63. */
bool option_size(const char *text, int64_t *bytes);
