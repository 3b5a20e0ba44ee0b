#pragma once
/**
 * The room cli: one file per command, each a row of data and a function; main.c holds the list. A
 * command parses its arguments into a struct by the tables here, calls the rooms below, and prints.
 * Results go to stdout, everything else to stderr. It knows no maths.
 *
 *   typedef struct EvalArgs { const char *model; TextList data, sets; } EvalArgs;
 *   static const ArgPosition positions[] = {
 *       {"MODEL", offsetof(EvalArgs, model), false, "HuggingFace folder or checkpoint"}, {0}};
 *   static const OptionSpec options[] = {
 *       {"data", OPT_TEXTS, OPTION_AT(EvalArgs, data), "[]", OPTION_ANY, .help = "JSONL files", .value = "FILE", .required = true, .rest = true},
 *       {"set", OPT_TEXTS, OPTION_AT(EvalArgs, sets), "[]", OPTION_ANY, .help = "a configuration key", .value = "KEY=VALUE"},
 *       {0}};
 *   static Status run(const void *args_, const struct World *world, Arena *arena) {...}
 *   const Command command_eval = {.name = "eval", …};
 *
 * and in main.c a line in commands[].
 */
#include "io/options.h"

struct World; /* the processes of this start: comm/world.h */

/** An argument without a name. */
typedef struct ArgPosition {
    const char *name; /* as in the usage line: "MODEL"; NULL ends the table */
    size_t offset;    /* of a const char *, NULL when left out */
    bool optional;    /* the last ones may be */
    const char *help;
} ArgPosition;

typedef struct Command {
    const char *name;
    const char *summary;          /* one line, lower case, no full stop */
    const char *usage;            /* what follows "stagewright NAME" */
    const char *about;            /* a few sentences that teach what it does */
    const char *example;          /* one line, or a few */
    const ArgPosition *positions; /* NULL: none */
    const OptionSpec *options;    /* name "max-new-tokens" is --max-new-tokens; NULL: none */
    size_t args_size;             /* of the struct the two tables fill */
    bool config_help;             /* --help goes on with all configuration keys */
    bool all_ranks; /* launched, all processes run it; else process 0 does and the others wait */
    Status (*run)(const void *args, const struct World *world,
                  Arena *arena); /* NULL: known, but not available yet */
} Command;

extern const Command command_init, command_train, command_probe, command_generate, command_eval,
    command_tokenize, command_inspect, command_schedule, command_export;
