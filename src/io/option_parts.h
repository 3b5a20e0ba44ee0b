#pragma once
/** What the files of options share: option_units.c, option_read.c, option_print.c, options.c. */
#include "io/options.h"

/** All lists have this form; their fields are read and written by memcpy, since `at` has another type there. */
typedef struct AnyList {
    void *at;
    int n;
} AnyList;

/** Bytes of an item of a list type. */
size_t option_item_bytes(const OptionSpec *spec);
/** Whether a value, as YAML, is among the row's available ones. */
bool option_is_built(const OptionSpec *spec, const char *text);
