/* Collectives of 1 to 8 thread ranks, and of splits of them, against sums made in one place. */
#include "base/clock.h"
#include "base/rng.h"
#include "comm/mesh.h"
#include "comm/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            return FAIL(ERR_FAILED, "rank %d: line %d: %s", comm->rank, __LINE__, #condition); \
    } while (0)

static void run(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg)
{
    Status status = world_run_threads(n_ranks, body, arg);
    if (status != OK) fail_msg("%d ranks: status %d: %s", n_ranks, status, status_message());
}

/* Values of very different size: another order of summing gives other bits. */
static double value_of(int rank, int64_t i)
{
    uint64_t key = rng_key((uint64_t)rank, "values");
    double x = rng_uniform(key, (uint64_t)i) - 0.5;
    return i % 3 == 0 ? x * 1e6 : x;
}

static Status sums(Comm *comm, int64_t n, Arena *scratch)
{
    float *x = arena_take(scratch, (size_t)n * sizeof *x);
    double *y = arena_take(scratch, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)value_of(comm->rank, i);
        y[i] = value_of(comm->rank, i);
    }
    TRY(comm_sum_ordered(comm, x, n, DTYPE_F32, scratch));
    TRY(comm_sum_ordered(comm, y, n, DTYPE_F64, scratch));
    int64_t step = n > 5000 ? n / 5000 : 1; /* a sample of the long ones */
    for (int64_t i = 0; i < n; i += i + step < n || i == n - 1 ? step : n - 1 - i) {
        float sum_x = (float)value_of(0, i);
        double sum_y = value_of(0, i);
        for (int r = 1; r < comm->size; r++) {
            sum_x += (float)value_of(r, i);
            sum_y += value_of(r, i);
        }
        EXPECT(memcmp(&sum_x, &x[i], sizeof sum_x) == 0);
        EXPECT(memcmp(&sum_y, &y[i], sizeof sum_y) == 0);
    }
    return OK;
}

static Status sum_body(Comm *world, void *arg)
{
    const int64_t *n_list = arg;
    Arena scratch;
    arena_init(&scratch, "scratch");
    Status status = OK;
    for (; *n_list >= 0 && status == OK; n_list++) {
        status = sums(world, *n_list, &scratch);
        arena_reset(&scratch);
    }
    arena_free(&scratch);
    return status;
}

static void comm_sum_ordered__adds_in_rank_order_bit_for_bit(void **state)
{
    (void)state;
    int64_t sizes[] = {0, 1, 2, 7, 8, 9, 1000, -1};
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, sum_body, sizes);
    int64_t rounds[] = {(1 << 20) - 1, (1 << 20) + 3, -1}; /* around the length of a round */
    run(3, sum_body, rounds);
}

static Status small(Comm *comm)
{
    int size = comm->size, rank = comm->rank;
    int64_t v[600], w[600], u[600];
    for (int i = 0; i < 600; i++) {
        v[i] = rank + i;
        w[i] = (rank + i) % size;
        u[i] = 100 - (rank + i) % size;
    }
    TRY(comm_sum_i64(comm, v, 600));
    TRY(comm_max_i64(comm, w, 600));
    TRY(comm_min_i64(comm, u, 600));
    for (int i = 0; i < 600; i++) {
        EXPECT(v[i] == (int64_t)size * i + size * (size - 1) / 2);
        EXPECT(w[i] == size - 1);
        EXPECT(u[i] == 100 - (size - 1));
    }
    int all[8], one = rank * rank;
    TRY(comm_all_gather(comm, all, &one, sizeof one));
    for (int r = 0; r < size; r++) EXPECT(all[r] == r * r);
    for (int root = 0; root < size; root++) {
        int text[3] = {rank, root, 5};
        TRY(comm_broadcast(comm, text, sizeof text, root));
        EXPECT(text[0] == root && text[1] == root && text[2] == 5);
        int by_rank[8] = {0};
        TRY(comm_gather(comm, rank == root ? by_rank : NULL, &one, sizeof one, root));
        for (int r = 0; r < size && rank == root; r++) EXPECT(by_rank[r] == r * r);
        /* rank r brings r bytes */
        size_t bytes_r[8];
        char packed[64], mine[8];
        memset(mine, 'a' + rank, sizeof mine);
        for (int r = 0; r < size; r++) bytes_r[r] = (size_t)r;
        TRY(comm_gather_v(comm, packed, mine, bytes_r, root));
        for (int r = 0, k = 0; r < size && rank == root; r++)
            for (int i = 0; i < r; i++) EXPECT(packed[k++] == 'a' + r);
    }
    TRY(comm_barrier(comm));
    return OK;
}

static Status small_body(Comm *world, void *arg)
{
    (void)arg;
    return small(world);
}

static void comm_collective__gathers_broadcasts_and_folds(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, small_body, NULL);
}

typedef struct Shared {
    _Atomic int arrived;
} Shared;

static Status barrier_body(Comm *comm, void *arg)
{
    Shared *shared = arg;
    for (int round = 1; round <= 20; round++) {
        clock_sleep_us(
            (int)(rng_bits(rng_key(3, "barrier"), (uint64_t)(comm->rank * 50 + round)) % 300));
        shared->arrived++;
        TRY(comm_barrier(comm));
        EXPECT(shared->arrived >= round * comm->size);
        TRY(comm_barrier(comm));
    }
    return OK;
}

static void comm_barrier__waits_for_the_last(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 7; n_ranks += 3) {
        Shared shared = {0};
        run(n_ranks, barrier_body, &shared);
    }
}

/* Rows and columns of a 2 x 3 grid, and a column split again: all talk at once with the same tags. */
static Status split_body(Comm *comm, void *arg)
{
    (void)arg;
    Arena arena;
    arena_init(&arena, "splits");
    int row = comm->rank / 3, column = comm->rank % 3;
    Comm *rows, *columns, *reversed, *single;
    TRY(comm_split(&rows, comm, row, column, &arena));
    TRY(comm_split(&columns, comm, column, row, &arena));
    EXPECT(rows->size == 3 && rows->rank == column);
    EXPECT(columns->size == 2 && columns->rank == row);
    TRY(comm_split(&reversed, rows, 0, -rows->rank, &arena));
    EXPECT(reversed->size == 3 && reversed->rank == 2 - column);
    TRY(comm_split(&single, columns, columns->rank, 0, &arena));
    EXPECT(single->size == 1 && single->rank == 0);

    /* Posted in different orders on the two ends: only the tags of the comms keep them apart. */
    int to = (rows->rank + 1) % 3, from = (rows->rank + 2) % 3, in[2], out[2] = {row, 10 + row};
    CommRequest r1 = reversed->irecv(reversed, &in[1], sizeof(int), 2 - from, 4);
    CommRequest r0 = rows->irecv(rows, &in[0], sizeof(int), from, 4);
    CommRequest s0 = rows->isend(rows, &out[0], sizeof(int), to, 4);
    CommRequest s1 = reversed->isend(reversed, &out[1], sizeof(int), 2 - to, 4);
    TRY(comm_wait(rows, &s0));
    TRY(comm_wait(reversed, &s1));
    TRY(comm_wait(rows, &r0));
    TRY(comm_wait(reversed, &r1));
    EXPECT(in[0] == row && in[1] == 10 + row);
    TRY(small(rows));
    TRY(small(columns));
    TRY(small(reversed));
    TRY(small(single));
    TRY(sums(columns, 1001, &arena));
    arena_free(&arena);
    return OK;
}

static void comm_split__keeps_groups_apart(void **state)
{
    (void)state;
    run(6, split_body, NULL);
}

static Status mesh_body(Comm *comm, void *arg)
{
    (void)arg;
    Arena arena;
    arena_init(&arena, "mesh");
    Mesh *mesh;
    int pipeline[AXIS_COUNT] = {[AXIS_PP] = comm->size, 1, 1, 1, 1};
    TRY(mesh_create(&mesh, comm, pipeline, &arena));
    EXPECT(mesh->axis[AXIS_PP]->size == comm->size && mesh->axis[AXIS_PP]->rank == comm->rank);
    EXPECT(mesh->axis[AXIS_TP]->size == 1 && mesh->coord[AXIS_PP] == comm->rank);
    TRY(small(mesh->axis[AXIS_DP]));
    mesh_free(&mesh);
    EXPECT(!mesh);

    int grid[AXIS_COUNT] = {[AXIS_PP] = 2, [AXIS_DP] = 2, 1, 1, [AXIS_TP] = 2};
    TRY(mesh_create(&mesh, comm, grid, &arena));
    EXPECT(mesh->coord[AXIS_PP] == comm->rank / 4 && mesh->coord[AXIS_DP] == comm->rank / 2 % 2 &&
           mesh->coord[AXIS_TP] == comm->rank % 2);
    for (int a = 0; a < AXIS_COUNT; a++) {
        EXPECT(mesh->axis[a]->rank == mesh->coord[a] && mesh->axis[a]->size == mesh->size[a]);
        TRY(small(mesh->axis[a]));
    }
    /* Along pp the world rank steps by four: the sum tells who the members are. */
    int64_t sum = comm->rank;
    TRY(comm_sum_i64(mesh->axis[AXIS_PP], &sum, 1));
    EXPECT(sum == 2 * (comm->rank % 4) + 4);
    mesh_free(&mesh);

    grid[AXIS_DP] = 3;
    Status status = mesh_create(&mesh, comm, grid, &arena);
    EXPECT(status == ERR_USAGE && strstr(status_message(), "dp_size 3"));
    grid[AXIS_EP] = 2;
    status = mesh_create(&mesh, comm, grid, &arena);
    EXPECT(status == ERR_UNSUPPORTED);
    arena_free(&arena);
    return OK;
}

static void mesh__gives_a_comm_for_each_axis(void **state)
{
    (void)state;
    run(8, mesh_body, NULL);
}

typedef struct Failures {
    Status status_r[8];
    Status seen_r[8];
    char message_r[8][200];
} Failures;

static Status setup_body(Comm *comm, void *arg)
{
    Failures *f = arg;
    Status status = f->status_r[comm->rank];
    if (status != OK) status = FAIL(status, "model.safetensors: broken on rank %d", comm->rank);
    clock_sleep_us((comm->rank * 37 % 5) * 200);
    status = comm_agree(comm, status);
    f->seen_r[comm->rank] = status;
    snprintf(f->message_r[comm->rank], sizeof f->message_r[0], "%s",
             status == OK ? "" : status_message());
    TRY(status);
    return small(comm);
}

static void comm_agree__ends_all_with_one_message(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) {
        Failures none = {0};
        assert_int_equal(world_run_threads(n_ranks, setup_body, &none), OK);
        for (int bad = 0; bad < n_ranks; bad++) {
            Failures f = {0};
            f.status_r[bad] = ERR_FORMAT;
            f.status_r[n_ranks - 1] = bad < n_ranks - 1 ? ERR_IO : ERR_FORMAT;
            if (bad > 0) f.status_r[0] = ERR_PEER; /* only repeats what a peer said: passed over */
            assert_int_equal(world_run_threads(n_ranks, setup_body, &f), ERR_FORMAT);
            char expected[100];
            snprintf(expected, sizeof expected, "model.safetensors: broken on rank %d", bad);
            assert_string_equal(status_message(), expected);
            snprintf(expected, sizeof expected, "rank %d failed", bad);
            for (int r = 0; r < n_ranks; r++) {
                if (r == bad || (r == 0 && bad > 0)) continue;
                assert_int_equal(f.seen_r[r], ERR_PEER);
                assert_string_equal(f.message_r[r], expected);
            }
        }
    }
}

/* A rank that returns without comm_agree, while the others are inside any of the collectives. */
static Status deserter_body(Comm *comm, void *arg)
{
    int which = *(int *)arg;
    if (comm->rank == comm->size / 2) return FAIL(ERR_IO, "disk on fire");
    Arena scratch;
    arena_init(&scratch, "scratch");
    double x[100] = {0};
    int64_t v = 0;
    char buffer[8];
    Status status = OK;
    for (int round = 0; round < 3 && status == OK; round++) /* a root may not notice at once */
        switch (which) {
        case 0: status = comm_barrier(comm); break;
        case 1: status = comm_sum_ordered(comm, x, 100, DTYPE_F64, &scratch); break;
        case 2: status = comm_sum_i64(comm, &v, 1); break;
        case 3: status = comm_all_gather(comm, buffer, "x", 1); break;
        case 4: status = comm_agree(comm, OK); break;
        default: status = comm_broadcast(comm, x, sizeof x, comm->size / 2);
        }
    arena_free(&scratch);
    EXPECT(status == ERR_PEER);
    return status;
}

static void comm_collective__comes_back_when_a_rank_is_gone(void **state)
{
    (void)state;
    for (int which = 0; which < 6; which++)
        for (int n_ranks = 2; n_ranks <= 8; n_ranks += 3) {
            assert_int_equal(world_run_threads(n_ranks, deserter_body, &which), ERR_IO);
            assert_string_equal(status_message(), "disk on fire");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comm_sum_ordered__adds_in_rank_order_bit_for_bit),
        cmocka_unit_test(comm_collective__gathers_broadcasts_and_folds),
        cmocka_unit_test(comm_barrier__waits_for_the_last),
        cmocka_unit_test(comm_split__keeps_groups_apart),
        cmocka_unit_test(mesh__gives_a_comm_for_each_axis),
        cmocka_unit_test(comm_agree__ends_all_with_one_message),
        cmocka_unit_test(comm_collective__comes_back_when_a_rank_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
