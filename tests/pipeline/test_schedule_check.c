/* Each way in which a schedule can be wrong is refused, with its place. */
#include "schedule_test.h"

#include "base/rng.h"

static void refused(const Schedule *s, const char *part)
{
    assert_refused(schedule_check(s, NULL, &arena), ERR_FORMAT, part);
}

/* Compute actions of one stage per rank, from words such as "0F0 0B0"; one text per rank. */
static Schedule *written(int p, int n_stages, int m, const char *const *rank_text)
{
    Schedule *s = NULL;
    ok(schedule_new(&s, p, n_stages, m, 64, &arena));
    s->name = "written";
    for (int stage = 0; stage < n_stages; stage++) s->rank_of_stage[stage] = stage % p;
    for (int r = 0; r < p; r++) {
        const char *text = rank_text[r];
        int stage, mb, n;
        char letter;
        while (sscanf(text, "%d%c%d%n", &stage, &letter, &mb, &n) == 3) {
            ActionKind kind = letter == 'F'   ? ACT_F
                              : letter == 'I' ? ACT_I
                              : letter == 'W' ? ACT_W
                                              : ACT_B;
            schedule_emit(&s->list[r], kind, stage, mb);
            text += n;
        }
    }
    return s;
}

#define WRITTEN(p, n_stages, m, ...) written(p, n_stages, m, (const char *const[]){__VA_ARGS__})

static void schedule_check__refuses_wrong_orders(void **state)
{
    (void)state;
    bool ascending = false;
    Schedule *s = WRITTEN(2, 2, 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1 1W1");
    ok(schedule_check(s, &ascending, &arena));
    assert_true(ascending);
    refused(WRITTEN(2, 2, 1, "0F0 0B0", "1F0"), "rank 1 position 2 (end): 1B0");
    refused(WRITTEN(2, 2, 1, "0F0 0B0", "1F0 1I0"), "1W0 is missing");
    refused(WRITTEN(2, 2, 2, "0F0 0B0 0B1", "1F0 1B0 1F1 1B1"), "0F1 is missing");
    refused(WRITTEN(2, 2, 1, "0F0 0F0 0B0", "1F0 1B0"), "rank 0 position 2 (0F0): comes twice");
    refused(WRITTEN(2, 2, 1, "0F0 0B0", "1F0 1B0 1I0 1W0"), "position 3 (1I0): besides a B");
    refused(WRITTEN(2, 2, 1, "0F0 0B0 1F0", "1B0"), "rank 0 position 3 (1F0): stage 1 belongs");
    refused(WRITTEN(2, 2, 1, "0B0 0F0", "1F0 1B0"), "rank 0 position 1 (0B0): stands before 0F0");
    refused(WRITTEN(2, 2, 1, "0F0 0B0", "1F0 1W0 1I0"),
            "rank 1 position 2 (1W0): stands before 1I0");
    refused(WRITTEN(1, 2, 1, "1F0 0F0 1B0 0B0"), "position 1 (1F0): stands before 0F0");
    refused(WRITTEN(1, 2, 1, "0F0 1F0 0B0 1B0"), "position 3 (0B0): stands before 1I0");
    refused(WRITTEN(2, 2, 2, "0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), "deadlock");
    refused(WRITTEN(2, 2, 1, "0F0 0B0", ""), "rank 1 position 1 (end): has nothing to do");
    s = WRITTEN(1, 1, 2, "0F0 0F1 0B0 0B1");
    s->list[0].at[2].mb = 7;
    refused(s, "position 3");
    s->list[0].at[2].mb = -1;
    refused(s, "position 3");
    s = WRITTEN(1, 1, 1, "0F0 0B0");
    s->forward_only = true;
    refused(s, "forward-only");
    s->rank_of_stage[0] = 5;
    refused(s, "stage 0 is on rank 5");
}

static void schedule_check__wants_each_stage_summed_once_and_last(void **state)
{
    (void)state;
    for (int p = 1; p <= 4; p++) {
        Schedule *s = build(p == 4 ? "zbv" : "1f1b", p, 5);
        ok(schedule_add_reduce(s, &arena));
        ok(schedule_check(s, NULL, &arena));
        for (int r = 0, n = 0; r < p; r++, n = 0) {
            for (int k = 0; k < s->list[r].n; k++) n += s->list[r].at[k].kind == ACT_REDUCE;
            assert_int_equal(n, s->n_stages / p);
            assert_int_equal(s->list[r].at[s->list[r].n - 1].kind, ACT_REDUCE);
        }
    }
    Schedule *s = build("1f1b", 1, 2);
    ok(schedule_add_reduce(s, &arena));
    Action *at = s->list[0].at, *last = &at[s->list[0].n - 1], b = last[-1];
    last[-1] = *last;
    *last = b;
    refused(s, "before the weight gradient");
    s = build("1f1b", 2, 2);
    s->has_reduce = true;
    refused(s, "0REDUCE_GRAD is missing");
}

static void schedule_check__reports_descending_orders(void **state)
{
    (void)state;
    bool ascending = true;
    ok(schedule_check(WRITTEN(2, 2, 2, "0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"), &ascending, &arena));
    assert_false(ascending);
    ok(schedule_check(WRITTEN(1, 1, 2, "0F0 0F1 0I0 0I1 0W1 0W0"), &ascending, &arena));
    assert_false(ascending);
    /* A B counts as I and as W. */
    ok(schedule_check(WRITTEN(1, 1, 2, "0F0 0F1 0I0 0B1 0W0"), &ascending, &arena));
    assert_false(ascending);
    ok(schedule_check(WRITTEN(1, 1, 2, "0F0 0F1 0I0 0W0 0B1"), &ascending, &arena));
    assert_true(ascending);
}

static int find(const ActionList *list, ActionKind kind, int mb)
{
    for (int k = 0; k < list->n; k++)
        if (list->at[k].kind == kind && list->at[k].mb == mb) return k;
    return -1;
}

static void swap(ActionList *list, int j, int k)
{
    Action a = list->at[j];
    list->at[j] = list->at[k];
    list->at[k] = a;
}

static void schedule_check__refuses_wrong_messages(void **state)
{
    (void)state;
    Schedule *s = build("1f1b", 3, 4);
    ActionList *list = &s->list[1];
    int k = find(list, ACT_SEND_F, 2), j = find(list, ACT_F, 2);
    list->at[k].peer = 0;
    refused(s, "goes to rank 0");
    list->at[k].peer = 2;
    swap(list, k, j);
    refused(s, "before the F");
    swap(list, k, j);
    k = find(list, ACT_RECV_B, 1), j = find(list, ACT_B, 1);
    swap(list, k, j);
    refused(s, "after the backward");
    swap(list, k, j);
    ok(schedule_check(s, NULL, &arena));

    /* Receives of one rank in another order than its sends. */
    s = build("gpipe", 2, 4);
    swap(&s->list[1], find(&s->list[1], ACT_RECV_F, 0), find(&s->list[1], ACT_RECV_F, 1));
    refused(s, "order of the sends");
    s = build("gpipe", 2, 2);
    s->has_comm = false;
    refused(s, "a message in a list of compute actions");
    s = WRITTEN(1, 2, 1, "0F0 1F0 1B0 0B0");
    complete(s);
    s->list[0].at[0].kind = ACT_SEND_F;
    refused(s, "same rank");
    s = build("gpipe", 2, 1);
    s->list[1].at[s->list[1].n - 1].kind = ACT_SEND_F;
    refused(s, "no such stage");
}

static void schedule_check__refuses_slots_in_use(void **state)
{
    (void)state;
    for (int kind = 0; kind < SLOT_COUNT; kind++) {
        Schedule *s = build("zb_h1", 3, 6);
        /* Whoever used another slot of this kind now uses slot 0. */
        for (int k = 0; k < s->list[1].n; k++)
            *slots_field(&s->list[1].at[k].at, (SlotKind)kind) = 0;
        if (kind == SLOT_SEND) {
            /* A send buffer may be reused at once: the executor waits. Overwriting it before its SEND is wrong. */
            for (int k = 0; k < s->list[1].n; k++)
                if (!action_is_compute(s->list[1].at[k].kind) &&
                    s->list[1].at[k].kind != ACT_SEND_F && s->list[1].at[k].kind != ACT_SEND_B)
                    s->list[1].at[k].at.send = -1;
            int send = find(&s->list[1], ACT_SEND_F, 0);
            Action first = s->list[1].at[send];
            int next = find(&s->list[1], ACT_F, 1);
            for (int k = send; k < next; k++) s->list[1].at[k] = s->list[1].at[k + 1];
            s->list[1].at[next] = first;
        }
        refused(s, "in use by stage 1");
    }
    Schedule *s = build("1f1b", 2, 3);
    s->list[0].at[0].at.f_to_w = 99;
    refused(s, "f_to_w slot 99");
    s = build("1f1b", 2, 3);
    s->list[0].at[find(&s->list[0], ACT_B, 1)].at.f_to_i ^= 1;
    refused(s, "f_to_i slot");
}

static void schedule_check__refuses_every_dropped_doubled_or_misplaced_action(void **state)
{
    static const struct {
        const char *name;
        int p, m;
    } rows[] = {{"1f1b", 3, 4}, {"gpipe", 2, 3}, {"zbv", 2, 4}};
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        Schedule *s = build(rows[row].name, rows[row].p, rows[row].m);
        for (int r = 0; r < s->n_ranks; r++)
            for (int k = 0; k < s->list[r].n; k++) {
                ActionList kept = s->list[r], other = s->list[(r + 1) % s->n_ranks];
                Action *copy = ARENA_NEW(&arena, Action, kept.n + 1);
                memcpy(copy, kept.at, (size_t)k * sizeof *copy);
                memcpy(copy + k, kept.at + k + 1, (size_t)(kept.n - k - 1) * sizeof *copy);
                s->list[r] = (ActionList){copy, kept.n - 1};
                refused(s, "rank");
                /* … and put on the wrong rank */
                Action *more = ARENA_NEW(&arena, Action, other.n + 1);
                memcpy(more, other.at, (size_t)other.n * sizeof *more);
                more[other.n] = kept.at[k];
                s->list[(r + 1) % s->n_ranks] = (ActionList){more, other.n + 1};
                refused(s, "belongs to rank");
                s->list[(r + 1) % s->n_ranks] = other;

                memcpy(copy, kept.at, (size_t)kept.n * sizeof *copy);
                copy[kept.n] = kept.at[k];
                s->list[r] = (ActionList){copy, kept.n + 1};
                refused(s, "comes twice");
                s->list[r] = kept;
            }
        ok(schedule_check(s, NULL, &arena));
        reset(state);
    }
}

/* Any damage is either refused or leaves a schedule that still runs to its end. */
static void schedule_check__survives_random_damage(void **state)
{
    uint64_t key = rng_key(1, "damage"), counter = 0;
    int n_accepted = 0;
    for (int trial = 0; trial < 3000; trial++) {
        Schedule *s = trial % 2 ? build("1f1b", 1 + trial / 2 % 4, 1 + trial / 8 % 5)
                                : build("zbv", 1 + trial / 2 % 3, 1 + trial / 6 % 5);
#define PICK(n) (int)(rng_bits(key, counter++) % (uint64_t)(n))
        ActionList *list = &s->list[PICK(s->n_ranks)];
        for (int n = 1 + PICK(3); n > 0; n--) {
            Action *a = &list->at[PICK(list->n)];
            switch (PICK(6)) {
            case 0: swap(list, (int)(a - list->at), PICK(list->n)); break;
            case 1: a->mb = PICK(s->n_mb + 2) - 1; break;
            case 2: a->stage = PICK(s->n_stages + 2) - 1; break;
            case 3: a->peer = PICK(s->n_ranks + 2) - 1; break;
            case 4: a->kind = (ActionKind)PICK(ACT_COUNT); break;
            default: {
                int *slot = slots_field(&a->at, (SlotKind)PICK(SLOT_COUNT));
                *slot = PICK(9) - 1;
                if (a->to.f_to_i >= 0) a->to.f_to_i = PICK(9) - 1;
            }
            }
        }
#undef PICK
        if (schedule_check(s, NULL, &arena) == OK) {
            n_accepted++;
            simulate(s, 1, 1, 1, 0);
        }
        reset(state);
    }
    assert_in_range(n_accepted, 1,
                    1500); /* swaps of neighbours may be harmless, most damage is not */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(schedule_check__refuses_wrong_orders),
        ARENA_TEST(schedule_check__reports_descending_orders),
        ARENA_TEST(schedule_check__wants_each_stage_summed_once_and_last),
        ARENA_TEST(schedule_check__refuses_wrong_messages),
        ARENA_TEST(schedule_check__refuses_slots_in_use),
        ARENA_TEST(schedule_check__refuses_every_dropped_doubled_or_misplaced_action),
        ARENA_TEST(schedule_check__survives_random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
