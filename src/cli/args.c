#include "cli/args.h"

#include <string.h>

enum { MAX_OPTIONS = 64, HELP_WIDTH = 96 };

static const OptionSpec no_options[] = {{0}};
static const ArgPosition no_positions[] = {{0}};

static const OptionSpec *options_of(const Command *command)
{
    return command->options ? command->options : no_options;
}

static const ArgPosition *positions_of(const Command *command)
{
    return command->positions ? command->positions : no_positions;
}

/* ---- parsing --------------------------------------------------------------------------------------- */

typedef struct Parser {
    const Command *command;
    int argc, at;
    char *const *argv;
    void *args;
    bool seen[MAX_OPTIONS];
    int n_positions;
    Arena *arena;
} Parser;

static bool is_list(const OptionSpec *spec)
{
    return spec->type == OPT_TEXTS;
}

static Status unknown_option(const Parser *parser, const char *name)
{
    const char *names[MAX_OPTIONS + 2];
    int n = 0;
    for (const OptionSpec *spec = options_of(parser->command); spec->name; spec++)
        names[n++] = spec->name;
    names[n++] = "help";
    names[n] = NULL;
    const char *near = text_nearest(name, names);
    return FAIL(ERR_USAGE, "%s: unknown option --%.100s%s%s%s", parser->command->name, name,
                near ? ", did you mean --" : "; see stagewright ",
                near ? near : parser->command->name, near ? "?" : " --help");
}

static Status take_value(Parser *parser, const OptionSpec *spec, const char *value)
{
    return option_read_text(parser->args, spec, parser->command->name, value, parser->arena);
}

/* --name, --name value, --name=value; argv[at] is the option. */
static Status take_option(Parser *parser)
{
    const char *command = parser->command->name, *word = parser->argv[parser->at++] + 2;
    size_t n = strcspn(word, "=");
    const char *name = text_copy_n(parser->arena, word, n);
    const char *value = word[n] ? word + n + 1 : NULL;
    const OptionSpec *spec = options_of(parser->command);
    int index = 0;
    for (; spec->name && strcmp(spec->name, name); spec++) index++;
    if (!spec->name) return unknown_option(parser, name);
    if (parser->seen[index] && !is_list(spec))
        return FAIL(ERR_USAGE, "%s: --%s is given twice", command, name);
    parser->seen[index] = true;

    if (spec->type == OPT_BOOL) {
        if (value)
            return FAIL(ERR_USAGE, "%s: --%s takes no value (found %.100s)", command, name, value);
        return take_value(parser, spec, "true");
    }
    if (value) return take_value(parser, spec, value);
    int first = parser->at;
    while (parser->at < parser->argc && (spec->rest || parser->at == first) &&
           strncmp(parser->argv[parser->at], "--", 2))
        TRY(take_value(parser, spec, parser->argv[parser->at++]));
    if (parser->at > first) return OK;
    TextBuffer expected;
    text_buffer_init(&expected, parser->arena);
    option_append_expected(&expected, spec);
    const char *next = first < parser->argc ? parser->argv[first] : "nothing";
    return FAIL(ERR_USAGE, "%s: --%s needs a value (found %.100s, expected %s)", command, name,
                next, expected.text);
}

static Status take_position(Parser *parser)
{
    const char *value = parser->argv[parser->at++];
    const ArgPosition *position = positions_of(parser->command);
    for (int i = 0; i < parser->n_positions && position->name; i++) position++;
    if (!position->name)
        return FAIL(ERR_USAGE, "%s: one argument too many (found %.200s, expected %s %s)",
                    parser->command->name, value, parser->command->name, parser->command->usage);
    *(const char **)(void *)((char *)parser->args + position->offset) =
        text_copy(parser->arena, value);
    parser->n_positions++;
    return OK;
}

static Status check_complete(const Parser *parser)
{
    const Command *command = parser->command;
    int i = 0;
    for (const ArgPosition *p = positions_of(command); p->name; p++, i++)
        if (i >= parser->n_positions && !p->optional)
            return FAIL(ERR_USAGE, "%s: %s is missing (expected %s %s)", command->name, p->name,
                        command->name, command->usage);
    i = 0;
    for (const OptionSpec *spec = options_of(command); spec->name; spec++, i++)
        if (spec->required && !parser->seen[i])
            return FAIL(ERR_USAGE, "%s: --%s is missing (expected %s %s)", command->name,
                        spec->name, command->name, command->usage);
    return OK;
}

static bool asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

Status args_parse(const Command *command, int argc, char *const *argv, void *args, bool *help,
                  Arena *arena)
{
    *help = asks_for_help(argc, argv);
    if (*help) return OK;
    TRY(option_defaults(args, options_of(command), arena));
    Parser parser = {.command = command, .argc = argc, .argv = argv, .args = args, .arena = arena};
    bool options_end = false;
    while (parser.at < argc) {
        const char *word = argv[parser.at];
        if (!options_end && !strcmp(word, "--")) {
            options_end = true;
            parser.at++;
        } else if (!options_end && !strncmp(word, "--", 2)) {
            TRY(take_option(&parser));
        } else if (!options_end && word[0] == '-' && word[1]) {
            return unknown_option(&parser, word + 1);
        } else {
            TRY(take_position(&parser));
        }
    }
    return check_complete(&parser);
}

/* ---- help ------------------------------------------------------------------------------------------ */

void args_wrap(TextBuffer *out, const char *text, int indent, int width)
{
    int column = 0;
    while (*text) {
        size_t blank = strspn(text, " "), word = strcspn(text + blank, " \n");
        int step = (int)(word + (column ? blank : 0));
        if (column && (text[blank] == '\n' || column + step > width)) {
            text_append(out, "\n", 1);
            column = 0;
        }
        if (text[blank] == '\n') {
            text += blank + 1;
            if (*text == '\n') text_append(out, "\n", 1);
            continue;
        }
        if (column == 0) {
            text_append_format(out, "%*s", indent, "");
            column = indent;
            text += blank;
            blank = 0;
        }
        text_append(out, text, blank + word);
        column += (int)(blank + word);
        text += blank + word;
    }
    if (column) text_append(out, "\n", 1);
}

static const char *value_name(const OptionSpec *spec, Arena *arena)
{
    if (spec->type == OPT_BOOL) return "";
    if (spec->value) return text_format(arena, " %s", spec->value);
    switch (spec->type) {
    case OPT_INT: return " N";
    case OPT_REAL: return " X";
    case OPT_SIZE: return " SIZE";
    case OPT_DURATION: return " TIME";
    case OPT_NAME:
    case OPT_ENUM: return " NAME";
    case OPT_INTS: return " N,…";
    case OPT_PAIR: return " X,Y";
    default: return " TEXT";
    }
}

static void help_row(TextBuffer *out, const char *name, const char *help)
{
    text_append_format(out, "  %s\n", name);
    args_wrap(out, help, 6, HELP_WIDTH);
}

static void help_option(TextBuffer *out, const OptionSpec *spec)
{
    Arena *arena = out->arena;
    const char *name =
        text_format(arena, "--%s%s%s", spec->name, value_name(spec, arena), spec->rest ? "…" : "");
    TextBuffer help;
    text_buffer_init(&help, arena);
    text_append_format(&help, "%s", spec->help);
    if (spec->limit.choices) {
        text_append_format(&help, "; ");
        option_append_expected(&help, spec);
    }
    if (is_list(spec) && !spec->rest) text_append_format(&help, "; may be given several times");
    if (spec->required) text_append_format(&help, "; required");
    if (spec->fallback && !is_list(spec) && spec->type != OPT_BOOL && !spec->required)
        text_append_format(&help, " (default %s)", spec->fallback);
    help_row(out, name, help.text);
}

void args_help(TextBuffer *out, const Command *command)
{
    text_append_format(out, "stagewright %s %s\n\n", command->name, command->usage);
    args_wrap(out, command->about, 0, HELP_WIDTH);
    if (positions_of(command)->name) text_append_format(out, "\nArguments:\n");
    for (const ArgPosition *p = positions_of(command); p->name; p++)
        help_row(out, p->name, p->help);
    if (options_of(command)->name) text_append_format(out, "\nOptions:\n");
    for (const OptionSpec *spec = options_of(command); spec->name; spec++) help_option(out, spec);
    text_append_format(out, "\nExample:\n");
    args_wrap(out, command->example, 2, 1000);
}
