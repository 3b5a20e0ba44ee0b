#include "fixture.h"

#include "data/dataset.h"

#include <unistd.h>

enum { N_LINES = 1300 }; /* more than two batches of the loader */

typedef struct Fixture {
    Arena arena;
    char *dir;
    Tokenizer *tokenizer;
    char *tokenizer_path;
    DataSource source;
    DatasetConfig config;
} Fixture;

static int setup(void **state)
{
    static Fixture f;
    f = (Fixture){0};
    arena_init(&f.arena, "test");
    f.dir = fixture_dir();
    f.tokenizer = fixture_tokenizer(&f.arena);
    f.tokenizer_path =
        fixture_write(&f.arena, f.dir, "tokenizer.json", fixture_tokenizer_json(&f.arena));
    f.source = (DataSource){.ratio = 1};
    f.config = (DatasetConfig){.source = &f.source,
                               .n_sources = 1,
                               .key = "data.train",
                               .pack = PACK_SOFT,
                               .max_length = 100,
                               .append_eos = true,
                               .shuffle = true,
                               .seed = 42,
                               .vocab_size = BYTE_VOCAB,
                               .eos_id = ID_EOS,
                               .model_type = "qwen3_moe",
                               .tokenizer_path = f.tokenizer_path,
                               .n_threads = 1};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    Fixture *f = *state;
    tokenizer_free(&f->tokenizer);
    fixture_remove(f->dir);
    arena_free(&f->arena);
    return 0;
}

/** Use this text as the data file. */
static void use(Fixture *f, const char *name, const char *text)
{
    f->source.path = fixture_write(&f->arena, f->dir, name, text);
}

static Dataset *open_dataset(const Fixture *f)
{
    Dataset *dataset = NULL;
    assert_ok(dataset_open(&dataset, &f->config, f->tokenizer, NULL));
    return dataset;
}

/** The row at a position as text, bytes as they are (eos E, start S, end X), segments with '|' between. */
static char *shown(const Dataset *dataset, int64_t position, Arena *arena)
{
    Row row;
    dataset_row(dataset, position, &row);
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    for (int i = 0; i < row.n_segments; i++) {
        if (i > 0) text_append(&buffer, "|", 1);
        for (int32_t t = row.cu_seqlens[i]; t < row.cu_seqlens[i + 1]; t++) {
            char letter = row.id_t[t] < 256 ? (char)row.id_t[t] : "ESXT"[row.id_t[t] - 256];
            text_append(&buffer, &letter, 1);
        }
    }
    return buffer.text;
}

/** N_LINES texts "t0 ", "t1 " … of various lengths. */
static char *many_lines(Fixture *f)
{
    TextBuffer text;
    text_buffer_init(&text, &f->arena);
    for (int i = 0; i < N_LINES; i++)
        text_append_format(&text, "{\"text\": \"t%d %.*s\"}\n", i, i % 40,
                           "........................................");
    return text.text;
}

static void assert_same_rows(const Dataset *a, const Dataset *b)
{
    assert_int_equal(dataset_n_rows(a), dataset_n_rows(b));
    assert_int_equal(dataset_n_tokens(a), dataset_n_tokens(b));
    for (int64_t p = 0; p < dataset_n_rows(a); p++) {
        Row x, y;
        dataset_row(a, p, &x);
        dataset_row(b, p, &y);
        assert_int_equal(x.n_tokens, y.n_tokens);
        assert_int_equal(x.n_segments, y.n_segments);
        assert_memory_equal(x.id_t, y.id_t, (size_t)x.n_tokens * sizeof *x.id_t);
        assert_memory_equal(x.trained_t, y.trained_t, (size_t)x.n_tokens);
        assert_memory_equal(x.cu_seqlens, y.cu_seqlens,
                            ((size_t)x.n_segments + 1) * sizeof *x.cu_seqlens);
    }
}

static void dataset__reads_mixed_lines_in_order(void **state)
{
    Fixture *f = *state;
    use(f, "mixed.jsonl",
        "{\"question\": \"q\", \"answer\": \"a\"}\n"
        "\n"
        "{\"text\": \"hello\"}\n"
        "{\"input_ids\": [65, 66], \"labels\": [67, 68], \"cu_seqlens\": [0, 1, 2]}\n"
        "[{\"role\": \"pretrain\", \"content\": \"p\"}]\n");
    f->config.shuffle = false;
    Dataset *dataset = open_dataset(f);
    assert_int_equal(dataset_n_rows(dataset), 2);
    assert_int_equal(dataset_n_tokens(dataset), 23 + 6 + 2 + 1);
    assert_int_equal(dataset_longest(dataset), 30);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_string_equal(shown(dataset, 2 * epoch, &f->arena),
                            "Suser\nqX\nSassistant\naX\n|helloE|p");
        assert_string_equal(shown(dataset, 2 * epoch + 1, &f->arena), "A|B");
    }
    Row row[2];
    dataset_rows(dataset, 0, 2, row);
    assert_int_equal(row_label(&row[0], 0), -100);
    assert_int_equal(row_label(&row[0], 20), 'a');
    assert_int_equal(row_label(&row[0], 21), ID_END);
    assert_int_equal(row_label(&row[0], 22), -100);
    assert_int_equal(row_label(&row[0], 28), ID_EOS);
    assert_int_equal(row_label(&row[1], 0), 67);
    dataset_free(&dataset);
    assert_null(dataset);
}

static void dataset__cuts_only_what_is_too_long(void **state)
{
    Fixture *f = *state;
    use(f, "long.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"ij\"}\n{\"text\": \"kl\"}\n");
    f->config.shuffle = false;
    f->config.max_length = 6;
    // clang-format off
    static const struct { PackKind pack; const char *row[4]; } cases[] = {
        {PACK_SOFT, {"abcdef", "ijE|klE"}},
        {PACK_NONE, {"abcdef", "ijE", "klE"}},
        {PACK_HARD, {"abcdef", "ghE|ijE", "klE"}},
    };
    // clang-format on
    for (int c = 0; c < 3; c++) {
        f->config.pack = cases[c].pack;
        Dataset *dataset = open_dataset(f);
        int n = 0;
        for (; cases[c].row[n]; n++)
            assert_string_equal(shown(dataset, n, &f->arena), cases[c].row[n]);
        assert_int_equal(dataset_n_rows(dataset), n);
        dataset_free(&dataset);
    }
}

/** Every text once per epoch, whole; the same seed gives the same stream, whatever the threads. */
static void dataset__is_decided_by_the_seed(void **state)
{
    Fixture *f = *state;
    use(f, "many.jsonl", many_lines(f));
    Dataset *dataset = open_dataset(f);
    static int seen[N_LINES];
    memset(seen, 0, sizeof seen);
    for (int64_t p = 0; p < 2 * dataset_n_rows(dataset); p++) {
        char *row = shown(dataset, p, &f->arena);
        for (char *at = strtok(row, "|"); at; at = strtok(NULL, "|")) {
            int i = atoi(at + 1);
            assert_in_range(i, 0, N_LINES - 1);
            assert_int_equal(seen[i]++, p / dataset_n_rows(dataset));
            assert_int_equal(strlen(at),
                             strlen(text_format(&f->arena, "t%d E", i)) + (size_t)(i % 40));
        }
    }
    for (int i = 0; i < N_LINES; i++) assert_int_equal(seen[i], 2);

    f->config.n_threads = 4;
    Dataset *again = open_dataset(f);
    assert_same_rows(dataset, again);
    dataset_free(&again);
    f->config.seed = 43;
    again = open_dataset(f);
    assert_string_not_equal(shown(dataset, 0, &f->arena), shown(again, 0, &f->arena));
    dataset_free(&again);
    dataset_free(&dataset);
}

static void dataset__mixes_sources_by_ratio(void **state)
{
    Fixture *f = *state;
    TextBuffer a;
    text_buffer_init(&a, &f->arena);
    for (int i = 0; i < 10; i++) text_append_format(&a, "{\"text\": \"a%d\"}\n", i);
    const DataSource sources[] = {
        {.path = fixture_write(&f->arena, f->dir, "a.jsonl", a.text), .ratio = 2.3},
        {.path = fixture_write(&f->arena, f->dir, "b.jsonl", "{\"text\": \"b\"}\n"), .ratio = 3}};
    f->config.source = sources;
    f->config.n_sources = 2;
    f->config.pack = PACK_NONE;
    Dataset *dataset = open_dataset(f);
    assert_int_equal(dataset_n_rows(dataset), 23 + 3);
    int times[10] = {0}, n_b = 0, n_three = 0;
    for (int64_t p = 0; p < 26; p++) {
        char *row = shown(dataset, p, &f->arena);
        if (row[0] == 'b')
            n_b++;
        else
            times[row[1] - '0']++;
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(times[i], 2, 3);
        n_three += times[i] == 3;
    }
    assert_int_equal(n_b, 3);
    assert_int_equal(n_three, 3);
    dataset_free(&dataset);
}

static void dataset__reads_folders_and_patterns(void **state)
{
    Fixture *f = *state;
    assert_ok(dir_create(path_join(&f->arena, f->dir, "d")));
    fixture_write(&f->arena, f->dir, "d/b.jsonl", "{\"text\": \"b\"}\n");
    fixture_write(&f->arena, f->dir, "d/a.jsonl", "{\"text\": \"a\"}\n");
    fixture_write(&f->arena, f->dir, "d/notes.txt", "not data");
    f->config.shuffle = false;
    static const char *const path[] = {"d", "d/*.jsonl", "d/[ab].jsonl"};
    for (int i = 0; i < 3; i++) {
        f->source.path = path_join(&f->arena, f->dir, path[i]);
        Dataset *dataset = open_dataset(f);
        assert_string_equal(shown(dataset, 0, &f->arena), "aE|bE");
        dataset_free(&dataset);
    }
}

static void dataset__refuses_before_the_start(void **state)
{
    Fixture *f = *state;
    const DatasetConfig good = f->config;
    // clang-format off
    static const struct {
        const char *text, *words; Status status; bool no_tokenizer, other_model;
        bool no_length; const char *chat_template; int64_t vocab_size;
    } cases[] = {
        {.text = "{\"text\": \"a\"}\n{\"text\": 1}\n{\"text\": 2}\n", .words = "x.jsonl:2: text: not a text", .status = ERR_FORMAT},
        {.text = "{\"text\": \"a\"}\n\n{\"text\": \n",  .words = "x.jsonl:3: ", .status = ERR_FORMAT},
        {.text = "{\"input_ids\": [260]}\n",   .words = "x.jsonl:1: input_ids[0]: out of range", .status = ERR_FORMAT},
        {.text = "\n",                         .words = "no samples",    .status = ERR_FORMAT},
        {.text = "{\"text\": \"a\"}\n",        .words = "x.jsonl:1: the model's folder has no tokenizer.json", .status = ERR_USAGE, .no_tokenizer = true},
        {.text = "{\"text\": \"a\"}\n[{\"role\": \"user\", \"content\": \"a\"}]", .words = "x.jsonl:2: model.chat_template: auto",
         .status = ERR_USAGE, .other_model = true},
        {.text = "{\"text\": \"a\"}\n",        .words = "model.chat_template: llama3", .status = ERR_UNSUPPORTED, .chat_template = "llama3"},
        {.text = "{\"text\": \"a\"}\n",        .words = "data.max_length: found 0", .status = ERR_USAGE, .no_length = true},
        {.text = "{\"text\": \"z\"}\n",        .words = "gives id 122, but the model's vocab_size is 100", .status = ERR_USAGE, .vocab_size = 100},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        use(f, "x.jsonl", cases[i].text);
        f->config = good;
        f->config.chat_template = cases[i].chat_template;
        if (cases[i].other_model) f->config.model_type = "llama";
        if (cases[i].no_length) f->config.max_length = 0;
        if (cases[i].vocab_size) f->config.vocab_size = cases[i].vocab_size;
        Dataset *dataset = NULL;
        assert_fails(
            dataset_open(&dataset, &f->config, cases[i].no_tokenizer ? NULL : f->tokenizer, NULL),
            cases[i].status, cases[i].words);
        assert_null(dataset);
    }
    f->config = good;
    Dataset *dataset = NULL;
    f->source.path = path_join(&f->arena, f->dir, "absent.jsonl");
    assert_fails(dataset_open(&dataset, &f->config, f->tokenizer, NULL), ERR_IO, "absent.jsonl");
    use(f, "x.jsonl", "{\"text\": \"a\"}\n");
    f->source.ratio = 0;
    assert_fails(dataset_open(&dataset, &f->config, f->tokenizer, NULL), ERR_USAGE, "data.train: ");
    f->source.ratio = 0.2;
    assert_fails(dataset_open(&dataset, &f->config, f->tokenizer, NULL), ERR_USAGE,
                 "data.train: the ratios leave no sample of 1");
}

/* What needs neither template nor tokenizer does without. */
static void dataset__asks_only_for_what_it_needs(void **state)
{
    Fixture *f = *state;
    f->config.model_type = "llama";
    use(f, "p.jsonl", "[{\"role\": \"pretrain\", \"content\": \"a\"}]\n{\"text\": \"a\"}\n");
    Dataset *dataset = open_dataset(f);
    dataset_free(&dataset);
    use(f, "i.jsonl", "{\"input_ids\": [1, 2]}\n");
    f->config.tokenizer_path = NULL;
    assert_ok(dataset_open(&dataset, &f->config, NULL, NULL));
    assert_int_equal(dataset_n_rows(dataset), 1);
    dataset_free(&dataset);
}

/** What log.txt says after opening. */
static char *log_of(Fixture *f)
{
    char *path = path_join(&f->arena, f->dir, "log.txt");
    unlink(path); /* there is none at first */
    Log log;
    assert_ok(log_open(&log, path, 0, false));
    /* Warnings go to stderr as well: not into the tests' output. */
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr));
    Dataset *dataset = NULL;
    Status st = dataset_open(&dataset, &f->config, f->tokenizer, &log);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    log_close(&log);
    assert_ok(st);
    dataset_free(&dataset);
    char *text;
    assert_ok(file_read(&f->arena, path, &text, NULL));
    return text;
}

static void dataset__skips_and_counts_bad_lines(void **state)
{
    Fixture *f = *state;
    use(f, "bad.jsonl",
        "{\"text\": \"a\"}\nnonsense\n{\"text\": 1}\n[{\"role\": \"bot\", \"content\": \"\"}]\n"
        "{\"text\": \"b\"}\n[{\"role\": \"pretrain\", \"content\": \"\"}]\n{\"input_ids\": "
        "[-1]}\n");
    Dataset *dataset = NULL;
    assert_fails(dataset_open(&dataset, &f->config, f->tokenizer, NULL), ERR_FORMAT,
                 "bad.jsonl:2:");
    f->config.skip_bad_lines = true;
    f->config.shuffle = false;
    dataset = open_dataset(f);
    assert_int_equal(dataset_n_rows(dataset), 1);
    assert_string_equal(shown(dataset, 0, &f->arena), "aE|bE");
    dataset_free(&dataset);
    char *text = log_of(f);
    assert_non_null(strstr(text, "bad.jsonl:2: "));
    assert_non_null(strstr(text, "bad.jsonl: 4 bad lines skipped"));
    assert_non_null(strstr(text, "data: 3 samples in 1 files, 2 taken, 0 cut to max_length 100, 1 "
                                 "empty and 4 bad ones left out"));
    f->config.max_length = 1;
    assert_non_null(strstr(log_of(f), "2 cut to max_length 1,"));
}

static void dataset__appends_eos_to_texts_or_warns_once(void **state)
{
    Fixture *f = *state;
    use(f, "t.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    f->config.shuffle = false;
    assert_null(strstr(log_of(f), "eos"));
    f->config.eos_id = -1;
    Dataset *dataset = open_dataset(f);
    assert_string_equal(shown(dataset, 0, &f->arena), "a|b");
    dataset_free(&dataset);
    char *text = log_of(f), *first = strstr(text, "warning: no eos token is known");
    assert_non_null(first);
    assert_null(strstr(first + strlen("warning: no eos"), "no eos token"));
    f->config.append_eos = false;
    f->config.eos_id = ID_EOS;
    dataset = open_dataset(f);
    assert_string_equal(shown(dataset, 0, &f->arena), "a|b");
    dataset_free(&dataset);
    assert_null(strstr(log_of(f), "eos"));
}

static int n_cached(Fixture *f)
{
    char **names;
    int n;
    assert_ok(dir_list(&f->arena, f->config.cache_dir, &names, &n));
    return n;
}

static void dataset__cache_gives_the_same_rows(void **state)
{
    Fixture *f = *state;
    use(f, "many.jsonl", many_lines(f));
    Dataset *plain = open_dataset(f);
    f->config.cache_dir = path_join(&f->arena, f->dir, "cache");
    for (int run = 0; run < 3; run++) {
        Dataset *cached = open_dataset(f);
        assert_same_rows(plain, cached);
        dataset_free(&cached);
        assert_int_equal(n_cached(f), 1);
    }
    /* It is really read: without a tokenizer that could do it again. */
    Dataset *cached = NULL;
    assert_ok(dataset_open(&cached, &f->config, NULL, NULL));
    assert_same_rows(plain, cached);
    dataset_free(&cached);
    /* Packing and order are not in it. */
    f->config.pack = PACK_NONE;
    f->config.max_length = 5;
    f->config.seed = 7;
    cached = open_dataset(f);
    assert_int_equal(dataset_n_rows(cached), N_LINES);
    dataset_free(&cached);
    assert_int_equal(n_cached(f), 1);
    dataset_free(&plain);
}

static void dataset__cache_is_made_anew_for_other_inputs(void **state)
{
    Fixture *f = *state;
    use(f, "t.jsonl", "{\"text\": \"a\"}\n");
    f->config.cache_dir = path_join(&f->arena, f->dir, "cache");
    const DatasetConfig good = f->config;
    for (int change = 0; change <= 7; change++) {
        f->config = good;
        switch (change) {
        case 1: f->config.append_eos = false; break;
        case 2: f->config.eos_id = ID_END; break;
        case 3: f->config.format = DATA_TEXT; break;
        case 4: f->config.chat_template = "none"; break;
        case 5: f->config.skip_bad_lines = true; break;
        case 6:
            fixture_write(&f->arena, f->dir, "tokenizer.json",
                          text_format(&f->arena, "%s\n", fixture_tokenizer_json(&f->arena)));
            break;
        case 7: use(f, "t.jsonl", "{\"text\": \"b\"}\n"); break;
        default: break;
        }
        Dataset *dataset = open_dataset(f);
        assert_int_equal(shown(dataset, 0, &f->arena)[0], change == 7 ? 'b' : 'a');
        dataset_free(&dataset);
        assert_int_equal(n_cached(f), change + 1);
    }
}

static void dataset__damaged_cache_is_made_anew(void **state)
{
    Fixture *f = *state;
    use(f, "t.jsonl", "{\"text\": \"a\"}\n");
    f->config.cache_dir = path_join(&f->arena, f->dir, "cache");
    assert_null(strstr(log_of(f), "warning"));
    char **names;
    int n;
    assert_ok(dir_list(&f->arena, f->config.cache_dir, &names, &n));
    char *path = path_join(&f->arena, f->config.cache_dir, names[0]), *good, *again;
    size_t n_good, n_again;
    assert_ok(file_read(&f->arena, path, &good, &n_good));
    assert_ok(file_write_atomic(path, good, n_good - 1));
    assert_non_null(strstr(log_of(f), "damaged token cache"));
    assert_ok(file_read(&f->arena, path, &again, &n_again));
    assert_int_equal(n_again, n_good);
    assert_memory_equal(again, good, n_good);
    /* A cache that cannot be written is a warning. */
    f->config.cache_dir = f->source.path;
    assert_non_null(strstr(log_of(f), "not cached"));
}

/** Published samples, when they are there: every line of every file is read. */
static void dataset__reads_published_samples(void **state)
{
    Fixture *f = *state;
    const char *shared = getenv("SW_SHARED_DATA");
    if (!shared) shared = SW_SOURCE_DIR "/../shared/data";
    char *model = path_join(&f->arena, shared, "tokenizers/qwen3");
    if (!dir_exists(model)) {
        print_message("no %s: published samples are not tried\n", model);
        skip();
    }
    Tokenizer *tokenizer;
    assert_ok(tokenizer_open(&tokenizer, model, &f->arena, NULL));
    // clang-format off
    static const struct { const char *path; int64_t n; } files[] = {
        {"sft/openai_sft.jsonl",                128},
        {"sft/mllm_sft_text_example_data.jsonl", 200},
        {"sft/pretrain_example_data.jsonl",     3},
        {"gsm8k/test.jsonl",                    1319},
    };
    // clang-format on
    f->config.pack = PACK_NONE;
    f->config.vocab_size = tokenizer_vocab_size(tokenizer);
    f->config.max_length = 100000;
    f->config.shuffle = false;
    f->config.n_threads = 2;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        f->source.path = path_join(&f->arena, shared, files[i].path);
        Dataset *dataset = NULL;
        assert_ok(dataset_open(&dataset, &f->config, tokenizer, NULL));
        assert_int_equal(dataset_n_rows(dataset), files[i].n);
        Row row;
        int64_t n_trained = 0;
        for (int64_t p = 0; p < files[i].n; p++) {
            dataset_row(dataset, p, &row);
            for (int64_t t = 0; t < row.n_tokens; t++) n_trained += row.trained_t[t];
        }
        assert_true(n_trained > 0);
        /* The end of gsm8k's first answer: "#### 18" and <|im_end|>, trained; the line's end, not. */
        if (strcmp(files[i].path, "gsm8k/test.jsonl") == 0) {
            static const int32_t tail[] = {820, 220, 16, 23, 151645, 198};
            dataset_row(dataset, 0, &row);
            assert_memory_equal(row.id_t + row.n_tokens - 6, tail, sizeof tail);
            assert_int_equal(row_label(&row, row.n_tokens - 2), 151645);
            assert_int_equal(row_label(&row, row.n_tokens - 1), -100);
        }
        dataset_free(&dataset);
    }
    tokenizer_free(&tokenizer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(dataset__reads_mixed_lines_in_order),
        TEST(dataset__cuts_only_what_is_too_long),
        TEST(dataset__is_decided_by_the_seed),
        TEST(dataset__mixes_sources_by_ratio),
        TEST(dataset__reads_folders_and_patterns),
        TEST(dataset__refuses_before_the_start),
        TEST(dataset__asks_only_for_what_it_needs),
        TEST(dataset__skips_and_counts_bad_lines),
        TEST(dataset__appends_eos_to_texts_or_warns_once),
        TEST(dataset__cache_gives_the_same_rows),
        TEST(dataset__cache_is_made_anew_for_other_inputs),
        TEST(dataset__damaged_cache_is_made_anew),
        TEST(dataset__reads_published_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
