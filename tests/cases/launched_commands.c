/*
 * Runs many commands in one launch: launched_commands FILE. All processes read the same file, a command's name and
 * arguments a line each, an empty line behind each command. Ends as the program would with the first that fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/runs.h"
#include "cli/command.h"

/* The next command's lines; false at the end of the file. */
static bool read_lines(FILE *in, Arguments *lines)
{
    char line[2048];
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = '\0';
        if (!line[0]) return true;
        arguments_add(lines, "%s", line);
    }
    return false;
}

static Status run_lines(const Arguments *lines, const World *world)
{
    static const Command *const commands[] = {&command_train, &command_probe};
    Arguments args = {.n = lines->n - 1};
    memcpy(args.at, lines->at + 1, (size_t)args.n * sizeof *args.at);
    for (size_t k = 0; k < COUNT(commands); k++) {
        if (strcmp(commands[k]->name, lines->at[0]) != 0) continue;
        Status status = world_all_ok(world, command_inside(commands[k], &args, world));
        if (status != OK && world->rank == 0) print_arguments(lines->at[0], &args);
        return status;
    }
    return FAIL(ERR_USAGE, "unknown command %s", lines->at[0]);
}

int main(int argc, char **argv)
{
    World world;
    Status status = world_open(&world);
    FILE *in = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (status == OK && !in) status = FAIL(ERR_USAGE, "launched_commands: no file");
    Arguments lines = {0};
    while (status == OK && read_lines(in, &lines)) {
        status = run_lines(&lines, &world);
        arguments_free(&lines);
    }
    if (in) fclose(in);
    bool speaks;
    status = world_settle(&world, status, &speaks);
    if (speaks) fprintf(stderr, "stagewright: error: %s\n", status_message());
    world_close(&world, status);
    return status_exit_code(status);
}
