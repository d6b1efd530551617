/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run with an engine whose ranks are the cluster's own tasks (--launcher srun-ranks): what the
 * agents start are keepers, and once the plan is there the engine's step comes to them. */
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
#define WORDS_MAX 600

static void stop_tool(struct run_tasks *tasks)
{
	static const struct {
		int signal, wait_ms;
	} steps[] = {{0, END_MS}, {SIGTERM, END_MS}, {SIGKILL, END_MS}};

	for (size_t i = 0; tasks->started && i < sizeof steps / sizeof *steps; i++) {
		struct pollfd end = {tasks->pidfd, POLLIN, 0};

		if (steps[i].signal)
			syscall(SYS_pidfd_send_signal, tasks->pidfd, steps[i].signal, NULL, 0);
		if (poll(&end, 1, steps[i].wait_ms))
			break;
	}
	if (!tasks->started)
		return;
	waitpid(tasks->child.pid, NULL, WNOHANG); /* job_run may have reaped it */
	close(tasks->pidfd);
	close(tasks->child.words_fd);
	if (tasks->child.fd >= 0)
		close(tasks->child.fd);
	tasks->started = false;
}

/* What the tool has said, its last lines on one. */
static void words_of(const struct run_tasks *tasks, char *out, size_t size)
{
	char words[WORDS_MAX + 1];
	off_t end = lseek(tasks->child.words_fd, 0, SEEK_END);
	off_t from = end > WORDS_MAX ? end - WORDS_MAX : 0;
	ssize_t n = end > 0 ? pread(tasks->child.words_fd, words, WORDS_MAX, from) : 0;

	words[n > 0 ? n : 0] = '\0';
	out[0] = '\0';
	for (char *line = words, *next; line; line = next) {
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
	job_end(tasks->job, 0);
}

/* The plan is there: the step starts while the agents start the keepers. */
static void begun(void *context, struct job *job, const struct machine *cards, int port)
{
	struct run_tasks *tasks = context;
	const struct run_setup *setup = tasks->setup;
	struct engine_job engine = {
		.alloc = &setup->alloc,
		.env = setup->env,
		.program = setup->program,
		.job = setup->alloc.job_id,
	};
	struct engine_tasks wish = {tasks->counts, setup->options->pmix != JOB_PMIX_OFF};
	struct error err = {0};

	(void)cards;
	(void)port;
	tasks->job = job;
	stop_tool(tasks); /* of an earlier attempt */
	tasks->ended_ms = 0;
	if (setup->engine->start_tasks(&engine, &wish, &tasks->child, &err)) {
		fail(tasks, err.text);
		return;
	}
	tasks->pidfd = (int)syscall(SYS_pidfd_open, tasks->child.pid, 0);
	tasks->started = true;
}

/* The step's tool must not end before the ranks have. */
static int64_t tick(void *context, int64_t now_ms)
{
	struct run_tasks *tasks = context;
	struct pollfd end = {tasks->started ? tasks->pidfd : -1, POLLIN, 0};
	char words[WORDS_MAX + 1], text[WORDS_MAX + 300];

	if (tasks->failure || poll(&end, 1, 0) <= 0)
		return 0;
	if (!tasks->ended_ms)
		tasks->ended_ms = now_ms;
	if (now_ms - tasks->ended_ms < SETTLE_MS)
		return tasks->ended_ms + SETTLE_MS;
	words_of(tasks, words, sizeof words);
	snprintf(text, sizeof text,
		 "the step of the ranks is over, and ranks still wait for it; srun said: %s; %s",
		 words[0] ? words : "nothing",
		 strstr(words, "mpi/pmix") || strstr(words, "MPI")
			 ? "this Slurm has no mpi/pmix (srun --mpi=list): use --launcher srun, whose "
			   "agents bring PMIx themselves, or --pmix off for programs without MPI"
			 : "--launcher srun needs no such step");
	fail(tasks, text);
	return 0;
}

static void missing(void *context, size_t node, const char *words)
{
	(void)context;
	(void)node;
	(void)words; /* the job says it */
}

void run_tasks_planned(struct run_tasks *tasks, const struct plan *plan)
{
	for (size_t i = 0; i < plan->node_count; i++)
		tasks->counts[i] = (int)plan->nodes[i].rank_count;
}

int run_tasks_prepare(struct run_tasks *tasks, struct run_setup *setup, const char *const *argv,
		      struct error *err)
{
	struct wire_secret random;
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
	const char *const keeper[] = {setup->program, "agent", "--rank-proxy", "--"};

	memcpy(tasks->argv, keeper, sizeof keeper);
	memcpy(tasks->argv + 4, argv, count * sizeof *argv);
	rc = wire_secret_make(&random, err);
	if (rc)
		return rc;
	wire_secret_format(&random, token);
	token[TASKS_TOKEN] = '\0';
	rc = env_set(setup->env, TASKS_ENV, token, ENV_FROM_BERTH, NULL, err);
	tasks->driver = (struct job_driver){
		.context = tasks, .no_input = true, .begun = begun, .tick = tick, .missing = missing};
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
