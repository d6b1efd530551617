/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server of this node's ranks, and what it asks of the other nodes: collectives (up the
 * tree, the answer down to all) and what one rank has published (through the controller to its
 * node). */
#ifndef BERTH_AGENT_PMIX_RELAY_H
#define BERTH_AGENT_PMIX_RELAY_H

#include "overlay/children.h"
#include "agent/job_state.h"
#include "agent/uplink.h"
#include "base/env.h"
#include "overlay/tree.h"
#include "pmix/server_process.h"

/* Used by pmix_relay.c. ranks.c sets job and stopping, and reads process, server and ready. */
struct agent_pmix {
	struct loop_source source; /* the server's */
	struct loop_timer late;	   /* it has not started in time */
	struct loop *loop;
	struct agent_uplink *uplink;
	const struct children *children;
	const char *dir;
	const struct agent_job *job;	/* borrowed; NULL before JOB */
	struct server_process *process; /* NULL once it has ended */
	struct error process_error;	/* why there is no server */
	struct ranks_server *server;	/* NULL if the ranks have none */
	struct ranks_host host;
	struct gathers gathers;
	uint64_t fetch_count;
	struct fetch *fetches; /* requests of this node, waiting for FETCHED */
	bool ready;	       /* the server has started, or failed to */
	bool stopping;	       /* the ranks are being ended: do not report a crash */
};

/* Fork the server's process. Call it while this process has only one thread. If that fails, the
 * ranks have no PMIx, which agent_pmix_start reports. dir, for sockets and files, is borrowed. */
void agent_pmix_fork(struct agent_pmix *pmix, struct loop *loop, struct agent_uplink *uplink,
		     const struct children *children, const char *module_path, const char *dir);
/* Let the server prepare before the job is known. */
void agent_pmix_prepare(struct agent_pmix *pmix, const char *host, int node_index);

/* Begin to start the server; ranks is the list of START. If the ranks get or need no server,
 * return 0 and leave server NULL. Otherwise ready becomes true in a later round of the loop, and
 * agent_pmix_start_result then returns the result. */
int agent_pmix_start(struct agent_pmix *pmix, const json_t *ranks, struct error *err);
int agent_pmix_start_result(struct agent_pmix *pmix, struct error *err);
/* Add to env what a rank needs to find the server. */
int agent_pmix_environment(struct agent_pmix *pmix, int local_rank, struct env *env,
			   struct error *err);
void agent_pmix_rank_ended(struct agent_pmix *pmix, int local_rank);

/* Answer collectives that involve this node alone. Call it after each round of the loop: such a
 * collective may be complete while the server is still requesting it. */
void agent_pmix_complete_local(struct agent_pmix *pmix);
/* Messages: GATHER from below; GATHERED, FETCH and FETCHED from above. */
void agent_pmix_contribution(struct agent_pmix *pmix, const struct wire_message *message);
void agent_pmix_gathered(struct agent_pmix *pmix, const struct wire_message *message);
void agent_pmix_fetch(struct agent_pmix *pmix, const struct message *message);
void agent_pmix_fetched(struct agent_pmix *pmix, const struct message *message);

/* End the server and its process; pending requests fail. It may be called again. */
void agent_pmix_stop(struct agent_pmix *pmix);

#endif
