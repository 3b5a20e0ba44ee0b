/*
 * What the system refuses: the n-th allocation, read, write, fsync, rename or message of a run fails, for n = 1, 2, 3, …
 * until the run has no such event any more. Whatever n: one line of ours, exit 2 before the start and 1 after it, no leak,
 * no crash, nobody left waiting, and nothing half written that looks whole. By default n grows by steps, with SW_FULL by one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cases/launched.h"
#include "cases/runs.h"

#ifdef SW_FAULTS
#define NEEDS_FAULTS
#else
#define NEEDS_FAULTS skip()
#endif

typedef struct Case {
    const char *command; /* words; $ is the test's folder */
    const char *result;  /* a file of the folder, the same bytes in every run that has it */
    const char
        *again; /* words that bring a run to its end that failed after its start; NULL: none */
    bool
        one_rank; /* events come in one order: nothing is refused for a larger n than the first failure */
    bool resumes; /* each run finds out as `start` is, and after a refusal too it must go on */
} Case;

static const char *const kinds[] = {"alloc", "read", "write", "fsync", "rename", "message"};
static char *folder;

static int make_inputs(void **state)
{
    (void)state;
    folder = folder_make();
    fixture_write_model(path_in(folder, "model"), &(Fixture){.n_layers = 2, .n_shards = 1});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_MASK, 1, 0);
    char text[2048];
    snprintf(text, sizeof text, "cp %s/tests/data/tokenizer/gpt2/tokenizer.json %s", SW_SOURCE_DIR,
             path_in(folder, "model"));
    if (system(text) != 0) fail_msg("%s", text);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids, pack: none}\n"
             "train: {output: %s/out, steps: 1, global_batch_size: 2, threads: 1}\n",
             folder, folder, folder);
    write_text(path_in(folder, "run.yaml"), text);
    write_text(path_in(folder, "text.jsonl"), "{\"text\": \"one two\"}\n{\"text\": \"three\"}\n");
    write_text(path_in(folder, "own.csv"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    setenv("OMP_WAIT_POLICY", "passive", 1); /* as the program would start itself again with */
    return 0;
}

static int remove_inputs(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

static void add_words(Arguments *args, const char *words)
{
    while (*words) {
        char word[1024];
        size_t n = 0;
        for (; *words && *words != ' '; words++)
            if (*words == '$')
                n += (size_t)snprintf(word + n, sizeof word - n, "%s", folder);
            else
                word[n++] = *words;
        word[n] = '\0';
        arguments_add(args, "%s", word);
        words += *words == ' ';
    }
}

static void clear(const char *name)
{
    if (path_exists(path_in(folder, "%s", name)))
        folder_remove(strdup(path_in(folder, "%s", name)));
}

static void begin(const Case *c)
{
    clear("out");
    char words[1200];
    snprintf(words, sizeof words, "cp -r %s/start %s/out", folder, folder);
    if (c->resumes && system(words) != 0) fail_msg("%s", words);
}

static int run_words(const char *words)
{
    Arguments args = {0};
    add_words(&args, words);
    int status = program_run(SW_PROGRAM, &args, folder, 60);
    arguments_free(&args);
    return status;
}

/* Lines of ours; *last: one of them is the last line. */
static int count_errors(bool *last)
{
    static const char prefix[] = "stagewright: error: ";
    char *text = read_text(path_in(folder, "err.txt"), NULL), *line = text;
    int n = 0;
    *last = false;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *last = !strncmp(line, prefix, strlen(prefix));
        n += *last;
    }
    if (*line) *last = false;
    if (strstr(text, "Sanitizer") || strstr(text, "runtime error")) n = -1;
    free(text);
    return n;
}

/* Whether a run that reached its fault ended as it should; else says how. */
static bool ended_well(const Case *c, const char *what, int status, bool whole)
{
    bool last;
    int n = count_errors(&last);
    const char *result = path_in(folder, "%s", c->result);
    bool ok = status == 0 ? n == 0 && whole : status <= 2 ? n == 1 && last : false;
    bool printed = !strcmp(c->result, "out.txt"); /* what was printed so far stays printed */
    if (ok && status != 0 && !printed && path_exists(result)) ok = whole;
    if (!ok) {
        fprintf(stderr, "  %s of %s: exit %d, %d lines of error, the result is %s\n", what,
                c->command, status, n, whole ? "whole" : "not whole");
        file_show(path_in(folder, "err.txt"));
    }
    return ok;
}

/* A run that failed after its start goes on to the same end. */
static bool goes_on(const Case *c, const char *what)
{
    if (!c->again) return true;
    char words[512];
    snprintf(words, sizeof words, "%s %s", c->command, c->again);
    int status = run_words(words);
    bool whole = files_equal(path_in(folder, "%s", c->result), path_in(folder, "want"));
    if (status != 0 || !whole) {
        fprintf(stderr, "  after %s, %s: exit %d, the result is %s\n", what, words, status,
                whole ? "whole" : "not whole");
        file_show(path_in(folder, "err.txt"));
    }
    return status == 0 && whole;
}

static long next(long n)
{
    return getenv("SW_FULL") ? n + 1 : n < 3 ? n + 1 : 2 * n + 1;
}

/* All n of a kind; returns the number of those that went wrong. */
static int try_kind(const Case *c, const char *kind)
{
    int wrong = 0, worst = 2, counts[3] = {0};
    long n = 1;
    for (;; n = next(n)) {
        begin(c);
        remove(path_in(folder, "mark"));
        char what[64], fault[1024];
        snprintf(what, sizeof what, "%s %ld", kind, n);
        snprintf(fault, sizeof fault, "%s:%ld:%s", kind, n, path_in(folder, "mark"));
        setenv("SW_FAULT", fault, 1);
        int status = run_words(c->command);
        unsetenv("SW_FAULT");
        bool whole = files_equal(path_in(folder, "%s", c->result), path_in(folder, "want"));
        bool ok = ended_well(c, what, status, whole);
        if (status >= 0 && status <= 2) counts[status]++;
        if (!path_exists(path_in(folder, "mark"))) {
            wrong += !ok || status != 0;
            break;
        }
        if (ok && status && c->one_rank && status > worst) {
            fprintf(stderr, "  %s of %s: refused after the start\n", what, c->command);
            ok = false;
        }
        if (status == 1) worst = 1;
        if (ok && (status == 1 || (status == 2 && c->resumes))) ok = goes_on(c, what);
        wrong += !ok;
    }
    printf("  %-7s up to %4ld: %d refused, %d failed, %d got over it   %s\n", kind, n - 1,
           counts[2], counts[1], counts[0] - 1, c->command);
    return wrong;
}

static void try_all(const Case *c)
{
    NEEDS_FAULTS;
    begin(c);
    clear("want");
    assert_int_equal(run_words(c->command), 0);
    assert_int_equal(rename(path_in(folder, "%s", c->result), path_in(folder, "want")), 0);
    int wrong = 0;
    for (size_t k = 0; k < COUNT(kinds); k++) wrong += try_kind(c, kinds[k]);
    clear("out");
    assert_int_equal(wrong, 0);
}

#define TRAIN "train $/run.yaml"
#define CONSTANT TRAIN " --set lr_schedule.type=constant"

static void faults__train(void **state)
{
    (void)state;
    try_all(
        &(Case){TRAIN, "out/hf/final/model.safetensors", .again = "--resume", .one_rank = true});
}

static void faults__train_on_text(void **state)
{
    (void)state;
    try_all(&(Case){TRAIN " --set data.train=[$/text.jsonl] --set data.format=text "
                          "--set data.cache_dir=$/out/cache",
                    "out/hf/final/model.safetensors", .again = "--resume", .one_rank = true});
}

static void faults__train_on_two_ranks(void **state)
{
    (void)state;
    try_all(&(Case){TRAIN " --set parallel.pp_size=2", "out/hf/final/model.safetensors",
                    .again = "--resume"});
}

/* Loading, from a folder that a killed run left: its checkpoint gave way to one that did not get its name. */
static void faults__resume(void **state)
{
    (void)state;
    NEEDS_FAULTS;
    clear("start");
    assert_int_equal(run_words(CONSTANT " --set train.output=$/start"), 0);
    folder_remove(strdup(path_in(folder, "start/hf")));
    const char *parent = path_in(folder, "start/checkpoints");
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/step-000001", parent);
    snprintf(to, sizeof to, "%s/.step-000001.tmp.old", parent);
    assert_int_equal(rename(from, to), 0);
    snprintf(to, sizeof to, "%s/.step-000002.tmp", parent);
    assert_int_equal(mkdir(to, 0777), 0);
    write_text(path_in(folder, "start/checkpoints/.step-000002.tmp/config.json"), "{");
    try_all(&(Case){CONSTANT " --resume --set train.steps=2", "out/hf/final/model.safetensors",
                    .again = "", .one_rank = true, .resumes = true});
}

static void faults__probe_on_two_ranks(void **state)
{
    (void)state;
    try_all(&(Case){"probe $/model --batch $/rows.jsonl --out $/out --grads --logits "
                    "--set parallel.pp_size=2 --set train.threads=1",
                    .result = "out/grads.safetensors"});
}

static void faults__init_and_export(void **state)
{
    (void)state;
    try_all(&(Case){"init $/out --config $/model", "out/model.safetensors", .one_rank = true});
    NEEDS_FAULTS;
    assert_int_equal(run_words(TRAIN " --set train.output=$/run"), 0);
    try_all(&(Case){"export $/run $/out", "out/model.safetensors", .one_rank = true});
}

static void faults__tokenize_and_schedule(void **state)
{
    (void)state;
    try_all(&(Case){"tokenize $/model $/text.jsonl", "out.txt", .one_rank = true});
    try_all(&(Case){"schedule --schedule 1f1b --pp 3 --microbatches 5 --format json", "out.txt",
                    .one_rank = true});
    try_all(&(Case){"schedule --schedule $/own.csv --format svg", "out.txt", .one_rank = true});
}

static void faults__a_misspelt_fault_is_refused(void **state)
{
    (void)state;
    NEEDS_FAULTS;
    static const char *const words[] = {"foo:3",    "alloc:abc", "alloc:-3", "alloc:0",
                                        "alloc:3x", "alloc",     "alloc:",   ""};
    for (size_t i = 0; i < COUNT(words); i++) {
        setenv("SW_FAULT", words[i], 1);
        int status = run_words("schedule --schedule 1f1b --pp 3 --microbatches 5");
        unsetenv("SW_FAULT");
        bool last;
        if (status != 2 || count_errors(&last) != 1)
            fail_msg("SW_FAULT=%s: exit %d", words[i], status);
    }
}

/* One of two processes is hit: one line from both, and neither stays. Every allocation would take hours: that is for threads. */
static void try_between_processes(const char *kind)
{
    bool every = getenv("SW_FULL") && strcmp(kind, "alloc") != 0;
    for (long n = 1;; n = n < 3 || every ? n + 1 : 4 * n) {
        clear("out");
        remove(path_in(folder, "mark"));
        Arguments args = {0};
        add_launch(&args, 1, SW_PROGRAM);
        add_words(&args, TRAIN " --set parallel.pp_size=2");
        add_group(&args, 1, "env");
        arguments_add(&args, "SW_FAULT=%s:%ld:%s", kind, n, path_in(folder, "mark"));
        arguments_add(&args, "%s", SW_PROGRAM);
        add_words(&args, TRAIN " --set parallel.pp_size=2");
        Launched got = launch(&args, folder);
        bool reached = path_exists(path_in(folder, "mark"));
        /* some are got over, but no lost message */
        bool failed = reached && (got.status != 0 || !strcmp(kind, "message"));
        if (got.n_errors != failed || (failed ? got.status != 1 && got.status != 2 : got.status) ||
            got.seconds > 20) {
            file_show(path_in(folder, "err.txt"));
            fail_msg("%s %ld: exit %d, %d errors, %g s", kind, n, got.status, got.n_errors,
                     got.seconds);
        }
        if (!reached) break;
    }
    clear("out");
}

static void faults__between_processes(void **state)
{
    (void)state;
    NEEDS_FAULTS;
#ifndef SW_MPIEXEC
    skip();
#endif
    static const char *const hit[] = {"message", "alloc", "read", "write"};
    for (size_t k = 0; k < COUNT(hit); k++) try_between_processes(hit[k]);
}

/* An argument chooses tests by pattern: "*__train". */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults__train),
        cmocka_unit_test(faults__train_on_text),
        cmocka_unit_test(faults__train_on_two_ranks),
        cmocka_unit_test(faults__resume),
        cmocka_unit_test(faults__probe_on_two_ranks),
        cmocka_unit_test(faults__init_and_export),
        cmocka_unit_test(faults__tokenize_and_schedule),
        cmocka_unit_test(faults__a_misspelt_fault_is_refused),
        cmocka_unit_test(faults__between_processes),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_inputs);
}
