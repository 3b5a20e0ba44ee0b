#include "train_test.h"

#include "train/metrics.h"

#include <unistd.h>

/* The contract's keys, in its order. */
static const char *const keys[] = {"step",
                                   "epoch",
                                   "loss/total",
                                   "loss/ce",
                                   "loss/balancing",
                                   "loss/z",
                                   "loss/mtp",
                                   "grad_norm",
                                   "lr",
                                   "tokens",
                                   "trained_tokens",
                                   "skipped",
                                   "router/max_violation",
                                   "time/step",
                                   "time/data",
                                   "tokens_per_second",
                                   "flops_per_second",
                                   "pipeline/bubble",
                                   "pipeline/bubble_predicted",
                                   "memory/peak_bytes",
                                   "memory/process_bytes",
                                   "eval/loss"};

static Metrics example(int64_t step)
{
    static const int64_t memory[] = {10, 20, 30};
    return (Metrics){.step = step,
                     .epoch = 0.25,
                     .total = 1.0 / 3,
                     .ce = 0.125,
                     .balancing = 0.5,
                     .z = 2,
                     .grad_norm = 1e-300,
                     .lr = 1e-4,
                     .tokens = 100,
                     .trained_tokens = 60,
                     .skipped = 1,
                     .max_violation = 0.75,
                     .time_step = 0.5,
                     .time_data = 0.25,
                     .flops = 1e9,
                     .bubble = 0.1,
                     .bubble_predicted = 0.2,
                     .memory_r = memory,
                     .n_ranks = 3,
                     .eval_loss = 4};
}

static const char *write_steps(Bench *b, int n)
{
    const char *path = bench_path(b, "metrics.jsonl");
    MetricsFile file;
    assert_ok(metrics_open(&file, path, -1, &b->arena));
    for (int i = 1; i <= n; i++) {
        Metrics m = example(i);
        assert_ok(metrics_append(&file, &m, &b->arena));
    }
    metrics_close(&file);
    return path;
}

static void metrics__keys_are_the_contracts(void **state)
{
    Bench *b = *state;
    JsonDoc doc;
    assert_ok(json_doc_read(&doc, write_steps(b, 1)));
    size_t i = 0;
    const char *key;
    json_t *value;
    json_object_foreach(doc.root, key, value)
    {
        assert_true(i < sizeof keys / sizeof *keys);
        assert_string_equal(key, keys[i++]);
    }
    assert_int_equal(i, sizeof keys / sizeof *keys);
    const json_t *o = doc.root;
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 1);
    assert_true(json_real_value(json_object_get(o, "loss/total")) == 1.0 / 3);
    assert_true(json_real_value(json_object_get(o, "grad_norm")) == 1e-300);
    assert_true(json_number_value(json_object_get(o, "tokens_per_second")) == 200);
    assert_true(json_number_value(json_object_get(o, "flops_per_second")) == 2e9);
    assert_true(json_is_integer(json_object_get(o, "tokens")));
    assert_int_equal(json_array_size(json_object_get(o, "memory/peak_bytes")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "memory/peak_bytes"), 2)),
                     30);
    assert_true(json_integer_value(json_object_get(o, "memory/process_bytes")) > 100000);
    assert_true(json_is_null(json_object_get(o, "loss/mtp")));
    json_doc_free(&doc);
}

static void metrics__what_is_not_finite_is_null(void **state)
{
    Bench *b = *state;
    const char *path = bench_path(b, "metrics.jsonl");
    MetricsFile file;
    assert_ok(metrics_open(&file, path, -1, &b->arena));
    Metrics m = example(1);
    m.total = m.balancing = m.eval_loss = NAN;
    m.grad_norm = INFINITY;
    m.ce = -INFINITY;
    m.time_step = 0;
    assert_ok(metrics_append(&file, &m, &b->arena));
    metrics_close(&file);
    JsonDoc doc;
    assert_ok(json_doc_read(&doc, path));
    static const char *const null[] = {"loss/total", "loss/balancing", "eval/loss",
                                       "grad_norm",  "loss/ce",        "tokens_per_second"};
    for (int i = 0; i < 6; i++) assert_true(json_is_null(json_object_get(doc.root, null[i])));
    json_doc_free(&doc);
}

/* The steps of the lines of a file. */
static int steps_of(Bench *b, const char *path, int64_t *step, int max)
{
    int n = 0;
    for (char *line = strtok(text_of(b, path), "\n"); line; line = strtok(NULL, "\n")) {
        JsonDoc doc;
        assert_ok(json_doc_parse(&doc, "line", line, strlen(line)));
        assert_true(n < max);
        assert_ok(json_get_int(doc.root, "line", "step", &step[n++]));
        json_doc_free(&doc);
    }
    return n;
}

static void metrics__a_line_for_people_has_no_sign_of_nan(void **state)
{
    (void)state;
    const Metrics m = {.step = 3,
                       .total = copysign(NAN, -1),
                       .ce = copysign(NAN, -1),
                       .grad_norm = copysign(NAN, -1),
                       .lr = 0.5,
                       .tokens = 20,
                       .time_step = 2};
    char line[256];
    metrics_line(line, sizeof line, &m, 10);
    assert_string_equal(line, "step 3/10  loss nan  ce nan  norm nan  lr 0.5  10 tokens/s");
}

static void metrics__cut_back_to_the_checkpoints_step(void **state)
{
    Bench *b = *state;
    for (int keep = 0; keep <= 7; keep++) {
        const char *path = write_steps(b, 5);
        MetricsFile file;
        if (keep <= 5) { /* what is cut off may be anything */
            char *text = text_format(&b->arena, "%sxx\n", text_of(b, path));
            assert_ok(file_write_atomic(path, text, strlen(text)));
        }
        assert_ok(metrics_open(&file, path, keep, &b->arena));
        Metrics m = example(100);
        assert_ok(metrics_append(&file, &m, &b->arena));
        metrics_close(&file);
        int64_t step[8];
        int n = steps_of(b, path, step, 8), kept = keep > 5 ? 5 : keep;
        assert_int_equal(n, kept + 1);
        for (int i = 0; i < kept; i++) assert_int_equal(step[i], i + 1);
        assert_int_equal(step[kept], 100);
        assert_int_equal(unlink(path), 0);
    }
}

static void metrics__a_line_without_an_end_goes(void **state)
{
    Bench *b = *state;
    const char *path = write_steps(b, 3);
    char *text = text_of(b, path);
    for (size_t cut = 1; cut < 60; cut += 7) {
        assert_ok(file_write_atomic(path, text, strlen(text) - cut));
        MetricsFile file;
        assert_ok(metrics_open(&file, path, 3, &b->arena));
        Metrics m = example(3);
        assert_ok(metrics_append(&file, &m, &b->arena));
        metrics_close(&file);
        int64_t step[4];
        assert_int_equal(steps_of(b, path, step, 4), 3);
        assert_int_equal(step[2], 3);
    }
}

static void metrics__a_fresh_run_starts_empty(void **state)
{
    Bench *b = *state;
    const char *path = write_steps(b, 3);
    MetricsFile file;
    assert_ok(metrics_open(&file, path, -1, &b->arena));
    metrics_close(&file);
    assert_string_equal(text_of(b, path), "");
    /* nothing to cut in a file that is not there */
    assert_int_equal(unlink(path), 0);
    assert_ok(metrics_open(&file, path, 5, &b->arena));
    metrics_close(&file);
    assert_string_equal(text_of(b, path), "");
}

static void metrics__a_line_that_is_none_is_named(void **state)
{
    Bench *b = *state;
    static const char *const lines[] = {"{\"step\": 1}\nxx\n", "{\"step\": 1}\n[1]\n",
                                        "{\"step\": 1}\n{\"epoch\": 1}\n",
                                        "{\"step\": 1}\n{\"step\": \"2\"}\n", "{\"step\": 1}\n\n"};
    const char *path = bench_path(b, "metrics.jsonl");
    for (int i = 0; i < 5; i++) {
        assert_ok(file_write_atomic(path, lines[i], strlen(lines[i])));
        MetricsFile file;
        assert_fails(metrics_open(&file, path, 5, &b->arena), ERR_FORMAT,
                     text_format(&b->arena, "%s:2", path));
        assert_int_equal(file.fd, -1);
        metrics_close(&file);
        assert_string_equal(text_of(b, path), lines[i]); /* untouched */
    }
    MetricsFile file;
    assert_fails(metrics_open(&file, bench_path(b, "no/metrics.jsonl"), -1, &b->arena), ERR_IO,
                 "no/metrics.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(metrics__keys_are_the_contracts),
        BENCH_TEST(metrics__what_is_not_finite_is_null),
        BENCH_TEST(metrics__a_line_for_people_has_no_sign_of_nan),
        BENCH_TEST(metrics__cut_back_to_the_checkpoints_step),
        BENCH_TEST(metrics__a_line_without_an_end_goes),
        BENCH_TEST(metrics__a_fresh_run_starts_empty),
        BENCH_TEST(metrics__a_line_that_is_none_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
