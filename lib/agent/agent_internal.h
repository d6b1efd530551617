/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of an agent, shared by the agent_*.c files alone. */
#ifndef BERTH_AGENT_INTERNAL_H
#define BERTH_AGENT_INTERNAL_H

#include <stdbool.h>

#include "agent/address_probe.h"
#include "agent/agent.h"
#include "agent/discovery.h"
#include "agent/downlinks.h"
#include "agent/signals.h"
#include "agent/uplink.h"
#include "base/bytes.h"
#include "base/loop.h"
#include "overlay/gather.h"
#include "overlay/messages.h"
#include "pmix/server_process.h"
#include "process/logs.h"
#include "process/supervise.h"

struct agent;

/* What JOB and START said. */
struct agent_job {
	int world_size;
	size_t node_count; /* with or without ranks */
	const char **names;
	int *first_rank, *rank_count; /* [node_count] */
	json_t *text;		      /* JOB's, the names are borrowed from it */
	unsigned char *block;	      /* JOB's data: argv, base, cwd are borrowed from it */
	const char **argv, **base, **cwd;
	size_t base_count;
	char *log_dir, *stop_file; /* or NULL */
	bool pmix_disabled, pmix_required, hold_port, pass_stdin;
	bool input;	      /* the ranks' standard input comes from the head */
	bool want_heartbeats; /* the head wants their heartbeats */
};

struct agent {
	struct agent_params params;
	struct loop *loop;
	char dir[128];
	struct agent_uplink *uplink;
	struct agent_downlinks *downlinks;
	struct agent_signals *signals;
	struct agent_discovery *discovery;
	struct agent_probes *probes;
	struct error failure; /* why the connection up ended, for the log */
	bool welcomed, settled, inventory_sent;
	int64_t heartbeat_sent_ms; /* when the last heartbeat was sent */
	int64_t woke_ms;	   /* when the loop last came round */
	pid_t guardian;
	bool guardian_lost; /* the guardian was killed, and that was reported */
	int port_fd, port;  /* MASTER_PORT held here; -1 */

	/* ranks */
	uint32_t attempt;
	struct agent_job job;
	bool have_job;
	struct supervise *supervise;
	struct input *inputs; /* [rank_count] where job.input, else NULL */
	struct loop_source supervise_source;
	struct logs *logs;
	struct agent_heartbeats *heartbeats; /* once ranks are to be started */
	size_t rank_count, started_count;
	bool stopping, started_sent, done_sent, reading;
	struct bytes output;
	struct {
		bool waits, ready; /* START was said, the PMIx server is not there yet; is */
		json_t *ranks;	   /* START's list and data, until then */
		unsigned char *data;
		size_t size;
		uint64_t signals; /* bit N: signal N came meanwhile */
	} pending;
	struct server_process *pmix; /* the PMIx server's process, NULL once it is over */
	struct error pmix_error;     /* why there is none */
	struct ranks_server *server;
	struct loop_source server_source;
	struct ranks_host host;
	struct gathers gathers;
	uint64_t fetch_count;
	struct fetch *fetches;	      /* our own questions, waiting for FETCHED */
	struct local_answer *answers; /* of collectives that concern this node alone */
};

/* job_state.c: read JOB into agent->job. */
int agent_job_read(struct agent *agent, const struct wire_message *message, const json_t *text,
		   struct error *err);
void agent_job_free(struct agent_job *job);

/* ranks.c */
int agent_ranks_start(struct agent *agent, const struct wire_message *message, const json_t *text,
		      struct error *err);
/* Where START waits for the PMIx server and that is there now: go on. After each dispatch. */
void agent_ranks_resume_start(struct agent *agent);
void agent_ranks_signal(struct agent *agent, int number);

/* files.c: the files by which ranks and berth talk. The stop file appears, why in it ("failed":
 * nothing can be saved any longer; a word that is there already stays, but for that one). NULL:
 * none. */
void agent_write_stop_file(struct agent *agent, const char *why);
/* What the program has written to BERTH_REPORT; NULL: nothing, or no JSON object. A new reference.
 */
json_t *agent_read_report(const struct agent *agent);
/* What an earlier attempt has left of both. */
void agent_remove_files(const struct agent *agent);

void agent_ranks_stop(struct agent *agent, int grace_ms);
void agent_ranks_flush(struct agent *agent); /* send output, hold back or go on */
void agent_ranks_close(struct agent *agent);

/* heartbeats.c */
int agent_heartbeats_open(struct agent *agent, struct error *err);
void agent_heartbeats_started(struct agent *agent, int local_rank, pid_t pid);
/* Look for news and tell the head: once a second, or at once. */
void agent_heartbeats_poll(struct agent *agent, int64_t now_ms, bool at_once);
void agent_heartbeats_dump_stacks(struct agent *agent, const json_t *text); /* LOOK */
void agent_heartbeats_close(struct agent *agent);

/* stdin.c: the ranks' standard input, where it comes from the head. */
int agent_stdin_open(struct agent *agent, struct error *err);	       /* a pipe a rank */
int agent_stdin_rank_fd(const struct agent *agent, size_t local_rank); /* the rank's end of it */
void agent_stdin_close_rank_ends(
	struct agent *agent); /* the ranks have their ends: ours are closed */
void agent_stdin_receive(struct agent *agent, const struct wire_message *message);
void agent_stdin_close(struct agent *agent); /* again is fine */

/* pmix_relay.c */
/* Begin, and say by agent->pending.ready when it has come to an end: then agent_pmix_started says
 * how. 0 also where there is none, or need not be: agent->server is NULL then. */
int agent_pmix_start(struct agent *agent, const json_t *ranks, struct error *err);
int agent_pmix_started(struct agent *agent, struct error *err);
void agent_pmix_complete_local(
	struct agent *agent); /* what was settled here: after each dispatch */
void agent_pmix_contribution(struct agent *agent, const struct wire_message *message);
void agent_pmix_gathered(struct agent *agent, const struct wire_message *message);
void agent_pmix_fetch(struct agent *agent, const struct wire_message *message, const json_t *text);
void agent_pmix_fetched(struct agent *agent, const struct wire_message *message,
			const json_t *text);
/* End the server and its process; what still waits for it gets an error. Again is fine. */
void agent_pmix_stop(struct agent *agent);

#endif
