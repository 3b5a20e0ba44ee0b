#pragma once
/**
 * What ranks do in the tests of messages and collectives, whatever carries them: each body is run on
 * every rank of a world and returns what is wrong. In a body nothing is shared but the comm.
 */
#include "base/clock.h"
#include "base/rng.h"
#include "comm/mesh.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cmocka's asserts jump and belong to the main thread: bodies return a Status instead. */
#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            return FAIL(ERR_FAILED, "rank %d: line %d: %s", comm->rank, __LINE__, #condition); \
    } while (0)

/* All ranks send numbered messages to all (themselves too); the second tag overtakes the first. */
static inline Status many_small(Comm *comm, void *arg)
{
    (void)arg;
    enum { N = 100, PEERS = 8 };
    static const int n = N;
    int(*out)[2][N] = malloc(PEERS * sizeof *out), (*in)[2][N] = malloc(PEERS * sizeof *in);
    CommRequest(*send)[2][N] = malloc(PEERS * sizeof *send);
    CommRequest(*recv)[2][N] = malloc(PEERS * sizeof *recv);
    for (int r = 0; r < comm->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n; i++) {
                out[r][t][i] = comm->rank * 100000 + r * 10000 + t * 1000 + i;
                send[r][t][i] = comm->isend(comm, &out[r][t][i], sizeof(int), r, 7 + (uint64_t)t);
            }
    Status status = OK;
    for (int r = 0; r < comm->size; r++)
        for (int t = 1; t >= 0; t--) {
            for (int i = 0; i < n; i++)
                recv[r][t][i] = comm->irecv(comm, &in[r][t][i], sizeof(int), r, 7 + (uint64_t)t);
            for (int i = n - 1; i >= 0 && status == OK; i--)
                status = comm_wait(comm, &recv[r][t][i]);
        }
    for (int r = 0; r < comm->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n && status == OK; i++) status = comm_wait(comm, &send[r][t][i]);
    bool right = true;
    for (int r = 0; r < comm->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n; i++)
                right = right && in[r][t][i] == r * 100000 + comm->rank * 10000 + t * 1000 + i;
    free(out), free(in), free(send), free(recv);
    TRY(status);
    EXPECT(right);
    return OK;
}

/* The last two ranks wait for a message that nobody sends, rank 0 works, or is stopped, without a word. */
static inline Status hang_body(Comm *comm, void *arg)
{
    const bool *stopped = arg;
    char byte;
    comm->hang_timeout = 0.5;
    TRY(comm_barrier(comm));
    breadcrumb()->started = true;
    breadcrumb()->step = 7;
    if (comm->rank == 0 && *stopped) raise(SIGSTOP);
    for (int i = 0; i < 600 && comm->rank == 0; i++) clock_sleep_us(100000);
    breadcrumb()->action = "2F0";
    return comm_receive(comm, &byte, 1, comm->rank - 1, 0);
}

static inline Status sleep_and_fail(void *arg)
{
    const int *rank = arg;
    clock_sleep_us(*rank % 2 ? 0 : 1500000);
    return *rank < 2 ? OK : FAIL(ERR_IO, "rank %d found no disk", *rank);
}

/* Every other rank works far longer than hang_timeout; the lowest that failed has its say. */
static inline Status agree_on_work(Comm *comm, void *arg)
{
    (void)arg;
    double before = comm->hang_timeout;
    int rank = comm->rank;
    Worker worker;
    TRY(worker_start(&worker));
    comm->hang_timeout = 0.6;
    worker_give(&worker, sleep_and_fail, &rank);
    Status status = comm_agree_on_work(comm, &worker);
    comm->hang_timeout = before;
    worker_stop(&worker);
    if (comm->size < 3)
        EXPECT(status == OK);
    else if (rank == 2)
        EXPECT(status == ERR_IO && strstr(status_message(), "no disk"));
    else
        EXPECT(status == ERR_PEER && strstr(status_message(), "rank 2"));
    return OK;
}

/* A ring of messages of odd sizes, from none to 4 MiB, with delays on either side. */
static inline Status ring(Comm *comm, void *arg)
{
    (void)arg;
    static const size_t bytes[] = {0, 1, 63, 4097, 1 << 20, 4 << 20};
    int next = (comm->rank + 1) % comm->size;
    int before = (comm->rank + comm->size - 1) % comm->size;
    for (size_t k = 0; k < sizeof bytes / sizeof bytes[0]; k++) {
        unsigned char *out = malloc(bytes[k] + 1), *in = calloc(bytes[k] + 1, 1);
        for (size_t i = 0; i < bytes[k]; i++)
            out[i] = (unsigned char)(i * 7 + k + (size_t)comm->rank);
        uint64_t key = rng_key(k, "delay");
        clock_sleep_us((int)(rng_bits(key, (uint64_t)comm->rank) % 400));
        CommRequest recv = comm->irecv(comm, in, bytes[k], before, k);
        clock_sleep_us((int)(rng_bits(key, (uint64_t)comm->rank + 100) % 400));
        CommRequest send = comm->isend(comm, out, bytes[k], next, k);
        Status received = comm_wait(comm, &recv), sent = comm_wait(comm, &send);
        bool right = in[bytes[k]] == 0;
        for (size_t i = 0; i < bytes[k]; i++)
            right = right && in[i] == (unsigned char)(i * 7 + k + (size_t)before);
        free(out), free(in);
        TRY(received);
        TRY(sent);
        EXPECT(right);
        EXPECT(!recv.node && !send.node);
    }
    return OK;
}

/* Values of very different size: another order of summing gives other bits. */
static inline double value_of(int rank, int64_t i)
{
    uint64_t key = rng_key((uint64_t)rank, "values");
    double x = rng_uniform(key, (uint64_t)i) - 0.5;
    return i % 3 == 0 ? x * 1e6 : x;
}

static inline Status sums(Comm *comm, int64_t n, Arena *scratch)
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

static inline Status sum_body(Comm *world, void *arg)
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

static inline Status small(Comm *comm)
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

/* How many bytes a rank has for another: some pairs nothing, the last rank nothing for anybody. */
static inline size_t part_bytes(const Comm *comm, int from, int to, int round)
{
    if (from == comm->size - 1 || (from + to + round) % 3 == 0) return 0;
    return (size_t)(from * 1000 + to * 10 + round * 70000);
}

static inline char part_byte(int from, int to, int round, size_t i)
{
    return (char)(from * 31 + to * 7 + round * 3 + (int)(i % 101));
}

/* Three all-to-alls under way at once, taken in another order than started. */
static inline Status all_to_all_body(Comm *comm, void *arg)
{
    (void)arg;
    enum { ROUNDS = 3, RANKS = 8 };
    Arena arena;
    arena_init(&arena, "parts");
    size_t in_bytes[ROUNDS][RANKS], out_bytes[ROUNDS][RANKS];
    CommRequest request[ROUNDS][2 * RANKS];
    char *in[ROUNDS];
    uint64_t sent_before = comm->bytes_sent;
    for (int k = 0; k < ROUNDS; k++) {
        size_t in_sum = 0, out_sum = 0;
        for (int r = 0; r < comm->size; r++) {
            in_sum += in_bytes[k][r] = part_bytes(comm, r, comm->rank, k);
            out_sum += out_bytes[k][r] = part_bytes(comm, comm->rank, r, k);
        }
        char *out = arena_take(&arena, out_sum), *at = out;
        in[k] = arena_take_zeroed(&arena, in_sum);
        for (int r = 0; r < comm->size; r++)
            for (size_t i = 0; i < out_bytes[k][r]; i++) *at++ = part_byte(comm->rank, r, k, i);
        comm_all_to_all_v(comm, request[k], in[k], in_bytes[k], out, out_bytes[k]);
    }
    uint64_t expected = 0;
    for (int k = 0; k < ROUNDS; k++)
        for (int r = 0; r < comm->size; r++)
            if (r != comm->rank) expected += out_bytes[k][r];
    bool right = comm->bytes_sent - sent_before == expected;
    Status status = OK;
    for (int k = ROUNDS - 1; k >= 0; k--) {
        Status arrived = comm_wait_all(comm, request[k], 2 * comm->size);
        if (arrived != OK) status = arrived;
        const char *at = in[k];
        for (int r = 0; r < comm->size; r++)
            for (size_t i = 0; i < in_bytes[k][r]; i++)
                right = right && *at++ == part_byte(r, comm->rank, k, i);
    }
    arena_free(&arena);
    TRY(status);
    EXPECT(right);
    return OK;
}

static inline Status small_body(Comm *world, void *arg)
{
    (void)arg;
    return small(world);
}

/* Rows and columns of a 2 x 3 grid, and a column split again: all talk at once with the same tags. */
static inline Status split_body(Comm *comm, void *arg)
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
    TRY(all_to_all_body(rows, NULL));
    TRY(all_to_all_body(reversed, NULL));
    TRY(small(rows));
    TRY(small(columns));
    TRY(small(reversed));
    TRY(small(single));
    TRY(sums(columns, 1001, &arena));
    arena_free(&arena);
    return OK;
}

static inline Status mesh_body(Comm *comm, void *arg)
{
    (void)arg;
    Arena arena;
    arena_init(&arena, "mesh");
    Mesh *mesh;
    int pipeline[AXIS_GIVEN] = {[AXIS_PP] = comm->size, 1, 1, 1, 1};
    TRY(mesh_create(&mesh, comm, pipeline, &arena));
    EXPECT(mesh->axis[AXIS_PP]->size == comm->size && mesh->axis[AXIS_PP]->rank == comm->rank);
    EXPECT(mesh->axis[AXIS_TP]->size == 1 && mesh->coord[AXIS_PP] == comm->rank);
    TRY(small(mesh->axis[AXIS_DP]));
    mesh_free(&mesh);
    EXPECT(!mesh);

    int grid[AXIS_GIVEN] = {[AXIS_PP] = 2, [AXIS_DP] = 2, 1, 1, [AXIS_TP] = 2};
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
    grid[AXIS_DP] = 2;
    grid[AXIS_EP] = 3;
    status = mesh_create(&mesh, comm, grid, &arena);
    EXPECT(status == ERR_USAGE && strstr(status_message(), "ep_size: found 3"));

    /* Experts: two of the four data ranks share them out, the others hold the same. */
    int experts[AXIS_GIVEN] = {[AXIS_PP] = 2, [AXIS_DP] = 2, [AXIS_EP] = 2, [AXIS_SP] = 2, 1};
    TRY(mesh_create(&mesh, comm, experts, &arena));
    for (int a = 0; a < AXIS_COUNT; a++) {
        EXPECT(mesh->axis[a]->rank == mesh->coord[a] && mesh->axis[a]->size == mesh->size[a]);
        TRY(small(mesh->axis[a]));
    }
    int q = comm->rank % 4;
    EXPECT(mesh->size[AXIS_DATA] == 4 && mesh->coord[AXIS_DATA] == q);
    EXPECT(mesh->coord[AXIS_EP] == q % 2 && mesh->coord[AXIS_EDP] == q / 2);
    int64_t first = comm->rank;
    TRY(comm_min_i64(mesh->axis[AXIS_EDP], &first, 1));
    EXPECT(first == comm->rank / 4 * 4 + q % 2);
    mesh_free(&mesh);
    arena_free(&arena);
    return OK;
}

/* A rank that returns without comm_agree, while the others are inside any of the collectives. */
static inline Status deserter_body(Comm *comm, void *arg)
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
        case 5: status = all_to_all_body(comm, NULL); break;
        default: status = comm_broadcast(comm, x, sizeof x, comm->size / 2);
        }
    arena_free(&scratch);
    EXPECT(status == ERR_PEER);
    return status;
}
