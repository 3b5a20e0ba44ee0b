#include "comm/comm.h"

/* A split is a list of the root's ranks and a number in the upper bits of the tag. */
typedef struct Split {
    int *rank_of; /* [size] rank of the root */
    uint64_t tag;
} Split;

enum { SPLIT_SHIFT = 41 }; /* above COMM_TAG_END, which marks collectives */

static CommRequest split_isend(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    const Split *split = comm->state;
    comm->bytes_sent += bytes;
    return comm->root->isend(comm->root, data, bytes, split->rank_of[to], split->tag | tag);
}

static CommRequest split_irecv(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    const Split *split = comm->state;
    return comm->root->irecv(comm->root, data, bytes, split->rank_of[from], split->tag | tag);
}

static CommState split_test(Comm *comm, CommRequest *request)
{
    return comm->root->test(comm->root, request);
}

static bool split_hangs(Comm *comm, bool declare)
{
    return comm->root->hangs(comm->root, declare);
}

static void split_free(Comm *comm)
{
    (void)comm; /* all of it is in the arena */
}

Status comm_split(Comm **out, Comm *parent, int color, int key, Arena *arena)
{
    typedef struct Member {
        int color, key, root_rank;
    } Member;
    Comm *root = parent->root ? parent->root : parent;
    const Split *outer = parent->root ? parent->state : NULL;

    /* The number is new to every member of this split. Groups of other colors may get the same one: they
     * share no pair of ranks. */
    int64_t number = (int64_t)root->next_split + 1;
    TRY(comm_max_i64(parent, &number, 1));
    root->next_split = (uint32_t)number;

    Comm *comm;
    Split *split;
    Member *all;
    int *key_of;
    Status status = arena_alloc(arena, &comm, 1, sizeof *comm);
    if (status == OK) status = arena_alloc(arena, &split, 1, sizeof *split);
    if (status == OK)
        status = arena_alloc(arena, &split->rank_of, (size_t)parent->size, sizeof(int));
    if (status == OK) status = arena_alloc(arena, &all, (size_t)parent->size, sizeof *all);
    if (status == OK) status = arena_alloc(arena, &key_of, (size_t)parent->size, sizeof(int));
    if (status == OK && number >= (int64_t)1 << (63 - SPLIT_SHIFT))
        status = FAIL(ERR_UNSUPPORTED, "comm: more than %d splits", 1 << (63 - SPLIT_SHIFT));
    TRY(comm_agree(parent, status));

    Member mine = {color, key, outer ? outer->rank_of[parent->rank] : parent->rank};
    TRY(comm_all_gather(parent, all, &mine, sizeof mine));

    *comm = (Comm){.name = root->name,
                   .hang_timeout = parent->hang_timeout,
                   .isend = split_isend,
                   .irecv = split_irecv,
                   .test = split_test,
                   .hangs = split_hangs,
                   .free = split_free,
                   .state = split,
                   .root = root};
    /* Insertion by (key, rank of parent): members come in the order of the parent's ranks. */
    for (int r = 0; r < parent->size; r++) {
        Member member = all[r];
        if (member.color != color) continue;
        int place = comm->size++;
        for (; place > 0 && key_of[place - 1] > member.key; place--) {
            key_of[place] = key_of[place - 1];
            split->rank_of[place] = split->rank_of[place - 1];
        }
        key_of[place] = member.key;
        split->rank_of[place] = member.root_rank;
    }
    for (int r = 0; r < comm->size; r++)
        if (split->rank_of[r] == mine.root_rank) comm->rank = r;
    split->tag = (uint64_t)number << SPLIT_SHIFT;
    *out = comm;
    return OK;
}
