#include "comm/comm_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* One posted isend or irecv. Owned by the rank that posted it: only its thread takes nodes from its pool
 * and gives them back. The other side may touch a node only between finding it in the box, under the
 * box's lock, and storing `done`, which is its last access. */
typedef struct Node {
    struct Node *next; /* in the box or in the pool */
    void *data;        /* of an isend: only read */
    size_t bytes;
    uint64_t tag;
    struct Box *box;
    atomic_bool done;
    bool is_send;
} Node;

typedef struct Queue {
    Node *first, **end; /* in the order posted */
} Queue;

/* What one rank sent to another and has found no match yet; at most one of both holds nodes of a given tag. */
typedef struct Box {
    _Alignas(64) pthread_mutex_t lock;
    Queue queue[2]; /* receives, sends: by Node.is_send */
} Box;

typedef struct NodeChunk {
    struct NodeChunk *next;
    Node node[64];
} NodeChunk;

typedef struct ThreadRank {
    _Alignas(64) Comm comm;
    ThreadWorld *world;
    Node *pool;
    NodeChunk *chunks;
    atomic_bool gone;
} ThreadRank;

struct ThreadWorld {
    int n_ranks;
    ThreadRank *rank_r; /* [n_ranks] */
    Box *box_rr;        /* [n_ranks receivers][n_ranks senders] */
    atomic_bool hangs;
};

static ThreadRank *self_of(Comm *comm)
{
    return comm->state;
}

static Node *node_take(ThreadRank *self)
{
    if (!self->pool) {
        NodeChunk *chunk = malloc(sizeof *chunk);
        if (!chunk) die("out of memory: request records of rank %d", self->comm.rank);
        chunk->next = self->chunks;
        self->chunks = chunk;
        for (size_t i = 0; i < sizeof chunk->node / sizeof chunk->node[0]; i++) {
            chunk->node[i].next = self->pool;
            self->pool = &chunk->node[i];
        }
    }
    Node *node = self->pool;
    self->pool = node->next;
    return node;
}

static void node_give_back(ThreadRank *self, CommRequest *request)
{
    Node *node = request->node;
    node->next = self->pool;
    self->pool = node;
    *request = (CommRequest){0};
}

static void queue_remove(Queue *queue, Node **link)
{
    Node *node = *link;
    *link = node->next;
    if (!*link) queue->end = link;
}

/* Finds the partner of a new node or leaves the node in the box. First in, first out within a tag. */
static CommRequest post(Comm *comm, const Node *wish, int sender, int receiver, int peer)
{
    ThreadRank *self = self_of(comm);
    ThreadWorld *world = self->world;
    if (peer < 0 || peer >= world->n_ranks)
        die("comm threads: no rank %d among %d", peer, world->n_ranks);
    Node *node = node_take(self);
    node->next = NULL;
    node->data = wish->data;
    node->bytes = wish->bytes;
    node->tag = wish->tag;
    node->is_send = wish->is_send;
    node->box = &world->box_rr[receiver * world->n_ranks + sender];
    atomic_store_explicit(&node->done, false, memory_order_relaxed);

    Box *box = node->box;
    pthread_mutex_lock(&box->lock);
    Queue *others = &box->queue[!node->is_send];
    Node **link = &others->first, *partner;
    while ((partner = *link) && partner->tag != node->tag) link = &partner->next;
    if (partner) {
        queue_remove(others, link);
    } else {
        Queue *mine = &box->queue[node->is_send];
        *mine->end = node;
        mine->end = &node->next;
    }
    pthread_mutex_unlock(&box->lock);

    if (partner) {
        const Node *from = node->is_send ? node : partner, *into = node->is_send ? partner : node;
        if (from->bytes != into->bytes)
            die("comm threads: rank %d sends %zu bytes, rank %d expects %zu (tag %llu)", sender,
                from->bytes, receiver, into->bytes, (unsigned long long)node->tag);
        /* Outside of the lock: other messages of the pair go on meanwhile. */
        if (into->bytes) memcpy(into->data, from->data, into->bytes);
        atomic_store_explicit(&node->done, true, memory_order_relaxed);
        atomic_store_explicit(&partner->done, true, memory_order_release);
    }
    return (CommRequest){node, peer};
}

static CommRequest threads_isend(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    Node wish = {.bytes = bytes, .tag = tag, .is_send = true};
    memcpy(&wish.data, &data, sizeof data); /* const goes; a send's data is only read */
    comm->bytes_sent += bytes;
    return post(comm, &wish, comm->rank, to, to);
}

static CommRequest threads_irecv(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    Node wish = {.data = data, .bytes = bytes, .tag = tag};
    return post(comm, &wish, from, comm->rank, from);
}

static CommState threads_test(Comm *comm, CommRequest *request)
{
    ThreadRank *self = self_of(comm);
    Node *node = request->node;
    if (!node) return COMM_DONE;
    if (atomic_load_explicit(&node->done, memory_order_acquire)) {
        node_give_back(self, request);
        return COMM_DONE;
    }
    if (!atomic_load_explicit(&self->world->rank_r[request->peer].gone, memory_order_acquire))
        return COMM_PENDING;
    /* All the peer ever posted is in the box by now. Found there still: nobody will come. Not found: it was
     * matched before the peer left, and done follows. */
    Box *box = node->box;
    pthread_mutex_lock(&box->lock);
    Queue *queue = &box->queue[node->is_send];
    Node **link = &queue->first;
    while (*link && *link != node) link = &(*link)->next;
    bool lost = *link != NULL;
    if (lost) queue_remove(queue, link);
    pthread_mutex_unlock(&box->lock);
    if (!lost) return COMM_PENDING;
    node_give_back(self, request);
    return COMM_LOST;
}

static bool threads_hangs(Comm *comm, bool declare)
{
    ThreadWorld *world = self_of(comm)->world;
    if (declare) atomic_store_explicit(&world->hangs, true, memory_order_relaxed);
    return atomic_load_explicit(&world->hangs, memory_order_relaxed);
}

static void threads_free(Comm *comm)
{
    (void)comm; /* belongs to its world */
}

Status thread_world_create(ThreadWorld **out, int n_ranks)
{
    if (n_ranks < 1) return FAIL(ERR_USAGE, "ranks: found %d, expected at least 1", n_ranks);
    size_t n = (size_t)n_ranks, n_boxes, bytes;
    ThreadWorld *world = calloc(1, sizeof *world);
    if (!world) return FAIL(ERR_MEMORY, "out of memory: %d thread ranks", n_ranks);
    if (!__builtin_mul_overflow(n, n, &n_boxes) &&
        !__builtin_mul_overflow(n_boxes, sizeof(Box), &bytes)) {
        world->rank_r = aligned_alloc(_Alignof(ThreadRank), n * sizeof(ThreadRank));
        world->box_rr = aligned_alloc(_Alignof(Box), bytes);
    }
    if (!world->rank_r || !world->box_rr) {
        free(world->rank_r);
        free(world->box_rr);
        free(world);
        return FAIL(ERR_MEMORY, "out of memory: %d thread ranks", n_ranks);
    }
    world->n_ranks = n_ranks;
    for (int r = 0; r < n_ranks; r++) {
        ThreadRank *rank = &world->rank_r[r];
        *rank = (ThreadRank){.world = world};
        atomic_init(&rank->gone, false);
        rank->comm = (Comm){.name = "threads",
                            .rank = r,
                            .size = n_ranks,
                            .isend = threads_isend,
                            .irecv = threads_irecv,
                            .test = threads_test,
                            .hangs = threads_hangs,
                            .free = threads_free,
                            .state = rank};
    }
    for (size_t b = 0; b < n_boxes; b++) {
        Box *box = &world->box_rr[b];
        pthread_mutex_init(&box->lock, NULL);
        for (int k = 0; k < 2; k++) box->queue[k] = (Queue){.end = &box->queue[k].first};
    }
    *out = world;
    return OK;
}

void thread_world_free(ThreadWorld **out)
{
    ThreadWorld *world = *out;
    *out = NULL;
    if (!world) return;
    for (int b = 0; b < world->n_ranks * world->n_ranks; b++)
        pthread_mutex_destroy(&world->box_rr[b].lock);
    for (int r = 0; r < world->n_ranks; r++)
        for (NodeChunk *chunk = world->rank_r[r].chunks, *next; chunk; chunk = next) {
            next = chunk->next;
            free(chunk);
        }
    free(world->box_rr);
    free(world->rank_r);
    free(world);
}

Comm *thread_world_comm(ThreadWorld *world, int rank)
{
    return &world->rank_r[rank].comm;
}

void thread_world_leave(ThreadWorld *world, int rank)
{
    atomic_store_explicit(&world->rank_r[rank].gone, true, memory_order_release);
}
