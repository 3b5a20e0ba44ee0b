#pragma once
/** The inside of an MpiWorld: comm_mpi.c begins and ends it, comm_mpi_messages.c moves its messages. */
#include "comm/comm_mpi.h"

#include <mpi.h>

enum { N_TAGS = 32767, N_FILES = 1024 };

/* Announces a message, or says of its sender that it left or that nothing moves any more. */
typedef struct Envelope {
    uint64_t tag, bytes;
    uint64_t number; /* among the messages of this sender to this receiver */
    enum { IS_MESSAGE, IS_END, IS_HANG } what;
    int32_t status; /* of an end */
} Envelope;

/* One isend, one irecv, or an envelope that found no receive yet. */
typedef struct Node {
    struct Node *next; /* in a queue or in the pool */
    void *data;        /* of an isend: only read */
    int peer;
    bool is_send, matched;
    Envelope envelope; /* its tag and bytes are the message's also in an irecv */
    MPI_Request *part; /* [capacity] of which n_parts are MPI's */
    int n_parts, capacity;
} Node;

typedef struct Queue {
    Node *first, **end; /* in the order posted, or come */
} Queue;

typedef struct Peer {
    Queue posted;  /* irecvs without an envelope */
    Queue arrived; /* envelopes without an irecv */
    uint64_t n_sent;
    bool left;
    Status status; /* once left */
} Peer;

typedef struct NodeChunk {
    struct NodeChunk *next;
    Node node[64];
} NodeChunk;

struct MpiWorld {
    Comm comm;
    MPI_Comm mpi;
    bool inherited[N_FILES]; /* files that were open before MPI began */
    int exit_code;           /* once it is freed */

    /* of the messages */
    size_t piece_bytes; /* longest message for MPI */
    int n_tags;
    Peer *peer_r;
    Envelope incoming; /* where the next envelope of anybody goes */
    MPI_Request listening;
    int n_left;
    bool leaving, hangs;
    Envelope farewell; /* an end, or a hang */
    MPI_Request *farewell_r;
    Queue dropped; /* messages that nobody will ask for, on their way into memory of ours */
    Node *pool;
    NodeChunk *chunks;
};

/**
 * Memory and functions of w->comm, whose rank and size are known; MPI is not called.
 * Errors: ERR_MEMORY; what was taken until then is freed by mpi_messages_free, as always.
 */
Status mpi_messages_init(MpiWorld *w) MUST_USE;
/** From here on messages of others on w->mpi come in. */
void mpi_messages_listen(MpiWorld *w);
void mpi_messages_free(MpiWorld *w);
