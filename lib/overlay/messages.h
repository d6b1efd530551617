/* SPDX-License-Identifier: BSD-3-Clause */
/* The messages between controller and agents. text is a JSON object, data is bytes; both may be
 * missing. A node is its index. A message going up carries the node that sent it. A message going
 * down carries its destination (WIRE_ALL: every node). Agents in between forward messages. */
#ifndef BERTH_OVERLAY_MESSAGES_H
#define BERTH_OVERLAY_MESSAGES_H

#include <jansson.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "overlay/connection.h"
#include "overlay/wire.h"

/* Extra time beyond MESSAGE_PROBE's deadline_ms for a node that has reached none of the
 * first node's addresses by then. */
#define AGENT_PROBE_EXTENSION_MS 4000

/* These values go over the wire: add a type at the end of its group, or raise WIRE_VERSION. */
enum message_type {
	/* In both directions. */
	MESSAGE_HEARTBEAT = 1, /* every second; empty */

	/* Up, towards the controller. */
	MESSAGE_HELLO = 10, /* {node, name, folder, pid}: first on every connection */
	MESSAGE_LISTENING, /* {port}: answer to a WELCOME that asks the agent to listen for children
			    */
	MESSAGE_MOVED,	   /* the node is now connected to its parent; this connection ends */
	MESSAGE_MOVE_FAILED, /* {why}: the parent cannot be reached; this connection stays */
	MESSAGE_INVENTORY,   /* {port, card, claims}: card is inventory_to_json's value; port is the
				MASTER_PORT that the node reserves, or -1; claims: see
				process/claims.h */
	MESSAGE_PROBED,	     /* {nodes, reached: [n], shared: [n], stalled: [n]}: merged over a
				subtree */
	MESSAGE_STARTED,     /* {pmix: bool}: all ranks of the node have started their program */
	MESSAGE_OUTPUT,	     /* data: records, see struct message_output */
	MESSAGE_ENDED,	     /* {rank, local_rank, code, signal, ...}: see agent/ranks.h */
	MESSAGE_ABORT,	     /* {rank, status, text}: a rank called PMIx_Abort */
	MESSAGE_LOST,	   /* {node, ended, why}: a child's connection has ended, or it is silent */
	MESSAGE_FAILED,	   /* {code, text}: the agent cannot do its part */
	MESSAGE_NOTE,	   /* {text}: a note for the user; nothing stops */
	MESSAGE_SIGNALLED, /* {signal, launcher: its daemon sent it}: the agent received it */
	MESSAGE_GATHER,	   /* sequence; data: the entries of a subtree, see tree.h */
	MESSAGE_PROGRESS,  /* the ranks' heartbeats: see agent/heartbeats.h */
	MESSAGE_STACKS,	   /* answer to MESSAGE_DUMP_STACKS: see agent/heartbeats.h */
	MESSAGE_DONE, /* {left}: the node's ranks have ended and all output was sent; left names
			 what could not be killed */
	MESSAGE_STDIN_TAKEN, /* rank 0 has taken its standard input so far: send more */
	MESSAGE_JOINED,	     /* which ranks have met the others: see agent/joined.h */
	MESSAGE_SETTLED,     /* answer to MESSAGE_SETTLE */
	MESSAGE_CLAIMED,     /* {taken, claims}: answer to MESSAGE_CLAIM; claims: the others' */

	/* Both ways, routed by the controller: {rank, from}, and {to, status} with data. */
	MESSAGE_FETCH = 40,
	MESSAGE_FETCHED,

	/* Down, towards the agents. */
	/* {nodes, fanout, listen, move, port, scope, outer}: port -1: reserve none; scope, outer:
	 * see claims_read; without them no claims are read */
	MESSAGE_WELCOME = 60,
	MESSAGE_MOVE,	/* {node, address}: the node's parent in the tree */
	MESSAGE_TREE,	/* {detached: [node...]}: all nodes have connected; these stay connected to
			   the controller */
	MESSAGE_PROBE,	/* {addresses: [..], deadline_ms}: try to connect to these */
	MESSAGE_JOB,	/* what all nodes need to start: see agent/ranks.h */
	MESSAGE_START,	/* what one node needs to start: see agent/ranks.h */
	MESSAGE_SIGNAL, /* {signal, stop}: to all ranks; stop: create their stop file first */
	MESSAGE_STOP,	/* {grace_ms}: end all ranks, then send DONE */
	MESSAGE_GATHERED,    /* sequence; data: the contributions of all nodes, in node order */
	MESSAGE_STDIN,	     /* data: for the standard input of the ranks that JOB names; no data:
				its end. {rows, columns}: the size of rank 0's terminal */
	MESSAGE_DUMP_STACKS, /* request the ranks' stacks: see agent/heartbeats.h */
	/* {code, again}: the job's exit code. If again is true the job starts anew, so the end of
	 * this connection is not the last. */
	MESSAGE_JOB_OVER,
	MESSAGE_END_TIME, /* {end_time}: when the job ends, for ranks that already run */
	MESSAGE_SETTLE,	  /* report all ranks that have ended by now, then answer */
	MESSAGE_CLAIM,	  /* {claim, share}: see claims_take */
};
/* The name used in errors and logs; "unknown" for an unknown type. */
const char *message_name(unsigned type);

/* Send a message. text may be NULL; its reference is consumed even on failure. */
int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, json_t *text, const void *data, size_t size,
		 struct error *err);

/* Parse a message's text as an object; *out is a new reference. Return 0, or -ERR_DATA naming the
 * message and the node. */
int message_text(const struct wire_message *message, json_t **out, struct error *err);

/* Add the answer of a subtree (MESSAGE_PROBED) to what is known of count addresses: reached, by how
 * many nodes; shared, the node that owns the address too, or -1; stalled, one that connects to it
 * but passes no data, or -1. *answered counts the nodes. An answer that is malformed, or of more
 * nodes than node_count, adds nothing. */
void message_add_probed(const struct wire_message *message, size_t node_count, size_t count,
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
