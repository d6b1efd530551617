/* SPDX-License-Identifier: BSD-3-Clause */
/* The user, or the command of each container, started berth run on every machine. The first
 * machine runs the controller and an agent of its own; the other machines run agents, which
 * connect to it. */

#include "base/bytes.h"
#include "launch/launcher.h"

static bool hand_fits(const struct launcher *launcher, const struct alloc *alloc,
		      const struct env *env)
{
	return alloc->rendezvous != NULL;
}

static int make(const struct launcher_job *job, size_t node, struct launcher_command *out)
{
	out->argv = launcher_argv(
		(const char *const[]){job->launch->berth_path, "agent", "--stdin", NULL}, NULL,
		NULL);
	out->input = launcher_stdin_text(job, node);
	return out->argv && out->input ? 0 : -1;
}

static int hand_start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		      struct error *err)
{
	if (!job->launch->alloc->rendezvous)
		return error_set(err, ERR_USAGE,
				 "launcher hand needs OpenPAI, or berth run on each machine with "
				 "--nnodes, --node-rank and --rdzv-endpoint; this is neither (%s)",
				 job->launch->alloc->why);
	return launcher_start_tools(job, out, count, err);
}

static char *command_line(const struct launcher_job *job)
{
	return text_format("(%zu more will connect to %s)", job->launch->alloc->node_count - 1,
			   job->launch->alloc->rendezvous ? job->launch->alloc->rendezvous : "");
}

const struct launcher launcher_hand = {
	.name = "hand",
	.shape = LAUNCH_BY_HAND,
	.fits = hand_fits,
	.start = hand_start,
	.command_line = command_line,
	.make = make,
};
