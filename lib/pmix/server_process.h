/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server in a process of its own beside the agent.
 *
 * Why: PMIx 4.2.2's server ends its process (double free in lost_connection) when two ranks of a
 * node vanish at once while one waits in a fence that the other has not entered: a Ctrl-C or one
 * failed rank is enough. The agent must outlive that, since it is the one who ends the ranks and
 * says what happened first. It also keeps PMIx's threads and settings out of the agent. */
#ifndef BERTH_PMIX_SERVER_PROCESS_H
#define BERTH_PMIX_SERVER_PROCESS_H

#include <sys/types.h>

#include "rendezvous/ranks.h"

struct server_process; /* opaque */

/* Fork the process; it loads the module at once and waits for start. Call it while this process
 * has no threads yet. The child keeps nothing of this process's descriptors but stderr; it
 * ignores the signals that berth forwards, and ends when this process does.
 * module_path: as module_load's search_path. 0, or -ERR_UNAVAILABLE. */
int server_process_fork(const char *module_path, struct server_process **out, struct error *err);

/* Let it begin before the job is known: see ranks_server_ops.prepare. What fails there is told by
 * start. NULL is fine. */
void server_process_prepare(struct server_process *process, const char *dir, const char *node,
			    int node_index);

/* Its pid: a child that whoever ends the ranks must leave alone. 0 for NULL. */
pid_t server_process_pid(const struct server_process *process);

/* End it, with what it may have left; NULL is fine. Bounded by 2 s. */
void server_process_free(struct server_process *process);

/* ranks_server_ops.start for a server in process (once a process), without waiting for it: the
 * table ranks_server_process serves *out from now on, and host->ready is called from its dispatch
 * when all that start and environment tell has come, or after 30 s, or when the process has ended.
 * Until then environment and missing may not be called. When the process ends later, before stop,
 * host->lost is called from dispatch and what is pending is dropped. 0, or -ERR_UNAVAILABLE:
 * descriptors, memory. */
int server_process_start_async(struct server_process *process, const struct ranks_job *job,
			       const struct ranks_host *host, struct ranks_server **out,
			       struct error *err);
/* After ready: 0, or start's error; *out is then to be stopped all the same. */
int server_process_start_result(struct ranks_server *server, struct error *err);

/* Both, waiting for ready; on failure nothing is left to be stopped. */
int server_process_start(struct server_process *process, const struct ranks_job *job,
			 const struct ranks_host *host, struct ranks_server **out,
			 struct error *err);
extern const struct ranks_server_ops ranks_server_process; /* start is NULL */

#endif
