#include "io/yaml.h"

#include "io/file.h"

#include <yaml.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32, MAX_BYTES = 4 << 20, PLACE_DEPTH = 5 };

/* ---- scalars ------------------------------------------------------------------------------------ */

typedef enum Scalar { SCALAR_TEXT, SCALAR_NULL, SCALAR_TRUE, SCALAR_FALSE } Scalar;

// clang-format off
static const struct { const char *text; Scalar is; } words[] = {
    {"", SCALAR_NULL}, {"~", SCALAR_NULL}, {"null", SCALAR_NULL}, {"Null", SCALAR_NULL}, {"NULL", SCALAR_NULL},
    {"true", SCALAR_TRUE}, {"True", SCALAR_TRUE}, {"TRUE", SCALAR_TRUE},
    {"false", SCALAR_FALSE}, {"False", SCALAR_FALSE}, {"FALSE", SCALAR_FALSE},
};
// clang-format on

static size_t skip_digits(const char *text, size_t i)
{
    while (isdigit((unsigned char)text[i])) i++;
    return i;
}

/* [-+]? [0-9]+ */
static bool looks_decimal(const char *text)
{
    size_t i = text[0] == '-' || text[0] == '+', end = skip_digits(text, i);
    return end > i && !text[end];
}

/* 0o[0-7]+ and 0x[0-9a-fA-F]+; 0: neither */
static int looks_based(const char *text)
{
    if (text[0] != '0' || (text[1] != 'o' && text[1] != 'x')) return 0;
    const char *digits = text[1] == 'o' ? "01234567" : "0123456789abcdefABCDEF";
    size_t n = strspn(text + 2, digits);
    return n && !text[2 + n] ? (text[1] == 'o' ? 8 : 16) : 0;
}

/* [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool looks_real(const char *text)
{
    size_t i = text[0] == '-' || text[0] == '+', end = skip_digits(text, i);
    bool digits = end > i;
    if (text[end] == '.') {
        size_t fraction = skip_digits(text, end + 1);
        digits = digits || fraction > end + 1;
        end = fraction;
    }
    if (digits && (text[end] == 'e' || text[end] == 'E')) {
        size_t sign = end + 1;
        if (text[sign] == '-' || text[sign] == '+') sign++;
        end = skip_digits(text, sign);
        if (end == sign) return false;
    }
    return digits && !text[end];
}

static bool looks_infinite(const char *text)
{
    static const char *const names[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    if (text[0] == '-' || text[0] == '+') text++;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(text, names[i])) return true;
    return false;
}

static json_t *plain_integer(const char *digits, int base, const char **why)
{
    errno = 0;
    long long value = strtoll(digits, NULL, base);
    if (errno) {
        *why = "a whole number beyond 64 bits";
        return NULL;
    }
    return json_integer(value);
}

json_t *yaml_plain(const char *text, size_t bytes, const char **why)
{
    if (strlen(text) != bytes) return json_stringn(text, bytes);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].text)) continue;
        return words[i].is == SCALAR_NULL ? json_null() : json_boolean(words[i].is == SCALAR_TRUE);
    }
    if (looks_decimal(text)) return plain_integer(text, 10, why);
    int base = looks_based(text);
    if (base) return plain_integer(text + 2, base, why);
    if (looks_real(text)) {
        double value = strtod(text, NULL);
        if (isfinite(value)) return json_real(value);
        *why = "a number beyond the range of a double";
        return NULL;
    }
    if (looks_infinite(text)) {
        *why = "a number that is not finite";
        return NULL;
    }
    return json_stringn(text, bytes);
}

/* ---- events to a tree --------------------------------------------------------------------------- */

typedef struct Reader {
    yaml_parser_t parser;
    YamlDoc *yaml;
    Arena *arena;
} Reader;

static Status fail_at(const Reader *reader, yaml_mark_t mark, const char *what)
{
    return FAIL(ERR_FORMAT, "%s:%zu:%zu: %s", reader->yaml->name, mark.line + 1, mark.column + 1,
                what);
}

static Status parser_error(const Reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    const char *problem = parser->problem ? parser->problem : "not YAML";
    const char *text =
        parser->context ? text_format(reader->arena, "%s %s", problem, parser->context) : problem;
    if (parser->error == YAML_MEMORY_ERROR)
        return FAIL(ERR_MEMORY, "%s: out of memory", reader->yaml->name);
    if (parser->error == YAML_READER_ERROR)
        return FAIL(ERR_FORMAT, "%s: byte %zu: %s", reader->yaml->name, parser->problem_offset,
                    problem);
    return fail_at(reader, parser->problem_mark, text);
}

static Status next_event(Reader *reader, yaml_event_t *event)
{
    if (!yaml_parser_parse(&reader->parser, event)) return parser_error(reader);
    return OK;
}

static void remember_place(Reader *reader, const char *path, yaml_mark_t mark)
{
    YamlDoc *yaml = reader->yaml;
    if (yaml->n_places == yaml->capacity) {
        yaml->capacity = 2 * yaml->capacity + 64;
        YamlPlace *places = ARENA_NEW(reader->arena, YamlPlace, yaml->capacity);
        if (yaml->n_places) memcpy(places, yaml->places, (size_t)yaml->n_places * sizeof *places);
        yaml->places = places;
    }
    yaml->places[yaml->n_places++] = (YamlPlace){path, (int)mark.line + 1, (int)mark.column + 1};
}

/* Null below PLACE_DEPTH: a configuration has no keys there, and paths stay short. */
static const char *path_of_key(Reader *reader, const char *parent, int depth, const char *key)
{
    if (!parent || depth > PLACE_DEPTH) return NULL;
    return text_format(reader->arena, "%s%s%s", parent, *parent ? "." : "", key);
}

static const char *path_of_item(Reader *reader, const char *parent, int depth, size_t i)
{
    if (!parent || depth > PLACE_DEPTH) return NULL;
    return text_format(reader->arena, "%s[%zu]", parent, i);
}

static Status read_scalar(Reader *reader, const yaml_event_t *event, json_t **out)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t bytes = event->data.scalar.length;
    if (memchr(text, 0, bytes))
        return fail_at(reader, event->start_mark, "a text with a NUL character");
    const char *why = "not a text in UTF-8";
    *out = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? yaml_plain(text, bytes, &why)
                                                               : json_stringn(text, bytes);
    if (*out) return OK;
    return fail_at(reader, event->start_mark,
                   text_format(reader->arena, "%s (found %.60s)", why, text));
}

static Status read_node(Reader *reader, const yaml_event_t *event, const char *path, int depth,
                        json_t **out);

static Status read_child(Reader *reader, yaml_event_t *event, const char *path, int depth,
                         json_t **out)
{
    Status st = read_node(reader, event, path, depth, out);
    yaml_event_delete(event);
    return st;
}

static Status read_sequence(Reader *reader, const char *path, int depth, json_t *list)
{
    for (size_t i = 0;; i++) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return OK;
        }
        const char *item_path = path_of_item(reader, path, depth, i);
        if (item_path) remember_place(reader, item_path, event.start_mark);
        json_t *item = NULL;
        TRY(read_child(reader, &event, item_path, depth + 1, &item));
        if (json_array_append_new(list, item))
            return FAIL(ERR_MEMORY, "%s: out of memory", reader->yaml->name);
    }
}

static Status check_key(Reader *reader, const yaml_event_t *event, const json_t *mapping)
{
    if (event->type == YAML_ALIAS_EVENT)
        return fail_at(reader, event->start_mark, "anchors and aliases are not read");
    if (event->type != YAML_SCALAR_EVENT)
        return fail_at(reader, event->start_mark, "a key that is not a plain text");
    const char *key = (const char *)event->data.scalar.value;
    if (event->data.scalar.anchor || event->data.scalar.tag)
        return fail_at(reader, event->start_mark, "anchors and tags are not read");
    if (memchr(key, 0, event->data.scalar.length))
        return fail_at(reader, event->start_mark, "a text with a NUL character");
    if (!strcmp(key, "<<") && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(reader, event->start_mark, "merge keys (<<) are not read");
    if (json_object_get(mapping, key))
        return fail_at(reader, event->start_mark,
                       text_format(reader->arena, "key %.200s appears twice", key));
    return OK;
}

static Status read_mapping(Reader *reader, const char *path, int depth, json_t *mapping)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return OK;
        }
        Status st = check_key(reader, &event, mapping);
        if (st != OK) {
            yaml_event_delete(&event);
            return st;
        }
        const char *key = text_copy(reader->arena, (const char *)event.data.scalar.value);
        const char *key_path = path_of_key(reader, path, depth, key);
        if (key_path) remember_place(reader, key_path, event.start_mark);
        yaml_event_delete(&event);

        TRY(next_event(reader, &event));
        json_t *value = NULL;
        TRY(read_child(reader, &event, key_path, depth + 1, &value));
        if (json_object_set_new(mapping, key, value))
            return FAIL(ERR_MEMORY, "%s: out of memory", reader->yaml->name);
    }
}

static Status read_node(Reader *reader, const yaml_event_t *event, const char *path, int depth,
                        json_t **out)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    default:
        return fail_at(reader, event->start_mark,
                       "anchors and aliases are not read (quote a text "
                       "that begins with * or &)");
    }
    if (anchor || tag) {
        const char *what = anchor ? "anchors and aliases are not read" : "tags (!) are not read";
        return fail_at(reader, event->start_mark, what);
    }
    if (depth > MAX_DEPTH) return fail_at(reader, event->start_mark, "nested too deep");
    if (event->type == YAML_SCALAR_EVENT) return read_scalar(reader, event, out);

    bool is_list = event->type == YAML_SEQUENCE_START_EVENT;
    json_t *value = is_list ? json_array() : json_object();
    if (!value) return FAIL(ERR_MEMORY, "%s: out of memory", reader->yaml->name);
    Status st = is_list ? read_sequence(reader, path, depth, value)
                        : read_mapping(reader, path, depth, value);
    if (st != OK) {
        json_decref(value);
        return st;
    }
    *out = value;
    return OK;
}

/* The stream: start, then nothing or one document, then the end. */
static Status read_stream(Reader *reader, json_t **out)
{
    yaml_event_t event;
    json_t *root = NULL;
    for (;;) {
        Status st = next_event(reader, &event);
        if (st != OK) {
            json_decref(root);
            return st;
        }
        yaml_event_type_t type = event.type;
        switch (type) {
        case YAML_STREAM_START_EVENT:
        case YAML_STREAM_END_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_DOCUMENT_START_EVENT:
            if (root) st = fail_at(reader, event.start_mark, "a second document (--- again)");
            break;
        default: st = read_node(reader, &event, "", 0, &root);
        }
        yaml_event_delete(&event);
        if (st != OK) {
            json_decref(root);
            return st;
        }
        if (type == YAML_STREAM_END_EVENT) {
            *out = root ? root : json_null();
            return OK;
        }
    }
}

Status yaml_doc_parse(YamlDoc *out, const char *name, const char *text, size_t bytes, Arena *arena)
{
    YamlDoc yaml = {.name = text_copy(arena, name)};
    if (bytes > MAX_BYTES)
        return FAIL(ERR_FORMAT, "%s: too large for a configuration (found %zu bytes, at most %d)",
                    name, bytes, (int)MAX_BYTES);
    Reader reader = {.yaml = &yaml, .arena = arena};
    if (!yaml_parser_initialize(&reader.parser)) return FAIL(ERR_MEMORY, "%s: out of memory", name);
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, bytes);
    json_t *root = NULL;
    Status st = read_stream(&reader, &root);
    yaml_parser_delete(&reader.parser);
    TRY(st);
    yaml.root = root;
    *out = yaml;
    return OK;
}

Status yaml_doc_read(YamlDoc *out, const char *path, Arena *arena)
{
    char *text;
    size_t bytes;
    TRY(file_read(arena, path, &text, &bytes));
    return yaml_doc_parse(out, path, text, bytes, arena);
}

void yaml_doc_free(YamlDoc *yaml)
{
    json_decref(yaml->root);
    *yaml = (YamlDoc){0};
}

const char *yaml_doc_place(const YamlDoc *yaml, const char *path, Arena *arena)
{
    for (int i = 0; i < yaml->n_places; i++)
        if (!strcmp(yaml->places[i].path, path))
            return text_format(arena, "%s:%d:%d", yaml->name, yaml->places[i].line,
                               yaml->places[i].column);
    return yaml->name;
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* Letters that mean nothing to YAML wherever they stand in a plain scalar. */
static bool plain_is_safe(const char *text)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
    if (!*text || text[strspn(text, safe)] || *text == '-') return false;
    const char *why;
    json_t *value = yaml_plain(text, strlen(text), &why);
    bool is_text = json_is_string(value);
    json_decref(value);
    /* Words that other readers of YAML take for something else. */
    static const char *const old[] = {"yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        size_t k = 0;
        while (old[i][k] && tolower((unsigned char)text[k]) == old[i][k]) k++;
        if (!old[i][k] && !text[k]) return false;
    }
    return is_text;
}

/* One code point of valid UTF-8; its bytes. */
static size_t decode(const char *text, uint32_t *code)
{
    unsigned char c = (unsigned char)text[0];
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (!text[i]) return i;
        *code = *code << 6 | ((unsigned char)text[i] & 0x3f);
    }
    return n;
}

static bool shows(uint32_t code)
{
    return (code >= 0x20 && code < 0x7f) ||
           (code >= 0xa0 && code != 0x2028 && code != 0x2029 && code != 0xfeff && code < 0xfffe) ||
           (code >= 0x10000 && code <= 0x10ffff);
}

void yaml_append_text(TextBuffer *out, const char *text)
{
    if (plain_is_safe(text)) {
        text_append(out, text, strlen(text));
        return;
    }
    text_append(out, "\"", 1);
    while (*text) {
        uint32_t code;
        size_t n = decode(text, &code);
        if (code == '"' || code == '\\')
            text_append_format(out, "\\%c", (char)code);
        else if (code == '\n')
            text_append(out, "\\n", 2);
        else if (code == '\t')
            text_append(out, "\\t", 2);
        else if (shows(code))
            text_append(out, text, n);
        else
            text_append_format(out, code < 0x10000 ? "\\u%04X" : "\\U%08X", (unsigned)code);
        text += n;
    }
    text_append(out, "\"", 1);
}

void yaml_append_real(TextBuffer *out, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    text_append(out, text, strlen(text));
    if (!strpbrk(text, ".e")) text_append(out, ".0", 2);
}
