#include "../io/temp_dir.h"

#include "cli/args.h"

#include <math.h>

typedef struct Args {
    const char *model, *file, *text;
    int64_t n;
    double x;
    bool json;
    TextList sets, data;
    int64_t size;
} Args;

// clang-format off
static const ArgPosition positions[] = {
    {"MODEL", offsetof(Args, model), false, "the model"},
    {"FILE",  offsetof(Args, file),  true,  "the file"},
    {0}};
static const OptionSpec options[] = {
    {"text", OPT_TEXT,  OPTION_AT(Args, text), NULL,    OPTION_ANY, .help = "a text"},
    {"max-n", OPT_INT,  OPTION_AT(Args, n),    "256",   OPTION_RANGE(-5, 1000), .help = "a number"},
    {"x",    OPT_REAL,  OPTION_AT(Args, x),    NULL,    OPTION_AT_LEAST(0), .help = "a real"},
    {"json", OPT_BOOL,  OPTION_AT(Args, json), "false", OPTION_ANY, .help = "a flag"},
    {"set",  OPT_TEXTS, OPTION_AT(Args, sets), "[]",    OPTION_ANY, .help = "a key", .value = "KEY=VALUE"},
    {"data", OPT_TEXTS, OPTION_AT(Args, data), "[]",    OPTION_ANY, .help = "files", .value = "FILE", .rest = true, .required = true},
    {"size", OPT_SIZE,  OPTION_AT(Args, size), "5GB",   OPTION_AT_LEAST(1), .help = "a size"},
    {0}};
// clang-format on

static const Command command = {
    .name = "try",
    .usage = "MODEL [FILE] --data FILE…",
    .about = "About it.",
    .example = "stagewright try m --data a",
    .positions = positions,
    .options = options,
    .args_size = sizeof(Args),
};

enum { MAX_WORDS = 16 };

/* Words are parted by one '|', since they may hold blanks. */
static Status parse(Args *args, bool *help, const char *line, Arena *arena)
{
    char *copy = text_copy(arena, line), *argv[MAX_WORDS];
    int argc = 0;
    for (char *at = copy; *copy;) {
        argv[argc++] = at;
        at = strchr(at, '|');
        if (!at) break;
        *at++ = '\0';
    }
    *args = (Args){0};
    return args_parse(&command, argc, argv, args, help, arena);
}

static void args__values_arrive(void **state)
{
    Arena *arena = &((Temp *)*state)->arena;
    Args args;
    bool help;
    assert_ok(parse(&args, &help, "m|--data|a", arena));
    assert_false(help);
    assert_string_equal(args.model, "m");
    assert_null(args.file);
    assert_null(args.text);
    assert_int_equal(args.n, 256);
    assert_true(isnan(args.x));
    assert_false(args.json);
    assert_int_equal(args.sets.n, 0);
    assert_int_equal(args.size, 5000000000);

    assert_ok(
        parse(&args, &help,
              "--json|m|--set|a.b=c|f|--max-n=-3|--text|- a: *b|--set=x=y=z|--data|p|q|--x|.5|"
              "--size=1K",
              arena));
    assert_true(args.json);
    assert_string_equal(args.model, "m");
    assert_string_equal(args.file, "f");
    assert_int_equal(args.n, -3);
    assert_string_equal(args.text, "- a: *b");
    assert_int_equal(args.sets.n, 2);
    assert_string_equal(args.sets.at[0], "a.b=c");
    assert_string_equal(args.sets.at[1], "x=y=z");
    assert_int_equal(args.data.n, 2);
    assert_string_equal(args.data.at[1], "q");
    assert_true(args.x == 0.5);
    assert_int_equal(args.size, 1000);
}

static void args__values_may_begin_with_dashes(void **state)
{
    Arena *arena = &((Temp *)*state)->arena;
    Args args;
    bool help;
    assert_ok(parse(&args, &help, "m|--data|a|--max-n|-3|--text=--x", arena));
    assert_int_equal(args.n, -3);
    assert_string_equal(args.text, "--x");
    assert_ok(parse(&args, &help, "--data|a|--|--m|-f", arena));
    assert_string_equal(args.model, "--m");
    assert_string_equal(args.file, "-f");
    assert_ok(parse(&args, &help, "-|--data|a", arena));
    assert_string_equal(args.model, "-");
    assert_ok(parse(&args, &help, "m|--data|a|--text=", arena));
    assert_string_equal(args.text, "");
}

static void args__help_wins_over_errors(void **state)
{
    Arena *arena = &((Temp *)*state)->arena;
    Args args;
    bool help;
    assert_ok(parse(&args, &help, "--wrong|--help", arena));
    assert_true(help);
    assert_ok(parse(&args, &help, "-h", arena));
    assert_true(help);
    assert_ok(parse(&args, &help, "m|--data|a|--|--help", arena));
    assert_false(help);
    assert_string_equal(args.file, "--help");
}

static const struct {
    const char *line;
    Status status;
    const char *says[3];
} errors[] = {
    {"", ERR_USAGE, {"try: MODEL is missing", "expected try MODEL [FILE]"}},
    {"m", ERR_USAGE, {"try: --data is missing"}},
    {"m|f|g|--data|a", ERR_USAGE, {"one argument too many", "found g"}},
    {"m|--data|a|--maxn|3", ERR_USAGE, {"unknown option --maxn", "did you mean --max-n?"}},
    {"m|--data|a|--quite-other", ERR_USAGE, {"unknown option --quite-other", "try --help"}},
    {"m|--data|a|--hepl", ERR_USAGE, {"did you mean --help?"}},
    {"-n|m|--data|a", ERR_USAGE, {"unknown option"}},
    {"m|--data|a|--max-n", ERR_USAGE, {"--max-n needs a value", "nothing", "from -5 to 1000"}},
    {"m|--data|a|--max-n|--json", ERR_USAGE, {"--max-n needs a value", "found --json"}},
    {"m|--data", ERR_USAGE, {"--data needs a value"}},
    {"m|--data|--json", ERR_USAGE, {"--data needs a value", "--json"}},
    {"m|--data|a|--max-n|x", ERR_USAGE, {"try: --max-n", "found \"x\"", "a whole number"}},
    {"m|--data|a|--max-n|1001", ERR_USAGE, {"try: --max-n", "found 1001", "from -5 to 1000"}},
    {"m|--data|a|--max-n|1|--max-n|2", ERR_USAGE, {"--max-n is given twice"}},
    {"m|--data|a|--json|--json", ERR_USAGE, {"--json is given twice"}},
    {"m|--data|a|--json=true", ERR_USAGE, {"--json takes no value", "true"}},
    {"m|--data|a|--size|5XB", ERR_USAGE, {"--size", "5XB", "such as 5GB"}},
    {"m|--data|a|--x|[", ERR_FORMAT, {"try: --x"}},
};

static void args__errors_name_option_and_value(void **state)
{
    Arena *arena = &((Temp *)*state)->arena;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        Args args;
        bool help;
        Status st = parse(&args, &help, errors[i].line, arena);
        if (st != errors[i].status) fail_msg("%s: status %d", errors[i].line, st);
        for (int k = 0; k < 3 && errors[i].says[k]; k++) assert_message(errors[i].says[k]);
    }
}

static void args__help_names_everything(void **state)
{
    TextBuffer out;
    text_buffer_init(&out, &((Temp *)*state)->arena);
    args_help(&out, &command);
    static const char *const words[] = {"stagewright try MODEL [FILE] --data FILE…\n",
                                        "About it.",
                                        "  MODEL\n      the model\n",
                                        "  --max-n N\n      a number (default 256)\n",
                                        "  --json\n",
                                        "  --set KEY=VALUE\n",
                                        "  --data FILE…\n      files; required\n",
                                        "  --size SIZE\n",
                                        "may be given several times",
                                        "Example:\n  stagewright try m --data a\n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(out.text, words[i])) fail_msg("\"%s\" is not in %s", words[i], out.text);
}

static void args__wrap_keeps_lines_within_the_width(void **state)
{
    static const struct {
        const char *text;
        int indent, width;
        const char *wrapped;
    } rows[] = {
        {"one two three", 0, 7, "one two\nthree\n"},
        {"one two three", 2, 7, "  one\n  two\n  three\n"},
        {"extraordinary words", 0, 5, "extraordinary\nwords\n"},
        {"a b\nc d", 1, 20, " a b\n c d\n"},
        {"a  b", 0, 20, "a  b\n"},
        {"", 0, 20, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        TextBuffer out;
        text_buffer_init(&out, &((Temp *)*state)->arena);
        args_wrap(&out, rows[i].text, rows[i].indent, rows[i].width);
        assert_string_equal(out.text, rows[i].wrapped);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(args__values_arrive),         TEMP_TEST(args__values_may_begin_with_dashes),
        TEMP_TEST(args__help_wins_over_errors), TEMP_TEST(args__errors_name_option_and_value),
        TEMP_TEST(args__help_names_everything), TEMP_TEST(args__wrap_keeps_lines_within_the_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
