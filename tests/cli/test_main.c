#include "program.h"

#include "train/config.h"

static const char *const commands[] = {"init",     "train",   "probe",    "generate", "eval",
                                       "tokenize", "inspect", "schedule", "export"};

static void main__overview_lists_the_commands(void **state)
{
    Ran ran = assert_runs(*state, "--help");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        assert_says("--help", ran.out, WORDS(commands[i]));
    assert_says("--help", ran.out, WORDS("plan", "report", "not available yet", "Exit status"));
    assert_string_equal(ran.err, "");
    assert_string_equal(assert_runs(*state, "-h").out, ran.out);
}

static void main__version(void **state)
{
    assert_string_equal(assert_runs(*state, "--version").out, "stagewright " SW_VERSION "\n");
}

static void main__without_a_command_it_explains_and_refuses(void **state)
{
    Ran ran = run_program(*state, "");
    assert_int_equal(ran.status, 2);
    assert_string_equal(ran.out, "");
    assert_says("", ran.err, WORDS("Commands:", "stagewright: error: no command"));
}

static void main__unknown_words_name_the_nearest(void **state)
{
    assert_refused(*state, "trian", WORDS("unknown command trian, did you mean train?"));
    assert_refused(*state, "shedule", WORDS("did you mean schedule?"));
    assert_refused(*state, "xyzzyxyzzy", WORDS("unknown command xyzzyxyzzy", "--help"));
    assert_refused(*state, "--versoin", WORDS("unknown option --versoin, did you mean --version?"));
    assert_refused(*state, "inspect --jsn x", WORDS("inspect: unknown option --jsn", "--json?"));
}

static void main__commands_not_there_yet_say_so(void **state)
{
    assert_refused(*state, "plan a.yaml", WORDS("plan is not available yet"));
    assert_refused(*state, "report runs/x", WORDS("report is not available yet"));
    assert_refused(*state, "plan --help", WORDS("plan is not available yet"));
}

static void main__every_command_explains_itself(void **state)
{
    Temp *temp = *state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *line = text_format(&temp->arena, "%s --help", commands[i]);
        Ran ran = assert_runs(temp, line);
        assert_says(
            line, ran.out,
            WORDS(text_format(&temp->arena, "stagewright %s ", commands[i]), "\nExample:\n"));
        assert_string_equal(ran.err, "");
    }
}

static void main__help_of_train_has_every_key(void **state)
{
    Temp *temp = *state;
    Ran ran = assert_runs(temp, "train --help");
    for (const OptionSection *s = config_sections(); s->name; s++) {
        assert_says("train --help", ran.out, WORDS(text_format(&temp->arena, "\n%s: ", s->name)));
        for (const OptionSpec *spec = s->specs; spec->name; spec++)
            assert_says("train --help", ran.out,
                        WORDS(text_format(&temp->arena, "\n  %s: ", spec->name)));
    }
}

static void main__a_full_disk_is_an_error(void **state)
{
    if (access("/dev/full", W_OK)) skip();
    Temp *temp = *state;
    int status = system(text_format(&temp->arena, "'%s' --help >/dev/full 2>'%s'", SW_PROGRAM,
                                    temp_path(temp, "stderr.txt")));
    assert_int_equal(WEXITSTATUS(status), 1);
    char *err;
    assert_ok(file_read(&temp->arena, temp_path(temp, "stderr.txt"), &err, NULL));
    assert_says("--help", err, WORDS("stagewright: error: standard output"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(main__overview_lists_the_commands),
        TEMP_TEST(main__version),
        TEMP_TEST(main__without_a_command_it_explains_and_refuses),
        TEMP_TEST(main__unknown_words_name_the_nearest),
        TEMP_TEST(main__commands_not_there_yet_say_so),
        TEMP_TEST(main__every_command_explains_itself),
        TEMP_TEST(main__help_of_train_has_every_key),
        TEMP_TEST(main__a_full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
