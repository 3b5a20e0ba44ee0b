/* One rank of the tests in test_comm_mpi.c: started by mpiexec, does what its argument names, ends as the program does. */
#include "comm/comm_mpi.h"
#include "comm/rank_bodies.h"
#include "comm/world.h"

#include <sys/resource.h>

/* ---- what ends well -------------------------------------------------------------------------- */

/* The clock is one for all processes of the machine. */
static Status barrier(Comm *comm)
{
    for (int round = 0; round < 10; round++) {
        double mine[2], all[8][2], last_in = 0, first_out = 1e300;
        uint64_t key = rng_key((uint64_t)round, "barrier");
        clock_sleep_us((int)(rng_bits(key, (uint64_t)comm->rank) % 300));
        mine[0] = clock_seconds();
        TRY(comm_barrier(comm));
        mine[1] = clock_seconds();
        TRY(comm_all_gather(comm, all, mine, sizeof mine));
        for (int r = 0; r < comm->size; r++) {
            last_in = all[r][0] > last_in ? all[r][0] : last_in;
            first_out = all[r][1] < first_out ? all[r][1] : first_out;
        }
        EXPECT(first_out >= last_in);
    }
    return OK;
}

/* Tags of all 64 bits that differ in few places: matching must be exact. Asked for in another order than sent. */
static Status tags(Comm *comm)
{
    enum { N = 200 };
    static const uint64_t stride[] = {1, 32767, (uint64_t)1 << 31, (uint64_t)1 << 40,
                                      (uint64_t)1 << 57};
    int to = (comm->rank + 1) % comm->size, from = (comm->rank + comm->size - 1) % comm->size;
    for (size_t s = 0; s < sizeof stride / sizeof *stride; s++) {
        int out[N], in[N];
        CommRequest send[N];
        for (int i = 0; i < N; i++) {
            out[i] = comm->rank * 1000 + i;
            send[i] = comm->isend(comm, &out[i], sizeof(int), to, stride[s] * (uint64_t)(i % 100));
        }
        for (int i = N - 1; i >= 0; i--) {
            int k = i < N / 2 ? i : N / 2 + (N - 1 - i); /* the second of a tag comes second */
            k = N - 1 - k < N / 2 ? k - N / 2 : k + N / 2;
            TRY(comm_receive(comm, &in[k], sizeof(int), from, stride[s] * (uint64_t)(k % 100)));
        }
        for (int i = 0; i < N; i++) {
            EXPECT(in[i] == from * 1000 + i);
            TRY(comm_wait(comm, &send[i]));
        }
    }
    return OK;
}

/* Twice as many numbers as tags, and an old message that is taken at the last moment. Of 100 tags. */
static Status wrap(Comm *comm)
{
    enum { N = 200, LAST_MOMENT = 89, AHEAD = 10 };
    int value = 0, old = -1;
    for (int k = 0; k < N && comm->rank < 2 && comm->size > 1; k++) {
        bool pause = k % AHEAD == AHEAD - 1;
        if (comm->rank == 0) {
            value = k;
            TRY(comm_send(comm, &value, sizeof value, 1, k == 0));
            if (pause) TRY(comm_receive(comm, &value, sizeof value, 1, 2));
            continue;
        }
        if (k > 0) {
            TRY(comm_receive(comm, &value, sizeof value, 0, 0));
            EXPECT(value == k);
        }
        if (k == LAST_MOMENT) TRY(comm_receive(comm, &old, sizeof old, 0, 1));
        if (pause) TRY(comm_send(comm, &value, sizeof value, 0, 2));
    }
    EXPECT(comm->rank != 1 || old == 0);
    return OK;
}

static Status splits(Comm *comm)
{
    Arena arena;
    arena_init(&arena, "splits");
    Comm *six;
    TRY(comm_split(&six, comm, comm->rank < 6, 0, &arena));
    if (six->size == 6) TRY(split_body(six, NULL));
    if (comm->size == 8) TRY(mesh_body(comm, NULL));
    arena_free(&arena);
    return OK;
}

static Status all_good(Comm *comm, const World *world)
{
    int64_t few[] = {0, 1, 2, 7, 8, 9, 1000, -1};
    int64_t round[] = {(1 << 20) + 3, -1}; /* longer than a round of the sum */
    TRY(small(comm));
    TRY(many_small(comm, NULL));
    TRY(agree_on_work(comm, NULL));
    TRY(ring(comm, NULL));
    TRY(tags(comm));
    TRY(barrier(comm));
    TRY(all_to_all_body(comm, NULL));
    TRY(sum_body(comm, few));
    if (comm->size == 3) TRY(sum_body(comm, round));
    TRY(splits(comm));
    TRY(comm_barrier(comm));
    mpi_world_shrink(world->mpi, 1000, 100);
    TRY(comm_barrier(comm));
    TRY(wrap(comm));
    TRY(ring(comm, NULL));
    TRY(sum_body(comm, few));
    return OK;
}

/* The others wait for a sleeping rank: they must not burn the processors it could need. */
static Status wait_idle(Comm *comm)
{
    struct rusage before, after;
    TRY(comm_barrier(comm));
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < 10 && comm->rank == 0; i++) clock_sleep_us(100000);
    TRY(comm_barrier(comm));
    getrusage(RUSAGE_SELF, &after);
    double used = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                  (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                  1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                                  after.ru_stime.tv_usec - before.ru_stime.tv_usec);
    if (used > 0.5)
        return FAIL(ERR_FAILED, "rank %d: waiting 1 s took %g s of processor time", comm->rank,
                    used);
    return OK;
}

/* ---- what ends badly ------------------------------------------------------------------------- */

/* Rank 1 ends while large messages are on their way to it; the senders get their memory back. */
static Status leave_early(Comm *comm)
{
    if (comm->rank == 1) return FAIL(ERR_FORMAT, "data.jsonl:7: broken on one rank");
    size_t bytes = 8 << 20;
    char *data = calloc(bytes, 1), byte;
    if (!data) return FAIL(ERR_MEMORY, "out of memory");
    Status status = comm_send(comm, data, bytes, 1, 5);
    memset(data, 1, bytes);
    free(data);
    TRY(status);
    return comm_receive(comm, &byte, 1, 1, 6);
}

/* All have an error of their own, at different times. */
static Status fail_all(Comm *comm)
{
    for (int i = 0; i < 3 * (comm->size - comm->rank); i++) clock_sleep_us(50000);
    return FAIL(ERR_IO, "broken on rank %d", comm->rank);
}

/* Rank 1 fails while rank 0 works on, without a word to anybody. */
static Status fail_beside_work(Comm *comm)
{
    if (comm->rank == 1) return FAIL(ERR_IO, "broken beside a busy rank");
    for (int i = 0; i < 600; i++) clock_sleep_us(100000);
    return OK;
}

static Status die_in_step(Comm *comm)
{
    char byte;
    breadcrumb()->step = 3;
    if (comm->rank == 1) die("gone wrong");
    comm_must(comm_receive(comm, &byte, 1, 1, 0));
    return OK;
}

static Status wrong_size(Comm *comm)
{
    char data[8] = {0};
    if (comm->rank == 0) return comm_send(comm, data, 8, 1, 9);
    return comm_receive(comm, data, 7, 0, 9);
}

static Status too_many(Comm *comm, const World *world)
{
    char byte = 0;
    mpi_world_shrink(world->mpi, 1000, 100);
    for (int k = 0; k < 100 + 1 && comm->rank == 0; k++) TRY(comm_send(comm, &byte, 1, 1, 4));
    return comm_receive(comm, &byte, 1, 1 - comm->rank, 77);
}

static Status hang_beside_work(Comm *comm)
{
    return hang_body(comm, &(bool){false});
}

static Status hang_beside_stopped(Comm *comm)
{
    return hang_body(comm, &(bool){true});
}

static Status stop(Comm *comm)
{
    TRY(comm_barrier(comm));
    return FAIL(ERR_STOPPED, "stopped");
}

static const struct {
    const char *name;
    Status (*body)(Comm *comm);
} bodies[] = {{"idle", wait_idle},
              {"leave", leave_early},
              {"fail-all", fail_all},
              {"fail-busy", fail_beside_work},
              {"die", die_in_step},
              {"wrong-size", wrong_size},
              {"stop", stop},
              {"hang-work", hang_beside_work},
              {"hang-stop", hang_beside_stopped}};

static Status run(const World *world, const char *what)
{
    if (!world->comm) return FAIL(ERR_USAGE, "not launched");
    breadcrumb()->started = true;
    if (!strcmp(what, "good")) return all_good(world->comm, world);
    if (!strcmp(what, "too-many")) return too_many(world->comm, world);
    if (!strncmp(what, "desert", 6)) {
        int which = atoi(what + 6);
        return deserter_body(world->comm, &which);
    }
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (!strcmp(what, bodies[i].name)) return bodies[i].body(world->comm);
    return FAIL(ERR_USAGE, "no body %s", what);
}

int main(int argc, char **argv)
{
    World world;
    bool speaks;
    Status status = world_open(&world);
    if (status == OK) status = run(&world, argc > 1 ? argv[1] : "");
    status = world_settle(&world, status, &speaks);
    if (speaks) fprintf(stderr, "stagewright: error: %s\n", status_message());
    world_close(&world, status);
    return status_exit_code(status);
}
