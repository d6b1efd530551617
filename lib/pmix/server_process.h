/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server in a process of its own, next to the agent.
 *
 * Reason: PMIx 4.2.2's server crashes (double free in lost_connection) when two ranks of a node
 * vanish at once while one waits in a fence that the other has not entered. A Ctrl-C or one failed
 * rank is enough. The agent must survive that, because it ends the ranks and reports what happened
 * first. The separate process also keeps PMIx's threads and settings out of the agent. */
#ifndef BERTH_PMIX_SERVER_PROCESS_H
#define BERTH_PMIX_SERVER_PROCESS_H

#include <sys/types.h>

#include "rendezvous/ranks.h"

#define SERVER_PROCESS_START_MS 30000 /* PMIx takes tens of ms; on a loaded machine more */

struct server_process; /* opaque */

/* Fork the process. It loads the module at once and waits for start. Call this while the process
 * has no threads yet. The child keeps none of this process's descriptors except stderr. It ignores
 * the signals that berth forwards, and ends when this process ends. module_path: as module_load's
 * search_path. Return 0 or -ERR_UNAVAILABLE. */
int server_process_fork(const char *module_path, struct server_process **out, struct error *err);

/* Start work that does not depend on the job: see ranks_server_ops.prepare. start reports its
 * errors. NULL is allowed. */
void server_process_prepare(struct server_process *process, const char *dir, const char *node,
			    int node_index);

/* Its pid, which the code that ends the ranks must spare. 0 for NULL. */
pid_t server_process_pid(const struct server_process *process);

/* End the process and its descendants; NULL is allowed. Takes at most 2 s. */
void server_process_free(struct server_process *process);

/* ranks_server_ops.start for a server in process (once per process), without waiting. From now on
 * the table ranks_server_process serves *out. Its dispatch calls host->ready once all answers to
 * start and environment have arrived, or when the process has ended. environment must not be called
 * before that. If the process ends later, before stop, dispatch calls host->lost and drops what is
 * pending; it must not be called any more. Return 0, or -ERR_UNAVAILABLE if memory is out. */
int server_process_start_async(struct server_process *process, const struct ranks_job *job,
			       const struct ranks_host *host, struct ranks_server **out,
			       struct error *err);
/* Call it SERVER_PROCESS_START_MS after the start, unless host->ready was called before: it is now,
 * and the start has failed. */
void server_process_start_late(struct ranks_server *server);
/* Call after ready. Return 0, or start's error; *out must be stopped in either case. */
int server_process_start_result(struct ranks_server *server, struct error *err);

extern const struct ranks_server_ops ranks_server_process; /* start is NULL */

#endif
