#include "io/yaml.h"

#include "io/file.h"

#include <yaml.h>

#include <string.h>

enum { MAX_DEPTH = 32, MAX_BYTES = 4 << 20, PLACE_DEPTH = 5 };

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
    if (!parent || depth > PLACE_DEPTH || strchr(key, '.'))
        return NULL; /* not that of "a: {b: }" */
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
        json_array_append_new(list, item);
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
        json_object_set_new(mapping, key, value);
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
    bool marked = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3); /* as some editors begin a file */
    if (marked) text += 3, bytes -= 3;
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
