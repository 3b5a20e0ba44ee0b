#include "io/options.h"
#include "base/arena_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum Color { RED = 3, GREEN = 5, BLUE = 7 } Color;

typedef struct Item {
    const char *path;
    double ratio;
    bool on;
} Item;

typedef struct ItemList {
    Item *at;
    int n;
} ItemList;

typedef struct One {
    bool flag;
    int small;
    int64_t large;
    double real, maybe, seconds;
    const char *text, *name;
    Color color;
    int64_t bytes;
} One;

typedef struct Two {
    IntList split, steps;
    double betas[2];
    TextList names, files;
    ItemList items;
} Two;

typedef struct All {
    One one;
    Two two;
} All;

// clang-format off
static const OptionChoice colors[] = {{"red", RED}, {"green", GREEN}, {"blue", BLUE}, {0}};
static const OptionSpec one_rows[] = {
    {"flag",    OPT_BOOL,     OPTION_AT(One, flag),    "true",  OPTION_ANY, .help = "a flag"},
    {"small",   OPT_INT,      OPTION_AT(One, small),   "3",     OPTION_RANGE(1, 10), .help = "an int"},
    {"large",   OPT_INT,      OPTION_AT(One, large),   "null",  OPTION_AT_LEAST(0), .help = "an int64", .unset = "null", .maths = true},
    {"real",    OPT_REAL,     OPTION_AT(One, real),    "1.0e-4", OPTION_ABOVE(0), .help = "a real"},
    {"maybe",   OPT_REAL,     OPTION_AT(One, maybe),   "auto",  OPTION_AT_LEAST(0), .help = "a real or auto", .unset = "auto"},
    {"seconds", OPT_DURATION, OPTION_AT(One, seconds), "600",   OPTION_ABOVE(0), .help = "a time"},
    {"text",    OPT_TEXT,     OPTION_AT(One, text),    "null",  OPTION_ANY, .help = "a text", .unset = "null"},
    {"name",    OPT_NAME,     OPTION_AT(One, name),    "red",   OPTION_CHOICES(colors), .help = "a name"},
    {"color",   OPT_ENUM,     OPTION_AT(One, color),   "blue",  OPTION_CHOICES(colors), .help = "a color", .built = "red green"},
    {"bytes",   OPT_SIZE,     OPTION_AT(One, bytes),   "5GB",   OPTION_AT_LEAST(1), .help = "a size"},
    {0}};
static const OptionSpec item_rows[] = {
    {"path",  OPT_TEXT, OPTION_AT(Item, path),  NULL,   OPTION_ANY, .help = "where"},
    {"ratio", OPT_REAL, OPTION_AT(Item, ratio), "null", OPTION_ABOVE(0), .help = "how much", .unset = "null"},
    {"on",    OPT_BOOL, OPTION_AT(Item, on),    "true", OPTION_ANY, .help = "whether", .built = "true"},
    {0}};
static const OptionSpec two_rows[] = {
    {"split", OPT_INTS,    OPTION_AT(Two, split), "null",       OPTION_AT_LEAST(1), .help = "counts", .unset = "null"},
    {"steps", OPT_INTS,    OPTION_AT(Two, steps), "[]",         OPTION_AT_LEAST(1), .help = "steps", .built = "[] [7]"},
    {"betas", OPT_PAIR,    OPTION_AT(Two, betas), "[0.9, 0.95]", {.ranged = true, .min = 0, .max = 1, .below_max = true}, .help = "two"},
    {"names", OPT_NAMES,   OPTION_AT(Two, names), "[red]",      OPTION_CHOICES(colors), .help = "names", .built = "red green"},
    {"files", OPT_TEXTS,   OPTION_AT(Two, files), "[a, b]",     OPTION_ANY, .help = "texts"},
    {"items", OPT_OBJECTS, OPTION_AT(Two, items), "[x.jsonl]",  OPTION_ITEMS(item_rows, Item), .help = "objects"},
    {0}};
static const OptionSection sections[] = {
    {"one", one_rows, offsetof(All, one), "single values"},
    {"two", two_rows, offsetof(All, two), "lists"},
    {0}};
// clang-format on

static Status read(All *all, const char *text, Arena *arena)
{
    YamlDoc yaml;
    TRY(options_defaults(all, sections, arena));
    TRY(yaml_doc_parse(&yaml, "a.yaml", text, strlen(text), arena));
    Status st = options_read(all, sections, &yaml, arena);
    yaml_doc_free(&yaml);
    return st;
}

static char *dump(const All *all, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    options_dump(&out, sections, all);
    return out.text;
}

static void options__defaults_come_from_the_rows(void **state)
{
    All all;
    memset(&all, 0x5a, sizeof all);
    assert_int_equal(options_defaults(&all, sections, *state), OK);
    assert_true(all.one.flag);
    assert_int_equal(all.one.small, 3);
    assert_int_equal(all.one.large, -1);
    assert_true(all.one.real == 1e-4);
    assert_true(isnan(all.one.maybe));
    assert_true(all.one.seconds == 600);
    assert_null(all.one.text);
    assert_string_equal(all.one.name, "red");
    assert_int_equal(all.one.color, RED); /* the first built one stands in for blue */
    assert_int_equal(all.one.bytes, 5000000000);
    assert_null(all.two.split.at);
    assert_int_equal(all.two.split.n, 0);
    assert_non_null(all.two.steps.at);
    assert_int_equal(all.two.steps.n, 0);
    assert_true(all.two.betas[0] == 0.9 && all.two.betas[1] == 0.95);
    assert_int_equal(all.two.names.n, 1);
    assert_string_equal(all.two.names.at[0], "red");
    assert_int_equal(all.two.files.n, 2);
    assert_string_equal(all.two.files.at[1], "b");
    assert_int_equal(all.two.items.n, 1);
    assert_string_equal(all.two.items.at[0].path, "x.jsonl");
    assert_true(isnan(all.two.items.at[0].ratio));
    assert_true(all.two.items.at[0].on);
}

/* A value as the file has it, and as the dump has it. */
static const struct {
    const char *key, *value, *dumped;
} values[] = {
    {"one.flag", "false", "false"},
    {"one.small", "10", "10"},
    {"one.large", "0", "0"},
    {"one.large", "9007199254740993", "9007199254740993"},
    {"one.large", "null", "null"},
    {"one.large", "~", "null"},
    {"one.large", "", "null"},
    {"one.real", "3", "3.0"},
    {"one.real", "1e-4", "0.0001"},
    {"one.real", "1.0e-8", "1.0e-08"},
    {"one.maybe", "auto", "auto"},
    {"one.maybe", "0", "0.0"},
    {"one.seconds", "10m", "600"},
    {"one.seconds", "1h30m", "5400"},
    {"one.seconds", "90s", "90"},
    {"one.seconds", "2d", "172800"},
    {"one.seconds", "0.5", "0.5"},
    {"one.seconds", "1.5m", "90"},
    {"one.text", "a/b.c", "a/b.c"},
    {"one.text", "'12'", "\"12\""},
    {"one.text", "\"a b\"", "\"a b\""},
    {"one.text", "null", "null"},
    {"one.name", "blue", "blue"},
    {"one.color", "green", "green"},
    {"one.bytes", "512MiB", "536870912"},
    {"one.bytes", "1K", "1000"},
    {"one.bytes", "7B", "7"},
    {"one.bytes", "1.5G", "1500000000"},
    {"one.bytes", "12", "12"},
    {"two.split", "[1, 2]", "[1, 2]"},
    {"two.split", "4", "[4]"},
    {"two.split", "null", "null"},
    {"two.steps", "[7]", "[7]"},
    {"two.betas", "[0, 0.5]", "[0.0, 0.5]"},
    {"two.names", "[red, green]", "[red, green]"},
    {"two.names", "green", "[green]"},
    {"two.names", "[]", "[]"},
    {"two.files", "[]", "[]"},
    {"two.files", "['a b', c]", "[\"a b\", c]"},
    {"two.files", "data/*.jsonl", "[\"data/*.jsonl\"]"},
    {"two.items", "[]", "[]"},
    {"two.items", "y", "[\"y\"]"},
    {"two.items", "[a, {path: b}, {path: c, ratio: 2}]", "[a, b, {path: c, ratio: 2.0, on: true}]"},
};

static const char *line_of(const char *text, const char *key, Arena *arena)
{
    const char *name = text_format(arena, "  %s: ", strchr(key, '.') + 1);
    const char *at = strstr(text, name);
    assert_non_null(at);
    at += strlen(name);
    return text_copy_n(arena, at, strcspn(at, "\n"));
}

static void options__value_is_read_from_file_and_set_and_dumped(void **state)
{
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const char *key = values[i].key, *dot = strchr(key, '.');
        All from_file, from_set;
        const char *file = text_format(*state, "%.3s:\n  %s: %s\n", key, dot + 1, values[i].value);
        if (read(&from_file, file, *state) != OK) fail_msg("%s: %s", file, status_message());
        assert_string_equal(line_of(dump(&from_file, *state), key, *state), values[i].dumped);

        if (!*values[i].value) continue; /* --set wants one */
        assert_int_equal(options_defaults(&from_set, sections, *state), OK);
        const char *set = text_format(*state, "%s=%s", key, values[i].value);
        if (options_set(&from_set, sections, set, *state) != OK)
            fail_msg("%s: %s", set, status_message());
        assert_string_equal(dump(&from_set, *state), dump(&from_file, *state));

        All again;
        assert_int_equal(read(&again, dump(&from_file, *state), *state), OK);
        assert_string_equal(dump(&again, *state), dump(&from_file, *state));
    }
}

static const struct {
    const char *yaml;
    Status status;
    const char *says[4];
} errors[] = {
    {"one: {flag: yes}", ERR_USAGE, {"a.yaml:1:7: one.flag", "\"yes\"", "true | false"}},
    {"one: {flag: 1}", ERR_USAGE, {"one.flag", "found 1", "true | false"}},
    {"one: {flag: null}", ERR_USAGE, {"one.flag", "found null"}},
    {"one:\n  small: 0", ERR_USAGE, {"a.yaml:2:3: one.small", "found 0", "from 1 to 10"}},
    {"one: {small: 11}", ERR_USAGE, {"one.small", "found 11", "from 1 to 10"}},
    {"one: {small: 1.0}", ERR_USAGE, {"one.small", "found 1.0", "whole number"}},
    {"one: {small: 99999999999}", ERR_USAGE, {"one.small", "found 99999999999"}},
    {"one: {small: three}", ERR_USAGE, {"one.small", "found \"three\"", "whole number"}},
    {"one: {small: [1]}", ERR_USAGE, {"one.small", "found [1]"}},
    {"one: {small: null}", ERR_USAGE, {"one.small", "found null"}},
    {"one: {large: -1}", ERR_USAGE, {"one.large", "found -1", "at least 0", "or null"}},
    {"one: {large: auto}", ERR_USAGE, {"one.large", "found \"auto\"", "or null"}},
    {"one: {real: 0}", ERR_USAGE, {"one.real", "found 0", "above 0"}},
    {"one: {real: '1'}", ERR_USAGE, {"one.real", "found \"1\"", "a number"}},
    {"one: {maybe: -0.5}", ERR_USAGE, {"one.maybe", "found -0.5", "or auto"}},
    {"one: {maybe: null}", ERR_USAGE, {"one.maybe", "found null", "or auto"}},
    {"one: {seconds: 10 m}", ERR_USAGE, {"one.seconds", "found \"10 m\"", "such as 10m"}},
    {"one: {seconds: 1h30}", ERR_USAGE, {"one.seconds", "found \"1h30\"", "such as 10m"}},
    {"one: {seconds: 10x}", ERR_USAGE, {"one.seconds", "10x"}},
    {"one: {seconds: 0s}", ERR_USAGE, {"one.seconds", "found \"0s\""}},
    {"one: {seconds: -1}", ERR_USAGE, {"one.seconds", "found -1"}},
    {"one: {text: 12}", ERR_USAGE, {"one.text", "found 12", "quotes"}},
    {"one: {text: true}", ERR_USAGE, {"one.text", "found true", "quotes"}},
    {"one: {text: [a]}", ERR_USAGE, {"one.text", "found [\"a\"]", "a text"}},
    {"one: {text: ''}", ERR_USAGE, {"one.text", "empty"}},
    {"one: {name: gren}", ERR_USAGE, {"one.name", "gren", "did you mean green?"}},
    {"one: {name: purple}", ERR_USAGE, {"one.name", "purple", "red | green | blue"}},
    {"one: {name: 3}", ERR_USAGE, {"one.name", "found 3", "red | green | blue"}},
    {"one: {color: blue}",
     ERR_UNSUPPORTED,
     {"one.color", "blue is not available yet", "red green"}},
    {"one: {color: bleu}", ERR_USAGE, {"one.color", "did you mean blue?"}},
    {"one: {bytes: 5XB}", ERR_USAGE, {"one.bytes", "5XB", "such as 5GB"}},
    {"one: {bytes: 0}", ERR_USAGE, {"one.bytes", "found 0"}},
    {"one: {bytes: 99999999TB}", ERR_USAGE, {"one.bytes", "99999999TB"}},
    {"two: {split: []}", ERR_USAGE, {"two.split", "empty list", "or null"}},
    {"two: {split: [2, 0]}", ERR_USAGE, {"two.split[1]", "found 0", "at least 1"}},
    {"two: {split: [1.5]}", ERR_USAGE, {"two.split[0]", "found 1.5"}},
    {"two: {split: {a: 1}}", ERR_USAGE, {"two.split", "found {\"a\": 1}"}},
    {"two: {steps: [8]}", ERR_UNSUPPORTED, {"two.steps", "[8] is not available yet"}},
    {"two: {steps: null}", ERR_USAGE, {"two.steps", "found null"}},
    {"two: {betas: [0.9]}", ERR_USAGE, {"two.betas", "found [0.9", "two numbers"}},
    {"two: {betas: 0.9}", ERR_USAGE, {"two.betas", "found 0.9", "two numbers"}},
    {"two: {betas: [0.9, 1]}", ERR_USAGE, {"two.betas", "out of range", "below 1"}},
    {"two: {betas: [a, 0]}", ERR_USAGE, {"two.betas", "two numbers"}},
    {"two: {names: [rad]}", ERR_USAGE, {"two.names[0]", "did you mean red?"}},
    {"two: {names: [red, blue]}", ERR_UNSUPPORTED, {"two.names", "blue", "not available yet"}},
    {"two: {files: [1]}", ERR_USAGE, {"two.files[0]", "found 1", "quotes"}},
    {"two: {items: [{ratio: 1}]}", ERR_USAGE, {"two.items[0].path", "missing"}},
    {"two: {items: [{path: a, ration: 1}]}",
     ERR_USAGE,
     {"two.items[0]", "unknown key ration", "did you mean ratio?"}},
    {"two: {items: [{path: a, ratio: 0}]}",
     ERR_USAGE,
     {"two.items[0].ratio", "found 0", "above 0"}},
    {"two: {items: [{path: a, on: false}]}",
     ERR_UNSUPPORTED,
     {"two.items[0].on", "false is not available yet"}},
    {"two: {items: [3]}", ERR_USAGE, {"two.items[0]", "found 3"}},
    {"two: {items: [[a]]}", ERR_USAGE, {"two.items[0]", "found [\"a\"]"}},
    {"one: {smal: 1}", ERR_USAGE, {"a.yaml:1:7", "one.smal", "did you mean one.small?"}},
    {"one:\n  betas: 1", ERR_USAGE, {"a.yaml:2:3", "one.betas", "did you mean two.betas?"}},
    {"one: {zzzzzzzzz: 1}", ERR_USAGE, {"one.zzzzzzzzz", "keys of one: flag, small"}},
    {"onne: {small: 1}", ERR_USAGE, {"a.yaml:1:1", "unknown section onne", "did you mean one?"}},
    {"small: 1", ERR_USAGE, {"unknown section small", "did you mean one.small?"}},
    {"qqqqqqq: 1", ERR_USAGE, {"unknown section qqqqqqq", "one, two"}},
    {"one: {small: 1}\none.small: 1",
     ERR_USAGE,
     {"a.yaml: unknown section one.small", "below its section"}},
    {"one: 3", ERR_USAGE, {"a.yaml:1:1: one", "keys below it"}},
    {"one: [small]", ERR_USAGE, {"a.yaml:1:1: one", "keys below it"}},
    {"[one]", ERR_USAGE, {"a.yaml: expected sections"}},
    {"text", ERR_USAGE, {"a.yaml: expected sections"}},
};

static void options__errors_name_place_key_found_and_expected(void **state)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        All all;
        Status st = read(&all, errors[i].yaml, *state);
        if (st != errors[i].status)
            fail_msg("%s: status %d, %s", errors[i].yaml, st, status_message());
        for (int k = 0; k < 4 && errors[i].says[k]; k++)
            if (!strstr(status_message(), errors[i].says[k]))
                fail_msg("%s: not \"%s\" in: %s", errors[i].yaml, errors[i].says[k],
                         status_message());
    }
}

static const struct {
    const char *set;
    Status status;
    const char *says[3];
} set_errors[] = {
    {"one.small", ERR_USAGE, {"--set one.small", "section.key=value"}},
    {"=3", ERR_USAGE, {"--set", "unknown section"}},
    {"one=3", ERR_USAGE, {"one is a section"}},
    {"small=3", ERR_USAGE, {"did you mean one.small?"}},
    {"on.small=3", ERR_USAGE, {"unknown section on", "did you mean one?"}},
    {"one.smal=3", ERR_USAGE, {"one.smal", "did you mean one.small?"}},
    {"one.small=0", ERR_USAGE, {"--set: one.small", "found 0", "from 1 to 10"}},
    {"one.small=", ERR_USAGE, {"one.small", "found nothing"}},
    {"one.color=blue", ERR_UNSUPPORTED, {"--set: one.color: blue is not available yet"}},
    {"two.split=[1", ERR_FORMAT, {"--set two.split:2:1"}},
    {"two.files=*x", ERR_FORMAT, {"--set two.files:1:1", "quote"}},
    {"one.text=a: b", ERR_USAGE, {"one.text", "found {"}},
};

static void options__set_errors_name_the_key(void **state)
{
    All all;
    assert_int_equal(options_defaults(&all, sections, *state), OK);
    for (size_t i = 0; i < sizeof set_errors / sizeof set_errors[0]; i++) {
        Status st = options_set(&all, sections, set_errors[i].set, *state);
        if (st != set_errors[i].status)
            fail_msg("%s: status %d, %s", set_errors[i].set, st, status_message());
        for (int k = 0; k < 3 && set_errors[i].says[k]; k++)
            if (!strstr(status_message(), set_errors[i].says[k]))
                fail_msg("%s: not \"%s\" in: %s", set_errors[i].set, set_errors[i].says[k],
                         status_message());
    }
}

static void options__set_takes_what_looks_like_a_number_as_a_text(void **state)
{
    All all;
    assert_int_equal(options_defaults(&all, sections, *state), OK);
    assert_int_equal(options_set(&all, sections, "one.text=0012", *state), OK);
    assert_string_equal(all.one.text, "0012");
    assert_int_equal(options_set(&all, sections, "one.text=true", *state), OK);
    assert_string_equal(all.one.text, "true");
    assert_int_equal(options_set(&all, sections, "one.text=a=b", *state), OK);
    assert_string_equal(all.one.text, "a=b");
    assert_int_equal(options_set(&all, sections, "one.text=null", *state), OK);
    assert_null(all.one.text);
}

static void options__empty_document_and_empty_section_change_nothing(void **state)
{
    All all, defaults;
    assert_int_equal(options_defaults(&defaults, sections, *state), OK);
    assert_int_equal(read(&all, "", *state), OK);
    assert_string_equal(dump(&all, *state), dump(&defaults, *state));
    assert_int_equal(read(&all, "one:\ntwo:\n  # split: [1]\n", *state), OK);
    assert_string_equal(dump(&all, *state), dump(&defaults, *state));
}

static void options__command_line_text_is_taken_as_it_is(void **state)
{
    One one;
    Two two;
    assert_int_equal(option_defaults(&one, one_rows, *state), OK);
    assert_int_equal(option_defaults(&two, two_rows, *state), OK);
    const OptionSpec *text = &one_rows[6], *small = &one_rows[1], *files = &two_rows[4];
    assert_int_equal(option_read_text(&one, text, "run", "a: *b", *state), OK);
    assert_string_equal(one.text, "a: *b");
    assert_int_equal(option_read_text(&one, text, "run", "", *state), OK);
    assert_string_equal(one.text, "");
    assert_int_equal(option_read_text(&two, files, "run", "c: d", *state), OK);
    assert_int_equal(two.files.n, 3);
    assert_string_equal(two.files.at[2], "c: d");
    assert_int_equal(option_read_text(&one, small, "run", "7", *state), OK);
    assert_int_equal(one.small, 7);
    assert_int_equal(option_read_text(&one, small, "run", "70", *state), ERR_USAGE);
    assert_non_null(strstr(status_message(), "run: --small: out of range (found 70"));
    assert_int_equal(option_read_text(&one, small, "run", "[", *state), ERR_FORMAT);
    assert_non_null(strstr(status_message(), "run: --small"));
}

typedef struct Seen {
    char text[200];
    int n, maths;
} Seen;

static void see(void *context, const char *key, const char *a, const char *b,
                const OptionSpec *spec)
{
    Seen *seen = context;
    size_t used = strlen(seen->text);
    snprintf(seen->text + used, sizeof seen->text - used, "%s %s %s;", key, a, b);
    seen->n++;
    seen->maths += spec->maths;
}

static void options__compare_visits_what_differs(void **state)
{
    All a, b;
    Seen seen = {.n = 0};
    assert_int_equal(read(&a, "one: {text: x}", *state), OK);
    assert_int_equal(read(&b, "one: {text: x}", *state), OK);
    options_compare(sections, &a, &b, *state, see, &seen);
    assert_int_equal(seen.n, 0);
    assert_int_equal(read(&b, "one: {text: y, large: 4}\ntwo: {files: []}", *state), OK);
    options_compare(sections, &a, &b, *state, see, &seen);
    assert_string_equal(seen.text, "one.large null 4;one.text x \"y\";two.files [a, b] [];");
    assert_int_equal(seen.maths, 1);
}

static void options__help_names_every_key(void **state)
{
    TextBuffer out;
    text_buffer_init(&out, *state);
    options_help(&out, sections);
    for (const OptionSection *s = sections; s->name; s++) {
        assert_non_null(strstr(out.text, text_format(*state, "%s: %s\n", s->name, s->help)));
        for (const OptionSpec *spec = s->specs; spec->name; spec++) {
            assert_non_null(strstr(out.text, text_format(*state, "  %s: ", spec->name)));
            assert_non_null(strstr(out.text, spec->help));
        }
    }
    assert_non_null(strstr(out.text, "  color: red "));
    assert_non_null(strstr(out.text, "available: red green"));
    assert_non_null(strstr(out.text, "a whole number from 1 to 10"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options__defaults_come_from_the_rows),
        cmocka_unit_test(options__value_is_read_from_file_and_set_and_dumped),
        cmocka_unit_test(options__errors_name_place_key_found_and_expected),
        cmocka_unit_test(options__set_errors_name_the_key),
        cmocka_unit_test(options__set_takes_what_looks_like_a_number_as_a_text),
        cmocka_unit_test(options__empty_document_and_empty_section_change_nothing),
        cmocka_unit_test(options__command_line_text_is_taken_as_it_is),
        cmocka_unit_test(options__compare_visits_what_differs),
        cmocka_unit_test(options__help_names_every_key),
    };
    return cmocka_run_group_tests(tests, arena_setup, arena_teardown);
}
