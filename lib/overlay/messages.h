/* SPDX-License-Identifier: BSD-3-Clause */
/* The messages between controller and agents: a struct for each, written and read by one table. On
 * the wire, text is a JSON object and data is bytes; both may be missing. A node is its index. A
 * message going up carries the node that sent it. A message going down carries its destination
 * (WIRE_ALL: every node). Agents in between forward messages. */
#ifndef BERTH_OVERLAY_MESSAGES_H
#define BERTH_OVERLAY_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "overlay/connection.h"
#include "overlay/wire.h"

/* Extra time beyond PROBE's deadline_ms for a node that has reached none of the
 * first node's addresses by then. */
#define AGENT_PROBE_EXTENSION_MS 4000

/* These values go over the wire: add a type at the end of its group, or raise WIRE_VERSION. Each
 * has a row in messages.c, and those with a text a struct below and a table of its members. */
enum message_type {
	/* In both directions. */
	MESSAGE_HEARTBEAT = 1, /* every second */

	/* Up, towards the controller. */
	MESSAGE_HELLO = 10,  /* first on every connection */
	MESSAGE_LISTENING,   /* answer to a WELCOME that asks the agent to listen for children */
	MESSAGE_MOVED,	     /* the node is now connected to its parent; this connection ends */
	MESSAGE_MOVE_FAILED, /* the parent cannot be reached; this connection stays */
	MESSAGE_INVENTORY,
	MESSAGE_PROBED,	     /* merged over a subtree */
	MESSAGE_STARTED,     /* all ranks of the node have started their program */
	MESSAGE_OUTPUT,	     /* data: records, see struct message_output */
	MESSAGE_ENDED,	     /* of a rank */
	MESSAGE_ABORT,	     /* a rank called PMIx_Abort */
	MESSAGE_LOST,	     /* a child's connection has ended, or it is silent */
	MESSAGE_FAILED,	     /* the agent cannot do its part */
	MESSAGE_NOTE,	     /* for the user; nothing stops */
	MESSAGE_SIGNALLED,   /* the agent received a signal */
	MESSAGE_GATHER,	     /* sequence; data: the entries of a subtree, see tree.h */
	MESSAGE_PROGRESS,    /* the ranks' heartbeats */
	MESSAGE_STACKS,	     /* answer to DUMP_STACKS */
	MESSAGE_DONE,	     /* the node's ranks have ended and all output was sent */
	MESSAGE_STDIN_TAKEN, /* rank 0 has taken its standard input so far: send more */
	MESSAGE_JOINED,	     /* which ranks have met the others */
	MESSAGE_SETTLED,     /* answer to SETTLE */
	MESSAGE_CLAIMED,     /* answer to CLAIM */
	MESSAGE_READY,	     /* answer to ASK_READY */

	/* Both ways, routed by the controller. */
	MESSAGE_FETCH = 40,
	MESSAGE_FETCHED, /* with data */

	/* Down, towards the agents. */
	MESSAGE_WELCOME = 60,
	MESSAGE_MOVE,	  /* the node's parent in the tree */
	MESSAGE_TREE,	  /* all nodes have connected */
	MESSAGE_PROBE,	  /* try to connect to these addresses */
	MESSAGE_JOB,	  /* what all nodes need to start. data: the program's arguments, the
			     environment, the directory */
	MESSAGE_START,	  /* what one node needs to start. data: for each rank "+NAME=VALUE" to set,
			     "-NAME" to remove */
	MESSAGE_SIGNAL,	  /* to all ranks */
	MESSAGE_STOP,	  /* end all ranks, then send DONE */
	MESSAGE_GATHERED, /* sequence; data: the contributions of all nodes, in node order */
	MESSAGE_STDIN,	  /* data: for the standard input of the ranks that JOB names; neither data
			     nor text: its end */
	MESSAGE_DUMP_STACKS, /* send the ranks' stacks */
	MESSAGE_JOB_OVER,
	MESSAGE_END_TIME,  /* when the job ends, for ranks that already run */
	MESSAGE_SETTLE,	   /* report all ranks that have ended by now, then answer */
	MESSAGE_CLAIM,	   /* see claims_take */
	MESSAGE_ASK_READY, /* can what the ranks offer be used? */
};

/* Of a message that was read, texts and JSON values are borrowed from it, and NULL where they are
 * null. Of one to be sent, texts are borrowed, and references of JSON values are consumed, even on
 * failure. Lists of ranks are by local rank. */
struct message_hello {
	const char *dir; /* the agent's private directory */
};
struct message_listening {
	int port;
};
struct message_inventory {
	int port;	   /* MASTER_PORT, which the node reserves, or -1 */
	json_t *inventory; /* inventory_to_json */
	json_t *claims;	   /* claims_read */
	int blocks;	   /* bit I: it has bound block I, see agent/ports.h */
};
struct message_probed {
	int nodes; /* of the subtree, that answer */
	json_t *reached, *shared, *stalled;
};
struct message_ended {
	int rank, code, signal;
	bool core;
	bool stopped; /* by berth */
	int oom;      /* enum supervise_oom */
	int64_t peak_memory_bytes;
	const char *start_error;
	json_t *last; /* its last lines */
	json_t *said; /* what it wrote to BERTH_REPORT, or NULL */
	json_t *traceback;
};
struct message_abort {
	int rank;
	int64_t status;
	const char *text;
};
struct message_lost {
	int node;
	bool ended; /* its connection has; it is not only silent */
	const char *why;
};
struct message_failed {
	int code;
	const char *text;
	bool port_taken; /* by another user, to whom others may connect now */
};
struct message_note {
	const char *text;
};
struct message_signalled {
	int signal;
	bool launcher; /* the launcher's daemon sent it */
};
struct message_progress {
	json_t *steps;	      /* numbers, or null */
	json_t *status_texts; /* texts, or null */
};
struct message_stacks {
	json_t *states; /* as in /proc, "T" if stopped */
	const char *stacks;
};
struct message_done {
	const char *left; /* what could not be killed, or NULL */
};
struct message_joined {
	const char *states; /* see agent/joined.h */
};
struct message_claimed {
	bool taken;
	json_t *claims; /* the others' */
};
struct message_fetch {
	int rank;
	int from; /* the node that asks; -1: the sender */
};
struct message_fetched {
	int to; /* the node that asked */
	int status;
};
struct message_welcome {
	int nodes, fanout;
	bool listen;		   /* for children */
	bool move;		   /* a MOVE follows */
	int port;		   /* MASTER_PORT to reserve, 0: any, -1: none */
	int ports, seed;	   /* blocks of ports to bind, see agent/ports.h; 0: none */
	const char *scope, *outer; /* see claims_read; without them no claims are read */
};
struct message_move {
	const char *address; /* of the parent */
};
struct message_tree {
	json_t *detached; /* the nodes that stay connected to the controller */
};
struct message_probe {
	json_t *addresses;
	int deadline_ms;
	int load; /* bytes that follow each question and each answer */
};
struct message_job {
	int world_size;
	json_t *names, *first, *counts; /* of the nodes: names, first ranks, numbers of ranks */
	const char *log_dir;
	const char *pmix; /* "auto", "on", "off" */
	bool hold_port;
	int block; /* the block of ports to keep */
	int input; /* enum agent_job_stdin */
	const char *stop_file;
	json_t *limits;	   /* process/rlimits.h */
	json_t *container; /* container/container.h; NULL: none */
};
struct message_start {
	json_t *ranks; /* [{rank, cpus}] */
	json_t *plan;  /* berth.plan/1 */
	int port;      /* where ranks meet, or 0 */
};
struct message_signal {
	int signal;	  /* 0: none */
	const char *stop; /* create their stop file first, with this text; NULL: do not */
};
struct message_stop {
	int grace_ms;
};
struct message_stdin {
	int rows, columns; /* the size of rank 0's terminal; -1: the message has data instead */
};
struct message_dump_stacks {
	json_t *ranks; /* those that are behind; empty: unknown */
	bool gentle;   /* do not stop them */
};
struct message_job_over {
	int code;     /* the job's exit code */
	bool restart; /* the job starts anew: the end of this connection is not the last */
};
struct message_end_time {
	int64_t end_time; /* Unix seconds */
};
struct message_claim {
	json_t *claim;
	bool share;
};
struct message_ask_ready {
	const char *kind; /* "tcp", "http", "file", "command" */
	const char *host; /* tcp, http */
	int port;
	const char *path; /* http, file; the line of a command */
};
struct message_ready {
	bool ready;
	const char *text; /* why it is not */
};

/* A message that was read. */
struct message {
	const struct wire_message *wire; /* borrowed: node, attempt, sequence, data */
	json_t *document;
	union {
		struct message_hello hello;
		struct message_listening listening;
		struct message_inventory inventory;
		struct message_probed probed;
		struct message_ended ended;
		struct message_abort abort;
		struct message_lost lost;
		struct message_failed failed;
		struct message_note note;
		struct message_signalled signalled;
		struct message_progress progress;
		struct message_stacks stacks;
		struct message_done done;
		struct message_joined joined;
		struct message_claimed claimed;
		struct message_fetch fetch;
		struct message_fetched fetched;
		struct message_welcome welcome;
		struct message_move move;
		struct message_tree tree;
		struct message_probe probe;
		struct message_job job;
		struct message_start start;
		struct message_signal signal;
		struct message_stop stop;
		struct message_stdin input;
		struct message_dump_stacks dump_stacks;
		struct message_job_over job_over;
		struct message_end_time end_time;
		struct message_claim claim;
		struct message_ask_ready ask_ready;
		struct message_ready ready;
	};
};

/* The name used in errors and logs; "unknown" for an unknown type. */
const char *message_name(unsigned type);

/* The text of a message; malloced, NULL if memory is out. body is the type's struct; NULL, and an
 * empty text, if it has none. */
char *message_write(enum message_type type, const void *body);
/* A message with this text; everything is borrowed. */
struct wire_message message_wire(enum message_type type, uint32_t node, uint32_t attempt,
				 uint64_t sequence, const char *text, const void *data,
				 size_t size);
/* Send it, or one with body's text. */
int message_forward(struct connection *connection, const struct wire_message *message,
		    struct error *err);
int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		 size_t size, struct error *err);

/* Drop what message_send would consume. */
void message_drop(enum message_type type, const void *body);

/* Read a message, with every limit checked. Call message_free even on failure. Return 0, or
 * -ERR_DATA naming the message, the node and the member. */
int message_read(const struct wire_message *wire, struct message *out, struct error *err);
void message_free(struct message *message);

/* Add the answer of a subtree to what is known of count addresses: reached, by how many nodes;
 * shared, the node that owns the address too, or -1; stalled, one that connects to it but passes no
 * data, or -1. *answered counts the nodes. An answer about another number of addresses, or of more
 * nodes than node_count, adds nothing. */
void message_add_probed(const struct message_probed *answer, size_t node_count, size_t count,
			int *reached, int *shared, int *stalled, size_t *answered);

/* One output record on the wire: rank (4 bytes), stream and newline (1 byte each), size (4 bytes),
 * bytes. */
struct message_output {
	uint32_t rank;
	int stream; /* enum supervise_stream */
	bool newline;
	const char *text;
	size_t size;
};
int message_add_output(struct bytes *bytes, const struct message_output *output);
/* Take one record off the front of *at. Return 1, 0 at the end, or -ERR_DATA if the record is cut
 * short. */
int message_next_output(const unsigned char **at, size_t *left, struct message_output *out,
			struct error *err);

#endif
