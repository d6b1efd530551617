/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run with an engine whose ranks are the cluster's own tasks (--launcher srun-ranks): what
 * the agents start are keepers, and once the plan is there the engine's step comes to them. */
#include "run/run_tasks.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rank_proxy_channel.h"
#include "base/loop.h"
#include "overlay/wire.h"

#define SETTLE_MS 2000 /* from the end of the step's tool to the ends of all ranks */
#define END_MS 1500    /* for a tool that was told to end */
#define OUTPUT_TAIL_MAX 600

static void stop_tool(struct run_tasks *tasks)
{
	static const struct {
		int signal, wait_ms;
	} escalation[] = {{0, END_MS}, {SIGTERM, END_MS}, {SIGKILL, END_MS}};

	for (size_t i = 0; tasks->started && i < sizeof escalation / sizeof *escalation; i++) {
		struct pollfd end = {tasks->pidfd, POLLIN, 0};

		if (escalation[i].signal)
			syscall(SYS_pidfd_send_signal, tasks->pidfd, escalation[i].signal, NULL, 0);
		if (poll(&end, 1, escalation[i].wait_ms))
			break;
	}
	if (!tasks->started)
		return;
	waitpid(tasks->process.pid, NULL, WNOHANG); /* job_run may have reaped it */
	close(tasks->pidfd);
	close(tasks->process.output_fd);
	if (tasks->process.fd >= 0)
		close(tasks->process.fd);
	tasks->started = false;
}

/* What the tool has said, its last lines on one. */
static void read_output_tail(const struct run_tasks *tasks, char *out, size_t size)
{
	char output_tail[OUTPUT_TAIL_MAX + 1];
	off_t end = lseek(tasks->process.output_fd, 0, SEEK_END);
	off_t from = end > OUTPUT_TAIL_MAX ? end - OUTPUT_TAIL_MAX : 0;
	ssize_t n =
		end > 0 ? pread(tasks->process.output_fd, output_tail, OUTPUT_TAIL_MAX, from) : 0;

	output_tail[n > 0 ? n : 0] = '\0';
	out[0] = '\0';
	for (char *line = output_tail, *next; line; line = next) {
		size_t used = strlen(out);

		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (*line)
			snprintf(out + used, size - used, "%s%s", used ? "; " : "", line);
	}
}

static void fail(struct run_tasks *tasks, const char *text)
{
	if (!tasks->failure)
		tasks->failure = strdup(text);
	job_request_end(tasks->job, 0);
}

/* The plan is there: the step starts while the agents start the keepers. */
static void start_rank_step(void *context, struct job *job, const struct inventory *inventories,
			    int port)
{
	struct run_tasks *tasks = context;
	const struct run_setup *setup = tasks->setup;
	struct launcher_job launch_job = {
		.alloc = &setup->alloc,
		.env = setup->env,
		.berth_path = setup->berth_path,
		.job = setup->alloc.job_id,
	};
	struct launcher_rank_counts rank_counts = {tasks->counts,
						   setup->options->pmix != JOB_PMIX_OFF};
	struct error err = {0};

	(void)inventories;
	(void)port;
	tasks->job = job;
	stop_tool(tasks); /* of an earlier attempt */
	tasks->ended_ms = 0;
	if (setup->launcher->start_tasks(&launch_job, &rank_counts, &tasks->process, &err)) {
		fail(tasks, err.text);
		return;
	}
	tasks->pidfd = (int)syscall(SYS_pidfd_open, tasks->process.pid, 0);
	tasks->started = true;
}

/* The step's tool must not end before the ranks have. */
static int64_t tick(void *context, int64_t now_ms)
{
	struct run_tasks *tasks = context;
	struct pollfd end = {tasks->started ? tasks->pidfd : -1, POLLIN, 0};
	char output_tail[OUTPUT_TAIL_MAX + 1], text[OUTPUT_TAIL_MAX + 300];

	if (tasks->failure || poll(&end, 1, 0) <= 0)
		return 0;
	if (!tasks->ended_ms)
		tasks->ended_ms = now_ms;
	if (now_ms - tasks->ended_ms < SETTLE_MS)
		return tasks->ended_ms + SETTLE_MS;
	read_output_tail(tasks, output_tail, sizeof output_tail);
	snprintf(text, sizeof text,
		 "the step of the ranks is over, and ranks still wait for it; srun said: %s; %s",
		 output_tail[0] ? output_tail : "nothing",
		 strstr(output_tail, "mpi/pmix") || strstr(output_tail, "MPI")
			 ? "this Slurm has no mpi/pmix (srun --mpi=list): use --launcher srun, "
			   "whose "
			   "agents bring PMIx themselves, or --pmix off for programs without MPI"
			 : "--launcher srun needs no such step");
	fail(tasks, text);
	return 0;
}

static void missing(void *context, size_t node, const char *output_tail)
{
	(void)context;
	(void)node;
	(void)output_tail; /* the job says it */
}

void run_tasks_planned(struct run_tasks *tasks, const struct plan *plan)
{
	for (size_t i = 0; i < plan->node_count; i++)
		tasks->counts[i] = (int)plan->nodes[i].rank_count;
}

int run_tasks_prepare(struct run_tasks *tasks, struct run_setup *setup, const char *const *argv,
		      struct error *err)
{
	struct secret random;
	char token[65];
	size_t count = 0;
	int rc = 0;

	while (argv[count])
		count++;
	tasks->setup = setup;
	tasks->counts = calloc(setup->alloc.node_count, sizeof *tasks->counts);
	tasks->argv = calloc(count + 5, sizeof *tasks->argv);
	if (!tasks->counts || !tasks->argv)
		return error_memory(err, "the ranks' tasks");
	const char *const rank_proxy[] = {setup->berth_path, "agent", "--rank-proxy", "--"};

	memcpy(tasks->argv, rank_proxy, sizeof rank_proxy);
	memcpy(tasks->argv + 4, argv, count * sizeof *argv);
	rc = secret_generate(&random, err);
	if (rc)
		return rc;
	secret_format(&random, token);
	token[RANK_PROXIES_TOKEN] = '\0';
	rc = env_set(setup->env, RANK_PROXIES_ENV, token, ENV_FROM_BERTH, NULL, err);
	tasks->driver = (struct job_driver){.context = tasks,
					    .no_input = true,
					    .starting = start_rank_step,
					    .tick = tick,
					    .missing = missing};
	return rc;
}

void run_tasks_end(struct run_tasks *tasks, struct job_result *result)
{
	stop_tool(tasks);
	if (tasks->failure && result) {
		free(result->first_cause);
		result->first_cause = tasks->failure;
		result->by_program = false;
		result->code = ERR_UNAVAILABLE;
		result->rank = -1;
		result->signal = 0;
		tasks->failure = NULL;
	}
	free(tasks->failure);
	free(tasks->counts);
	free(tasks->argv);
	memset(tasks, 0, sizeof *tasks);
}
