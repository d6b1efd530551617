/* SPDX-License-Identifier: BSD-3-Clause */
/* What head and agents say to each other. text is a JSON object, data is bytes; both may be
 * missing. A node is its index. Messages going up carry the node they come from, messages going
 * down the one they are for (WIRE_ALL: everybody); agents in between pass them on. */
#ifndef BERTH_OVERLAY_MESSAGES_H
#define BERTH_OVERLAY_MESSAGES_H

#include <jansson.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "overlay/connection.h"
#include "overlay/wire.h"

/* More than REACH's deadline_ms, for a node that has reached none of the head's addresses by then.
 */
#define AGENT_PROBE_EXTENSION_MS 4000

enum message_type {
	/* Either way. */
	MESSAGE_HEARTBEAT = 1, /* every second; nothing in it */

	/* Up. */
	MESSAGE_HELLO = 10,  /* {node, name, folder, pid}: first on every connection */
	MESSAGE_LISTENING,   /* {port}: answer to WELCOME with children */
	MESSAGE_MOVED,	     /* the node has its parent now; this connection ends */
	MESSAGE_MOVE_FAILED, /* {why}: the parent cannot be reached, the connection stays */
	MESSAGE_INVENTORY,   /* {port, card}: inventory_to_json; port: MASTER_PORT that node 0 holds
			      */
	MESSAGE_PROBED,	     /* {nodes, reached: [n], shared: [n]}: merged over a subtree */
	MESSAGE_STARTED,     /* {pmix: bool}: all ranks of the node run their program */
	MESSAGE_OUTPUT,	     /* data: records, see message_output */
	MESSAGE_ENDED,	     /* {rank, local_rank, code, signal, ...}: see agent/ranks.c */
	MESSAGE_ABORT,	     /* {rank, status, text}: a rank called PMIx_Abort */
	MESSAGE_LOST,	     /* {node, why}: the agent of a child is silent or gone */
	MESSAGE_FAILED,	     /* {code, text}: the agent cannot do its part */
	MESSAGE_NOTE,	     /* {text}: worth telling, nothing stops */
	MESSAGE_SIGNALLED,   /* {signal}: the agent itself was sent a signal (Slurm, PBS) */
	MESSAGE_GATHER,	     /* sequence; data: entries of a subtree, see gather.h */
	MESSAGE_PROGRESS,    /* what the ranks' heartbeats say: see agent/heartbeats.c */
	MESSAGE_STACKS,	     /* answer to LOOK: likewise */
	MESSAGE_DONE,	     /* {left}: nothing of the node's ranks is left, all output was sent */

	/* Both ways, routed by the head: {rank, from} and {to, status} + data. */
	MESSAGE_FETCH = 40,
	MESSAGE_FETCHED,

	/* Down. */
	MESSAGE_WELCOME = 60, /* {nodes, fanout, listen, port (-1: hold none)} */
	MESSAGE_MOVE,	      /* {node, address}: the node's parent in the tree */
	MESSAGE_TREE,	     /* {detached: [node...]}: all nodes are there; these stay the head's */
	MESSAGE_PROBE,	     /* {port, addresses: [..], deadline_ms}: try these */
	MESSAGE_JOB,	     /* what all nodes need to start: see agent/ranks.c */
	MESSAGE_START,	     /* what one node needs: likewise */
	MESSAGE_SIGNAL,	     /* {signal}: to all ranks */
	MESSAGE_STOP,	     /* {grace_ms}: end all ranks, then DONE */
	MESSAGE_GATHERED,    /* sequence; data: everybody's, in node order */
	MESSAGE_STDIN,	     /* data: for the standard input of all ranks of the node */
	MESSAGE_DUMP_STACKS, /* what do the ranks do? see agent/heartbeats.c */
	MESSAGE_JOB_OVER, /* {code, again}: the job's exit code; again: it is run again, so that the
			   * goodbye that follows is not the last */
};
const char *message_name(unsigned type); /* "CARD"; "message 99" is "unknown" */

/* Send a message; text is consumed (also on failure) and may be NULL. */
int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, json_t *text, const void *data, size_t size,
		 struct error *err);

/* The text of a message as an object; a new reference. -ERR_DATA names the message and node. */
int message_text(const struct wire_message *message, json_t **out, struct error *err);

/* Output records: rank (4 bytes), stream, newline (1 byte each), size (4 bytes), bytes. */
struct message_output {
	uint32_t rank;
	int stream; /* enum supervise_stream */
	bool newline;
	const char *text;
	size_t size;
};
int message_add_output(struct bytes *bytes, const struct message_output *output);
/* Take one record off the front of *at; 1, 0 at the end, -ERR_DATA when cut short. */
int message_next_output(const unsigned char **at, size_t *left, struct message_output *out,
			struct error *err);

#endif
