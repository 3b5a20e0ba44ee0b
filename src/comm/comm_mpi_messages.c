#include "base/clock.h"
#include "comm/comm_mpi_parts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG_ENVELOPE = 0, PIECE_BYTES = 1 << 30 };

static void must(int error, const char *what)
{
    if (error == MPI_SUCCESS) return;
    /* A process that died takes its connections with it. Its launcher ends us any moment, and its own message is enough. */
    sleep(1);
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (MPI_Error_string(error, text, &n) != MPI_SUCCESS) n = 0;
    die("comm mpi: %s: %.*s", what, n, text);
}

/* ---- nodes --------------------------------------------------------------------------------------- */

static void queue_init(Queue *queue)
{
    *queue = (Queue){.end = &queue->first};
}

static void queue_add(Queue *queue, Node *node)
{
    node->next = NULL;
    *queue->end = node;
    queue->end = &node->next;
}

static Node *queue_take(Queue *queue, Node **link)
{
    Node *node = *link;
    *link = node->next;
    if (!*link) queue->end = link;
    return node;
}

/* The oldest one of the tag, taken out; NULL: none. */
static Node *queue_take_tag(Queue *queue, uint64_t tag)
{
    Node **link = &queue->first;
    while (*link && (*link)->envelope.tag != tag) link = &(*link)->next;
    return *link ? queue_take(queue, link) : NULL;
}

static Node *node_take(MpiWorld *w)
{
    if (!w->pool) {
        NodeChunk *chunk = calloc(1, sizeof *chunk);
        if (!chunk) die("out of memory: request records of rank %d", w->comm.rank);
        chunk->next = w->chunks;
        w->chunks = chunk;
        for (size_t i = 0; i < sizeof chunk->node / sizeof chunk->node[0]; i++) {
            chunk->node[i].next = w->pool;
            w->pool = &chunk->node[i];
        }
    }
    Node *node = w->pool;
    w->pool = node->next;
    node->n_parts = 0;
    node->is_send = node->matched = false;
    return node;
}

static void node_give_back(MpiWorld *w, Node *node)
{
    node->next = w->pool;
    w->pool = node;
}

static MPI_Request *node_part(Node *node)
{
    if (node->n_parts == node->capacity) {
        int capacity = node->capacity ? 2 * node->capacity : 4;
        MPI_Request *part = realloc(node->part, (size_t)capacity * sizeof *part);
        if (!part) die("out of memory: a message in %d parts", capacity);
        node->part = part;
        node->capacity = capacity;
    }
    return &node->part[node->n_parts++];
}

/* Give MPI the bytes of a message. All pieces at once: one waited for may need the other's progress. */
static void transfer(MpiWorld *w, Node *node, uint64_t number)
{
    int tag = 1 + (int)(number % (uint64_t)w->n_tags);
    char *data = node->data;
    size_t bytes = node->envelope.bytes;
    for (size_t at = 0; at < bytes; at += w->piece_bytes) {
        int n = (int)(bytes - at < w->piece_bytes ? bytes - at : w->piece_bytes);
        MPI_Request *part = node_part(node);
        if (node->is_send)
            must(MPI_Isend(data + at, n, MPI_BYTE, node->peer, tag, w->mpi, part), "send");
        else
            must(MPI_Irecv(data + at, n, MPI_BYTE, node->peer, tag, w->mpi, part), "receive");
    }
}

/* Requests that are done become MPI_REQUEST_NULL, which is done for ever. */
static bool all_done(MPI_Request *request, int n)
{
    int done = 1;
    for (int i = 0; i < n && done; i++)
        must(MPI_Test(&request[i], &done, MPI_STATUS_IGNORE), "test");
    return done != 0;
}

/* ---- matching ------------------------------------------------------------------------------------ */

void mpi_messages_listen(MpiWorld *w)
{
    must(MPI_Irecv(&w->incoming, (int)sizeof w->incoming, MPI_BYTE, MPI_ANY_SOURCE, TAG_ENVELOPE,
                   w->mpi, &w->listening),
         "receive");
}

static void match(MpiWorld *w, Node *receive, const Envelope *envelope)
{
    if (receive->envelope.bytes != envelope->bytes)
        die("comm mpi: rank %d sends %llu bytes, rank %d expects %llu (tag %llu)", receive->peer,
            (unsigned long long)envelope->bytes, w->comm.rank,
            (unsigned long long)receive->envelope.bytes, (unsigned long long)envelope->tag);
    receive->matched = true;
    transfer(w, receive, envelope->number);
}

/* Take a message that nobody will ask for. */
static void drop(MpiWorld *w, Node *stored)
{
    stored->data = malloc(stored->envelope.bytes + 1);
    if (!stored->data) die("out of memory: a message of %zu bytes", (size_t)stored->envelope.bytes);
    match(w, stored, &stored->envelope);
    queue_add(&w->dropped, stored);
}

static void take_envelope(MpiWorld *w, int from, const Envelope *envelope)
{
    Peer *peer = &w->peer_r[from];
    if (envelope->what == IS_HANG) {
        w->hangs = true;
        return;
    }
    if (envelope->what == IS_END) {
        peer->left = true;
        peer->status = (Status)envelope->status;
        w->n_left++;
        return;
    }
    Node *receive = queue_take_tag(&peer->posted, envelope->tag);
    if (receive) {
        match(w, receive, envelope);
        return;
    }
    /* See the header: the bytes of these two would have one MPI tag. */
    const Node *oldest = peer->arrived.first;
    if (oldest && envelope->number - oldest->envelope.number >= (uint64_t)w->n_tags)
        die("comm mpi: too many messages from rank %d that rank %d has not asked for (%d)", from,
            w->comm.rank, w->n_tags);
    Node *stored = node_take(w);
    stored->peer = from;
    stored->envelope = *envelope;
    if (w->leaving)
        drop(w, stored);
    else
        queue_add(&peer->arrived, stored);
}

/* Take the envelopes that came. Each rank's last one says that it leaves: nothing to listen to after all of them. */
static void progress(MpiWorld *w)
{
    while (w->n_left < w->comm.size) {
        int come = 0;
        MPI_Status from;
        must(MPI_Test(&w->listening, &come, &from), "test");
        if (!come) return;
        Envelope envelope = w->incoming;
        take_envelope(w, from.MPI_SOURCE, &envelope);
        if (w->n_left < w->comm.size) mpi_messages_listen(w);
    }
}

/* ---- the table ----------------------------------------------------------------------------------- */

static Node *new_request(Comm *comm, const void *data, size_t bytes, int peer, uint64_t tag)
{
    MpiWorld *w = comm->state;
    if (peer < 0 || peer >= comm->size) die("comm mpi: no rank %d among %d", peer, comm->size);
    Node *node = node_take(w);
    memcpy(&node->data, &data, sizeof data); /* const goes; a send's data is only read */
    node->peer = peer;
    node->envelope = (Envelope){.tag = tag, .bytes = bytes};
    return node;
}

static CommRequest mpi_isend(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    MpiWorld *w = comm->state;
    Node *node = new_request(comm, data, bytes, to, tag);
    node->is_send = true;
    comm->bytes_sent += bytes;
    node->envelope.number = w->peer_r[to].n_sent++;
    must(MPI_Isend(&node->envelope, (int)sizeof node->envelope, MPI_BYTE, to, TAG_ENVELOPE, w->mpi,
                   node_part(node)),
         "send");
    transfer(w, node, node->envelope.number);
    return (CommRequest){node, to};
}

static CommRequest mpi_irecv(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    MpiWorld *w = comm->state;
    Node *node = new_request(comm, data, bytes, from, tag);
    Peer *peer = &w->peer_r[from];
    Node *stored = queue_take_tag(&peer->arrived, tag);
    if (stored) {
        match(w, node, &stored->envelope);
        node_give_back(w, stored);
    } else {
        queue_add(&peer->posted, node);
    }
    return (CommRequest){node, from};
}

static bool is_done(Node *node)
{
    return (node->is_send || node->matched) && all_done(node->part, node->n_parts);
}

static CommState mpi_test(Comm *comm, CommRequest *request)
{
    MpiWorld *w = comm->state;
    Node *node = request->node;
    if (!node) return COMM_DONE;
    CommState state = COMM_DONE;
    if (!is_done(node)) {
        progress(w);
        Peer *peer = &w->peer_r[node->peer];
        if (node->is_send || node->matched || !peer->left) return COMM_PENDING;
        /* The peer's last envelope is here, and none of them fits. */
        Node **link = &peer->posted.first;
        while (*link != node) link = &(*link)->next;
        queue_take(&peer->posted, link);
        state = COMM_LOST;
    }
    node_give_back(w, node);
    *request = (CommRequest){0};
    return state;
}

/* To all, itself too. */
static void say_farewell(MpiWorld *w, Envelope farewell)
{
    w->farewell = farewell;
    for (int r = 0; r < w->comm.size; r++)
        must(MPI_Isend(&w->farewell, (int)sizeof w->farewell, MPI_BYTE, r, TAG_ENVELOPE, w->mpi,
                       &w->farewell_r[r]),
             "send");
}

static bool mpi_hangs(Comm *comm, bool declare)
{
    MpiWorld *w = comm->state;
    if (declare && !w->hangs) say_farewell(w, (Envelope){.what = IS_HANG});
    progress(w);
    return w->hangs;
}

static void mpi_free(Comm *comm)
{
    (void)comm; /* belongs to its world */
}

/* ---- begin and end -------------------------------------------------------------------------------- */

Status mpi_messages_init(MpiWorld *w)
{
    w->piece_bytes = PIECE_BYTES;
    w->n_tags = N_TAGS;
    w->comm.isend = mpi_isend;
    w->comm.irecv = mpi_irecv;
    w->comm.test = mpi_test;
    w->comm.hangs = mpi_hangs;
    w->comm.free = mpi_free;
    w->comm.state = w;
    queue_init(&w->dropped);
    w->peer_r = calloc((size_t)w->comm.size, sizeof *w->peer_r);
    w->farewell_r = calloc((size_t)w->comm.size, sizeof *w->farewell_r);
    if (!w->peer_r || !w->farewell_r)
        return FAIL(ERR_MEMORY, "out of memory: %d MPI ranks", w->comm.size);
    for (int r = 0; r < w->comm.size; r++) {
        queue_init(&w->peer_r[r].posted);
        queue_init(&w->peer_r[r].arrived);
    }
    return OK;
}

void mpi_messages_free(MpiWorld *w)
{
    for (NodeChunk *chunk = w->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        for (size_t i = 0; i < sizeof chunk->node / sizeof chunk->node[0]; i++)
            free(chunk->node[i].part);
        free(chunk);
    }
    free(w->peer_r);
    free(w->farewell_r);
}

void mpi_world_leave(MpiWorld *w, Status status)
{
    w->leaving = true;
    for (int r = 0; r < w->comm.size; r++) {
        Queue *arrived = &w->peer_r[r].arrived;
        while (arrived->first) drop(w, queue_take(arrived, &arrived->first));
    }
    say_farewell(w, (Envelope){.what = IS_END, .status = (int32_t)status});
}

static bool nothing_on_its_way(MpiWorld *w)
{
    while (w->dropped.first && is_done(w->dropped.first)) {
        Node *node = queue_take(&w->dropped, &w->dropped.first);
        free(node->data);
        node_give_back(w, node);
    }
    return !w->dropped.first && all_done(w->farewell_r, w->comm.size);
}

bool mpi_world_all_left(MpiWorld *w, double seconds)
{
    double begin = clock_seconds();
    for (int sleep_us = 1;; sleep_us = sleep_us < 500 ? 2 * sleep_us : 1000) {
        progress(w);
        if (nothing_on_its_way(w) && w->n_left == w->comm.size) return true;
        if (seconds > 0 && clock_seconds() - begin > seconds) return false;
        clock_sleep_us(sleep_us);
    }
}

bool mpi_world_has_left(const MpiWorld *w, int rank, Status *status)
{
    *status = w->peer_r[rank].status;
    return w->peer_r[rank].left;
}

void mpi_world_shrink(MpiWorld *w, size_t piece_bytes, int n_tags)
{
    w->piece_bytes = piece_bytes;
    w->n_tags = n_tags;
}
