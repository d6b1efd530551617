/* SPDX-License-Identifier: BSD-3-Clause */
/* Machines started by hand: the agent of a machine that is not the first; named hosts inside a
 * scheduler's job. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "overlay/secret.h"
#include "run/run.h"

#define KNOWN_MS 10000	/* how long to wait for the controller's own name to resolve */
#define RETURN_MS 60000 /* to reach the controller again, which may have ended */

bool run_is_agent(const struct run_setup *setup)
{
	return setup->alloc.rendezvous && setup->alloc.this_node > 0;
}

/* Wait for the default file, which the first machine creates, perhaps in this home directory. */
static int read_secret(const struct run_setup *setup, struct secret *out, struct error *err)
{
	int64_t due_ms = clock_now_ms() + setup->launch.start_timeout_ms;
	bool named = env_get(setup->env, "BERTH_SECRET_FILE"), made, quiet = setup->request->quiet;
	char path[4096];
	int rc;

	while ((rc = secret_file_read(setup->env, false, out, &made, path, sizeof path, err)) &&
	       !named && path[0] && access(path, F_OK) && clock_now_ms() < due_ms) {
		if (!quiet)
			log_user(LOG_NOTE,
				 "waiting for the secret %s, which the first machine creates; copy "
				 "it here unless the machines share this home directory",
				 path);
		quiet = true;
		usleep(100000);
	}
	return rc;
}

int run_as_agent(const struct run_setup *setup, struct error *err)
{
	const struct alloc *alloc = &setup->alloc;
	char addresses[1024];
	struct agent_params params = {
		.node_index = (size_t)alloc->this_node,
		.name = alloc->nodes[alloc->this_node].name,
		.job = alloc->job_id,
		.fd = -1,
		.controller_addresses = addresses,
		.node_timeout_ms = setup->launch.node_timeout_ms,
		.connect_timeout_ms = setup->launch.start_timeout_ms,
		.env = setup->env,
	};
	struct job_outcome outcome;
	int rc = read_secret(setup, &params.secret, err);

	if (!rc)
		rc = agent_resolve(alloc->rendezvous, params.connect_timeout_ms, addresses,
				   sizeof addresses, err);
	if (rc)
		return rc;
	if (!setup->request->quiet)
		log_user(LOG_NOTE,
			 "%s of %zu, waiting for the first machine at %s, which prints all "
			 "output",
			 params.name, alloc->node_count, alloc->rendezvous);
	/* Repeat for a further attempt of the job, also if the connection was lost and one may
	 * follow. */
	params.outcome = &outcome;
	do {
		outcome = (struct job_outcome){0};
		rc = agent_run(&params, err);
		if (params.connect_timeout_ms > RETURN_MS)
			params.connect_timeout_ms = RETURN_MS;
	} while (!rc &&
		 (outcome.reported ? outcome.restart : setup->request->restarts.max_restarts > 0));
	secret_wipe(&params.secret);
	if (!rc && outcome.reported) {
		if (outcome.exit_code && !setup->request->quiet)
			log_user(LOG_NOTE,
				 "%s: the job exited with code %d; the first machine prints "
				 "the reason",
				 params.name, outcome.exit_code);
		return outcome.exit_code; /* that of all its machines */
	}
	if (!rc)
		rc = error_set(err, ERR_NETWORK,
			       "lost the first machine at %s before it reported how the job ended; "
			       "see what it printed",
			       alloc->rendezvous);
	return error_prefix(err, "%s (%s)", params.name, alloc->why);
}

void run_warn_hosts(const struct run_setup *setup)
{
	const struct alloc *named = &setup->alloc;
	const char *option = setup->request->place.alloc.hosts ? "--hosts" : "--hostfile";
	struct alloc job = {0};
	const char *first = NULL;
	size_t outside = 0;
	char text[200] = "";

	if (setup->request->quiet || setup->request->launcher ||
	    setup->launch.launcher->shape != LAUNCH_NODES || named->source != ALLOC_FROM_HOSTS ||
	    alloc_read(setup->env, NULL, &job, NULL))
		return;
	for (size_t i = 0; i < named->node_count; i++) {
		bool inside = false;

		for (size_t n = 0; n < job.node_count && !inside; n++)
			inside = !strcmp(job.nodes[n].name, named->nodes[i].name);
		if (!inside && !outside++)
			first = named->nodes[i].name;
	}
	if (outside > 1)
		snprintf(text, sizeof text, "; not among its nodes: %.100s and %zu more", first,
			 outside - 1);
	else if (outside)
		snprintf(text, sizeof text, "; %.100s is not one of its nodes", first);
	if (job.source == ALLOC_FROM_SLURM || job.source == ALLOC_FROM_PBS)
		log_user(LOG_WARNING,
			 "%s in the %s job %s: berth reaches these hosts through "
			 "%s, so the job's limits, GPUs and end time do not apply to the ranks%s; "
			 "omit %s to use the job's own nodes (--nodes N: the first N)",
			 option, job.source == ALLOC_FROM_SLURM ? "Slurm" : "PBS", job.job_id,
			 setup->launch.launcher->name, text, option);
	alloc_free(&job);
}

int run_check_rendezvous(const struct run_setup *setup, struct error *err)
{
	const struct alloc *alloc = &setup->alloc;
	int connect_timeout_ms = setup->launch.start_timeout_ms;
	char addresses[1024], *next = addresses;
	bool here = false;
	int rc;

	if (!alloc->rendezvous || alloc->this_node > 0)
		return 0;
	rc = agent_resolve(alloc->rendezvous,
			   connect_timeout_ms < KNOWN_MS ? connect_timeout_ms : KNOWN_MS, addresses,
			   sizeof addresses, err);
	if (rc)
		return rc;
	/* "192.0.2.1:4711,[fd00::1]:4711" */
	for (char *at; !here && (at = strsep(&next, ","));) {
		*strrchr(at, ':') = '\0';
		at += strspn(at, "[");
		at[strcspn(at, "]")] = '\0';
		here = launcher_is_this_host(at) || !strncmp(at, "127.", 4);
	}
	if (!here && !setup->request->quiet)
		log_user(LOG_WARNING,
			 "this machine should be the first one (%s), but none of "
			 "its interfaces has an address of %s, where the other machines look for "
			 "it",
			 alloc->why, alloc->rendezvous);
	if (!setup->request->quiet && !setup->request->dry_run)
		log_user(LOG_NOTE, "%s of %zu, waiting at %s for the other%s", alloc->nodes[0].name,
			 alloc->node_count, alloc->rendezvous, alloc->node_count > 2 ? "s" : "");
	return 0;
}
