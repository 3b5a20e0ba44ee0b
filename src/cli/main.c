/**
 * stagewright COMMAND …: finds the command, parses its arguments, runs it, prints an error once and
 * turns the status into the exit code.
 */
#include "cli/args.h"
#include "cli/environment.h"
#include "train/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A command without `run` is known but not available yet. */
// clang-format off
static const Command command_plan     = {.name = "plan",     .summary = "memory and time per stage, before anything is run"};
static const Command command_report   = {.name = "report",   .summary = "one self-contained page about a run"};

static const Command *const commands[] = {
    &command_init,     &command_train, &command_probe,  &command_generate, &command_eval, &command_tokenize, &command_inspect,
    &command_schedule, &command_export, &command_plan,  &command_report,   NULL};
// clang-format on

static void print_overview(FILE *to)
{
    fprintf(to,
            "stagewright COMMAND …   trains Mixture-of-Experts language models, in pipelines of "
            "stages\n\nCommands:\n");
    for (int i = 0; commands[i]; i++)
        fprintf(to, "  %-10s %s%s\n", commands[i]->name, commands[i]->summary,
                commands[i]->run ? "" : " (not available yet)");
    fprintf(to,
            "\nstagewright COMMAND --help explains a command; stagewright --version.\n"
            "Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 the run "
            "failed;\n2 refused before it started; 3 stopped by a signal or train.stop_before "
            "after saving.\n");
}

static Status unknown_command(const char *name)
{
    const char *names[sizeof commands / sizeof commands[0]];
    int n = 0;
    for (; commands[n]; n++) names[n] = commands[n]->name;
    names[n] = NULL;
    const char *near = text_nearest(name, names);
    if (near) return FAIL(ERR_USAGE, "unknown command %.100s, did you mean %s?", name, near);
    return FAIL(ERR_USAGE, "unknown command %.100s; see stagewright --help", name);
}

static Status run_command(const Command *command, int argc, char **argv, const World *world,
                          Arena *arena)
{
    if (!command->run)
        return FAIL(ERR_UNSUPPORTED, "command %s is not available yet", command->name);
    void *args = arena_take_zeroed(arena, command->args_size ? command->args_size : 1);
    bool help;
    TRY(args_parse(command, argc, argv, args, &help, arena));
    if (!help) return command->run(args, world, arena);
    if (world->rank > 0) return OK;
    TextBuffer text;
    text_buffer_init(&text, arena);
    args_help(&text, command);
    if (command->config_help) {
        text_append_format(&text, "\nConfiguration keys, with their defaults (the form of the YAML "
                                  "file; --set section.key=value):\n\n");
        config_help(&text);
    }
    fputs(text.text, stdout);
    return OK;
}

/* Its place in the list; what is none of them is at the end. */
static int command_number(const char *word)
{
    int i = 0;
    while (commands[i] && !(word && !strcmp(commands[i]->name, word))) i++;
    return i;
}

static Status run(int argc, char **argv, const World *world, Arena *arena)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    int number = command_number(word);
    TRY(world_same(world, "COMMAND", (uint64_t)number));
    /* Process 0 alone answers what is no work for all; the others wait for it in world_settle. */
    if (world->rank > 0 && !(commands[number] && commands[number]->all_ranks)) return OK;
    if (!word) {
        print_overview(stderr);
        return FAIL(ERR_USAGE, "no command");
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
        print_overview(stdout);
        return OK;
    }
    if (!strcmp(word, "--version")) {
        printf("stagewright %s\n", SW_VERSION);
        return OK;
    }
    if (word[0] == '-') {
        static const char *const options[] = {"--help", "--version", NULL};
        const char *near = text_nearest(word, options);
        return FAIL(ERR_USAGE, "unknown option %.100s%s%s%s", word, near ? ", did you mean " : "",
                    near ? near : "; see stagewright --help", near ? "?" : "");
    }
    if (!commands[number]) return unknown_command(word);
    return run_command(commands[number], argc - 2, argv + 2, world, arena);
}

/* Else the first file we open gets the number of a closed stream, and the log goes into it. Writing still fails. */
static void fill_closed_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) return;
}

int main(int argc, char **argv)
{
    environment_prepare(argv);
    fill_closed_streams();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond a limit of the shell's fails, and is reported */
    Arena arena;
    arena_init(&arena, "command");
    World world;
    Status st = world_open(&world);
    if (st == OK) st = environment_check();
    if (st == OK) st = run(argc, argv, &world, &arena);
    /* What does not reach a full disk or a closed pipe is no result. */
    if ((fflush(stdout) || ferror(stdout)) && st == OK)
        st = FAIL(ERR_FAILED, "standard output: %s", strerror(errno));
    bool speaks;
    st = world_settle(&world, st, &speaks);
    if (speaks) fprintf(stderr, "stagewright: error: %s\n", status_message());
    arena_free(&arena);
    world_close(&world, st);
    return status_exit_code(st);
}
