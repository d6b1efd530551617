/* SPDX-License-Identifier: BSD-3-Clause */
/* Several agents on this machine, which simulate several nodes with real connections, tree and
 * exchange. Meant for trials and for the tests. All simulated nodes see the same cores and GPUs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "launch/launcher.h"

static bool loopback_fits(const struct launcher *launcher, const struct alloc *alloc,
			  const struct env *env)
{
	return false; /* only with --launcher loopback: simulating nodes is a deliberate choice */
}

static int spawn(const struct launcher_job *job, size_t node_index, pid_t *pid, struct error *err)
{
	char *const argv[] = {(char *)"berth", (char *)"agent", NULL};
	struct env *env = launcher_agent_env(job, node_index);
	int rc = env ? env_spawn(env, job->launch->berth_path, argv,
				 (const int[]){-1, STDERR_FILENO, STDERR_FILENO}, pid)
		     : ENOMEM;

	env_free(env);
	if (rc)
		return error_set(err, ERR_UNAVAILABLE, "cannot start agent %zu from %s: %s",
				 node_index, job->launch->berth_path, strerror(rc));
	return 0;
}

static int loopback_start(const struct launcher_job *job, struct launcher_process **out,
			  size_t *count, struct error *err)
{
	size_t nodes = job->launch->alloc->node_count, started = 0;
	struct launcher_process *processes = calloc(nodes, sizeof *processes);
	int rc = processes ? 0 : error_memory(err, "the agents");

	while (!rc && started < nodes) {
		processes[started] = (struct launcher_process){
			.node_index = (long)started, .fd = -1, .output_fd = -1};
		rc = spawn(job, started, &processes[started].pid, err);
		started += !rc;
	}
	if (rc) {
		launcher_kill_all(processes, started);
		return rc;
	}
	*out = processes;
	*count = nodes;
	return 0;
}

static char *command_line(const struct launcher_job *job)
{
	return text_format("%zu x %s agent, on this machine", job->launch->alloc->node_count,
			   job->launch->berth_path);
}

int launcher_simulate_nodes(const struct alloc *alloc, size_t nodes, struct alloc *out,
			    struct error *err)
{
	struct alloc simulated = {.source = alloc->source,
				  .end_time = alloc->end_time,
				  .restarts = alloc->restarts,
				  .simulated = nodes > 1};

	simulated.job_id = strdup(alloc->job_id);
	simulated.nodes = calloc(nodes, sizeof *simulated.nodes);
	simulated.why =
		text_format("%zu simulated nodes on this machine (--launcher loopback)", nodes);
	if (!simulated.job_id || !simulated.nodes || !simulated.why)
		goto memory;
	for (; simulated.node_count < nodes; simulated.node_count++) {
		struct alloc_node *node = &simulated.nodes[simulated.node_count];

		*node = (struct alloc_node){.slots = alloc->nodes[0].slots,
					    .gpus = alloc->nodes[0].gpus};
		if (!(node->name = text_format("loop%zu", simulated.node_count)))
			goto memory;
	}
	*out = simulated;
	return 0;
memory:
	alloc_free(&simulated);
	return error_memory(err, "the simulated nodes");
}

const struct launcher launcher_loopback = {
	.name = "loopback",
	.shape = LAUNCH_SIMULATED,
	.fits = loopback_fits,
	.start = loopback_start,
	.command_line = command_line,
};
