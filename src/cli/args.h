#pragma once
/**
 * The command line: argv by a command's tables into its struct; and the help those tables give.
 *
 *   --name value   --name=value   --flag   positions in any place   -- ends the options
 *
 * An option given twice is an error, but for lists, which grow. A value may begin with one dash (a
 * negative number), not with two: write --name=--value then.
 */
#include "cli/command.h"

/**
 * args (command->args_size bytes, zeroed) gets defaults and values. *help: --help or -h was there, and
 * nothing else was looked at.
 * Errors: ERR_USAGE "COMMAND: --name: …", naming the nearest known option.
 */
Status args_parse(const Command *command, int argc, char *const *argv, void *args, bool *help,
                  Arena *arena) MUST_USE;
/** Append what `stagewright COMMAND --help` prints, without the configuration keys. */
void args_help(TextBuffer *out, const Command *command);
/** Text in lines of at most `width` columns, each after `indent` blanks. */
void args_wrap(TextBuffer *out, const char *text, int indent, int width);
