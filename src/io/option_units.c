#include "io/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Unit {
    const char *name;
    double factor;
} Unit;

// clang-format off
static const Unit time_units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {NULL, 0}};
static const Unit size_units[] = {
    {"B", 1}, {"K", 1e3}, {"KB", 1e3}, {"M", 1e6}, {"MB", 1e6}, {"G", 1e9}, {"GB", 1e9}, {"T", 1e12}, {"TB", 1e12},
    {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}, {NULL, 0}};
// clang-format on

static const char digits[] = "0123456789.";

/* One "12.5GB" at *text; moves it on. No unit: factor 1 at the end of the text only. */
static bool number_with_unit(const char **text, const Unit *units, double *value)
{
    size_t n = strspn(*text, digits);
    if (!n) return false;
    char *end;
    double number = strtod(*text, &end);
    if (end != *text + n) return false;
    size_t letters = strspn(end, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    double factor = *end ? 0 : 1;
    for (; units->name && factor == 0; units++)
        if (strlen(units->name) == letters && !strncmp(units->name, end, letters))
            factor = units->factor;
    *value = number * factor;
    *text = end + letters;
    return factor > 0;
}

bool option_duration(const char *text, double *seconds)
{
    double sum = 0, part;
    const char *at = text;
    do {
        if (!number_with_unit(&at, time_units, &part)) return false;
        sum += part;
    } while (*at);
    /* "2h30" might be meant as minutes. */
    if (strspn(text, digits) < strlen(text) && strchr(digits, at[-1])) return false;
    *seconds = sum;
    return isfinite(sum);
}

bool option_size(const char *text, int64_t *bytes)
{
    double value;
    if (!number_with_unit(&text, size_units, &value) || *text) return false;
    if (!(value < 0x1p63)) return false;
    *bytes = (int64_t)value;
    return true;
}
