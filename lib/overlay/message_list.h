/* SPDX-License-Identifier: BSD-3-Clause */
/* Every message between controller and agents, once: messages.h makes types and structs of this
 * list, messages.c names and tables, and tests/structure/docs.py compares docs/protocol.md. It has
 * no include guard, because each of them includes it with macros of its own:
 *
 *	MESSAGE(NAME, number)                           a message without a text
 *	MESSAGE_WITH(NAME, number, name, members...)    one with a text, and struct message_name
 *	NUMBER(name, least, most), INT64(...)           int, int64_t
 *	NUMBER_OR_NONE(name, least, most)               the same; below least: not sent
 *	BOOL(name)
 *	TEXT(name), TEXT_OR_NULL(name)                  const char *
 *	LIST(name), OBJECT(name), ..._OR_NULL(name)     json_t *
 *
 * Members are written in this order. The numbers go over the wire: add a message at the end of its
 * group, or raise WIRE_VERSION.
 *
 * Of a message that was read, texts and JSON values are borrowed from it, and NULL where they are
 * null. Of one to be sent, texts are borrowed, and references of JSON values are consumed, even on
 * failure. Lists of ranks are by local rank. */
/* clang-format off */

/* In both directions. */
MESSAGE(HEARTBEAT, 1) /* every second */

/* Up, towards the controller. */
MESSAGE_WITH(HELLO, 10, hello, /* first on every connection */
	TEXT(dir)) /* the agent's private directory */
/* answer to a WELCOME that asks the agent to listen for children */
MESSAGE_WITH(LISTENING, 11, listening,
	NUMBER(port, 1, 65535))
MESSAGE(MOVED, 12) /* the node is now connected to its parent; this connection ends */
MESSAGE(MOVE_FAILED, 13) /* the parent cannot be reached; this connection stays */
MESSAGE_WITH(INVENTORY, 14, inventory,
	NUMBER(port, -1, 65535) /* MASTER_PORT, which the node reserves, or -1 */
	OBJECT(inventory) /* inventory_to_json */
	LIST(claims) /* claims_read */
	NUMBER(blocks, 0, 255) /* bit I: it has bound block I, see agent/ports.h */
	TEXT_OR_NULL(host)) /* its host name, if its name in the allocation is not its own */
MESSAGE_WITH(PROBED, 15, probed, /* merged over a subtree */
	NUMBER(nodes, 1, INT32_MAX) /* of the subtree, that answer */
	LIST(reached)
	LIST(shared)
	LIST(stalled))
MESSAGE(STARTED, 16) /* all ranks of the node have started their program */
MESSAGE(OUTPUT, 17) /* data: records, see struct message_output */
MESSAGE_WITH(ENDED, 18, ended, /* of a rank */
	NUMBER(rank, 0, INT32_MAX)
	NUMBER(code, 0, 255)
	NUMBER(signal, 0, NSIG - 1)
	BOOL(core)
	BOOL(stopped) /* by berth */
	NUMBER(oom, 0, INT32_MAX) /* enum supervise_oom */
	INT64(peak_memory_bytes, 0, INT64_MAX)
	TEXT_OR_NULL(start_error)
	LIST(last) /* its last lines */
	OBJECT_OR_NULL(said) /* what it wrote to BERTH_REPORT, or NULL */
	LIST_OR_NULL(traceback))
MESSAGE_WITH(ABORT, 19, abort, /* a rank called PMIx_Abort */
	NUMBER(rank, 0, INT32_MAX)
	INT64(status, INT32_MIN, INT32_MAX)
	TEXT_OR_NULL(text))
MESSAGE_WITH(LOST, 20, lost, /* a child's connection has ended, or it is silent */
	NUMBER(node, 0, INT32_MAX)
	BOOL(ended) /* its connection has; it is not only silent */
	TEXT(why))
MESSAGE_WITH(FAILED, 21, failed, /* the agent cannot do its part */
	NUMBER(code, 1, 255)
	TEXT(text)
	BOOL(port_taken)) /* by another user, to whom others may connect now */
MESSAGE_WITH(NOTE, 22, note, /* for the user; nothing stops */
	TEXT(text))
MESSAGE_WITH(SIGNALLED, 23, signalled, /* the agent received a signal */
	NUMBER(signal, 1, NSIG - 1)
	BOOL(launcher)) /* the launcher's daemon sent it */
MESSAGE(GATHER, 24) /* sequence; data: the entries of a subtree, see tree.h */
MESSAGE_WITH(PROGRESS, 25, progress, /* the ranks' heartbeats */
	LIST(steps) /* numbers, or null */
	LIST(status_texts)) /* texts, or null */
MESSAGE_WITH(STACKS, 26, stacks, /* answer to DUMP_STACKS */
	LIST(states) /* as in /proc, "T" if stopped */
	TEXT_OR_NULL(stacks))
MESSAGE_WITH(DONE, 27, done, /* the node's ranks have ended and all output was sent */
	TEXT_OR_NULL(left)) /* what could not be killed, or NULL */
MESSAGE(STDIN_TAKEN, 28) /* rank 0 has taken its standard input so far: send more */
MESSAGE_WITH(JOINED, 29, joined, /* which ranks have met the others */
	TEXT(states)) /* see agent/joined.h */
MESSAGE(SETTLED, 30) /* answer to SETTLE */
MESSAGE_WITH(CLAIMED, 31, claimed, /* answer to CLAIM */
	BOOL(taken)
	LIST(claims)) /* the others' */
MESSAGE_WITH(READY, 32, ready, /* answer to ASK_READY */
	BOOL(ready)
	TEXT(text)) /* why it is not */

/* Both ways, routed by the controller. */
MESSAGE_WITH(FETCH, 40, fetch,
	NUMBER(rank, 0, INT32_MAX)
	NUMBER(from, -1, INT32_MAX)) /* the node that asks; -1: the sender */
MESSAGE_WITH(FETCHED, 41, fetched, /* with data */
	NUMBER(to, 0, INT32_MAX) /* the node that asked */
	NUMBER(status, -255, 0))

/* Down, towards the agents. */
MESSAGE_WITH(WELCOME, 60, welcome,
	NUMBER(nodes, 1, 1 << 20)
	NUMBER(fanout, 1, 4096)
	BOOL(listen) /* for children */
	BOOL(move) /* a MOVE follows */
	NUMBER(port, -1, 65535) /* MASTER_PORT to reserve, 0: any, -1: none */
	NUMBER(ports, 0, 64)
	NUMBER(seed, 0, 65535) /* blocks of ports to bind, see agent/ports.h; 0: none */
	TEXT_OR_NULL(scope)
	TEXT_OR_NULL(outer)) /* see claims_read; without them no claims are read */
MESSAGE_WITH(MOVE, 61, move, /* the node's parent in the tree */
	TEXT(address)) /* of the parent */
MESSAGE_WITH(TREE, 62, tree, /* all nodes have connected */
	LIST(detached)) /* the nodes that stay connected to the controller */
MESSAGE_WITH(PROBE, 63, probe, /* try to connect to these addresses */
	LIST(addresses)
	NUMBER(deadline_ms, 0, 3600000)
	NUMBER(load, 0, WIRE_PROBE_LOAD_MAX)) /* bytes that follow each question and each answer */
/* what all nodes need to start. data: the program's arguments, the environment, the directory */
MESSAGE_WITH(JOB, 64, job,
	NUMBER(world_size, 1, INT32_MAX)
	LIST(names)
	LIST(first)
	LIST(counts) /* of the nodes: names, first ranks, numbers of ranks */
	TEXT_OR_NULL(log_dir)
	TEXT(pmix) /* "auto", "on", "off" */
	BOOL(hold_port)
	BOOL(service) /* see supervise_rank */
	BOOL(placeholders) /* process/placeholders.h, in the arguments */
	NUMBER(block, 0, 7) /* the block of ports to keep */
	NUMBER(input, 0, INT32_MAX) /* enum agent_job_stdin */
	TEXT_OR_NULL(stop_file)
	OBJECT_OR_NULL(limits) /* process/rlimits.h */
	OBJECT_OR_NULL(container)) /* container/container.h; NULL: none */
/* what one node needs to start. data: for each rank "+NAME=VALUE" to set, "-NAME" to remove */
MESSAGE_WITH(START, 65, start,
	LIST(ranks) /* [{rank, cpus}] */
	OBJECT(plan) /* berth.plan/1 */
	NUMBER(port, 0, 65535)) /* where ranks meet, or 0 */
MESSAGE_WITH(SIGNAL, 66, signal, /* to all ranks */
	NUMBER(signal, 0, NSIG - 1) /* 0: none */
	TEXT_OR_NULL(stop)) /* create their stop file first, with this text; NULL: do not */
MESSAGE_WITH(STOP, 67, stop, /* end all ranks, then send DONE */
	NUMBER(grace_ms, 0, 3600000))
MESSAGE(GATHERED, 68) /* sequence; data: the contributions of all nodes, in node order */
/* data: for the standard input of the ranks that JOB names; neither data nor text: its end */
MESSAGE_WITH(STDIN, 69, input,
	NUMBER_OR_NONE(rows, 0, USHRT_MAX)
	/* the size of rank 0's terminal; -1: the message has data instead */
	NUMBER_OR_NONE(columns, 0, USHRT_MAX))
MESSAGE_WITH(DUMP_STACKS, 70, dump_stacks, /* send the ranks' stacks */
	LIST(ranks) /* those that are behind; empty: unknown */
	BOOL(gentle)) /* do not stop them */
MESSAGE_WITH(JOB_OVER, 71, job_over,
	NUMBER(code, 0, 255) /* the job's exit code */
	BOOL(restart)) /* the job starts anew: the end of this connection is not the last */
MESSAGE_WITH(END_TIME, 72, end_time, /* when the job ends, for ranks that already run */
	INT64(end_time, 0, INT64_MAX)) /* Unix seconds */
MESSAGE(SETTLE, 73) /* report all ranks that have ended by now, then answer */
MESSAGE_WITH(CLAIM, 74, claim, /* see claims_take */
	OBJECT(claim)
	BOOL(share))
MESSAGE_WITH(ASK_READY, 75, ask_ready, /* can what the ranks offer be used? */
	TEXT(kind) /* "tcp", "http", "file", "command" */
	TEXT(host) /* tcp, http */
	NUMBER(port, 0, 65535)
	TEXT(path)) /* http, file; the line of a command */

#undef MESSAGE
#undef MESSAGE_WITH
#undef NUMBER
#undef NUMBER_OR_NONE
#undef INT64
#undef BOOL
#undef TEXT
#undef TEXT_OR_NULL
#undef LIST
#undef LIST_OR_NULL
#undef OBJECT
#undef OBJECT_OR_NULL
