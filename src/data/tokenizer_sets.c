#include "data/tokenizer_parts.h"

#include <ctype.h>
#include <string.h>

#define SPACE \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}" \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}" \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define HEX "0-9A-Fa-f"

// clang-format off
static const RegexSet escapes[] = {
    {"d", "\\p{Nd}", "\\P{Nd}", NULL},
    {"s", SPACE, NOT_SPACE, NULL},
    {"w", REGEX_WORD_IN_CLASS, NULL, REGEX_WORD},
    {"h", HEX, NULL, NULL},
};
#define CATEGORY(short_name, long_name) \
    {short_name, "\\p{" short_name "}", "\\P{" short_name "}", NULL}, \
    {long_name, "\\p{" short_name "}", "\\P{" short_name "}", NULL}
#define SCRIPT(name) {name, "\\p{sc:" name "}", "\\P{sc:" name "}", NULL}
/* Names are compared without case, spaces, '-' and '_'. */
static const RegexSet properties[] = {
    CATEGORY("L", "Letter"), CATEGORY("Lu", "UppercaseLetter"), CATEGORY("Ll", "LowercaseLetter"),
    CATEGORY("Lt", "TitlecaseLetter"), CATEGORY("Lm", "ModifierLetter"), CATEGORY("Lo", "OtherLetter"),
    CATEGORY("M", "Mark"), CATEGORY("Mn", "NonspacingMark"), CATEGORY("Mc", "SpacingMark"),
    CATEGORY("Me", "EnclosingMark"), CATEGORY("N", "Number"), CATEGORY("Nd", "DecimalNumber"),
    CATEGORY("Nl", "LetterNumber"), CATEGORY("No", "OtherNumber"), CATEGORY("P", "Punctuation"),
    CATEGORY("Pc", "ConnectorPunctuation"), CATEGORY("Pd", "DashPunctuation"),
    CATEGORY("Ps", "OpenPunctuation"), CATEGORY("Pe", "ClosePunctuation"),
    CATEGORY("Pi", "InitialPunctuation"), CATEGORY("Pf", "FinalPunctuation"),
    CATEGORY("Po", "OtherPunctuation"), CATEGORY("S", "Symbol"), CATEGORY("Sm", "MathSymbol"),
    CATEGORY("Sc", "CurrencySymbol"), CATEGORY("Sk", "ModifierSymbol"),
    CATEGORY("So", "OtherSymbol"), CATEGORY("Z", "Separator"), CATEGORY("Zs", "SpaceSeparator"),
    CATEGORY("Zl", "LineSeparator"), CATEGORY("Zp", "ParagraphSeparator"), CATEGORY("C", "Other"),
    CATEGORY("Cc", "Control"), CATEGORY("Cf", "Format"), CATEGORY("Cn", "Unassigned"),
    CATEGORY("Co", "PrivateUse"),
    SCRIPT("Han"), SCRIPT("Hiragana"), SCRIPT("Katakana"), SCRIPT("Hangul"), SCRIPT("Thai"),
    SCRIPT("Hebrew"), SCRIPT("Greek"),
    {"Digit", "\\p{Nd}", "\\P{Nd}", NULL}, {"Space", SPACE, NOT_SPACE, NULL}, {"Word", REGEX_WORD_IN_CLASS, NULL, REGEX_WORD},
    {"XDigit", HEX, NULL, NULL}, {"ASCII", "\\x{0}-\\x{7f}", "\\x{80}-\\x{10ffff}", NULL},
};
// clang-format on

static bool same_name(const char *known, const char *name, size_t n)
{
    size_t i = 0;
    for (; n > 0; name++, n--) {
        if (*name == ' ' || *name == '_' || *name == '-') continue;
        if (tolower((unsigned char)*name) != tolower((unsigned char)known[i])) return false;
        i++;
    }
    return known[i] == '\0';
}

const RegexSet *regex_read_set(const char **at, bool *negated)
{
    const char *p = *at;
    if (p[0] != '\\') return NULL;
    if (p[1] != 'p' && p[1] != 'P') {
        for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
            if (tolower((unsigned char)p[1]) != escapes[i].name[0]) continue;
            *negated = isupper((unsigned char)p[1]) != 0;
            *at += 2;
            return &escapes[i];
        }
        return NULL;
    }
    const char *end = p[2] == '{' ? strchr(p, '}') : NULL;
    if (!end) return NULL;
    *negated = p[1] == 'P';
    const char *name = p + 3;
    if (*name == '^') {
        *negated = !*negated;
        name++;
    }
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        if (!same_name(properties[i].name, name, (size_t)(end - name))) continue;
        *at = end + 1;
        return &properties[i];
    }
    return NULL;
}
